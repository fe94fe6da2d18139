"""Noise of steps whose gradients another library computes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lastiterate.engine.gaussian_noise import NOISE, ORDER, Key, Number, gaussian, stream
from lastiterate.engine.loop import Schedule, State, noise_ahead, noise_at
from lastiterate.engine.program import StepProgram


class Streams(NamedTuple):
    """Streams of a run's key: of secret draws, and of noise."""

    order: Key
    noise: Key


def streams_of(key: Key) -> Streams:
    return Streams(stream(key, ORDER), stream(key, NOISE))


@dataclass
class NoiseAhead:
    """Noise of one step after the other, which is drawn for several at once: quicker, and the same bits."""

    parameters: int
    _first: int = 0
    _units: jax.Array | None = None

    def of_step(self, program: StepProgram, state: State, own: Streams, plan: Schedule,
                k: int) -> tuple[jax.Array, State]:
        """The noise of step k, shaped like the parameters, and the state that remembers it."""
        many = noise_ahead(self.parameters)
        if self._units is None or not self._first <= k < self._first + many:
            self._first, self._units = k, _units(own.noise, k, many, self.parameters)
        return _noise_of(program, state, self._units, k - self._first, plan, k)


@partial(jax.jit, static_argnums=(2, 3))
def _units(stream: Key, first: Number, many: int, parameters: int) -> jax.Array:
    """Normal noise of steps ``first`` to ``first + many - 1``, (many, parameters)."""
    return jax.vmap(lambda k: gaussian(stream, k, (parameters,)))(first + jnp.arange(many))


@jax.jit
def _noise_of(program: StepProgram, state: State, units: jax.Array, place: Number, plan: Schedule,
              k: Number) -> tuple[jax.Array, State]:
    """What step k adds, from row ``place`` of normal noise, and the state that remembers it."""
    return noise_at(program, state, units[place], plan, k)


@jax.jit
def noise_many(program: StepProgram, states: State, owns: Streams, plan: Schedule,
                k: Number) -> tuple[jax.Array, State]:
    """The noise of step k for every key, and the states that remember it."""
    return jax.vmap(lambda state, own: noise_at(program, state, gaussian(own.noise, k, state.theta.shape), plan, k))(
        states, owns)
