"""Every record in every batch with a probability, independently: gaps between drawn records are geometric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Key, Number, stream, uniform
from lastiterate.engine.samplers.reading import at_once, over_places, records_in
from lastiterate.engine.samplers.record_layout import Layout, in_a_row
from lastiterate.engine.samplers.sampler import Read, Sampler
from lastiterate.engine.structure import numbered
from lastiterate.run.batching import Poisson

DRAWN = 1024
"""Places that are drawn at once, at most: not the chunks of a model, so that any of them read the same records."""


@final
@numbered
@dataclass(frozen=True)
class PoissonDraws(Sampler):
    """Gaps are drawn, ``count`` at a time, until they lead past the last record.

    **Guarantee:** every record is drawn with probability ``rate`` (to the resolution of double precision),
    independently of all others and of other steps; batches of any size are read to their end.
    """

    layout: Layout
    rate: float
    count: int
    most: int
    drawn = "each step"

    def batch_sum(self, read: Read, data: object, key: Key, k: Number) -> jax.Array:
        n, own = records_in(data), stream(key, k)

        def more(state: tuple[Any, Any, Any]) -> Any:
            places, _, _ = state
            return places[0] < n

        def add(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            places, number, total = state
            later = self.places(own, number + 1, places[-1] + 1)
            return later, number + 1, total + over_places(places, n, self.most, read, data)

        first = self.places(own, 0, jnp.int64(0))
        shape = jax.eval_shape(lambda: over_places(first, n, self.most, read, data))
        return jax.lax.while_loop(more, add, (first, jnp.int64(0), jnp.zeros(shape.shape, jnp.float64)))[2]

    def places(self, key: Key, number: Number, begin: jax.Array) -> jax.Array:
        """Places of the next ``count`` drawn records from ``begin`` on, increasing; past the end where there are fewer.

        P[gap > g] = (1 - rate)^g, by inversion of a uniform number.
        """
        gaps = jnp.floor(jnp.log(uniform(key, number, self.count)) / jnp.log1p(-self.rate))
        return begin - 1 + jnp.cumsum(1 + jnp.minimum(gaps, 2.0**40).astype(jnp.int64))


def poisson(batching: Poisson, n: int, most: int) -> PoissonDraws:
    return PoissonDraws(in_a_row(n), batching.rate, at_once(batching.divisor(n), n, DRAWN), most)
