"""Fresh secret blocks in every pass, when what a record adds is hidden later, by the noise of other steps.

The passes are cut into intervals, the last one a single step. If the record's block lies in one of them, what it adds
there is hidden by the noise of the next interval (docs/theorems/delayed-shifts). The likelihood ratio of a pass is the
mean over its blocks of log-normal variables; those of different intervals are independent. Pairs of passes compose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.allocation_composition import COARSE_SHARE, SHARE, Composed, ComposedFar, composed, composed_far
from lastiterate.curves.curve import UP
from lastiterate.curves.delayed_shifts import carried, check_steps, interval_ends
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.ratio_grid import RatioGrid, mean_of_two
from lastiterate.curves.ratio_nodes import FAR_TRIMMED
from lastiterate.curves.shift_mixtures import FAR_GRID_REACH, mixture_grid
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

LEAST, LARGEST, LONGEST = 1e-4, 20.0, 10**5
"""Shifts are raised to ``LEAST``; beyond ``LARGEST`` times the noise, and for more passes, there are no numbers."""
NODES, COARSE_NODES = 600, 250
Parts = tuple[tuple[float, Array], ...]
"""Of every interval of a pass: the probability that it holds the record, and what it adds in each of its blocks."""


@final
@dataclass(frozen=True)
class AllocatedShifts(DominatingPair):
    """Steps over ``blocks`` fresh secret blocks in every pass: ``counts[i]`` of them with Lipschitz constant
    ``factors[i]``, to which the record adds ``shifts[i]``, and noise ``stds[i]``; in order, beginning with a pass.

    ``before``: a bound on the distance at the first step. Intervals are 1, then ``growth`` times as long each, rounded
    down, up to ``widest``, counted from the last step, and end where a pass begins.
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
            raise InputError("growth", "must be at least 1, as the widest interval and the blocks", self.growth)

    @property
    def known(self) -> Gdp:
        """The curve if it were known which blocks hold the record."""
        certain, passes = hidden_passes(self)
        most = (math.sqrt(n) * max((float(w.max()) for _, w in parts), default=0.0) for parts, n in passes)
        return Gdp(math.hypot(certain, self.mu, *most) * UP)

    def law(self) -> tuple[Composed, float] | None:
        certain, passes = hidden_passes(self)
        if not certain <= LARGEST or not passes or sum(n for _, n in passes) > LONGEST:
            return None
        if not all(float(shift.max()) <= LARGEST for parts, _ in passes for _, shift in parts):
            return None
        laws = tuple((pass_law(parts, COARSE_NODES if self.coarse else NODES), n) for parts, n in passes)
        try:
            return composed(laws, COARSE_SHARE if self.coarse else SHARE), certain
        except ValueError:  # too many nodes
            return None

    def far_law(self) -> ComposedFar:
        _, passes = hidden_passes(self)
        return composed_far(tuple((pass_law(parts, COARSE_NODES, far=True), n) for parts, n in passes))


@lru_cache(maxsize=64)
def hidden_passes(curve: AllocatedShifts) -> tuple[float, tuple[tuple[Parts, int], ...]]:
    """mu of the distance before, and the parts of every kind of pass, with how many are alike.

    Where the last step begins a pass, two passes would be hidden by it: there is no statement (an infinite mu).
    """
    with np.errstate(divide="ignore"):
        c, s, std = (np.log(np.repeat(x, curve.counts)) for x in (curve.factors, curve.shifts, curve.stds))
    ends, blocks = interval_ends(c.size, curve.growth, curve.widest, curve.blocks), curve.blocks
    if (c.size > 1 and (c.size - 1) % blocks == 0) or (curve.before > 0 and len(ends) == 2):
        return math.inf, ()
    certain = 0.0
    passes: list[list[tuple[float, Array]]] = [[] for _ in range(-(-c.size // blocks))]
    if curve.before > 0:
        certain = float(carried(c[: ends[1]], np.full(1, math.log(curve.before)), std[: ends[1]], 0, earlier=True)[0])
    for begin, middle, end in zip(ends[:-2] or [0], ends[1:-1] or [0], ends[2:] or ends[1:], strict=True):
        source = end if end == c.size else middle
        shift = np.maximum(carried(c[begin:end], s[begin:source], std[begin:end], middle - begin), LEAST)
        passes[begin // blocks].append(((source - begin) / blocks, shift))
    kinds: dict[tuple[bytes, ...], tuple[Parts, int]] = {}
    for parts in passes:
        key = tuple(shift.tobytes() for _, shift in parts)
        kinds[key] = tuple(parts), kinds.get(key, ((), 0))[1] + 1
    return certain, tuple(kinds.values())



def pass_law(parts: Parts, nodes: int, *, far: bool = False) -> RatioGrid:
    """The likelihood ratio of one pass: sum of probability times ratio over its intervals, and 1 for what is left."""
    def of_interval(shift: Array) -> RatioGrid:
        return replace(mixture_grid(shift, FAR_GRID_REACH), trimmed=FAR_TRIMMED) if far else mixture_grid(shift)

    ordered = sorted(parts, key=lambda part: float(part[1].max()))
    have, law = ordered[0][0], of_interval(ordered[0][1])
    for share, shift in ordered[1:]:
        law = mean_of_two(law, of_interval(shift), have / (have + share), max(1.0, 1 / (have + share)), nodes)
        have += share
    return law if have > 1 - 1e-12 else law.mixed(have)
