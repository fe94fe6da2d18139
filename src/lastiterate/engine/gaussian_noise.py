"""Randomness: keys from the operating system, streams of bits, Gaussian noise in float64.

A key is 128 bits, four words of 32. Every stream of a key is a key of its own, and every step has its own blocks of a
stream's counter, so that a draw can be predicted only by who knows all 128 bits: nothing is shortened on the way.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.cipher import encrypted, parts

Key = np.ndarray | jax.Array
"""(4,) uint32: an array of NumPy or JAX."""
Number = int | jax.Array
"""Of a step, a pass or a place, from 0 on; traced in compiled programs."""
Real = float | jax.Array
"""A step size or another number of a step; or noise, of any shape."""
NOISE, START, ORDER, PREPARATION, CALIBRATION, COUNT = range(6)  #: streams of one key
DERIVED = np.uint64(2**63)
"""Marks blocks of the counter that become keys; all others are bits."""


def fresh_key() -> np.ndarray:
    """A key of 128 bits from the operating system."""
    return np.frombuffer(os.urandom(16), dtype=np.uint32)


def seeded_key(seed: int) -> np.ndarray:
    """A reproducible key, for tests and audits: whoever knows the seed can subtract the noise."""
    return seeded_keys(seed, 1)[0]


def seeded_keys(seed: int, count: int) -> np.ndarray:
    """Many independent keys from one seed, (count, 4)."""
    return np.random.SeedSequence(seed).generate_state(4 * count).reshape(count, 4)


@jax.jit  # one program, not one for each of its operations
def stream(key: Key, which: Number | np.uint64) -> jax.Array:
    """One of the independent streams of a key: another key."""
    return jnp.stack(parts(encrypted(key, jnp.asarray(which, jnp.uint64), jnp.asarray(DERIVED))))


streams = jax.jit(jax.vmap(stream, (0, None)))
"""The same of many keys (models, 4): keys (models, 4)."""


def words(key: Key, step: Number, count: int) -> tuple[jax.Array, jax.Array]:
    """Twice ``count`` words of 64 random bits, for one step below 2^63 of a stream."""
    return encrypted(key, jnp.arange(count, dtype=jnp.uint64), jnp.full(count, step, jnp.uint64))


def bits(key: Key, step: Number, count: int) -> jax.Array:
    """``count`` words of 64 random bits."""
    return jnp.concatenate(words(key, step, (count + 1) // 2))[:count]


def words_between(key: Key, step: Number, count: int, first: Number, many: int) -> jax.Array:
    """Words ``first`` .. ``first + many - 1`` of ``bits(key, step, count)``, without those before and behind them."""
    half = (count + 1) // 2
    place = jnp.asarray(first, jnp.uint64) + jnp.arange(many, dtype=jnp.uint64)
    later = place >= half
    pair = encrypted(key, jnp.where(later, place - half, place), jnp.full(many, step, jnp.uint64))
    return jnp.where(later, pair[1], pair[0])


@partial(jax.jit, static_argnums=2)  # a loop outside of a compiled program would be compiled at every call
def gaussian(key: Key, step: Number, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step, float64, from 128 random bits for every two numbers and more where needed."""
    count = math.prod(shape)
    assert (count + 1) // 2 < ROUND, "blocks of the counter would be used twice"
    return jnp.concatenate(_pairs_of_step(key, step, (count + 1) // 2))[:count].reshape(shape)


def _pairs_of_step(key: Key, step: Number, pairs: int) -> tuple[jax.Array, ...]:
    """The first ``pairs`` of one step, (pairs,) twice."""
    def some(begin: np.uint64 | jax.Array, many: int) -> tuple[jax.Array, jax.Array]:
        return _numbered_normals(key, begin + jnp.arange(many, dtype=jnp.uint64), jnp.full(many, step, jnp.uint64))

    if pairs <= AT_A_TIME:
        return some(np.uint64(0), pairs)
    # what fits the processor's cache: half of the time
    begins = np.arange(0, pairs, AT_A_TIME, dtype=np.uint64)
    return tuple(part.ravel()[:pairs] for part in jax.lax.map(lambda begin: some(begin, AT_A_TIME), begins))


def normals(key: Key, step: Number, count: int) -> np.ndarray:
    """``gaussian(key, step, (count,))`` for who is not compiled, by the program that draws noise of steps."""
    pairs = (count + 1) // 2
    assert pairs < ROUND, "blocks of the counter would be used twice"
    same, first = jnp.zeros(PAIRS, jnp.uint64), jnp.asarray(step, jnp.uint64)
    drawn = [numbered(key, jnp.asarray(np.arange(begin, begin + PAIRS, dtype=np.uint64)), same, first)
             for begin in range(0, pairs, PAIRS)]
    return np.concatenate([np.concatenate(half)[:pairs] for half in zip(*drawn, strict=True)])[:count]


@jax.jit
def numbered(key: Key, place: jax.Array, step: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two normals for every place of a step, ``first`` + ``step``; ``key`` (4,), or one for each of them (4, n).

    The one program of all shapes: ``PAIRS`` at a time.
    """
    return _numbered_normals(key, place, step + first)


def _numbered_normals(key: Key, place: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two normals for every pair of a place, below ``ROUND``, and a step."""
    return normal_pairs(lambda number: encrypted(key, place + number * np.uint64(ROUND), step))


def uniform(key: Key, step: Number, count: int) -> jax.Array:
    """``count`` numbers in (0, 1), float64, of 53 random bits each."""
    return ((bits(key, step, count) >> np.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53


def below(key: Key, step: Number, count: int, end: Number) -> jax.Array:
    """``count`` independent whole numbers 0 .. end - 1: every probability is 1/end to a relative end 2^-64. ``end`` may
    have one value for each."""
    return (bits(key, step, count) % jnp.asarray(end, jnp.uint64)).astype(jnp.int64)


def permutation(key: Key, step: Number, count: int) -> jax.Array:
    """A uniform permutation of 0 .. count - 1: the order of random words.

    Equal words keep the public order; for any one record there are some with probability below count 2^-64.
    """
    return jnp.argsort(bits(key, step, count), stable=True)


FARTHEST = 36.7
"""No draw of noise lies further from 0."""
PAIRS = 2**15
"""Pairs of normals that one program draws at once: half a MB, which stays in the cache with what it is made of."""
AT_A_TIME = 2**16
"""Pairs of normals that are drawn at a time."""
ROUND = 2**48
"""Blocks of a step's counter for each round of words; draws of one step stay below."""
ROUNDS = 15
"""Words at most behind one radius: every one of them stays a normal number of double precision."""


def normal_pairs(drawn: Callable[[jax.Array], tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Independent standard normals, two for every pair of words of 64 uniform bits (Box, Muller 1958).

    ``drawn(round)`` gives fresh pairs of words. The squared radius is -2 log u; the angle is one of four
    quadrants (two bits) and a place in it (53 bits), u has the other 9 bits behind its last word.
    """
    u, second = small_and_long(drawn)
    rest = (((second >> 2) & 511).astype(jnp.float64) + 0.5) * 2.0**-9
    radius = jnp.sqrt(-2 * jnp.log(u + rest * jnp.where(u < 2.0**-32, 2.0 ** (-64 * ROUNDS), 2.0**-64)))
    cos, sin = cos_sin(((second >> 11).astype(jnp.float64) + 0.5) * (2.0**-54 * math.pi) - math.pi / 4)
    radius = jnp.where(second & 1, -radius, radius)
    turned = (second & 2) != 0
    return radius * jnp.where(turned, -sin, cos), radius * jnp.where(turned, cos, sin)


def small_and_long(drawn: Callable[[jax.Array], tuple[jax.Array, jax.Array]]) -> tuple[jax.Array, jax.Array]:
    """Uniform numbers in [0, 1) with 32 bits at least behind their first one bit, and the other words of round 0.

    Word after word follows where a number is below 2^-32 of its last word's range, once in 2^32 draws: nearly always
    there is one round. So the tail is as fine as the middle, and 0 has probability 2^-960.
    """
    def longer(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        u, unit, number = state
        u = jnp.where(u < unit * 2.0**96, u + drawn(number)[0].astype(jnp.float64) * unit, u)
        return u, unit * 2.0**-64, number + 1

    word, second = drawn(jnp.uint64(0))  # outside of the loop, whose body nearly never runs
    start = word.astype(jnp.float64) * 2.0**-64, jnp.asarray(2.0**-128), jnp.uint64(1)
    # the smallest, and not whether any is: to reduce truth values takes a third of a second to compile
    final = jax.lax.while_loop(lambda s: (s[2] < ROUNDS) & (s[0].min(initial=1.0) < s[1] * 2.0**96), longer, start)
    return final[0], second


def cos_sin(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine between -pi/4 and pi/4, by their series to rounding: XLA's own are not vectorised in float64."""
    square = angle * angle
    return jnp.polyval(jnp.asarray(COSINE), square), angle * jnp.polyval(jnp.asarray(SINE), square)


COSINE, SINE = ([(-1.0) ** i / math.factorial(2 * i + odd) for i in reversed(range(9))] for odd in (0, 1))
"""Coefficients of the series, highest power first; the first left out is below 2^-63 at pi/4."""
