"""A grid search that is private as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier  # pyright: ignore
from sklearn.model_selection import ParameterGrid  # pyright: ignore
from sklearn.utils.metaestimators import available_if  # pyright: ignore
from sklearn.utils.validation import check_is_fitted, validate_data  # pyright: ignore

from lastiterate.accounting.certificate import Certificate
from lastiterate.errors import InputError
from lastiterate.estimators.base import (
    PrivateLinear,
    check_known,
    find_positions,
    refuse,
    restore_on_error,
    seed_of,
    warn_of_single_rows,
)
from lastiterate.estimators.file_estimators import (
    check_no_mapping,
    check_no_times,
    hide_values,
    plain_labels,
)
from lastiterate.estimators.meta_estimators import OwnSeed
from lastiterate.estimators.pipelines import list_outer_schemas, warn_of_learned_steps
from lastiterate.ledger.store import Ledger
from lastiterate.planning.planner import SharedBudget
from lastiterate.planning.task import Task
from lastiterate.release import tuning
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.linear_plans import candidate, part_of
from lastiterate.release.model_kinds import SELECTED
from lastiterate.release.pipeline import finish
from lastiterate.release.score_meaning import (
    Labels,
    Range,
    check_costs,
    check_range,
    threshold_of,
)
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.release.units import KeptUnits
from lastiterate.run.validation import check_kept, relative_weights, to_float

Grid = Mapping[str, Sequence[object]]
FREE = {"row_norm", "run", "time_budget"}
"""Parameters that a grid may vary; the budget belongs to the search."""


OWN_CHOICE = "the search takes param_grid over " + ", ".join(sorted(FREE)) + " and a budget"
NOT_TAKEN = {
    "scoring": "candidates are compared by a noisy accuracy, or squared error of numbers, which the "
    "certificate covers",
    "cv": "a public fifth of the records is held out once: folds would use each record several times",
    "refit": "the winner is released as it was trained",
    "n_jobs": "candidates are trained one after another",
}
"""What scikit-learn's searches take and this one refuses."""
OF_TABLES = (
    "search on rows: t = SchemaTransformer(schema).fit(X), then fit(t.transform(X), y) with an "
    "estimator of row_norm=t.row_norm_ and classes= (docs/guides/cross-validation)"
)
SEVERAL = (
    "give param_grid several values, such as {'row_norm': [0.5, 1.0]}; to train one model fit the "
    "estimator itself, which spends nothing on a choice"
)
"""What gives a search candidates to choose from."""
LEAST = 10
"""Records of a search: it trains on four fifths of them and scores on the others."""


def _of_classes(search: DPSearchCV) -> bool:
    """Whether it searches for a classifier, which has scores and probabilities."""
    return bool(is_classifier(search.estimator))


class DPSearchCV(OwnSeed, MetaEstimatorMixin, BaseEstimator):
    """A search that trains a secret number of candidates and releases the best one.

    Parameters
    ----------
    estimator : DPLogisticRegression or DPHuberRidge
        Estimator to search with, with its public ``classes`` or ``target_range``. Its own budget,
        ``verbose`` and ``random_state`` are not used.
    param_grid : dict of str to sequence, or sequence of them
        Grid over ``row_norm``, ``run`` and ``time_budget``, as for scikit-learn's ``GridSearchCV``,
        chosen without the data.
    epsilon : float, default 1.0
        Budget of training all candidates, scoring them, and releasing the best one.
    delta : float or "auto", default "auto"
        Budget; "auto" is a power of ten of at most 1/(10 n), n the records trained on.
    mean_runs : float, default 10.0
        Expected number of trained candidates. The number itself is random and secret.
    runs : {"logarithmic", "geometric", "poisson"}, default "logarithmic"
        Distribution of that number.
    random_state : int or RandomState, optional
        Seed for tests only; it becomes a caveat.
    ledger : Ledger or path, optional
        Ledger that the search is charged to before it begins.
    dataset : str, optional
        Name of the data set in the ledger.
    **unsupported : object
        Arguments of scikit-learn's searches that privacy forbids, such as ``scoring`` and ``cv``;
        all are refused.

    Attributes
    ----------
    best_estimator_ : DPLogisticRegression or DPHuberRidge
        Released estimator.
    best_params_ : dict
        Parameters of the winner.
    certificate_ : Certificate
        Cost of the whole search.

    Notes
    -----
    **Guarantee:** the certificate covers the whole search. A public fifth of the records is held
    out and scored with noise; progress, scores and the number of trained candidates are not shown,
    not even the winner's score. See docs/theorems/private-selection for the theorem and its source.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.estimators import DPLogisticRegression, DPSearchCV
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> estimator = DPLogisticRegression(classes=[0, 1], algorithm="noisy-gd")
    >>> search = DPSearchCV(estimator, {"row_norm": [1.0, 2.0]}, mean_runs=2).fit(X, y)
    >>> search.best_params_["row_norm"] in (1.0, 2.0)
    True
    """

    def __init__(
        self,
        estimator: Any,
        param_grid: Grid | Sequence[Grid],
        *,
        epsilon: float = 1.0,
        delta: Any = "auto",
        mean_runs: float = tuning.MEAN_RUNS,
        runs: str = "logarithmic",
        random_state: int | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        **unsupported: object,
    ) -> None:
        for name, value in unsupported.items():
            raise InputError(name, "is not supported", value, NOT_TAKEN.get(name, OWN_CHOICE))
        self.estimator = estimator
        self.param_grid = param_grid
        self.epsilon = epsilon
        self.delta = delta
        self.mean_runs = mean_runs
        self.runs = runs
        self.random_state = random_state
        self.ledger = ledger
        self.dataset = dataset

    @restore_on_error
    def fit(self, X: Any, y: Any, units: object = None, **unsupported: object) -> DPSearchCV:
        """Search on rows and labels or targets.

        Parameters
        ----------
        X : array_like, shape (n, d)
            Private rows.
        y : array_like, shape (n,)
            Private labels or targets.
        units : array_like, shape (n,), optional
            Identifier of the person of every row. The first row of each person is used, so that a
            person is trained on or scored, never both, and the certificate protects persons.
        **unsupported : object
            Arguments of scikit-learn that privacy forbids, such as ``sample_weight``; all are
            refused.

        Returns
        -------
        DPSearchCV
            The fitted search.

        Raises
        ------
        InputError
            If input is bad or the budget does not suffice; the search stays as it was.
        """
        refuse(unsupported, "X, y and units")
        self._check_estimator()
        protected = None if units is None else KeptUnits.limit_rows(units, 1)
        if protected is None:
            warn_of_single_rows(self, list_outer_schemas(self))
        warn_of_learned_steps(self)
        check_kept("X", (X, y))
        numeric = not is_classifier(self.estimator)
        check_no_mapping(X, OF_TABLES)
        check_no_times("X", X)
        if numeric:
            check_no_times("y", y)
        if y is None:
            raise InputError(
                "y", "must be given (requires y to be passed, but the target y is None)"
            )
        with hide_values("X or y"):
            rows, labels = cast(
                "tuple[np.ndarray, np.ndarray]",
                validate_data(
                    self,
                    X,
                    y,
                    dtype=[np.float64, np.float32],
                    ensure_min_samples=LEAST,
                    y_numeric=numeric,
                ),
            )
        if protected is not None:
            rows, labels = protected.select(rows, labels)
            if len(rows) < LEAST:
                raise InputError(
                    "units", f"must name at least {LEAST} persons", len(rows), "give more persons"
                )
        self._settings = self._list_settings()
        answers, target = self._answers(labels)
        train, held = tuning.parts(len(rows))
        delta = Budget(self.epsilon, self.delta).delta_for(len(train))
        classes = len(answers.values) if isinstance(answers, Labels) else 0
        law = tuning.law_of(to_float("mean_runs", self.mean_runs), self.runs)
        proofs: dict[int, Certificate] = {}
        charging = make_charging(ledger=self.ledger, dataset=self.dataset, purpose="DPSearchCV")
        charging.of_units = protected is not None
        weights = relative_weights(
            self.estimator.class_weight, answers.values if isinstance(answers, Labels) else ()
        )
        asked = Task(
            len(train),
            rows.shape[1],
            classes,
            1.0,
            feature_map=part_of(self.estimator.features),
            class_weights=weights,
        )
        candidates = [
            self._candidate(i, asked, proofs, charging.allowance())
            for i in range(len(self._settings))
        ]
        certificate = tuning.plan_candidates(
            candidates,
            epsilon=self.epsilon,
            delta=delta,
            law=law,
            held_out=len(held),
            regression=classes == 0,
        )
        for proof in proofs.values():
            check_costs(
                getattr(self.estimator, "threshold", None),
                proof.run,
                "search runs that calibrate probabilities, or ",
            )
        distinct = tuning.selection_of(certificate).candidates
        tuning.check_candidates("candidates", len(distinct), SEVERAL)
        model = finish(
            SELECTED,
            TrainingRequest(
                data=(rows, target),
                budget=Budget(self.epsilon, delta),
                proof=certificate,
                delta=delta,
                answers=answers,
                seed=seed_of(self.random_state),
                charging=charging,
                units=None if protected is None else protected.units,
                unit=None if protected is None else protected.who,
            ),
        )
        assert isinstance(model, tuning.FittedSelected)
        which = next(i for i, one in proofs.items() if one.run == model.run)
        self.best_params_ = self._settings[which]
        best = cast(Any, clone(self.estimator))
        best.set_params(**self.best_params_)
        best.fitted_, best.choice_, best.delta_, best.n_iter_ = model, None, delta, model.run.steps
        best.n_features_in_ = rows.shape[1]
        if (names := vars(self).get("feature_names_in_")) is not None:
            best.feature_names_in_ = names
        if isinstance(answers, Labels):
            stated = np.asarray(answers.values)
            best._positions = np.argsort(stated, kind="stable")
            best.classes_ = self.classes_ = stated[best._positions]
        self.best_estimator_ = best
        return self

    def _check_estimator(self) -> None:
        if not isinstance(self.estimator, PrivateLinear):
            raise InputError(
                "estimator",
                "must be a DPLogisticRegression or a DPHuberRidge",
                type(self.estimator).__name__,
            )
        if self.estimator.schema is not None:
            raise InputError(
                "schema of the estimator",
                "must be None in a search, which takes rows",
                None,
                OF_TABLES,
            )
        if self.estimator.ledger is not None:  # whose owner counts on a charge
            raise InputError(
                "ledger of the estimator",
                "must be None in a search, which is charged as a whole",
                str(self.estimator.ledger),
                "give DPSearchCV the ledger and the dataset",
            )
        if self.estimator.stream:
            raise InputError(
                "stream of the estimator",
                "must be False in a search, which holds rows in memory",
                True,
            )
        if self.estimator.rows_per_unit != 1:
            raise InputError(
                "rows_per_unit of the estimator",
                "must be 1 in a search, whose scores count rows",
                self.estimator.rows_per_unit,
                "leave it out: fit(X, y, units=) uses the first row of each person",
            )
        if self.estimator.report_accuracy is not None:
            raise InputError(
                "report_accuracy of the estimator",
                "must be None in a search, which releases no score",
                self.estimator.report_accuracy,
                "score the winner on public records",
            )

    def _list_settings(self) -> list[dict[str, Any]]:
        """The candidates' parameters."""
        try:
            settings = list(ParameterGrid(self.param_grid))
        except (TypeError, ValueError):
            raise InputError(
                "param_grid",
                "must be a dictionary from names to lists of values, or a list of such",
                self.param_grid,
                "such as {'row_norm': [0.5, 1.0]}",
            ) from None
        tuning.check_candidates("candidates", len(settings), SEVERAL)
        return settings

    def _answers(self, y: np.ndarray) -> tuple[Labels | Range, np.ndarray]:
        if not is_classifier(self.estimator):
            if self.estimator.target_range is None:
                raise InputError(
                    "target_range",
                    "must be given to the estimator: the public (low, high) of the target",
                    None,
                    "a range that is read off private targets is not private",
                )
            answers = check_range(self.estimator.target_range, "target_range")
            with hide_values("y"):
                return answers, answers.scale_target(np.asarray(y, dtype=np.float64))
        if self.estimator.classes is None:
            raise InputError(
                "classes",
                "must be given to the estimator: a search takes no labels from the data",
                None,
                "pass the public labels with classes=",
            )
        y = plain_labels("y", y)
        stated = plain_labels("classes", np.asarray(self.estimator.classes))
        labels = np.unique(stated)
        check_known(np.unique(y), labels)
        positions = find_positions(stated, labels)
        values = tuple(labels[np.argsort(positions)].tolist())
        threshold = threshold_of(self.estimator.threshold, len(labels))
        return Labels(values, threshold), positions[np.searchsorted(labels, y)]

    def _candidate(
        self, number: int, task: Task, proofs: dict[int, Certificate], shared: SharedBudget | None
    ) -> Callable[[float, float], Any]:
        setting = self._settings[number]
        unknown = sorted(set(setting) - FREE)
        if unknown:
            raise InputError(
                "param_grid",
                "may vary " + ", ".join(sorted(FREE)),
                unknown[0],
                "set the others on the estimator",
            )
        one = cast(PrivateLinear, clone(self.estimator))
        one.set_params(**setting)  # pyright: ignore[reportUnknownMemberType]
        one.check_public(task.feature_map)
        asked = replace(task, row_norm=one.public_row_norm(), calibrated=one.calibrated)
        made = candidate(
            asked,
            Budget(self.epsilon, self.delta, one.adjacency, one.time_budget),
            Algorithm(one.algorithm, run=one.run),
            shared,
        )

        def plan_candidate(epsilon: float, delta: float) -> Certificate:
            proofs[number] = made(epsilon, delta)
            return proofs[number]

        return plan_candidate

    @property
    def certificate_(self) -> Certificate:
        """Certificate of every candidate, every score, and the release."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.fitted_.certificate

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict with the released estimator.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows.

        Returns
        -------
        numpy.ndarray, shape (m,)
            Labels or targets.
        """
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    @available_if(_of_classes)
    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities of the released classifier.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            Probabilities.
        """
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)

    @available_if(_of_classes)
    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the scores of the released classifier.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows.

        Returns
        -------
        numpy.ndarray, shape (m,) or (m, k)
            Scores.
        """
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.decision_function(X)

    def score(self, X: ArrayLike, y: ArrayLike) -> float:
        """Return accuracy or R^2 on data that were not trained on.

        On the training data it would be another release.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows.
        y : array_like, shape (m,)
            Labels or targets.

        Returns
        -------
        float
            Accuracy of a classifier, R^2 of a regressor.
        """
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))
