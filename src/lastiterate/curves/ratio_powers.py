"""Several independent likelihood ratios at once: products of laws on one geometric grid, by fast Fourier transforms.

Dominating pairs compose adaptively, each order by itself (Zhu, Dong, Wang 2022, Theorem 10), and the likelihood ratio
of a product is the product of the factors' ratios: their losses add up on the grid, under Q and under P.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lastiterate.curves.ratio_law import Ratio, coarsened
from lastiterate.curves.tails import log_sum_exp
from lastiterate.run.arrays import Array

CUT = 1e-18
"""Bound on the mass outside of the window of a product, which is lost."""
LARGEST = 2**21
"""Nodes of a product."""
UNIT = 2.0**-53
RATES = np.geomspace(0.005, 50.0, 64)
"""Exponents of ``chernoff``'s bounds, over the standard deviation of the loss."""

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


@dataclass(frozen=True, eq=False)
class Chernoff:
    """A product by the moments of its factors, for deltas that rounding would hide: every error is relative.

    (1 - e^-x)_+ <= c e^{t x} for t > 0, c = t^t / (1 + t)^{1 + t} (their largest ratio): E_P[(1 - e^{eps - L})_+] is at
    most c e^{-t eps} times the product of the factors' E_P[e^{t L}] (Canonne, Kamath, Steinke 2020, Proposition 12).
    ``removed`` and ``added``: logarithms of c and the product at ``rates`` t, of finite losses alone; ``infinite`` and
    ``zero``: sums of what the factors lose, in full. All is rounded up.
    """

    rates: Array
    removed: Array
    added: Array
    infinite: float
    zero: float

    def deltas(self, epsilon: float, mu: float = 0.0) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism, of loss N(mu^2/2, mu^2) in either."""
        epsilon = min(epsilon, 1e100)  # delta never increases, and products with rates stay finite
        epsilon -= 1e-11 * (1 + abs(epsilon))  # as ``Ratio.deltas``
        gauss = self.rates * (1 + self.rates) * (mu * mu / 2) * (1 + 1e-14)
        removed, added = (self.infinite, self.removed), (self.zero, self.added)
        one, two = (lost + math.exp(min(0.0, float((logs + gauss - self.rates * epsilon).min())))
                    for lost, logs in (removed, added))
        return min(1.0, one * (1 + 1e-11)), min(1.0, two * (1 + 1e-11))


def chernoff(parts: Parts) -> Chernoff:
    """``product`` by moments, of ``count`` independent copies of every part; grids need not be alike.

    A moment is a sum of positive terms: their exponents are good to 2^-52 of themselves, their sum to 1e-13.
    """
    variance = sum(count * law.spread**2 for law, count in parts)
    rates = RATES / math.sqrt(max(variance, 1e-300))
    orders: list[Array] = []
    for sign in (1, -1):
        logs = rates * np.log(rates) - (1 + rates) * np.log1p(rates) + 1e-13 * (1 + rates)
        for law, count in parts:
            losses, masses = (law.logs, law.p) if sign > 0 else (-law.logs, law.q)
            kept = masses > 0
            if not kept.any():
                return Chernoff(rates[:1], np.zeros(1), np.zeros(1), 1.0, 1.0)
            seen, x = np.log(masses[kept]), losses[kept]
            size = float(np.abs(x).max())
            logs += count * np.array([log_sum_exp(seen + t * x) + 1e-13 + 4 * UNIT * t * size for t in rates])
        orders.append(logs)
    infinite = sum(count * law.infinite for law, count in parts) * (1 + 1e-12)
    zero = sum(count * law.zero for law, count in parts) * (1 + 1e-12)
    return Chernoff(rates, orders[0], orders[1], infinite, zero)


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
