"""Variance-reduced steps: a noisy full gradient at a snapshot, and noisy differences to it until the next one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from lastiterate.engine.noise import Key
from lastiterate.engine.samplers.reading import over_places
from lastiterate.run.noise import SnapshotNoise
from lastiterate.run.run import Run
from lastiterate.run.snapshots import difference_multiplier, moved_smooth, snapshot_multiplier

if TYPE_CHECKING:
    from lastiterate.engine.program import StepProgram


@final
@dataclass(frozen=True)
class Reduction:
    """The numbers of ``SnapshotNoise`` in a run: L and beta; noise on a sum of gradients in units of L, and on a sum of
    differences in units of their clip."""

    every: float
    lipschitz: float
    smooth: float
    at_snapshots: float
    between: float


def reduction_of(run: Run) -> Reduction | None:
    """Of a run whose steps follow snapshots; ``None`` for any other."""
    if type(run.noise) is not SnapshotNoise:
        return None
    assert run.noise_unit is not None
    return Reduction(float(run.noise.every), run.noise_unit, moved_smooth(run), snapshot_multiplier(run),
                     difference_multiplier(run))


def followed(program: StepProgram, theta: jax.Array, memory: jax.Array, data: Any, order: Key, unit: jax.Array, k: Any
             ) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What step k follows: a noisy sum over its batch, what is added to the mean of that, and the memory after it.

    ``memory``: the snapshot and its noisy mean gradient, (2, ...). ``unit``: normal noise, shaped like ``theta``.

    **Guarantee:** a difference is clipped to a length that follows from ``theta`` and the snapshot alone, by its own
    computed norm, and its noise is ``between`` times that length: L and beta need not be trusted. At a snapshot no
    batch is read, between snapshots no full gradient.
    """
    this, layout = program.reduction, program.sampler.layout
    assert this is not None
    objective: Any = program.objective  # a linear model's, by the run's description

    def at_snapshot(_: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        every = jnp.arange(layout.size)
        total = over_places(every, layout.size, objective.most, lambda chunk: objective.chunk_sum(theta, chunk), data)
        mean = (total + this.at_snapshots * this.lipschitz * unit) / layout.size
        return jnp.zeros_like(theta), mean, jnp.stack((theta, mean))

    def between(_: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        snapshot, mean = memory
        longest = jnp.minimum(2 * this.lipschitz, this.smooth * jnp.sqrt(((theta - snapshot) ** 2).sum()))
        total = program.sampler.batch_sum(lambda chunk: objective.moved_sum(theta, snapshot, longest, chunk), data,
                                          order, k)
        return total + this.between * longest * unit, mean, memory  # noise first: what follows may round

    return jax.lax.cond(k % this.every == 0, at_snapshot, between, None)
