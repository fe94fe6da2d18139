"""Arrays of numbers that accounting works with, and the one that repeats a number without storing it."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lastiterate.errors import InputError

Array = NDArray[np.float64]


def repeated(value: float, count: int) -> Array:
    """``value`` ``count`` times, read-only, in the memory of one number; shape (count,)."""
    return np.broadcast_to(np.float64(value), (count,))


def frozen(values: Array) -> Array:
    """The same array, read-only."""
    values.setflags(write=False)
    return values


def check_kept(name: str, value: object) -> None:
    """Refuse arrays of which a conversion to plain numbers would drop a part in silence, masks and imaginary parts, and
    queries that hold no values yet.

    What is looked at is the kind of array, never a value; structures, lists and tables of arrays are looked through.
    """
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(value, polars.LazyFrame):
        raise InputError(name, "must not be a query that is still to be run", None, "use its collect()")
    if isinstance(value, dict):
        value = tuple(value.values())  # pyright: ignore
    if isinstance(value, tuple | list):
        kinds = set(map(type, value))  # pyright: ignore  # of a long list of numbers there is one
        plain = {kind for kind in kinds if issubclass(kind, int | float | str)}
        for part in value if kinds - plain else ():  # pyright: ignore
            check_kept(name, part)  # pyright: ignore
    elif isinstance(value, np.ma.MaskedArray):
        raise InputError(name, "must be plain arrays: a mask would be dropped", None,
                         "fill or drop masked values first")
    elif isinstance(value, complex) or any(getattr(kind, "kind", "") == "c" for kind in _dtypes(value)):
        raise InputError(name, "must be real numbers (Complex data not supported)", None,
                         "give real and imaginary parts as columns")


def check_text(name: str, texts: Iterable[object]) -> None:
    """Refuse names that an array of text takes for others: it drops null characters at their end, and makes text of
    numbers that stand beside text."""
    if any(not isinstance(text, str) or text.endswith("\0") for text in texts):
        raise InputError(name, "must be text alone, without a null character at the end of any: arrays take such names "
                         "for others")


def _dtypes(value: object) -> tuple[object, ...]:
    """The types of an array's entries, or of a table's columns."""
    columns = getattr(value, "dtypes", ())  # of a DataFrame; a Series has one
    return (getattr(value, "dtype", None), *(columns if np.iterable(columns) else ()))
