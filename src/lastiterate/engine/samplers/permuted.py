"""Blocks of one secret order for the whole run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number, permutation
from lastiterate.engine.samplers.reading import block_sum
from lastiterate.engine.samplers.record_layout import Layout, in_blocks
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Permuted


@final
@numbered
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

    def arranged(self, data: object, key: Key) -> Any:
        return by_words(self.layout, self.n, data, key)

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return block_sum(read, data, k)


@partial(jax.jit, static_argnums=(0, 1))
def by_words(layout: Layout, n: int, data: object, key: Key) -> Any:
    """Arranged records sorted by their random words, which is a secret order.

    Sorted by words, so that data larger than memory can be brought into the very same order (``streaming.sorting``).
    """
    return moved(layout, permutation(key, 0, n), data)


def moved(layout: Layout, order: jax.Array, data: object) -> Any:
    """Arranged records in another order, (n,); slots without a record stay 0."""
    return taken_from(layout, layout.slot(order), data)


def taken_from(layout: Layout, drawn: jax.Array, data: object) -> Any:
    """The arranged records that lie in the slots ``drawn``, (n,), in this order; slots without a record stay 0."""
    places = layout.slot(np.arange(len(drawn)))

    def one(values: jax.Array) -> jax.Array:
        flat = jnp.asarray(values).reshape(layout.slots, *values.shape[3:])
        return jnp.zeros_like(flat).at[places].set(flat[drawn], unique_indices=True).reshape(values.shape)

    return jax.tree.map(one, data)


def permuted(batching: Permuted, n: int, most: int) -> PermutedOnce:
    return PermutedOnce(in_blocks(n, batching.size, most), n)
