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
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate_check.losses import REACH, Array, Cells, Pair, between, dot, mixture_crossing

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
"""Likelihood ratios below it are not told apart."""
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
    ..., below ``top``:
    each cell's mass goes to its ends, its mean kept."""
    shifts, scale = np.array(part[0]), float(part[1])
    most = scale * math.exp(min(float(shifts.max()) * (float(shifts.max()) / 2 + REACH), 600.0))
    size = max(2, math.ceil((min(top, most) - start) / step) + 2)
    grid = start + step * np.arange(size)
    with np.errstate(divide="ignore"):
        logs = np.where(grid > 0, np.log(np.maximum(grid / scale, 1e-300)), -math.inf)
    if shifts.size == 1:
        edge = logs / shifts[0] + shifts[0] / 2
    else:
        even = np.full(shifts.size, 1 / shifts.size)
        edge = mixture_crossing(even, shifts, np.maximum(logs, -690), float(shifts.max()) + REACH)
    edge[
        0
    ] = -math.inf  # next to nothing lies below the start: it counts as the start, and ENDS as lost
    q = between(edge[:-1], edge[1:])
    p = (
        sum((between(edge[:-1] - a, edge[1:] - a) for a in shifts), np.zeros(size - 1))
        / shifts.size
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(q > 0, np.clip((scale * p / q - grid[:-1]) / step, 0.0, 1.0), 0.0)
    mass = np.zeros(size)
    mass[1:] += share * q
    mass[:-1] += (1 - share) * q
    return trimmed(Law(start, step, mass * (1 + 1e-14)), top)


def trimmed(law: Law, top: float) -> Law:
    """The same below ``top`` (what is cut there belongs to another grid) and without ends of next
    to no mass; on wider cells where it is too long."""
    mass = law.mass[
        : max(1, math.ceil((min(top, law.start + law.mass.size * law.step) - law.start) / law.step))
    ]
    heavy = np.flatnonzero(mass > NOTHING)
    # a single grid may begin anywhere; of several, the coarser ones' points must be the finer ones'
    first = int(heavy[0]) if heavy.size and top == math.inf else 0
    last = int(heavy[-1]) + 1 if heavy.size else 1
    law = Law(law.start + first * law.step, law.step, mass[first:last])
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
    mass = np.convolve(one.mass, two.mass) * (
        1 + 2.0**-52 * (min(one.mass.size, two.mass.size) + 2)
    )
    return trimmed(Law(one.start + two.start, one.step, mass), top)


def powers(part: Part, start: float, step: float, top: float) -> Law:
    """The sum of the part's copies below ``top``, by repeated doubling."""
    square, total, copies = variable(part, start * part[1], step, top), None, part[2]
    while True:
        if copies & 1:
            total = square if total is None else added(total, square, top)
        copies >>= 1
        if not copies:
            return total
        square = added(square, square, top)


def summed(parts: tuple[Part, ...], start: float, step: float, top: float) -> Law:
    """The sum over all parts below ``top``."""
    law = None
    for part in parts:
        one = powers(part, start, step, top)
        law = one if law is None else added(law, one, top)
    return law


def pass_of_blocks(blocks: int, a: float, reached: int | None = None) -> Pair:
    """One pass: a record is in one of ``blocks`` blocks, the first ``reached`` of them used, 1/z
    = a."""
    return ratio_pair((((a,), 1, blocks if reached is None else reached),), blocks)


def bins(groups: tuple[tuple[float, int], ...], blocks: int) -> Pair:
    """Secret bins of different signal-to-noise ratios: (a_j, how many); the rest are never used."""
    return ratio_pair(tuple(((a,), 1, count) for a, count in groups if a > 0 and count), blocks)


def ratio_pair(parts: tuple[Part, ...], blocks: int) -> Pair:
    """The pair whose likelihood ratio is (sum over all parts + what is left of ``blocks``) /
    ``blocks``."""
    forward, backward = mean_law(parts, blocks)

    def cells(h: float) -> Cells:
        return replace(_binned(*forward, h), back=_binned(*backward, h))

    return cells


def _binned(ratio: Array, q: Array, h: float) -> Cells:
    """Cells of a law of the likelihood ratio, given by its values and their probabilities under Q.

    Ratios below LEAST move up to it in the order that is raised by that, and count as lost in the
    other. A value on an end may land in the cell beside it by rounding; ``_spread`` clips it to the
    end, 1e-15 away.
    """
    tiny = ratio < LEAST
    lost, ratio = float(q[tiny].sum()), np.maximum(ratio, LEAST)
    place = np.floor(np.log(ratio) / h).astype(int)
    first = int(place.min())
    p, kept = (
        np.bincount(place - first, weights=q * ratio),
        np.bincount(place - first, weights=np.where(tiny, 0, q)),
    )
    return Cells(first, p, kept, p_above=ENDS, q_below=ENDS + lost)


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
    no law above K: all that is missing there counts as K itself.
    """
    used = sum(scale * count for _, scale, count in parts)
    idle, most = blocks - used, max(max(shifts) for shifts, _, _ in parts)
    least = min(min(shifts) * scale for shifts, scale, _ in parts)
    deviation = math.sqrt(math.expm1(min(least * least, 30.0)))
    start = math.exp(-most * REACH - most * most / 2)
    start = 0.0 if start < 0.05 else start
    step = min(deviation, 0.7) / 80
    wide = math.sqrt(
        sum(
            count * scale * scale * min(math.expm1(min(max(shifts) ** 2, 30.0)), 4.0)
            for shifts, scale, count in parts
        )
    )
    step = max(step, wide / 4000)
    longest = max(scale for _, scale, _ in parts) * math.expm1(most * REACH + most * most / 2)
    highest = used + 16 * wide + 3 * longest  # the bulk, and three variables at their ends
    top, laws, tops = max(used + 10 * wide, MOST * step / 2), [], []
    span = (24 * wide + 3 * longest) / MOST  # the width of cells on a single grid
    if span <= 4 * step or span <= wide / 60:
        top = highest
    while True:
        end = top if top < highest else math.inf if not laws else ENDLESS
        laws.append(summed(parts, start, step, end))
        tops.append(end)
        if end >= ENDLESS:
            break
        step *= max(RATIO, 2.0 ** math.ceil(math.log2(2 * (top - start * used) / MOST / step)))
        top *= RATIO
    values, masses = laws[-1].values, laws[-1].mass
    for law, end in zip(laws[-2::-1], tops[-2::-1], strict=True):
        above, below = values >= end, law.values < end
        p_below, p_above = (
            dot(law.mass[below], law.values[below] + idle),
            dot(masses[above], values[above] + idle),
        )
        missing = max(0.0, 1 - (p_below + p_above) / blocks) + 2e-15
        values = np.concatenate((law.values[below], [end], values[above]))
        masses = np.concatenate((law.mass[below], [missing * blocks / (end + idle)], masses[above]))
    return ((values + idle) / blocks, masses), _added(parts, laws[0], tops[0], start, blocks, idle)


def _added(
    parts: tuple[Part, ...], law: Law, top: float, start: float, blocks: int, idle: int
) -> tuple[Array, Array]:
    """The law for the other order, on finer grids towards 0.

    Where a finer grid ends, at K, E(g - Y)_+ is its own below K; above K it would be the coarser
    one's plus a linear function of g: not below 0 at K once ``half`` is put at K/2, nor above it
    once ``more`` is put at K.
    """
    rest = max(0.0, 1 - float(law.mass.sum())) + 2e-15
    values = np.append(law.values, top if math.isfinite(top) else law.values[-1])
    masses, step, end = np.append(law.mass, rest), law.step, 400 * RATIO * law.step
    for _ in range(6 if idle == 0 and start == 0.0 else 0):
        end, step = end / RATIO, step / RATIO
        below = values < end
        if float(masses[below].sum()) < 1e-24 or end / blocks < LEAST:
            break
        fine = summed(parts, 0.0, step, end)
        kept = fine.values < end
        new, mass = fine.values[kept], fine.mass[kept]
        short = dot(masses[below], end - values[below]) - dot(mass, end - new)
        half = max(2 * short / end, 0.0) + 1e-13 * float(masses[below].sum())
        more = max(float(masses[below].sum() - mass.sum()) - half, 0.0)
        values = np.concatenate((new, [end / 2, end], values[~below]))
        masses = np.concatenate((mass, [half, more], masses[~below]))
    return (values + idle) / blocks, masses
