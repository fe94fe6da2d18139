"""Blocks of a secret order that is drawn anew before every pass."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number, permutation
from lastiterate.engine.samplers.dealt import Dealt, into_blocks
from lastiterate.engine.samplers.permuted import moved, taken_from
from lastiterate.engine.samplers.reading import block_sum
from lastiterate.engine.samplers.record_layout import Layout, in_blocks
from lastiterate.engine.samplers.sampler import DealtEachPass, Read
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Reshuffled


@final
@numbered
@dataclass(frozen=True)
class ReshuffledEachPass(DealtEachPass):
    """A fresh uniform cut of the records into blocks in every pass; within a block, whose sum alone counts, they lie in
    public order, which is quicker to find.

    **Guarantee:** the blocks are cut from a uniform order (see ``permutation``), and orders of different passes are
    independent: every pass has a stream of its own.
    """

    layout: Layout
    n: int

    def records(self, data: object) -> int:
        return self.n

    @property
    def rows_read(self) -> int:
        return self.layout.rows

    def dealt(self, words: np.ndarray) -> Dealt:
        begins = np.minimum(np.arange(self.layout.blocks + 1) * self.layout.size, self.n)
        return Dealt(self.layout.slot(into_blocks(words, self.layout.size)), begins)

    def arranged(self, data: object, key: Key) -> Any:
        return into_fresh_blocks(self.layout, self.n, data, key)

    def placed(self, data: object, places: jax.Array, begins: jax.Array) -> Any:
        return taken_from(self.layout, places, data)

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


@partial(jax.jit, static_argnums=(0, 1))
def into_fresh_blocks(layout: Layout, n: int, data: object, key: Key) -> Any:
    """Arranged records in blocks of a uniform order, in public order within each."""
    blocks = jnp.pad(permutation(key, 0, n), (0, -n % layout.size), constant_values=n).reshape(-1, layout.size)  # pyright: ignore
    return moved(layout, jnp.sort(blocks, axis=1).ravel()[:n], data)


def reshuffled(batching: Reshuffled, n: int, most: int) -> ReshuffledEachPass:
    return ReshuffledEachPass(in_blocks(n, batching.size, most), n)
