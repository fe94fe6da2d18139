"""Full batches, and blocks in public order: nothing is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import jax

from lastiterate.engine.gaussian_noise import Key, Number
from lastiterate.engine.samplers.reading import block_sum
from lastiterate.engine.samplers.record_layout import Layout, in_blocks
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Cyclic, FullBatch


@final
@numbered
@dataclass(frozen=True)
class InOrder(Sampler):
    """The same blocks in every pass."""

    layout: Layout
    drawn = "never"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


def full(batching: FullBatch, n: int, most: int) -> InOrder:
    return InOrder(in_blocks(n, n, most))


def cyclic(batching: Cyclic, n: int, most: int) -> InOrder:
    return InOrder(in_blocks(n, batching.size, most))
