"""Gaussian differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.curve import UP, Curve, check_delta, check_epsilon
from lastiterate.curves.roots import first_within
from lastiterate.curves.tails import gdp_delta, gdp_log_delta
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array


@final
@dataclass(frozen=True)
class Gdp(Curve):
    """mu-Gaussian differential privacy (Dong, Roth, Su 2022, Definition 2.6 and Corollary 2.13)."""

    mu: float

    def __post_init__(self) -> None:
        if math.isnan(self.mu) or self.mu < 0:
            raise InputError("mu", "must be a number >= 0", self.mu)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        if self.mu == 0 or math.isinf(self.mu):
            return 0.0 if self.mu == 0 else 1.0
        return float(gdp_delta(epsilon, np.array([self.mu]))[0])

    def profile(self, epsilons: Array) -> Array:
        if self.mu == 0 or math.isinf(self.mu):
            return np.full((epsilons.size, 2), 0.0 if self.mu == 0 else 1.0)
        deltas = gdp_delta(epsilons, np.array([self.mu]))
        return np.stack([deltas, deltas], axis=1)

    def log_profile(self, epsilons: Array) -> Array:
        if self.mu == 0 or math.isinf(self.mu):
            return np.full((epsilons.size, 2), -math.inf if self.mu == 0 else 0.0)
        logs = gdp_log_delta(epsilons, np.array([self.mu]))
        return np.stack([logs, logs], axis=1)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if math.isinf(self.mu):
            return math.inf
        return _epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu**2 / 2 * UP

    def group(self, size: int) -> Gdp:
        return Gdp(self.mu * size * UP)


@lru_cache(maxsize=4096)
def _epsilon(curve: Gdp, delta: float) -> float:
    """A certificate, what is stated beside it and whoever verifies both ask for the same numbers again."""
    return first_within(curve.delta, delta, 0.0, ceiling(curve.mu, delta))



def ceiling(mu: float, delta: float) -> float:
    """An epsilon at which mu-GDP surely has at most ``delta`` (zCDP conversion, Bun and Steinke 2016)."""
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + mu * 1e-6 + 1e-300
