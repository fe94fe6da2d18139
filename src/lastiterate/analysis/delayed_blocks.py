"""Which intervals hide what a record adds in its secret blocks: a few choices, compared. Every choice is valid.

Proof: docs/theorems/delayed-shifts.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.analysis.delayed_draws import best_of_failures, in_units_of_noise, kinds, sized
from lastiterate.analysis.restart import Followed
from lastiterate.curves.allocated_shifts import AllocatedShifts, hidden_passes
from lastiterate.curves.curve import Curve
from lastiterate.run.arrays import Array
from lastiterate.run.run import Run

GROWTHS, FEW = (1.3, 1.6, 2.0), (2, 4, 8)
"""Choices of intervals: how much longer each is, and the longest, besides half a pass and a pass."""
BACK = (1, 2, 4, 8, 16, 32, 64)
"""Passes before the end from which a run in a bounded domain is followed."""
FEW_SHIFTS = 12
"""Shifts of an interval by which choices are ordered."""


def delayed_blocks(run: Run) -> Curve:
    """The best choices for several probabilities that blocks are of unusual size."""
    return best_of_failures(run, 1 / run.blocks, run.blocks, lambda steps: sized(choices(steps, run.blocks), about))


def choices(steps: Followed, blocks: int) -> list[AllocatedShifts]:
    """Intervals of some lengths; in a bounded domain from the diameter on as well, a few passes before the end."""
    total, starts = steps.c.size, [(0, steps.before)]
    if math.isfinite(steps.diameter):
        whole = total // blocks * blocks
        starts += [(whole - k * blocks, steps.diameter) for k in BACK if whole > k * blocks]
    widest = sorted({one for one in (*FEW, -(-blocks // 2)) if one < blocks} | {blocks})
    return [AllocatedShifts(blocks, *kinds(steps.c[first:], steps.s[first:], np.sqrt(steps.v)[first:]), growth, most,
                            before) for first, before in starts for most in widest for growth in GROWTHS]


def about(curve: AllocatedShifts) -> float:
    """About the squared mu of all passes; it orders choices and bounds nothing."""
    top, one = in_units_of_noise(curve)
    certain, passes = _represented(one)
    total = min(certain / top, 1e9) ** 2
    for shares, shifts, count in passes:
        squares = np.expm1(np.minimum(shifts[:, :, None] * shifts[:, None, :] / top / top, 500.0)).mean(axis=(1, 2))
        total += count * math.log1p(float(shares**2 @ squares))
    return total


@lru_cache(maxsize=1024)
def _represented(curve: AllocatedShifts) -> tuple[float, tuple[tuple[Array, Array, int], ...]]:
    """mu of the distance before; of every kind of pass the shares of its intervals, some shifts of each, and how many
    passes are alike."""
    certain, passes = hidden_passes(curve)
    places = np.linspace(0, 1, FEW_SHIFTS)
    return certain, tuple((np.array([share for share, _ in parts]),
                           np.array([np.minimum(np.quantile(shift, places), 1e100) for _, shift in parts]), count)
                          for parts, count in passes)
