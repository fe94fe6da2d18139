"""Random numbers of public seeds in NumPy, bit for bit those of ``engine/random.py``.

Prediction draws the directions of cosine features and imports no JAX for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

# Threefry with four words of 32 bits and 20 rounds: what its programs for JAX share with this one.

PARITY = np.uint32(0x1BD11BDA)
TURNS = ((10, 26), (11, 21), (13, 27), (23, 5), (6, 20), (17, 11), (25, 10), (18, 20))
"""Bits that two words are rotated by in a round; the eighth is followed by the first again."""
ROUNDS = 20
PLACES = np.array([[(group + i) % 5 for i in range(4)] for group in range(1, ROUNDS // 4 + 1)])
NUMBERS = np.array([[0, 0, 0, group] for group in range(1, ROUNDS // 4 + 1)], np.uint32)
"""Terms that are added after every fourth round, and the key before the first: words of the
schedule, a number to the last."""
DERIVED = np.uint64(2**63)
"""Marks blocks of the counter that become keys; all others are bits."""
PAIRS = 2**15
"""Pairs of normals that one program draws at once: half a MB, which stays in the cache with what it
is made of."""
ROUND = 2**48
"""Blocks of a step's counter for each round of words; draws of one step stay below."""
STREAM_ROUNDS = 15
"""Words at most behind one radius: every one of them stays a normal number of double precision."""
COSINE, SINE = (
    [(-1.0) ** i / math.factorial(2 * i + odd) for i in reversed(range(9))] for odd in (0, 1)
)
"""Coefficients of the series, highest power first; the first left out is below 2^-63 at pi/4."""

Pair = tuple[np.ndarray, np.ndarray]


def key_from_seed(seed: int) -> np.ndarray:
    """A reproducible key, for tests and audits: whoever knows the seed can subtract the noise."""
    return keys_from_seed(seed, 1)[0]


def keys_from_seed(seed: int, count: int) -> np.ndarray:
    """Many independent keys from one seed, (count, 4)."""
    return np.random.SeedSequence(seed).generate_state(4 * count).reshape(count, 4)


def encrypt(key: np.ndarray, first: np.ndarray, second: np.ndarray) -> Pair:
    """Blocks ``(first, second)`` of a counter, (n,) uint64 each, under a key (4,)."""
    schedule = np.array([*key, np.bitwise_xor.reduce(key) ^ PARITY], np.uint32)
    halves = (half for pair in (first, second) for half in (pair, pair >> np.uint64(32)))
    a, b, c, d = (half.astype(np.uint32) + schedule[i] for i, half in enumerate(halves))
    for number in range(ROUNDS):
        one, two = TURNS[number % 8]
        a, c = a + b, c + d
        b, d = rotate_left(d, two) ^ c, rotate_left(b, one) ^ a
        if number % 4 == 3:
            added = schedule[PLACES[number // 4]] + NUMBERS[number // 4]
            a, b, c, d = (word + added[i] for i, word in enumerate((a, b, c, d)))
    return join_words(a, b), join_words(c, d)


def rotate_left(word: np.ndarray, bits: int) -> np.ndarray:
    """32 bits rotated to the left by ``bits``, 1 to 31."""
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def join_words(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two words of 32 bits as one of 64."""
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def stream(key: np.ndarray, which: int) -> np.ndarray:
    """One of the independent streams of a key: another key."""
    one, two = encrypt(key, np.array([which], np.uint64), np.array([DERIVED]))
    return np.concatenate([one, two]).astype("<u8").view("<u4").astype(np.uint32)


def uniform(key: np.ndarray, step: int, count: int) -> np.ndarray:
    """``count`` numbers in (0, 1), float64, of 53 random bits each."""
    half = np.arange((count + 1) // 2, dtype=np.uint64)
    bits = np.concatenate(encrypt(key, half, np.full_like(half, step)))[:count]
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(key: np.ndarray, step: int, count: int) -> np.ndarray:
    """Standard normal numbers of one step, (count,) float64."""
    pairs = (count + 1) // 2
    assert pairs < ROUND, "blocks of the counter would be used twice"
    drawn: list[Pair] = []
    for begin in range(0, pairs, PAIRS):
        place = np.arange(begin, min(begin + PAIRS, pairs), dtype=np.uint64)
        same = np.full_like(place, step)
        drawn.append(
            normal_pairs(
                lambda number, place=place, same=same: encrypt(
                    key, place + np.uint64(number * ROUND), same
                )
            )
        )
    return np.concatenate([np.concatenate(half) for half in zip(*drawn, strict=True)])[:count]


def normal_pairs(drawn: Callable[[int], Pair]) -> Pair:
    """Independent standard normals, two for every pair of words of 64 uniform bits (Box, Muller
    1958).

    ``drawn(round)`` gives fresh pairs of words; see ``engine/random.py``.
    """
    u, second = small_and_long(drawn)
    rest = (((second >> np.uint64(2)) & np.uint64(511)).astype(np.float64) + 0.5) * 2.0**-9
    u = u + rest * np.where(u < 2.0**-32, 2.0 ** (-64 * STREAM_ROUNDS), 2.0**-64)
    logarithms = np.array([*map(math.log, u.tolist())])  # NumPy's own differ in the last bit
    radius = np.sqrt(-2 * logarithms)
    place = (second >> np.uint64(11)).astype(np.float64) + 0.5
    cos, sin = cos_sin(_multiply_add(place, 2.0**-54 * math.pi, -math.pi / 4))
    radius = np.where(second & np.uint64(1), -radius, radius)
    turned = (second & np.uint64(2)) != 0
    return radius * np.where(turned, -sin, cos), radius * np.where(turned, cos, sin)


def small_and_long(drawn: Callable[[int], Pair]) -> Pair:
    """Uniform numbers in [0, 1) with 32 bits at least behind their first one bit, and the other
    words of round 0."""
    word, second = drawn(0)
    u, unit, number = word.astype(np.float64) * 2.0**-64, 2.0**-128, 1
    while number < STREAM_ROUNDS and u.min(initial=1.0) < unit * 2.0**96:
        more = drawn(number)[0].astype(np.float64) * unit
        u, unit, number = np.where(u < unit * 2.0**96, u + more, u), unit * 2.0**-64, number + 1
    return u, second


def cos_sin(angle: np.ndarray) -> Pair:
    """Cosine and sine between -pi/4 and pi/4, by their series to rounding."""
    square = angle * angle
    return _polynomial(COSINE, square), angle * _polynomial(SINE, square)


def _polynomial(coefficients: list[float], x: np.ndarray) -> np.ndarray:
    """A polynomial by Horner's rule, each product and sum rounded once, as compiled programs do."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = _multiply_add(value, x, coefficient)
    return value


def _multiply_add(a: np.ndarray, b: np.ndarray | float, c: float) -> np.ndarray:
    """a b + c with one rounding (Dekker 1971; Knuth's sum of two numbers)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    part = total - product
    return total + (((product - (total - part)) + (c - part)) + lost)


def _halves(x: Any) -> tuple[Any, Any]:
    """A number as the sum of two whose products are exact."""
    scaled = 134217729.0 * x
    high = scaled - (scaled - x)
    return high, x - high
