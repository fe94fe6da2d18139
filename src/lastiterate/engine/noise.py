"""Randomness: keys from the operating system, streams of bits, Gaussian noise in float64.

A key is 128 bits, four words of 32. Every stream of a key is a key of its own, and every step has its own blocks of a
stream's counter, so that a draw can be predicted only by who knows all 128 bits: nothing is shortened on the way.
"""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.cipher import encrypted, parts

Key = Any
"""(4,) uint32: an array of NumPy or JAX."""
NOISE, START, ORDER, PREPARATION = range(4)  #: streams of one key
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


def stream(key: Key, which: Any) -> jax.Array:
    """One of the independent streams of a key: another key."""
    return jnp.stack(parts(encrypted(key, jnp.asarray(which, jnp.uint64), jnp.asarray(DERIVED))))


def words(key: Key, step: Any, count: int) -> tuple[jax.Array, jax.Array]:
    """Twice ``count`` words of 64 random bits, for one step below 2^63 of a stream."""
    return encrypted(key, jnp.arange(count, dtype=jnp.uint64), jnp.full(count, step, jnp.uint64))


def bits(key: Key, step: Any, count: int) -> jax.Array:
    """``count`` words of 64 random bits."""
    return jnp.concatenate(words(key, step, (count + 1) // 2))[:count]


def words_between(key: Key, step: Any, count: int, first: Any, many: int) -> jax.Array:
    """Words ``first`` .. ``first + many - 1`` of ``bits(key, step, count)``, without those before and behind them."""
    half = (count + 1) // 2
    place = jnp.asarray(first, jnp.uint64) + jnp.arange(many, dtype=jnp.uint64)
    later = place >= half
    found = encrypted(key, jnp.where(later, place - half, place), jnp.full(many, step, jnp.uint64))
    return jnp.where(later, found[1], found[0])


def gaussian(key: Key, step: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step, float64, from 128 random bits for every two numbers."""
    count = math.prod(shape)
    first, second = words(key, step, (count + 1) // 2)
    return jnp.concatenate(normal_pairs(first, second))[:count].reshape(shape)


def uniform(key: Key, step: Any, count: int) -> jax.Array:
    """``count`` numbers in (0, 1), float64, of 53 random bits each."""
    return ((bits(key, step, count) >> np.uint64(11)).astype(jnp.float64) + 0.5) * 2.0**-53


def below(key: Key, step: Any, count: int, end: int) -> jax.Array:
    """``count`` independent whole numbers 0 .. end - 1: every probability is 1/end to a relative end 2^-64."""
    return (bits(key, step, count) % np.uint64(end)).astype(jnp.int64)


def permutation(key: Key, step: Any, count: int) -> jax.Array:
    """A uniform permutation of 0 .. count - 1: the order of random words.

    Equal words keep the public order; for any one record there are some with probability below count 2^-64.
    """
    return jnp.argsort(bits(key, step, count), stable=True)


FARTHEST = 10.2
"""No draw of noise lies further from 0."""


def normal_pairs(first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two independent standard normals for every two words of 64 uniform bits (Box, Muller 1958).

    The squared radius is -2 log u, u with 64 bits from ``first`` and 9 from ``second``, so that the support reaches
    10.1 standard deviations and no draw is within rounding of its end: what lies beyond has probability 2^-73. The
    angle is one of four quadrants (two bits) and a place in it (53 bits).
    """
    u = (first.astype(jnp.float64) + (((second >> 2) & 511).astype(jnp.float64) + 0.5) * 2.0**-9) * 2.0**-64
    radius = jnp.sqrt(-2 * jnp.log(u))
    cos, sin = cos_sin(((second >> 11).astype(jnp.float64) + 0.5) * (2.0**-54 * math.pi) - math.pi / 4)
    radius = jnp.where(second & 1, -radius, radius)
    turned = (second & 2) != 0
    return radius * jnp.where(turned, -sin, cos), radius * jnp.where(turned, cos, sin)


def cos_sin(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine between -pi/4 and pi/4, by their series to rounding: XLA's own are not vectorised in float64."""
    square = angle * angle
    return jnp.polyval(jnp.asarray(COSINE), square), angle * jnp.polyval(jnp.asarray(SINE), square)


COSINE, SINE = ([(-1.0) ** i / math.factorial(2 * i + odd) for i in reversed(range(9))] for odd in (0, 1))
"""Coefficients of the series, highest power first; the first left out is below 2^-63 at pi/4."""
