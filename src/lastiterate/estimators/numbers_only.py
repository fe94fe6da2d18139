"""Data that are no table of numbers, refused without a look at what they say."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np

from lastiterate.errors import InputError

OF_TARGETS = {"must hold no missing values (NaN)": "leave such records out: a target has no other way to be missing"}
"""Remedies where it is no column that a schema could speak of."""
WHO = "an estimator with schema= says what columns of text mean"
SHOWING = {
    "could not convert string": ("must hold numbers", WHO),
    "Expected 2D array": ("must be a table: Expected 2D array, got fewer axes", "Reshape your data: reshape(-1, 1) "
                          "where there is a single feature, reshape(1, -1) where there is a single record"),
    "Complex data": ("must be real numbers (Complex data not supported)", "give real and imaginary parts as columns"),
    "contains NaN": ("must hold no missing values (NaN)", "leave such records out, or name the columns in a schema, "
                     "missing = \"indicator\""),
    "contains infinity": ("must hold finite numbers, and has an infinity (inf) or one too large for its precision", ""),
    "got scalar": ("must have a value for each record, and is a single one", ""),
}
"""How refusals of NumPy and scikit-learn that show values begin, or what is in them; and what is said instead."""


def check_no_times(name: str, given: object) -> None:
    """Refuse days, times and spans of time, which arrays hold as numbers of a small unit since some day."""
    types = np.ravel(np.asarray(getattr(given, "dtypes", getattr(given, "dtype", None)), dtype=object))
    if any(getattr(kind, "kind", "") in ("m", "M") for kind in types):
        raise InputError(name, "must hold numbers, and has days or times", None,
                         "give them as numbers of a unit, or name columns of days in a schema, kind = \"date\"")


@contextmanager
def numbers_only(name: str) -> Generator[None]:
    """Inside, refusals of NumPy and scikit-learn that show values of ``name`` become some that do not.

    Errors: ``InputError`` where there was text, or an array of another form.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        said = next((words for part, words in SHOWING.items() if part in str(error)), None)
        if said is None or isinstance(error, InputError):
            raise
        named = re.match(r"Input (\w+) contains", str(error))
        name = named[1] if named else name
        raise InputError(name, said[0], None, said[1] if name != "y" else OF_TARGETS.get(said[0], said[1])) from None
