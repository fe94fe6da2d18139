"""Private logistic and softmax regression."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin  # pyright: ignore

from lastiterate.data.encoding import label_text
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.estimators.base import PrivateLinear, find_positions, public_labels
from lastiterate.estimators.file_estimators import (
    check_input,
    check_length,
    check_targets,
    plain_labels,
)
from lastiterate.estimators.pipelines import labels_of, to_schema, warn_of_learned_steps
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.planner import TIME_BUDGET
from lastiterate.release.score_meaning import Labels, check_costs, pick_class, threshold_of
from lastiterate.release.units import KeptUnits
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept


class DPLogisticRegression(ClassifierMixin, PrivateLinear):
    """Logistic or softmax regression with differential privacy and nothing to tune.

    Parameters
    ----------
    epsilon : float, default 1.0
        Budget of a fit, in natural logarithms.
    delta : float or "auto", default "auto"
        Budget of a fit; "auto" is a power of ten of at most 1/(10 n).
    row_norm : float, optional
        Public bound on the Euclidean norm of a row; longer rows are scaled down to it. Required
        unless ``schema`` or ``run`` states it.
    classes : sequence, optional
        Public labels. ``None`` takes them from ``y``, in ascending order, with a warning and a
        caveat. The released model keeps the order that you state, here or in ``schema``.
    adjacency : {"zero-out", "replace-one", "add-remove"}, default "zero-out"
        Relation of neighbouring data sets: one record's contribution is zeroed (n is public), one
        record is replaced, or one record is there or not (its number is private).
    random_state : int or RandomState, optional
        Seed for tests only; it becomes a caveat. By default 128 bits come from the system.
    time_budget : float, default 60.0
        Seconds that a fit may take, estimated on two cores. More lets the planner consider more.
    run : Run, optional
        Run to execute in place of a plan, with the least noise that the budget allows. Rows are not
        centred, and the ``row_norm`` of its loss counts.
    ledger : Ledger or path, optional
        Ledger (``lastiterate ledger make``) that every fit is charged to before it begins.
    dataset : str, optional
        Name of the data set in the ledger.
    verbose : int, default 0
        1 prints steps and time, and never anything that depends on the data.
    features : str, default "auto"
        Public choice of feature maps: "auto", "plain", "sqrt", "fourier", or names of maps that
        need a schema, such as "curves" and "words" (docs/guides/planning).
    algorithm : str, default "automatic"
        Algorithm, by the names of ``lastiterate train --algorithm``.
    report_accuracy : float, optional
        Part of the budget mu^2, such as 0.05, for a noisy count of correct predictions on a tenth
        of the records, held out of training. ``fitted_.accuracies`` has the result, which does not
        show whether a rare class is ever predicted.
    schema : Schema, dict or path, optional
        Public facts on the columns. ``fit`` then takes a data frame, and the schema states
        ``row_norm`` and the classes.
    calibrated : bool, default True
        Whether plans calibrate probabilities: noisy Newton rounds with 5 % of mu^2 where n and the
        budget carry them, a public factor elsewhere (docs/theorems/probabilities).
    threshold : float or pair of float, optional
        For two classes: the probability from which the second of the stated ones is predicted, or
        the public costs of a false alarm and of a miss of that second class. The order is that of
        ``classes`` or of the schema, as on the command line; where neither states one, it is
        ascending. It costs no privacy.
    class_weight : dict of label to float, optional
        Public weight of every label. Only ratios count: a contribution is clipped first, and then
        multiplied by at most 1. Probabilities are those of the weighted records.
    stream : bool, default False
        Whether to read rows in pieces, for memory-mapped arrays larger than memory. Batches that
        need random access are refused.
    n : int, optional
        For "add-remove" alone, and required there: the public nominal number of records, chosen
        without counting them.
    rows_per_unit : int, default 1
        Rows used of each person, at most, where ``fit`` gets ``units``: a public number.

    Attributes
    ----------
    fitted_ : FittedLinear
        Released model; ``fitted_.save(folder)`` writes it, `lastiterate.load` reads it.
    certificate_ : Certificate
        Certificate; ``certificate_.epsilon(delta_)`` is at most ``epsilon``.
    delta_ : float
        Delta of the budget.
    run_ : Run
        Accounted and executed run.
    choice_ : Choice or None
        Plans by predicted risk, and the executed one; ``None`` with ``run``.
    classes_ : numpy.ndarray, shape (k,)
        Labels, ascending, as scikit-learn demands: the order of ``predict_proba`` and ``coef_``.
        ``fitted_`` and its files have the stated order, ``fitted_.answers.values``.
    coef_ : numpy.ndarray, shape (1 or k, d)
        Coefficients as in scikit-learn, for rows that no bound clips.
    intercept_ : numpy.ndarray, shape (1 or k,)
        Intercepts as in scikit-learn, for rows that no bound clips.

    See Also
    --------
    DPHuberRidge : Regression with the same interface.
    lastiterate.train : Train a run that you describe.

    Notes
    -----
    **Guarantee:** the certificate covers one fit. Every fit spends its budget again: repeated fits,
    grid searches and cross-validation on one data set compose, and a ``RepeatedFitWarning`` says so
    once per process.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.estimators import DPLogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = (X[:, 0] > 0).astype(int)
    >>> estimator = DPLogisticRegression(epsilon=1.0, row_norm=2.0, classes=[0, 1]).fit(X, y)
    >>> estimator.certificate_.epsilon(estimator.delta_) <= 1.0
    True
    >>> estimator.predict_proba(X).shape
    (200, 2)
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | Literal["auto"] = "auto",
        row_norm: float | None = None,
        classes: object = None,
        adjacency: str = "zero-out",
        random_state: int | None = None,
        time_budget: float = TIME_BUDGET,
        run: Run | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        verbose: int = 0,
        features: str = "auto",
        algorithm: str = "automatic",
        report_accuracy: float | None = None,
        schema: object = None,
        calibrated: bool = True,
        threshold: object = None,
        class_weight: object = None,
        stream: bool = False,
        n: int | None = None,
        rows_per_unit: int = 1,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.classes = classes
        self.adjacency = adjacency
        self.random_state = random_state
        self.time_budget = time_budget
        self.run = run
        self.ledger = ledger
        self.dataset = dataset
        self.verbose = verbose
        self.features = features
        self.algorithm = algorithm
        self.report_accuracy = report_accuracy
        self.schema = schema
        self.calibrated = calibrated
        self.threshold = threshold
        self.class_weight = class_weight
        self.stream = stream
        self.n = n
        self.rows_per_unit = rows_per_unit

    _positions: np.ndarray | None = None
    """The position of every ascending label in the released model's order."""

    def _fit(self, X: Any, y: Any, progress: object, protected: KeptUnits | None) -> None:
        if self.schema is not None:
            self._fit_table(X, y, progress, protected)
            return
        warn_of_learned_steps(self)
        check_kept("X", (X, y))
        rows, labels, watched = check_input(self, X, y)
        labels = plain_labels("y", labels)
        check_targets(labels, "or train DPHuberRidge on numbers")
        if protected is not None:
            rows, labels = protected.select(rows, labels)
        caveats: list[str] = []
        self.classes_ = public_labels(self.classes, np.unique(labels), caveats)
        if len(self.classes_) < 2:
            raise InputError(
                "classes",
                "must hold at least 2 labels; this classifier cannot train when only one class "
                "is present",
                len(self.classes_),
                "pass the public labels with classes=",
            )
        self._positions = find_positions(self.classes, self.classes_)
        answers = self._answers(tuple(self._labels_in_order().tolist()))
        self._train(
            rows,
            self._positions[np.searchsorted(self.classes_, labels)],
            len(self.classes_),
            answers,
            caveats,
            progress,
            protected,
            watched,
        )

    def _fit_table(
        self, table: ArrayLike, y: ArrayLike, progress: object, protected: KeptUnits | None
    ) -> None:
        """Train on a table by the schema, whose classes are the labels."""
        schema, answers, target, labels = self.read_table_target(y)
        rows = self._map_rows(table, schema, protected)
        check_length(rows, target)
        if protected is not None:
            rows, target = protected.select(rows, target)
        self._positions = np.argsort(labels, kind="stable")
        self.classes_ = labels[self._positions]
        self._train(rows, target, len(labels), answers, [], progress, protected)

    def read_table_target(self, y: Any) -> tuple[Schema, Labels, np.ndarray, np.ndarray]:
        """Read the labels of a table.

        Parameters
        ----------
        y : array_like, shape (n,)
            Labels.

        Returns
        -------
        tuple
            The schema, its labels, the class index of every record, and the labels in the kind of
            ``y``.
        """
        schema = to_schema(self.schema, self.classes)
        labels, target = labels_of(schema, self.classes, y)
        if self.threshold is not None and self.classes is not None:
            self._check_order(schema.classes)
        return schema, self._answers(schema.classes), target, labels

    def _check_order(self, stated: tuple[str, ...]) -> None:
        """Refuse classes in another order than the schema's, which leave open which is the second."""
        if tuple(map(label_text, cast("Iterable[object]", self.classes))) != stated:
            raise InputError(
                "classes",
                "must have the order of the schema, which says which class is the second that "
                "threshold speaks of",
                self.classes,
                "leave them out",
            )

    def _labels_in_order(self) -> np.ndarray:
        """The labels in the order of the released model, (k,)."""
        if self._positions is None:
            return self.classes_
        return self.classes_[np.argsort(self._positions)]

    def _linear_form(self) -> tuple[np.ndarray, Any]:
        slopes, offset = super()._linear_form()
        return self._sort_scores(slopes.T).T, self._sort_scores(offset)

    def _sort_scores(self, scores: np.ndarray) -> np.ndarray:
        """Scores (..., 1 or k) of the released model for the classes in ascending order."""
        if self._positions is None:
            return scores
        if scores.shape[-1] == 1:  # of the second class against the first
            return scores if self._positions[0] == 0 else -scores
        return scores[..., self._positions]

    def _answers(self, labels: tuple[Any, ...]) -> Labels:
        """The labels, with the threshold of two."""
        return Labels(labels, threshold_of(self.threshold, len(labels)))

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Return the scores of rows.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with a schema.

        Returns
        -------
        numpy.ndarray, shape (m,) or (m, k)
            Scores: one per row for two classes, one per class otherwise.
        """
        rows = self._rows(X)
        scores = self._sort_scores(self.fitted_.scores(rows))
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the probabilities of the classes: the softmax of the linear scores.

        They are calibrated where the run is (``calibrated=True``, or ``Run(probability_calibration=)``). Other
        scores are too steep: they rank rows, and their log loss can exceed that of one constant for
        all rows. A public factor (`lastiterate.AssumedSlope`) makes them less steep. With
        ``class_weight`` they are frequencies among the weighted records: divide each by its class's
        weight, and the results by their sum, for those among the records.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with a schema.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            Probabilities.
        """
        rows = self._rows(X)
        return self._sort_scores(self.fitted_.probabilities(rows))

    def predict_log_proba(self, X: ArrayLike) -> np.ndarray:
        """Return the natural logarithms of the probabilities.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with a schema.

        Returns
        -------
        numpy.ndarray, shape (m, k)
            Logarithms of ``predict_proba``.
        """
        return np.log(self.predict_proba(X))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict the most probable label of every row, or decide by the ``threshold``.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with a schema.

        Returns
        -------
        numpy.ndarray, shape (m,)
            Labels.
        """
        rows = self._rows(X)
        check_costs(self.threshold, self.run_, "")
        chances = self.fitted_.probabilities(rows)
        threshold = threshold_of(self.threshold, len(self.classes_))
        return self._labels_in_order()[pick_class(chances, threshold)]
