"""How records lie in memory and which of them a step reads."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.noise import generator
from lastiterate.run.batching import BallsInBins, Cyclic, FixedSize, FullBatch, Permuted, Poisson, Reshuffled
from lastiterate.run.facts import CHUNK
from lastiterate.run.run import Run

EVEN = 12
"""Long chunks hold a multiple of it, so that 2, 3 or 4 sums of as many rows make up a chunk."""


@dataclass(frozen=True)
class Layout:
    """``blocks`` batches of ``chunks`` chunks of ``rows`` records each; slots that no record needs are empty.

    Where batches are drawn the records lie flat (``blocks`` and ``chunks`` are 1 or the batch's own), and ``rows`` is
    what is read at once.
    """

    blocks: int
    size: int
    chunks: int
    rows: int

    @property
    def slots(self) -> int:
        return self.blocks * self.chunks * self.rows

    def slot(self, place: Any) -> Any:
        """Where the record at ``place`` of the order lies among the slots."""
        return place // self.size * (self.chunks * self.rows) + place % self.size


def drawn(run: Run) -> bool:
    """Whether batches are drawn by the program, from records that lie flat."""
    return isinstance(run.batching, Poisson | FixedSize | BallsInBins)


def layout(run: Run, most: int) -> Layout:
    """The layout of the records, no more than ``most`` of them in a chunk."""
    match run.batching:
        case FullBatch():
            size = run.n
        case Cyclic(size) | Permuted(size) | Reshuffled(size):
            pass
        case FixedSize() | Poisson() | BallsInBins():
            return Layout(1, run.n, 1, run.n)
    chunks = -(-size // most)
    rows = -(-size // chunks)
    return Layout(run.blocks, size, chunks, rows if rows <= CHUNK else -(-rows // EVEN) * EVEN)


def read_at_once(run: Run, most: int) -> int:
    """Records that are gathered at once where batches are drawn: few chunks, most of them full."""
    size = run.divisor
    if not isinstance(run.batching, FixedSize):
        size = min(run.n, size + 4 * math.sqrt(size) + 1)  # four standard deviations: seldom another chunk
    return math.ceil(size / math.ceil(size / most))


def poisson_places(key: jax.Array, rate: float, begin: jax.Array, count: int) -> jax.Array:
    """Places of the next ``count`` drawn records from ``begin`` on, increasing; past the end where there are fewer.

    Gaps between drawn records are geometric: P[gap > g] = (1 - rate)^g, by inversion of a uniform number.
    """
    u = jax.random.uniform(key, (count,), jnp.float64, minval=2.0**-60)
    gaps = jnp.floor(jnp.log(u) / math.log1p(-rate)) if rate < 1 else jnp.zeros(count)
    return begin - 1 + jnp.cumsum(1 + jnp.minimum(gaps, 2.0**40).astype(jnp.int64))


@partial(jax.jit, static_argnums=(0, 3))
def in_bins(run: Run, data: Any, order: jax.Array, spare: int) -> tuple[Any, jax.Array]:
    """Records sorted by their secret bins, with ``spare`` empty slots behind, and where every bin begins; (l + 1,)."""
    bins = jax.random.randint(generator(order), (run.n,), 0, run.blocks)
    by_bin = jnp.argsort(bins, stable=True)
    moved = jax.tree.map(lambda a: jnp.pad(jnp.asarray(a)[by_bin], ((0, spare),) + ((0, 0),) * (a.ndim - 1)), data)
    return moved, jnp.searchsorted(bins[by_bin], jnp.arange(run.blocks + 1))


@partial(jax.jit, static_argnums=(0, 3))
def permuted(run: Run, data: Any, order: jax.Array, plan: Layout) -> Any:
    """Arranged records moved from the public order to a secret one; slots without a record stay 0."""
    places = plan.slot(jax.random.permutation(generator(order), run.n))
    public = plan.slot(np.arange(run.n))

    def moved(values: Any) -> jax.Array:
        flat = jnp.asarray(values).reshape(plan.slots, *values.shape[3:])
        return jnp.zeros_like(flat).at[places].set(flat[public], unique_indices=True).reshape(values.shape)

    return jax.tree.map(moved, data)

