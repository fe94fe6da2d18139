"""The exact pair of a record whose place nobody sees: a mixture of shifted Gaussians against the unshifted one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lastiterate._numerics import Array, log_sum_exp, smallest_true
from lastiterate.curve import Curve, Gdp
from lastiterate.errors import InputError

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

    def _arrays(self) -> tuple[Array, Array]:
        return np.array(self.weights), np.array(self.mus)

    def _threshold(self, log_ratio: float) -> float:
        """x with log LR(x) = log_ratio, LR(x) = sum_j w_j exp(mu_j x - mu_j^2 / 2); infinite where there is none.

        log LR is convex and increasing: Newton's steps fall to the root from any point to its right, such as the one
        where the term of the largest mu alone reaches the ratio. Where they stop matters little: x enters delta with
        its square.
        """
        w, mu = self._arrays()
        mu, top, still = mu[w > 0], float(mu[w > 0].max()), float(w[mu == 0].sum())
        if top == 0 or (still > 0 and math.log(still) >= log_ratio):
            return math.inf if top == 0 and log_ratio > 0 else -math.inf
        logs = np.log(w[w > 0]) - mu * mu / 2
        x = (log_ratio - float(logs[mu == top].max())) / top
        for _ in range(MOST_NEWTON):
            terms = logs + mu * x
            value = log_sum_exp(terms)
            if value - log_ratio <= 1e-9:
                break
            x -= (value - log_ratio) / float((mu * np.exp(terms - value)).sum())
        return x

    def delta(self, epsilon: float) -> float:
        """Lower bound on delta at ``epsilon``, the larger of both directions."""
        from scipy.special import ndtr  # pyright: ignore

        w, mu = self._arrays()
        factor = math.exp(min(epsilon, 700.0))
        x1, x2 = self._threshold(epsilon), self._threshold(-epsilon)
        forth = float((w * ndtr(mu - x1)).sum()) - factor * float(ndtr(-x1)) if math.isfinite(x1) else 0.0
        back = float(ndtr(x2)) - factor * float((w * ndtr(x2 - mu)).sum()) if math.isfinite(x2) else 0.0
        return max(0.0, max(forth, back) * DOWN - 1e-15 * factor)

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
