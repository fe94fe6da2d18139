"""Keys from the operating system, Threefry and AES random bits, Gaussian noise in float64."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lastiterate.engine.public_random import (
    COSINE,
    DERIVED,
    NUMBERS,
    PAIRS,
    PARITY,
    PLACES,
    ROUND,
    ROUNDS,
    SINE,
    STREAM_ROUNDS,
    TURNS,
)
from lastiterate.engine.public_random import key_from_seed as key_from_seed
from lastiterate.engine.public_random import keys_from_seed as keys_from_seed

# Threefry with four words of 32 bits and 20 rounds (Salmon, Moraes, Dror, Shaw 2011): 128 bits of
# key, 128 of counter. Derived from the block cipher Threefish; no way is known to distinguish it
# from random bits that is quicker than trying keys. It is no certified cipher. Outside, words lie
# in pairs, (x0, x1) and (x2, x3), as 64 bits each.

Pair = tuple[jax.Array, jax.Array]
Words = tuple[Any, Any, Any, Any]


AT_ONCE, FEW = 2**16, 2**13
"""Blocks that are encrypted at once (their words stay in the cache), and up to which rounds are a
loop."""


@jax.jit
def encrypt(key: np.ndarray | jax.Array, first: jax.Array, second: jax.Array) -> Pair:
    """Blocks ``(first, second)`` of a counter, uint64 of one shape, under a key of four words of 32
    bits: (4,), or (4, ...) with one key for each block, of which there are 2^17 at most."""
    assert first.dtype == second.dtype == jnp.uint64, (
        "64-bit JAX is off, and half of the counter was lost"
    )
    if first.size <= 2 * AT_ONCE:
        return _encrypt_all(key, first, second)

    def in_pieces(values: jax.Array) -> jax.Array:
        return jnp.pad(values.reshape(-1), (0, -values.size % AT_ONCE)).reshape(-1, AT_ONCE)  # pyright: ignore

    pieces = jax.lax.map(
        lambda pair: _encrypt_all(key, *pair), (in_pieces(first), in_pieces(second))
    )
    one, two = (each.reshape(-1)[: first.size].reshape(first.shape) for each in pieces)
    return one, two


def _encrypt_all(key: np.ndarray | jax.Array, first: jax.Array, second: jax.Array) -> Pair:
    """All blocks at once."""
    words = [key[i] for i in range(4)]
    schedule = [*words, words[0] ^ words[1] ^ words[2] ^ words[3] ^ PARITY]
    state = with_key(parts((first, second)), schedule[:4])
    a, b, c, d = (loop_rounds if first.size <= FEW and key.ndim == 1 else unroll_rounds)(
        state, schedule
    )
    return join_words(a, b), join_words(c, d)


def unroll_rounds(state: Words, schedule: list[Any]) -> Words:
    """All rounds, four at a time: the quickest for many blocks."""

    def four(group: int) -> Callable[[Words], Words]:
        def rounds(state: Words) -> Words:
            for number in range(4 * group, 4 * group + 4):
                state = mix(state, *map(np.uint32, TURNS[number % 8]))
            return with_key(
                state,
                [schedule[place] + NUMBERS[group, i] for i, place in enumerate(PLACES[group])],
            )

        return rounds

    groups = [four(group) for group in range(ROUNDS // 4)]
    # a loop, though every group of rounds differs: what is written out takes very long to compile
    return jax.lax.fori_loop(
        jnp.int32(0),
        jnp.int32(len(groups)),
        lambda i, state: jax.lax.switch(i, groups, state),
        state,
    )


def loop_rounds(state: Words, schedule: list[Any]) -> Words:
    """A loop over single rounds: a third of the instructions, which are most of what a small
    program has to compile."""
    turns = jnp.asarray(np.array([TURNS[number % 8] for number in range(ROUNDS)], np.uint32))
    added = jnp.stack(schedule)[PLACES] + NUMBERS
    keys = jnp.pad(added[:, None], ((0, 0), (3, 0), (0, 0))).reshape(ROUNDS, 4)  # pyright: ignore

    def body(state: jax.Array, round: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        a, b, c, d = state
        return jnp.stack(with_key(mix((a, b, c, d), *round[0]), round[1])), None

    # words in one array and not in four: a round is one kernel, and what is copied between two is
    # one
    a, b, c, d = jax.lax.scan(body, jnp.stack(state), (turns, keys))[0]
    return a, b, c, d


def with_key(state: Words, added: Any) -> Words:
    """Words of the schedule are added."""
    a, b, c, d = (word + added[i] for i, word in enumerate(state))
    return a, b, c, d


def mix(state: Words, one: np.uint32 | jax.Array, two: np.uint32 | jax.Array) -> Words:
    """Compute a round; it swaps the second word and the fourth."""
    a, b, c, d = state
    a, c = a + b, c + d
    return a, rotate_left(d, two) ^ c, c, rotate_left(b, one) ^ a


def rotate_left(word: jax.Array, bits: np.uint32 | jax.Array) -> jax.Array:
    """32 bits rotated to the left by ``bits``, 1 to 31."""
    return (word << bits) | (word >> (np.uint32(32) - bits))


def parts(pair: Pair) -> Words:
    """The four words of a block."""
    a, b, c, d = (half.astype(jnp.uint32) for p in pair for half in (p, p >> np.uint64(32)))
    return a, b, c, d


def join_words(low: jax.Array, high: jax.Array) -> Any:
    """Two words of 32 bits as one of 64."""
    return low.astype(jnp.uint64) | (high.astype(jnp.uint64) << np.uint64(32))


# Randomness: keys from the operating system, streams of bits, Gaussian noise in float64. A key is
# 128 bits, four words of 32. Every stream of a key is a key of its own, and every step has its own
# blocks of a stream's counter, so that a draw can be predicted only by who knows all 128 bits:
# nothing is shortened on the way.

Key = np.ndarray | jax.Array
"""(4,) uint32: an array of NumPy or JAX."""
Number = int | jax.Array
"""The index of a step, a pass or a position, from 0 on; traced in compiled programs."""
Real = float | jax.Array
"""A step size or another number of a step; or noise, of any shape."""
NOISE, START, ORDER, PREPARATION, CALIBRATION, COUNT = range(6)  #: streams of one key


def fresh_key() -> np.ndarray:
    """A key of 128 bits from the operating system."""
    return np.frombuffer(os.urandom(16), dtype=np.uint32)


@jax.jit  # one program, not one for each of its operations
def stream(key: Key, which: Number | np.uint64) -> jax.Array:
    """One of the independent streams of a key: another key."""
    return jnp.stack(parts(encrypt(key, jnp.asarray(which, jnp.uint64), jnp.asarray(DERIVED))))


streams = jax.jit(jax.vmap(stream, (0, None)))
"""The same of many keys (models, 4): keys (models, 4)."""


def host_stream(key: Key, *which: int) -> np.ndarray:
    """The stream of a stream of a key, as deep as numbers are given, for code that is not compiled."""
    with jax.enable_x64(True):
        for number in which:
            key = stream(key, number)
        return np.asarray(key)


def words(key: Key, step: Number, count: int) -> tuple[jax.Array, jax.Array]:
    """Twice ``count`` words of 64 random bits, for one step below 2^63 of a stream."""
    return encrypt(key, jnp.arange(count, dtype=jnp.uint64), jnp.full(count, step, jnp.uint64))


def bits(key: Key, step: Number, count: int) -> jax.Array:
    """``count`` words of 64 random bits."""
    return jnp.concatenate(words(key, step, (count + 1) // 2))[:count]


def words_between(key: Key, step: Number, count: int, first: Number, many: int) -> jax.Array:
    """Words ``first`` .. ``first + many - 1`` of ``bits(key, step, count)``, without those before
    and behind them."""
    half = (count + 1) // 2
    place = jnp.asarray(first, jnp.uint64) + jnp.arange(many, dtype=jnp.uint64)
    later = place >= half
    pair = encrypt(key, jnp.where(later, place - half, place), jnp.full(many, step, jnp.uint64))
    return jnp.where(later, pair[1], pair[0])


@partial(
    jax.jit, static_argnums=2
)  # a loop outside of a compiled program would be compiled at every call
def gaussian(key: Key, step: Number, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step, float64, from 128 random bits for every two numbers and
    more where needed."""
    count = math.prod(shape)
    assert (count + 1) // 2 < ROUND, "blocks of the counter would be used twice"
    return jnp.concatenate(_pairs_of_step(key, step, (count + 1) // 2))[:count].reshape(shape)


def _pairs_of_step(key: Key, step: Number, pairs: int) -> tuple[jax.Array, ...]:
    """The first ``pairs`` of one step, (pairs,) twice."""

    def some(begin: np.uint64 | jax.Array, many: int) -> tuple[jax.Array, jax.Array]:
        return _draw_pairs(
            key, begin + jnp.arange(many, dtype=jnp.uint64), jnp.full(many, step, jnp.uint64)
        )

    if pairs <= AT_A_TIME:
        return some(np.uint64(0), pairs)
    # what fits the processor's cache: half of the time
    begins = np.arange(0, pairs, AT_A_TIME, dtype=np.uint64)
    return tuple(
        part.ravel()[:pairs] for part in jax.lax.map(lambda begin: some(begin, AT_A_TIME), begins)
    )


def normals(key: Key, step: Number, count: int) -> np.ndarray:
    """``gaussian(key, step, (count,))`` for who is not compiled, by the program that draws noise of
    steps."""
    pairs = (count + 1) // 2
    assert pairs < ROUND, "blocks of the counter would be used twice"
    with jax.enable_x64(True):
        same, first = jnp.zeros(PAIRS, jnp.uint64), jnp.asarray(step, jnp.uint64)
        places = (
            np.arange(begin, begin + PAIRS, dtype=np.uint64) for begin in range(0, pairs, PAIRS)
        )
        drawn = [draw_normal_pairs(key, jnp.asarray(place), same, first) for place in places]
    return np.concatenate([np.concatenate(half)[:pairs] for half in zip(*drawn, strict=True)])[
        :count
    ]


@jax.jit
def draw_normal_pairs(
    key: Key, place: jax.Array, step: jax.Array, first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return two normals for every position of a step, ``first`` + ``step``; ``key`` (4,), or one
    for each of them (4, n).

    The one program of all shapes: ``PAIRS`` at a time.
    """
    return _draw_pairs(key, place, step + first)


def _draw_pairs(key: Key, place: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two normals for every pair of a position, below ``ROUND``, and a step."""
    return normal_pairs(lambda number: encrypt(key, place + number * np.uint64(ROUND), step))


def uniform(key: Key, step: Number, count: int) -> jax.Array:
    """``count`` numbers in (0, 1), float64, of 53 random bits each."""
    return ((bits(key, step, count) >> np.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53


def below(key: Key, step: Number, count: int, end: Number) -> jax.Array:
    """Draw ``count`` independent integers 0 .. end - 1: every probability is 1/end to a relative
    end 2^-64. ``end`` may have one value for each."""
    return (bits(key, step, count) % jnp.asarray(end, jnp.uint64)).astype(jnp.int64)


def permutation(key: Key, step: Number, count: int) -> jax.Array:
    """A uniform permutation of 0 .. count - 1: the order of random words.

    Equal words keep the public order; for any one record there are some with probability below
    count 2^-64.
    """
    return jnp.argsort(bits(key, step, count), stable=True)


FARTHEST = 36.7
"""No draw of noise lies further from 0."""
AT_A_TIME = 2**16
"""Pairs of normals that are drawn at a time."""


def normal_pairs(
    drawn: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> tuple[jax.Array, jax.Array]:
    """Independent standard normals, two for every pair of words of 64 uniform bits (Box, Muller
    1958).

    ``drawn(round)`` gives fresh pairs of words. The squared radius is -2 log u; the angle is one of
    four quadrants (two bits) and a position in it (53 bits), u has the other 9 bits behind its last
    word.
    """
    u, second = small_and_long(drawn)
    rest = (((second >> 2) & 511).astype(jnp.float64) + 0.5) * 2.0**-9
    radius = jnp.sqrt(
        -2 * jnp.log(u + rest * jnp.where(u < 2.0**-32, 2.0 ** (-64 * STREAM_ROUNDS), 2.0**-64))
    )
    cos, sin = cos_sin(
        ((second >> 11).astype(jnp.float64) + 0.5) * (2.0**-54 * math.pi) - math.pi / 4
    )
    radius = jnp.where(second & 1, -radius, radius)
    turned = (second & 2) != 0
    return radius * jnp.where(turned, -sin, cos), radius * jnp.where(turned, cos, sin)


def small_and_long(
    drawn: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> tuple[jax.Array, jax.Array]:
    """Uniform numbers in [0, 1) with 32 bits at least behind their first one bit, and the other
    words of round 0.

    Word after word follows where a number is below 2^-32 of its last word's range, once in 2^32
    draws: nearly always there is one round. So the tail is as fine as the middle, and 0 has
    probability 2^-960.
    """

    def longer(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, unit, number = state
        u = jnp.where(u < unit * 2.0**96, u + drawn(number)[0].astype(jnp.float64) * unit, u)
        return u, unit * 2.0**-64, number + 1

    word, second = drawn(jnp.uint64(0))  # outside of the loop, whose body nearly never runs
    start = word.astype(jnp.float64) * 2.0**-64, jnp.asarray(2.0**-128), jnp.uint64(1)
    # the smallest, and not whether any is: to reduce truth values takes a third of a second to
    # compile
    final = jax.lax.while_loop(
        lambda s: (s[2] < STREAM_ROUNDS) & (s[0].min(initial=1.0) < s[1] * 2.0**96), longer, start
    )
    return final[0], second


def cos_sin(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine between -pi/4 and pi/4, by their series to rounding: XLA's own are not
    vectorised in float64."""
    square = angle * angle
    return jnp.polyval(jnp.asarray(COSINE), square), angle * jnp.polyval(jnp.asarray(SINE), square)


# Random bits from a cryptographic generator: AES in counter mode, one stream for every step.

STEPS = 2**62
"""Streams of one key."""


def fresh_secret() -> bytes:
    """128 bits from the operating system."""
    return os.urandom(16)


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A key of 256 bits for one purpose (HKDF with SHA-256, RFC 5869): keys of different purposes
    say nothing of one another."""
    return HKDF(hashes.SHA256(), 32, None, b"lastiterate " + purpose.encode()).derive(secret)


@dataclass
class Bits:
    """The bits of stream ``number`` under a 256-bit key, in order; equal arguments give equal bits."""

    key: bytes
    number: int
    _encryptor: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert 0 <= self.number < STEPS and len(self.key) == 32
        # 2^64 blocks for each stream: they never overlap
        first = self.number.to_bytes(8, "big") + bytes(8)
        self._encryptor = Cipher(algorithms.AES256(self.key), modes.CTR(first)).encryptor()

    def words(self, count: int) -> np.ndarray:
        """The next ``count`` words of 64 bits; (count,) uint64."""
        return np.frombuffer(self._encryptor.update(bytes(8 * count)), dtype="<u8")

    def integer(self, bits: int) -> int:
        """Return the next ``bits`` bits, a multiple of 64, as an integer."""
        return int.from_bytes(self._encryptor.update(bytes(bits // 8)), "big")
