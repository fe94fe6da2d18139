"""Methods other than plain steps, averages of iterates, proximal maps, projections."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.linear_gradients import Linear, linear_loss
from lastiterate.engine.random import NOISE, Key, Number, Real, gaussian, stream
from lastiterate.engine.sampler_interface import Sampler, records_in, sum_over_places
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Ball, Box, Domain, Everywhere, Simplex
from lastiterate.run.methods import (
    ExponentialAverage,
    ObjectivePerturbation,
    TailAverage,
    data_smoothness,
    last_noise,
    linear_term,
    look_ahead,
    minimiser_of,
    snapshots_of,
)
from lastiterate.run.penalties import L1, ElasticNet, GroupLasso, L2Squared, NuclearNorm, Prox
from lastiterate.run.run import Run

# The minimiser of a perturbed objective: accelerated gradient steps in double precision, always as
# many.

STRETCHES = 50
"""Parts of a run after which progress is shown; how many changes no bit."""


def minimise_perturbed(
    run: Run,
    rows: np.ndarray,
    labels: np.ndarray,
    key: Key,
    progress: Callable[[int, int, float], None] | None = None,
) -> np.ndarray:
    """The released weights (k, d + 1) float64 of arranged rows (1, chunks, m, d + 1) and labels (1,
    chunks, m).

    **Guarantee:** the random linear term and the noise on the minimiser are those of the
    description, drawn apart; the number of steps is the run's, whatever the data are, and no step
    is looked at.
    """
    shape = _shape(run, rows)
    term, last = _draw_terms((linear_term(run), last_noise(run.method, run)), key, shape)
    model, numbers = Linear(linear_loss(run), None, exact=True), _numbers(run)
    state, data, began = (
        (jnp.zeros(shape), jnp.zeros(shape)),
        _data(rows, labels),
        time.perf_counter(),
    )
    stretch = run.steps if progress is None else -(-run.steps // STRETCHES)
    for done in range(0, run.steps, stretch):
        count = min(stretch, run.steps - done)
        state = _steps(model, state, data, term, numbers, count)
        if progress is not None:
            state[0].block_until_ready()
            progress(done + count, run.steps, time.perf_counter() - began)
    return np.asarray(state[0] + last)


def many_minimised(run: Run, rows: np.ndarray, labels: np.ndarray, keys: Key) -> np.ndarray:
    """The released weights for every key, (models, k, d + 1), in one vectorised program. For tests
    and audits."""
    shape, model = _shape(run, rows), Linear(linear_loss(run), None, exact=True)
    scales = jnp.array([linear_term(run), last_noise(run.method, run)])
    return np.asarray(
        _many(
            model, _data(rows, labels), scales, _numbers(run), run.steps, jnp.asarray(keys), shape
        )
    )


def _shape(run: Run, rows: np.ndarray) -> tuple[int, int]:
    method = minimiser_of(run.method)
    assert method is not None
    shape = (linear_loss(run).outputs, rows.shape[-1])
    if shape[0] * shape[1] != method.parameters:
        raise InputError(
            "parameters",
            f"must be the model's {shape[0] * shape[1]}",
            method.parameters,
            "count outputs times (features + 1)",
        )
    return shape


def _draw_terms(
    scales: tuple[float, float] | jax.Array, key: Key, shape: tuple[int, int]
) -> tuple[jax.Array, jax.Array]:
    """The random linear term, and the noise on the minimiser."""
    noise = stream(key, NOISE)
    return scales[0] * gaussian(noise, 0, shape), scales[1] * gaussian(noise, 1, shape)


def _data(rows: np.ndarray, labels: np.ndarray) -> tuple[jax.Array, jax.Array]:
    return jnp.asarray(rows[0]), jnp.asarray(labels[0])


def _numbers(run: Run) -> jax.Array:
    return jnp.array([run.first_step, run.loss.ridge, look_ahead(run), run.n])


@jax.jit
def _steps(
    model: Linear, state: object, data: Any, term: jax.Array, numbers: jax.Array, count: Number
) -> Any:
    """``count`` accelerated steps on the mean objective; state: this iterate and the last one."""
    step, ridge, ahead, n = numbers

    def gradient(point: jax.Array) -> jax.Array:
        total, _ = jax.lax.scan(
            lambda held, chunk: (held + model.chunk_sum(point, chunk), None),
            jnp.zeros_like(point),
            data,
        )
        return (total + term) / n + ridge * point

    def one(_: object, held: tuple[jax.Array, jax.Array]) -> Any:
        here, before = held
        point = here + ahead * (here - before)
        return point - step * gradient(point), here

    return jax.lax.fori_loop(0, count, one, state)


@partial(jax.jit, static_argnames="shape")
def _many(
    model: Linear,
    data: object,
    scales: jax.Array,
    numbers: jax.Array,
    count: Number,
    keys: jax.Array,
    shape: tuple[int, int],
) -> jax.Array:
    """Compiled once for all batches of models and all data of one shape."""

    def one(key: Key) -> jax.Array:
        term, last = _draw_terms(scales, key, shape)
        return (
            _steps(model, (jnp.zeros(shape), jnp.zeros(shape)), data, term, numbers, count)[0]
            + last
        )

    return jax.vmap(one)(keys)


# Averages of iterates, as running means.


@final
@dataclass(frozen=True)
class RunningMean:
    """The mean of all iterates behind the first ``first`` ones; each counts ``discount`` times as
    much as the one behind it (``None``: all alike)."""

    first: float
    discount: float | None

    def after(self, mean: jax.Array, theta: jax.Array, k: Number) -> jax.Array:
        """The mean after step k, which led to ``theta``; before it counts, ``theta`` itself."""
        count = jnp.maximum(k - self.first, 0.0) + 1.0
        weights = (
            count if self.discount is None else (1 - self.discount**count) / (1 - self.discount)
        )
        return mean + (theta - mean) / weights


# Variance-reduced steps: a noisy full gradient at a snapshot, and noisy differences to it until the
# next one.


@final
@dataclass(frozen=True)
class Reduction:
    """The numbers of steps that follow snapshots: L and beta; noise on a sum of gradients in units
    of L, and on a sum of differences in units of their clip."""

    every: float
    lipschitz: float
    smooth: float
    at_snapshots: float
    between: float

    @classmethod
    def of(cls, run: Run) -> Reduction:
        """Return the reduction of a run whose steps follow snapshots."""
        method = snapshots_of(run.method)
        assert method is not None and run.noise_unit is not None
        return cls(
            float(method.every),
            run.noise_unit,
            data_smoothness(run),
            method.snapshot_multiplier(run),
            method.difference_multiplier(run),
        )

    def memory(self, theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Room for a snapshot and its noisy mean gradient."""
        return jnp.zeros_like(theta), jnp.zeros_like(theta)

    def step_direction(
        self,
        objective: Any,
        sampler: Sampler,
        theta: jax.Array,
        memory: tuple[jax.Array, ...],
        data: object,
        order: Key,
        unit: jax.Array,
        k: Number,
    ) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
        """Return what step k follows: a noisy sum over its batch, the term that is added to its
        mean, and the memory after it.

        ``objective``: a linear model's, by the run's description. ``memory``: the snapshot and its
        noisy mean gradient. ``unit``: normal noise, shaped like ``theta``.

        **Guarantee:** a difference is clipped to a length that follows from ``theta`` and the
        snapshot alone, by its own computed norm, and its noise is ``between`` times that length: L
        and beta need not be trusted. At a snapshot no batch is read, between snapshots no full
        gradient.
        """
        layout = sampler.layout

        def at_snapshot(_: object) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
            n, most = (
                records_in(data),
                objective.most,
            )  # read as they are, and divided by the public n
            total = sum_over_places(
                jnp.arange(n), n, most, lambda chunk: objective.chunk_sum(theta, chunk), data
            )
            mean = (total + self.at_snapshots * self.lipschitz * unit) / layout.size
            return jnp.zeros_like(theta), mean, (theta, mean)

        def between(_: object) -> tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]:
            snapshot, mean = memory
            longest = jnp.minimum(
                2 * self.lipschitz, self.smooth * jnp.sqrt(((theta - snapshot) ** 2).sum())
            )
            total = sampler.batch_sum(
                lambda chunk: objective.sum_differences(theta, snapshot, longest, chunk),
                data,
                order,
                k,
            )
            return (
                total + self.between * longest * unit,
                mean,
                memory,
            )  # noise first: what follows may round

        return jax.lax.cond(k % self.every == 0, at_snapshot, between, None)


# How methods other than plain descent are executed.


@dataclass(frozen=True)
class Solver:
    """Execution without the loop, on arranged rows and labels: one model for a key, or one for each
    of many keys."""

    one: Callable[..., np.ndarray]
    many: Callable[..., np.ndarray]


SOLVERS: dict[type, Solver] = {ObjectivePerturbation: Solver(minimise_perturbed, many_minimised)}


def solver_of(run: Run) -> Solver | None:
    """Return the solver that executes the run instead of the loop; ``None`` where the loop does."""
    return SOLVERS.get(type(run.method))


def find_average(run: Run) -> RunningMean | None:
    """Return the mean of iterates that the run releases instead of the last one, if it does."""
    match run.method:
        case TailAverage():
            return RunningMean(float(run.method.first(run.steps)), None)
        case ExponentialAverage(decay):
            return RunningMean(0.0, decay)
        case _:
            return None


def find_reduction(run: Run) -> Reduction | None:
    """Return what a run's steps follow, where that is not the sum of a batch's gradients with the
    run's own noise."""
    return None if snapshots_of(run.method) is None else Reduction.of(run)


# How a step ends: the proximal map of a run, then the Euclidean projection onto its domain.

INSIDE = 1 - 2.0**-45
"""Radii are shrunk by this factor, so that rounding cannot leave the domain."""


def project(domain: Domain | ExecutedBall, theta: jax.Array) -> jax.Array:
    """The closest point of the domain (as executed); ``theta`` of any shape, its entries are the
    coordinates."""
    match domain:
        case Everywhere():
            return theta
        case Ball(radius):
            return project_onto_ball(radius, theta)
        case Box(low, high):
            return jnp.clip(theta, low, high)
        case Simplex(total):
            return project_onto_simplex(theta.ravel(), total).reshape(theta.shape)
        case ExecutedBall():
            return project_onto_disc(domain, theta.ravel()).reshape(theta.shape)
        case _:
            raise InputError("domain", "has no projection that executes it", type(domain).__name__)


def project_onto_simplex(theta: jax.Array, total: float) -> jax.Array:
    """max(theta - shift, 0), with the shift that makes the sum ``total`` (Held, Wolfe, Crowder
    1974)."""
    ordered = jnp.sort(theta)[::-1]
    shifts = (jnp.cumsum(ordered) - total) / jnp.arange(1, theta.size + 1)
    return jnp.maximum(theta - shifts[jnp.sum(ordered > shifts) - 1], 0.0)


@dataclass(frozen=True)
class ExecutedBall:
    """An affine ball as it is executed: the ball of ``radius`` around ``centre`` in the affine set
    through it.

    ``normals``: orthonormal; with those that are given, nearly parallel ones would make the
    computed map expand.
    """

    normals: np.ndarray
    centre: np.ndarray
    radius: float


def projection_of(domain: Domain) -> Domain | ExecutedBall:
    """The domain as it is executed."""
    if type(domain) is not AffineBall:
        return domain
    centre, radius = domain.centre()
    return ExecutedBall(
        np.linalg.svd(np.array(domain.normals), full_matrices=False)[2], np.array(centre), radius
    )


def project_onto_disc(disc: ExecutedBall, theta: jax.Array) -> Any:
    """The ball's part of an affine set is a ball in it: project onto the set, then towards that
    ball's centre."""
    moved = theta - disc.centre
    moved = moved - disc.normals.T @ (disc.normals @ moved)
    return disc.centre + project_onto_ball(disc.radius, moved)


def project_onto_ball(radius: Real, theta: jax.Array) -> jax.Array:
    return theta * jnp.minimum(1.0, radius * INSIDE / jnp.maximum(jnp.linalg.norm(theta), 1e-300))


def proximal(prox: Prox | None, step: Real, array: jax.Array) -> jax.Array:
    """argmin_u step h(u) + |u - array|^2 / 2."""
    match prox:
        case None:
            return array
        case L1(weight):
            return soft(array, step * weight)
        case L2Squared(weight):
            return array / (1 + step * weight)
        case ElasticNet(l1, l2):
            return soft(array, step * l1) / (1 + step * l2)
        case GroupLasso(weight, axis):
            if array.ndim <= axis:
                return soft(
                    array, step * weight
                )  # without such an axis every entry is a group of its own
            norms = jnp.sqrt((array**2).sum(axis, keepdims=True))
            return array * jnp.maximum(0.0, 1 - step * weight / jnp.maximum(norms, 1e-300))
        case NuclearNorm(weight):
            if array.ndim != 2:
                return array
            left, values, right = jnp.linalg.svd(array, full_matrices=False)
            return (left * soft(values, step * weight)) @ right


def soft(values: jax.Array, threshold: Real) -> jax.Array:
    """Every entry moved towards 0 by ``threshold``, and no further than 0."""
    return jnp.sign(values) * jnp.maximum(jnp.abs(values) - threshold, 0.0)
