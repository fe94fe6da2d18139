"""Every record in one of several secret batches, the same in every pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Key, Number, below
from lastiterate.engine.samplers.reading import at_once, kept, until_end
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import BallsInBins


@final
@numbered
@dataclass(frozen=True)
class Bins(Sampler):
    """Records sorted by their bins, which lie next to one another: every pass reads them from front to end.

    **Guarantee:** every record's bin is uniform and independent of all others; bins of any size are read to their end.
    """

    layout: Layout
    bins: int
    count: int
    drawn = "once"

    @property
    def blocks(self) -> int:
        return self.bins

    def arranged(self, data: object, key: Key) -> tuple[Any, jax.Array]:
        """Records sorted by their bins, with empty slots behind, and where every bin begins; (bins + 1,)."""
        return by_bin(self.layout.size, self.bins, self.count, data, key)

    def batch_sum(self, read: Read, data: Any, key: Key, k: Number) -> jax.Array:
        records, begins = data
        end = begins[k % self.bins + 1]

        def at(place: Number) -> jax.Array:
            chunk = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, place, self.count), records)
            return read(kept(chunk, place + jnp.arange(self.count) < end))

        return until_end(begins[k % self.bins], end, self.count, at)


@partial(jax.jit, static_argnums=(0, 1))
def sorted_by_bin(n: int, bins: int, key: Key) -> tuple[jax.Array, jax.Array]:
    """Records in the order of their uniform bins, in public order within each, and where every bin begins."""
    drawn = below(key, 0, n, bins)
    order = jnp.argsort(drawn, stable=True)
    return order, jnp.searchsorted(drawn[order], jnp.arange(bins + 1))


@partial(jax.jit, static_argnums=(0, 1, 2))
def by_bin(n: int, bins: int, more: int, data: object, key: Key) -> tuple[Any, jax.Array]:
    order, begins = sorted_by_bin(n, bins, key)
    return jax.tree.map(lambda a: jnp.pad(jnp.asarray(a)[order], ((0, more),) + ((0, 0),) * (a.ndim - 1)), data), begins  # pyright: ignore


def balls_in_bins(batching: BallsInBins, n: int, most: int) -> Bins:
    return Bins(in_a_row(n), batching.blocks(n), at_once(batching.divisor(n), n, most))
