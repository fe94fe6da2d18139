"""Which intervals hide what a drawn record adds: a few choices of their lengths, compared, for Poisson batches.

Every choice is valid. Proof: docs/theorems/delayed-shifts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from lastiterate.analysis.restart import Followed, last_steps
from lastiterate.curves.allocated_shifts import AllocatedShifts
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.delayed_shifts import DelayedShifts, hidden
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.gdp import Gdp
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run

GROWTHS, WIDEST = (1.2, 1.6), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Choices of intervals, counted from the last step: how much longer each is, and the longest."""
FAILURES = (0.0, 1e-20, 1e-12, 1e-9, 1e-7, 1e-6)
"""Probabilities that a batch holds more or fewer records than usual."""
WORSE = 4.0
"""Choices that cost so many times as much as the best one, in squared mu, are left out."""
STARTS = 12
"""Steps from which a run in a bounded domain is followed."""
LONGEST = 4096
"""Steps of a run beyond which nothing is said: calibration would take minutes."""
MOST_KINDS = 64
"""Different steps that are distinguished: runs of neighbours count with the worst of each constant."""
REPRESENTATIVES = 12
"""Weights by which choices are ordered."""


def delayed(run: Run) -> Curve:
    """The best choices for several probabilities that batches are of unusual size."""
    rate = run.batching.inclusion_probability(run.n)
    assert rate is not None
    return best_of_failures(run, rate, 1, lambda steps: sized(choices(steps, rate), about))


def best_of_failures(run: Run, chance: float, every: int, best: Callable[[Followed], tuple[float, Curve]]) -> Curve:
    """``best`` of the last steps, and about its squared mu, for several probabilities that batches, which hold another
    record with probability ``chance``, are of unusual size; ``every``: steps of a pass that is followed as a whole."""
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None
    if sensitivity.value == 0 or run.steps > LONGEST:
        return Gdp(0.0 if sensitivity.value == 0 else math.inf)
    kept: list[tuple[float, Curve]] = []
    maps = None
    for failure in FAILURES:
        steps = last_steps(run, chance, failure, every)
        if maps is not None and np.array_equal(maps, steps.c):
            continue  # a larger failure buys nothing
        maps = steps.c
        size, curve = best(steps)
        if not kept or size < min(other for other, _ in kept) * (1 - 1e-3):
            kept.append((size, WithFailure(curve, failure) if failure else curve))
    least = min(size for size, _ in kept)
    curves = tuple(curve for size, curve in kept if size <= WORSE * least)
    return curves[0] if len(curves) == 1 else BestOf(curves)


Described = TypeVar("Described", DelayedShifts, AllocatedShifts)


def sized(options: list[Described], about: Callable[[Described], float]) -> tuple[float, Described]:
    """The one with the least of what it is about."""
    return min(((about(one), one) for one in options), key=lambda pair: pair[0])


def in_units_of_noise(curve: Described) -> tuple[float, Described]:
    """The largest noise, and the curve in its units, rounded: one and the same while a search scales all of the noise.
    What it orders is compared in this way, and not bounded."""
    top = max(curve.stds)
    if not 0 < top < math.inf:
        return 1.0, curve
    return top, replace(curve, mu=0.0, stds=tuple(float(f"{x / top:.12g}") for x in curve.stds))


def choices(steps: Followed, rate: float) -> list[DelayedShifts]:
    """Intervals of some lengths, from the first step that is followed or, in a bounded domain, from later ones."""
    total = steps.c.size
    starts = [(0, steps.before)]
    if math.isfinite(steps.diameter):
        later = total - np.unique(np.geomspace(2, max(2, total), STARTS).astype(int))
        starts += [(int(at), steps.diameter) for at in later if at > 0]
    options: list[DelayedShifts] = []
    for first, before in starts:
        like = kinds(steps.c[first:], steps.s[first:], np.sqrt(steps.v)[first:])
        for widest in (x for x in WIDEST if x == 1 or x < total - first):
            options += [DelayedShifts(rate, *like, growth, widest, before) for growth in GROWTHS[: 1 + (widest > 1)]]
    return options


Kinds = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def kinds(c: Array, s: Array, std: Array) -> Kinds:
    """Runs of equal steps: how many, the constants, the shifts, the noise."""
    different = np.flatnonzero((np.diff(c) != 0) | (np.diff(s) != 0) | (np.diff(std) != 0)) + 1
    parts = (np.split(np.arange(c.size), different) if different.size < MOST_KINDS else
             np.array_split(np.arange(c.size), MOST_KINDS))
    return (tuple(p.size for p in parts), tuple(float(c[p].max()) for p in parts),
            tuple(float(s[p].max()) for p in parts), tuple(float(std[p].min()) for p in parts))


def about(curve: DelayedShifts) -> float:
    """About the squared mu of all pairs; it orders choices and bounds nothing."""
    top, one = in_units_of_noise(curve)
    certain, weights, size, counts = _represented(one)
    products = weights[:, :, None] * weights[:, None, :]
    squares = np.log1p(curve.rate**2 * np.expm1(np.minimum(products / top / top, 500.0)))
    return min(certain / top, 1e9) ** 2 + float(counts @ np.einsum("pi,pij,pj->p", size, squares, size))


@lru_cache(maxsize=1024)
def _represented(curve: DelayedShifts) -> tuple[float, Array, Array, Array]:
    """mu of what is certain; of every pair some weights, for how many draws they stand, and how many are alike."""
    certain, pairs = hidden(curve)
    weights, size = np.zeros((len(pairs), REPRESENTATIVES)), np.zeros((len(pairs), REPRESENTATIVES))
    for place, (given, _) in enumerate(pairs):
        parts = np.array_split(np.sort(np.minimum(given, 1e100)), min(REPRESENTATIVES, given.size))
        weights[place, :len(parts)] = [part.mean() for part in parts]
        size[place, :len(parts)] = [part.size for part in parts]
    return certain, weights, size, np.array([float(count) for _, count in pairs])
