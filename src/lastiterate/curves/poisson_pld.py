"""Privacy loss distributions of Poisson-sampled steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from lastiterate.curves import allocation, subsampled
from lastiterate.curves.curve import (
    LEAST_DELTA,
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
from lastiterate.curves.dominating_pair import WithGaussian
from lastiterate.curves.gaussian import Gdp, known_steps
from lastiterate.curves.ratio_grid import FAR_TRIMMED, RatioGrid, first_nodes, lognormal
from lastiterate.curves.renyi import SampledRenyi, check_sampled, renyi_sum
from lastiterate.run.validation import Array

LEAST, LONGEST = 1e-2, 10**7
"""Noise multipliers below ``LEAST`` (losses of thousands in one step) and runs longer than
``LONGEST`` steps (rounding that adds up to 2e-6) get no statement."""
FINE_LEVELS, COARSE_LEVELS = 64, 8
"""Different noise multipliers that are distinguished."""
NODES, COARSE_NODES = 2000, 400
"""Nodes of one step's likelihood ratio, for small deltas."""
NEAR_FLOOR = 100.0
"""Deltas below so many allowances for rounding are looked for by tilted sums as well."""


@final
@dataclass(frozen=True)
class Pld(WithGaussian):
    """``counts[i]`` Poisson-sampled Gaussian steps of noise multiplier ``multipliers[i]``, all with
    sampling ``rate``.

    It holds the description and not the distribution: that is computed when a value is asked for,
    on a grid chosen from the description, so that equal curves always give equal values.
    ``multipliers`` are sorted; many different ones are rounded down to a few.
    """

    rate: float
    multipliers: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampled(self.rate, self.multipliers, self.counts)

    def _losses(self) -> tuple[Any, float]:
        """The distribution, and the allowance for its rounding; ``None`` where there is no
        statement."""
        if min(self.multipliers) < LEAST or self.mu > 1 / LEAST or sum(self.counts) > LONGEST:
            return None, 1.0
        given = tuple(
            (z * (1 - 1e-9), n) for z, n in zip(self.multipliers, self.counts, strict=True)
        )
        levels = subsampled.merge_levels(given, COARSE_LEVELS if self.coarse else FINE_LEVELS)
        mu = max(self.mu, subsampled.NARROWEST) * UP if self.mu > 0 else 0.0
        grid = subsampled.interval(levels, self.rate, mu, coarse=self.coarse)
        try:
            return subsampled.losses(levels, self.rate, mu, grid), subsampled.allowance(
                levels, self.rate, grid
            )
        except (ValueError, OverflowError, MemoryError):  # outside what the library can compute
            return None, 1.0

    @property
    def known(self) -> Gdp:
        """The curve of the same steps when the batches are known: joint convexity."""
        return known_steps(self.multipliers, self.counts, self.mu)

    @property
    def far(self) -> BestOf:
        """Return a bound on deltas that rounding hides: the same mechanism's divergences, and known
        batches."""
        return BestOf((self.renyi(coarse=self.coarse), self.known))

    def directions(self, epsilon: float) -> tuple[float, float]:
        check_epsilon(epsilon)
        pld, rounding = self._losses()
        if pld is None:
            return self.far.directions(epsilon)
        values = [value * UP + rounding for value in subsampled.directions(pld, epsilon)]
        removed, added = (min(1.0, value) if value >= 0 else 1.0 for value in values)
        if min(removed, added) > NEAR_FLOOR * rounding:
            return removed, added
        # all are upper ends and fall, and a delta near the allowance stays there: what is returned
        # falls too
        far = self._small_deltas(epsilon)
        removed, added = (
            min(x, small) if x <= NEAR_FLOOR * rounding else x
            for x, small in zip((removed, added), far, strict=True)
        )
        return removed, added

    def _small_deltas(self, epsilon: float) -> tuple[float, float]:
        """Return upper ends in both orders that hold no rounding of plain sums."""
        far, law = self.far.delta(epsilon), _far_law(replace(self, mu=0.0))
        removed, added = (1.0, 1.0) if law is None else law.deltas(epsilon, self.mu * UP)
        return min(removed, far), min(added, far)

    def profile(self, epsilons: Array) -> Array:
        pld, rounding = self._losses()
        if pld is None:
            return self.far.profile(epsilons)
        values = subsampled.profile(pld, epsilons) * UP + rounding
        values = np.where(values >= 0, np.minimum(values, 1.0), 1.0)
        near = values <= NEAR_FLOOR * rounding
        for row in np.flatnonzero(near.any(axis=1)):
            far = np.where(near[row], self._small_deltas(float(epsilons[row])), 1.0)
            values[row] = np.minimum(values[row], far)
        return values

    def log_profile(self, epsilons: Array) -> Array:
        """Return logarithms also where a delta is too small for a double: those of the divergences'
        curve."""
        logs = super().log_profile(epsilons)
        small = logs.min(axis=1) < math.log(LEAST_DELTA)
        if small.any():
            logs[small] = np.minimum(logs[small], self.far.log_profile(epsilons[small]))
        return logs

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        return _confirm_estimate(self, delta)

    def near_floor(self, delta: float) -> bool:
        """Whether the allowance for rounding is a hundredth of ``delta``, or more."""
        return delta <= NEAR_FLOOR * self._losses()[1]

    def guess(self, delta: float) -> float:
        """Return dp-accounting's own epsilon, not checked; infinite where losses above 709
        overflow its exponentials."""
        pld, rounding = self._losses()
        if pld is None or delta <= rounding:
            return math.inf
        try:
            with np.errstate(over="ignore", divide="ignore"):
                return float(pld.get_epsilon_for_delta(delta - rounding)) * (1 + 1e-9) + 1e-12
        except OverflowError:
            return math.inf

    def rdp(self, alpha: float) -> float:
        if min(self.multipliers) == 0:
            return math.inf
        # the next whole order bounds it too, and always converges
        orders = (alpha, float(math.floor(alpha) + 1))
        total = sum(
            n * float(subsampled.renyi(z, self.rate, orders)[1].min())
            for z, n in zip(self.multipliers, self.counts, strict=True)
        )
        return (total + alpha * self.mu**2 / 2) * UP

    def renyi(self, *, coarse: bool = False) -> Curve:
        """The same mechanism by Renyi divergences."""
        sampled = SampledRenyi(self.rate, self.multipliers, self.counts, coarse)
        return renyi_sum(sampled.table(), Gdp(self.mu)) if self.mu > 0 else sampled

    def coarser(self) -> Curve:
        return self.renyi(coarse=True) if self.coarse else replace(self, coarse=True)

    def replace_one_curve(self) -> BestOf:
        return BestOf((Exchanged(self), self.renyi().group(2)))

    def group(self, size: int) -> BestOf:
        # the triangle inequality multiplies the allowance for rounding by e^epsilon: there Renyi
        # curves do better
        return BestOf((Grouped(self, size), self.renyi().group(size)))


@lru_cache(maxsize=256)
def _confirm_estimate(curve: Pld, delta: float) -> float:
    """dp-accounting's epsilon if the curve confirms it, otherwise what a search confirms.

    Near the allowance for rounding the guess is far too large: there tilted sums make it.
    """
    if curve.near_floor(delta):
        guess, law = curve.far.epsilon(delta), _far_law(replace(curve, mu=0.0))
        if law is not None:
            found = search_epsilon(lambda e: max(law.deltas(e, curve.mu * UP)), delta)
            guess = min(guess, found)
    else:
        guess = curve.guess(delta)
    if not math.isinf(guess) and curve.delta(guess) <= delta:
        return guess
    return confirm_epsilon(curve, delta)


@lru_cache(maxsize=16)
def _far_law(curve: Pld) -> allocation.ComposedFar | None:
    """The likelihood ratios of all steps without a Gaussian mechanism, for small deltas; ``None``
    where there are no numbers."""
    levels = subsampled.merge_levels(
        tuple(zip(curve.multipliers, curve.counts, strict=True)),
        COARSE_LEVELS if curve.coarse else FINE_LEVELS,
    )
    if not all(allocation.LEAST <= z <= allocation.LARGEST for z, _ in levels):
        return None
    nodes = COARSE_NODES if curve.coarse else NODES
    try:
        return allocation.compose_far(
            tuple((_step_ratio(z, curve.rate, nodes), count) for z, count in levels)
        )
    except ValueError:  # too many nodes
        return None


@lru_cache(maxsize=128)
def _step_ratio(multiplier: float, rate: float, nodes: int) -> RatioGrid:
    """The likelihood ratio of one step: 1 - q + q e^{a Z - a^2/2}; noise is rounded down."""
    a = 1 / (multiplier * (1 - 1e-12))
    at = first_nodes(a, max(1, round(1 / rate)), nodes, far=True)
    return lognormal(a, at, FAR_TRIMMED).mix(rate)
