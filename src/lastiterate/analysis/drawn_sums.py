"""Laws of sums of independent draws, rounded down: how far a record moves the last iterate of linear losses.

A law on a lattice stands for any random variable that is never smaller: what is rounded is rounded down, what is cut
off above moves to the cut, and mass that is cut off below or lost to rounding is only known to lie between ``least``
and ``most``. Such laws may be added and scaled, and every half line to the right is at least as likely as they say.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lastiterate.run.arrays import Array

MOST = 2**14
"""Points of a lattice; where sums need more, its spacing grows."""
CUT = 1e-16
"""Mass that is cut off on either side of a law."""
GUARD = 1e-9
"""Part of a spacing by which positions are lowered before they are rounded down, for their own rounding."""


@final
@dataclass(frozen=True)
class Law:
    """Probability ``masses[k]`` at ``low + k spacing``, and ``rest`` somewhere between ``least`` and ``most``."""

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
        return masses / math.fsum(masses), np.append(self.least, self.low + self.spacing * np.arange(self.masses.size))


def of_values(values: Array, weights: Array) -> Law:
    """The law of one draw: ``weights``, which sum to 1, of ``values``."""
    least, most = float(values.min()), float(values.max())
    if least == most:
        return Law(least, 0.0, np.array([1.0]), 0.0, least, most)
    between = (values > least) & (values < most)
    points = MOST // 4 if between.any() else 2
    spacing = (most - least) / (points - 1)
    place = np.where(values == most, points - 1, np.floor((values - least) / spacing - GUARD))
    masses = np.asarray(np.bincount(np.maximum(place, 0).astype(np.int64), weights=weights, minlength=points), float)
    return _sound(Law(least, spacing, masses, 0.0, least, most))


def scaled(law: Law, factor: float) -> Law:
    """The law of ``factor`` >= 0 times the variable."""
    if law.spacing * factor == 0:
        lowest = min(law.least, law.low) * factor
        return Law(lowest, 0.0, np.array([1.0]), 0.0, lowest, max(law.most * factor, lowest))
    return replace(law, low=law.low * factor, spacing=law.spacing * factor, least=law.least * factor,
                   most=law.most * factor)


def add(one: Law, two: Law) -> Law:
    """The law of the sum of two independent variables."""
    if one.spacing == 0 or two.spacing == 0:
        point, other = (one, two) if one.spacing == 0 else (two, one)
        rest = point.rest + other.rest
        shifted = replace(other, low=other.low + point.low, masses=other.masses * float(point.masses[0]), rest=rest,
                          least=other.least + point.least, most=other.most + point.most)
        return _sound(shifted)
    size = one.masses.size + two.masses.size - 1
    if one.spacing != two.spacing or size > MOST:
        spacing = (one.width + two.width) / (MOST - 3)
        one, two = _coarser(one, spacing), _coarser(two, spacing)
    total = Law(one.low + two.low, one.spacing, _convolved(one.masses, two.masses), 0.0, one.least + two.least,
                one.most + two.most)
    return _sound(_cut(total))


def _coarser(law: Law, spacing: float) -> Law:
    """The law rounded down to multiples of another spacing above its lowest point."""
    if law.spacing == spacing:
        return law
    places = np.floor(np.arange(law.masses.size) * (law.spacing / spacing) - GUARD)
    masses = np.asarray(np.bincount(np.maximum(places, 0).astype(np.int64), weights=law.masses), float)
    return replace(law, spacing=spacing, masses=masses)


def _convolved(one: Array, two: Array) -> Array:
    """The convolution, rounded down: entries that come from transforms of size N are good to 8 u log2(N) |one| |two|,
    sums of at most k products to 2 k u relatively (u = 2^-53)."""
    if min(one.size, two.size) <= 32:
        return np.convolve(one, two) * (1 - 2.0**-52 * min(one.size, two.size))
    size = one.size + two.size - 1
    length = 2 ** math.ceil(math.log2(size))
    product = np.fft.irfft(np.fft.rfft(one, length) * np.fft.rfft(two, length), length)
    error = 8 * 2.0**-53 * math.log2(length) * float(np.linalg.norm(one) * np.linalg.norm(two))
    return np.maximum(product[:size] - error, 0.0)


def _cut(law: Law) -> Law:
    """Without tails: the upper one moves down to the cut, the lower one to the rest."""
    total = np.cumsum(law.masses)
    first = int(np.searchsorted(total, CUT))
    above = np.cumsum(law.masses[::-1])
    last = law.masses.size - int(np.searchsorted(above, CUT))
    first, last = min(first, law.masses.size - 2), max(last, first + 2)
    kept = law.masses[first:last].copy()
    kept[-1] += law.masses[last:].sum()
    return replace(law, low=law.low + first * law.spacing, masses=kept)


def _sound(law: Law) -> Law:
    """What is missing from 1 is the rest."""
    return replace(law, rest=max(0.0, 1 - float(law.masses.sum())))


Draw = Callable[[float], Law]
"""The law of one draw times a sign, rounded down."""


def repeated(draw: Draw, factor: float, times: int) -> Law:
    """The law of draw_0 + factor draw_1 + ... + factor^(times - 1) draw_(times - 1), by doubling."""
    if factor >= 0:
        return _doubled(draw(1.0), factor, times)
    if times == 1:
        return draw(1.0)
    pairs = _doubled(add(draw(1.0), scaled(draw(-1.0), -factor)), factor * factor, times // 2)
    return add(pairs, scaled(draw(1.0), factor ** (times - 1))) if times % 2 else pairs


def _doubled(one: Law, factor: float, times: int) -> Law:
    total, count = one, 1
    for bit in bin(times)[3:]:
        total, count = add(total, scaled(total, factor**count)), 2 * count
        if bit == "1":
            total, count = add(one, scaled(total, factor)), count + 1
    return total


def tree(laws: list[Law]) -> Law:
    """The law of a sum of independent variables, added in pairs."""
    while len(laws) > 1:
        laws = [add(*laws[k : k + 2]) if k + 1 < len(laws) else laws[k] for k in range(0, len(laws), 2)]
    return laws[0]
