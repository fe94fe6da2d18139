"""An augmentation as a certificate calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lastiterate.errors import InputError

LONGEST = 60
"""Characters of a function's name that are kept."""


def augmented_by(augment: Callable[[Any, Any], Any] | None) -> list[str]:
    """The name of a caller's augmentation, and none where there is none; what is no function is refused."""
    if augment is None:
        return []
    if not callable(augment):
        raise InputError("augment", "must be a function of a key and one record", type(augment).__name__)
    name = str(getattr(augment, "__name__", type(augment).__name__))[:LONGEST]
    return [name if name.isprintable() and name else "augmentation"]
