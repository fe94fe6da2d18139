"""Batches of a fixed size: the composition of amplified steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves import subsampled
from lastiterate.curves.curve import (
    UP,
)
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gaussian import Gdp, delta_of_draw, gdp_delta, known_steps
from lastiterate.curves.ratio_law import Chernoff, Ratio, Tilted, compose_ratios, tilt_product
from lastiterate.curves.renyi import check_sampled, divergence_of
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

LEAST, LARGEST = 0.1, 1e6
"""Noise multipliers below, and runs whose least one is above, get no amplification."""
FINE, COARSE = 50, 12
"""Nodes per standard deviation of one step's loss, and of the composition's after it is made."""
FINE_LEVELS, COARSE_LEVELS = 16, 4
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
        return known_steps(self.multipliers, self.counts, self.mu)

    def law(self) -> tuple[Ratio, float] | None:
        if not LEAST <= min(self.multipliers) <= LARGEST:
            return None
        resolution = COARSE if self.coarse else FINE
        try:
            return compose_ratios(self._parts(resolution), resolution), 0.0
        except (ValueError, OverflowError):
            return None

    def far_law(self) -> Tilted | Chernoff:
        return tilt_product(self._parts(COARSE))

    def _parts(self, resolution: int) -> tuple[tuple[Ratio, int], ...]:
        """The pairs of single steps, and how many are alike."""
        given = tuple(
            sorted((z * (1 - 1e-9), n) for z, n in zip(self.multipliers, self.counts, strict=True))
        )
        levels = subsampled.merge_levels(given, COARSE_LEVELS if self.coarse else FINE_LEVELS)
        steps = sum(n for _, n in levels)
        # about the variance of the losses: Y - 1 = q (e^{m Z - m^2/2} - 1)
        variance = sum(
            n * min(self.rate**2 * math.expm1(min(z**-2, 700.0)), z**-2) for z, n in levels
        )
        largest = max(_largest_loss(z, self.rate) for z, _ in levels)
        h = max(math.sqrt(variance / steps) / resolution, largest / MOST_NODES)
        return tuple((one_step(self.rate, z, self.replaced, h), n) for z, n in levels)

    def rdp(self, alpha: float) -> float:
        if min(self.multipliers) < LEAST:
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
