"""What the items ask of the table of theorems, and of the numbers that they put in."""

from __future__ import annotations

import math

import lastiterate as li
from lastiterate.curves import Curve, LowerBound
from lastiterate.errors import InputError
from lastiterate.theorems import TABLE, Fails, match


def assumed(**constants: float) -> li.KnownConstants:
    """A loss known by its constants, the caller's word."""
    return li.KnownConstants(li.LossFacts(**constants))


def bound(name: str, run: li.Run) -> Curve | LowerBound:
    """What one row of the table says about a run; ``InputError`` with its reasons where it does not
    apply."""
    found = match(TABLE[name], run)
    if isinstance(found, Fails):
        raise InputError(name, "must apply to the run", None, "; ".join(found.reasons))
    return found.bound


def curve(name: str, run: li.Run) -> Curve:
    """The curve of a row that applies."""
    found = bound(name, run)
    if isinstance(found, LowerBound):
        raise InputError(name, "gives a lower bound, not a curve", None)
    return found


def positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise InputError(name, "must be a finite number > 0", value, "the statement needs it")


def whole(name: str, value: int, least: int = 1) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, f"must be an integer >= {least}", value)
