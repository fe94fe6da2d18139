"""Losses whose exact distributions are lower bounds, and sums of independent draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import NDArray

from lastiterate.run.adjacency import records_moved
from lastiterate.run.facts import find_fact
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

# Distributions of sums of independent draws, rounded down: how far a record moves the last iterate
# of linear losses.  A distribution on a lattice represents any random variable that is never
# smaller: values are rounded down, values above the cut move to the cut, and mass that is cut off
# below or lost to rounding is only known to lie between ``least`` and ``most``. Such distributions
# may be added and scaled, and every half line to the right is at least as likely as they say.

MOST = 2**14
"""Points of a lattice; where sums need more, its spacing grows."""
CUT = 1e-16
"""Mass that is cut off on either side of a distribution."""
GUARD = 1e-9
"""Part of a spacing by which positions are lowered before they are rounded down, for their own
rounding."""


@final
@dataclass(frozen=True)
class GridDistribution:
    """Probability ``masses[k]`` at ``low + k spacing``, and ``rest`` somewhere between ``least``
    and ``most``."""

    low: float
    spacing: float
    masses: Array
    rest: float
    least: float
    most: float

    @property
    def width(self) -> float:
        return self.spacing * (self.masses.size - 1)

    def points(self) -> tuple[Array, Array]:
        """Probabilities, which sum to 1, and positions; the rest at ``least``."""
        masses = np.append(self.rest, self.masses)
        return masses / math.fsum(masses), np.append(
            self.least, self.low + self.spacing * np.arange(self.masses.size)
        )


def law_of_values(values: Array, weights: Array) -> GridDistribution:
    """Return the distribution of one draw: ``weights``, which sum to 1, of ``values``."""
    least, most = float(values.min()), float(values.max())
    if least == most:
        return GridDistribution(least, 0.0, np.array([1.0]), 0.0, least, most)
    between = (values > least) & (values < most)
    points = MOST // 4 if between.any() else 2
    spacing = (most - least) / (points - 1)
    place = np.where(values == most, points - 1, np.floor((values - least) / spacing - GUARD))
    masses = np.asarray(
        np.bincount(np.maximum(place, 0).astype(np.int64), weights=weights, minlength=points), float
    )
    return _sound(GridDistribution(least, spacing, masses, 0.0, least, most))


def scale_law(law: GridDistribution, factor: float) -> GridDistribution:
    """Return the distribution of ``factor`` >= 0 times the variable."""
    if law.spacing * factor == 0:
        lowest = min(law.least, law.low) * factor
        return GridDistribution(
            lowest, 0.0, np.array([1.0]), 0.0, lowest, max(law.most * factor, lowest)
        )
    return replace(
        law,
        low=law.low * factor,
        spacing=law.spacing * factor,
        least=law.least * factor,
        most=law.most * factor,
    )


def add(one: GridDistribution, two: GridDistribution) -> GridDistribution:
    """Return the distribution of the sum of two independent variables."""
    if one.spacing == 0 or two.spacing == 0:
        point, other = (one, two) if one.spacing == 0 else (two, one)
        rest = point.rest + other.rest
        shifted = replace(
            other,
            low=other.low + point.low,
            masses=other.masses * float(point.masses[0]),
            rest=rest,
            least=other.least + point.least,
            most=other.most + point.most,
        )
        return _sound(shifted)
    size = one.masses.size + two.masses.size - 1
    if one.spacing != two.spacing or size > MOST:
        spacing = (one.width + two.width) / (MOST - 3)
        one, two = _coarser(one, spacing), _coarser(two, spacing)
    total = GridDistribution(
        one.low + two.low,
        one.spacing,
        _convolve(one.masses, two.masses),
        0.0,
        one.least + two.least,
        one.most + two.most,
    )
    return _sound(_drop_tails(total))


def _coarser(law: GridDistribution, spacing: float) -> GridDistribution:
    """Round the distribution down to multiples of another spacing above its lowest point."""
    if law.spacing == spacing:
        return law
    places = np.floor(np.arange(law.masses.size) * (law.spacing / spacing) - GUARD)
    masses = np.asarray(
        np.bincount(np.maximum(places, 0).astype(np.int64), weights=law.masses), float
    )
    return replace(law, spacing=spacing, masses=masses)


def _convolve(one: Array, two: Array) -> Array:
    """The convolution, rounded down: entries that come from transforms of size N are good to 8 u
    log2(N) |one| |two|, sums of at most k products to 2 k u relatively (u = 2^-53)."""
    if min(one.size, two.size) <= 32:
        return np.convolve(one, two) * (1 - 2.0**-52 * min(one.size, two.size))
    size = one.size + two.size - 1
    length = 2 ** math.ceil(math.log2(size))
    product = np.fft.irfft(np.fft.rfft(one, length) * np.fft.rfft(two, length), length)
    error = 8 * 2.0**-53 * math.log2(length) * float(np.linalg.norm(one) * np.linalg.norm(two))
    return np.maximum(product[:size] - error, 0.0)


def _drop_tails(law: GridDistribution) -> GridDistribution:
    """Without tails: the upper one moves down to the cut, the lower one to the rest."""
    total = np.cumsum(law.masses)
    first = int(np.searchsorted(total, CUT))
    above = np.cumsum(law.masses[::-1])
    last = law.masses.size - int(np.searchsorted(above, CUT))
    first, last = min(first, law.masses.size - 2), max(last, first + 2)
    kept = law.masses[first:last].copy()
    kept[-1] += law.masses[last:].sum()
    return replace(law, low=law.low + first * law.spacing, masses=kept)


def _sound(law: GridDistribution) -> GridDistribution:
    """Set ``rest`` to the mass that is missing from 1."""
    return replace(law, rest=max(0.0, 1 - float(law.masses.sum())))


Draw = Callable[[float], GridDistribution]
"""The distribution of one draw times a sign, rounded down."""


def repeat_draw(draw: Draw, factor: float, times: int) -> GridDistribution:
    """Return the distribution of draw_0 + factor draw_1 + ... + factor^(times - 1) draw_(times -
    1), by doubling."""
    if factor >= 0:
        return _repeat_by_doubling(draw(1.0), factor, times)
    if times == 1:
        return draw(1.0)
    pairs = _repeat_by_doubling(
        add(draw(1.0), scale_law(draw(-1.0), -factor)), factor * factor, times // 2
    )
    return add(pairs, scale_law(draw(1.0), factor ** (times - 1))) if times % 2 else pairs


def _repeat_by_doubling(one: GridDistribution, factor: float, times: int) -> GridDistribution:
    total, count = one, 1
    for bit in bin(times)[3:]:
        total, count = add(total, scale_law(total, factor**count)), 2 * count
        if bit == "1":
            total, count = add(one, scale_law(total, factor)), count + 1
    return total


def tree(laws: list[GridDistribution]) -> GridDistribution:
    """Return the distribution of a sum of independent variables, added in pairs."""
    while len(laws) > 1:
        laws = [
            add(*laws[k : k + 2]) if k + 1 < len(laws) else laws[k] for k in range(0, len(laws), 2)
        ]
    return laws[0]


# The losses whose exact distributions are lower bounds: linear data terms of one record, and
# curvature that all steps share.  All other records' data terms have no gradient that distinguishes
# the neighbours. The record's gradient is constant: as long as its Lipschitz constant and its
# sensitivity allow, which are taken as they are. An allowance for floating-point sums makes upper
# bounds larger; no loss of the class attains it.


@dataclass(frozen=True)
class RecordGradient:
    """Norm of the record's gradient, and of the opposite one that its neighbour has instead (0:
    none)."""

    ahead: float
    behind: float

    @property
    def opposed(self) -> float:
        return self.behind / self.ahead if self.ahead > 0 else 0.0


def largest_gradient(run: Run) -> RecordGradient:
    """The longest gradients that the run's constants allow; at least one of them must be known."""
    lipschitz, given = (
        find_fact(run.facts(), "lipschitz"),
        find_fact(run.loss.facts(), "sensitivity"),
    )
    most = math.inf if lipschitz is None else lipschitz.value
    apart = min(records_moved(run.adjacency) * most, math.inf if given is None else given.value)
    assert apart < math.inf, "the sensitivity is known"
    ahead = min(apart, most)
    return RecordGradient(ahead, apart - ahead)


def curvature(run: Run) -> tuple[float, float]:
    """The ridge outside the records, and the curvature that strong convexity puts into their data
    terms.

    Clipping comes after the loss: what it does to the constants of a class does not make the class
    larger.
    """
    strong, ridge = find_fact(run.loss.facts(), "strong"), run.loss.ridge
    return ridge, max(0.0, strong.value - ridge) if strong is not None else 0.0


def unequal_batches(run: Run) -> bool:
    """Whether steps can differ in how many records they read, so that curvature in the records
    differs as well."""
    return run.shares != (1.0, 1.0)


def power(sign: int, rate: float, count: NDArray[np.int64]) -> Array:
    """(sign e^rate)^count."""
    # a map to one point has rate -inf, and its power 0 is 1 as well
    size = np.where(count == 0, 1.0, np.exp(rate * np.maximum(count, 1)))
    return size if sign > 0 else np.where(count % 2 == 0, size, -size)


def geometric(sign: int, rate: float, count: NDArray[np.int64]) -> Array:
    """1 + x + ... + x^(count - 1), x = sign e^rate."""
    if sign < 0:  # nothing cancels
        return (1 - power(sign, rate, count)) / (1 + math.exp(rate))
    if rate == 0:
        return count.astype(np.float64)
    return np.where(count == 0, 0.0, np.expm1(rate * np.maximum(count, 1)) / math.expm1(rate))


def log_with_sign(factor_from_one: float) -> tuple[int, float]:
    """Sign and logarithm of 1 - x, well conditioned next to x = 0."""
    if factor_from_one < 1:
        return 1, math.log1p(-factor_from_one)
    with np.errstate(divide="ignore"):
        return -1, float(np.log(factor_from_one - 1))
