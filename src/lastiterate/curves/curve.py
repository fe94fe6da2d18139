"""Privacy curves: what an adversary may learn, as delta(epsilon), epsilon(delta) and Renyi divergence.

**Guarantee:** every number returned is an upper end; searches return the side on which the guarantee holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run import codec
from lastiterate.run.arrays import Array

UP = 1 + 1e-12
"""Inflation of closed forms made of a few correctly rounded, well-conditioned operations."""
LEAST_DELTA = 1e-300
"""The smallest delta that is asked for: below it doubles lose their digits."""
TINY = 1e-305
"""What a positive delta counts as where it is smaller still. Curves that add up many of them stay below
``LEAST_DELTA``, so that an epsilon is found there too."""


class Curve(ABC):
    """An upper bound on the privacy loss of a mechanism, in both directions of the neighbouring pair.

    Every number is rounded up; logarithms are natural.
    """

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= 0."""

    def directions(self, epsilon: float) -> tuple[float, float]:
        """The same for each order of the pair: the record is in the first data set alone, and in the second alone."""
        delta = self.delta(epsilon)
        return delta, delta

    def profile(self, epsilons: Array) -> Array:
        """``directions`` at every one of rising ``epsilons``; shape (points, 2)."""
        return np.array([self.directions(float(epsilon)) for epsilon in epsilons])

    def log_profile(self, epsilons: Array) -> Array:
        """Logarithms of ``profile``: what groups multiply by e^epsilon. Curves whose deltas fall below ``TINY`` where
        they still count give the logarithms themselves."""
        return log_of(np.maximum(self.profile(epsilons), TINY))

    def log_delta(self, epsilon: float) -> float:
        """The logarithm of an upper bound on delta; finite where delta is too small for a double."""
        return float(self.log_profile(np.array([float(epsilon)])).max())

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta`` in (0, 1); may be infinite."""

    @abstractmethod
    def rdp(self, alpha: float) -> float:
        """Upper bound on the Renyi divergence of order ``alpha`` > 1; infinite where unknown."""

    @abstractmethod
    def group(self, size: int) -> Curve:
        """A curve that holds for neighbours ``size`` records apart."""

    def exchanged(self) -> Curve:
        """A curve for neighbours that differ by the exchange of one record, where this one is for a record that is
        zeroed, added or removed."""
        return self.group(2)

    def coarser(self) -> Curve:
        """A looser bound on the same mechanism that is cheaper to evaluate, for searches; the curve itself if it is
        cheap. Twice coarser is cheaper still."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form; ``curve_from_dict`` reads it back."""
        return codec.encode(self)


@final
@dataclass(frozen=True)
class EpsDelta(Curve):
    """A single (epsilon, delta) guarantee and what follows from it."""

    at_epsilon: float
    at_delta: float

    def __post_init__(self) -> None:
        check_epsilon(self.at_epsilon)
        if not 0 <= self.at_delta <= 1:
            raise InputError("delta", "must lie in [0, 1]", self.at_delta)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        if epsilon >= self.at_epsilon:
            return self.at_delta
        # a pair at (e0, d0): P(A) - e^e Q(A) <= d0 + (e^e0 - e^e) Q(A), and Q(A) <= (1 - d0)/(1 + e^e0) at the corner;
        # both powers are divided by e^e0, which may be beyond a double
        share = -math.expm1(epsilon - self.at_epsilon) / (1 + math.exp(-self.at_epsilon))
        return min(1.0, (self.at_delta + share * (1 - self.at_delta)) * UP)

    def log_profile(self, epsilons: Array) -> Array:
        return log_of(self.profile(epsilons))  # a delta of 0 is exact

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return self.at_epsilon if delta >= self.at_delta else math.inf

    def rdp(self, alpha: float) -> float:
        # Bun and Steinke 2016, Proposition 3.3: pure epsilon-DP is epsilon^2/2-zCDP
        return min(self.at_epsilon, alpha * self.at_epsilon**2 / 2) * UP if self.at_delta == 0 else math.inf

    def group(self, size: int) -> EpsDelta:
        total = log_powers(self.at_epsilon, size)
        log_delta = math.log(self.at_delta) + total if self.at_delta > 0 else -math.inf
        return EpsDelta(size * self.at_epsilon * UP, from_log(log_delta))


@final
@dataclass(frozen=True)
class BestOf(Curve):
    """Several bounds on one mechanism: the smallest at every point."""

    curves: tuple[Curve, ...]

    def delta(self, epsilon: float) -> float:
        return min(curve.delta(epsilon) for curve in self.curves)

    def profile(self, epsilons: Array) -> Array:
        least = np.min([curve.profile(epsilons).max(axis=1) for curve in self.curves], axis=0)
        return np.stack([least, least], axis=1)

    def epsilon(self, delta: float) -> float:
        return min(curve.epsilon(delta) for curve in self.curves)

    def log_profile(self, epsilons: Array) -> Array:
        least = np.min([curve.log_profile(epsilons).max(axis=1) for curve in self.curves], axis=0)
        return np.stack([least, least], axis=1)

    def rdp(self, alpha: float) -> float:
        return min(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> BestOf:
        return BestOf(tuple(curve.group(size) for curve in self.curves))

    def exchanged(self) -> BestOf:
        return BestOf(tuple(curve.exchanged() for curve in self.curves))

    def coarser(self) -> BestOf:
        return BestOf(tuple(curve.coarser() for curve in self.curves))


def log_powers(epsilon: float, size: int) -> float:
    """log(1 + e^epsilon + ... + e^((size - 1) epsilon)), rounded up: what a group multiplies delta by.

    (e^(size epsilon) - 1) / (e^epsilon - 1) with e^((size - 1) epsilon) taken out of it; no power overflows. Exponents
    are good to 2^-52 of themselves.
    """
    if epsilon <= 0:
        return math.log(size) + 1e-14
    whole, one = -math.expm1(-size * epsilon), -math.expm1(-epsilon)
    rest = math.log(whole / one) if one > 0 else math.log(size)
    return (size - 1) * epsilon + rest + 1e-14 + 1e-15 * size * epsilon


def log_of(deltas: Array) -> Array:
    """Logarithms of deltas, rounded up by more than their last bits: of deltas above ``TINY`` they are below 1000."""
    with np.errstate(divide="ignore"):
        return np.minimum(np.log(deltas) + 2e-13, 0.0)


def from_log(log_delta: float) -> float:
    """The delta of this logarithm, rounded up; 0 for minus infinity alone."""
    if log_delta == -math.inf:
        return 0.0
    return max(TINY, min(1.0, math.exp(min(log_delta, 0.0)) * UP))


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon below 0."""
    if not epsilon >= 0:
        raise InputError("epsilon", "must be a number >= 0", epsilon)


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1), and one that is too small for arithmetic."""
    if not 0 < delta < 1:
        raise InputError("delta", "must lie strictly between 0 and 1", delta, "choose less than 1/n, such as 1e-6")
    if delta < LEAST_DELTA:
        raise InputError("delta", f"must be at least {LEAST_DELTA:g}", delta, "choose less than 1/n, such as 1e-6")
