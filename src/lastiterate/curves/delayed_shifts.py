"""Steps that draw a record with a fixed probability, when what it adds is hidden later, by the noise of other steps.

The steps are cut into intervals. What the record adds in one of them, S = sum of s_t R_t over its draws (R_t the
product of the later Lipschitz constants), is hidden by the noise of the next, X = sum of v_t R_t^2 there: a pair
E N(S / sqrt(X), 1) against N(0, 1), in which the draws stay secret. The last interval is one step, which hides its own
draw as well. Pairs of all intervals compose. Proof: docs/theorems/delayed-shifts.

Larger weights, and laws of S that are stochastically larger, only make pairs easier to distinguish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.curve import UP
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.ratio_law import Ratio
from lastiterate.curves.ratio_powers import Chernoff, chernoff, composed
from lastiterate.curves.shift_mixtures import (
    FAR_REACH,
    FAR_TAIL,
    FEW_ATOMS,
    FEW_POINTS,
    MOST_ATOMS,
    POINTS,
    Profile,
    mixture_profile,
    shift_law,
    wrong_chances,
)
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

FINE, COARSE = 50, 12
"""Nodes per standard deviation of one interval's loss, and of the composition's."""
MOST_NODES = 2**18
LARGEST = 28.0
"""A shift over the noise beyond which there are no numbers: likelihood ratios up to e^(28^2 / 2 + 28 REACH) are."""
LARGEST_LOSS = 690.0
"""Of a likelihood ratio that is a double."""
FAINT = 1e-4
"""Shifts that count as if they were certain."""
Weights = tuple[Array, int]
"""What a draw of each step of an interval adds, over the noise that hides it, and how many intervals are alike."""


@final
@dataclass(frozen=True)
class DelayedShifts(DominatingPair):
    """``counts[i]`` steps with Lipschitz constant ``factors[i]``, to which a record that is drawn, with probability
    ``rate``, adds ``shifts[i]``, and noise ``stds[i]``; in order.

    ``before``: a bound on the distance at the first step. Intervals are 1, then ``growth`` times as long each, rounded
    down, up to ``widest``, counted from the last step.
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
        if not 0 < self.rate <= 1:
            raise InputError("rate", "must lie in (0, 1]", self.rate)
        check_steps(self.counts, self.factors, self.shifts, self.stds, self.before)
        if not (self.growth >= 1 and self.widest >= 1):
            raise InputError("growth", "must be at least 1, as the widest interval", self.growth)

    @property
    def known(self) -> Gdp:
        """The curve if the record were in every batch."""
        certain, pairs = hidden(self)
        return Gdp(math.hypot(certain, self.mu, *(math.sqrt(n) * float(w.sum()) for w, n in pairs)) * UP)

    def law(self) -> tuple[Ratio, float] | None:
        certain, pairs = hidden(self)
        if not certain <= LARGEST or not pairs or not all(float(w.sum()) <= LARGEST for w, _ in pairs):
            return None
        resolution, atoms, points = ((COARSE, FEW_ATOMS, FEW_POINTS) if self.coarse else (FINE, MOST_ATOMS, POINTS))
        profiles = [(mixture_profile(*shift_law(w, self.rate, atoms), points), n) for w, n in pairs]
        try:
            return composed(_on_nodes(profiles, resolution), resolution), certain
        except (ValueError, OverflowError):
            return None

    def far_law(self) -> Chernoff:
        _, pairs = hidden(self)
        profiles: list[tuple[Profile, int]] = []
        for w, n in pairs:
            chances, shifts, _ = shift_law(w, self.rate, FEW_ATOMS, FAR_TAIL)
            top = float(shifts[-1])
            reach = min(FAR_REACH, (LARGEST_LOSS - top * top / 2) / top)  # beyond it counts as lost
            profiles.append((mixture_profile(chances, shifts, FAR_TAIL, FEW_POINTS, reach, wrong_chances(w)), n))
        return chernoff(_on_nodes(profiles, COARSE))


def _on_nodes(profiles: list[tuple[Profile, int]], resolution: int) -> tuple[tuple[Ratio, int], ...]:
    """All pairs on one grid."""
    variance = sum(n * profile.variance for profile, n in profiles) / sum(n for _, n in profiles)
    h = max(math.sqrt(variance) / resolution, max(profile.largest for profile, _ in profiles) / MOST_NODES, 1e-7)
    return tuple((profile.on_nodes(h), n) for profile, n in profiles)


def check_steps(counts: tuple[int, ...], factors: tuple[float, ...], shifts: tuple[float, ...],
                stds: tuple[float, ...], before: float) -> None:
    """Refuse kinds of steps that are not described alike, and what is no size."""
    if not len(counts) == len(factors) == len(shifts) == len(stds) or min(counts) < 1:
        raise InputError("counts", "need one positive entry for every kind of step", counts)
    if not all(x >= 0 for x in (*factors, *shifts, *stds, before)):
        raise InputError("factors", "and shifts, noise and distances must be numbers >= 0", factors)


def interval_ends(steps: int, growth: float, widest: int, blocks: int | None = None) -> list[int]:
    """Where intervals end, and 0 first; they end where a pass of so many ``blocks`` begins, too."""
    ends, length = [steps], 1.0
    while ends[-1] > 0:
        begins = 0 if blocks is None else (ends[-1] - 1) // blocks * blocks
        ends.append(max(begins, ends[-1] - min(widest, math.floor(length))))
        length = min(length * growth, float(widest))
    return ends[::-1]


@lru_cache(maxsize=64)
def hidden(curve: DelayedShifts) -> tuple[float, tuple[Weights, ...]]:
    """mu of what counts as certain, and the weights of the other pairs."""
    with np.errstate(divide="ignore"):
        c, s, std = (np.log(np.repeat(x, curve.counts)) for x in (curve.factors, curve.shifts, curve.stds))
    ends = interval_ends(c.size, curve.growth, curve.widest)
    kinds: dict[tuple[bytes, int, bool], Weights] = {}
    certain = 0.0 if curve.before == 0 or len(ends) > 2 else math.inf  # a single step hides its own draw
    if curve.before > 0 and len(ends) > 2:
        certain = float(carried(c[: ends[1]], np.full(1, math.log(curve.before)), std[: ends[1]], 0, earlier=True)[0])
    for begin, middle, end in zip(ends[:-2] or [0], ends[1:-1] or [0], ends[2:] or ends[1:], strict=True):
        key = np.stack([x[begin:end] for x in (c, s, std)]).tobytes(), middle - begin, end == c.size
        if key not in kinds:
            shift = carried(c[begin:end], s[begin : end if end == c.size else middle], std[begin:end], middle - begin)
            kinds[key] = shift[shift > 0], 0
        kinds[key] = kinds[key][0], kinds[key][1] + 1
    faint = [(w, n) for w, n in kinds.values() if float(w.sum()) <= FAINT]
    certain = math.hypot(certain, *(math.sqrt(n) * float(w.sum()) for w, n in faint)) * UP
    return certain, tuple((w, n) for w, n in kinds.values() if float(w.sum()) > FAINT)


def carried(c: Array, s: Array, std: Array, middle: int, *, earlier: bool = False) -> Array:
    """What the first steps add over what the steps from ``middle`` on hide; all arguments are logarithms.

    ``earlier``: the shift is a distance before the first step. Sums of logarithms are off by 2^-53 of the largest
    each, so that the result is raised by far more.
    """
    whole = np.append(np.cumsum(c[::-1])[::-1], 0.0)
    later, size = whole[1:], np.abs(whole[np.isfinite(whole)]).max(initial=0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        noise = np.logaddexp.reduce(2 * (std[middle:] + later[middle:]))
        shift = s + (whole[:1] if earlier else later[: s.size])
        ratio = np.exp(shift - noise / 2 + 1e-10 + 2.0**-48 * (c.size + 16) * (1 + size))
    return np.where(np.isneginf(shift), 0.0, np.where(np.isnan(ratio), math.inf, ratio))

