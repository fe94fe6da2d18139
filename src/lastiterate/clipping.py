"""What clipping per-example gradients does to the map of one step (docs/theorems/shifted-interpolation)."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.losses import LossFacts


def after_clipping(facts: LossFacts, *, scalar_residual: bool) -> LossFacts:
    """Facts that survive per-example clipping.

    A clamped scalar residual is the gradient of a convex function that is as smooth as before, and a
    clip that never acts changes nothing. Otherwise the clipped field need not be a gradient field at all: curvature
    statements are dropped, and only the exact constant of the clipped step (``clipped_step_lipschitz``) remains.
    """
    return facts if scalar_residual else replace(facts, smooth=None, strong=None, weak_convexity=None)


def clipped_step_lipschitz(step: float, lowest: float, highest: float) -> float:
    """Exact Lipschitz constant of ``x - step clip(grad f(x))`` over all f with Hessian in [lowest, highest], d >= 2.

    For lowest = 0 and step * highest <= 3 it is 2 / sqrt(4 - step * highest), so
    clipping a convex smooth loss *expands*.
    """
    a, b = step * highest, step * lowest
    largest = max(1.0, abs(1 - a), abs(1 - b))
    if 0 < a + b < 4:
        q = 1 + (a - b) ** 2 / ((a + b) * (4 - a - b))
        turning = 1 - q * (2 - a - b) / 2
        if b <= turning <= a:
            largest = max(largest, math.sqrt(q))
    return largest


def step_lipschitz(step: float, lowest: float, highest: float) -> float:
    """Lipschitz constant of ``x - step grad f(x)`` over all f with Hessian in [lowest, highest]."""
    return max(abs(1 - step * lowest), abs(1 - step * highest))
