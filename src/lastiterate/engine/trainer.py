"""The trainer: one pure step, one compiled loop, nothing but the run to configure it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.domains import project
from lastiterate.engine.gradients import gradient_sum, outputs
from lastiterate.engine.noise import NOISE, ORDER, START, fresh_key, gaussian, generator, stream
from lastiterate.engine.prepare import Layout, arrange, hidden, layout, linear_loss
from lastiterate.errors import InputError
from lastiterate.run import Run
from lastiterate.schedules import Box, Constant, GaussianStart, GradientNoise, HeavyBall, Nesterov, Permuted, Reshuffled

Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, seconds; never with anything that depends on the data."""


class State(NamedTuple):
    """Parameters (k, d) float64 and what momentum remembers: the previous parameters, or the velocity."""

    theta: jax.Array
    memory: jax.Array


class Schedule(NamedTuple):
    """Step sizes and noise standard deviations; at least T of them, or 1 when they are constant."""

    step_size: np.ndarray
    noise_std: np.ndarray


def update(run: Run, state: State, rows: Any, target: Any, noise: Any, k: Any, step_size: Any) -> State:
    """Step k (0-based) on one block: the only implementation of the update rule; ``noise`` is added to the gradient."""
    loss = linear_loss(run)
    point = state.theta
    if isinstance(run.momentum, Nesterov):
        point = point + (k / (k + 3.0)) * (point - state.memory)
    gradient = gradient_sum(loss, run.clip, hidden(run), point, rows, target) / run.divisor + loss.ridge * point
    gradient = gradient + noise
    match run.momentum:
        case None:
            return State(project(run.domain, point - step_size * gradient), state.memory)
        case Nesterov():
            return State(project(run.domain, point - step_size * gradient), state.theta)
        case HeavyBall(beta):
            velocity = beta * state.memory + gradient
            return State(project(run.domain, point - step_size * velocity), velocity)


def start(run: Run, shape: tuple[int, int], key: jax.Array) -> State:
    """The first state: independent of the data, projected onto the domain."""
    theta = jnp.zeros(shape, jnp.float64)
    if isinstance(run.start, GaussianStart):
        theta = run.start.std * gaussian(stream(key, START), 0, shape)
    theta = project(run.domain, theta)
    memory = jnp.zeros_like(theta) if isinstance(run.momentum, HeavyBall) else theta
    return State(theta, memory)


def places(run: Run, key: jax.Array) -> jax.Array | None:
    """The place of every record in the one secret order, (n,); ``None`` where there is no such order."""
    return jax.random.permutation(generator(stream(key, ORDER)), run.n) if isinstance(run.batching, Permuted) else None


@partial(jax.jit, static_argnums=0)
def pass_data(run: Run, rows: Any, target: Any, key: Any, number: Any) -> tuple[Any, Any]:
    """Rows and targets of pass ``number``, cut from a fresh permutation of all records (in public order before)."""
    order = jax.random.permutation(generator(stream(stream(key, ORDER), number)), run.n)
    return ordered(run, rows, order), ordered(run, target, order)


def ordered(run: Run, values: Any, order: jax.Array) -> jax.Array:
    """Arranged rows or targets, moved from the public order to the places ``order``; slots without a record stay 0."""
    plan = layout(run)
    flat = jnp.asarray(values).reshape(plan.slots, -1)
    public = plan.slot(np.arange(run.n))
    moved = jnp.zeros_like(flat).at[plan.slot(order)].set(flat[public], unique_indices=True)
    return moved.reshape(values.shape)


@partial(jax.jit, static_argnums=(0, 1))
def _advance(run: Run, ahead: int, state: State, rows: Any, target: Any, key: Any, plan: Schedule, first: Any,
             last: Any) -> State:
    """Steps first .. last - 1; the noise of ``ahead`` steps is drawn at once, which is quicker and changes nothing."""
    def stretch(place: Any, current: State) -> State:
        begin = first + place * ahead
        noise = jax.vmap(lambda k: gaussian(key, k, state.theta.shape))(begin + jnp.arange(ahead))

        def one(k: Any, now: State) -> State:
            return _step_at(run, now, rows, target, noise[k - begin], plan, k)

        return jax.lax.fori_loop(begin, jnp.minimum(begin + ahead, last), one, current)

    return jax.lax.fori_loop(0, (last - first + ahead - 1) // ahead, stretch, state)


@partial(jax.jit, static_argnums=(0, 7))
def _trace(run: Run, state: State, rows: Any, target: Any, key: Any, plan: Schedule, first: Any, count: int) -> Any:
    def body(current: State, k: Any) -> tuple[State, jax.Array]:
        after = _step_at(run, current, rows, target, gaussian(key, k, current.theta.shape), plan, k)
        return after, after.theta

    return jax.lax.scan(body, state, first + jnp.arange(count))


def _step_at(run: Run, state: State, rows: Any, target: Any, unit: Any, plan: Schedule, k: Any) -> State:
    block = k % rows.shape[0] if rows.shape[0] > 1 else 0  # a constant index copies nothing
    step_size = plan.step_size[jnp.minimum(k, plan.step_size.shape[0] - 1)]
    std = plan.noise_std[jnp.minimum(k, plan.noise_std.shape[0] - 1)]
    return update(run, state, rows[block], target[block], std * unit, k, step_size)


def noise_ahead(parameters: int) -> int:
    """Steps whose noise is drawn at once: at most 1 MB of it, which stays in the cache."""
    return max(1, min(64, 2**17 // parameters))


def schedule(run: Run) -> Schedule:
    """The numbers of a run that a compiled program takes as arguments; padded, so that few lengths are compiled."""
    count = 1 if run.constant else run.steps
    padded = 1 << (count - 1).bit_length()  # entries beyond the last step are never read
    found = np.array([[run.step_size.at(k), run.noise_std(k)] for k in range(count)])
    return Schedule(*np.pad(found, ((0, padded - count), (0, 0)), mode="edge").T)


def shape_of(run: Run) -> Run:
    """The run without the numbers that are passed as arguments: one compiled program for all of them."""
    return replace(run, steps=1, step_size=Constant(1.0), noise=GradientNoise(1.0), prelude=(), adjacency="zero-out",
                   start=run.start)


@dataclass(frozen=True)
class Trainer:
    """Executes a run on linear models; weights lie outputs x (features + intercept)."""

    run: Run

    def fit(self, features: Any, target: Any, key: jax.Array | None = None, progress: Progress | None = None,
            centres: tuple[np.ndarray, ...] = ()) -> Any:
        """Train and return the last iterate, (k, d + 1) float64 (all of them, (T, k, d + 1), for release="all").

        ``key``: only for tests and audits; by default 128 fresh bits from the operating system. ``centres``: one
        private mean for each part of the run's prelude. Errors: bad data, or a diverging run; then nothing is returned.

        **Guarantee:** exactly the run that is accounted: rows clipped, noise at every step, no other output.
        """
        key = fresh_key() if key is None else key
        with jax.enable_x64(True):
            order = places(self.run, key)
            rows, labels = arrange(self.run, features, target, None if order is None else np.asarray(order), centres)
            state = start(self.run, self._shape(rows), key)
            data = jax.device_put(rows, may_alias=True), jnp.asarray(labels)
            released = (self._all if self.run.release == "all" else self._loop)(state, data, key, progress)
        if not np.isfinite(released).all():
            raise InputError("step_size", "makes the run diverge: an iterate is not finite", None,
                             "stay below 2/smooth, or add a ridge or a domain; nothing was released")
        return released

    def _shape(self, rows: np.ndarray) -> tuple[int, int]:
        shape = (outputs(linear_loss(self.run)), rows.shape[-1])
        if isinstance(self.run.domain, Box) and self.run.domain.dimension not in (None, math.prod(shape)):
            # the accountant's diameter grows with the dimension: a smaller one would understate epsilon
            raise InputError("dimension of the box", f"must be the number of parameters, {math.prod(shape)}",
                             self.run.domain.dimension, "outputs times (features + 1), or leave it out")
        return shape

    def _loop(self, state: State, data: tuple[Any, Any], key: Any, progress: Progress | None) -> np.ndarray:
        plan, steps, shape, noise = schedule(self.run), self.run.steps, shape_of(self.run), stream(key, NOISE)
        began, done, share, ahead = time.perf_counter(), 0, 1 if progress is None else 50, noise_ahead(state.theta.size)
        current = data
        while done < steps:
            until = min(steps, done + math.ceil(steps / share))
            if isinstance(self.run.batching, Reshuffled):
                until = min(until, (done // self.run.blocks + 1) * self.run.blocks)
                if done % self.run.blocks == 0:
                    current = pass_data(shape, *data, key, done // self.run.blocks)
            state = _advance(shape, ahead, state, *current, noise, plan, done, until)
            done = until
            if progress is not None:
                state.theta.block_until_ready()
                progress(done, steps, time.perf_counter() - began)
        return np.asarray(state.theta)

    def _all(self, state: State, data: tuple[Any, Any], key: Any, _: Progress | None) -> np.ndarray:
        """Every iterate, (T, k, d)."""
        plan, steps, shape, noise = schedule(self.run), self.run.steps, shape_of(self.run), stream(key, NOISE)
        if not isinstance(self.run.batching, Reshuffled):
            return np.asarray(_trace(shape, state, *data, noise, plan, 0, steps)[1])
        found: list[np.ndarray] = []
        for first in range(0, steps, self.run.blocks):
            current = pass_data(shape, *data, key, first // self.run.blocks)
            state, part = _trace(shape, state, *current, noise, plan, first, min(self.run.blocks, steps - first))
            found.append(np.asarray(part))
        return np.concatenate(found)

    def fit_many(self, features: Any, target: Any, keys: jax.Array) -> np.ndarray:
        """Train one model per key in a single vectorised program; (models, k, d + 1). For tests and audits."""
        rows, labels = arrange(self.run, features, target)
        run, plan, steps, size = shape_of(self.run), schedule(self.run), self.run.steps, self._shape(rows)

        def one(key: jax.Array) -> jax.Array:
            order, noise, state = places(run, key), stream(key, NOISE), start(run, size, key)
            data = (rows, labels) if order is None else (ordered(run, rows, order), ordered(run, labels, order))
            if not isinstance(run.batching, Reshuffled):
                return _advance(run, 1, state, *data, noise, plan, 0, steps).theta

            def one_pass(number: Any, current: State) -> State:
                first = number * run.blocks
                data = pass_data(run, rows, labels, key, number)
                return _advance(run, 1, current, *data, noise, plan, first, jnp.minimum(first + run.blocks, steps))

            return jax.lax.fori_loop(0, -(-steps // run.blocks), one_pass, state).theta

        with jax.enable_x64(True):
            return np.asarray(jax.jit(jax.vmap(one))(keys))


__all__ = ["Layout", "Progress", "Trainer", "fresh_key", "schedule", "update"]
