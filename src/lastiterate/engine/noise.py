"""Randomness: keys from the operating system, Gaussian noise in float64."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

NOISE, START, ORDER = range(3)  #: streams of one key


def fresh_key() -> jax.Array:
    """A key of 128 bits from the operating system, for XLA's counter-based generator."""
    return jax.random.wrap_key_data(jnp.asarray(np.frombuffer(os.urandom(16), dtype=np.uint32)), impl="rbg")


def seeded_key(seed: int) -> jax.Array:
    """A reproducible key, for tests and audits: whoever knows the seed can subtract the noise."""
    return jax.random.key(seed, impl="threefry2x32")


def stream(key: jax.Array, which: int) -> jax.Array:
    """One of the independent streams of a key."""
    return jax.random.fold_in(key, which)


def gaussian(key: jax.Array, step: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal noise of one step; float64, so that the tails reach as far as any budget asks."""
    return jax.random.normal(jax.random.fold_in(key, step), shape, dtype=jnp.float64)
