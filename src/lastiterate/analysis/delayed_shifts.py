"""Intervals of later steps whose noise hides what a record adds: blocks, Poisson and fixed-size
batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from lastiterate.analysis.restarted_sampling import LastSteps, last_steps
from lastiterate.curves.curve import BestOf, Curve, WithFailure
from lastiterate.curves.delayed_shifts import (
    AllocatedShifts,
    DelayedShifts,
    hidden,
    hidden_passes,
    shift_law,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

# Poisson batches: intervals of a few lengths, compared. Every choice is valid.

DRAW_GROWTHS, WIDEST = (1.2, 1.6), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
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
"""Different steps that are distinguished: runs of neighbours count with the worst of each constant.
"""
REPRESENTATIVES = 12
"""Weights by which draw_intervals are ordered."""


def search_draw_intervals(run: Run) -> Curve:
    """The best draw_intervals for several probabilities that batches are of unusual size."""
    rate = run.sampling_rate
    return best_of_failures(
        run, rate, 1, lambda steps: choose_least(draw_intervals(steps, rate), draw_interval_counts)
    )


def best_of_failures(
    run: Run, chance: float, every: int, best: Callable[[LastSteps], tuple[float, Curve]]
) -> Curve:
    """``best`` of the last steps, and draw_interval_counts its squared mu, for several
    probabilities that batches, which hold another record with probability ``chance``, are of
    unusual size; ``every``: steps of a pass that is followed as a whole."""
    sensitivity = require_fact(run.facts(), "sensitivity")
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


def choose_least(
    options: list[Described], draw_interval_counts: Callable[[Described], float]
) -> tuple[float, Described]:
    """The one with the least of what it is draw_interval_counts."""
    return min(((draw_interval_counts(one), one) for one in options), key=lambda pair: pair[0])


def scale_to_noise(curve: Described) -> tuple[float, Described]:
    """The largest noise, and the curve in its units, rounded: one and the same while a search
    scales all of the noise. What it orders is compared in this way, and not bounded."""
    top = max(curve.stds)
    if not 0 < top < math.inf:
        return 1.0, curve
    return top, replace(curve, mu=0.0, stds=tuple(float(f"{x / top:.12g}") for x in curve.stds))


def draw_intervals(steps: LastSteps, rate: float) -> list[DelayedShifts]:
    """Intervals of some lengths, from the first step that is followed or, in a bounded domain, from
    later ones."""
    total = steps.c.size
    starts = [(0, steps.before)]
    if math.isfinite(steps.diameter):
        later = total - np.unique(np.geomspace(2, max(2, total), STARTS).astype(int))
        starts += [(int(at), steps.diameter) for at in later if at > 0]
    options: list[DelayedShifts] = []
    for first, before in starts:
        like = kinds(steps.c[first:], steps.s[first:], np.sqrt(steps.v)[first:])
        for widest in (x for x in WIDEST if x == 1 or x < total - first):
            options += [
                DelayedShifts(rate, *like, growth, widest, before)
                for growth in DRAW_GROWTHS[: 1 + (widest > 1)]
            ]
    return options


Kinds = tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]


def kinds(c: Array, s: Array, std: Array) -> Kinds:
    """Runs of equal steps: how many, the constants, the shifts, the noise."""
    different = np.flatnonzero((np.diff(c) != 0) | (np.diff(s) != 0) | (np.diff(std) != 0)) + 1
    parts = (
        np.split(np.arange(c.size), different)
        if different.size < MOST_KINDS
        else np.array_split(np.arange(c.size), MOST_KINDS)
    )
    return (
        tuple(p.size for p in parts),
        tuple(float(c[p].max()) for p in parts),
        tuple(float(s[p].max()) for p in parts),
        tuple(float(std[p].min()) for p in parts),
    )


def draw_interval_counts(curve: DelayedShifts) -> float:
    """About the squared mu of all pairs; it orders draw_intervals and bounds nothing."""
    top, one = scale_to_noise(curve)
    certain, weights, size, counts = _draw_shifts_representable(one)
    products = weights[:, :, None] * weights[:, None, :]
    squares = np.log1p(curve.rate**2 * np.expm1(np.minimum(products / top / top, 500.0)))
    return min(certain / top, 1e9) ** 2 + float(
        counts @ np.einsum("pi,pij,pj->p", size, squares, size)
    )


@lru_cache(maxsize=1024)
def _draw_shifts_representable(curve: DelayedShifts) -> tuple[float, Array, Array, Array]:
    """mu of what is certain; of every pair some weights, for how many draws they stand, and how
    many are alike."""
    certain, pairs = hidden(curve)
    weights, size = np.zeros((len(pairs), REPRESENTATIVES)), np.zeros((len(pairs), REPRESENTATIVES))
    for place, (given, _) in enumerate(pairs):
        parts = np.array_split(np.sort(np.minimum(given, 1e100)), min(REPRESENTATIVES, given.size))
        weights[place, : len(parts)] = [part.mean() for part in parts]
        size[place, : len(parts)] = [part.size for part in parts]
    return certain, weights, size, np.array([float(count) for _, count in pairs])


# Secret blocks: intervals of a few lengths, compared. Every choice is valid.

BLOCK_GROWTHS, FEW = (1.3, 1.6, 2.0), (2, 4, 8)
"""Choices of intervals: how much longer each is, and the longest, besides half a pass and a pass.
"""
BACK = (1, 2, 4, 8, 16, 32, 64)
"""Passes before the end from which a run in a bounded domain is followed."""
FEW_SHIFTS = 12
"""Shifts of an interval by which block_intervals are ordered."""


def search_block_intervals(run: Run) -> Curve:
    """The best block_intervals for several probabilities that blocks are of unusual size."""
    return best_of_failures(
        run,
        1 / run.blocks,
        run.blocks,
        lambda steps: choose_least(block_intervals(steps, run.blocks), block_interval_counts),
    )


def block_intervals(steps: LastSteps, blocks: int) -> list[AllocatedShifts]:
    """Intervals of some lengths; in a bounded domain from the diameter on as well, a few passes
    before the end."""
    total, starts = steps.c.size, [(0, steps.before)]
    if math.isfinite(steps.diameter):
        whole = total // blocks * blocks
        starts += [(whole - k * blocks, steps.diameter) for k in BACK if whole > k * blocks]
    widest = sorted({one for one in (*FEW, -(-blocks // 2)) if one < blocks} | {blocks})
    return [
        AllocatedShifts(
            blocks,
            *kinds(steps.c[first:], steps.s[first:], np.sqrt(steps.v)[first:]),
            growth,
            most,
            before,
        )
        for first, before in starts
        for most in widest
        for growth in BLOCK_GROWTHS
    ]


def block_interval_counts(curve: AllocatedShifts) -> float:
    """About the squared mu of all passes; it orders block_intervals and bounds nothing."""
    top, one = scale_to_noise(curve)
    certain, passes = _block_shifts_representable(one)
    total = min(certain / top, 1e9) ** 2
    for shares, shifts, count in passes:
        squares = np.expm1(
            np.minimum(shifts[:, :, None] * shifts[:, None, :] / top / top, 500.0)
        ).mean(axis=(1, 2))
        total += count * math.log1p(float(shares**2 @ squares))
    return total


@lru_cache(maxsize=1024)
def _block_shifts_representable(
    curve: AllocatedShifts,
) -> tuple[float, tuple[tuple[Array, Array, int], ...]]:
    """mu of the distance before; of every kind of pass the shares of its intervals, some shifts of
    each, and how many passes are alike."""
    certain, passes = hidden_passes(curve)
    places = np.linspace(0, 1, FEW_SHIFTS)
    return certain, tuple(
        (
            np.array([share for share, _ in parts]),
            np.array([np.quantile(np.minimum(shift, 1e100), places) for _, shift in parts]),
            count,
        )
        for parts, count in passes
    )


# Batches of a fixed size whose draws are published: the mean over the draws of what later noise
# hides.  Given which steps draw the record the last iterate is mu-Gaussian-DP, mu^2 = sum over
# intervals of S_{i-1}^2 / X_i (docs/theorems/delayed-shifts). The draws are independent from step
# to step, so that mu^2 is a sum of independent terms, whose distribution is rounded up on a
# lattice; delta is at most the mean of delta_mu.

PLACES, ATOMS, TRIED = 2**13, 400, 3
"""Points of the lattice of mu^2, atoms of the mixture, and choices of intervals that are
evaluated."""
BEYOND, EXPONENTS = 1e-12, 65
"""Probability of the mu^2 beyond the lattice, about, and exponents that are tried for it."""
TAIL = 1e-18
"""Probability of the largest mu^2, which counts as that of a record that every step draws."""
UP = 1 + 1e-9
"""Above the rounding of a sum of squares."""
UNIT = 16.0
"""The largest noise over the largest shift for which distributions are computed: shifts that are
faint there count as certain, which costs less than a point of the lattice each."""
CLOSE = 2.0
"""Choices that cost so many times as much as the best one, in squared mu, are not evaluated."""
USELESS = 1e-6, 300.0
"""A mu with known draws below the first, and a mu above the second, are charged as if all draws
were known."""


def search_averages(run: Run) -> Curve:
    """The best of a few draw_intervals of intervals for a run whose steps draw ``run.divisor``
    records each."""
    rate, sensitivity = run.sampling_rate, require_fact(run.facts(), "sensitivity")
    if sensitivity.value == 0 or run.steps > LONGEST:
        return Gdp(0.0 if sensitivity.value == 0 else math.inf)
    steps = last_steps(run, rate, 0.0, 1, ((run.divisor - 1) / run.divisor, 1.0))
    loud, far = float(np.sqrt(steps.v).max()), float(steps.s.max())
    if loud == 0:
        return Gdp(math.inf)
    # mu falls in proportion to noise: all that takes time is one and the same while a search scales
    # all of the noise
    noise, scale = UNIT * far, UNIT * far / loud * UP
    ordered = _sort_curves(
        tuple(
            replace(one, stds=tuple(_round_down(x / loud) * noise for x in one.stds))
            for one in draw_intervals(steps, rate)
        )
    )
    least, best = ordered[0]
    if not least < math.inf:
        return Gdp(math.inf)
    sure = best.known.mu * scale * UP
    if sure < USELESS[0] or math.sqrt(least) * scale > USELESS[1]:
        return Gdp(sure)
    return BestOf(
        tuple(
            _scale_mixture(mean_over_draws(one), scale)
            for size, one in ordered[:TRIED]
            if size <= CLOSE * least
        )
    )


def _round_down(share: float) -> float:
    return float(f"{share * (1 - 1e-11):.12g}")


def _scale_mixture(curve: GdpMixture, scale: float) -> GdpMixture:
    return replace(curve, mus=tuple(mu * scale * UP for mu in curve.mus))


@lru_cache(maxsize=64)
def _sort_curves(curves: tuple[DelayedShifts, ...]) -> list[tuple[float, DelayedShifts]]:
    return sorted(((_approximate(one), one) for one in curves), key=lambda pair: pair[0])


def _approximate(curve: DelayedShifts) -> float:
    """The mean of mu^2 and three of its standard deviations, about; it orders draw_intervals and
    bounds nothing."""
    certain, pairs = hidden(curve)
    mean, variance = certain * certain, 0.0  # floats' own powers raise where they overflow
    for weights, count in pairs:
        with np.errstate(over="ignore"):
            total, squares = float(weights.sum()), float((weights**2).sum())
        expected, spread = curve.rate * total, curve.rate * (1 - curve.rate) * squares
        mean += count * (expected * expected + spread)
        variance += count * (4 * expected * expected * spread + 2 * spread * spread)
    return (
        mean + 3 * math.sqrt(variance)
        if math.isfinite(mean) and math.isfinite(variance)
        else math.inf
    )


@lru_cache(maxsize=64)
def mean_over_draws(curve: DelayedShifts) -> GdpMixture:
    """The mixture over the draws that ``curve`` keeps secret; what the lattice misses counts as
    drawn at every step."""
    certain, pairs = hidden(curve)
    laws = [(*shift_law(weights, curve.rate), count) for weights, count in pairs]
    unit = max(_reach(laws), 1e-12) / PLACES
    total, lost = np.ones(1), 0.0
    for chances, values, missing, count in laws:
        places = np.ceil(values * values * UP / unit).astype(np.int64)
        kept = places <= PLACES
        lost += count * (missing + float(chances[~kept].sum()))
        one = np.zeros(int(places[kept].max(initial=0)) + 1)
        np.add.at(one, places[kept], chances[kept])
        total, more = _add_draws(total, one, count)
        lost += more
    starts = np.append(
        0, np.arange(1, total.size, -(-total.size // ATOMS))
    )  # no draw at all stands alone
    highest = np.append(starts[1:], total.size) - 1.0
    weights: Array = np.add.reduceat(total, starts)
    rest = max(0.0, 1 - float(weights.sum()), lost)  # what is missing from 1
    mus: Array = np.sqrt(highest * unit + certain**2) * UP
    largest = max(float(mus[-1]), curve.known.mu)  # no draws give a larger one
    return GdpMixture(
        (*(weights * ((1 - rest) / float(weights.sum()))).tolist(), rest), (*mus.tolist(), largest)
    )


def _reach(laws: list[tuple[Array, Array, float, int]]) -> float:
    """Return a bound that mu^2 exceeds with a probability of at most ``BEYOND``, by Chernoff's
    inequality at several exponents."""
    squares = [(np.log(chances), values * values, count) for chances, values, _, count in laws]
    top = max((float(square[-1]) for _, square, _ in squares), default=0.0)
    if not 0 < top < math.inf:
        return 0.0
    exponents = np.geomspace(1e-4, 1e4, EXPONENTS) / top
    total = sum(
        (
            count * np.logaddexp.reduce(logs + np.multiply.outer(exponents, square), axis=1)
            for logs, square, count in squares
        ),
        np.full(EXPONENTS, -math.log(BEYOND)),
    )
    return float((total / exponents).min())


def _add_draws(total: Array, one: Array, count: int) -> tuple[Array, float]:
    """``count`` draws of ``one`` added to ``total``, and the mass that is cut off above."""
    lost = 0.0
    while count:
        if count & 1:
            total, cut = _drop_tail(np.convolve(total, one))
            lost += cut
        count >>= 1
        if count:
            one, cut = _drop_tail(np.convolve(one, one))
            lost += 2 * cut * count
    return total, lost


def _drop_tail(law: Array) -> tuple[Array, float]:
    above = np.cumsum(law[::-1])[::-1]
    last = min(law.size, 2 * PLACES, max(1, int(np.searchsorted(-above, -TAIL))))
    return law[:last], float(law[last:].sum())
