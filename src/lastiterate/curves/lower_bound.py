"""Lower bounds on the leakage of some loss of a run's class.

Their type is another one than that of upper bounds, so that none can certify.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from lastiterate.curves.curve import check_delta, check_epsilon, check_mixture
from lastiterate.curves.gaussian import log_sum_exp
from lastiterate.errors import InputError
from lastiterate.run import serialization
from lastiterate.run.validation import Array

ROUNDING = 1e-9
"""Relative accuracy to which mus are known: more than the rounding of products of 200,000 factors.
"""
MOST_STEPS = 100
"""Steps to a threshold; Newton needs five or ten, halving a bracket fifty."""


class LowerBound(ABC):
    """Numbers that the privacy of a class of losses cannot fall below, because one of its losses
    attains them.

    It is not a ``Curve``: nothing is certified by it, and there is nothing to compose, to group or
    to convert.
    """

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Lower bound on delta at ``epsilon`` >= 0."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """An epsilon that the pair exceeds or attains at ``delta`` in (0, 1); 0 where nothing is
        known."""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return serialization.encode(self)


@final
@dataclass(frozen=True)
class MixturePair(LowerBound):
    """P = sum_j weights[j] N(mus[j], 1) against Q = sum_j weights[j] N(-opposed mus[j], 1).

    ``opposed`` is 0 where the neighbour has no such record (zero-out: Q = N(0, 1)), and 1 where it
    has a record of the opposite gradient instead.

    **Guarantee:** delta >= P(A) - e^epsilon Q(A) for every event A. The events here are half lines,
    whose probabilities are rounded against the claim (mus by ``ROUNDING``), so every threshold
    gives a true lower bound; the best one is looked for (it is the best event where no mu is
    negative, because the likelihood ratio then increases). Smaller mus only make the claim smaller.
    """

    weights: tuple[float, ...]
    mus: tuple[float, ...]
    opposed: float = 0.0

    def __post_init__(self) -> None:
        check_mixture(self.weights, self.mus)
        if any(map(math.isnan, self.mus)) or not 0 <= self.opposed <= 1:
            raise InputError("mus", "must be numbers, opposed by a share in [0, 1]", self.opposed)

    @classmethod
    def of_one(cls, mu: float) -> MixturePair:
        """N(mu, 1) against N(0, 1)."""
        return cls((1.0,), (mu,))

    @property
    def mu(self) -> float:
        """The distance of a pair of two Gaussians."""
        if len(self.mus) != 1:
            raise InputError(
                "mu", "is defined for a pair of Gaussians, not of mixtures", len(self.mus)
            )
        return self.mus[0] * (1 + self.opposed)

    @cached_property
    def _side(self) -> _Side:
        w, mu = np.array(self.weights), np.array(self.mus)
        return _Side(w[w > 0], mu[w > 0], self.opposed)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return self._side.delta(epsilon)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return self._side.epsilon(delta)


@final
@dataclass(frozen=True)
class Largest(LowerBound):
    """Several lower bounds on one class: the largest at every point."""

    bounds: tuple[LowerBound, ...]

    def delta(self, epsilon: float) -> float:
        return max(bound.delta(epsilon) for bound in self.bounds)

    def epsilon(self, delta: float) -> float:
        return max(bound.epsilon(delta) for bound in self.bounds)


class _Side:
    """Half lines to the right of a threshold."""

    def __init__(self, weights: Array, mus: Array, opposed: float) -> None:
        near = np.isfinite(mus)
        if (
            opposed > 0 and np.isneginf(mus).any()
        ):  # without noise the neighbour is far to the right as well
            near, mus = np.zeros(mus.shape, dtype=bool), np.zeros(mus.shape)
        self.lost = float(weights[np.isposinf(mus)].sum()) * (
            1 - 1e-12
        )  # without noise: distinguished for certain
        self.logs, self.opposed = np.log(weights[near]), opposed
        self.mus = mus[near] - np.abs(mus[near]) * ROUNDING
        self.others = -opposed * mus[near] + opposed * np.abs(mus[near]) * ROUNDING
        self.top = float(self.mus.max()) if self.mus.size else 0.0
        self.reach = float(np.abs(self.others).max()) if self.mus.size else 0.0

    def delta(self, epsilon: float) -> float:
        """P(x, inf) - e^epsilon Q(x, inf) at the x where the likelihood ratio is e^epsilon."""
        if not self.top > 0:
            return self.lost
        ahead, log_behind = self._tails(self._threshold(epsilon))
        return max(self.lost, ahead - math.exp(min(epsilon + log_behind + 1e-15 * epsilon, 1.0)))

    def epsilon(self, delta: float) -> float:
        """The largest log((P(x, inf) - delta) / Q(x, inf)) over x: it rises while it exceeds the
        log of the ratio."""
        if self.lost > delta:
            return math.inf
        if not self.top > 0:
            return 0.0
        low, high, best = -40.0 - self.reach, self.top + 40.0, 0.0
        for _ in range(MOST_STEPS):
            x = (low + high) / 2
            ahead, log_behind = self._tails(x)
            epsilon = math.log(ahead - delta) - log_behind if ahead > delta else -math.inf
            best = max(best, epsilon)
            low, high = (x, high) if epsilon >= self._log_ratio(x)[0] else (low, x)
            if high - low <= 1e-9 * (1 + abs(x)):
                break
        return best * (1 - 1e-12)

    def _tails(self, x: float) -> tuple[float, float]:
        """P(x, inf), rounded down, and log Q(x, inf), rounded up.

        log_ndtr is good to a few u = 2^-53 (relative, absolute near 0), so a tail at z is good to a
        few u (1 + z^2).
        """
        from scipy.special import log_ndtr  # pyright: ignore

        error = 1e-12 + 1e-14 * (x * x + self.reach * self.reach)
        ahead = math.exp(log_sum_exp(self.logs + log_ndtr(self.mus - x)) - error)
        behind: float = (
            log_ndtr(-x)
            if self.opposed == 0
            else log_sum_exp(self.logs + log_ndtr(self.others - x))
        )
        return self.lost + ahead, float(behind) + error

    def _log_ratio(self, x: float) -> tuple[float, float]:
        """log P/Q at x, and its slope."""
        terms = self.logs + self.mus * (x - self.mus / 2)
        value = log_sum_exp(terms)
        slope = float((self.mus * np.exp(terms - value)).sum())
        if self.opposed == 0:
            return value, slope
        terms = self.logs + self.others * (x - self.others / 2)
        below = log_sum_exp(terms)
        return value - below, slope - float((self.others * np.exp(terms - below)).sum())

    def _threshold(self, wanted: float) -> float:
        """x with log P/Q = ``wanted``, by Newton's steps inside of a bracket (any x gives a true
        bound)."""
        most = self.mus == self.top
        high = (wanted - log_sum_exp(self.logs[most]) + self.top * self.top / 2) / self.top
        low, x = -40.0 - self.reach, high
        for _ in range(MOST_STEPS):
            value, slope = self._log_ratio(x)
            low, high = (low, x) if value >= wanted else (x, high)
            if abs(value - wanted) <= 1e-10 * (1 + wanted) or high - low <= 1e-12 * (1 + abs(x)):
                break
            step = x - (value - wanted) / slope if slope > 0 else math.inf
            x = step if low < step < high else (low + high) / 2
        return x
