"""The one step and the compiled loop around it, the same for every model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.batches import in_bins, layout, permuted, read_at_once
from lastiterate.engine.noise import NOISE, ORDER, START, gaussian, stream
from lastiterate.engine.objective import Objective
from lastiterate.engine.prox import project, proximal
from lastiterate.engine.sums import batch_sum
from lastiterate.run.batching import BallsInBins, Permuted
from lastiterate.run.momentum import HeavyBall, Nesterov
from lastiterate.run.noise import GradientNoise
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart
from lastiterate.run.step_sizes import Constant


class State(NamedTuple):
    """Parameters, float64, and what momentum remembers: the previous parameters, or the velocity."""

    theta: jax.Array
    memory: jax.Array


class Schedule(NamedTuple):
    """Step sizes and noise standard deviations; at least T of them, or 1 when they are constant."""

    step_size: np.ndarray
    noise_std: np.ndarray


def update(run: Run, objective: Objective, state: State, data: Any, order: Any, noise: Any, k: Any,
           step_size: Any) -> State:
    """Step k (0-based): the only implementation of the update rule; ``noise`` is added to the mean gradient."""
    point = state.theta
    if isinstance(run.momentum, Nesterov):
        point = point + (k / (k + 3.0)) * (point - state.memory)
    gradient = batch_sum(run, objective, point, data, order, k) / run.divisor + objective.ridge * point + noise
    match run.momentum:
        case None:
            velocity, memory = gradient, state.memory
        case Nesterov():
            velocity, memory = gradient, state.theta
        case HeavyBall(beta):
            velocity = memory = beta * state.memory + gradient
    moved = objective.leafwise(partial(proximal, run.prox, step_size), point - step_size * velocity)
    return State(project(run.domain, moved), memory)


def start(run: Run, initial: jax.Array, key: jax.Array) -> State:
    """The first state: independent of the data, projected onto the domain."""
    theta = jnp.asarray(initial, jnp.float64)
    if isinstance(run.start, GaussianStart):
        theta = theta + run.start.std * gaussian(stream(key, START), 0, theta.shape)
    theta = project(run.domain, theta)
    return State(theta, jnp.zeros_like(theta) if isinstance(run.momentum, HeavyBall) else theta)


@partial(jax.jit, static_argnums=(0, 1, 2))
def advance(run: Run, objective: Objective, ahead: int, state: State, data: Any, key: Any, plan: Schedule, first: Any,
            last: Any) -> State:
    """Steps first .. last - 1; the noise of ``ahead`` steps is drawn at once, which is quicker and changes nothing."""
    noise_key, order = stream(key, NOISE), stream(key, ORDER)

    def stretch(place: Any, current: State) -> State:
        begin = first + place * ahead
        noise = jax.vmap(lambda k: gaussian(noise_key, k, state.theta.shape))(begin + jnp.arange(ahead))

        def one(k: Any, now: State) -> State:
            return step_at(run, objective, now, data, order, noise[k - begin], plan, k)

        return jax.lax.fori_loop(begin, jnp.minimum(begin + ahead, last), one, current)

    return jax.lax.fori_loop(0, (last - first + ahead - 1) // ahead, stretch, state)


@partial(jax.jit, static_argnums=(0, 1, 7))
def trace(run: Run, objective: Objective, state: State, data: Any, key: Any, plan: Schedule, first: Any,
          count: int) -> tuple[State, jax.Array]:
    """``count`` steps from ``first`` on, and all their iterates, (count, ...)."""
    noise_key, order = stream(key, NOISE), stream(key, ORDER)

    def body(current: State, k: Any) -> tuple[State, jax.Array]:
        noise = gaussian(noise_key, k, current.theta.shape)
        after = step_at(run, objective, current, data, order, noise, plan, k)
        return after, after.theta

    return jax.lax.scan(body, state, first + jnp.arange(count))


def step_at(run: Run, objective: Objective, state: State, data: Any, order: Any, unit: Any, plan: Schedule,
            k: Any) -> State:
    """Step k with ``unit`` normal noise and the plan's numbers."""
    step_size = plan.step_size[jnp.minimum(k, plan.step_size.shape[0] - 1)]
    std = plan.noise_std[jnp.minimum(k, plan.noise_std.shape[0] - 1)]
    return update(run, objective, state, data, order, std * unit, k, step_size)


def secret(run: Run, most: int, data: Any, key: Any) -> Any:
    """The records as the secret draw of the whole run arranges them (in public order before); without one, uncopied."""
    match run.batching:
        case Permuted():
            return permuted(run, data, stream(key, ORDER), layout(run, most))
        case BallsInBins():
            return in_bins(run, data, stream(key, ORDER), read_at_once(run, most))
        case _:
            return data


def pass_data(run: Run, most: int, data: Any, key: Any, number: Any) -> Any:
    """The records of pass ``number``, cut from a fresh permutation (in public order before)."""
    return permuted(run, data, stream(stream(key, ORDER), number), layout(run, most))


def noise_ahead(parameters: int) -> int:
    """Steps whose noise is drawn at once: at most 1 MB of it, which stays in the cache."""
    return max(1, min(64, 2**17 // parameters))


def schedule(run: Run) -> Schedule:
    """The numbers of a run that a compiled program takes as arguments; padded, so that few lengths are compiled."""
    count = 1 if run.constant else run.steps
    padded = 1 << (count - 1).bit_length()  # entries beyond the last step are never read
    found = np.column_stack((run.step_sizes[:count], run.noise_stds[:count]))
    return Schedule(*np.pad(found, ((0, padded - count), (0, 0)), mode="edge").T)


def shape_of(run: Run) -> Run:
    """The run without the numbers that are passed as arguments: one compiled program for all of them."""
    return replace(run, steps=1, step_size=Constant(1.0), noise=GradientNoise(1.0), prelude=(), adjacency="zero-out")
