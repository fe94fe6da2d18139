"""Curves of a dominating pair, alone and composed exactly with a Gaussian mechanism."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, Self

import numpy as np

from lastiterate.curves.curve import (
    UP,
    BestOf,
    Curve,
    Exchanged,
    Grouped,
    check_delta,
    check_epsilon,
    confirm_epsilon,
    search_epsilon,
)
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import renyi_divergence
from lastiterate.run.validation import Array, nonnegative

# Curves of mechanisms that a Gaussian mechanism on the same data joins exactly, and of those, one
# dominating pair's.  A dominating pair's likelihood ratio is composed once, without the Gaussian
# mechanism, and kept: every value, in both orders of the pair, is computed from its distribution.


class RatioDistribution(Protocol):
    """The distribution of a likelihood ratio."""

    def deltas(self, epsilon: float, mu: float) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism on the same data."""
        ...


class FlooredRatioDistribution(RatioDistribution, Protocol):
    """A distribution by sums; their rounding errors, and the mass outside the grid, count in full
    in every delta."""

    @property
    def floors(self) -> tuple[float, float]:
        """Return the mass that counts in full, in either order: no delta is smaller."""
        ...


NEAR_FLOOR = 10.0
"""Deltas below so many floors are looked for by the far distribution as well; above, it is looser
than a distribution with its floor."""


@dataclass(frozen=True)
class WithGaussian(Curve):
    """A mechanism, and a Gaussian mechanism ``mu`` (0: none) on the same data; ``coarse``: computed
    on wider grids."""

    mu: float = field(default=0.0, kw_only=True)
    coarse: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        nonnegative("mu", self.mu)

    def delta(self, epsilon: float) -> float:
        return max(self.directions(epsilon))

    def with_gaussian(self, mu: float) -> Self:
        """The composition with a ``mu``-Gaussian-DP mechanism."""
        return replace(self, mu=math.hypot(self.mu, mu) * UP)


@dataclass(frozen=True)
class DominatingPair(WithGaussian):
    """A mechanism with secret draws, by the exact pair that dominates it.

    It holds the description; the distribution is computed when a value is asked for, so that equal
    curves always give equal values.
    """

    @property
    @abstractmethod
    def known(self) -> Gdp:
        """The curve if what is drawn were known, with all Gaussian mechanisms."""

    @abstractmethod
    def law(self) -> tuple[FlooredRatioDistribution, float] | None:
        """Return the distribution without ``mu``, and the mu that is composed with it as certain;
        ``None`` where there are no numbers."""

    @abstractmethod
    def far_law(self) -> RatioDistribution:
        """Return another upper end, for deltas that the rounding of ``law`` hides; called only
        where ``law`` is not ``None``."""

    def directions(self, epsilon: float) -> tuple[float, float]:
        check_epsilon(epsilon)
        known, parts = self.known.delta(epsilon), _law(replace(self, mu=0.0))
        if parts is None:
            return known, known
        law, certain = parts
        removed, added = self._deltas(law, epsilon, math.hypot(self.mu, certain) * UP)
        return min(removed, known), min(added, known)

    def _deltas(
        self, law: FlooredRatioDistribution, epsilon: float, mu: float
    ) -> tuple[float, float]:
        """Return the deltas of ``law``; near its floors the smaller of them and those of
        ``far_law``, both of which are upper ends.

        Both fall, and a delta that is near its floor stays there: what is returned falls too.
        """
        removed, added = law.deltas(epsilon, mu)
        near = [
            delta <= NEAR_FLOOR * floor
            for delta, floor in zip((removed, added), law.floors, strict=True)
        ]
        if not any(near):
            return removed, added
        far = _far_law(replace(self, mu=0.0)).deltas(epsilon, mu)
        return min(removed, far[0] if near[0] else 1.0), min(added, far[1] if near[1] else 1.0)

    def profile(self, epsilons: Array) -> Array:
        known, parts = self.known.profile(epsilons), _law(replace(self, mu=0.0))
        if parts is None:
            return known
        law, certain = parts
        mu = math.hypot(self.mu, certain) * UP
        return np.minimum(known, [self._deltas(law, float(epsilon), mu) for epsilon in epsilons])

    def log_profile(self, epsilons: Array) -> Array:
        """Return logarithms also where masses of the distribution are too small for doubles: those
        of the Gaussian curve."""
        return np.minimum(super().log_profile(epsilons), self.known.log_profile(epsilons))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return _epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return renyi_divergence(self, alpha, self.known.mu)

    def group(self, size: int) -> BestOf:
        # groups of a Gaussian mechanism are exact: better where epsilon is large
        return BestOf((Grouped(self, size), self.known.group(size)))

    def replace_one_curve(self) -> BestOf:
        return BestOf((Exchanged(self), self.known.replace_one_curve()))

    def coarser(self) -> Self:
        return replace(self, coarse=True)


@lru_cache(maxsize=16)
def _law(curve: DominatingPair) -> tuple[FlooredRatioDistribution, float] | None:
    return curve.law()


@lru_cache(maxsize=32)
def _far_law(curve: DominatingPair) -> RatioDistribution:
    return curve.far_law()


@lru_cache(maxsize=512)
def _epsilon(curve: DominatingPair, delta: float) -> float:
    known, parts = curve.known, _law(replace(curve, mu=0.0))
    if parts is None:
        return known.epsilon(delta)
    law, certain = parts
    if delta <= NEAR_FLOOR * max(law.floors):
        return min(known.epsilon(delta), confirm_epsilon(curve, delta))
    mu = (
        math.hypot(curve.mu, certain) * UP
    )  # the far distribution lowers no delta that is as large as this one
    found = search_epsilon(
        lambda epsilon: min(known.delta(epsilon), max(law.deltas(epsilon, mu))), delta
    )
    return min(known.epsilon(delta), found)
