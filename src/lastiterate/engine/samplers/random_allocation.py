"""Every record in one of several secret batches, drawn anew in every pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number
from lastiterate.engine.samplers.bins import sorted_by_bin
from lastiterate.engine.samplers.dealt import Dealt, into_bins
from lastiterate.engine.samplers.reading import at_once, records_in, taken, until_end
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.sampler import DealtEachPass, Read
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import RandomAllocation


@final
@numbered
@dataclass(frozen=True)
class AllocatedEachPass(DealtEachPass):
    """A pass is one list of places: blocks in order, each from the front of the data to their end. No record is copied.

    **Guarantee:** every record's block is uniform and independent of all others and of other passes; every record is in
    exactly one block of a pass, and blocks of any size are read to their end.
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

    def dealt(self, words: np.ndarray) -> Dealt:
        return into_bins(words, self.parts)

    def arranged(self, data: object, key: Key) -> tuple[Any, jax.Array, jax.Array]:
        """The data as they are, the records' places block by block, and where every block begins; (blocks + 1,)."""
        return self.placed(data, *sorted_by_bin(records_in(data), self.parts, key))

    def placed(self, data: object, places: jax.Array, begins: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        return data, jnp.pad(places, (0, self.count), constant_values=records_in(data)), begins  # pyright: ignore

    def batch_sum(self, read: Read, data: Any, key: Key, k: Number) -> jax.Array:
        records, order, begins = data
        n, end = records_in(records), begins[k % self.parts + 1]

        def at(place: Number) -> jax.Array:
            places = jax.lax.dynamic_slice_in_dim(order, place, self.count)
            return read(taken(records, jnp.where(place + jnp.arange(self.count) < end, places, n), n))

        return until_end(begins[k % self.parts], end, self.count, at)


def random_allocation(batching: RandomAllocation, n: int, most: int) -> AllocatedEachPass:
    return AllocatedEachPass(in_a_row(n), batching.blocks(n), at_once(batching.divisor(n), n, most))
