"""Refusals of numbers that no formula has a meaning for."""

from __future__ import annotations

import math

from lastiterate.errors import InputError


def positive(name: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    if not 0 < value < math.inf:
        raise InputError(name, "must be a finite number > 0", value, "the statement needs it")


def whole(name: str, value: int, least: int = 1) -> None:
    """Refuse anything but an integer of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, f"must be an integer >= {least}", value)
