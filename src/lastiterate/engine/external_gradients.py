"""Runs whose gradients and optimizer another library computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.checkpoint import Checkpoint, FollowedCheckpoint
from lastiterate.engine.loop import (
    Schedule,
    State,
    StepProgram,
    apply_update,
    arrange_for_pass,
    arrange_once,
    batch_sum,
    evaluation_point,
    finish_step,
    noise_at,
    noisy_mean,
    outcome,
    schedule,
    start,
)
from lastiterate.engine.network import arrange_records
from lastiterate.engine.noise import Draws, Noise, NoiseAhead, register_pytree
from lastiterate.engine.parameters import Form
from lastiterate.engine.random import ORDER, Key, Number, Real, stream, streams
from lastiterate.engine.record_loss import keys_of_batch
from lastiterate.engine.step_iterator import Pause, Steps, resume_within
from lastiterate.engine.trainer import (
    STRETCHES,
    Progress,
    check_dimension,
    check_growth,
    check_iterate,
    check_released,
)
from lastiterate.run.run import Run, check_described
from lastiterate.run.updates import Memory, Plain, UpdateRule

# How steps end whose gradients another library computes, and whose optimizer may be that library's.


@dataclass
class StepEnds:
    """The end of a step. It holds the memory of an optimizer of another library, in addition to the
    state of the loop."""

    program: StepProgram
    plan: Schedule
    rule: UpdateRule | None
    memory: Memory = ()

    def finish_step(
        self, state: State, point: jax.Array, total: np.ndarray | jax.Array, noise: Real, k: int
    ) -> State:
        """Step k from the sum that came from outside."""
        if self.rule is None:
            return external_ended(self.program, state, point, total, noise, self.plan, k)
        gradient = np.asarray(_mean_outside(self.program, point, total, noise))
        direction, self.memory = self.rule.update(gradient, self.memory, np.asarray(state.theta), k)
        return _apply_outside(self.program, state, point, direction, self.plan, k)

    def to_arrays(self, state: State) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint."""
        return (state if self.rule is None else state._replace(memory=self.memory)).to_arrays()

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> State:
        """The state that ``to_arrays`` gave."""
        state = State.from_arrays(arrays)
        if self.rule is None:
            return state
        self.memory = tuple(np.asarray(array) for array in state.memory)
        return state._replace(memory=())


external_noise = jax.jit(noise_at)


@jax.jit
def noise_of_models(
    program: StepProgram, states: State, noise: Noise, plan: Schedule, k: Number
) -> tuple[jax.Array, State]:
    """The noise of step k for every model, and the states that remember it."""
    return jax.vmap(
        lambda state, units: noise_at(program, state, noise._replace(units=units), plan, k)
    )(states, noise.units)


@jax.jit
def external_ended(
    program: StepProgram,
    state: State,
    point: jax.Array,
    total: np.ndarray | jax.Array,
    noise: Real,
    plan: Schedule,
    k: Number,
) -> State:
    """Step k from the sum that came from outside; its parts are ``_mean_outside`` and
    ``_apply_outside``."""
    return finish_step(program, state, point, total, noise, k, plan.step_size_at(k))


_mean_outside = jax.jit(noisy_mean)


@jax.jit
def _apply_outside(
    program: StepProgram,
    state: State,
    point: jax.Array,
    direction: jax.Array,
    plan: Schedule,
    k: Number,
) -> State:
    return apply_update(program, state, point, direction, k, plan.step_size_at(k))


# Runs whose gradients another library computes: batches, noise and the update are those of every
# other run. The sampler is asked for a sum over the batch, as always: here every record contributes
# the unit vector of its own index, so that the sum is the batch itself. What comes back from the
# other library is the sum of clipped gradients.

Sums = Callable[[np.ndarray, np.ndarray, np.ndarray | None], np.ndarray]
"""From parameters (size,), the numbers of a batch's records (m,) and their keys of this step, where
they draw something, to the sum of their clipped gradients, (size,)."""
Gather = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From the parameters and a process's own sum, of one shape, to the sum of all processes."""
Total = Callable[[jax.Array, int], np.ndarray]
"""The sum of the clipped gradients of step k's batch at a point, of its shape; asked for once in
every step, in their order.
"""
ManySums = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The same for many models: parameters (models, size), batches as weights 0 or 1 (models, n); sums
(models, size)."""


@register_pytree
@dataclass(frozen=True)
class IndicatorSums:
    """The batch as a sum: the record of index i contributes the unit vector i; a chunk is indices
    and which are real.

    ``form``: the arrays of parameters, for proximal maps.
    """

    form: Form
    n: int
    most: int
    ridge: float = 0.0

    def chunk_sum(self, theta: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Count how often each record is in the chunk, (n,) float64."""
        numbers, real = chunk
        return jnp.zeros(self.n, jnp.float64).at[numbers].add((real > 0).astype(jnp.float64))

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        return self.form.vector([function(array) for array in self.form.arrays(theta, exact=True)])


@dataclass(frozen=True)
class ExternalLoop:
    """A run on parameters of the given shapes, one after the other in a vector (as an ``objective``
    has them: in an array of their own shape); all numbers are float64.

    **Guarantee:** records, noise and steps are those of every run with this key: the sampler of the
    run's batching, the noise of ``gaussian``, the one update rule. A sum is asked for once in every
    step, and whatever it is, noise is added before anything is released.
    """

    run: Run
    shapes: tuple[tuple[int, ...], ...]
    draws: Draws | None = None  #: exact noise, added to sums, which must be multiples of its grid
    rule: UpdateRule | None = None  #: a caller's optimizer, which runs in the other library
    records: int | None = None  #: how many there are, where n is nominal
    gather: Gather | None = None  #: where several processes each sum a part of every batch
    #: the ridge, and the arrays of the parameters; by default no ridge, and arrays of ``shapes``
    objective: Any = None
    copies: int = 0  #: keys of a record that sums are given; 0: that of its first copy
    compiled: bool = False  #: whether ``rule`` is a part of the compiled steps

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def program(self) -> StepProgram:
        objective = self.objective
        if objective is None:
            form = Form.of([np.zeros(shape) for shape in self.shapes])
            objective = IndicatorSums(form, self._count, self._count)
        rule = self.rule if self.compiled or self.rule is None else Plain()
        base = StepProgram.of(self.run, objective, rule)
        return replace(
            base, copies=0
        )  # indices are what is asked for: keys follow from them outside

    @property
    def _count(self) -> int:
        return self.run.n if self.records is None else self.records

    def _numbers(self) -> Any:
        return arrange_records(self.run, (np.arange(self._count),), self._count)

    def iterate(
        self,
        initial: np.ndarray,
        sums: Sums,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        *,
        by_step: bool = False,
    ) -> Steps[np.ndarray]:
        """The steps of the run, in pauses as ``Loop.iterate`` makes them: to the last iterate
        (size,), or all of them (T, size) for release="all"; refuses what is not finite."""
        program = self.program
        with jax.enable_x64(True):
            numbers = arrange_once(program, self._numbers(), key)
            current, number, order = numbers, -1, stream(key, ORDER)

        def total(point: jax.Array, k: int) -> np.ndarray:
            nonlocal current, number
            if k // program.sampler.blocks != number:
                number = k // program.sampler.blocks
                current = arrange_for_pass(program, numbers, key, number)
            batch = np.flatnonzero(_count_in_batch(program, point, current, order, k))
            keys = self.draw_keys(order, batch, k)
            return sums(np.asarray(point), batch, keys)

        return (
            yield from self.iterate_totals(
                initial, total, key, progress, checkpoint, by_step=by_step
            )
        )

    def draw_keys(self, order: Key, batch: np.ndarray, k: int) -> np.ndarray | None:
        """The keys of step k of records, where these draw something."""
        if self.run.augmentation is None:
            return None
        return keys_of_batch(order, batch, k, self.copies)

    def iterate_records(
        self,
        initial: np.ndarray,
        data: object,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Steps[np.ndarray]:
        """``iterate`` on the sums of the loop's own objective over records in memory, arranged by
        the run's one secret order where it has one."""
        program, current, number = self.program, data, -1
        with jax.enable_x64(True):
            order = stream(key, ORDER)

        def total(point: jax.Array, k: int) -> np.ndarray:
            nonlocal current, number
            if k // program.sampler.blocks != number:
                number = k // program.sampler.blocks
                current = arrange_for_pass(program, data, key, number)
            return np.asarray(_sum_batch(program, point, current, order, k))

        return self.iterate_totals(initial, total, key, progress, checkpoint)

    def iterate_totals(
        self,
        initial: np.ndarray,
        total: Total,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | FollowedCheckpoint | None = None,
        *,
        by_step: bool = False,
    ) -> Steps[np.ndarray]:
        """``iterate`` on the sums that ``total`` gives, from where the checkpoint stands."""
        steps = self._run_steps(initial, total, key, progress, checkpoint, by_step)
        return resume_within(partial(jax.enable_x64, True), steps)

    def _run_steps(
        self,
        initial: np.ndarray,
        total: Total,
        key: Key,
        progress: Progress | None,
        checkpoint: Checkpoint | FollowedCheckpoint | None,
        by_step: bool,
    ) -> Steps[np.ndarray]:
        check_dimension(self.run, initial.size)
        check_growth(self.run, initial, self.program.objective.ridge)
        run, program, plan = self.run, self.program, schedule(self.run)
        began, iterates, done = time.perf_counter(), list[np.ndarray](), 0
        stretch, every = max(1, run.steps // STRETCHES), run.release == "all"
        outside = None if self.compiled else self.rule
        state, ending = start(program, initial, key), StepEnds(program, plan, outside)
        ahead = NoiseAhead.normal(key, initial.shape)
        if checkpoint is not None and (kept := checkpoint.state)[1]:
            done, state = kept[0], ending.from_arrays(kept[1])
        yield Pause(done)
        for k in range(done, run.steps):
            interrupts.check()
            point = _point(program, state, k)
            if self.draws is None:
                # in the background while a sum is computed
                noise, state = external_noise(program, state, ahead.at(k)[0], plan, k)
                found = self._gather(point, total(point, k))
            else:
                noise = 0.0
                found = self._gather(point, total(point, k))
                found = found + self.draws(k, k + 1, 1, initial.shape)[0]
            state = ending.finish_step(state, point, found, noise, k)
            if every:
                iterates.append(np.asarray(state.theta))
            ends = (k + 1) % stretch == 0 or k + 1 == run.steps
            if ends and isinstance(checkpoint, Checkpoint) and k + 1 < run.steps and checkpoint.due:
                checkpoint.keep(k + 1, ending.to_arrays(state))
            if ends and progress is not None:
                progress(k + 1, run.steps, time.perf_counter() - began)
            if by_step:
                state.theta.block_until_ready()
                yield Pause(k + 1, partial(check_iterate, iterates[-1]) if every else None)
        released = np.stack(iterates) if every else np.asarray(outcome(program, state))
        check_released(released)
        return released

    def _gather(self, point: jax.Array, own: np.ndarray) -> np.ndarray:
        """The sum of a batch, from the sum of the records of this process."""
        return own if self.gather is None else self.gather(np.asarray(point), own)

    def many(self, initial: np.ndarray, sums: ManySums, keys: Key) -> np.ndarray:
        """The last iterate for every key, (models, size): for tests and audits."""
        check_dimension(self.run, initial.size)
        program, plan = self.program, schedule(self.run)
        with jax.enable_x64(True):
            keys, numbers = jnp.asarray(keys), self._numbers()
            state = jax.vmap(lambda key: start(program, initial, key))(keys)
            orders = streams(keys, ORDER)
            ahead = NoiseAhead.of_models(keys, initial.shape, self.run.steps)
            current = numbers = jax.vmap(lambda key: arrange_once(program, numbers, key))(keys)
            rules = [] if self.rule is None else [copy(self.rule) for _ in keys]
            memories = [rule.init(initial) for rule in rules]  # each model has its own
            for k in range(self.run.steps):
                interrupts.check()
                if k % program.sampler.blocks == 0:
                    number = k // program.sampler.blocks
                    current = jax.vmap(
                        lambda held, key, at=number: arrange_for_pass(program, held, key, at)
                    )(numbers, keys)
                points, places = _query_many(program, state, current, orders, k)
                totals = sums(np.asarray(points), np.asarray(places))
                noise, state = noise_of_models(program, state, ahead.at(k)[0], plan, k)
                if self.rule is None:
                    state = _finish_many(program, state, points, totals, noise, plan, k)
                    continue
                gradients, thetas = _mean_many(program, points, totals, noise), state.theta
                directions = list[np.ndarray]()
                for i, (rule, gradient, theta) in enumerate(
                    zip(rules, np.asarray(gradients), np.asarray(thetas), strict=True)
                ):
                    direction, memories[i] = rule.update(gradient, memories[i], theta, k)
                    directions.append(direction)
                state = _apply_many(program, state, points, np.stack(directions), plan, k)
            return np.asarray(jax.vmap(lambda one: outcome(program, one))(state))


_point = jax.jit(evaluation_point)
_sum_batch = _count_in_batch = jax.jit(batch_sum)
"""Of indices, count how often each record is in the batch of step k, (n,), whatever the parameters
are."""


@jax.jit
def _query_many(
    program: StepProgram, states: State, numbers: jax.Array, orders: jax.Array, k: Number
) -> tuple[jax.Array, jax.Array]:
    """Return the point at which step k takes its gradients, and its batch, for every key."""

    def one(state: State, held: Any, order: Key) -> tuple[jax.Array, jax.Array]:
        return evaluation_point(program, state, k), batch_sum(program, state.theta, held, order, k)

    return jax.vmap(one)(states, numbers, orders)


@jax.jit
def _finish_many(
    program: StepProgram,
    states: State,
    points: jax.Array,
    totals: np.ndarray | jax.Array,
    noises: jax.Array,
    plan: Schedule,
    k: Number,
) -> State:
    return jax.vmap(
        lambda state, point, total, noise: external_ended(
            program, state, point, total, noise, plan, k
        )
    )(states, points, totals, noises)


@jax.jit
def _mean_many(
    program: StepProgram, points: jax.Array, totals: np.ndarray | jax.Array, noises: jax.Array
) -> jax.Array:
    return jax.vmap(lambda point, total, noise: noisy_mean(program, point, total, noise))(
        points, totals, noises
    )


@jax.jit
def _apply_many(
    program: StepProgram,
    states: State,
    points: jax.Array,
    directions: np.ndarray | jax.Array,
    plan: Schedule,
    k: Number,
) -> State:
    return jax.vmap(
        lambda state, point, direction: apply_update(
            program, state, point, direction, k, plan.step_size_at(k)
        )
    )(states, points, directions)
