"""How often a private selection repeats its candidate runs: random numbers whose law is public and whose value is not.

With f the probability generating function, selection is as private as the ratio of f' at two probabilities is small
(docs/theorems/private-selection.md); the two families here are those of Papernot and Steinke 2022 (arXiv:2110.03620).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import final

from lastiterate.curves.curve import UP
from lastiterate.curves.roots import smallest_true
from lastiterate.errors import InputError

MOST_MEAN = 1e6
DIGITS = 90
"""Of the weights that a number of runs is drawn by: what they miss of the law is below 1e-70, beside 2^-bits."""


@final
@dataclass(frozen=True)
class NegativeBinomial:
    """The negative binomial law of ``shape`` > -1 without zero; at each number the weight is multiplied by about
    1 - ``stop``. Shape 1 is geometric, 0 logarithmic."""

    shape: float
    stop: float

    def __post_init__(self) -> None:
        if not (-1 < self.shape <= 100 and 1e-7 <= self.stop <= 1 - 1e-7):
            raise InputError("runs", "need a shape in (-1, 100] and a stopping probability inside (0, 1)",
                             (self.shape, self.stop))

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
        """The number of runs at a uniform whole number of so many ``bits`` (at least 128), by inversion."""
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
        """The law of this shape with (at most) the mean number of runs."""
        _check_mean(mean, 1.0)
        return cls(shape, smallest_true(lambda stop: cls(shape, stop).mean <= mean, 1e-7, 1 - 1e-7, 1e-12))


@final
@dataclass(frozen=True)
class PoissonRuns:
    """A Poisson number of runs; with probability e^-``expected`` there is none, and nothing is released."""

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
        """The number of runs at a uniform whole number of so many ``bits`` (at least 128), by inversion."""
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
        raise InputError("mean number of runs", f"must exceed {least:g} and be at most {MOST_MEAN:g}", mean)


def _check_end(k: int) -> None:
    """Beyond it the weights have run out of digits."""
    assert k < 10**8, "the uniform number is too close to 1"
