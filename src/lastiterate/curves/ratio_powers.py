"""Several independent likelihood ratios at once: products of laws on one geometric grid, by fast Fourier transforms.

Dominating pairs compose adaptively, each order by itself (Zhu, Dong, Wang 2022, Theorem 10), and the likelihood ratio
of a product is the product of the factors' ratios: their losses add up on the grid, under Q and under P.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lastiterate.curves.ratio_law import Ratio, coarsened
from lastiterate.run.arrays import Array

CUT = 1e-18
"""Bound on the mass outside of the window of a product, which is lost."""
LARGEST = 2**21
"""Nodes of a product."""
UNIT = 2.0**-53

Parts = tuple[tuple[Ratio, int], ...]


def product(parts: Parts) -> Ratio:
    """The law of the product of ``count`` independent copies of every part; all on grids of the same h.

    ``ValueError`` where it needs more than ``LARGEST`` nodes.
    """
    under_p, low_p, lost_p = _convolved([(law.low, law.p, count) for law, count in parts], parts[0][0].h)
    under_q, low_q, lost_q = _convolved([(law.low, law.q, count) for law, count in parts], parts[0][0].h)
    low, high = min(low_p, low_q), max(low_p + under_p.size, low_q + under_q.size)
    p, q = np.zeros(high - low), np.zeros(high - low)
    p[low_p - low : low_p - low + under_p.size] = under_p
    q[low_q - low : low_q - low + under_q.size] = under_q
    return Ratio(parts[0][0].h, low, q, p, lost_q + sum(count * law.zero for law, count in parts),
                 lost_p + sum(count * law.infinite for law, count in parts))


def _convolved(parts: list[tuple[int, Array, int]], h: float) -> tuple[Array, int, float]:
    """Masses of the sum of losses, the index of the first, and a bound on what a delta may lack.

    What lies beyond the window, at either end, is lost.
    """
    low, high = _window(parts, h)
    size = 2 ** max(1, math.ceil(math.log2(high - low + 1)))
    if size > LARGEST:
        raise ValueError("too many nodes")
    transforms = [np.fft.rfft(np.bincount((first + np.arange(masses.size)) % size, masses, size))
                  for first, masses, _ in parts]
    counts = [count for _, _, count in parts]
    total = np.ones(size // 2 + 1, dtype=np.complex128)
    for transform, count in zip(transforms, counts, strict=True):
        total = total * _raised(transform, count)
    masses = np.roll(np.fft.irfft(total, size), -(low % size))
    return np.maximum(masses[: high - low + 1], 0.0), low, 2 * CUT + _rounding(transforms, counts, total, size)


def composed(parts: tuple[tuple[Ratio, int], ...], resolution: float) -> Ratio:
    """The product, on ``resolution`` to four times as many nodes for each standard deviation of its loss."""
    law = parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else product(parts)
    while law.h * 4 * resolution < law.spread:
        law = coarsened(law)
    return law


def _rounding(transforms: list[NDArray[np.complex128]], counts: list[int], total: NDArray[np.complex128],
              size: int) -> float:
    """Bound on the error of any delta.

    A coefficient of a transform of masses that sum to 1 is off by at most r = 8 u log2(size); a power multiplies that
    by its exponent and the modulus to the power before. A delta weighs masses by a function of total variation 2 on the
    circle, whose k-th coefficient is at most 1/k. The inverse transform adds r times the mean modulus to each mass.
    """
    one = 8 * UNIT * math.log2(size)
    sizes = [np.abs(transform) + one for transform in transforms]
    with np.errstate(under="ignore"):
        whole = np.prod([modulus**count for modulus, count in zip(sizes, counts, strict=True)], axis=0)
    wrong = sum(count * (one + 4 * UNIT) * whole / modulus for modulus, count in zip(sizes, counts, strict=True))
    weights = 1 / np.maximum(np.arange(total.size), 1.0)
    return 2 * float((weights * wrong).sum()) + 2 * one * float(np.abs(total).sum())


def _raised(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """base^count by repeated squaring."""
    power = np.ones_like(base)
    with np.errstate(under="ignore"):
        while count:
            if count & 1:
                power = power * base
            base, count = base * base, count >> 1
    return power


def _window(parts: list[tuple[int, Array, int]], h: float) -> tuple[int, int]:
    """Indices between which the sum of losses lies but for a mass of ``CUT`` at either end (Chernoff)."""
    low = sum(count * first for first, _, count in parts)
    high = sum(count * (first + masses.size - 1) for first, masses, count in parts)
    values = [(first + np.arange(masses.size)) * h for first, masses, _ in parts]
    variance = sum(count * float((masses * x * x).sum()) for (_, masses, count), x in zip(parts, values, strict=True))
    for step in 2.0 ** np.arange(-3, 7, 0.5):
        for sign in (1, -1):
            rate = sign * step / math.sqrt(variance + h * h)
            bound = -math.log(CUT)
            for (_, masses, count), x in zip(parts, values, strict=True):
                exponents = rate * x
                top = float(exponents.max())
                moment = max(float((masses * np.exp(exponents - top)).sum()), 1e-300)  # above what underflows
                bound += count * (top + math.log(moment))
            if sign > 0:
                high = min(high, math.ceil(bound / rate / h) + 1)
            else:
                low = max(low, math.floor(bound / rate / h) - 1)
    return low, max(high, low + 1)
