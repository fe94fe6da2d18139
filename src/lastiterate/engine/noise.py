"""Randomness: keys from the operating system, Gaussian noise in float64.

A key is a pair of 64-bit Threefry keys. The generator of a step is the exclusive or of what both say about the step, so
that all 128 bits must be known to predict the noise, and one step's generator tells nothing about another's.
"""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NOISE, START, ORDER, PREPARATION = range(4)  #: streams of one key
_IMPL = "threefry2x32"


def fresh_key() -> jax.Array:
    """A key of 128 bits from the operating system; shape (2,)."""
    bits = np.frombuffer(os.urandom(16), dtype=np.uint32).reshape(2, 2)
    return jax.random.wrap_key_data(jnp.asarray(bits), impl=_IMPL)


def seeded_key(seed: int) -> jax.Array:
    """A reproducible key, for tests and audits: whoever knows the seed can subtract the noise."""
    return jax.random.split(jax.random.key(seed, impl=_IMPL), 2)


def seeded_keys(seed: int, count: int) -> jax.Array:
    """Many independent keys from one seed; shape (count, 2)."""
    return jax.random.split(jax.random.key(seed, impl=_IMPL), (count, 2))


def stream(key: jax.Array, which: Any) -> jax.Array:
    """One of the independent streams of a key."""
    return jnp.stack([jax.random.fold_in(key[0], which), jax.random.fold_in(key[1], which)])


def generator(key: jax.Array) -> jax.Array:
    """The single generator that both halves of a key agree on."""
    halves = jax.random.key_data(key)
    return jax.random.wrap_key_data(halves[0] ^ halves[1], impl=_IMPL)


def gaussian(key: jax.Array, step: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step, float64.

    One draw never leaves 8.2 standard deviations; the scaled sum of two reaches 11.4, and no draw is within rounding
    of the end of its support. What lies beyond has probability below 1e-29 a coordinate.
    """
    pair = jax.random.normal(generator(stream(key, step)), (2, *shape), dtype=jnp.float64)
    return (pair[0] + pair[1]) * math.sqrt(0.5)
