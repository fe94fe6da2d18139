"""A fresh subset of a fixed size at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax

from lastiterate.engine.noise import Key, permutation
from lastiterate.engine.samplers.layout import Layout, in_a_row
from lastiterate.engine.samplers.reading import over_places
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import FixedSize


@final
@numbered
@dataclass(frozen=True)
class Subsets(Sampler):
    """The first ``size`` records of a fresh uniform order.

    **Guarantee:** every subset of that size is equally likely, and those of different steps are independent.
    """

    layout: Layout
    size: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: Any, key: Key, k: Any) -> jax.Array:
        return over_places(self.places(key, k), self.layout.size, self.most, read, data)

    def places(self, key: Key, k: Any) -> jax.Array:
        """The records of step k, (size,)."""
        return permutation(key, k, self.layout.size)[:self.size]


def fixed_size(batching: FixedSize, n: int, most: int) -> Subsets:
    return Subsets(in_a_row(n), batching.size, most)
