"""Batches of a fixed size whose draws are published: the mean over the draws of what later noise hides.

Given which steps draw the record the last iterate is mu-Gaussian-DP, mu^2 = sum over intervals of S_{i-1}^2 / X_i
(docs/theorems/delayed-shifts). The draws are independent from step to step, so that mu^2 is a sum of independent
terms, whose law is rounded up on a lattice; delta is at most the mean of delta_mu.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from lastiterate.analysis.delayed_draws import LONGEST, choices
from lastiterate.analysis.restart import last_steps
from lastiterate.curves.curve import BestOf, Curve
from lastiterate.curves.delayed_shifts import DelayedShifts, hidden
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.curves.shift_mixtures import shift_law
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run

PLACES, ATOMS, TRIED = 2**13, 400, 3
"""Places of the lattice of mu^2, atoms of the mixture, choices of intervals that are evaluated."""
BEYOND, EXPONENTS = 1e-12, 65
"""Probability of the mu^2 beyond the lattice, about, and exponents that are tried for it."""
TAIL = 1e-18
"""Probability of the largest mu^2, which counts as that of a record that every step draws."""
UP = 1 + 1e-9
"""Above the rounding of a sum of squares."""
UNIT = 16.0
"""The largest noise over the largest shift for which laws are computed: shifts that are faint there count as certain,
which costs less than a place of the lattice each."""
CLOSE = 2.0
"""Choices that cost so many times as much as the best one, in squared mu, are not evaluated."""
USELESS = 1e-6, 300.0
"""A mu with known draws below the first, and a mu above the second, are charged as if all draws were known."""


def averaged(run: Run) -> Curve:
    """The best of a few choices of intervals for a run whose steps draw ``run.divisor`` records each."""
    rate, sensitivity = run.batching.inclusion_probability(run.n), known(run.facts(), "sensitivity")
    assert rate is not None and sensitivity is not None
    if sensitivity.value == 0 or run.steps > LONGEST:
        return Gdp(0.0 if sensitivity.value == 0 else math.inf)
    steps = last_steps(run, rate, 0.0, 1, ((run.divisor - 1) / run.divisor, 1.0))
    loud, far = float(np.sqrt(steps.v).max()), float(steps.s.max())
    if loud == 0:
        return Gdp(math.inf)
    # mu falls in proportion to noise: all that takes time is one and the same while a search scales all of the noise
    noise, scale = UNIT * far, UNIT * far / loud * UP
    ordered = _ordered(tuple(replace(one, stds=tuple(_rounded_down(x / loud) * noise for x in one.stds))
                             for one in choices(steps, rate)))
    least, best = ordered[0]
    if not least < math.inf:
        return Gdp(math.inf)
    sure = best.known.mu * scale * UP
    if sure < USELESS[0] or math.sqrt(least) * scale > USELESS[1]:
        return Gdp(sure)
    return BestOf(tuple(_scaled(mean_over_draws(one), scale) for size, one in ordered[:TRIED] if size <= CLOSE * least))


def _rounded_down(share: float) -> float:
    return float(f"{share * (1 - 1e-11):.12g}")


def _scaled(curve: GdpMixture, scale: float) -> GdpMixture:
    return replace(curve, mus=tuple(mu * scale * UP for mu in curve.mus))


@lru_cache(maxsize=64)
def _ordered(curves: tuple[DelayedShifts, ...]) -> list[tuple[float, DelayedShifts]]:
    return sorted(((_about(one), one) for one in curves), key=lambda pair: pair[0])


def _about(curve: DelayedShifts) -> float:
    """The mean of mu^2 and three of its standard deviations, about; it orders choices and bounds nothing."""
    certain, pairs = hidden(curve)
    mean, variance = certain * certain, 0.0  # floats' own powers raise where they overflow
    for weights, count in pairs:
        expected, spread = curve.rate * float(weights.sum()), curve.rate * (1 - curve.rate) * float((weights**2).sum())
        mean += count * (expected * expected + spread)
        variance += count * (4 * expected * expected * spread + 2 * spread * spread)
    return mean + 3 * math.sqrt(variance) if math.isfinite(mean) and math.isfinite(variance) else math.inf


@lru_cache(maxsize=64)
def mean_over_draws(curve: DelayedShifts) -> GdpMixture:
    """The mixture over the draws that ``curve`` keeps secret; what the lattice misses counts as drawn at every step."""
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
        total, more = _added(total, one, count)
        lost += more
    starts = np.append(0, np.arange(1, total.size, -(-total.size // ATOMS)))  # no draw at all stands alone
    highest = np.append(starts[1:], total.size) - 1.0
    weights: Array = np.add.reduceat(total, starts)
    rest = max(0.0, 1 - float(weights.sum()), lost)  # what is missing from 1
    mus: Array = np.sqrt(highest * unit + certain**2) * UP
    largest = max(float(mus[-1]), curve.known.mu)  # no draws give a larger one
    return GdpMixture((*(weights * ((1 - rest) / float(weights.sum()))).tolist(), rest), (*mus.tolist(), largest))


def _reach(laws: list[tuple[Array, Array, float, int]]) -> float:
    """What mu^2 exceeds with a probability of at most ``BEYOND``, by Chernoff's inequality at several exponents."""
    squares = [(np.log(chances), values * values, count) for chances, values, _, count in laws]
    top = max((float(square[-1]) for _, square, _ in squares), default=0.0)
    if not 0 < top < math.inf:
        return 0.0
    exponents = np.geomspace(1e-4, 1e4, EXPONENTS) / top
    total = sum((count * np.logaddexp.reduce(logs + np.multiply.outer(exponents, square), axis=1)
                 for logs, square, count in squares), np.full(EXPONENTS, -math.log(BEYOND)))
    return float((total / exponents).min())


def _added(total: Array, one: Array, count: int) -> tuple[Array, float]:
    """``count`` draws of ``one`` added to ``total``, and the mass that is cut off above."""
    lost = 0.0
    while count:
        if count & 1:
            total, cut = _cut(np.convolve(total, one))
            lost += cut
        count >>= 1
        if count:
            one, cut = _cut(np.convolve(one, one))
            lost += 2 * cut * count
    return total, lost


def _cut(law: Array) -> tuple[Array, float]:
    above = np.cumsum(law[::-1])[::-1]
    last = min(law.size, 2 * PLACES, max(1, int(np.searchsorted(-above, -TAIL))))
    return law[:last], float(law[last:].sum())
