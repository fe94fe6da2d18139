"""The trainer: nothing but the run to configure it, and the whole of it executed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.checkpoint import Keeper
from lastiterate.engine.gathered import batches
from lastiterate.engine.gaussian_noise import Key, Number, fresh_key
from lastiterate.engine.gradients import Linear, outputs
from lastiterate.engine.growth import check_growth, check_released
from lastiterate.engine.loop import (
    State,
    advance,
    advance_exactly,
    advance_in_place,
    drawn_for_pass,
    drawn_once,
    noise_ahead,
    outcome,
    schedule,
    start,
    trace,
    trace_exactly,
)
from lastiterate.engine.methods import solver_of
from lastiterate.engine.objective import Objective
from lastiterate.engine.prepare import arrange, hidden, linear_loss, places
from lastiterate.engine.process import check_process
from lastiterate.engine.program import StepProgram
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Box
from lastiterate.run.run import Run, check_described
from lastiterate.run.update_rule import UpdateRule

Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, seconds; never with anything that depends on the data."""
Draws = Callable[[int, int, int, tuple[int, ...]], np.ndarray]
"""Noise of the sums of steps first .. last - 1 for parameters of a shape; padded to as many steps as the third says."""
STRETCHES = 50
"""Parts of a run after which progress is shown and a checkpoint may be written; how many changes no bit."""


@dataclass(frozen=True)
class Loop:
    """A run on a model: from arranged records and first parameters to what is released."""

    run: Run
    objective: Objective
    draws: Draws | None = None  #: exact noise, added to sums; without it the noise of the run is drawn by the program
    rule: UpdateRule | None = None  #: a caller's optimizer, where the run says that there is one

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def program(self) -> StepProgram:
        """What the steps are compiled for, and their numbers."""
        return StepProgram.of(self.run, self.objective, self.rule)

    def execute(self, initial: Any, data: Any, key: Key, progress: Progress | None,
                keeper: Keeper | None = None) -> np.ndarray:
        """The last iterate, or all of them, (T, ...), for release="all"; refuses to release what is not finite.

        ``keeper``: where to begin, and what to keep on the way.
        """
        check_dimension(self.run, math.prod(np.shape(initial)))
        check_growth(self.run, initial, self.objective.ridge)
        state = start(self.program, initial, key)
        released = self._all(state, data, key) if self.run.release == "all" else \
            self._last(state, data, key, progress, keeper)
        check_released(released)
        return released

    def _last(self, state: State, data: Any, key: Key, progress: Progress | None, keeper: Keeper | None) -> np.ndarray:
        plan, steps, program = schedule(self.run), self.run.steps, self.program
        whole = progress is None and keeper is None
        began, done, ahead = time.perf_counter(), 0, noise_ahead(state.theta.size)
        if keeper is not None and (found := keeper.state)[1]:
            done, state = found[0], State.restored(found[1])
        with closing(batches(program, data, key, done, steps)) as every:
            for group in every:
                while done < group.end:
                    interrupts.check()
                    until = min(group.end, done + math.ceil(steps / (1 if whole else STRETCHES)))
                    if self.draws is None:
                        state = advance_in_place(group.program, ahead, state, group.data, key, plan, done, until)
                    else:
                        until = min(until, done + ahead)
                        noise = self.draws(done, until, ahead, state.theta.shape)
                        state = advance_exactly(group.program, state, group.data, key, plan, noise, done, until)
                    done = until
                    if not whole or done == group.end:
                        state.theta.block_until_ready()  # the group's memory is used again
                    if keeper is not None and done < steps and keeper.due:
                        keeper.keep(done, state.kept())
                    if progress is not None:
                        progress(done, steps, time.perf_counter() - began)
                del group  # before the next one takes its memory
        return np.asarray(outcome(program, state))

    def _all(self, state: State, data: Any, key: Key) -> np.ndarray:
        plan, steps, program = schedule(self.run), self.run.steps, self.program
        if self.draws is not None:
            return self._all_exactly(state, data, key, self.draws)
        if program.sampler.drawn != "each pass":
            return np.asarray(trace(program, state, data, key, plan, 0, steps)[1])
        found: list[np.ndarray] = []
        for first in range(0, steps, program.sampler.blocks):
            interrupts.check()
            current = drawn_for_pass(program, data, key, first // program.sampler.blocks)
            count = min(program.sampler.blocks, steps - first)
            state, part = trace(program, state, current, key, plan, first, count)
            found.append(np.asarray(part))
        return np.concatenate(found)

    def _all_exactly(self, state: State, data: Any, key: Key, draws: Draws) -> np.ndarray:
        plan, steps, program = schedule(self.run), self.run.steps, self.program
        blocks, ahead, found = program.sampler.blocks, noise_ahead(state.theta.size), list[np.ndarray]()
        each_pass = program.sampler.drawn == "each pass"
        count = max(c for c in range(1, ahead + 1) if blocks % c == 0) if each_pass else min(ahead, steps)
        current = data
        for first in range(0, steps, count):
            interrupts.check()
            if each_pass and first % blocks == 0:
                current = drawn_for_pass(program, data, key, first // blocks)
            noise = draws(first, min(first + count, steps), count, state.theta.shape)
            state, part = trace_exactly(program, state, current, key, plan, noise, first)
            found.append(np.asarray(part))
        return np.concatenate(found)[:steps]

    def many(self, initial: Any, data: Any, keys: Key, firsts: np.ndarray | None = None) -> np.ndarray:
        """What is released for every key, in a single vectorised program; ``data`` in public order. ``firsts``: the
        first parameters for every key, where they are not all ``initial``."""
        check_dimension(self.run, math.prod(np.shape(initial)))
        plan = schedule(self.run)
        begun = jnp.broadcast_to(initial, (len(keys), *np.shape(initial))) if firsts is None else jnp.asarray(firsts)
        if self.run.release == "all":
            return np.asarray(_many_traced(self.program, begun, data, keys, plan, self.run.steps))
        return np.asarray(_many(self.program, begun, data, keys, plan, self.run.steps))


@jax.jit
def _many(program: StepProgram, firsts: Any, data: Any, keys: Key, plan: Any, steps: Any) -> jax.Array:
    blocks = program.sampler.blocks

    def one(key: Key, first: jax.Array) -> jax.Array:
        state, arranged = start(program, first, key), drawn_once(program, data, key)
        if program.sampler.drawn != "each pass":
            return outcome(program, advance(program, 1, state, arranged, key, plan, 0, steps))

        def one_pass(number: Number, current: State) -> State:
            arranged, first = drawn_for_pass(program, data, key, number), number * blocks
            return advance(program, 1, current, arranged, key, plan, first, jnp.minimum(first + blocks, steps))

        return outcome(program, jax.lax.fori_loop(0, -(-steps // blocks), one_pass, state))

    return jax.vmap(one)(keys, firsts)


@partial(jax.jit, static_argnums=5)
def _many_traced(program: StepProgram, firsts: Any, data: Any, keys: Key, plan: Any, steps: int) -> jax.Array:
    blocks = program.sampler.blocks

    def one(key: Key, first: jax.Array) -> jax.Array:
        state = start(program, first, key)
        if program.sampler.drawn != "each pass":
            return trace(program, state, drawn_once(program, data, key), key, plan, 0, steps)[1]

        def one_pass(now: State, number: Number, count: int = blocks) -> tuple[State, jax.Array]:
            return trace(program, now, drawn_for_pass(program, data, key, number), key, plan, number * blocks, count)

        passes, left = divmod(steps, blocks)
        state, whole = jax.lax.scan(one_pass, state, jnp.arange(passes))
        whole = whole.reshape(passes * blocks, *state.theta.shape)
        return jnp.concatenate((whole, one_pass(state, passes, left)[1])) if left else whole

    return jax.vmap(one)(keys, firsts)


def check_dimension(run: Run, parameters: int) -> None:
    """Refuse a domain described for another number of parameters: a smaller diameter would understate epsilon."""
    match run.domain:
        case Box(dimension=int(stated)) if stated != parameters:
            raise InputError("dimension of the box", f"must be the number of parameters, {parameters}", stated,
                             "outputs times (features + 1) for a linear model, or leave it out")
        case AffineBall(normals=rows) if len(rows[0]) != parameters:
            raise InputError("normals of the domain", f"must have one entry for each of {parameters} parameters",
                             len(rows[0]))
        case _:
            pass


@dataclass(frozen=True)
class Trainer:
    """Executes a run on linear models; weights lie outputs x (features + intercept)."""

    run: Run

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def loop(self) -> Loop:
        """The loop on arranged records."""
        return Loop(self.run, Linear(linear_loss(self.run), self.run.clip, hidden(self.run), self.run.rows_per_record))

    def fit(self, features: Any, target: Any, key: Key | None = None, progress: Progress | None = None,
            released: tuple[np.ndarray, ...] = (), absent: Sequence[int] = (),
            keeper: Keeper | None = None, initial: np.ndarray | None = None) -> np.ndarray:
        """Train and return the last iterate, (k, d + 1) float64 (all of them, (T, k, d + 1), for release="all").

        ``key``: only for tests and audits; by default 128 fresh bits from the operating system. ``released``:
        what each part of the run's preparation found. ``absent``: records whose gradients are zeroed. ``initial``:
        the first weights, (k, d + 1), to which the run's start adds; 0 by default.
        Errors: bad data, or a diverging run; then nothing is returned.

        **Guarantee:** exactly the run that is accounted: rows clipped, noise at every step, no other output.
        """
        check_process()
        key = fresh_key() if key is None else key
        with jax.enable_x64(True):
            order = places(self.run, key)
            rows, labels = arrange(self.run, features, target, order, released, absent)
            if (solver := solver_of(self.run)) is not None:
                return solver.one(self.run, rows, labels, key, progress)
            data: Any = jax.device_put(rows, may_alias=True), jnp.asarray(labels)
            if order is None:
                data = drawn_once(self.loop.program, data, key)
            return self.loop.execute(self.first(rows, initial), data, key, progress, keeper)

    def fit_many(self, features: Any, target: Any, keys: Key, absent: Sequence[int] = (),
                 initial: np.ndarray | None = None) -> np.ndarray:
        """Train one model per key in a single vectorised program, for tests and audits; (models, k, d + 1), with all
        iterates (models, T, k, d + 1). ``initial``: the first weights of every model, (models, k, d + 1)."""
        check_process()
        rows, labels = arrange(self.run, features, target, absent=absent)
        with jax.enable_x64(True):
            if (solver := solver_of(self.run)) is not None:
                return solver.many(self.run, rows, labels, keys)
            return self.loop.many(self.zero(rows), (rows, labels), keys, initial)

    def first(self, rows: Any, initial: np.ndarray | None) -> np.ndarray:
        """The first weights for arranged rows; those that are given must have their shape."""
        zero = self.zero(rows)
        if initial is not None and np.shape(initial) != zero.shape:
            raise InputError("initial", f"must have shape {zero.shape}", np.shape(initial))
        return zero if initial is None else np.asarray(initial, np.float64)

    def zero(self, rows: Any) -> np.ndarray:
        """Weights of 0, for arranged rows."""
        return np.zeros((outputs(linear_loss(self.run)), rows.shape[-1]))


__all__ = ["Loop", "Progress", "Trainer", "fresh_key"]
