"""Randomness: keys from the operating system, Gaussian noise in float64.

A key is a pair of 64-bit Threefry keys. The generator of a step is the exclusive or of what both say about the step, so
that all 128 bits must be known to predict the noise, and one step's generator says nothing about another's.
"""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NOISE, START, ORDER, PREPARATION = range(4)  #: streams of one key
IMPLEMENTATION = "threefry2x32"


def fresh_key() -> jax.Array:
    """A key of 128 bits from the operating system; shape (2,)."""
    bits = np.frombuffer(os.urandom(16), dtype=np.uint32).reshape(2, 2)
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=IMPLEMENTATION)


def seeded_key(seed: int) -> jax.Array:
    """A reproducible key, for tests and audits: whoever knows the seed can subtract the noise."""
    return jax.random.split(jax.random.key(seed, impl=IMPLEMENTATION), 2)


def seeded_keys(seed: int, count: int) -> jax.Array:
    """Many independent keys from one seed; shape (count, 2)."""
    return jax.random.split(jax.random.key(seed, impl=IMPLEMENTATION), (count, 2))


def stream(key: jax.Array, which: Any) -> jax.Array:
    """One of the independent streams of a key."""
    return jnp.stack([jax.random.fold_in(key[0], which), jax.random.fold_in(key[1], which)])


def generator(key: jax.Array) -> jax.Array:
    """The single generator that both halves of a key agree on."""
    halves = jax.random.key_data(key)
    return jax.random.wrap_key_data(halves[0] ^ halves[1], impl=IMPLEMENTATION)


def gaussian(key: jax.Array, step: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step, float64, from 128 random bits for every two numbers."""
    count = math.prod(shape)
    words = jax.random.bits(generator(stream(key, step)), (2, (count + 1) // 2), dtype=jnp.uint64)
    return jnp.concatenate(normal_pairs(words[0], words[1]))[:count].reshape(shape)


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
