"""Estimators whose rows lie in a file: read in pieces, as the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length, validate_data  # pyright: ignore

from lastiterate.data.sources.stream import Watched
from lastiterate.engine.streaming.devices import Arrays
from lastiterate.errors import InputError
from lastiterate.estimators.numbers_only import numbers_only


def checked(estimator: Any, X: Any, y: Any, **how: Any) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets as scikit-learn checks them; of rows that are streamed the form, and the first two."""
    kinds = [np.float64, np.float32]
    if not isinstance(estimator.stream, bool):
        raise InputError("stream", "must be True or False", estimator.stream)
    if not estimator.stream:
        with numbers_only("X or y"):
            return cast("tuple[np.ndarray, np.ndarray]", validate_data(
                estimator, X, y, dtype=kinds, ensure_min_samples=2, **how))
    if estimator.report_accuracy is not None:
        raise InputError("report_accuracy", "must be left out where rows are streamed", estimator.report_accuracy,
                         "it keeps records apart at random: hold the rows in memory")
    if not isinstance(X, np.ndarray):
        raise InputError("X", "must be an array where it is streamed", type(X).__name__,
                         "open it with np.load(file, mmap_mode=\"r\")")
    rows = cast(np.ndarray, X)
    if rows.ndim != 2 or rows.dtype not in map(np.dtype, kinds):
        raise InputError("X", "must be a table of 32 or 64 bit floating-point numbers where it is streamed",
                         f"{rows.dtype}, {rows.ndim} axes", "save it as such a table")
    answers: np.ndarray = np.asarray(check_array(y, ensure_2d=False, dtype=None))  # type: ignore[arg-type]
    if answers.ndim != 1:
        raise InputError("y", "must be of shape (n,)", answers.shape)
    check_consistent_length(rows, answers)
    validate_data(estimator, cast(Any, rows[:2]), dtype=kinds, ensure_min_samples=2)
    return rows, answers


@dataclass(frozen=True)
class Mapped(Arrays):
    """Arrays whose rows lie in a file that is mapped into memory."""

    watched: Watched

    def check(self) -> None:
        """Refuse a file that changed."""
        self.watched.check()


def data_of(estimator: Any, rows: np.ndarray, target: np.ndarray) -> Any:
    """What is trained on: arrays, or a source of them."""
    if not estimator.stream:
        return rows, target
    lies_in = getattr(rows, "filename", None)  # of a memory map, or a part of one
    return Arrays((rows, target)) if lies_in is None else Mapped((rows, target), Watched.of(Path(lies_in)))
