"""A fresh subset of a fixed size at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Key, below, permutation
from lastiterate.engine.samplers.reading import over_places
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import FixedSize


@final
@numbered
@dataclass(frozen=True)
class Subsets(Sampler):
    """The first ``size`` records of a fresh uniform order; few of many records by Floyd's method (Bentley and Floyd
    1987), whose work does not grow with the records.

    **Guarantee:** every subset of that size is equally likely (to a relative n 2^-64), and those of different steps are
    independent.
    """

    layout: Layout
    size: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: Any, key: Key, k: Any) -> jax.Array:
        return over_places(self.places(key, k), self.layout.size, self.most, read, data)

    def places(self, key: Key, k: Any) -> jax.Array:
        """The records of step k, (size,)."""
        n = self.layout.size
        if self.size**2 > n:
            return permutation(key, k, n)[:self.size]
        ends = n - self.size + 1 + jnp.arange(self.size)
        drawn = below(key, k, self.size, ends)

        def add(j: Any, found: jax.Array) -> jax.Array:
            """Of the first ``ends[j]`` records ``drawn[j]``, or the last, which cannot be there yet, where it is."""
            there = ((found == drawn[j]) & (jnp.arange(self.size) < j)).any()
            return found.at[j].set(jnp.where(there, ends[j] - 1, drawn[j]))

        return jax.lax.fori_loop(0, self.size, add, jnp.zeros(self.size, jnp.int64))


def fixed_size(batching: FixedSize, n: int, most: int) -> Subsets:
    return Subsets(in_a_row(n), batching.size, most)
