"""The sampler of every batching: full, cyclic, permuted, reshuffled, allocated, bins, Poisson,
fixed size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.noise import register_pytree
from lastiterate.engine.random import Key, Number, below, permutation, stream, uniform
from lastiterate.engine.sampler_interface import (
    BatchOrder,
    EpochSampler,
    Layout,
    Read,
    Sampler,
    block_sum,
    lay_out_blocks,
    lay_out_cut,
    lay_out_rows,
    mask_chunk,
    records_at_once,
    records_in,
    split_into_bins,
    split_into_blocks,
    sum_over_places,
    take_records,
    until_end,
)
from lastiterate.errors import InputError
from lastiterate.run.batching import (
    BallsInBins,
    Batching,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
    Reshuffled,
)
from lastiterate.run.plugin_batching import PublicBlocks
from lastiterate.run.run import Run

# Every record in one of several secret batches, the same in every pass.


@final
@register_pytree
@dataclass(frozen=True)
class Bins(Sampler):
    """Records sorted by their bins, which lie next to one another: every pass reads them from front
    to end.

    **Guarantee:** every record's bin is uniform and independent of all others; bins of any size are
    read to their end.
    """

    layout: Layout
    bins: int
    count: int
    drawn = "once"

    @property
    def blocks(self) -> int:
        return self.bins

    def arrange(self, data: object, key: Key) -> tuple[Any, jax.Array]:
        """Records sorted by their bins, with empty slots behind, and where every bin begins; (bins
        + 1,)."""
        return by_bin(self.layout.size, self.bins, self.count, data, key)

    def batch_sum(self, read: Read, data: Any, key: Key, k: Number) -> jax.Array:
        records, begins = data
        end = begins[k % self.bins + 1]

        def at(place: Number) -> jax.Array:
            chunk = jax.tree.map(
                lambda a: jax.lax.dynamic_slice_in_dim(a, place, self.count), records
            )
            return read(mask_chunk(chunk, place + jnp.arange(self.count) < end))

        return until_end(begins[k % self.bins], end, self.count, at)


@partial(jax.jit, static_argnums=(0, 1))
def sort_by_bin(n: int, bins: int, key: Key) -> tuple[jax.Array, jax.Array]:
    """Records in the order of their uniform bins, in public order within each, and where every bin
    begins."""
    drawn = below(key, 0, n, bins)
    order = jnp.argsort(drawn, stable=True)
    return order, jnp.searchsorted(drawn[order], jnp.arange(bins + 1))


@partial(jax.jit, static_argnums=(0, 1, 2))
def by_bin(n: int, bins: int, more: int, data: object, key: Key) -> tuple[Any, jax.Array]:
    order, begins = sort_by_bin(n, bins, key)
    return jax.tree.map(
        lambda a: jnp.pad(  # pyright: ignore
            jnp.asarray(a)[order], ((0, more),) + ((0, 0),) * (a.ndim - 1)
        ),
        data,
    ), begins


# A fresh subset of a fixed size at every step.


@final
@register_pytree
@dataclass(frozen=True)
class Subsets(Sampler):
    """The first ``size`` different records of uniform draws, whose work does not grow with the
    records; more than half of them are the first of an order.

    **Guarantee:** every subset of that size is equally likely (to a relative n 2^-64), and those of
    different steps are independent: whether enough draws differ says nothing of which records these
    are, and if not, all are drawn again.
    """

    layout: Layout
    size: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return sum_over_places(self.places(key, k), self.layout.size, self.most, read, data)

    def places(self, key: Key, k: Number) -> jax.Array:
        """The records of step k in public order, (size,)."""
        n, size = self.layout.size, self.size
        if 2 * size > n:
            return jnp.sort(permutation(key, k, n)[:size])
        own, many = stream(key, k), draws(n, size)

        def again(state: tuple[Any, ...]) -> tuple[Any, ...]:
            return state[0] + 1, *different(below(own, state[0], many, n), size)

        return jax.lax.while_loop(
            lambda state: state[1] < size, again, (0, 0, jnp.zeros(size, jnp.int64))
        )[2]


def draws(n: int, size: int) -> int:
    """Uniform draws of which ``size`` nearly always differ: the mean of what it takes and six
    standard deviations."""
    taken = np.arange(size) / n  # a draw is new with probability 1 - taken
    return math.ceil((1 / (1 - taken)).sum() + 6 * math.sqrt((taken / (1 - taken) ** 2).sum()) + 6)


def different(drawn: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Return how many numbers differ, and the first ``size`` of these in the order of the draws,
    sorted; (size,)."""
    order = jnp.argsort(drawn, stable=True)
    ordered = drawn[order]
    new = jnp.concatenate(
        (jnp.ones(1, bool), ordered[1:] != ordered[:-1])
    )  # the earliest draw of its number
    count = jnp.cumsum(jnp.zeros_like(new).at[order].set(new, unique_indices=True))
    chosen = new & (count[order] <= size)
    return count[-1], ordered[jnp.nonzero(chosen, size=size)[0]]


# Full batches, and blocks in public order: nothing is drawn.


@final
@register_pytree
@dataclass(frozen=True)
class InOrder(Sampler):
    """The same blocks in every pass."""

    layout: Layout
    drawn = "never"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


# Blocks of one secret order for the whole run.


@final
@register_pytree
@dataclass(frozen=True)
class PermutedOnce(Sampler):
    """One uniform order of the records, drawn before the first step.

    **Guarantee:** all n! orders are equally likely (see ``permutation``), whatever the data.
    """

    layout: Layout
    n: int
    drawn = "once"

    def order(self, key: Key) -> jax.Array:
        drawn = permutation(key, 0, self.n)
        return jnp.zeros_like(drawn).at[drawn].set(jnp.arange(self.n), unique_indices=True)

    def arrange(self, data: object, key: Key) -> Any:
        return shuffle_by_words(self.layout, self.n, data, key)

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


@partial(jax.jit, static_argnums=(0, 1))
def shuffle_by_words(layout: Layout, n: int, data: object, key: Key) -> Any:
    """Arranged records sorted by their random words, which is a secret order.

    Sorted by words, so that data larger than memory can be brought into the very same order
    (``streaming.sorting``).
    """
    return permute_records(layout, permutation(key, 0, n), data)


def permute_records(layout: Layout, order: jax.Array, data: object) -> Any:
    """Arranged records in another order, (n,); slots without a record stay 0."""
    return take_slots(layout, layout.slot(order), data)


def take_slots(layout: Layout, drawn: jax.Array, data: object) -> Any:
    """The arranged records that lie in the slots ``drawn``, (n,), in this order; slots without a
    record stay 0."""
    places = layout.slot(np.arange(len(drawn)))

    def one(values: jax.Array) -> jax.Array:
        flat = jnp.asarray(values).reshape(layout.slots, *values.shape[3:])
        return (
            jnp.zeros_like(flat)
            .at[places]
            .set(flat[drawn], unique_indices=True)
            .reshape(values.shape)
        )

    return jax.tree.map(one, data)


# Every record in every batch with a probability, independently: gaps between drawn records are
# geometric.

DRAWN = 1024
"""Largest number of positions that are drawn at once: not the chunks of a model, so that any of
them read the same records."""


@final
@register_pytree
@dataclass(frozen=True)
class PoissonDraws(Sampler):
    """Gaps are drawn, ``count`` at a time, until they lead past the last record.

    **Guarantee:** every record is drawn with probability ``rate`` (to the resolution of double
    precision), independently of all others and of other steps; batches of any size are read to
    their end.
    """

    layout: Layout
    rate: float
    count: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        n, own = records_in(data), stream(key, k)

        def more(state: tuple[Any, Any, Any]) -> Any:
            places, _, _ = state
            return places[0] < n

        def add(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            places, number, total = state
            later = self.places(own, number + 1, places[-1] + 1)
            return later, number + 1, total + sum_over_places(places, n, self.most, read, data)

        first = self.places(own, 0, jnp.int64(0))
        shape = jax.eval_shape(lambda: sum_over_places(first, n, self.most, read, data))
        return jax.lax.while_loop(
            more, add, (first, jnp.int64(0), jnp.zeros(shape.shape, jnp.float64))
        )[2]

    def places(self, key: Key, number: Number, begin: jax.Array) -> jax.Array:
        """Return the positions of the next ``count`` drawn records from ``begin`` on, increasing;
        past the end where there are fewer.

        P[gap > g] = (1 - rate)^g, by inversion of a uniform number.
        """
        gaps = jnp.floor(jnp.log(uniform(key, number, self.count)) / jnp.log1p(-self.rate))
        return begin - 1 + jnp.cumsum(1 + jnp.minimum(gaps, 2.0**40).astype(jnp.int64))


# Every record in one of several secret batches, drawn again in every pass.


@final
@register_pytree
@dataclass(frozen=True)
class AllocatedEachPass(EpochSampler):
    """A pass is one list of positions: blocks in order, each from the front of the data to their
    end. No record is copied.

    **Guarantee:** every record's block is uniform and independent of all others and of other
    passes; every record is in exactly one block of a pass, and blocks of any size are read to their
    end.
    """

    layout: Layout
    parts: int
    count: int

    @property
    def blocks(self) -> int:
        return self.parts

    @property
    def rows_read(self) -> int:
        return self.count

    def records(self, data: object) -> int:
        return records_in(data)

    def allocate(self, words: np.ndarray) -> BatchOrder:
        return split_into_bins(words, self.parts)

    def arrange(self, data: object, key: Key) -> tuple[Any, jax.Array, jax.Array]:
        """Return the data as they are, the records' positions block by block, and where every block
        begins; (blocks + 1,)."""
        return self.place_records(data, *sort_by_bin(records_in(data), self.parts, key))

    def place_records(
        self, data: object, places: jax.Array, begins: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array]:
        return data, jnp.pad(places, (0, self.count), constant_values=records_in(data)), begins  # pyright: ignore

    def batch_sum(self, read: Read, data: Any, key: Key, k: Number) -> jax.Array:
        records, order, begins = data
        n, end = records_in(records), begins[k % self.parts + 1]

        def at(place: Number) -> jax.Array:
            places = jax.lax.dynamic_slice_in_dim(order, place, self.count)
            return read(
                take_records(records, jnp.where(place + jnp.arange(self.count) < end, places, n), n)
            )

        return until_end(begins[k % self.parts], end, self.count, at)


# Blocks of a secret order that is drawn again before every pass.


@final
@register_pytree
@dataclass(frozen=True)
class ReshuffledEachPass(EpochSampler):
    """A fresh uniform cut of the records into blocks in every pass; within a block, whose sum alone
    counts, they lie in public order, which is quicker to find.

    **Guarantee:** the blocks are cut from a uniform order (see ``permutation``), and orders of
    different passes are independent: every pass has a stream of its own.
    """

    layout: Layout
    n: int

    def records(self, data: object) -> int:
        return self.n

    @property
    def rows_read(self) -> int:
        return self.layout.rows

    def allocate(self, words: np.ndarray) -> BatchOrder:
        begins = np.minimum(np.arange(self.layout.blocks + 1) * self.layout.size, self.n)
        return BatchOrder(self.layout.slot(split_into_blocks(words, self.layout.size)), begins)

    def arrange(self, data: object, key: Key) -> Any:
        return shuffle_into_blocks(self.layout, self.n, data, key)

    def place_records(self, data: object, places: jax.Array, begins: jax.Array) -> Any:
        return take_slots(self.layout, places, data)

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


@partial(jax.jit, static_argnums=(0, 1))
def shuffle_into_blocks(layout: Layout, n: int, data: object, key: Key) -> Any:
    """Arranged records in blocks of a uniform order, in public order within each."""
    filled = jnp.pad(  # pyright: ignore
        permutation(key, 0, n), (0, -n % layout.size), constant_values=n
    )
    blocks = filled.reshape(-1, layout.size)
    return permute_records(layout, jnp.sort(blocks, axis=1).ravel()[:n], data)


TABLE: dict[type, Callable[[Any, int, int], Sampler]] = {
    FullBatch: lambda batching, n, most: InOrder(lay_out_blocks(n, n, most)),
    Cyclic: lambda batching, n, most: InOrder(lay_out_blocks(n, batching.size, most)),
    Permuted: lambda batching, n, most: PermutedOnce(lay_out_blocks(n, batching.size, most), n),
    Reshuffled: lambda batching, n, most: ReshuffledEachPass(
        lay_out_blocks(n, batching.size, most), n
    ),
    RandomAllocation: lambda batching, n, most: AllocatedEachPass(
        lay_out_rows(n), batching.blocks(n), records_at_once(batching.divisor(n), n, most)
    ),
    FixedSize: lambda batching, n, most: Subsets(lay_out_rows(n), batching.size, most),
    BallsInBins: lambda batching, n, most: Bins(
        lay_out_rows(n), batching.blocks(n), records_at_once(batching.divisor(n), n, most)
    ),
    Poisson: lambda batching, n, most: PoissonDraws(
        lay_out_rows(n), batching.rate, records_at_once(batching.divisor(n), n, DRAWN), most
    ),
}
"""From a batching, the number of records and the most records of a chunk to a sampler."""


def layout_of(run: Run, records: int, most: int) -> Layout:
    """Return the layout of so many records of a run before any draw: as the run describes it, or
    where n is nominal along one axis.

    **Guarantee:** batches, divisor and chunks follow from the public n alone.
    """
    layout = sampler_of(run.batching, run.n, most).layout
    assert run.admits(records) and (layout.flat or not run.nominal)
    return lay_out_rows(records) if run.nominal else layout


def sampler_of(batching: Batching | PublicBlocks, n: int, most: int) -> Sampler:
    """The sampler that draws as ``batching`` says; what is not in the table is refused.

    **Guarantee:** a plug-in's batching is executed here, by its checked cut.
    """
    if isinstance(batching, PublicBlocks):
        return InOrder(lay_out_cut(batching, n, most))
    if type(batching) not in TABLE:
        raise InputError(
            "batching",
            "has no sampler that draws it",
            type(batching).__name__,
            "use one of " + ", ".join(kind.__name__ for kind in TABLE),
        )
    return TABLE[type(batching)](batching, n, most)
