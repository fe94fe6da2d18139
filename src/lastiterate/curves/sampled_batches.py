"""Steps on sampled batches: privacy losses of Poisson's, and amplified steps of a fixed size."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from lastiterate.curves import allocation, subsampling
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
from lastiterate.curves.dominating_pair import DominatingPair, WithGaussian
from lastiterate.curves.gaussian import Gdp, compose_known_steps, delta_of_draw, gdp_delta
from lastiterate.curves.ratio_grid import FAR_TRIMMED, RatioGrid, first_nodes, lognormal
from lastiterate.curves.ratio_law import Chernoff, Ratio, Tilted, compose_ratios, tilt_product
from lastiterate.curves.renyi import SampledRenyi, check_sampled, divergence_of, renyi_sum
from lastiterate.run.validation import Array

# Batches of a fixed size, drawn again at every step: the composition of amplified steps.  A step
# draws b of the n records without replacement, q = b/n, and adds noise of standard deviation z
# times the largest gradient of one record (under replace-one: the largest difference of two) to
# their sum. With delta_m the curve of the m-Gaussian mechanism and e^eps = 1 + (e^e - 1)/q, one
# step has at e >= 0      replace-one, both orders:                        q delta_{1/z}(eps)
# zero-out, the record removed (P with, Q without): that of q N(2/z) + (1 - q) N(0) against q N(1/z)
# + (1 - q) N(0)     zero-out, the record added:                      q delta_{1/z}(eps)  Proof:
# docs/theorems/fixed-size. Both orders together bound E_Q[(Y - g)_+] for all g > 0, and chords
# between nodes e^{kh} (their convex hull) are the curve of a pair on these nodes: the pairs of all
# steps compose.

LEAST_MULTIPLIER, LARGEST_MULTIPLIER = 0.1, 1e6
"""Noise multipliers below, and runs whose least one is above, get no amplification."""
FINE, COARSE = 50, 12
"""Nodes per standard deviation of one step's loss, and of the composition's after it is made."""
WIDER = (1, 2, 4, 8, 16)
"""Factors by which one step has fewer nodes where its composition has too many."""
FINE_FIXED_LEVELS, COARSE_FIXED_LEVELS = 16, 4
"""Different noise multipliers that are distinguished; others are rounded down."""
MOST_NODES = 2**18
REACH = 9.7
"""Standard deviations of a Gaussian of twice the mu beyond which delta counts as lost: below 1e-50.
"""


@final
@dataclass(frozen=True)
class FixedSizeSteps(DominatingPair):
    """``counts[i]`` steps of noise multiplier ``multipliers[i]``, each with a new batch of
    ``rate`` n records.

    ``replaced``: a record is exchanged for another (replace-one); otherwise its gradient becomes 0.
    """

    rate: float
    multipliers: tuple[float, ...]
    counts: tuple[int, ...]
    replaced: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sampled(self.rate, self.multipliers, self.counts)

    @property
    def known(self) -> Gdp:
        """The curve of the same steps when the batches are known: one record is one term of a sum."""
        return compose_known_steps(self.multipliers, self.counts, self.mu)

    def law(self) -> tuple[Ratio, float] | None:
        if not LEAST_MULTIPLIER <= min(self.multipliers) <= LARGEST_MULTIPLIER:
            return None
        resolution = COARSE if self.coarse else FINE
        for wider in WIDER:  # a step of the grid; that of many steps would not fit otherwise
            try:
                return compose_ratios(self._parts(resolution / wider), resolution), 0.0
            except OverflowError:
                return None
            except ValueError:
                continue
        return None

    def far_law(self) -> Tilted | Chernoff:
        return tilt_product(self._parts(COARSE))

    def _parts(self, resolution: float) -> tuple[tuple[Ratio, int], ...]:
        """The pairs of single steps, and how many are alike."""
        given = tuple(
            sorted((z * (1 - 1e-9), n) for z, n in zip(self.multipliers, self.counts, strict=True))
        )
        levels = subsampling.merge_levels(
            given, COARSE_FIXED_LEVELS if self.coarse else FINE_FIXED_LEVELS
        )
        steps = sum(n for _, n in levels)
        # about the variance of the losses: Y - 1 = q (e^{m Z - m^2/2} - 1)
        variance = sum(
            n * min(self.rate**2 * math.expm1(min(z**-2, 700.0)), z**-2) for z, n in levels
        )
        largest = max(_largest_loss(z, self.rate) for z, _ in levels)
        h = max(math.sqrt(variance / steps) / resolution, largest / MOST_NODES)
        return tuple((one_step(self.rate, z, self.replaced, h), n) for z, n in levels)

    def rdp(self, alpha: float) -> float:
        if min(self.multipliers) < LEAST_MULTIPLIER:
            return self.known.rdp(alpha)
        apart = 1 if self.replaced else 2
        total = sum(
            n * divergence_of(_profile(self.rate, z, self.replaced), alpha, apart / z, self.rate)
            for z, n in zip(self.multipliers, self.counts, strict=True)
        )
        return min(self.known.rdp(alpha), (total + alpha * self.mu**2 / 2) * UP)


def _largest_loss(z: float, rate: float) -> float:
    """The loss of one step beyond which nothing counts: of a record whose shift is twice the
    largest."""
    mu = 2 / z
    return math.log1p(rate * math.expm1(REACH * mu + mu * mu / 2))


@lru_cache(maxsize=64)
def one_step(rate: float, z: float, replaced: bool, h: float) -> Ratio:
    """The pair of one step on the nodes e^{k h}: chords of both orders' curves, their convex hull.

    E_Q[(Y - g)_+] is ``removed`` for g >= 1 and 1 - g + g ``added``(1/g) below. Masses under Q are
    the increases of the chords' slopes, which are good to a few ulp: by partial summation they move
    no delta by more, relatively. The curves themselves are rounded up by 1e-14, and increases that
    this makes negative are raised to 0.
    """
    last = math.ceil(_largest_loss(z, rate) / h) + 1
    losses = np.arange(last + 1, dtype=np.float64) * h
    nodes = np.exp(losses)
    removed, added = _orders(losses, rate, z, replaced)
    falling = _hull_slopes(nodes, removed)
    rising = np.append(
        np.diff(added / nodes) / np.diff(1 / nodes), added[-1]
    )  # of g added(1/g), from g = 1 down to 0
    above = np.maximum(np.diff(np.append(falling, 0.0)), 0.0)
    below = np.maximum(-np.diff(rising), 0.0)
    middle = max(0.0, 1 + float(falling[0]) - float(rising[0]))
    q = np.concatenate((below[::-1], [middle], above))
    p = np.concatenate(((below / nodes[1:])[::-1], [middle], above * nodes[1:]))
    return Ratio(h, -last, q, p, float(added[-1]), float(removed[-1]))


@lru_cache(maxsize=64)
def _profile(rate: float, z: float, replaced: bool) -> tuple[Array, Array, Array]:
    """Epsilons and both orders of one step, to where its curve is below 1e-60."""
    mu = 2 / z
    losses = np.log1p(rate * np.expm1(np.linspace(0, mu * mu / 2 + 17 * mu, 1001)))
    return losses, *_orders(losses, rate, z, replaced)


def _orders(losses: Array, rate: float, z: float, replaced: bool) -> tuple[Array, Array]:
    """Upper ends of delta at ``losses`` >= 0 (the first is 0) with the record removed, and added."""
    added = rate * _gaussian(losses, rate, 1 / z)
    return (added.copy() if replaced else delta_of_draw(losses, rate, 1 / z)), added


def _gaussian(losses: Array, rate: float, mu: float) -> Array:
    """delta_mu(log(1 + (e^loss - 1) / rate))."""
    return gdp_delta(np.log1p(np.expm1(losses) / rate), np.full(1, mu))


def _hull_slopes(x: Array, y: Array) -> Array:
    """Slopes between neighbours of the largest convex function below the points; shape (size - 1,)."""
    slopes = np.diff(y) / np.diff(x)
    if (np.diff(slopes) >= 0).all():
        return slopes
    kept = [0]
    for point in range(1, x.size):
        while len(kept) > 1 and (y[kept[-1]] - y[kept[-2]]) * (x[point] - x[kept[-1]]) >= (
            (y[point] - y[kept[-1]]) * (x[kept[-1]] - x[kept[-2]])
        ):
            kept.pop()
        kept.append(point)
    return np.repeat(np.diff(y[kept]) / np.diff(x[kept]), np.diff(kept))


# Privacy loss distributions of Poisson-sampled steps.

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
        levels = subsampling.merge_levels(given, COARSE_LEVELS if self.coarse else FINE_LEVELS)
        mu = max(self.mu, subsampling.NARROWEST) * UP if self.mu > 0 else 0.0
        grid = subsampling.interval(levels, self.rate, mu, coarse=self.coarse)
        try:
            return subsampling.losses(levels, self.rate, mu, grid), subsampling.allowance(
                levels, self.rate, grid
            )
        except (ValueError, OverflowError, MemoryError):  # outside what the library can compute
            return None, 1.0

    @property
    def known(self) -> Gdp:
        """The curve of the same steps when the batches are known: joint convexity."""
        return compose_known_steps(self.multipliers, self.counts, self.mu)

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
        values = [value * UP + rounding for value in subsampling.directions(pld, epsilon)]
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
        values = subsampling.profile(pld, epsilons) * UP + rounding
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
            n * float(subsampling.renyi(z, self.rate, orders)[1].min())
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
    levels = subsampling.merge_levels(
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
