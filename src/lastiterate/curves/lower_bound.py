"""The exact pair of a record whose place nobody sees: a mixture of shifted Gaussians against the unshifted one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lastiterate.curves.curve import Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.tails import log_sum_exp, smallest_true
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

DOWN = 1 - 1e-9
MOST_NEWTON = 60
"""Steps to a threshold; five or ten are usual."""


@final
@dataclass(frozen=True)
class HiddenPlace(Curve):
    """sum_j weights[j] N(mus[j], 1) against N(0, 1), for lower bounds (the likelihood ratio increases).

    Every threshold gives an event, and every event a true lower bound on delta: numbers here are *lower* ends, unlike
    those of the other curves. ``rdp`` and ``group`` are not lower bounds of anything and are refused.
    """

    weights: tuple[float, ...]
    mus: tuple[float, ...]

    def delta(self, epsilon: float) -> float:
        """Lower bound on delta at ``epsilon``: the mass beyond x, LR(x) = e^epsilon, less e^epsilon times the other's.

        The other direction has never been seen to be larger.
        """
        from scipy.special import ndtr  # pyright: ignore

        w, mu = np.array(self.weights), np.array(self.mus)
        w, mu = w[w > 0], mu[w > 0]
        if not 0 < mu.max() < math.inf:
            return 0.0
        x, factor = _threshold(np.log(w) - mu * mu / 2, mu, epsilon), math.exp(min(epsilon, 700.0))
        found = float((w * ndtr(mu - x)).sum()) - factor * float(ndtr(-x))
        return max(0.0, found * DOWN - 1e-15 * factor)

    def epsilon(self, delta: float) -> float:
        """An epsilon that the pair is known to exceed at ``delta`` (0 where nothing is known)."""
        if not 0 < delta < 1:
            raise InputError("delta", "must lie strictly between 0 and 1", delta)
        if math.isinf(max(self.mus)):
            return 0.0
        top = Gdp(max(self.mus)).epsilon(delta)
        # the last epsilon at which delta is still exceeded; the search returns the first where it is not
        found = smallest_true(lambda e: self.delta(e) <= delta, 0.0, top, 1e-10)
        below = found * (1 - 1e-9)
        return below if self.delta(below) >= delta * DOWN else 0.0

    def rdp(self, alpha: float) -> float:
        raise InputError("rdp", "is not defined for a lower bound", alpha, "use delta or epsilon")

    def group(self, size: int) -> Curve:
        raise InputError("group", "is not defined for a lower bound", size, "use delta or epsilon")


def _threshold(logs: Array, mus: Array, wanted: float) -> float:
    """x with log sum_j exp(logs[j] + mus[j] x) = wanted.

    The left side is convex and increasing: Newton's steps fall to the root from any point to its right, such as the one
    where the term of the largest mu alone has the value. Where they stop matters little: x enters delta with its
    square.
    """
    top = float(mus.max())
    x = (wanted - float(logs[mus == top].max())) / top
    for _ in range(MOST_NEWTON):
        terms = logs + mus * x
        value = log_sum_exp(terms)
        if value - wanted <= 1e-9:
            break
        x -= (value - wanted) / float((mus * np.exp(terms - value)).sum())
    return x
