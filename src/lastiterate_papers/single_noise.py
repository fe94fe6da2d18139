"""Normal noise in single precision, for experiments: bits of a quick generator, Box and Muller's
map as a program."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

COSINE, SINE = (
    [(-1.0) ** i / math.factorial(2 * i + odd) for i in reversed(range(6))] for odd in (0, 1)
)
"""Coefficients of the series, highest power first; the first left out is below 2^-28 at pi/4."""


def streams(keys: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """For ever, fresh 32-bit words for ``normal`` of ``count`` numbers: (models, 2, pairs), of one
    stream per key."""
    pairs = (count + 1) // 2
    generators = [np.random.SFC64([int(word) for word in key]) for key in keys]
    while True:
        words = np.empty((len(keys), pairs), np.uint64)
        for place, generator in enumerate(generators):
            words[place] = generator.random_raw(pairs)
        yield words.view(np.uint32).reshape(len(keys), 2, pairs)


def normal(words: jax.Array, count: int) -> jax.Array:
    """Standard normal numbers (models, count), float32, from words (models, 2, pairs); none lies
    beyond 6.8.

    The squared radius is -2 log u of 32 bits, the angle one of four quadrants and a place in it of
    30 bits.
    """
    u = (words[:, 0].astype(jnp.float32) + 0.5) * 2.0**-32
    second = words[:, 1]
    radius = jnp.sqrt(-2 * jnp.log(u))
    angle = (second >> 2).astype(jnp.float32) * (2.0**-31 * math.pi) - math.pi / 4
    square = angle * angle
    cos = jnp.polyval(jnp.asarray(COSINE, jnp.float32), square)
    sin = angle * jnp.polyval(jnp.asarray(SINE, jnp.float32), square)
    radius, turned = jnp.where((second & 1) != 0, -radius, radius), (second & 2) != 0
    both = jnp.concatenate(
        (radius * jnp.where(turned, -sin, cos), radius * jnp.where(turned, cos, sin)), axis=1
    )
    return both[:, :count]
