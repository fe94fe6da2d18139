"""Sums over batches, chunk by chunk.

Batches whose size is drawn are read to their end, however long: nothing is truncated, so that no probability of a batch
that did not fit has to be paid for.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Number
from lastiterate.engine.samplers.sampler import Read

UNROLLED = 4
"""Chunks that are added one after the other instead of in a loop."""


def block_sum(read: Read, data: object, k: Number) -> jax.Array:
    """Over block k mod blocks; leaves (blocks, chunks, m, ...)."""
    single = jax.tree.leaves(data)[0].shape[0] == 1  # a constant index copies nothing
    return over_chunks(read, jax.tree.map(lambda a: a[0 if single else k % a.shape[0]], data))


def over_chunks(read: Read, chunks: object) -> jax.Array:
    """Sum over chunks that are known beforehand; leaves (chunks, m, ...)."""
    def chunk(i: int) -> Any:
        return jax.tree.map(lambda a: a[i], chunks)

    count = jax.tree.leaves(chunks)[0].shape[0]
    if count > UNROLLED:  # from zero on: a sum over all but the first would copy them
        shape = jax.eval_shape(lambda: read(chunk(0)))
        zero = jnp.zeros(shape.shape, shape.dtype)
        return jax.lax.scan(lambda total, part: (total + read(part), None), zero, chunks)[0]
    total = read(chunk(0))
    for i in range(1, count):
        total = total + read(chunk(i))
    return total


def over_places(places: jax.Array, n: int, most: int, read: Read, data: object) -> jax.Array:
    """Sum over the records at ``places`` (past the end: none), in equal chunks of at most ``most``."""
    chunks = -(-places.size // most)
    rows = -(-places.size // chunks)
    cut = jnp.pad(places, (0, chunks * rows - places.size), constant_values=n).reshape(chunks, rows)  # pyright: ignore
    return over_chunks(lambda chunk: read(taken(data, chunk, n)), cut)


def until_end(begin: Number, end: Number, count: int, read: Read) -> jax.Array:
    """Sum of ``read(place)`` from ``begin`` to ``end``: it reads what lies at ``place`` .. ``place + count - 1``."""
    def add(state: tuple[Any, Any]) -> tuple[Any, Any]:
        at, total = state
        return at + count, total + read(at)

    shape = jax.eval_shape(lambda: read(begin))
    zero = jnp.zeros(shape.shape, jnp.float64)
    return jax.lax.while_loop(lambda state: state[0] < end, add, (begin, zero))[1]


def records_in(data: object) -> int:
    """How many records lie flat in ``data``, (n, ...): where n is nominal, another number than that of the run.

    **Guarantee:** what is drawn and read follows from the records that are there, none is read twice in a batch.
    """
    return jax.tree.leaves(data)[0].shape[0]


def at_once(expected: float, n: int, most: int) -> int:
    """Records of a batch of random size that are read at once: few chunks, most of them full."""
    size = min(n, expected + 4 * math.sqrt(expected) + 1)  # four standard deviations: seldom another chunk
    return math.ceil(size / math.ceil(size / most))


def taken(data: object, places: jax.Array, n: int) -> Any:
    """The records at ``places``; empty slots where a place lies past the last record."""
    return kept(jax.tree.map(lambda a: a[jnp.minimum(places, n - 1)], data), places < n)


def kept(chunk: tuple[Any, ...], real: jax.Array) -> Any:
    """A chunk whose records are set to 0 where they are not ``real``."""
    return jax.tree.map(lambda a: jnp.where(real.reshape((-1,) + (1,) * (a.ndim - 1)), a, jnp.zeros_like(a)), chunk)
