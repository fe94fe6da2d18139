"""A grid search that is private as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_classifier  # pyright: ignore
from sklearn.model_selection import ParameterGrid  # pyright: ignore
from sklearn.utils import estimator_html_repr, get_tags  # pyright: ignore
from sklearn.utils.metaestimators import available_if  # pyright: ignore
from sklearn.utils.validation import check_is_fitted, validate_data  # pyright: ignore

from lastiterate.accounting.certificate import Certificate
from lastiterate.curves.selection import Runs
from lastiterate.data.data_frames import frame_table
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.estimators.base import (
    REFUSED_METADATA,
    PrivateLinear,
    check_known,
    find_positions,
    refuse,
    restore_on_error,
    seed_of,
    warn_of_single_rows,
)
from lastiterate.estimators.file_estimators import (
    check_length,
    check_no_mapping,
    check_no_times,
    hide_values,
    plain_labels,
)
from lastiterate.estimators.meta_estimators import OwnSeed
from lastiterate.estimators.pipelines import (
    SchemaTransformer,
    list_handed_tables,
    list_outer_schemas,
    warn_of_learned_steps,
)
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.planner import SharedBudget
from lastiterate.planning.task import FeatureMap, Task
from lastiterate.release import tuning
from lastiterate.release.composition_reminder import recognise_by
from lastiterate.release.ledger_charge import make_charging
from lastiterate.release.linear_plans import candidate, choose_features, part_of
from lastiterate.release.model_kinds import SELECTED
from lastiterate.release.pipeline import finish
from lastiterate.release.score_meaning import Labels, Range, check_costs, check_range, threshold_of
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.release.units import KeptUnits
from lastiterate.run.validation import check_kept, relative_weights, to_float

Grid = Mapping[str, Sequence[object]]
FREE = {"row_norm", "run", "time_budget", "features"}
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
NO_TABLE = (
    "give the estimator schema=, which says how columns become rows (docs/guides/cross-validation)"
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


@dataclass(frozen=True, eq=False)
class SearchedSetting:
    """One setting of the grid, and the estimator that has it.

    ``part``, ``width``, ``rows``: how its records become rows of so many numbers.
    ``certificates``: of its last plan.
    """

    setting: dict[str, Any]
    estimator: Any
    part: FeatureMap
    width: int
    rows: tuning.CandidateRows = tuning.ALL
    certificates: list[Certificate] = field(default_factory=list[Certificate])

    def plan(self, search: DPSearchCV, task: Task, shared: SharedBudget | None) -> tuning.Candidate:
        """What is planned for the setting within another epsilon and delta."""
        one = self.estimator
        one.check_public(self.part)
        asked = replace(
            task,
            features=self.width,
            row_norm=one.public_row_norm(),
            calibrated=one.calibrated,
            feature_map=self.part,
        )
        made = candidate(
            asked,
            Budget(search.epsilon, search.delta, one.adjacency, one.time_budget),
            Algorithm(one.algorithm, run=one.run),
            shared,
        )

        def plan_candidate(epsilon: float, delta: float) -> Certificate:
            self.certificates[:] = [made(epsilon, delta)]
            return self.certificates[0]

        return plan_candidate

    def can_have_made(self, model: tuning.FittedSelected) -> bool:
        """Whether the setting may have made the model: its run and its maps are the model's."""
        return self.certificates[0].run == model.run and self.rows.schema == model.schema


class DPSearchCV(OwnSeed, MetaEstimatorMixin, BaseEstimator):
    """A search that trains a secret number of candidates and releases the best one.

    Parameters
    ----------
    estimator : DPLogisticRegression or DPHuberRidge
        Estimator to search with, with its public ``classes`` or ``target_range``, or a ``schema``
        for tables. Its own budget, ``verbose`` and ``random_state`` are not used.
    param_grid : dict of str to sequence, or sequence of them
        Grid over ``row_norm``, ``run``, ``time_budget`` and ``features``, as for scikit-learn's
        ``GridSearchCV``, chosen without the data.
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
    fitted_ : FittedSelected
        Released model, as of other estimators: ``fitted_.save(folder)``.
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

    __metadata_request__fit: ClassVar[dict[str, Any]] = REFUSED_METADATA

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
            Private rows, or a table where the estimator has a schema.
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
        law = tuning.law_of(to_float("mean_runs", self.mean_runs), self.runs)
        read = self._read_rows if self.estimator.schema is None else self._read_table
        rows, target, answers, searched = read(X, y, protected, law)
        train, held = tuning.parts(len(rows))
        delta = Budget(self.epsilon, self.delta).delta_for(len(train))
        classes = len(answers.values) if isinstance(answers, Labels) else 0
        charging = make_charging(ledger=self.ledger, dataset=self.dataset, purpose="DPSearchCV")
        charging.of_units = protected is not None
        weights = relative_weights(
            self.estimator.class_weight, answers.values if isinstance(answers, Labels) else ()
        )
        asked = Task(len(train), 1, classes, 1.0, class_weights=weights)
        certificate, of_candidates = tuning.plan_candidates(
            [(one.plan(self, asked, charging.allowance()), one.rows) for one in searched],
            epsilon=self.epsilon,
            delta=delta,
            law=law,
            held_out=len(held),
            regression=classes == 0,
        )
        for run in tuning.selection_of(certificate).candidates:
            check_costs(
                getattr(self.estimator, "threshold", None),
                run,
                "search runs that calibrate probabilities, or ",
            )
        tuning.check_candidates("candidates", len(of_candidates), SEVERAL)
        order = TrainingRequest(
            data=(rows, target),
            budget=Budget(self.epsilon, delta),
            model=of_candidates,
            proof=certificate,
            delta=delta,
            answers=answers,
            seed=seed_of(self.random_state),
            charging=charging,
            units=None if protected is None else protected.units,
            unit=None if protected is None else protected.who,
        )
        with recognise_by(*list_handed_tables(self, X)):
            model = finish(SELECTED, order)
        assert isinstance(model, tuning.FittedSelected)
        won = next(one for one in searched if one.can_have_made(model))
        self.best_params_, best = won.setting, won.estimator
        best.fitted_, best.choice_, best.delta_, best.n_iter_ = model, None, delta, model.run.steps
        self._name_columns(best)
        if isinstance(answers, Labels):
            best._positions = np.argsort(self._labels, kind="stable")
            best.classes_ = self.classes_ = self._labels[best._positions]
        self.best_estimator_ = best
        return self

    def _name_columns(self, best: Any) -> None:
        """The columns that ``fit`` saw, of the search and of its winner."""
        seen: object = self if self.estimator.schema is None else best.transformer_
        known = {"n_features_in_", "feature_names_in_"}
        names = {name: value for name, value in vars(seen).items() if name in known}
        for one in (self, best):
            vars(one).pop("feature_names_in_", None)
            vars(one).update(names)

    def _read_rows(
        self, X: Any, y: Any, protected: KeptUnits | None, law: Runs
    ) -> tuple[np.ndarray, np.ndarray, Labels | Range, list[SearchedSetting]]:
        """Rows and scaled targets of arrays, what scores mean, and the candidates."""
        check_kept("X", (X, y))
        numeric = not is_classifier(self.estimator)
        check_no_mapping(X, NO_TABLE)
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
        rows, labels = self._select(rows, labels, protected)
        searched = [
            SearchedSetting(setting, one, part_of(one.features), rows.shape[1])
            for setting, one in self._list_estimators()
        ]
        answers, target = self._answers(labels)
        return rows, target, answers, searched

    def _read_table(
        self, X: Any, y: Any, protected: KeptUnits | None, law: Runs
    ) -> tuple[np.ndarray, np.ndarray, Labels | Range, list[SearchedSetting]]:
        """The same of a table, whose rows by the maps of all candidates lie side by side."""
        schema, answers, target, self._labels = self.estimator.read_table_target(y)
        if protected is None:
            warn_of_single_rows(self, [schema])
        cells = frame_table(X, schema)
        check_length(cast(Any, cells), target)
        count = len(cells) if protected is None else protected.count
        shape = cells.shape or (len(cells.names),)
        each = tuning.first_share(
            self.epsilon, Budget(self.epsilon, self.delta).delta_for(count), law
        )
        made: dict[Schema, tuple[SchemaTransformer, tuning.CandidateRows]] = {}
        parts: list[np.ndarray] = []
        searched: list[SearchedSetting] = []
        for setting, one in self._list_estimators():
            maps = choose_features(
                schema, one.features, shape, len(tuning.parts(count)[0]), Budget(*each)
            )
            if maps.schema not in made:
                transformer = SchemaTransformer(maps.schema).fit(X)
                parts.append(np.asarray(transformer.transform(X)))
                stop = sum(part.shape[1] for part in parts)
                columns = tuning.CandidateRows(stop - parts[-1].shape[1], stop, transformer.schema_)
                made[maps.schema] = transformer, columns
            one.transformer_, columns = made[maps.schema]
            one._part = maps.part
            width = one.transformer_.form_.width
            searched.append(SearchedSetting(setting, one, maps.part, width, columns))
        rows, target = self._select(np.concatenate(parts, axis=1), target, protected)
        return rows, target, answers, searched

    def _select(
        self, rows: np.ndarray, target: np.ndarray, protected: KeptUnits | None
    ) -> tuple[np.ndarray, ...]:
        """The rows that are used, of which there must be enough to train on and to score."""
        if protected is not None:
            rows, target = protected.select(rows, target)
        if len(rows) < LEAST:
            name, rule, what = ("X", "hold", "records")
            if protected is not None:
                name, rule, what = ("units", "name", "persons")
            raise InputError(
                name, f"must {rule} at least {LEAST} {what}", len(rows), f"give more {what}"
            )
        return rows, target

    def _check_estimator(self) -> None:
        if not isinstance(self.estimator, PrivateLinear):
            raise InputError(
                "estimator",
                "must be a DPLogisticRegression or a DPHuberRidge",
                type(self.estimator).__name__,
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
        self._labels = labels[np.argsort(positions)]
        values = tuple(self._labels.tolist())
        threshold = threshold_of(self.estimator.threshold, len(labels))
        return Labels(values, threshold), positions[np.searchsorted(labels, y)]

    def _list_estimators(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """The parameters and the estimator of every candidate."""
        for setting in self._list_settings():
            unknown = sorted(set(setting) - FREE)
            if unknown:
                raise InputError(
                    "param_grid",
                    "may vary " + ", ".join(sorted(FREE)),
                    unknown[0],
                    "set the others on the estimator",
                )
            yield setting, cast(Any, clone(self.estimator)).set_params(**setting)

    @property
    def fitted_(self) -> tuning.FittedSelected:
        """The released model, as other estimators call it."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.fitted_

    @property
    def certificate_(self) -> Certificate:
        """Certificate of every candidate, every score, and the release."""
        return self.fitted_.certificate

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

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if isinstance(self.estimator, PrivateLinear):
            own = get_tags(self.estimator)
            tags.estimator_type, tags.input_tags = own.estimator_type, own.input_tags
            tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
            tags.target_tags = own.target_tags
        tags.non_deterministic = self.random_state is None
        return tags

    def _html_repr(self) -> str:
        """scikit-learn's diagram, and below it the privacy of a fitted search."""
        shown, best = str(estimator_html_repr(self)), vars(self).get("best_estimator_")
        return shown if best is None else shown + best.fitted_.privacy_html()

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return accuracy or R^2 on data that were not trained on.

        On the training data it would be another release.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows.
        y : array_like, shape (m,)
            Labels or targets.
        sample_weight : array_like, shape (m,), optional
            What each record counts, as in scikit-learn: no model is trained with it.

        Returns
        -------
        float
            Accuracy of a classifier, R^2 of a regressor.
        """
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y, sample_weight))
