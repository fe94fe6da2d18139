"""Objective perturbation: a loss that is at most D + max(0, mu^2/2 + mu M), composed with Gaussian
mechanisms.

M is the largest of J standard normals, any two of correlation 1/2 (one normal for two classes).
With X ~ N(nu^2/2, nu^2) for all Gaussian mechanisms together, in both orders of the pair,

    delta(eps) = E[(1 - e^(eps - D - max(0, mu^2/2 + mu M) - X))_+].

Source: docs/theorems/objective-perturbation. D must count in both orders once anything is composed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import cast, final

import numpy as np

from lastiterate.curves.curve import (
    UP,
    Curve,
    Exchanged,
    Grouped,
    check_delta,
    check_epsilon,
    confirm_epsilon,
)
from lastiterate.curves.gaussian import gdp_delta
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, nonnegative, positive_integer

LOW, HIGH, CELLS = -9.0, 11.5, 8192
"""The distribution of M is rounded up to the ends of cells; mass beyond ``HIGH`` counts in full."""


@final
@dataclass(frozen=True)
class PerturbedObjective(Curve):
    """``mu``: the largest change of the summed gradient over the noise. ``others``: J. ``shift``:
    D.

    ``gaussian``: nu. ``failure``: with this probability, for either neighbour, the release is
    another one.
    """

    mu: float
    others: int
    shift: float
    gaussian: float = 0.0
    failure: float = 0.0

    def __post_init__(self) -> None:
        for name in ("mu", "shift", "gaussian"):
            nonnegative(name, getattr(self, name))
        positive_integer("others", self.others)
        if not 0 <= self.failure <= 1:
            raise InputError("failure", "must be a probability", self.failure)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        if not math.isfinite(self.mu + self.shift + self.gaussian):
            return 1.0
        total = self.sum_at(epsilon)
        # the failure grows with e^epsilon, and the sum, convex in e^epsilon, with it: delta never
        # increases
        if self.failure > 0 and self._failure_delta(epsilon) > 0.01 * total:
            lowest = _lowest(self)
            return self.sum_at(lowest) if epsilon > lowest else total
        return total

    def _failure_delta(self, epsilon: float) -> float:
        """failure (1 + e^epsilon), at most 1."""
        return (
            math.exp(min(0.0, math.log(self.failure) + float(np.logaddexp(0.0, epsilon))))
            if self.failure
            else 0.0
        )

    def sum_at(self, epsilon: float) -> float:
        """The sum of both parts at this very epsilon."""
        losses = np.maximum(0.0, self.mu**2 / 2 + self.mu * _ends()) * UP
        beyond = _survival(self.others)
        deltas = np.maximum.accumulate(
            _gaussian_delta(epsilon - self.shift * UP - losses, self.gaussian * UP)
        )
        rises = np.append(np.diff(deltas), 1 - deltas[-1])
        return min(
            1.0,
            float(deltas[0] + (beyond * rises).sum()) * (1 + 1e-11)
            + self._failure_delta(epsilon) * UP,
        )

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return confirm_epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return math.inf  # nothing bounds the divergence on the event of failure

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def replace_one_curve(self) -> Exchanged:
        return Exchanged(self)

    def with_gaussian(self, mu: float) -> PerturbedObjective:
        """The composition with a ``mu``-Gaussian-DP mechanism."""
        return replace(self, gaussian=math.hypot(self.gaussian, mu) * UP)


@lru_cache(maxsize=64)
def _lowest(curve: PerturbedObjective) -> float:
    """About the epsilon at which the sum of both parts is least, by thirds; any epsilon is valid."""
    low, high = 0.0, 750.0
    while high - low > 1e-6 * (1 + high):  # an end at 0 has no relative distance
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, two) if curve.sum_at(one) <= curve.sum_at(two) else (one, high)
    return low


def _gaussian_delta(epsilon: Array, mu: float) -> Array:
    """Upper ends of the Gaussian mechanism's delta at any real epsilon: delta(-e) = 1 - e^-e (1 -
    delta(e))."""
    size = np.abs(epsilon)
    there: Array = gdp_delta(size, np.full(size.shape, mu)) if mu > 0 else np.zeros(size.shape)
    below: Array = np.minimum(1.0, 1 - np.exp(-size) * (1 - there) + 1e-15)
    return cast(Array, np.where(epsilon >= 0, there, below))


def _ends() -> Array:
    return np.linspace(LOW, HIGH, CELLS)


@lru_cache(maxsize=64)
def _survival(others: int) -> Array:
    """P[M > x] at the ends of the cells, rounded up: with iid normals g, M = max_k (g_0 - g_k) /
    sqrt 2, so it is the integral of phi(y) (1 - Phi(sqrt 2 x - y)^J), by the trapezoidal rule;
    terms are positive and smooth."""
    from scipy.special import log_ndtr, ndtr  # pyright: ignore

    x = _ends()
    if others == 1:
        return np.minimum(1.0, np.asarray(ndtr(-x)) * (1 + 1e-12))
    y = np.linspace(-14.0, 18.0, 641)
    weights = np.exp(-y * y / 2) * (y[1] - y[0]) / math.sqrt(2 * math.pi)
    tails = np.array(
        [-(weights * np.expm1(others * log_ndtr(math.sqrt(2) * value - y))).sum() for value in x]
    )
    return np.minimum(1.0, tails * (1 + 1e-9))
