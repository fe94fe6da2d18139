"""e^-x of a fraction between two whole multiples of 2^-precision, in integers only."""

from __future__ import annotations

from fractions import Fraction

GUARD = 24
"""Bits that the series may lose; each of its terms loses one unit of the last."""


def exp_between(x: Fraction, precision: int) -> tuple[int, int]:
    """Whole numbers with low <= 2^precision e^-x <= high, for x >= 0; high - low is 1 or 2.

    e^-x = (e^-(x / 2^k))^(2^k) with x / 2^k <= 1/2: the alternating series stops between its last two partial sums, and
    each squaring is rounded outwards.
    """
    halvings = max(0, (2 * x.numerator // x.denominator).bit_length())
    scale = precision + GUARD + 2 * halvings + x.numerator.bit_length() // 16
    low, high = _series(x / 2**halvings, scale)
    for _ in range(halvings):
        low, high = (low * low) >> scale, -((-high * high) >> scale)
    shift = scale - precision
    return low >> shift, -(-high >> shift)


def _series(x: Fraction, scale: int) -> tuple[int, int]:
    low_term = high_term = low = high = 1 << scale
    k = 0
    while high_term > 1:
        k += 1
        low_term = low_term * x.numerator // (x.denominator * k)
        high_term = -(-high_term * x.numerator // (x.denominator * k))
        low, high = (low - high_term, high - low_term) if k % 2 else (low + low_term, high + high_term)
    return max(0, low - high_term), high + high_term
