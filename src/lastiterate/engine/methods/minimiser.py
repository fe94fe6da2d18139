"""The minimiser of a perturbed objective: accelerated gradient steps in double precision, always as many."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.gaussian_noise import NOISE, Key, Number, gaussian, stream
from lastiterate.engine.gradients import Linear
from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.methods import last_noise, minimiser_of
from lastiterate.run.perturbed_minimiser import linear_term, look_ahead
from lastiterate.run.run import Run

STRETCHES = 50
"""Parts of a run after which progress is shown; how many changes no bit."""


def minimised(run: Run, rows: np.ndarray, labels: np.ndarray, key: Key,
              progress: Callable[[int, int, float], None] | None = None) -> np.ndarray:
    """The released weights (k, d + 1) float64 of arranged rows (1, chunks, m, d + 1) and labels (1, chunks, m).

    **Guarantee:** the random linear term and the noise on the minimiser are those of the description, drawn apart; the
    number of steps is the run's, whatever the data are, and no step is looked at.
    """
    shape = _shape(run, rows)
    term, last = _drawn((linear_term(run), last_noise(run.method, run)), key, shape)
    model, numbers = Linear(linear_loss(run), None, exact=True), _numbers(run)
    state, data, began = (jnp.zeros(shape), jnp.zeros(shape)), _data(rows, labels), time.perf_counter()
    stretch = run.steps if progress is None else -(-run.steps // STRETCHES)
    for done in range(0, run.steps, stretch):
        count = min(stretch, run.steps - done)
        state = _steps(model, state, data, term, numbers, count)
        if progress is not None:
            state[0].block_until_ready()
            progress(done + count, run.steps, time.perf_counter() - began)
    return np.asarray(state[0] + last)


def many_minimised(run: Run, rows: np.ndarray, labels: np.ndarray, keys: Key) -> np.ndarray:
    """The released weights for every key, (models, k, d + 1), in one vectorised program. For tests and audits."""
    shape, model = _shape(run, rows), Linear(linear_loss(run), None, exact=True)
    scales = jnp.array([linear_term(run), last_noise(run.method, run)])
    return np.asarray(_many(model, _data(rows, labels), scales, _numbers(run), run.steps, jnp.asarray(keys), shape))


def _shape(run: Run, rows: np.ndarray) -> tuple[int, int]:
    method = minimiser_of(run.method)
    assert method is not None
    shape = (linear_loss(run).outputs, rows.shape[-1])
    if shape[0] * shape[1] != method.parameters:
        raise InputError("parameters", f"must be the model's {shape[0] * shape[1]}", method.parameters,
                         "count outputs times (features + 1)")
    return shape


def _drawn(scales: tuple[float, float] | jax.Array, key: Key, shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
    """The random linear term, and the noise on the minimiser."""
    noise = stream(key, NOISE)
    return scales[0] * gaussian(noise, 0, shape), scales[1] * gaussian(noise, 1, shape)


def _data(rows: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(rows[0]), jnp.asarray(labels[0])


def _numbers(run: Run) -> jax.Array:
    return jnp.array([run.first_step, run.loss.ridge, look_ahead(run), run.n])


@jax.jit
def _steps(model: Linear, state: object, data: Any, term: jax.Array, numbers: jax.Array, count: Number) -> Any:
    """``count`` accelerated steps on the mean objective; state: this iterate and the last one."""
    step, ridge, ahead, n = numbers

    def gradient(point: jax.Array) -> jax.Array:
        total, _ = jax.lax.scan(lambda held, chunk: (held + model.chunk_sum(point, chunk), None),
                                jnp.zeros_like(point), data)
        return (total + term) / n + ridge * point

    def one(_: object, held: tuple[jax.Array, jax.Array]) -> Any:
        here, before = held
        point = here + ahead * (here - before)
        return point - step * gradient(point), here

    return jax.lax.fori_loop(0, count, one, state)


@partial(jax.jit, static_argnames="shape")
def _many(model: Linear, data: object, scales: jax.Array, numbers: jax.Array, count: Number, keys: jax.Array,
          shape: tuple[int, int]) -> jax.Array:
    """Compiled once for all batches of models and all data of one shape."""
    def one(key: Key) -> jax.Array:
        term, last = _drawn(scales, key, shape)
        return _steps(model, (jnp.zeros(shape), jnp.zeros(shape)), data, term, numbers, count)[0] + last

    return jax.vmap(one)(keys)
