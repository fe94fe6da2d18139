"""Arrays of numbers that accounting works with, and the one that repeats a number without storing it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def repeated(value: float, count: int) -> Array:
    """``value`` ``count`` times, read-only, in the memory of one number; shape (count,)."""
    return np.broadcast_to(np.float64(value), (count,))


def frozen(values: Array) -> Array:
    """The same array, read-only."""
    values.setflags(write=False)
    return values
