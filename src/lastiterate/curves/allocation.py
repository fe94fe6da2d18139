"""Random allocation and balls in bins: the composition of their exact dominating pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves import ratio_law, subsampling
from lastiterate.curves.curve import UP, check_counts
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.ratio_grid import UNIT, RatioGrid, mean_of_copies
from lastiterate.curves.ratio_law import COARSE, FINE, Ratio, certain, mean_of, mix_ratios
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, nonnegative

# Fresh secret blocks in every pass: the composition of the exact pairs of single passes.  In every
# pass every record draws one of l blocks, uniformly and independently. With sigma' the noise of
# a step in units of what one record adds to it, one pass is dominated in both directions by P =
# (1/l) sum_j N(e_j / sigma', I) against Q = N(0, I), given everything before it, and dominating
# pairs compose adaptively. Under Q the likelihood ratio of a pass is the mean of l independent
# exp(x / sigma' - 1 / (2 sigma'^2)), x ~ N(0, 1); of a pass that ends after r blocks, (r/l) of the
# mean of r of them plus 1 - r/l. Proof: docs/theorems/random-allocation.

LEAST, LARGEST, LONGEST = 0.04, 1e6, 10**7
"""Noise multipliers below ``LEAST`` (ratios beyond floating point) or above ``LARGEST``, and more
passes than ``LONGEST``, are charged as if the blocks were known."""
NODES, VARIED_NODES, COARSE_NODES = 1000, 400, 300
"""Nodes of the ratios' grids; the second where more than ``FEW`` noises differ."""
SHARE, COARSE_SHARE = 50, 20
"""Points of the losses' grid per standard deviation of one pass: each pass adds 1/6 of a squared
interval."""
MOST, LEAST_GRID = 2**20, 1e-13
"""Points of the losses' grid in one pass, and its smallest interval: nodes nearer to each other
have no digits left.
"""
FEW, FINE_LEVELS, COARSE_LEVELS = 4, 64, 8
"""Different noise multipliers that are distinguished."""


@final
@dataclass(frozen=True)
class AllocationPld(DominatingPair):
    """``counts[i]`` full passes of noise multiplier ``multipliers[i]`` (the least within the pass)
    over ``blocks`` fresh secret blocks, and one pass of ``last_multiplier`` that ends after
    ``last_reached`` blocks (0: none).

    ``multipliers`` are sorted; many different ones are rounded down to a few.
    """

    blocks: int
    multipliers: tuple[float, ...]
    counts: tuple[int, ...]
    last_multiplier: float = 0.0
    last_reached: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self.counts, self.multipliers, "multiplier", least=0)
        if self.blocks < 1 or not 0 <= self.last_reached < self.blocks:
            raise InputError(
                "last_reached", "must lie between 0 and the number of blocks", self.last_reached
            )
        nonnegative("last_multiplier", self.last_multiplier)

    @property
    def passes(self) -> tuple[tuple[float, int, int], ...]:
        """(noise multiplier, blocks that are reached, passes)."""
        full = tuple(
            (z, self.blocks, n) for z, n in zip(self.multipliers, self.counts, strict=True)
        )
        return (*full, (self.last_multiplier, self.last_reached, 1)) if self.last_reached else full

    @property
    def known(self) -> Gdp:
        """The curve if it were known which blocks hold the record."""
        if any(z == 0 for z, _, _ in self.passes):
            return Gdp(math.inf)
        return Gdp(math.sqrt(sum(n / z**2 for z, _, n in self.passes) + self.mu**2) * UP)

    def law(self) -> tuple[Composed, float] | None:
        if not self.passes or sum(n for _, _, n in self.passes) > LONGEST:
            return None
        if not all(LEAST <= z <= LARGEST for z, _, _ in self.passes):
            return None
        try:
            return compose_passes(
                self._laws(far=False), COARSE_SHARE if self.coarse else SHARE
            ), 0.0
        except ValueError:  # too many nodes
            return None

    def far_law(self) -> ComposedFar:
        return compose_far(self._laws(far=True))

    def _laws(self, *, far: bool) -> tuple[tuple[RatioGrid, int], ...]:
        """The likelihood ratios of passes, and how many are alike."""
        full = (
            subsampling.merge_levels(
                tuple(zip(self.multipliers, self.counts, strict=True)),
                COARSE_LEVELS if self.coarse or far else FINE_LEVELS,
            )
            if self.counts
            else ()
        )
        passes = [(z, self.blocks, n) for z, n in full] + [
            one for one in self.passes if one[1] < self.blocks
        ]
        nodes = COARSE_NODES if self.coarse else VARIED_NODES if far or len(passes) > FEW else NODES
        return tuple(
            (pass_ratio(self.blocks, z, reached, nodes, far=far), n) for z, reached, n in passes
        )


@dataclass(frozen=True, eq=False)
class ComposedFar:
    """Deltas of all passes, with what floating point may have done: ``mass_error`` relative to the
    masses, ``loss_error`` to e^loss."""

    law: Ratio | ratio_law.Tilted | ratio_law.Chernoff
    mass_error: float
    loss_error: float

    def deltas(self, epsilon: float, mu: float) -> tuple[float, float]:
        """Upper ends in both orders, with a Gaussian mechanism ``mu``."""
        if self.mass_error >= 0.5:
            return 1.0, 1.0
        removed, added = self.law.deltas(epsilon - self.loss_error, mu)
        share = 1 - self.mass_error
        return min(1.0, removed / share), min(1.0, added / share)


@dataclass(frozen=True, eq=False)
class Composed(ComposedFar):
    """The distribution of the likelihood ratio of all passes."""

    law: Ratio

    @property
    def floors(self) -> tuple[float, float]:
        """Return the mass that is lost, in either order."""
        return self.law.floors


@lru_cache(maxsize=128)
def pass_ratio(
    blocks: int, multiplier: float, reached: int, nodes: int = NODES, *, far: bool = False
) -> RatioGrid:
    """The likelihood ratio of one pass that ends after ``reached`` of its ``blocks``; noise is
    rounded down."""
    law = mean_of_copies(1 / (multiplier * (1 - 1e-12)), reached, nodes, far=far)
    return law if reached == blocks else law.mix(reached / blocks)


def compose_passes(laws: tuple[tuple[RatioGrid, int], ...], share: float = SHARE) -> Composed:
    """Passes with the likelihood ratios ``laws``, each so many times."""
    parts, *errors = _on_one_grid(laws, share)
    return Composed(ratio_law.compose_ratios(parts, share), *errors)


def compose_far(laws: tuple[tuple[RatioGrid, int], ...]) -> ComposedFar:
    """The same for deltas that the rounding of plain sums hides."""
    parts, *errors = _on_one_grid(laws, COARSE_SHARE, widen=True)
    return ComposedFar(ratio_law.tilt_product(parts), *errors)


def _on_one_grid(
    laws: tuple[tuple[RatioGrid, int], ...], share: float, *, widen: bool = False
) -> tuple[ratio_law.Parts, float, float]:
    """The ratios on one grid of losses, and the errors of masses and of losses of all of them.

    ``widen``: a coarser grid where this one would have more than ``MOST`` points.
    """
    spreads = [(law.variances(), n) for law, n in laws]
    variance = min(sum(n * spread[order] for spread, n in spreads) for order in (0, 1))
    grid = math.sqrt(variance / sum(n for _, n in laws)) / share
    if widen:
        widest = max(math.log(law.value[-1] / law.value[law.value > 0][0]) for law, _ in laws)
        grid = max(grid, widest / MOST * (1 + 1e-9))
    parts = tuple((on_losses(law, grid), n) for law, n in laws)
    last = max(abs(part.low) + part.q.size for part, _ in parts) * grid
    mass_error = sum(
        n * (law.mass_error + law.ratio_error + 2 * law.value.size * UNIT) for law, n in laws
    )
    return parts, mass_error, sum(n * (law.ratio_error + (8 + 2 * last) * UNIT) for law, n in laws)


def on_losses(law: RatioGrid, grid: float) -> Ratio:
    """``law`` rounded to the ratios e^(k grid), with its mean preserved."""
    positive = law.value > 0
    value, q = law.value[positive], law.mass[positive]
    losses: Array = np.log(value)
    if not (
        grid >= LEAST_GRID and losses[-1] - losses[0] <= MOST * grid
    ):  # before anything is cast to an integer
        raise ValueError("too many nodes")
    cell = np.floor(losses / grid).astype(np.int64)
    first = int(cell[0])
    nodes = np.exp(grid * np.arange(first, int(cell[-1]) + 2))
    at = cell - first
    raised = q * np.clip((value - nodes[at]) / (nodes[at + 1] - nodes[at]), 0.0, 1.0)
    mass = np.zeros(nodes.size)
    mass += np.bincount(at, q - raised, nodes.size)
    mass += np.bincount(at + 1, raised, nodes.size)
    return Ratio(grid, first, mass, mass * nodes, float(law.mass[~positive].sum()), law.lost)


# Secret independent bins, the same in every pass, whatever is released: the exact pair and its
# likelihood ratio.  Every record falls into one of l bins, independently and uniformly, and bins
# are used in a public order. With sigma'_t the noise of step t in units of what one record adds to
# it, and a_j^2 = sum over the steps of bin j of 1 / sigma'_t^2, the run is dominated in both
# directions by P = (1/l) sum_j N(a_j e_j, I) against Q = N(0, I), and equals it for linear losses.
# Under Q the likelihood ratio is the mean of l independent Y_j = exp(a_j Z_j - a_j^2 / 2).  Proof:
# docs/theorems/balls-in-bins. One pass of newly drawn blocks is the same pair, a_j = 1 / sigma'.

BIN_LEAST, BIN_LARGEST, RATIO = 1e-6, 64.0, 32.0
"""Strengths that are distinguished: smaller ones are rounded up to ``BIN_LEAST`` and to a
``RATIO``-th of the largest (a larger one makes Y_j a spread); beyond ``BIN_LARGEST`` the bins hide
next to nothing, and the curve is that of one bin."""
BIN_FINE_LEVELS, BIN_COARSE_LEVELS = 12, 4
"""Different strengths that are distinguished; others are rounded up."""


@final
@dataclass(frozen=True)
class SecretBins(DominatingPair):
    """``counts[i]`` bins of strength ``strengths[i]``.

    The strongest bin alone, if it were known, would be a max(strengths)-GDP mechanism.
    """

    strengths: tuple[float, ...]
    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self.counts, self.strengths, "strength")

    @property
    def known(self) -> Gdp:
        """The curve if the record's bin were known."""
        return Gdp(math.hypot(max(self.strengths), self.mu) * UP)

    def law(self) -> tuple[Ratio, float] | None:
        if max(self.strengths) > BIN_LARGEST:
            return None
        return likelihood_ratio(self.strengths, self.counts, self.coarse), 0.0

    def far_law(self) -> Ratio:
        return likelihood_ratio(self.strengths, self.counts, self.coarse, far=True)


@lru_cache(maxsize=32)
def likelihood_ratio(
    strengths: tuple[float, ...],
    counts: tuple[int, ...],
    coarse: bool = False,
    *,
    far: bool = False,
) -> Ratio:
    """Return the distribution of (1/l) sum_j Y_j, rounded so that both directions only get worse;
    strengths up to ``BIN_LARGEST``. ``far``: for deltas as small as what is cut otherwise."""
    levels = merge_bins(
        tuple(zip(strengths, counts, strict=True)), BIN_COARSE_LEVELS if coarse else BIN_FINE_LEVELS
    )
    resolution, top = COARSE if coarse else FINE, max(a for a, _ in levels)
    if top == 0:
        return certain(1.0)
    total, held = None, 0
    for a, count in levels:
        h = top / resolution * 2.0 ** -math.ceil(math.log2(top / a) if a else 0)
        law = mean_of(a, count, h, resolution, far=far)
        total = law if total is None else mix_ratios(total, law, held / (held + count), resolution)
        held += count
    assert total is not None
    return total


def merge_bins(bins: tuple[tuple[float, int], ...], most: int) -> tuple[tuple[float, int], ...]:
    """Strengths and their numbers of bins, of at most ``most`` positive strengths, rounded up: more
    is never more private."""
    top = max(a for a, _ in bins)
    floor = max(BIN_LEAST, top / RATIO)
    positive = sorted({max(a, floor) for a, _ in bins if a > 0})
    if len(positive) > most:
        edges = [positive[0] + (positive[-1] - positive[0]) * k / most for k in range(1, most)]
        positive = [*edges, positive[-1]]
    counts: dict[float, int] = {}
    for a, count in bins:
        level = next(edge for edge in positive if edge >= a) if a > 0 else 0.0
        counts[level] = counts.get(level, 0) + count
    return tuple(sorted(counts.items()))
