"""The losses whose exact laws are lower bounds: linear data terms of one record, and curvature that all steps share.

All other records' data terms have no gradient that distinguishes the neighbours. The record's gradient is constant: as
long as its Lipschitz constant and its sensitivity allow, which are taken as they are. An allowance for floating-point
sums makes upper bounds larger; no loss of the class attains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastiterate.run.adjacency import records_moved
from lastiterate.run.arrays import Array
from lastiterate.run.facts import known
from lastiterate.run.run import Run


@dataclass(frozen=True)
class RecordGradient:
    """Length of the record's gradient, and of the opposite one that its neighbour has in its place (0: none)."""

    ahead: float
    behind: float

    @property
    def opposed(self) -> float:
        return self.behind / self.ahead if self.ahead > 0 else 0.0


def largest_gradient(run: Run) -> RecordGradient:
    """The longest gradients that the run's constants allow; at least one of them must be known."""
    lipschitz, given = known(run.facts(), "lipschitz"), known(run.loss.facts(), "sensitivity")
    most = math.inf if lipschitz is None else lipschitz.value
    apart = min(records_moved(run.adjacency) * most, math.inf if given is None else given.value)
    assert apart < math.inf, "the sensitivity is known"
    ahead = min(apart, most)
    return RecordGradient(ahead, apart - ahead)


def curvature(run: Run) -> tuple[float, float]:
    """The ridge outside the records, and the curvature that strong convexity puts into their data terms.

    Clipping comes after the loss: what it does to the constants of a class does not make the class larger.
    """
    strong, ridge = known(run.loss.facts(), "strong"), run.loss.ridge
    return ridge, max(0.0, strong.value - ridge) if strong is not None else 0.0


def unequal_batches(run: Run) -> bool:
    """Whether steps can differ in how many records they read, so that curvature in the records differs as well."""
    return run.shares != (1.0, 1.0)


def power(sign: int, rate: float, count: NDArray[np.int64]) -> Array:
    """(sign e^rate)^count."""
    size = np.where(count == 0, 1.0, np.exp(rate * count))
    return size if sign > 0 else np.where(count % 2 == 0, size, -size)


def geometric(sign: int, rate: float, count: NDArray[np.int64]) -> Array:
    """1 + x + ... + x^(count - 1), x = sign e^rate."""
    if sign < 0:  # nothing cancels
        return (1 - power(sign, rate, count)) / (1 + math.exp(rate))
    if rate == 0:
        return count.astype(np.float64)
    return np.where(count == 0, 0.0, np.expm1(rate * count) / math.expm1(rate))


def signed_log(factor_from_one: float) -> tuple[int, float]:
    """Sign and logarithm of 1 - x, well conditioned next to x = 0."""
    if factor_from_one < 1:
        return 1, math.log1p(-factor_from_one)
    with np.errstate(divide="ignore"):
        return -1, float(np.log(factor_from_one - 1))
