"""Estimators whose rows lie in a file, and data that are no table of numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, cast

import numpy as np
from sklearn.utils.multiclass import check_classification_targets  # pyright: ignore
from sklearn.utils.validation import check_array, validate_data  # pyright: ignore

from lastiterate.data.file_stream import FileSnapshot
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError

# Data that are no table of numbers, refused without a look at what they say.

WHO = "an estimator with schema= says what columns of text mean"
SHOWING = {
    "could not convert string|could not be promoted": ("must hold numbers", WHO),
    r"Sparse data was passed( for (?P<name>\w+))?": (
        "must be dense, and holds sparse rows (Sparse data was passed)",
        "give X.toarray(), or the step before it sparse_output=False, as in "
        "OneHotEncoder(sparse_output=False)",
    ),
    "inhomogeneous shape": ("must hold numbers in rows of one length", ""),
    r"(?P<name>y) should be a 1d array, got an array of shape (?P<got>.+) instead": (
        "must hold one value for each record, got shape {got}",
        "give one column, such as y[:, 0]; each further one needs a model of its own",
    ),
    r"inconsistent numbers of samples: \[(?P<rows>\d+), (?P<got>\d+)\]": (
        "must have as many records in X as in y, got {rows} and {got}",
        "give X[:n] and y[:n] of the same records",
    ),
    r"Found array with (?P<got>\d+) sample.*minimum of (?P<least>\d+)": (
        "must hold at least {least} records, got {got} sample(s)",
        "give more records",
    ),
    r"Found array with dim (?P<got>\d+)": (
        "must be a table, got {got} axes",
        "make a row of each record: X.reshape(len(X), -1)",
    ),
    "Expected 2D array": (
        "must be a table: Expected 2D array, got fewer axes",
        "Reshape your data: reshape(-1, 1) "
        "where there is a single feature, reshape(1, -1) where there is a single record",
    ),
    "Complex data": (
        "must be real numbers (Complex data not supported)",
        "give real and imaginary parts as columns",
    ),
    r"(^|Input )(?P<name>y) .*contains NaN": (
        "must hold no missing values (NaN)",
        "leave such records out: a target has no other way to be missing",
    ),
    r"(Input (?P<name>\w+) )?contains NaN": (
        "must hold no missing values (NaN)",
        'leave such records out, or name the columns in a schema, missing = "indicator"',
    ),
    r"(Input (?P<name>\w+) )?contains infinity": (
        "must hold finite numbers, and has an infinity (inf) or one too large for its precision",
        "",
    ),
    "got scalar": ("must have a value for each record, and is a single one", ""),
}
"""Patterns of refusals of NumPy and scikit-learn that show values or no remedy, and what is said
instead: the rule and the remedy."""


def check_no_mapping(given: object, remedy: str) -> None:
    """Refuse a table by names where rows are taken; sparse arrays by keys are dictionaries too."""
    if type(given) is dict:
        raise InputError(
            "X", "must be rows of numbers where the estimator has no schema", "dict", remedy
        )


def check_no_times(name: str, given: object) -> None:
    """Refuse days, times and spans of time, which arrays hold as numbers of a small unit since some
    day."""
    types = np.ravel(
        np.asarray(getattr(given, "dtypes", getattr(given, "dtype", None)), dtype=object)
    )
    held: set[type] = set()
    if isinstance(given, list | tuple) or str(getattr(given, "dtype", "")) == "object":
        held = set(map(type, cast("list[object]", list(cast(Any, given)))))
    if any(
        getattr(kind, "kind", "") in ("m", "M") or str(kind).startswith("period") for kind in types
    ) or any(issubclass(kind, date | time | timedelta) for kind in held):
        raise InputError(
            name,
            "must hold numbers, and has days or times",
            None,
            'give them as numbers of a unit, or name columns of days in a schema, kind = "date"',
        )


@contextmanager
def hide_values(name: str) -> Generator[None]:
    """Inside, refusals of NumPy and scikit-learn that show values of ``name`` become some that do
    not.

    Errors: ``InputError`` where there was text, or an array of another form.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        for pattern, (rule, remedy) in SHOWING.items():
            found = re.search(pattern, f"{name} {error}")
            if found and not isinstance(error, InputError):
                parts = found.groupdict()
                name = parts.get("name") or name
                raise InputError(name, rule.format(**parts), None, remedy) from None
        raise


def plain_labels(argument: str, labels: np.ndarray) -> np.ndarray:
    """Labels (n,) as numbers or as text: Decimals and other exact numbers become numbers.

    Errors: labels of several kinds, and others than numbers and text, by their type.
    """
    if labels.dtype != object or labels.ndim != 1:
        return labels
    kinds = set(map(type, labels.tolist()))
    if all(issubclass(kind, str) for kind in kinds):
        return labels
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return labels.astype(bool)
    if all(issubclass(kind, Real | Decimal) for kind in kinds):
        return labels.astype(np.float64)
    raise InputError(
        argument,
        "must hold labels of one kind, numbers or text (Unknown label type)",
        ", ".join(sorted(kind.__name__ for kind in kinds)),
        "leave records without a label out, and write others as text",
    )


def check_targets(labels: np.ndarray, otherwise: str) -> None:
    """Refuse numbers to predict where classes are; ``otherwise``: what else to train on them."""
    with warnings.catch_warnings():  # one that counts the labels of private records
        warnings.filterwarnings("ignore", message="The number of unique classes")
        try:
            check_classification_targets(labels)
        except ValueError:
            raise InputError(
                "y",
                "must hold classes (Unknown label type: it may be a number to predict)",
                None,
                f"write labels as integers or as text, {otherwise}",
            ) from None


# Estimators whose rows lie in a file: read in pieces, as the command line reads them.


def check_input(
    estimator: Any, X: Any, y: Any, **how: Any
) -> tuple[np.ndarray, np.ndarray, FileSnapshot]:
    """Rows and targets as scikit-learn checks them, and the files that both lie in where rows are
    streamed; of such rows the form is looked at, and the first two."""
    kinds = [np.float64, np.float32]
    check_no_mapping(X, "give the estimator schema=, which says how columns become rows")
    check_no_times("X", X)
    if "y_numeric" in how:
        check_no_times("y", y)
    if not isinstance(estimator.stream, bool):
        raise InputError("stream", "must be True or False", estimator.stream)
    if not estimator.stream:
        with hide_values("X or y"):
            return *cast(
                "tuple[np.ndarray, np.ndarray]",
                validate_data(estimator, X, y, dtype=kinds, ensure_min_samples=2, **how),
            ), FileSnapshot.of()
    if estimator.report_accuracy is not None:
        raise InputError(
            "report_accuracy",
            "must be left out where rows are streamed",
            estimator.report_accuracy,
            "it keeps records apart at random: hold the rows in memory",
        )
    if not isinstance(X, np.ndarray):
        raise InputError(
            "X",
            "must be an array where it is streamed",
            type(X).__name__,
            'open it with np.load(file, mmap_mode="r")',
        )
    rows = cast(np.ndarray, X)
    if rows.ndim != 2 or rows.dtype not in map(np.dtype, kinds):
        raise InputError(
            "X",
            "must be a table of 32 or 64 bit floating-point numbers where it is streamed",
            f"{rows.dtype}, {rows.ndim} axes",
            "save it as such a table",
        )
    watched = FileSnapshot.of(
        *files_of(rows), *files_of(y)
    )  # before the first look at what is in them
    answers: np.ndarray = np.asarray(check_array(y, ensure_2d=False, dtype=None))  # type: ignore[arg-type]
    if answers.ndim != 1:
        raise InputError("y", "must be of shape (n,)", answers.shape)
    check_length(rows, answers)
    validate_data(estimator, cast(Any, rows[:2]), dtype=kinds, ensure_min_samples=2)
    return rows, answers, watched


def check_length(rows: np.ndarray, answers: np.ndarray) -> None:
    """Refuse targets of which there are more or fewer than rows."""
    if len(rows) != len(answers):
        raise InputError("y", f"must have one label for each of {len(rows)} records", len(answers))


def files_of(given: object) -> list[Path]:
    """The file that an array is mapped from, by itself or as a part of another array; empty for
    other data."""
    array = np.asarray(given) if hasattr(given, "__array__") else None
    while array is not None:
        lies_in = getattr(array, "filename", None)
        if lies_in is not None:
            return [Path(lies_in)]
        array = array.base if isinstance(array.base, np.ndarray) else None
    return []


@dataclass(frozen=True)
class Mapped(Arrays):
    """Arrays whose rows, or targets, lie in files that are mapped into memory."""

    watched: FileSnapshot

    def check(self) -> None:
        """Refuse a file that changed."""
        self.watched.check()


def data_of(estimator: Any, rows: np.ndarray, target: np.ndarray, watched: FileSnapshot) -> Any:
    """What is trained on: arrays, or a source of them, whose files are ``watched``."""
    if not estimator.stream:
        return rows, target
    return Mapped((rows, target), watched) if watched.paths else Arrays((rows, target))
