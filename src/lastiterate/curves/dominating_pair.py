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

from lastiterate.curves.curve import UP, Curve, check_delta, check_epsilon
from lastiterate.curves.exchanged import Exchanged
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.grouped import Grouped, confirmed_epsilon
from lastiterate.curves.profile_renyi import renyi_divergence
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array


class Law(Protocol):
    """The law of a likelihood ratio."""

    def deltas(self, epsilon: float, mu: float) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism on the same data."""
        ...


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
    def law(self) -> tuple[Law, float] | None:
        """The law without ``mu``, and mu of what counts as certain beside it; ``None`` where there are no numbers."""

    def directions(self, epsilon: float) -> tuple[float, float]:
        check_epsilon(epsilon)
        known, parts = self.known.delta(epsilon), _law(replace(self, mu=0.0))
        if parts is None:
            return known, known
        law, certain = parts
        removed, added = law.deltas(epsilon, math.hypot(self.mu, certain) * UP)
        return min(removed, known), min(added, known)

    def profile(self, epsilons: Array) -> Array:
        known, parts = self.known.profile(epsilons), _law(replace(self, mu=0.0))
        if parts is None:
            return known
        law, certain = parts
        mu = math.hypot(self.mu, certain) * UP
        return np.minimum(known, [law.deltas(float(epsilon), mu) for epsilon in epsilons])

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return _epsilon(self, delta)

    def rdp(self, alpha: float) -> float:
        return renyi_divergence(self, alpha, self.known.mu)

    def group(self, size: int) -> Curve:
        return Grouped(self, size)

    def exchanged(self) -> Exchanged:
        return Exchanged(self)

    def coarser(self) -> Self:
        return replace(self, coarse=True)


@lru_cache(maxsize=16)
def _law(curve: DominatingPair) -> tuple[Law, float] | None:
    return curve.law()


@lru_cache(maxsize=512)
def _epsilon(curve: DominatingPair, delta: float) -> float:
    return min(curve.known.epsilon(delta), confirmed_epsilon(curve, delta))
