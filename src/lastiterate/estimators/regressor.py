"""Private ridge regression with clamped residuals."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin  # pyright: ignore
from sklearn.utils.validation import check_array  # pyright: ignore

from lastiterate.errors import InputError
from lastiterate.estimators.base import PrivateLinear
from lastiterate.estimators.file_estimators import (
    check_length,
    check_no_times,
    checked,
    numbers_only,
)
from lastiterate.estimators.pipelines import as_schema, range_of, warn_of_learned_steps
from lastiterate.ledger.store import Ledger
from lastiterate.planning.planner import TIME_BUDGET
from lastiterate.release.predictions import Range, ordered
from lastiterate.run.run import Run
from lastiterate.run.validation import check_kept


class DPHuberRidge(RegressorMixin, PrivateLinear):
    """Linear regression with a Huber loss and differential privacy; targets are clipped to a public
    range.

    Parameters
    ----------
    epsilon, delta, row_norm, adjacency, n, random_state, time_budget, run, ledger, dataset : as for
        ``DPLogisticRegression``.
    target_range : public (low, high) of the target, which must be given; values outside are clipped.
    verbose : 1 prints steps and time.
    features, algorithm, schema, stream : as for ``DPLogisticRegression``; a schema says the ``target_range``, too.
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

    def _fit(self, X: Any, y: Any, progress: object, unsupported: dict[str, Any]) -> None:
        if self.schema is not None:
            schema = as_schema(self.schema)
            bounds = range_of(schema, self.target_range)
            check_no_times("y", y)
            with numbers_only("y"):
                target = cast(np.ndarray, check_array(y, ensure_2d=False, dtype="float64"))
            rows = self._mapped(X, schema)
            check_length(rows, target)
            self._train(rows, bounds.scaled(target), 0, bounds, [], progress, unsupported)
            return
        warn_of_learned_steps(self)
        check_kept("X", (X, y))
        rows, target, watched = checked(self, X, y, y_numeric=True)
        with numbers_only("y"):
            target = target if target.dtype.kind in "biuf" else target.astype(np.float64)
        if self.target_range is None:
            raise InputError(
                "target_range",
                "must be given: the public (low, high) of the target",
                None,
                "a range that is read off private targets is not private; values outside are "
                "clipped",
            )
        answers = ordered(self.target_range, "target_range")
        self._train(rows, answers.scaled(target), 0, answers, [], progress, unsupported, watched)

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the features in units of the target, (d,); see ``DPLogisticRegression.coef_``."""
        weights, _, width = self._form()
        return weights[0] * width

    @property
    def intercept_(self) -> float:
        """What is added to ``X @ coef_``, in units of the target."""
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
        """Predictions (n,), clipped to the public range of the target."""
        rows = self._rows(X)
        return self.fitted_.predict(rows)
