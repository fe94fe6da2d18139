"""The discrete Gaussian, sampled exactly in integers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import final

import numpy as np

from lastiterate.engine.noise import Draws
from lastiterate.engine.random import Bits, Key, derive_key
from lastiterate.errors import InputError
from lastiterate.run.run import Run

# e^-x of a fraction between two whole multiples of 2^-precision, in integers only.

GUARD = 24
"""Bits that the series may lose; each of its terms loses one unit of the last."""


def exp_between(x: Fraction, precision: int) -> tuple[int, int]:
    """Return integers with low <= 2^precision e^-x <= high, for x >= 0; high - low is 1 or 2.

    e^-x = (e^-(x / 2^k))^(2^k) with x / 2^k <= 1/2: the alternating series stops between its last
    two partial sums, and each squaring is rounded outwards.
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
        low, high = (
            (low - high_term, high - low_term) if k % 2 else (low + low_term, high + high_term)
        )
    return max(0, low - high_term), high + high_term


# The discrete Gaussian, exactly: P[X = x] proportional to exp(-x^2 / (2 sigma^2)) on the integers.
# |X| is drawn from blocks of 2^k integers: a block with the weight of its first integer, a position
# in it, and a rejection with probability 1 - exp(-(x^2 - first^2) / (2 sigma^2)) (Canonne, Kamath,
# Steinke 2020, arXiv:2004.00010, reject from a geometric distribution instead; blocks reject seldom
# and are tables). Every decision compares uniform bits with an exact number. 64 of them, or
# floating-point numbers with a bound on their error, decide nearly always; where they do not, more
# bits and integers of any length do. So the distribution is the one above, and not an
# approximation of it.

FINEST, WIDEST = 2**-3, 2**47
"""Standard deviations that are drawn, in units of the grid."""
REACH = 10.0
"""Standard deviations that the table of blocks covers; what is beyond is decided exactly, about
once in 2^75 draws."""
WORD = 2**64
UNDECIDED = 2.0**-44
"""Acceptance probabilities below 1 are good to 2^-48 in floating point: the exponent to 2^-50 of
itself (at most 4), the exponential to 4 units in the last place, the uniform number to 2^-53."""


@final
@dataclass(frozen=True)
class DiscreteGaussian:
    """The discrete Gaussian of parameter ``sigma`` (close to its standard deviation where sigma >
    1).

    **Guarantee:** adding it to every coordinate of an integer vector of sensitivity D (Euclidean)
    has Renyi divergence at most alpha D^2 / (2 sigma^2) at every order alpha (Canonne, Kamath,
    Steinke 2020, Theorem 4 and its sum over coordinates).
    """

    sigma: float

    def __post_init__(self) -> None:
        if not FINEST <= self.sigma <= WIDEST:
            raise InputError(
                "noise",
                "of exact sums must have a standard deviation of 2^-3 to 2^47 grid steps",
                self.sigma,
                "choose a grid that fits the noise",
            )

    def sample(self, bits: Bits, count: int) -> np.ndarray:
        """``count`` independent draws, int64: a function of the bits alone, which are used in
        order."""
        parts, missing = list[np.ndarray](), count
        while missing > 0:
            part = self._propose(bits, missing + missing // 16 + 16)
            parts.append(part[:missing])
            missing -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _propose(self, bits: Bits, count: int) -> np.ndarray:
        blocks, width = _blocks(self.sigma)
        first, second = bits.words(2 * count).reshape(2, count)
        which = np.searchsorted(blocks.ends, first, side="left").astype(np.int64)
        # the third word is read only where blocks hold several integers: sign and position share it
        third = bits.words(count)
        place = (third & np.uint64(width - 1)).astype(np.int64)
        undecided = blocks.is_undecided(first, which)
        size = which * width + place
        keep = self._accept(second, which * width, place, bits)
        for i in np.flatnonzero(undecided):
            j = _exact_block(self.sigma, int(first[i]), bits)
            size[i] = j * width + int(place[i])
            keep[i] = _exact_acceptance(self.sigma, int(second[i]), j * width, int(place[i]), bits)
        negative = (third >> np.uint64(63)).astype(bool)
        keep &= ~(negative & (size == 0))  # zero has one sign
        return np.where(negative, -size, size)[keep]

    def _accept(
        self, uniform: np.ndarray, begin: np.ndarray, place: np.ndarray, bits: Bits
    ) -> np.ndarray:
        """Whether uniform bits lie below exp(-place (2 begin + place) / (2 sigma^2))."""
        if not place.any():
            return np.ones(len(place), bool)
        exponent = place * (2.0 * begin + place) / (2 * self.sigma**2)
        chance = np.exp(-exponent)
        difference = chance - uniform * 2.0**-64
        keep = difference > 0
        for i in np.flatnonzero((np.abs(difference) < UNDECIDED) & (place > 0)):
            keep[i] = _exact_acceptance(
                self.sigma, int(uniform[i]), int(begin[i]), int(place[i]), bits
            )
        return keep | (place == 0)


@dataclass(frozen=True, eq=False)
class _Blocks:
    """``ends[j]``: floor of 2^64 P[block <= j]; uniform bits equal to one of them decide nothing
    yet."""

    ends: np.ndarray

    def is_undecided(self, uniform: np.ndarray, which: np.ndarray) -> np.ndarray:
        inside = np.minimum(which, len(self.ends) - 1)
        return (which == len(self.ends)) | (self.ends[inside] == uniform)


def block_width(sigma: float) -> int:
    """Numbers in a block: the power of two between sigma / 32 and sigma / 16, at least 1."""
    return 1 if sigma < 32 else 2 ** (math.frexp(sigma)[1] - 5)


@lru_cache(maxsize=512)
def _blocks(sigma: float) -> tuple[_Blocks, int]:
    width = block_width(sigma)
    count = math.ceil(REACH * sigma / width) + 2
    for precision in PRECISIONS:
        low, high = _cumulative(sigma, count, precision)
        ends = [part * WORD >> precision for part in low]
        kept = next(
            (j + 1 for j, end in enumerate(ends) if end >= WORD - 1), count
        )  # no bits lie beyond
        if ends[:kept] == [part * WORD >> precision for part in high[:kept]]:
            return _Blocks(np.array(ends[:kept], np.uint64)), width
    raise AssertionError


@lru_cache(maxsize=64)
def _cumulative(sigma: float, count: int, precision: int) -> tuple[list[int], list[int]]:
    """Bounds on 2^precision P[block <= j] for j < count."""
    inner, square, width = precision + 40, Fraction(sigma) ** 2, block_width(sigma)
    ratio = Fraction(width) ** 2 / (2 * square)
    terms, j = [(1 << inner, 1 << inner)], 0
    # the rest after a term is less than a geometric series: each further term is below the last
    # times its own ratio
    while j < count or terms[-1][1] > 1:
        j += 1
        terms.append(exp_between(ratio * j * j, inner))
    low_total = sum(term[0] for term in terms)
    high_total = sum(term[1] for term in terms) + 4 * len(terms) * terms[-1][1]
    low, high, low_sum, high_sum = list[int](), list[int](), 0, 0
    for one, two in terms[:count]:
        low_sum, high_sum = low_sum + one, high_sum + two
        low.append((low_sum << precision) // high_total)
        high.append(-(-(high_sum << precision) // low_total))
    return low, high


PRECISIONS = (128, 256, 512, 1024, 4096)
"""Precision, in bits, of each attempt to decide; the last one fails for no number that occurs."""


def _exact_block(sigma: float, uniform: int, bits: Bits) -> int:
    """The block of a uniform number whose first 64 bits are given."""
    known = 64
    for precision in PRECISIONS:
        uniform, known = (
            (uniform << (precision - known)) | bits.integer(precision - known),
            precision,
        )
        count = math.ceil(1.2 * math.sqrt(precision) * sigma / block_width(sigma)) + 8
        low, high = _cumulative(sigma, count, precision)
        j = sum(end <= uniform for end in high)  # surely at or above these ends
        if j < count and uniform + 1 <= low[j]:
            return j
    raise AssertionError


def _exact_acceptance(sigma: float, uniform: int, begin: int, place: int, bits: Bits) -> bool:
    """Return whether a uniform number whose first 64 bits are given lies below the acceptance
    probability."""
    exponent, known = Fraction(place * (2 * begin + place)) / (2 * Fraction(sigma) ** 2), 64
    if exponent == 0:
        return True
    for precision in PRECISIONS:
        uniform, known = (
            (uniform << (precision - known)) | bits.integer(precision - known),
            precision,
        )
        low, high = exp_between(exponent, precision)
        if uniform + 1 <= low or uniform >= high:
            return uniform + 1 <= low
    raise AssertionError


# Exact noise for sums of integers, one stream of bits for every step and for every part of the
# preparation.

LARGEST = 2**51
"""Integer that a sum and its noise stay below, in units of the grid: float64 adds integers up to
it exactly in any order."""


def places_for(most: float, std: float) -> int:
    """Return the fractional bits for which sums of at most ``most`` with noise of deviation ``std``
    stay exact: a public number."""
    return math.floor(math.log2(LARGEST / (most + 2 * REACH * std)))


def draws_of(run: Run, grid: float, key: Key) -> Draws:
    """Discrete Gaussian noise of the sums, in multiples of ``grid``: a function of the key and the
    step."""
    secret = derive_key(np.asarray(key).tobytes(), "exact noise")

    def draws(first: int, last: int, space: int, shape: tuple[int, ...]) -> np.ndarray:
        noise = np.zeros((space, *shape))
        for k in range(first, last):
            sigma = float(run.noise_stds[k]) * run.divisor / grid
            noise[k - first] = (
                DiscreteGaussian(sigma).sample(Bits(secret, k), math.prod(shape)).reshape(shape)
            )
        return noise * grid

    return draws


def preparation_bits(key: Key, part: int) -> Bits:
    """The bits of one part of the preparation."""
    return Bits(derive_key(np.asarray(key).tobytes(), "exact preparation"), part)
