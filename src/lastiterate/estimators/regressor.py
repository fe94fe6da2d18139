"""Private ridge regression with clamped residuals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin  # pyright: ignore
from sklearn.utils.validation import check_array  # pyright: ignore

from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.estimators.base import PrivateLinear
from lastiterate.estimators.file_estimators import (
    check_input,
    check_length,
    check_no_times,
    hide_values,
)
from lastiterate.estimators.pipelines import range_of, to_schema, warn_of_learned_steps
from lastiterate.ledger.ledger import Ledger
from lastiterate.planning.planner import TIME_BUDGET
from lastiterate.release.score_meaning import Range, check_range
from lastiterate.release.units import KeptUnits
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept


class DPHuberRidge(RegressorMixin, PrivateLinear):
    """Linear regression with a Huber loss and differential privacy.

    Parameters
    ----------
    epsilon : float, default 1.0
        Budget of a fit, in natural logarithms.
    delta : float or "auto", default "auto"
        Budget of a fit; "auto" is a power of ten of at most 1/(10 n).
    row_norm : float, optional
        Public bound on the Euclidean norm of a row; longer rows are scaled down to it. Required
        unless ``schema`` or ``run`` states it.
    target_range : pair of float, optional
        Public lowest and highest value of the target; values outside are clipped. Required unless
        ``schema`` states it.
    adjacency : {"zero-out", "replace-one", "add-remove"}, default "zero-out"
        Relation of neighbouring data sets.
    random_state : int or RandomState, optional
        Seed for tests only; it becomes a caveat.
    time_budget : float, default 60.0
        Seconds that a fit may take, estimated on two cores.
    run : Run, optional
        Run to execute in place of a plan, with the least noise that the budget allows.
    ledger : Ledger or path, optional
        Ledger that every fit is charged to before it begins.
    dataset : str, optional
        Name of the data set in the ledger.
    verbose : int, default 0
        1 prints steps and time.
    features : str, default "auto"
        Public choice of feature maps, as for `DPLogisticRegression`.
    algorithm : str, default "automatic"
        Algorithm, by the names of ``lastiterate train --algorithm``.
    schema : Schema, dict or path, optional
        Public facts on the columns. ``fit`` then takes a data frame, and the schema states
        ``row_norm`` and ``target_range``.
    stream : bool, default False
        Whether to read rows in pieces.
    n : int, optional
        For "add-remove" alone, and required there: the public nominal number of records.
    rows_per_unit : int, default 1
        Rows used of each person, at most, where ``fit`` gets ``units``: a public number.

    Attributes
    ----------
    fitted_ : FittedLinear
        Released model.
    certificate_ : Certificate
        Certificate; ``certificate_.epsilon(delta_)`` is at most ``epsilon``.
    delta_ : float
        Delta of the budget.
    run_ : Run
        Accounted and executed run.
    choice_ : Choice or None
        Plans by predicted risk, and the executed one; ``None`` with ``run``.
    coef_ : numpy.ndarray, shape (d,)
        Coefficients in units of the target.
    intercept_ : float
        Intercept in units of the target.

    See Also
    --------
    DPLogisticRegression : Classification with the same interface.

    Notes
    -----
    **Guarantee:** the certificate covers one fit, and every fit spends its budget again.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.estimators import DPHuberRidge
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> estimator = DPHuberRidge(row_norm=2.0, target_range=(-3, 3), algorithm="noisy-gd")
    >>> estimator = estimator.fit(X, X[:, 0])
    >>> estimator.certificate_.epsilon(estimator.delta_) <= 1.0
    True
    >>> bool((abs(estimator.predict(X)) <= 3).all())
    True
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float | Literal["auto"] = "auto",
        row_norm: float | None = None,
        target_range: tuple[float, float] | None = None,
        adjacency: str = "zero-out",
        random_state: int | None = None,
        time_budget: float = TIME_BUDGET,
        run: Run | None = None,
        ledger: Ledger | str | Path | None = None,
        dataset: str | None = None,
        verbose: int = 0,
        features: str = "auto",
        algorithm: str = "automatic",
        schema: object = None,
        stream: bool = False,
        n: int | None = None,
        rows_per_unit: int = 1,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.target_range = target_range
        self.adjacency = adjacency
        self.random_state = random_state
        self.time_budget = time_budget
        self.run = run
        self.ledger = ledger
        self.dataset = dataset
        self.verbose = verbose
        self.features = features
        self.algorithm = algorithm
        self.schema = schema
        self.stream = stream
        self.n = n
        self.rows_per_unit = rows_per_unit

    def _fit(self, X: Any, y: Any, progress: object, protected: KeptUnits | None) -> None:
        if self.schema is not None:
            schema, answers, target, _ = self.read_table_target(y)
            rows = self._map_rows(X, schema, protected)
            check_length(rows, target)
            if protected is not None:
                rows, target = protected.select(rows, target)
            self._train(rows, target, 0, answers, [], progress, protected)
            return
        warn_of_learned_steps(self)
        check_kept("X", (X, y))
        rows, target, watched = check_input(self, X, y, y_numeric=True)
        if protected is not None:
            rows, target = protected.select(rows, target)
        with hide_values("y"):
            target = target if target.dtype.kind in "biuf" else target.astype(np.float64)
        if self.target_range is None:
            raise InputError(
                "target_range",
                "must be given: the public (low, high) of the target",
                None,
                "a range that is read off private targets is not private; values outside are "
                "clipped",
            )
        answers = check_range(self.target_range, "target_range")
        self._train(
            rows, answers.scale_target(target), 0, answers, [], progress, protected, watched
        )

    def read_table_target(self, y: Any) -> tuple[Schema, Range, np.ndarray, None]:
        """Read the targets of a table.

        Parameters
        ----------
        y : array_like, shape (n,)
            Targets.

        Returns
        -------
        tuple
            The schema, the public range, the targets scaled to [-1, 1], and ``None``.
        """
        schema = to_schema(self.schema)
        bounds = range_of(schema, self.target_range)
        check_no_times("y", y)
        with hide_values("y"):
            target = cast(np.ndarray, check_array(y, ensure_2d=False, dtype="float64"))
        if target.ndim == 2 and target.shape[1] == 1:  # a data frame of one column
            target = target[:, 0]
        return schema, bounds, bounds.scale_target(target), None

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features in units of the target, (d,); see ``DPLogisticRegression.coef_``."""
        weights, _, width = self._form()
        return weights[0] * width

    @property
    def intercept_(self) -> float:
        """Intercept of ``X @ coef_``, in units of the target."""
        _, added, width = self._form()
        return float(self._answers().low + (added[0] + 1) * width)

    def _form(self) -> tuple[np.ndarray, np.ndarray, float]:
        answers = self._answers()
        return *self._linear_form(), (answers.high - answers.low) / 2

    def _answers(self) -> Range:
        answers = self._released.answers
        assert isinstance(answers, Range)
        return answers

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Predict the targets of rows, clipped to the public range.

        Parameters
        ----------
        X : array_like, shape (m, d)
            Rows, or a table with a schema.

        Returns
        -------
        numpy.ndarray, shape (m,)
            Predictions in units of the target.
        """
        rows = self._rows(X)
        return self.fitted_.predict(rows)
