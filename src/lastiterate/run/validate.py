"""Refusals of numbers that a description cannot hold, each in one sentence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lastiterate.errors import InputError

RANGE = (1e-30, 1e30)
"""Magnitudes of a run's numbers: products and squares of three of them stay far inside double precision, so that no
variance overflows and no sensitivity underflows."""
MAGNITUDES = (1e-9, 1e9)
"""Row norms, intercepts, ridges and clips that are executed: their products stay far inside single precision."""
WHOLE: frozenset[type] = frozenset({int, *(np.dtype(code).type for code in np.typecodes["AllInteger"])})
NUMBERS: frozenset[type] = WHOLE | {float, np.float16, np.float32, np.float64}
"""What counts as a number: the types themselves, no subclasses (a bool is none), so that what was checked is used."""


def number(name: str, value: Any) -> float:
    """``value`` as a built-in float."""
    if type(value) not in NUMBERS:
        raise InputError(name, "must be a number", value)
    try:
        return float(value)
    except OverflowError:
        raise InputError(name, f"must lie within {RANGE[1]:g}", value, "choose other units") from None


def numbers(name: str, values: Any) -> tuple[float, ...]:
    """A list, tuple or one-dimensional array of numbers as a tuple of built-in floats."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.type in NUMBERS:
        return tuple(values.astype(np.float64).tolist())
    if type(values) not in (list, tuple):
        raise InputError(name, "must be a list or tuple of numbers", type(values).__name__)
    if set(map(type, values)) == {float}:
        return tuple(values)
    return tuple(number(f"every entry of {name}", value) for value in values)


def integer(name: str, value: Any) -> int:
    """``value`` as a built-in int."""
    if type(value) not in WHOLE:
        raise InputError(name, "must be a whole number", value)
    return int(value)


def positive(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse anything that is not a positive (or, with ``zero``, non-negative) number within ``RANGE``."""
    size = number(name, value)
    if not math.isfinite(size) or size < 0 or (size == 0 and not zero):
        raise InputError(name, "must be a finite number " + (">= 0" if zero else "> 0"), value)
    if size != 0 and not RANGE[0] <= size <= RANGE[1]:
        raise InputError(name, f"must lie between {RANGE[0]:g} and {RANGE[1]:g}", value, "choose other units")


def all_positive(name: str, values: tuple[float, ...], *, zero: bool = False) -> None:
    """``positive`` for many built-in floats at once; the first bad one is named."""
    sizes = np.array(values, dtype=np.float64)
    good = (sizes >= RANGE[0]) & (sizes <= RANGE[1]) | (zero & (sizes == 0))
    if not good.all():
        positive(name, values[int(np.argmin(good))], zero=zero)


def whole(name: str, value: Any, least: int = 1, most: int = 10**12) -> None:
    """Refuse anything that is not a whole number between ``least`` and ``most``."""
    if type(value) not in WHOLE or not least <= value <= most:
        raise InputError(name, f"must be a whole number between {least} and {most}", value)


def executable(name: str, value: object, *, zero: bool = False) -> None:
    """Refuse a number that single precision could overflow or lose."""
    low, high = MAGNITUDES
    size = number(name, value)
    if not (low <= size <= high or (zero and size == 0)):
        rule = f"must {'be 0 or ' if zero else ''}lie between {low:g} and {high:g}"
        raise InputError(name, rule, value, "scale the features")
