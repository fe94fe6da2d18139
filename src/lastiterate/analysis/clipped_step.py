"""What clipping per-example gradients does to the map of one step (docs/theorems/shifted-interpolation)."""

from __future__ import annotations

import numpy as np

from lastiterate.run.arrays import Array


def clipped_step_lipschitz(step: Array, lowest: float, highest: float) -> Array:
    """Exact Lipschitz constants of ``x - step clip(grad f(x))`` over all f with Hessian in [lowest, highest], d >= 2.

    One for every entry of ``step``. For lowest = 0 and step * highest <= 3 it is 2 / sqrt(4 - step * highest), so
    clipping a convex smooth loss *expands*.
    """
    a, b = step * highest, step * lowest
    largest = np.maximum(1.0, step_lipschitz(step, lowest, highest))
    total = a + b
    rotates = (total > 0) & (total < 4)
    inside = np.where(rotates, total, 2.0)
    with np.errstate(over="ignore"):
        q = 1 + (a - b) ** 2 / (inside * (4 - inside))
        turning = 1 - q * (2 - inside) / 2
    return np.where(rotates & (b <= turning) & (turning <= a), np.maximum(largest, np.sqrt(q)), largest)


def step_lipschitz(step: Array, lowest: float, highest: float) -> Array:
    """Lipschitz constants of ``x - step grad f(x)`` over all f with Hessian in [lowest, highest], for every step."""
    return np.maximum(abs(1 - step * lowest), abs(1 - step * highest))
