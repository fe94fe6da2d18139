"""Refusals of numbers that a description cannot hold, each told in one sentence."""

# arguments are checked because callers are not
# pyright: reportUnnecessaryIsInstance=false
from __future__ import annotations

import math

from lastiterate.errors import InputError

RANGE = (1e-30, 1e30)
"""Magnitudes of a run's numbers: products and squares of three of them stay far inside double precision, so that no
variance overflows and no sensitivity underflows."""



def positive(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse anything that is not a positive (or, with ``zero``, non-negative) number within ``RANGE``."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value < 0 or (value == 0 and not zero):
        raise InputError(name, "must be a finite number " + (">= 0" if zero else "> 0"), value)
    if value != 0 and not RANGE[0] <= value <= RANGE[1]:
        raise InputError(name, f"must lie between {RANGE[0]:g} and {RANGE[1]:g}", value, "choose other units")



def whole(name: str, value: int, least: int = 1, most: int = 10**12) -> None:
    """Refuse anything that is not a whole number between ``least`` and ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(name, f"must be a whole number between {least} and {most}", value)


MAGNITUDES = (1e-9, 1e9)
"""Row norms, intercepts, ridges and clips that are executed: their products stay far inside single precision."""



def executable(name: str, value: float, *, zero: bool = False) -> None:
    """Refuse a number that single precision could overflow or lose."""
    low, high = MAGNITUDES
    if not (low <= value <= high or (zero and value == 0)):
        rule = f"must {'be 0 or ' if zero else ''}lie between {low:g} and {high:g}"
        raise InputError(name, rule, value, "scale the features")
