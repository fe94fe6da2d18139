"""The sum of a batch's gradients, chunk by chunk, for every way of making batches.

Batches whose size is drawn are read to their end, however long: nothing is truncated, so that no probability of a batch
that did not fit has to be paid for.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lastiterate.engine.batches import poisson_places, read_at_once
from lastiterate.engine.noise import generator, stream
from lastiterate.engine.objective import Objective
from lastiterate.run.batching import BallsInBins, FixedSize, Poisson
from lastiterate.run.run import Run

DRAWN = 1024
"""Places of a Poisson batch that are drawn at once, at most."""
UNROLLED = 4
"""Chunks that are added one after the other instead of in a loop."""


def batch_sum(run: Run, objective: Objective, theta: jax.Array, data: Any, order: jax.Array, k: Any) -> jax.Array:
    """Sum of the clipped data gradients of step k's batch; ``order``: the stream of secret draws."""
    def read(chunk: Any) -> jax.Array:
        return objective.chunk_sum(theta, chunk)

    match run.batching:
        case Poisson(rate):
            return _poisson(run, rate, objective.most, read, data, stream(order, k))
        case FixedSize(size):
            places = jax.random.permutation(generator(stream(order, k)), run.n)[:size]
            return _at(places, run.n, objective.most, read, data)
        case BallsInBins():
            return over_bin(read_at_once(run, objective.most), read, data, k % run.blocks)
        case _:
            single = jax.tree.leaves(data)[0].shape[0] == 1  # a constant index copies nothing
            return over_chunks(read, jax.tree.map(lambda a: a[0 if single else k % a.shape[0]], data))


def over_chunks(read: Any, chunks: Any) -> jax.Array:
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


def _poisson(run: Run, rate: float, most: int, read: Any, data: Any, key: jax.Array) -> jax.Array:
    """Every record with probability ``rate``: gaps are drawn until they lead past the last record.

    How many are drawn at once depends on the run alone, so that chunks of any size read the same records.
    """
    count = read_at_once(run, DRAWN)

    def more(state: tuple[Any, Any, Any]) -> Any:
        places, _, _ = state
        return places[0] < run.n

    def add(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        places, number, total = state
        later = poisson_places(generator(stream(key, number + 1)), rate, places[-1] + 1, count)
        return later, number + 1, total + _at(places, run.n, most, read, data)

    first = poisson_places(generator(stream(key, 0)), rate, jnp.int64(0), count)
    shape = jax.eval_shape(lambda: _at(first, run.n, most, read, data))
    return jax.lax.while_loop(more, add, (first, jnp.int64(0), jnp.zeros(shape.shape, jnp.float64)))[2]


def _at(places: jax.Array, n: int, most: int, read: Any, data: Any) -> jax.Array:
    """Sum over the records at ``places`` (past the end: none), in equal chunks of at most ``most``."""
    chunks = -(-places.size // most)
    rows = -(-places.size // chunks)
    cut = jnp.pad(places, (0, chunks * rows - places.size), constant_values=n).reshape(chunks, rows)
    return over_chunks(lambda chunk: read(taken(data, chunk, n)), cut)


def over_bin(count: int, read: Any, data: tuple[Any, jax.Array], number: Any) -> jax.Array:
    """All records of one bin, which lie next to one another."""
    records, begins = data
    end = begins[number + 1]

    def add(state: tuple[Any, Any]) -> tuple[Any, Any]:
        at, total = state
        chunk = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, at, count), records)
        return at + count, total + read(kept(chunk, at + jnp.arange(count) < end))

    begin = begins[number]
    shape = jax.eval_shape(lambda: add((begin, 0.0))[1])
    zero = jnp.zeros(shape.shape, jnp.float64)
    return jax.lax.while_loop(lambda state: state[0] < end, add, (begin, zero))[1]


def taken(data: Any, places: jax.Array, n: int) -> Any:
    """The records at ``places``; empty slots where a place lies past the last record."""
    return kept(jax.tree.map(lambda a: a[jnp.minimum(places, n - 1)], data), places < n)


def kept(chunk: Any, real: jax.Array) -> Any:
    """A chunk whose records are set to 0 where they are not ``real``."""
    return jax.tree.map(lambda a: jnp.where(real.reshape((-1,) + (1,) * (a.ndim - 1)), a, jnp.zeros_like(a)), chunk)
