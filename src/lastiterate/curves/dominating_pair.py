"""Curves of mechanisms that a Gaussian mechanism on the same data joins exactly, and of those, one dominating pair's.

A dominating pair's likelihood ratio is composed once, without the Gaussian mechanism, and kept: whatever asks for
numbers, in both orders of the pair, asks its law.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol, Self

import numpy as np

from lastiterate.curves.curve import UP, BestOf, Curve, check_delta, check_epsilon
from lastiterate.curves.exchanged import Exchanged
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.grouped import Grouped, confirmed_epsilon, search_epsilon
from lastiterate.curves.profile_renyi import renyi_divergence
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array


class Law(Protocol):
    """The law of a likelihood ratio."""

    def deltas(self, epsilon: float, mu: float) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism on the same data."""
        ...


class LawWithFloors(Law, Protocol):
    """A law by sums whose rounding errors, and what its grid leaves out, count in full in every delta."""

    @property
    def floors(self) -> tuple[float, float]:
        """What counts in full, in either order: no delta is smaller."""
        ...


NEAR_FLOOR = 10.0
"""Deltas below so many floors are looked for by the far law as well; above, it is looser than a law with its floor."""


@dataclass(frozen=True)
class BesideGaussian(Curve):
    """A mechanism, and a Gaussian mechanism ``mu`` (0: none) on the same data; ``coarse``: computed on wider grids."""

    mu: float = field(default=0.0, kw_only=True)
    coarse: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.mu >= 0:
            raise InputError("mu", "must be a number >= 0", self.mu)

    def delta(self, epsilon: float) -> float:
        return max(self.directions(epsilon))

    def with_gaussian(self, mu: float) -> Self:
        """The composition with a ``mu``-Gaussian-DP mechanism."""
        return replace(self, mu=math.hypot(self.mu, mu) * UP)


@dataclass(frozen=True)
class DominatingPair(BesideGaussian):
    """A mechanism with secret draws, by the exact pair that dominates it.

    It holds the description; the law is computed when a number is asked for, so that equal curves always give equal
    numbers.
    """

    @property
    @abstractmethod
    def known(self) -> Gdp:
        """The curve if what is drawn were known, with all Gaussian mechanisms."""

    @abstractmethod
    def law(self) -> tuple[LawWithFloors, float] | None:
        """The law without ``mu``, and mu of what counts as certain beside it; ``None`` where there are no numbers."""

    @abstractmethod
    def far_law(self) -> Law:
        """Another upper end, for deltas that ``law``'s rounding hides; asked where there is a law."""

    def directions(self, epsilon: float) -> tuple[float, float]:
        check_epsilon(epsilon)
        known, parts = self.known.delta(epsilon), _law(replace(self, mu=0.0))
        if parts is None:
            return known, known
        law, certain = parts
        removed, added = self._deltas(law, epsilon, math.hypot(self.mu, certain) * UP)
        return min(removed, known), min(added, known)

    def _deltas(self, law: LawWithFloors, epsilon: float, mu: float) -> tuple[float, float]:
        """Those of ``law``; near its floors the smaller of them and the far law's, both of which are upper ends.

        Both fall, and a delta that is near its floor stays there: what is returned falls too.
        """
        removed, added = law.deltas(epsilon, mu)
        near = [delta <= NEAR_FLOOR * floor for delta, floor in zip((removed, added), law.floors, strict=True)]
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
        """Where masses of the law are too small for doubles, the Gaussian curve has logarithms all the same."""
        return np.minimum(super().log_profile(epsilons), self.known.log_profile(epsilons))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return _epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return renyi_divergence(self, alpha, self.known.mu)

    def group(self, size: int) -> BestOf:
        # groups of a Gaussian mechanism are exact: better where epsilon is large
        return BestOf((Grouped(self, size), self.known.group(size)))

    def exchanged(self) -> BestOf:
        return BestOf((Exchanged(self), self.known.exchanged()))

    def coarser(self) -> Self:
        return replace(self, coarse=True)


@lru_cache(maxsize=16)
def _law(curve: DominatingPair) -> tuple[LawWithFloors, float] | None:
    return curve.law()


@lru_cache(maxsize=32)
def _far_law(curve: DominatingPair) -> Law:
    return curve.far_law()


@lru_cache(maxsize=512)
def _epsilon(curve: DominatingPair, delta: float) -> float:
    known, parts = curve.known, _law(replace(curve, mu=0.0))
    if parts is None:
        return known.epsilon(delta)
    law, certain = parts
    if delta <= NEAR_FLOOR * max(law.floors):
        return min(known.epsilon(delta), confirmed_epsilon(curve, delta))
    mu = math.hypot(curve.mu, certain) * UP  # the far law lowers no delta that is as large as this one
    found = search_epsilon(lambda epsilon: min(known.delta(epsilon), max(law.deltas(epsilon, mu))), delta)
    return min(known.epsilon(delta), found)
