"""Estimators whose rows lie in a file: read in pieces, as the command line reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

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
            found: Any = validate_data(estimator, X, y, dtype=kinds, ensure_min_samples=2, **how)
        return found
    if estimator.report_accuracy is not None:
        raise InputError("report_accuracy", "must be left out where rows are streamed", estimator.report_accuracy,
                         "it keeps records apart at random: hold the rows in memory")
    if not isinstance(X, np.ndarray) or X.ndim != 2 or X.dtype not in kinds:
        raise InputError("X", "must be a table of floating-point numbers in an array where it is streamed",
                         type(X).__name__, "open it with np.load(file, mmap_mode=\"r\")")
    answers = np.asarray(check_array(y, ensure_2d=False, dtype=None))  # type: ignore[arg-type]
    if answers.ndim != 1:
        raise InputError("y", "must be of shape (n,)", answers.shape)
    check_consistent_length(X, answers)
    first: Any = X[:2]
    validate_data(estimator, first, dtype=kinds, ensure_min_samples=2)
    return X, answers


def data_of(estimator: Any, rows: np.ndarray, target: np.ndarray) -> Any:
    """What is trained on: arrays, or a source of them."""
    return Arrays((rows, target)) if estimator.stream else (rows, target)
