"""Curves of shifts that are sums of independent draws, hidden by the noise of later steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves import allocation
from lastiterate.curves.allocation import COARSE_SHARE, SHARE, Composed, ComposedFar, compose_far
from lastiterate.curves.curve import UP
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.ratio_grid import FAR_TRIMMED, RatioGrid, mean_of_two
from lastiterate.curves.ratio_law import Chernoff, Ratio, Tilted, compose_ratios, tilt_product
from lastiterate.errors import InputError
from lastiterate.run.validation import Array, check_interval

# One pair E N(shift, 1) against N(0, 1), the shift a sum of independent draws: its curve, and its
# distribution on a grid.  Shifts are rounded up: the pair of larger shifts dominates
# (docs/theorems/delayed-shifts). The likelihood ratio Y(x) increases in x, so that E_Q[(Y - g)_+] =
# P(x, inf) - g Q(x, inf) at g = Y(x), in closed form at as many points as one likes; between two of
# them it lies below the chord, for it is convex in g.

PARTS, MOST_PLACES, MOST_ATOMS, FEW_ATOMS = 256, 20_000, 1500, 500
"""Points of the lattice of shifts for the largest weight, in all, and shifts that are distinguished
afterwards, on fine and coarse curves."""
TAIL, FAR_TAIL = 1e-20, 1e-40
"""Probability of the largest shifts, which count as seen; the second for deltas as small as that.
"""
POINTS, FEW_POINTS, REACH, FAR_REACH = 1200, 600, 9.7, 13.5
"""Points x, those of coarse curves, and how many standard deviations they reach beyond all shifts:
less than 2e-22 lies there, and 1e-41 beyond the second."""


def shift_law(
    weights: Array, rate: float, atoms: int = MOST_ATOMS, tail: float = TAIL
) -> tuple[Array, Array, float]:
    """Chances and values of sum_t weights[t] B_t, B_t = 1 with probability ``rate``, rounded up,
    and the chance of what is larger; at most ``atoms`` of them. All terms are non-negative: errors
    are relative, ``wrong_chances``."""
    top = float(weights.max())
    even = bool(weights.min() > top * (1 - 1e-12))
    unit = top if even else max(top / PARTS, float(weights.sum()) / MOST_PLACES)
    places = np.ceil(weights / unit * (1 - 1e-12)).astype(np.int64)
    chances = np.ones(1)
    for step in np.sort(places):
        longer = np.zeros(chances.size + int(step))
        longer[: chances.size] = (1 - rate) * chances
        longer[int(step) :] += rate * chances
        above = np.cumsum(longer[::-1])[::-1]
        chances = longer[
            : int(np.searchsorted(-above, -tail / weights.size))
        ]  # what is cut off is missing below
    values = np.arange(chances.size, dtype=np.float64) * (unit * (1 + 1e-11))
    starts = np.append(
        0, np.arange(1, chances.size, -(-chances.size // atoms))
    )  # no draw at all stands alone
    merged: Array = np.add.reduceat(chances, starts)
    highest: Array = values[np.append(starts[1:], chances.size) - 1]
    return merged[merged > 0], highest[merged > 0], tail + wrong_chances(weights)


def wrong_chances(weights: Array) -> float:
    """Relative error of the chances of ``shift_law``: below 2^-51 for each step."""
    return 2.0**-50 * weights.size


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper ends of E_Q[(Y - g)_+], ``removed`` at ``ratios``, and of E_P[(1/Y - g)_+], ``added``
    at 1/``ratios``.

    ``variance``: about that of log Y under Q or P, whichever is smaller; ``largest``: log Y beyond
    which nothing lies.
    """

    ratios: Array
    removed: Array
    added: Array
    variance: float
    largest: float

    def on_nodes(self, h: float) -> Ratio:
        """A pair on the ratios e^{k h} that dominates: chords of both orders' curves."""
        last = math.ceil(self.largest / h) + 1
        nodes = np.exp(np.arange(last + 1, dtype=np.float64) * h)
        removed = np.interp(nodes, self.ratios, self.removed)
        added = np.interp(nodes, 1 / self.ratios[::-1], self.added[::-1])
        removed[0] = added[0] = min(removed[0], added[0])  # both bound the total variation
        falling = np.append(np.diff(removed) / np.diff(nodes), 0.0)
        rising = np.append(
            np.diff(added / nodes) / np.diff(1 / nodes), added[-1]
        )  # of g added(1/g), 1 down to 0
        above, below = np.maximum(np.diff(falling), 0.0), np.maximum(-np.diff(rising), 0.0)
        middle = max(0.0, 1 + float(falling[0]) - float(rising[0]))
        q = np.concatenate((below[::-1], [middle], above))
        p = np.concatenate(((below / nodes[1:])[::-1], [middle], above * nodes[1:]))
        return Ratio(h, -last, q, p, float(added[-1]), float(removed[-1]))


def mixture_profile(
    chances: Array,
    shifts: Array,
    lost: float,
    points: int = POINTS,
    reach: float = REACH,
    wrong: float = 0.0,
) -> Profile:
    """Of sum_k chances[k] N(shifts[k], 1), and ``lost`` of it seen for certain, against N(0, 1).

    ``wrong``: the relative error of chances. It moves a tail of the mixture relatively, and the
    ratio at which a half line is best: both move E_Q[(Y - g)_+] by no more than that part of the
    tail, as rounding does.
    """
    from scipy.special import ndtr  # pyright: ignore

    x = np.linspace(-reach, reach + float(shifts[-1]), points)
    exponents = np.log(chances) + shifts * (x[:, None] - shifts / 2)
    top = exponents.max(axis=1)
    log_ratio: Array = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    away = shifts - x[:, None]
    ahead, before = (np.asarray(ndtr(away) @ chances), np.asarray(ndtr(-away) @ chances))
    tails: Array = ndtr(-x)
    heads: Array = ndtr(x)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio, rounding = np.exp(log_ratio), 1e-13 * (1 + x * x) + 4 * wrong
        removed = ahead - ratio * tails + rounding * ahead + lost
        added = heads - before / ratio + rounding * heads + lost
    masses = np.diff(heads), np.diff(before)
    middle = (log_ratio[1:] + log_ratio[:-1]) / 2
    spread = [
        float((m * middle**2).sum() / m.sum() - ((m * middle).sum() / m.sum()) ** 2) for m in masses
    ]
    return Profile(
        ratio,
        np.maximum(removed, lost),
        np.maximum(added, lost),
        max(min(spread), 1e-14),
        float(np.abs(log_ratio).max()),
    )


GRID, GRID_REACH, FAR_GRID_REACH, ERROR = 700, 9.5, 13.5, 1e-10
"""Points and reach of ``mixture_grid``; above the relative errors of its masses (differences of
tails, good to 8 u (1 + x^2) each, over cells of a fiftieth of a standard deviation: below 1e-11)
and of its ratios."""


def mixture_grid(shifts: Array, reach: float = GRID_REACH) -> RatioGrid:
    """Y of the mean of N(shift, 1) over ``shifts`` to N(0, 1), its mass between two points shared
    by both with its mean preserved; what lies above the last point stays there under Q, and the
    P-mass that is missing then is lost."""
    x = np.linspace(-reach, reach + float(shifts.max()), GRID)
    ratio: Array = np.exp(shifts * (x[:, None] - shifts / 2)).mean(axis=1)
    value, mass = np.append(0.0, ratio), _cells(x)
    weighed = sum((_cells(x - shift) for shift in shifts), np.zeros(GRID + 1)) / shifts.size
    up = np.clip((weighed[:-1] - mass[:-1] * value[:-1]) / np.diff(value), 0.0, mass[:-1])
    out = np.append(mass[:-1] - up, mass[-1])
    out[1:] += up
    lost = max(0.0, float(weighed[-1] - mass[-1] * value[-1])) + 1e-6 * float(weighed[-1])
    return RatioGrid(value, out, lost, ERROR, ERROR)


def _cells(x: Array) -> Array:
    """Normal masses below, between and above the points; differences of tails on the nearer side."""
    from scipy.special import ndtr  # pyright: ignore

    low: Array = ndtr(x)
    high: Array = ndtr(-x)
    return np.concatenate((low[:1], np.where(x[1:] <= 0, np.diff(low), -np.diff(high)), high[-1:]))


# Steps that draw a record with a fixed probability, when what it adds is hidden later, by the noise
# of other steps.  The steps are cut into intervals. What the record adds in one of them, S = sum of
# s_t R_t over its draws (R_t the product of the later Lipschitz constants), is hidden by the noise
# of the next, X = sum of v_t R_t^2 there: a pair E N(S / sqrt(X), 1) against N(0, 1), in which the
# draws stay secret. The last interval is one step, which hides its own draw as well. Pairs of all
# intervals compose. Proof: docs/theorems/delayed-shifts.  Larger weights, and distributions of S
# that are stochastically larger, only make pairs easier to distinguish.

FINE, COARSE = 50, 12
"""Nodes per standard deviation of one interval's loss, and of the composition's."""
MOST_NODES = 2**18
LARGEST = 28.0
"""A shift over the noise beyond which there are no numbers: likelihood ratios up to e^(28^2 / 2 +
28 REACH) are."""
LARGEST_LOSS = 690.0
"""Largest logarithm of a likelihood ratio that is a double."""
FAINT = 1e-4
"""Shifts that count as if they were certain."""
Weights = tuple[Array, int]
"""The shift by a draw of each step of an interval, over the noise that hides it, and the number of
equal intervals."""


@final
@dataclass(frozen=True)
class DelayedShifts(DominatingPair):
    """``counts[i]`` steps with Lipschitz constant ``factors[i]``, to which a record that is drawn,
    with probability ``rate``, adds ``shifts[i]``, and noise ``stds[i]``; in order.

    ``before``: a bound on the distance at the first step. Intervals are 1, then ``growth`` times as
    long each, rounded down, up to ``widest``, counted from the last step.
    """

    rate: float
    counts: tuple[int, ...]
    factors: tuple[float, ...]
    shifts: tuple[float, ...]
    stds: tuple[float, ...]
    growth: float
    widest: int
    before: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interval("rate", self.rate, 0, 1, "(]")
        check_steps(self.counts, self.factors, self.shifts, self.stds, self.before)
        if not (self.growth >= 1 and self.widest >= 1):
            raise InputError("growth", "must be at least 1, as the widest interval", self.growth)

    @property
    def known(self) -> Gdp:
        """The curve if the record were in every batch."""
        certain, pairs = hidden(self)
        return Gdp(math.hypot(certain, self.mu, *(math.sqrt(n) * _sum(w) for w, n in pairs)) * UP)

    def law(self) -> tuple[Ratio, float] | None:
        certain, pairs = hidden(self)
        if not certain <= LARGEST or not pairs or not all(_sum(w) <= LARGEST for w, _ in pairs):
            return None
        resolution, atoms, points = (
            (COARSE, FEW_ATOMS, FEW_POINTS) if self.coarse else (FINE, MOST_ATOMS, POINTS)
        )
        profiles = [(mixture_profile(*shift_law(w, self.rate, atoms), points), n) for w, n in pairs]
        try:
            return compose_ratios(_on_nodes(profiles, resolution), resolution), certain
        except (ValueError, OverflowError):
            return None

    def far_law(self) -> Tilted | Chernoff:
        _, pairs = hidden(self)
        profiles: list[tuple[Profile, int]] = []
        for w, n in pairs:
            chances, shifts, _ = shift_law(w, self.rate, FEW_ATOMS, FAR_TAIL)
            top = float(shifts[-1])
            reach = min(FAR_REACH, (LARGEST_LOSS - top * top / 2) / top)  # beyond it counts as lost
            profiles.append(
                (mixture_profile(chances, shifts, FAR_TAIL, FEW_POINTS, reach, wrong_chances(w)), n)
            )
        return tilt_product(_on_nodes(profiles, COARSE))


def _on_nodes(
    profiles: list[tuple[Profile, int]], resolution: int
) -> tuple[tuple[Ratio, int], ...]:
    """All pairs on one grid."""
    variance = sum(n * profile.variance for profile, n in profiles) / sum(n for _, n in profiles)
    h = max(
        math.sqrt(variance) / resolution,
        max(profile.largest for profile, _ in profiles) / MOST_NODES,
        1e-7,
    )
    return tuple((profile.on_nodes(h), n) for profile, n in profiles)


def check_steps(
    counts: tuple[int, ...],
    factors: tuple[float, ...],
    shifts: tuple[float, ...],
    stds: tuple[float, ...],
    before: float,
) -> None:
    """Refuse kinds of steps that are not described alike, and what is no size."""
    alike = len(counts) == len(factors) == len(shifts) == len(stds) > 0
    if not alike or not all(n >= 1 for n in counts):
        raise InputError("counts", "need one positive entry for every kind of step", counts)
    if not all(x >= 0 for x in (*factors, *shifts, *stds, before)):
        raise InputError("factors", "and shifts, noise and distances must be numbers >= 0", factors)


def interval_ends(steps: int, growth: float, widest: int, blocks: int | None = None) -> list[int]:
    """Return the ends of intervals, and 0 first; an interval also ends where a pass of so many
    ``blocks`` begins."""
    ends, length = [steps], 1.0
    while ends[-1] > 0:
        begins = 0 if blocks is None else (ends[-1] - 1) // blocks * blocks
        ends.append(max(begins, ends[-1] - min(widest, math.floor(length))))
        length = min(length * growth, float(widest))
    return ends[::-1]


def _sum(weights: Array) -> float:
    with np.errstate(over="ignore"):  # infinite where it is beyond double precision
        return float(weights.sum())


@lru_cache(maxsize=64)
def hidden(curve: DelayedShifts) -> tuple[float, tuple[Weights, ...]]:
    """mu of what counts as certain, and the weights of the other pairs."""
    with np.errstate(divide="ignore"):
        c, s, std = (
            np.log(np.repeat(x, curve.counts)) for x in (curve.factors, curve.shifts, curve.stds)
        )
    ends = interval_ends(c.size, curve.growth, curve.widest)
    kinds: dict[tuple[bytes, int, bool], Weights] = {}
    certain = (
        0.0 if curve.before == 0 or len(ends) > 2 else math.inf
    )  # a single step hides its own draw
    if curve.before > 0 and len(ends) > 2:
        certain = float(
            carry_over(
                c[: ends[1]], np.full(1, math.log(curve.before)), std[: ends[1]], 0, earlier=True
            )[0]
        )
    for begin, middle, end in zip(
        ends[:-2] or [0], ends[1:-1] or [0], ends[2:] or ends[1:], strict=True
    ):
        key = np.stack([x[begin:end] for x in (c, s, std)]).tobytes(), middle - begin, end == c.size
        if key not in kinds:
            shift = carry_over(
                c[begin:end],
                s[begin : end if end == c.size else middle],
                std[begin:end],
                middle - begin,
            )
            kinds[key] = shift[shift > 0], 0
        kinds[key] = kinds[key][0], kinds[key][1] + 1
    sums = [(_sum(w), w, n) for w, n in kinds.values()]
    faint = (math.sqrt(n) * total for total, _, n in sums if total <= FAINT)
    return math.hypot(certain, *faint) * UP, tuple((w, n) for total, w, n in sums if total > FAINT)


def carry_over(c: Array, s: Array, std: Array, middle: int, *, earlier: bool = False) -> Array:
    """Return the shift of the first steps over the noise of the steps from ``middle`` on; all
    arguments are logarithms.

    ``earlier``: the shift is a distance before the first step. Sums of logarithms are off by 2^-53
    of the largest each, so that the result is raised by far more.
    """
    whole = np.append(np.cumsum(c[::-1])[::-1], 0.0)
    later, size = whole[1:], np.abs(whole[np.isfinite(whole)]).max(initial=0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        noise = np.logaddexp.reduce(2 * (std[middle:] + later[middle:]))
        shift = s + (whole[:1] if earlier else later[: s.size])
        ratio = np.exp(shift - noise / 2 + 1e-10 + 2.0**-48 * (c.size + 16) * (1 + size))
    return np.where(np.isneginf(shift), 0.0, np.where(np.isnan(ratio), math.inf, ratio))


# Fresh secret blocks in every pass, when what a record adds is hidden later, by the noise of other
# steps.  The passes are cut into intervals, the last one a single step. If the record's block lies
# in one of them, what it adds there is hidden by the noise of the next interval
# (docs/theorems/delayed-shifts). The likelihood ratio of a pass is the mean over its blocks of
# log-normal variables; those of different intervals are independent. Pairs of passes compose.

LEAST, LARGEST_ALLOCATED, LONGEST = 1e-4, 20.0, 10**5
"""Shifts are raised to ``LEAST``; beyond ``LARGEST_ALLOCATED`` times the noise, and for more
passes, there are no numbers."""
NODES, COARSE_NODES = 600, 250
Parts = tuple[tuple[float, Array], ...]
"""For every interval of a pass: the probability that it holds the record, and the record's shift in
each of its blocks."""


@final
@dataclass(frozen=True)
class AllocatedShifts(DominatingPair):
    """Steps over ``blocks`` fresh secret blocks in every pass: ``counts[i]`` of them with Lipschitz
    constant ``factors[i]``, to which the record adds ``shifts[i]``, and noise ``stds[i]``; in
    order, beginning with a pass.

    ``before``: a bound on the distance at the first step. Intervals are 1, then ``growth`` times as
    long each, rounded down, up to ``widest``, counted from the last step, and end where a pass
    begins.
    """

    blocks: int
    counts: tuple[int, ...]
    factors: tuple[float, ...]
    shifts: tuple[float, ...]
    stds: tuple[float, ...]
    growth: float
    widest: int
    before: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.counts, self.factors, self.shifts, self.stds, self.before)
        if not (self.growth >= 1 and self.widest >= 1 and self.blocks >= 1):
            raise InputError(
                "growth", "must be at least 1, as the widest interval and the blocks", self.growth
            )

    @property
    def known(self) -> Gdp:
        """The curve if it were known which blocks hold the record."""
        certain, passes = hidden_passes(self)
        most = (
            math.sqrt(n) * max((float(w.max()) for _, w in parts), default=0.0)
            for parts, n in passes
        )
        return Gdp(math.hypot(certain, self.mu, *most) * UP)

    def law(self) -> tuple[Composed, float] | None:
        certain, passes = hidden_passes(self)
        if not certain <= LARGEST_ALLOCATED or not passes or sum(n for _, n in passes) > LONGEST:
            return None
        if not all(
            float(shift.max()) <= LARGEST_ALLOCATED for parts, _ in passes for _, shift in parts
        ):
            return None
        laws = tuple(
            (pass_law(parts, COARSE_NODES if self.coarse else NODES), n) for parts, n in passes
        )
        try:
            return allocation.compose_passes(laws, COARSE_SHARE if self.coarse else SHARE), certain
        except ValueError:  # too many nodes
            return None

    def far_law(self) -> ComposedFar:
        _, passes = hidden_passes(self)
        return compose_far(
            tuple((pass_law(parts, COARSE_NODES, far=True), n) for parts, n in passes)
        )


@lru_cache(maxsize=64)
def hidden_passes(curve: AllocatedShifts) -> tuple[float, tuple[tuple[Parts, int], ...]]:
    """mu of the distance before, and the parts of every kind of pass, with how many are alike.

    Where the last step begins a pass, two passes would be hidden by it: there is no statement (an
    infinite mu).
    """
    with np.errstate(divide="ignore"):
        c, s, std = (
            np.log(np.repeat(x, curve.counts)) for x in (curve.factors, curve.shifts, curve.stds)
        )
    ends, blocks = interval_ends(c.size, curve.growth, curve.widest, curve.blocks), curve.blocks
    if (c.size > 1 and (c.size - 1) % blocks == 0) or (curve.before > 0 and len(ends) == 2):
        return math.inf, ()
    certain = 0.0
    passes: list[list[tuple[float, Array]]] = [[] for _ in range(-(-c.size // blocks))]
    if curve.before > 0:
        certain = float(
            carry_over(
                c[: ends[1]], np.full(1, math.log(curve.before)), std[: ends[1]], 0, earlier=True
            )[0]
        )
    for begin, middle, end in zip(
        ends[:-2] or [0], ends[1:-1] or [0], ends[2:] or ends[1:], strict=True
    ):
        source = end if end == c.size else middle
        shift = np.maximum(
            carry_over(c[begin:end], s[begin:source], std[begin:end], middle - begin), LEAST
        )
        passes[begin // blocks].append(((source - begin) / blocks, shift))
    kinds: dict[tuple[bytes, ...], tuple[Parts, int]] = {}
    for parts in passes:
        key = tuple(shift.tobytes() for _, shift in parts)
        kinds[key] = tuple(parts), kinds.get(key, ((), 0))[1] + 1
    return certain, tuple(kinds.values())


def pass_law(parts: Parts, nodes: int, *, far: bool = False) -> RatioGrid:
    """The likelihood ratio of one pass: the sum of probability times ratio over its intervals, with
    ratio 1 for the remaining probability."""

    def of_interval(shift: Array) -> RatioGrid:
        return (
            replace(mixture_grid(shift, FAR_GRID_REACH), trimmed=FAR_TRIMMED)
            if far
            else mixture_grid(shift)
        )

    ordered = sorted(parts, key=lambda part: float(part[1].max()))
    have, law = ordered[0][0], of_interval(ordered[0][1])
    for share, shift in ordered[1:]:
        law = mean_of_two(
            law, of_interval(shift), have / (have + share), max(1.0, 1 / (have + share)), nodes
        )
        have += share
    return law if have > 1 - 1e-12 else law.mix(have)
