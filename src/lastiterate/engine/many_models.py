"""Many models of one run, whose steps are made together: for tests, audits and experiments."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.gaussian_noise import ORDER, Key, Number, streams
from lastiterate.engine.loop import Schedule, State, advanced, drawn_for_pass, drawn_once, outcome, schedule, start
from lastiterate.engine.noise_ahead import Noise, NoiseAhead
from lastiterate.engine.program import StepProgram
from lastiterate.engine.samplers.dealt import words
from lastiterate.engine.samplers.sampler import DealtEachPass, Sampler
from lastiterate.run.run import Run

SORTED_BY_HOST = 4000
"""Records from which on the draws of single models are sorted one after the other by NumPy."""


@dataclass
class Models:
    """One model for every key, each of them as its key alone would train it."""

    program: StepProgram
    plan: Schedule
    keys: jax.Array
    orders: jax.Array
    noise: NoiseAhead
    state: State
    data: object  #: for every model as its draw of the whole run arranges them; in public order where there is none
    current: object  #: of the pass that is being made
    done: int = 0

    @classmethod
    def begun(cls, run: Run, program: StepProgram, firsts: jax.Array, data: object, keys: Key) -> Models:
        """Before the first step. ``firsts``: of every model, (models, ...); ``data`` in public order."""
        keys = jnp.asarray(keys)
        orders, state = streams(keys, ORDER), _begun(program, firsts, keys)
        if program.sampler.drawn == "once":
            data = _drawn(program, data, keys)
        noise = NoiseAhead.of_models(keys, state.theta.shape[1:], run.steps)
        return cls(program, schedule(run), keys, orders, noise, state, data, data)

    def onward(self, until: int, every: bool = False) -> list[np.ndarray]:
        """Steps up to number ``until``; with ``every`` their iterates, in pieces (models, steps, ...)."""
        sampler, pieces = self.program.sampler, list[np.ndarray]()
        while self.done < until:
            interrupts.check()
            noise, end = self.noise.at(self.done)
            end = min(until, end)
            if sampler.drawn == "each pass":
                number = self.done // sampler.blocks
                end = min(end, (number + 1) * sampler.blocks)
                if self.done % sampler.blocks == 0:
                    self.current = self._pass(sampler, number)
            self.state, iterates = advance_many(self.program, self.state, self.current, self.orders, self.plan, noise,
                                                self.done, end, every)
            if every:
                pieces.append(np.asarray(iterates)[:, self.done - noise.first:end - noise.first])
            iterates.block_until_ready()  # no more noise is drawn than is used
            self.done = end
        return pieces

    def _pass(self, sampler: Sampler, number: int) -> object:
        """The data as every model's draw of a pass arranges them; the host sorts many records more quickly."""
        if not isinstance(sampler, DealtEachPass) or (
                n := sampler.records(self.data)) < SORTED_BY_HOST or jax.default_backend() != "cpu":
            return _drawn_for_pass(self.program, self.data, self.keys, number)
        drawn = [sampler.dealt(next(words(key, number, number + 1, n))) for key in np.asarray(self.keys)]
        places, begins = map(np.stack, zip(*drawn, strict=True))
        return _placed(self.program, self.data, places, begins)

    def outcomes(self) -> np.ndarray:
        """What every model releases now, (models, ...)."""
        return np.asarray(_outcomes(self.program, self.state))


@jax.jit
def _begun(program: StepProgram, firsts: jax.Array, keys: Key) -> State:
    return jax.vmap(lambda key, first: start(program, first, key))(keys, firsts)


@jax.jit
def _drawn(program: StepProgram, data: object, keys: Key) -> Any:
    return jax.vmap(lambda key: drawn_once(program, data, key))(keys)


@jax.jit
def _drawn_for_pass(program: StepProgram, data: object, keys: Key, number: Number) -> Any:
    return jax.vmap(lambda key: drawn_for_pass(program, data, key, number))(keys)


@jax.jit
def _placed(program: StepProgram, data: object, places: np.ndarray, begins: np.ndarray) -> Any:
    sampler = cast(DealtEachPass, program.sampler)
    return jax.vmap(partial(sampler.placed, data))(places, begins)


@partial(jax.jit, static_argnums=8, donate_argnums=1)
def advance_many(program: StepProgram, states: State, data: object, orders: jax.Array, plan: Schedule, noise: Noise,
                 first: Number, last: Number, every: bool) -> tuple[State, jax.Array]:
    """``advance`` for every model; ``data``: of each of them where batches are drawn once or in every pass."""
    shared = program.sampler.drawn in ("never", "each step")

    def one(state: State, data: object, order: jax.Array, units: Any) -> tuple[State, jax.Array]:
        return advanced(program, state, data, order, plan, noise._replace(units=units), first, last, every)

    return jax.vmap(one, (0, None if shared else 0, 0, 0))(states, data, orders, noise.units)


@jax.jit
def _outcomes(program: StepProgram, states: State) -> jax.Array:
    return jax.vmap(lambda state: outcome(program, state))(states)
