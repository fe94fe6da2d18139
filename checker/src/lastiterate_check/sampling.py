"""One pass of secret blocks, and secret bins: (1/l) sum_j N(a_j e_j, I) against N(0, I) (PROOFS G3
and J).

Under Q = N(0, I) the likelihood ratio is the mean of l independent log-normal variables Y_j =
exp(a_j x - a_j^2/2). Each is spread, with its mean kept, to the points of an even grid, and the sum
is convolved directly: every term is positive, so that each probability is good to its own last
digits, however small it is, and no transform is needed. Grids are made twice as wide, again keeping
means, when they grow too long. A law spread with kept means dominates the pair in both orders at
once.

Log-normal tails are long. So the sum is computed on several grids, each of a larger range and
coarser: of each only the sums within its own stretch are used. A sum below K has no summand above
K, so a grid that ends at K is exact there; and the coarser grid's points are among the finer one's.
``mean_law`` says why what is put together from stretches still dominates.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate_check import losses
from lastiterate_check.curves import Curve
from lastiterate_check.losses import REACH, Cells, Losses, Pair, between, dot, few
from lastiterate_check.run import Array, NotCovered, Run

MOST = 9900
"""Points of a grid: few enough for products of one thread, whatever library computes them."""
RATIO = 8
"""The range of a grid over that of the one before."""
NOTHING = 1e-45
"""Mass of single points at the end of a grid that is left out."""
ENDS = 1e-22
"""What counts as lost, in every pass and order, for all that is left out at ends: far more than
it is."""
ENDLESS = 1e300
"""The end of the last of several grids; a single grid has none, and may begin anywhere."""
LEAST = 1e-7
"""Likelihood ratios below it are not distinguished."""
LARGEST = 7.0
"""a = 1/noise multiplier beyond which a pass is charged in full: Y would exceed what floats
hold."""


Part = tuple[tuple[float, ...], int, int]
"""Shifts a of a mean of exp(a x - a^2/2) with one normal x, its factor, and how many independent
copies there are."""


@dataclass(frozen=True)
class Law:
    """Probabilities under Q of the values start + i step, of a sum of independent variables."""

    start: float
    step: float
    mass: Array

    @property
    def values(self) -> Array:
        """The grid."""
        return self.start + self.step * np.arange(self.mass.size)


def variable(part: Part, start: float, step: float, top: float) -> Law:
    """scale times the mean of exp(a x - a^2/2) over the part's a, on the grid start, start + step,
    ..., below ``top``: each cell's mass goes to its ends, its mean kept."""
    shifts, scale = np.array(part[0]), float(part[1])
    largest = float(shifts.max())
    most = scale * math.exp(min(largest * (largest / 2 + REACH), 600.0))
    grid = start + step * np.arange(max(2, math.ceil((min(top, most) - start) / step) + 2))
    with np.errstate(divide="ignore"):
        logs = np.maximum(np.log(np.maximum(grid, 0.0) / scale), -690)
    even = np.full(shifts.size, 1 / shifts.size)
    edge = losses.mixture_crossing(even, shifts, logs, largest + REACH)
    edge[0] = -math.inf  # what lies below the start counts as the start, and ENDS as lost
    q = between(edge[:-1], edge[1:])
    p = sum(between(edge[:-1] - a, edge[1:] - a) for a in shifts) / shifts.size
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(q > 0, np.clip((scale * p / q - grid[:-1]) / step, 0.0, 1.0), 0.0)
    mass = np.append((1 - share) * q, 0.0)
    mass[1:] += share * q
    return trimmed(Law(start, step, mass * (1 + 1e-14)), top)


def trimmed(law: Law, top: float) -> Law:
    """The same below ``top`` (what is cut there belongs to another grid) and without ends of next
    to no mass; on wider cells where it is too long."""
    kept = (law.mass > NOTHING) & (law.values < top)
    heavy = np.flatnonzero(kept) if kept.any() else np.zeros(1, dtype=int)
    # a single grid may begin anywhere; of several, the coarser ones' points must be the finer ones'
    first = int(heavy[0]) if top == math.inf else 0
    law = Law(law.start + first * law.step, law.step, law.mass[first : int(heavy[-1]) + 1])
    while law.mass.size > MOST:
        law = widened(law)
    return law


def widened(law: Law) -> Law:
    """Cells twice as wide: every second point gives half of its mass to each neighbour."""
    mass = np.append(law.mass, np.zeros(1 + law.mass.size % 2))[: law.mass.size // 2 * 2 + 1]
    even, odd = mass[0::2].copy(), mass[1::2]
    even[:-1] += odd / 2
    even[1:] += odd / 2
    return Law(law.start, 2 * law.step, even)


def added(one: Law, two: Law, top: float) -> Law:
    """The sum of two independent ones, on the wider of both steps; raised above the rounding of
    its sums."""
    while one.step < two.step * 0.75:
        one = widened(one)
    while two.step < one.step * 0.75:
        two = widened(two)
    above = 1 + 2.0**-52 * (min(one.mass.size, two.mass.size) + 2)
    return trimmed(
        Law(one.start + two.start, one.step, np.convolve(one.mass, two.mass) * above), top
    )


def summed(parts: tuple[Part, ...], start: float, step: float, top: float) -> Law:
    """The sum over all copies of all parts below ``top``, by repeated doubling."""
    total = None
    for part in parts:
        square, copies = variable(part, start * part[1], step, top), part[2]
        while copies:
            if copies & 1:
                total = square if total is None else added(total, square, top)
            copies >>= 1
            square = added(square, square, top) if copies else square
    return total


@lru_cache(maxsize=64)
def pass_of_blocks(blocks: int, a: float, reached: int | None = None) -> Pair:
    """One pass: a record is in one of ``blocks`` blocks, the first ``reached`` of them used, 1/z
    = a."""
    return ratio_pair((((a,), 1, blocks if reached is None else reached),), blocks)


def bins(groups: tuple[tuple[float, int], ...], blocks: int) -> Pair:
    """Secret bins of different signal-to-noise ratios: (a_j, how many); the rest are never used."""
    return ratio_pair(tuple(((a,), 1, count) for a, count in groups if a > 0 and count), blocks)


def ratio_pair(parts: tuple[Part, ...], blocks: int) -> Pair:
    """Return the pair whose likelihood ratio is (sum over all parts + the remainder of ``blocks``)
    / ``blocks``."""
    forward, backward = mean_law(parts, blocks)

    def cells(h: float) -> Cells:
        return replace(_binned(*forward, h), back=_binned(*backward, h))

    return cells


def _binned(ratio: Array, q: Array, h: float) -> Cells:
    """Cells of a law of the likelihood ratio, given by its values and their probabilities under Q.

    Ratios below LEAST move up to it in the order that is raised by that, and count as lost in the
    other. A value on an end may land in the next cell by rounding; ``_spread`` clips it to the end,
    1e-15 away.
    """
    tiny, ratio = ratio < LEAST, np.maximum(ratio, LEAST)
    place = np.floor(np.log(ratio) / h).astype(int)
    place, first = place - place.min(), int(place.min())
    p = np.bincount(place, weights=q * ratio)
    kept = np.bincount(place, weights=np.where(tiny, 0, q))
    return Cells(first, p, kept, p_above=ENDS, q_below=ENDS + float(q[tiny].sum()))


@lru_cache(maxsize=512)
def mean_law(
    parts: tuple[Part, ...], blocks: int
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Likelihood ratios and their probabilities under Q, one law for every order.

    Removed: stretches of grids from the finest to the coarsest. For g >= 0 the law must have E(Y -
    g)_+ no smaller than the true one. Let F end at K and G take over there. From K on it is G's,
    which is an upper bound. Below K it differs from F's by a linear function of g: at K by what G
    has above F (G's points are among F's, so G is spread further), at 0 by the P-mass that G has
    above K, less what F has there; where that is negative it is put at K. Added: E(g - Y)_+ needs
    no law above the end of the finest grid: all that is missing there counts as that end.
    """
    sizes = [(min(a), max(a), scale, count) for a, scale, count in parts]
    used = sum(scale * count for _, _, scale, count in sizes)
    idle, most = blocks - used, max(a for _, a, _, _ in sizes)
    least = min(a * scale for a, _, scale, _ in sizes)
    variances = (n * k * k * min(math.expm1(min(a * a, 30.0)), 4.0) for _, a, k, n in sizes)
    wide = math.sqrt(sum(variances))  # about the deviation of the bulk
    longest = max(k for _, _, k, _ in sizes) * math.expm1(most * REACH + most * most / 2)
    start = math.exp(-most * REACH - most * most / 2)
    start = 0.0 if start < 0.05 else start
    step = max(min(math.sqrt(math.expm1(min(least * least, 30.0))), 0.7) / 80, wide / 4000)
    highest = used + 16 * wide + 3 * longest  # the bulk, and three variables at their ends
    top, laws, tops = max(used + 10 * wide, MOST * step / 2), [], []
    span = (24 * wide + 3 * longest) / MOST  # the width of cells on a single grid
    if span <= 4 * step or span <= wide / 60:
        top = highest
    while not tops or tops[-1] < ENDLESS:
        tops.append(top if top < highest else math.inf if not laws else ENDLESS)
        laws.append(summed(parts, start, step, tops[-1]))
        step *= max(RATIO, 2.0 ** math.ceil(math.log2(2 * (top - start * used) / MOST / step)))
        top *= RATIO
    values, masses = laws[-1].values, laws[-1].mass
    for law, end in zip(laws[-2::-1], tops[-2::-1], strict=True):
        above, below = values >= end, law.values < end
        ratios = np.concatenate((law.values[below], values[above])) + idle
        masses = np.concatenate((law.mass[below], masses[above]))
        missing = max(0.0, 1 - dot(masses, ratios) / blocks) + 2e-15
        values = np.append(ratios - idle, end)
        masses = np.append(masses, missing * blocks / (end + idle))
    rest = max(0.0, 1 - float(laws[0].mass.sum())) + 2e-15
    ends = np.append(laws[0].values, tops[0] if len(laws) > 1 else laws[0].values[-1])
    backward = (ends + idle) / blocks, np.append(laws[0].mass, rest)
    return ((values + idle) / blocks, masses), backward


def poisson(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """(1 - q) N(0, z^2) + q N(1, z^2) against N(0, z^2), composed (Zhu, Dong, Wang 2022, Theorems
    10 and 11)."""
    noises = few(run.multipliers(first, share), 1 / 30)
    return Losses([(losses.sampled(run.rate, z), count) for z, count in noises], mu)


def allocation(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """One pair for every pass, with the least noise of its steps (PROOFS J)."""
    noises, blocks = run.multipliers(first, share), run.blocks
    rest = noises.size % blocks
    whole_passes = noises[: noises.size - rest].reshape(-1, blocks).min(axis=1)
    counts = few(whole_passes, 1 / LARGEST) if whole_passes.size else []
    pairs = [(pass_of_blocks(blocks, 1 / z), count) for z, count in counts]
    if rest:
        ((last, _),) = few(noises[-rest:].min(keepdims=True), 1 / LARGEST)
        pairs.append((pass_of_blocks(blocks, 1 / last, rest), 1))
    return Losses(pairs, mu)


def balls_in_bins(run: Run) -> Curve:
    """(1/l) sum_j N(a_j e_j, I) against N(0, I), a_j^2 = sum over bin j's steps of (S / (b
    std))^2 (PROOFS G3)."""
    each = np.broadcast_to(run.squared_ratios, (run.steps,))
    squares = np.bincount(np.arange(run.steps) % run.blocks, weights=each, minlength=run.blocks)
    groups = Counter((np.sqrt(squares) * (1 + 1e-13)).tolist())
    if len(groups) > 64 or not 0 < max(groups) <= LARGEST:
        raise NotCovered("bins of more than 64 different noises, or with next to none")
    return Losses([(bins(tuple(groups.items()), run.blocks), 1)])
