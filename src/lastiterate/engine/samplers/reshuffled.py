"""Blocks of a secret order that is drawn anew before every pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax

from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.samplers.permuted import moved
from lastiterate.engine.samplers.reading import block_sum
from lastiterate.engine.samplers.record_layout import Layout, in_blocks
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Reshuffled


@final
@numbered
@dataclass(frozen=True)
class ReshuffledEachPass(Sampler):
    """A fresh uniform order of the records in every pass.

    **Guarantee:** orders of different passes are independent: every pass has a stream of its own.
    """

    layout: Layout
    n: int
    drawn = "each pass"

    def arranged(self, data: Any, key: Key) -> Any:
        return moved(self.layout, self.n, data, key)

    def batch_sum(self, read: Read, data: Any, key: Key, k: Any) -> jax.Array:
        return block_sum(read, data, k)


def reshuffled(batching: Reshuffled, n: int, most: int) -> ReshuffledEachPass:
    return ReshuffledEachPass(in_blocks(n, batching.size, most), n)
