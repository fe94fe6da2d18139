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
        # a pair at (e0, d0): P(A) - e^e Q(A) <= d0 + (e^e0 - e^e) Q(A), and Q(A) <= (1 - d0)/(1 + e^e0) at the corner
        top = math.exp(min(self.at_epsilon, 700.0))
        return min(1.0, (self.at_delta + (top - math.exp(epsilon)) * (1 - self.at_delta) / (1 + top)) * UP)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return self.at_epsilon if delta >= self.at_delta else math.inf

    def rdp(self, alpha: float) -> float:
        # Bun and Steinke 2016, Proposition 3.3: pure epsilon-DP is epsilon^2/2-zCDP
        return min(self.at_epsilon, alpha * self.at_epsilon**2 / 2) * UP if self.at_delta == 0 else math.inf

    def group(self, size: int) -> EpsDelta:
        total = sum(math.exp(min(i * self.at_epsilon, 700.0)) for i in range(size))
        return EpsDelta(size * self.at_epsilon * UP, min(1.0, total * self.at_delta * UP))


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

    def rdp(self, alpha: float) -> float:
        return min(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> BestOf:
        return BestOf(tuple(curve.group(size) for curve in self.curves))

    def exchanged(self) -> BestOf:
        return BestOf(tuple(curve.exchanged() for curve in self.curves))

    def coarser(self) -> BestOf:
        return BestOf(tuple(curve.coarser() for curve in self.curves))


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon below 0."""
    if not epsilon >= 0:
        raise InputError("epsilon", "must be a number >= 0", epsilon)


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise InputError("delta", "must lie strictly between 0 and 1", delta, "choose less than 1/n, such as 1e-6")
