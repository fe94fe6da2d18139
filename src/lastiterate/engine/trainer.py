"""The trainer: execute a run for one model or for many at once."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.linear_gradients import (
    Arranged,
    Linear,
    arrange,
    hidden,
    linear_loss,
    places,
    readable,
)
from lastiterate.engine.loop import (
    Objective,
    Schedule,
    State,
    StepProgram,
    advance,
    arrange_for_pass,
    arrange_once,
    outcome,
    run_steps,
    schedule,
    start,
)
from lastiterate.engine.methods import solver_of
from lastiterate.engine.minibatch_gather import batches
from lastiterate.engine.noise import Draws, Noise, NoiseAhead
from lastiterate.engine.random import FARTHEST, ORDER, Key, Number, fresh_key, stream, streams
from lastiterate.engine.sampler_interface import EpochSampler, Sampler, words
from lastiterate.engine.step_iterator import Pause, Steps, run_to_end
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Box, Everywhere
from lastiterate.run.run import Run, check_described
from lastiterate.run.step_sizes import GaussianStart
from lastiterate.run.updates import UpdateRule

# How large iterates can become, by public numbers: runs that could overflow are refused before they
# start.

LARGEST = 1e290
"""Norm of iterates whose scores, at rows of the longest norm that is executed, stay inside of
double precision."""
_REMEDY = "stay below 2/smooth, or add a ridge or a domain; nothing was released"


class Diverged(InputError):
    """A run whose released iterates are not finite; only its execution shows it."""


def check_growth(run: Run, initial: np.ndarray | jax.Array, ridge: float) -> None:
    """Refuse a run whose hidden iterates could overflow; looks at public numbers only.

    With |theta'| <= |1 - step ridge| |theta| + step (L batch / b + noise), projections and proximal
    maps no further from 0. Where every iterate counts as released (momentum, snapshots,
    release="all") an overflow may be shown when it happens.

    **Guarantee:** where the loss has the Lipschitz constant that the run states, no iterate
    overflows, so that whether the last one is released says nothing about the hidden ones.
    """
    lipschitz = run.facts().fact("lipschitz", math.inf)
    charged = run.release == "all" or run.optimizer is not None or run.method.charges_way
    if charged or not isinstance(run.domain, Everywhere) or math.isinf(lipschitz):
        return
    size, first = np.size(initial), math.sqrt(np.size(initial)) * float(np.abs(initial).max())
    reach = FARTHEST * math.sqrt(size)  # no draw of noise is longer
    if isinstance(run.start, GaussianStart):
        first += run.start.std * reach
    reach *= run.decided_noise.reach(run.steps)
    steps, stds = run.step_sizes, run.noise_stds
    moved = steps * (run.shares[1] * lipschitz + stds * reach)
    growth = np.log(np.maximum(1.0, np.abs(1 - steps * ridge)))
    if math.log(first + float(moved.sum()) + 1.0) + float(growth.sum()) > math.log(LARGEST):
        raise InputError(
            "step_size", "makes the run diverge: iterates could overflow", None, _REMEDY
        )


def check_released(released: np.ndarray) -> None:
    """Refuse to release what is not finite: with momentum or release="all" a function of what
    counts as released."""
    if not np.isfinite(released).all():
        raise Diverged(
            "step_size", "makes the run diverge: an iterate is not finite", None, _REMEDY
        )


def check_iterate(iterate: np.ndarray) -> np.ndarray:
    """Return an iterate that is released while the run is executed; refused as at its end."""
    check_released(iterate)
    return iterate


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
    #: for every model as its draw of the whole run arranges them; in public order where there is
    #: none
    data: object
    current: object  #: of the pass that is being made
    done: int = 0

    @classmethod
    def begun(
        cls, run: Run, program: StepProgram, firsts: jax.Array, data: object, keys: Key
    ) -> Models:
        """Before the first step. ``firsts``: of every model, (models, ...); ``data`` in public
        order."""
        keys = jnp.asarray(keys)
        orders, state = streams(keys, ORDER), _begun(program, firsts, keys)
        if program.sampler.drawn == "once":
            data = _arrange_once(program, data, keys)
        noise = NoiseAhead.of_models(keys, state.theta.shape[1:], run.steps)
        return cls(program, schedule(run), keys, orders, noise, state, data, data)

    def onward(self, until: int, every: bool = False) -> list[np.ndarray]:
        """Make the steps up to step ``until``; with ``every`` their iterates, in pieces (models,
        steps, ...)."""
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
            self.state, iterates = advance_many(
                self.program,
                self.state,
                self.current,
                self.orders,
                self.plan,
                noise,
                self.done,
                end,
                every,
            )
            if every:
                pieces.append(np.asarray(iterates)[:, self.done - noise.first : end - noise.first])
            iterates.block_until_ready()  # no more noise is drawn than is used
            self.done = end
        return pieces

    def _pass(self, sampler: Sampler, number: int) -> object:
        """The data as every model's draw of a pass arranges them; the host sorts many records more
        quickly."""
        if (
            not isinstance(sampler, EpochSampler)
            or (n := sampler.records(self.data)) < SORTED_BY_HOST
            or jax.default_backend() != "cpu"
        ):
            return _arrange_for_pass(self.program, self.data, self.keys, number)
        drawn = [
            sampler.allocate(next(words(key, number, number + 1, n)))
            for key in np.asarray(self.keys)
        ]
        places, begins = map(np.stack, zip(*drawn, strict=True))
        return _place_records(self.program, self.data, places, begins)

    def outcomes(self) -> np.ndarray:
        """Return the parameters that every model would release now, (models, ...)."""
        return np.asarray(_outcomes(self.program, self.state))


_begun = jax.jit(jax.vmap(start, (None, 0, 0)))


@jax.jit
def _arrange_once(program: StepProgram, data: object, keys: Key) -> Any:
    return jax.vmap(lambda key: arrange_once(program, data, key))(keys)


@jax.jit
def _arrange_for_pass(program: StepProgram, data: object, keys: Key, number: Number) -> Any:
    return jax.vmap(lambda key: arrange_for_pass(program, data, key, number))(keys)


@jax.jit
def _place_records(
    program: StepProgram, data: object, places: np.ndarray, begins: np.ndarray
) -> Any:
    sampler = cast(EpochSampler, program.sampler)
    return jax.vmap(partial(sampler.place_records, data))(places, begins)


@partial(jax.jit, static_argnums=8, donate_argnums=1)
def advance_many(
    program: StepProgram,
    states: State,
    data: object,
    orders: jax.Array,
    plan: Schedule,
    noise: Noise,
    first: Number,
    last: Number,
    every: bool,
) -> tuple[State, jax.Array]:
    """``advance`` for every model; ``data``: of each of them where batches are drawn once or in
    every pass."""
    shared = program.sampler.drawn in ("never", "each step")

    def one(state: State, data: object, order: jax.Array, units: Any) -> tuple[State, jax.Array]:
        return run_steps(
            program, state, data, order, plan, noise._replace(units=units), first, last, every
        )

    return jax.vmap(one, (0, None if shared else 0, 0, 0))(states, data, orders, noise.units)


_outcomes = jax.jit(jax.vmap(outcome, (None, 0)))


# A process that was forked after JAX was used has none of its threads: what it asks of them waits
# for ever.

_used: int | None = None


def check_process() -> None:
    """Refuse to compute in a process that was forked from one that has computed."""
    global _used
    if _used not in (None, os.getpid()):
        raise InputError(
            "this process",
            "was forked after a fit, and the threads that compute stayed behind",
            None,
            'start it with multiprocessing.get_context("spawn"), or fork before the first fit',
        )
    _used = os.getpid()


def begin(
    run: Run, data: Iterable[Any], key: Key | None, checkpoint: Checkpoint | None, program: str
) -> Key:
    """Return the key with which a run begins or resumes from its checkpoint; ``program``
    distinguishes runs on the same data."""
    if checkpoint is not None:
        key = checkpoint.begin(run, data, key, program)
    check_process()
    return fresh_key() if key is None else key


# The trainer: nothing but the run to configure it, and the whole of it executed.

Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, seconds; never with anything that depends on the data."""
STRETCHES = 50
"""Parts of a run after which progress is shown and a checkpoint may be written; how many changes no
bit."""
WAITING = 2
"""Programs of steps that may wait for the ones before them."""


@dataclass(frozen=True)
class Loop:
    """A run on a model: from arranged records and first parameters to what is released."""

    run: Run
    objective: Objective
    draws: Draws | None = (
        None  #: exact noise, added to sums; without it the noise of the run is drawn by the program
    )
    rule: UpdateRule | None = None  #: a caller's optimizer, where the run says that there is one

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def program(self) -> StepProgram:
        """The program of the steps, and its arguments."""
        return StepProgram.of(self.run, self.objective, self.rule)

    def execute(
        self,
        initial: np.ndarray | jax.Array,
        data: object,
        key: Key,
        progress: Progress | None,
        checkpoint: Checkpoint | None = None,
    ) -> np.ndarray:
        """The last iterate, or all of them, (T, ...), for release="all"; refuses to release what is
        not finite.

        ``checkpoint``: where to begin, and what to keep on the way.
        """
        return run_to_end(self.iterate(initial, data, key, progress, checkpoint))

    def iterate(
        self,
        initial: np.ndarray | jax.Array,
        data: object,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        *,
        by_step: bool = False,
    ) -> Steps[np.ndarray]:
        """``execute`` in pauses: one before the first step, and one from time to time, or
        ``by_step`` after every step."""
        check_dimension(self.run, math.prod(np.shape(initial)))
        check_growth(self.run, initial, self.objective.ridge)
        state = start(self.program, initial, key)
        released = yield from self._run_steps(state, data, key, progress, checkpoint, by_step)
        check_released(released)
        return released

    def _run_steps(
        self,
        state: State,
        data: object,
        key: Key,
        progress: Progress | None,
        checkpoint: Checkpoint | None,
        by_step: bool,
    ) -> Steps[np.ndarray]:
        plan, steps, program, every = (
            schedule(self.run),
            self.run.steps,
            self.program,
            self.run.release == "all",
        )
        shape = state.theta.shape
        ahead = (
            NoiseAhead.normal(key, shape)
            if self.draws is None
            else NoiseAhead.exact(self.draws, shape, steps)
        )
        order, whole, pieces = (
            stream(key, ORDER),
            progress is None and checkpoint is None and not by_step,
            list[np.ndarray](),
        )
        began, done, behind = time.perf_counter(), 0, deque[jax.Array]()
        if checkpoint is not None and (kept := checkpoint.state)[1]:
            done, state = kept[0], State.from_arrays(kept[1])
        stretch = 1 if by_step else steps if whole else math.ceil(steps / STRETCHES)
        yield Pause(done)
        with closing(batches(program, data, key, done, steps)) as groups:
            for group in groups:
                while done < group.end:
                    until = min(group.end, done + stretch)
                    while done < until:
                        interrupts.check()
                        noise, end = ahead.at(done)
                        end = min(until, end)
                        state, iterates = advance(
                            group.program, state, group.data, order, plan, noise, done, end, every
                        )
                        if every:
                            made = np.asarray(iterates)[done - noise.first : end - noise.first]
                            pieces.append(made.copy())  # without the noise's other steps
                        behind.append(iterates)
                        if len(behind) > WAITING:  # its noise is held until its steps are made
                            behind.popleft().block_until_ready()
                        done = end
                    if not whole or done == group.end:
                        state.theta.block_until_ready()  # the group's memory is used again
                    if checkpoint is not None and done < steps and checkpoint.due:
                        checkpoint.keep(done, state.to_arrays())
                    if progress is not None:
                        progress(done, steps, time.perf_counter() - began)
                    yield Pause(done, partial(check_iterate, pieces[-1][-1]) if every else None)
                del group  # before the next one takes its memory
        return np.concatenate(pieces) if every else np.asarray(outcome(program, state))

    def many(
        self, initial: Any, data: object, keys: Key, firsts: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the released parameters for every key, with the models' steps made together;
        ``data`` in public order. ``firsts``: the first parameters for every key, where they are not
        all ``initial``.
        """
        check_dimension(self.run, math.prod(np.shape(initial)))
        begun = (
            jnp.broadcast_to(initial, (len(keys), *np.shape(initial)))
            if firsts is None
            else jnp.asarray(firsts)
        )
        models, every = (
            Models.begun(self.run, self.program, begun, data, keys),
            self.run.release == "all",
        )
        pieces = models.onward(self.run.steps, every)
        return np.concatenate(pieces, axis=1) if every else models.outcomes()


def check_dimension(run: Run, parameters: int) -> None:
    """Refuse a domain described for another number of parameters: a smaller diameter would
    understate epsilon."""
    match run.domain:
        case Box(dimension=int(stated)) if stated != parameters:
            raise InputError(
                "dimension of the box",
                f"must be the number of parameters, {parameters}",
                stated,
                "outputs times (features + 1) for a linear model, or leave it out",
            )
        case AffineBall(normals=rows) if len(rows[0]) != parameters:
            raise InputError(
                "normals of the domain",
                f"must have one entry for each of {parameters} parameters",
                len(rows[0]),
            )
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
        return Loop(
            self.run,
            Linear(
                linear_loss(self.run), self.run.clip, hidden(self.run), self.run.rows_per_record
            ),
        )

    def fit(
        self,
        features: np.ndarray,
        target: object,
        key: Key | None = None,
        progress: Progress | None = None,
        released: tuple[np.ndarray, ...] = (),
        absent: Sequence[int] = (),
        checkpoint: Checkpoint | None = None,
        initial: np.ndarray | None = None,
    ) -> np.ndarray:
        """Train and return the last iterate, (k, d + 1) float64 (all of them, (T, k, d + 1), for
        release="all").

        ``key``: only for tests and audits; by default 128 fresh bits from the operating system.
        ``released``: what each part of the run's preparation found. ``absent``: records whose
        gradients are zeroed. ``initial``: the first weights, (k, d + 1), to which the run's start
        adds; 0 by default. Errors: bad data, or a diverging run; then nothing is returned.

        **Guarantee:** exactly the run that is accounted: rows clipped, noise at every step, no
        other output.
        """
        check_process()
        key = fresh_key() if key is None else key
        return self.fit_arranged(
            self.arrange(features, target, key, released, absent),
            key,
            progress,
            checkpoint,
            initial,
        )

    def arrange(
        self,
        features: np.ndarray,
        target: object,
        key: Key,
        released: tuple[np.ndarray, ...] = (),
        absent: Sequence[int] = (),
    ) -> Arranged:
        """The records as ``fit_arranged`` reads them; parameters as in ``fit``."""
        with jax.enable_x64(True):
            order = places(self.run, key)
        return Arranged(*arrange(self.run, features, target, order, released, absent), order)

    def fit_arranged(
        self,
        arranged: Arranged,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
        initial: np.ndarray | None = None,
    ) -> np.ndarray:
        """``fit`` on records that are arranged by the same key; they stay as they are."""
        rows, labels, order = arranged
        with jax.enable_x64(True):
            if (solver := solver_of(self.run)) is not None:
                return solver.one(self.run, rows, labels, key, progress)
            data: Any = tuple(
                jax.device_put(part, may_alias=True) for part in readable(self.run, rows, labels)
            )
            if order is None:
                data = arrange_once(self.loop.program, data, key)
            return self.loop.execute(self.first(rows, initial), data, key, progress, checkpoint)

    def fit_many(
        self,
        features: np.ndarray,
        target: object,
        keys: Key,
        absent: Sequence[int] = (),
        initial: np.ndarray | None = None,
    ) -> np.ndarray:
        """Train one model per key in a single vectorised program, for tests and audits; (models, k,
        d + 1), with all iterates (models, T, k, d + 1). ``initial``: the first weights of every
        model, (models, k, d + 1)."""
        check_process()
        rows, labels = arrange(self.run, features, target, absent=absent)
        with jax.enable_x64(True):
            if (solver := solver_of(self.run)) is not None:
                return solver.many(self.run, rows, labels, keys)
            return self.loop.many(self.zero(rows), readable(self.run, rows, labels), keys, initial)

    def first(self, rows: np.ndarray, initial: np.ndarray | None) -> np.ndarray:
        """The first weights for arranged rows; those that are given must have their shape."""
        zero = self.zero(rows)
        if initial is not None and np.shape(initial) != zero.shape:
            raise InputError("initial", f"must have shape {zero.shape}", np.shape(initial))
        return zero if initial is None else np.asarray(initial, np.float64)

    def zero(self, rows: np.ndarray) -> np.ndarray:
        """Weights of 0, for arranged rows."""
        return np.zeros((linear_loss(self.run).outputs, rows.shape[-1]))


__all__ = ["Loop", "Progress", "Trainer", "fresh_key"]
