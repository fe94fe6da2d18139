"""A fresh subset of a fixed size at every step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Key, Number, below, permutation, stream
from lastiterate.engine.samplers.reading import over_places
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import FixedSize


@final
@numbered
@dataclass(frozen=True)
class Subsets(Sampler):
    """The first ``size`` different records of uniform draws, whose work does not grow with the records; more than half
    of them are the first of an order.

    **Guarantee:** every subset of that size is equally likely (to a relative n 2^-64), and those of different steps are
    independent: whether enough draws differ says nothing of which records these are, and if not, all are drawn again.
    """

    layout: Layout
    size: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        return over_places(self.places(key, k), self.layout.size, self.most, read, data)

    def places(self, key: Key, k: Number) -> jax.Array:
        """The records of step k in public order, (size,)."""
        n, size = self.layout.size, self.size
        if 2 * size > n:
            return jnp.sort(permutation(key, k, n)[:size])
        own, many = stream(key, k), draws(n, size)

        def again(state: tuple[Any, ...]) -> tuple[Any, ...]:
            return state[0] + 1, *different(below(own, state[0], many, n), size)

        return jax.lax.while_loop(lambda state: state[1] < size, again, (0, 0, jnp.zeros(size, jnp.int64)))[2]


def draws(n: int, size: int) -> int:
    """Uniform draws of which ``size`` nearly always differ: the mean of what it takes and six standard deviations."""
    taken = np.arange(size) / n  # a draw is new with probability 1 - taken
    return math.ceil((1 / (1 - taken)).sum() + 6 * math.sqrt((taken / (1 - taken) ** 2).sum()) + 6)


def different(drawn: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """How many numbers differ, and the first ``size`` of these in the order of the draws, sorted; (size,)."""
    order = jnp.argsort(drawn, stable=True)
    ordered = drawn[order]
    new = jnp.concatenate((jnp.ones(1, bool), ordered[1:] != ordered[:-1]))  # the earliest draw of its number
    count = jnp.cumsum(jnp.zeros_like(new).at[order].set(new, unique_indices=True))
    chosen = new & (count[order] <= size)
    return count[-1], ordered[jnp.nonzero(chosen, size=size)[0]]


def fixed_size(batching: FixedSize, n: int, most: int) -> Subsets:
    return Subsets(in_a_row(n), batching.size, most)
