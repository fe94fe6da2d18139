"""Mixtures of Gaussian pairs over a place that stays secret."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from lastiterate.curves.curve import UP, BestOf, Curve, check_delta, check_epsilon
from lastiterate.curves.exchanged import Exchanged
from lastiterate.curves.gdp import Gdp, ceiling
from lastiterate.curves.roots import first_within
from lastiterate.curves.tails import gdp_delta, gdp_log_delta, log_sum_exp
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array


@final
@dataclass(frozen=True)
class GdpMixture(Curve):
    """The pair (J, N(mu_J, 1)) against (J, N(0, 1)) with P[J = j] = weights[j] (docs: one secret permutation)."""

    weights: tuple[float, ...]
    mus: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.mus) or not self.mus:
            raise InputError("weights", "need one entry for every mu", len(self.weights))
        if min(self.weights) < 0 or abs(math.fsum(self.weights) - 1) > 1e-12:
            raise InputError("weights", "must be non-negative and sum to 1", math.fsum(self.weights))
        if not all(mu >= 0 for mu in self.mus):
            raise InputError("mus", "must be numbers >= 0", self.mus)

    def _finite(self) -> tuple[Array, Array, float]:
        """Weights and mus of the finite positive atoms, and the weight of the infinite ones."""
        w, mu = np.array(self.weights), np.array(self.mus)
        keep = (mu > 0) & np.isfinite(mu) & (w > 0)
        return w[keep], mu[keep], float(w[np.isinf(mu)].sum())

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        w, mu, lost = self._finite()
        total = float((w * gdp_delta(epsilon, mu)).sum()) if w.size else 0.0
        return min(1.0, (total + lost) * UP)

    def profile(self, epsilons: Array) -> Array:
        w, mu, lost = self._finite()
        total = np.array([float((w * gdp_delta(float(epsilon), mu)).sum()) for epsilon in epsilons])
        deltas = np.minimum(1.0, (total + lost) * UP)
        return np.stack([deltas, deltas], axis=1)

    def log_profile(self, epsilons: Array) -> Array:
        w, mu, lost = self._finite()
        terms = np.log(np.append(w, lost) if lost > 0 else w)
        rest = [0.0] if lost > 0 else []
        if not terms.size:
            return np.full((epsilons.size, 2), -math.inf)
        logs = [log_sum_exp(terms + np.append(gdp_log_delta(float(epsilon), mu), rest)) for epsilon in epsilons]
        least = np.minimum(np.array(logs) + 1e-12, 0.0)
        return np.stack([least, least], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        _, mu, lost = self._finite()
        if lost * UP >= delta:
            return math.inf
        if not mu.size:
            return 0.0
        # with an infinite atom the finite ones must do with less
        return first_within(self.delta, delta, 0.0, ceiling(float(mu.max()), (delta - lost) / 2))

    def rdp(self, alpha: float) -> float:
        if alpha <= 1:
            raise InputError("alpha", "must exceed 1", alpha)
        w, mu, lost = self._finite()
        if lost > 0:
            return math.inf
        rest = max(0.0, 1 - float(w.sum()))
        terms = np.log(np.append(w, rest + 1e-300)) + np.append((alpha - 1) * alpha * mu**2 / 2, 0.0)
        return max(0.0, log_sum_exp(terms) / (alpha - 1)) * UP + 1e-12 / (alpha - 1)

    def exchanged(self) -> BestOf:
        return BestOf((self.group(2), Exchanged(self)))

    def group(self, size: int) -> Gdp:
        # its trade-off function lies above G(max mu), whose group privacy is size * max mu
        return Gdp(max(self.mus) * size * UP)
