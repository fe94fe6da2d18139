"""Variance-reduced steps: a noisy full gradient at a snapshot, and noisy differences to it until the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import Key, Number
from lastiterate.engine.samplers.reading import over_places, records_in
from lastiterate.engine.samplers.sampler import Sampler
from lastiterate.run.methods import snapshots_of
from lastiterate.run.run import Run
from lastiterate.run.variance_reduced_steps import moved_smooth


@final
@dataclass(frozen=True)
class Reduction:
    """The numbers of steps that follow snapshots: L and beta; noise on a sum of gradients in units of L, and on a sum
    of differences in units of their clip."""

    every: float
    lipschitz: float
    smooth: float
    at_snapshots: float
    between: float

    @classmethod
    def of(cls, run: Run) -> Reduction:
        """Of a run whose steps follow snapshots."""
        method = snapshots_of(run.method)
        assert method is not None and run.noise_unit is not None
        return cls(float(method.every), run.noise_unit, moved_smooth(run), method.snapshot_multiplier(run),
                   method.difference_multiplier(run))

    def memory(self, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Room for a snapshot and its noisy mean gradient."""
        return jnp.zeros_like(theta), jnp.zeros_like(theta)

    def followed(self, objective: Any, sampler: Sampler, theta: jax.Array, memory: tuple[jax.Array, ...], data: object,
                 order: Key, unit: jax.Array, k: Number) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """What step k follows: a noisy sum over its batch, what is added to the mean of that, and the memory after it.

        ``objective``: a linear model's, by the run's description. ``memory``: the snapshot and its noisy mean gradient.
        ``unit``: normal noise, shaped like ``theta``.

        **Guarantee:** a difference is clipped to a length that follows from ``theta`` and the snapshot alone, by its
        own computed norm, and its noise is ``between`` times that length: L and beta need not be trusted. At a snapshot
        no batch is read, between snapshots no full gradient.
        """
        layout = sampler.layout

        def at_snapshot(_: object) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
            n, most = records_in(data), objective.most  # read as they are, and divided by the public n
            total = over_places(jnp.arange(n), n, most, lambda chunk: objective.chunk_sum(theta, chunk), data)
            mean = (total + self.at_snapshots * self.lipschitz * unit) / layout.size
            return jnp.zeros_like(theta), mean, (theta, mean)

        def between(_: object) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
            snapshot, mean = memory
            longest = jnp.minimum(2 * self.lipschitz, self.smooth * jnp.sqrt(((theta - snapshot) ** 2).sum()))
            total = sampler.batch_sum(lambda chunk: objective.moved_sum(theta, snapshot, longest, chunk), data, order,
                                      k)
            return total + self.between * longest * unit, mean, memory  # noise first: what follows may round

        return jax.lax.cond(k % self.every == 0, at_snapshot, between, None)
