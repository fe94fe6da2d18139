"""Privacy curves: what an adversary may learn, as delta(epsilon), epsilon(delta) and Renyi divergence.

**Guarantee:** every number returned is an upper end; searches return the side on which the guarantee holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np

from lastiterate._numerics import Array, gdp_delta, log_sum_exp, smallest_true
from lastiterate.errors import InputError

UP = 1 + 1e-12
"""Inflation of closed forms made of a few correctly rounded, well-conditioned operations."""


class Curve(ABC):
    """An upper bound on the privacy loss of a mechanism, in both directions of the neighbouring pair."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= 0."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta`` in (0, 1); may be infinite."""

    @abstractmethod
    def rdp(self, alpha: float) -> float:
        """Upper bound on the Renyi divergence of order ``alpha`` > 1; infinite where unknown."""

    @abstractmethod
    def group(self, size: int) -> Curve:
        """A curve that holds for neighbours ``size`` records apart."""

    def rough(self) -> Curve:
        """A looser bound on the same mechanism that is cheaper to evaluate, for searches; the curve itself if it is
        cheap. Twice rough is cheaper still."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return {"type": type(self).__name__, **{item.name: getattr(self, item.name) for item in fields(self)}}  # pyright: ignore


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

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if math.isinf(self.mu):
            return math.inf
        return smallest_true(lambda e: self.delta(e) <= delta, 0.0, _ceiling(self.mu, delta))

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu**2 / 2 * UP

    def group(self, size: int) -> Gdp:
        return Gdp(self.mu * size * UP)


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

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        _, mu, lost = self._finite()
        if lost * UP >= delta:
            return math.inf
        if not mu.size:
            return 0.0
        # with an infinite atom the finite ones must do with less
        return smallest_true(lambda e: self.delta(e) <= delta, 0.0, _ceiling(float(mu.max()), (delta - lost) / 2))

    def rdp(self, alpha: float) -> float:
        if alpha <= 1:
            raise InputError("alpha", "must exceed 1", alpha)
        w, mu, lost = self._finite()
        if lost > 0:
            return math.inf
        rest = max(0.0, 1 - float(w.sum()))
        terms = np.log(np.append(w, rest + 1e-300)) + np.append((alpha - 1) * alpha * mu**2 / 2, 0.0)
        return max(0.0, log_sum_exp(terms) / (alpha - 1)) * UP + 1e-12 / (alpha - 1)

    def group(self, size: int) -> Gdp:
        # its trade-off function lies above G(max mu), whose group privacy is size * max mu
        return Gdp(max(self.mus) * size * UP)


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

    def epsilon(self, delta: float) -> float:
        return min(curve.epsilon(delta) for curve in self.curves)

    def rdp(self, alpha: float) -> float:
        return min(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> BestOf:
        return BestOf(tuple(curve.group(size) for curve in self.curves))

    def rough(self) -> BestOf:
        return BestOf(tuple(curve.rough() for curve in self.curves))

    def to_dict(self) -> dict[str, Any]:
        return {"type": "BestOf", "curves": [curve.to_dict() for curve in self.curves]}


def _ceiling(mu: float, delta: float) -> float:
    """An epsilon at which mu-GDP surely has at most ``delta`` (zCDP conversion, Bun and Steinke 2016)."""
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + mu * 1e-6 + 1e-300


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon below 0."""
    if not epsilon >= 0:
        raise InputError("epsilon", "must be a number >= 0", epsilon)


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise InputError("delta", "must lie strictly between 0 and 1", delta, "choose less than 1/n, such as 1e-6")
