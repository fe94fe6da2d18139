"""Private selection: the best of a random number of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.curves.curve import UP, Curve, Grouped, check_delta, check_epsilon
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import first_within, smallest_true
from lastiterate.errors import InputError
from lastiterate.run.validation import Array

# How often a private selection repeats its candidate runs: random numbers whose distribution is
# public and whose value is not.  With f the probability generating function, selection is as
# private as the ratio of f' at two probabilities is small (docs/theorems/private-selection.md); the
# two families here are those of Papernot and Steinke 2022 (arXiv:2110.03620).

MOST_MEAN = 1e6
DIGITS = 90
"""Digits of the probabilities by which the number of runs is drawn: their error is below 1e-70, in
addition to 2^-bits."""


@final
@dataclass(frozen=True)
class NegativeBinomial:
    """The negative binomial distribution of ``shape`` > -1 without zero; at each number the weight
    is multiplied by about 1 - ``stop``. Shape 1 is geometric, 0 logarithmic."""

    shape: float
    stop: float

    def __post_init__(self) -> None:
        if not (-1 < self.shape <= 100 and 1e-7 <= self.stop <= 1 - 1e-7):
            raise InputError(
                "runs",
                "need a shape in (-1, 100] and a stopping probability inside (0, 1)",
                (self.shape, self.stop),
            )

    @property
    def mean(self) -> float:
        """Upper end of the mean number of runs; it is also f'(1)."""
        odds = (1 - self.stop) / self.stop
        if self.shape == 0:
            return odds / -math.log(self.stop) * UP
        return odds * self.shape / -math.expm1(self.shape * math.log(self.stop)) * UP

    @property
    def none(self) -> float:
        """Probability of no run at all."""
        return 0.0

    def draw(self, uniform: int, bits: int) -> int:
        """Return the number of runs at a uniform integer of so many ``bits`` (at least 128), by
        inversion."""
        with localcontext(Context(prec=DIGITS)):
            stop, shape = Decimal(self.stop), Decimal(self.shape)
            first = -1 / stop.ln() if shape == 0 else shape / ((-shape * stop.ln()).exp() - 1)
            k, weight, rest = 1, (1 - stop) * first, Decimal(uniform) / 2**bits
            while rest >= weight:
                rest -= weight
                weight *= (1 - stop) * (k + shape) / (k + 1)
                k += 1
                _check_end(k)
        return k

    @classmethod
    def with_mean(cls, mean: float, shape: float = 0.0) -> NegativeBinomial:
        """Return the distribution of this shape with (at most) the mean number of runs."""
        _check_mean(mean, 1.0)
        return cls(
            shape, smallest_true(lambda stop: cls(shape, stop).mean <= mean, 1e-7, 1 - 1e-7, 1e-12)
        )


@final
@dataclass(frozen=True)
class PoissonRuns:
    """A Poisson number of runs; with probability e^-``expected`` there is none, and nothing is
    released."""

    expected: float

    def __post_init__(self) -> None:
        _check_mean(self.expected, 1e-6)

    @property
    def mean(self) -> float:
        return self.expected

    @property
    def none(self) -> float:
        return math.exp(-self.expected) * UP

    def draw(self, uniform: int, bits: int) -> int:
        """Return the number of runs at a uniform integer of so many ``bits`` (at least 128), by
        inversion."""
        with localcontext(Context(prec=DIGITS)):
            expected = Decimal(self.expected)
            k, weight, rest = 0, (-expected).exp(), Decimal(uniform) / 2**bits
            while rest >= weight:
                rest -= weight
                k += 1
                weight *= expected / k
                _check_end(k)
        return k


Runs = NegativeBinomial | PoissonRuns


def _check_mean(mean: float, least: float) -> None:
    if not least < mean <= MOST_MEAN:
        raise InputError(
            "mean number of runs", f"must exceed {least:g} and be at most {MOST_MEAN:g}", mean
        )


def _check_end(k: int) -> None:
    """Beyond it the weights have run out of digits."""
    assert k < 10**8, "the uniform number is too close to 1"


# Curves of a private selection (proofs: docs/theorems/private-selection).

ORDERS = tuple(1 + 10 ** (i / 12 - 1.5) for i in range(50))
"""Renyi orders, from 1.03 to about 385."""
SHIFTS = 60
"""Epsilons at which the ratio of the numbers of runs is bounded; the best of them is kept."""
LARGEST_EPSILON = 1e4


@final
@dataclass(frozen=True)
class WorstOf(Curve):
    """One of several mechanisms, whichever: drawn with public probabilities, or the one that a
    record is part of."""

    curves: tuple[Curve, ...]

    def __post_init__(self) -> None:
        if not self.curves:
            raise InputError("curves", "must hold at least one", 0)

    def delta(self, epsilon: float) -> float:
        return max(curve.delta(epsilon) for curve in self.curves)

    def epsilon(self, delta: float) -> float:
        return max(curve.epsilon(delta) for curve in self.curves)

    def log_profile(self, epsilons: Array) -> Array:
        return np.max([curve.log_profile(epsilons) for curve in self.curves], axis=0)

    def rdp(self, alpha: float) -> float:
        return max(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> Curve:
        """Records of a group may be part of different mechanisms: each is charged with the worst of
        them."""
        first, *others = self.curves
        if isinstance(first, Gdp) and all(isinstance(curve, Gdp) for curve in others):
            return max(
                (curve for curve in self.curves if isinstance(curve, Gdp)), key=lambda one: one.mu
            ).group(size)
        return Grouped(self, size)

    def replace_one_curve(self) -> WorstOf:
        return WorstOf(tuple(curve.replace_one_curve() for curve in self.curves))

    def coarser(self) -> WorstOf:
        return WorstOf(tuple(curve.coarser() for curve in self.curves))


@final
@dataclass(frozen=True)
class Selected(Curve):
    """The best, by what it outputs, of a random number of independent runs of a mechanism with
    ``curve``.

    **Guarantee:** how many runs there were, and what the others gave, stays secret. delta(epsilon)
    is the smaller of the statement on profiles (for any curve) and the one on Renyi divergences
    (where the curve has them).
    """

    curve: Curve
    runs: Runs

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        shift = _shift(self.curve, self.runs)
        profile = 1.0
        if epsilon >= shift:
            profile = min(
                1.0, self.runs.mean * self.curve.delta((epsilon - shift) * (1 - 1e-12)) * UP
            )
        return min(profile, _table(self.curve, self.runs).delta(epsilon))

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        high = _table(self.curve, self.runs).epsilon(delta)
        if math.isinf(high):
            high = 1.0
            while self.delta(high) > delta:
                high *= 2
                if high > LARGEST_EPSILON:
                    return math.inf
        return first_within(self.delta, delta, 0.0, high, 1e-9)

    def rdp(self, alpha: float) -> float:
        return selection_rdp(self.curve, self.runs, alpha)

    def group(self, size: int) -> Curve:
        return Selected(
            self.curve.group(size), self.runs
        )  # a group of records is one record of another unit

    def coarser(self) -> Selected:
        return Selected(self.curve.coarser(), self.runs)


def selection_rdp(curve: Curve, runs: Runs, alpha: float) -> float:
    """Upper end of the Renyi divergence of order ``alpha`` (Papernot and Steinke 2022, Theorems 2
    and 6)."""
    if not alpha > 1:
        raise InputError("alpha", "must exceed 1", alpha)
    base = curve.rdp(alpha)
    if math.isinf(base):
        return math.inf
    match runs:
        case NegativeBinomial(shape, stop):
            bound = base + (1 + shape) * _inner(curve, stop) + math.log(runs.mean) / (alpha - 1)
            return bound * UP + 1e-12 / (alpha - 1)
        case PoissonRuns(expected):
            failure = curve.delta(math.log1p(1 / (alpha - 1)) * (1 - 1e-12))
            some = math.log(expected) + (alpha - 1) * (base + expected * failure)
            total = max(some, -expected) + math.log1p(math.exp(-abs(some + expected)))
            return max(0.0, total / (alpha - 1)) * UP + 1e-12 / (alpha - 1)


@lru_cache(maxsize=64)
def _inner(curve: Curve, stop: float) -> float:
    """The best order for the ratio of the numbers of runs; any order is valid."""
    return min((1 - 1 / order) * curve.rdp(order) - math.log(stop) / order for order in ORDERS)


@lru_cache(maxsize=64)
def _table(curve: Curve, runs: Runs) -> Rdp:
    points = [(order, selection_rdp(curve, runs, order)) for order in ORDERS]
    kept = [(order, value) for order, value in points if math.isfinite(value)]
    return Rdp(orders=tuple(order for order, _ in kept), values=tuple(value for _, value in kept))


@lru_cache(maxsize=64)
def _shift(curve: Curve, runs: Runs) -> float:
    """Upper end of log f'(x) / f'(x') for probabilities of one event under both data sets."""
    match runs:
        case PoissonRuns(expected):
            return expected * curve.delta(0.0) * UP
        case NegativeBinomial(shape, stop):
            top = min(20.0, curve.epsilon(min(0.5, stop)))
            points = [top * i / SHIFTS for i in range(2 * SHIFTS)] if math.isfinite(top) else [0.0]
            odds = (1 - stop) / stop
            least = min(
                point + math.log1p(odds * curve.delta(point) * math.exp(-point)) for point in points
            )
            return (1 + shape) * least * UP + 1e-14
