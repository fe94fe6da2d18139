"""How steps end whose gradients another library computes, and whose optimizer may be that library's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import Number, Real
from lastiterate.engine.loop import Schedule, State, ended, moved_against, noise_at, noisy_mean
from lastiterate.engine.noise_ahead import Noise
from lastiterate.engine.program import StepProgram
from lastiterate.run.update_rule import Memory, UpdateRule


@dataclass
class StepEnds:
    """How steps end; what an optimizer of another library remembers is held here, beside the state of the loop."""

    program: StepProgram
    plan: Schedule
    rule: UpdateRule | None
    memory: Memory = ()

    def ended(self, state: State, point: jax.Array, total: np.ndarray | jax.Array, noise: Real, k: int) -> State:
        """Step k from the sum that came from outside."""
        if self.rule is None:
            return external_ended(self.program, state, point, total, noise, self.plan, k)
        gradient = np.asarray(_mean_outside(self.program, point, total, noise))
        direction, self.memory = self.rule.update(gradient, self.memory, np.asarray(state.theta), k)
        return _moved_outside(self.program, state, point, direction, self.plan, k)

    def kept(self, state: State) -> dict[str, np.ndarray]:
        """What a checkpoint holds."""
        return (state if self.rule is None else state._replace(memory=self.memory)).kept()

    def restored(self, arrays: Mapping[str, np.ndarray]) -> State:
        """The state that ``kept`` gave."""
        state = State.restored(arrays)
        if self.rule is None:
            return state
        self.memory = tuple(np.asarray(array) for array in state.memory)
        return state._replace(memory=())


external_noise = jax.jit(noise_at)


@jax.jit
def noise_of_models(program: StepProgram, states: State, noise: Noise, plan: Schedule,
                    k: Number) -> tuple[jax.Array, State]:
    """The noise of step k for every model, and the states that remember it."""
    return jax.vmap(lambda state, units: noise_at(program, state, noise._replace(units=units), plan, k))(
        states, noise.units)


@jax.jit
def external_ended(program: StepProgram, state: State, point: jax.Array, total: np.ndarray | jax.Array, noise: Real,
                  plan: Schedule, k: Number) -> State:
    """Step k from the sum that came from outside."""
    step_size = plan.step_size[jnp.minimum(k, plan.step_size.shape[0] - 1)]
    return ended(program, state, point, total, noise, k, step_size)


@jax.jit
def _mean_outside(program: StepProgram, point: jax.Array, total: np.ndarray | jax.Array, noise: Real) -> jax.Array:
    return noisy_mean(program, point, total, noise)


@jax.jit
def _moved_outside(program: StepProgram, state: State, point: jax.Array, direction: jax.Array, plan: Schedule,
                   k: Number) -> State:
    return moved_against(program, state, point, direction, k,
                         plan.step_size[jnp.minimum(k, plan.step_size.shape[0] - 1)])
