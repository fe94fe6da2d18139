"""Which intervals hide what a record adds in its secret blocks: a few choices, compared. Every choice is valid.

Proof: docs/theorems/delayed-shifts.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.analysis.delayed_draws import FAILURES, LONGEST, WORSE, kinds
from lastiterate.analysis.restart import Followed, last_steps
from lastiterate.curves.allocated_shifts import AllocatedShifts, hidden_passes
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run

GROWTHS, FEW = (1.3, 1.6, 2.0), (2, 4, 8)
"""Choices of intervals: how much longer each is, and the longest, besides half a pass and a pass."""


def delayed_blocks(run: Run) -> Curve:
    """The best choices for several probabilities that blocks are of unusual size."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    if sensitivity.value == 0 or run.steps > LONGEST:
        return Gdp(0.0 if sensitivity.value == 0 else math.inf)
    found: list[tuple[float, Curve]] = []
    maps = None
    for failure in FAILURES:
        steps = last_steps(run, 1 / run.blocks, failure, run.blocks)
        if maps is not None and np.array_equal(maps, steps.c):
            continue  # a larger failure buys nothing
        maps = steps.c
        size, curve = min(((about(one), one) for one in choices(steps, run.blocks)), key=lambda pair: pair[0])
        if not found or size < min(other for other, _ in found) * (1 - 1e-3):
            found.append((size, WithFailure(curve, failure) if failure else curve))
    least = min(size for size, _ in found)
    curves = tuple(curve for size, curve in found if size <= WORSE * least)
    return curves[0] if len(curves) == 1 else BestOf(curves)


def choices(steps: Followed, blocks: int) -> list[AllocatedShifts]:
    """Intervals of some lengths; in a bounded domain from the diameter on as well, a few passes before the end."""
    total, starts = steps.c.size, [(0, steps.before)]
    if math.isfinite(steps.diameter):
        whole = total // blocks * blocks
        starts += [(whole - k * blocks, steps.diameter) for k in (1, 2, 4, 8, 16, 32, 64) if whole > k * blocks]
    widest = sorted({one for one in (*FEW, -(-blocks // 2)) if one < blocks} | {blocks})
    return [AllocatedShifts(blocks, *kinds(steps.c[first:], steps.s[first:], np.sqrt(steps.v)[first:]), growth, most,
                            before) for first, before in starts for most in widest for growth in GROWTHS]


def about(curve: AllocatedShifts) -> float:
    """About the squared mu of all passes; it orders choices and bounds nothing."""
    certain, passes = hidden_passes(curve)
    total = min(certain, 1e9) ** 2
    for parts, count in passes:
        squares = 0.0
        for share, shift in parts:
            few = np.minimum(np.quantile(shift, np.linspace(0, 1, min(16, shift.size))), 1e6)
            squares += share**2 * float(np.expm1(np.minimum(np.outer(few, few), 500.0)).mean())
        total += count * math.log1p(squares)
    return total
