"""The compiled loop around one step: evaluate, clip, add noise, update, project."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.methods import (
    RunningMean,
    find_average,
    find_reduction,
    project,
    projection_of,
    proximal,
)
from lastiterate.engine.noise import Noise, NoiseArguments, NoiseRecursion
from lastiterate.engine.random import ORDER, START, Key, Number, Real, gaussian, stream
from lastiterate.engine.record_loss import with_keys
from lastiterate.engine.sampler_interface import Sampler
from lastiterate.engine.samplers import sampler_of
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import GaussianStart, Start
from lastiterate.run.updates import UpdateRule

# What the loop needs to know about a model: the sum of the clipped gradients of a chunk of records.


class Objective(Protocol):
    """A model and its loss, as a JAX pytree: its numbers are arguments of compiled programs, all
    else is what they are compiled for. Parameters are one float64 array of any shape.
    """

    @property
    def most(self) -> int:
        """Records in a chunk, at most."""
        ...

    @property
    def ridge(self) -> float:
        """The factor of the parameters in every step's gradient, outside records and clips."""
        ...

    def chunk_sum(self, theta: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
        """Sum of the clipped data gradients of a chunk's records, float64, shaped like ``theta``.

        Records whose entries are all 0 are empty slots and add nothing.
        """
        ...

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters, put back in place."""
        ...


# The program of a step, and its numerical arguments.


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class StepProgram:
    """A run on a model as its steps need it: the key of compiled programs is its structure alone.

    Step sizes and noise are given apart (``Schedule``); all other numbers (divisor, clip, ridge,
    radius, weights, rates, momentum) are leaves. Runs that differ in numbers only, on data of equal
    shapes, share a program.
    """

    sampler: Sampler
    objective: Objective
    divisor: float
    domain: Any
    prox: Prox | None
    rule: UpdateRule
    start: Start
    recursion: NoiseRecursion | None = None  #: of noise that later steps take back in part
    follows: Any = (
        None  #: what steps follow instead of a batch's sum with the run's own noise (``methods``)
    )
    average: RunningMean | None = None  #: of iterates, released instead of the last one
    #: keys of every record that the objective gets instead of its index, where it brings one
    copies: int = 0

    @classmethod
    def of(cls, run: Run, objective: Objective, rule: UpdateRule | None = None) -> StepProgram:
        """The program of ``run``; ``rule``: what a description names and does not hold, a caller's
        optimizer."""
        return cls(
            sampler_of(run.batching, run.n, objective.most),
            objective,
            run.divisor,
            projection_of(run.domain),
            run.prox,
            rule or run.rule,
            run.start,
            NoiseRecursion.of(run),
            find_reduction(run),
            find_average(run),
            0 if run.augmentation is None else run.augmentation.copies,
        )

    def tree_flatten(self) -> tuple[tuple[Any, ...], int]:
        described = (self.domain, self.prox, self.rule, self.start, self.follows, self.average)
        return (
            self.sampler,
            self.objective,
            self.divisor,
            self.recursion,
            *map(NoiseArguments, described),
        ), self.copies

    @classmethod
    def tree_unflatten(cls, copies: int, held: tuple[Any, ...]) -> StepProgram:
        sampler, objective, divisor, recursion, *described = held
        domain, prox, rule, start, follows, average = (one.value for one in described)
        return cls(
            sampler,
            objective,
            divisor,
            domain,
            prox,
            rule,
            start,
            recursion,
            follows,
            average,
            copies,
        )


# The one step and the compiled loop around it, the same for every model.


class State(NamedTuple):
    """Parameters, float64; what the update rule remembers; what the method follows, a snapshot or
    an average; what the last steps made of their draws of noise."""

    theta: jax.Array
    memory: tuple[jax.Array, ...]
    followed: tuple[jax.Array, ...] = ()
    recent: tuple[jax.Array, ...] = ()

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Its arrays by names, for a checkpoint."""
        named = {"theta": self.theta} | {
            f"{field}{i}": array
            for field in REMEMBERED
            for i, array in enumerate(getattr(self, field))
        }
        return {
            name: np.array(array) for name, array in named.items()
        }  # copied: ``advance`` writes there

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> State:
        """The state that ``to_arrays`` gave."""
        return cls(
            jnp.asarray(arrays["theta"]),
            *(
                tuple(
                    jnp.asarray(arrays[f"{field}{i}"])
                    for i in range(sum(name.startswith(field) for name in arrays))
                )
                for field in REMEMBERED
            ),
        )


REMEMBERED = State._fields[1:]


class Schedule(NamedTuple):
    """Step sizes and noise standard deviations; at least T of them, or 1 when they are constant."""

    step_size: np.ndarray
    noise_std: np.ndarray

    def step_size_at(self, k: Number) -> Any:
        """The step size of step k."""
        return self.step_size[jnp.minimum(k, self.step_size.shape[0] - 1)]


def update(
    program: StepProgram,
    state: State,
    data: object,
    order: Key,
    noise: Real,
    k: Number,
    step_size: Real,
    exact: jax.Array | None = None,
) -> State:
    """Step k (0-based): the only implementation of the update rule; ``noise`` is added to the mean
    gradient.

    ``exact``: noise that is added to the sum before anything is divided, where both are multiples
    of one power of two.
    """
    point = evaluation_point(program, state, k)
    if program.follows is not None:
        total, noise, followed = program.follows.step_direction(
            program.objective, program.sampler, point, state.followed, data, order, noise, k
        )
        return finish_step(
            program, state._replace(followed=followed), point, total, noise, k, step_size
        )
    total = batch_sum(program, point, data, order, k)
    return finish_step(
        program, state, point, total if exact is None else total + exact, noise, k, step_size
    )


def evaluation_point(program: StepProgram, state: State, k: Number) -> jax.Array:
    """Return the point at which step k evaluates gradients."""
    return program.rule.point(state.theta, state.memory, k)


def finish_step(
    program: StepProgram,
    state: State,
    point: jax.Array,
    total: np.ndarray | jax.Array,
    noise: Real,
    k: Number,
    step_size: Real,
) -> State:
    """Step k from the sum ``total`` of its batch's gradients at ``point``."""
    gradient = noisy_mean(program, point, total, noise)
    direction, memory = program.rule.update(gradient, state.memory, state.theta, k)
    return apply_update(program, state._replace(memory=memory), point, direction, k, step_size)


def noisy_mean(
    program: StepProgram, point: jax.Array, total: np.ndarray | jax.Array, noise: Real
) -> jax.Array:
    """Return the noisy mean gradient of a step from the sum of its batch's gradients, before its
    update rule."""
    return total / program.divisor + program.objective.ridge * point + noise  # pyright: ignore  # JAX's, as point is


def apply_update(
    program: StepProgram,
    state: State,
    point: jax.Array,
    direction: jax.Array,
    k: Number,
    step_size: Real,
) -> State:
    """The end of step k: against a direction, by the penalty's proximal map, onto the domain; and
    into the average."""
    moved = program.objective.leafwise(
        partial(proximal, program.prox, step_size), point - step_size * direction
    )
    theta = project(program.domain, moved)
    if program.average is None:
        return state._replace(theta=theta)
    return state._replace(
        theta=theta, followed=(program.average.after(state.followed[0], theta, k),)
    )


def outcome(program: StepProgram, state: State) -> jax.Array:
    """Return the released parameters of a run: its last iterate, or an average."""
    return state.theta if program.average is None else state.followed[0]


def batch_sum(
    program: StepProgram, theta: jax.Array, data: object, order: Key, k: Number
) -> jax.Array:
    """Sum of the clipped data gradients of step k's batch; ``order``: the stream of secret draws."""
    return program.sampler.batch_sum(
        lambda chunk: chunk_sum(program, theta, chunk, order, k), data, order, k
    )


def chunk_sum(
    program: StepProgram, theta: jax.Array, chunk: tuple[Any, ...], order: Key, k: Number
) -> jax.Array:
    """Sum of the clipped data gradients of a chunk of step k, whose records have keys where they
    brought numbers."""
    chunk = with_keys(chunk, order, k, program.copies) if program.copies else chunk
    return program.objective.chunk_sum(theta, chunk)


def start(program: StepProgram, initial: np.ndarray | jax.Array, key: Key) -> State:
    """The first state: independent of the data, projected onto the domain."""
    theta = jnp.array(initial, jnp.float64)
    if isinstance(program.start, GaussianStart):
        theta = theta + program.start.std * gaussian(stream(key, START), 0, theta.shape)
    theta = project(program.domain, theta)
    followed = () if program.follows is None else program.follows.memory(theta)
    followed = followed if program.average is None else (theta,)
    recent = () if program.recursion is None else program.recursion.memory(theta)
    # all are arrays of their own, so that steps may write over them
    return State(theta, *jax.tree.map(jnp.copy, (program.rule.init(theta), followed, recent)))


def run_steps(
    program: StepProgram,
    state: State,
    data: object,
    order: Key,
    plan: Schedule,
    noise: Noise,
    first: Number,
    last: Number,
    every: bool,
) -> tuple[State, jax.Array]:
    """Steps first .. last - 1, and with ``every`` their iterates, that of step k at index k -
    ``noise.first``.

    ``order``: the stream of the run's secret draws.
    """
    given = noise.units if noise.exact is None else noise.exact

    def one(k: Number, held: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        now, iterates = held
        now = step_at(program, now, data, order, noise, plan, k)
        return now, iterates.at[k - noise.first].set(now.theta) if every else iterates

    return jax.lax.fori_loop(first, last, one, (state, jnp.zeros(given.shape if every else 0)))


advance = jax.jit(run_steps, static_argnums=8, donate_argnums=1)
"""``run_steps`` that writes over ``state``, which nobody may use afterwards: so a wide band of noise
is not copied."""


def step_at(
    program: StepProgram,
    state: State,
    data: object,
    order: Key,
    noise: Noise,
    plan: Schedule,
    k: Number,
) -> State:
    """Make step k with its noise and the plan's values."""
    step_size = plan.step_size_at(k)
    if noise.exact is not None:
        return update(program, state, data, order, 0.0, k, step_size, noise.exact[k - noise.first])
    made, state = noise_at(program, state, noise, plan, k)
    return update(program, state, data, order, made, k, step_size)


def noise_at(
    program: StepProgram, state: State, noise: Noise, plan: Schedule, k: Number
) -> tuple[jax.Array, State]:
    """Return the noise that step k adds to the mean gradient, from its normal draws; and the state
    that remembers it."""
    unit = noise.units[k - noise.first]
    if program.recursion is not None:
        unit, recent = program.recursion.combine(state.recent, unit, k)
        state = state._replace(recent=recent)
    return plan.noise_std[jnp.minimum(k, plan.noise_std.shape[0] - 1)] * unit, state


def arrange_once(program: StepProgram, data: object, key: Key) -> Any:
    """Data (in public order) as the secret draw of the whole run arranges them; without one as they
    are, uncopied."""
    sampler = program.sampler
    return sampler.arrange(data, stream(key, ORDER)) if sampler.drawn == "once" else data


def arrange_for_pass(program: StepProgram, data: object, key: Key, number: Number) -> Any:
    """Data (in public order) as the secret draw of pass ``number`` arranges them; without one as
    they are."""
    sampler = program.sampler
    return (
        sampler.arrange(data, stream(stream(key, ORDER), number))
        if sampler.drawn == "each pass"
        else data
    )


def schedule(run: Run) -> Schedule:
    """The numbers of a run that a compiled program takes as arguments; padded, so that few lengths
    are compiled.

    Where noise follows the parameters, steps scale normal noise themselves.
    """
    by_step = not run.method.noisy_steps
    count = 1 if run.step_size.constant and (by_step or run.same_noise) else run.steps
    padded = 1 << (count - 1).bit_length()  # entries beyond the last step are never read
    table = np.column_stack(
        (run.step_sizes[:count], np.ones(count) if by_step else run.noise_stds[:count])
    )
    return Schedule(*np.pad(table, ((0, padded - count), (0, 0)), mode="edge").T)
