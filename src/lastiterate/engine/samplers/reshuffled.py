"""Blocks of a secret order that is drawn anew before every pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number
from lastiterate.engine.samplers.dealt import Dealt, in_order
from lastiterate.engine.samplers.permuted import moved
from lastiterate.engine.samplers.reading import block_sum
from lastiterate.engine.samplers.record_layout import Layout, in_blocks
from lastiterate.engine.samplers.sampler import DealtEachPass, Read
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Reshuffled


@final
@numbered
@dataclass(frozen=True)
class ReshuffledEachPass(DealtEachPass):
    """A fresh uniform order of the records in every pass.

    **Guarantee:** orders of different passes are independent: every pass has a stream of its own.
    """

    layout: Layout
    n: int

    @property
    def records(self) -> int:
        return self.n

    @property
    def rows_read(self) -> int:
        return self.layout.rows

    def dealt(self, words: np.ndarray) -> Dealt:
        begins = np.minimum(np.arange(self.layout.blocks + 1) * self.layout.size, self.n)
        return Dealt(self.layout.slot(in_order(words)), begins)

    def arranged(self, data: Any, key: Key) -> Any:
        return moved(self.layout, self.n, data, key)

    def batch_sum(self, read: Read, data: Any, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


def reshuffled(batching: Reshuffled, n: int, most: int) -> ReshuffledEachPass:
    return ReshuffledEachPass(in_blocks(n, batching.size, most), n)
