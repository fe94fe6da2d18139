"""The trainer: nothing but the run to configure it, and the whole of it executed."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gathered import batches
from lastiterate.engine.gaussian_noise import ORDER, Key, fresh_key, stream
from lastiterate.engine.gradients import Linear, outputs
from lastiterate.engine.growth import check_growth, check_released
from lastiterate.engine.loop import State, advance, drawn_once, outcome, schedule, start
from lastiterate.engine.many_models import Models
from lastiterate.engine.methods import solver_of
from lastiterate.engine.noise_ahead import Draws, NoiseAhead
from lastiterate.engine.objective import Objective
from lastiterate.engine.prepare import Arranged, arrange, hidden, linear_loss, places, readable
from lastiterate.engine.process import check_process
from lastiterate.engine.program import StepProgram
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Box
from lastiterate.run.run import Run, check_described
from lastiterate.run.update_rule import UpdateRule

Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, seconds; never with anything that depends on the data."""
STRETCHES = 50
"""Parts of a run after which progress is shown and a checkpoint may be written; how many changes no bit."""
WAITING = 2
"""Programs of steps that may wait for the ones before them."""


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

    def execute(self, initial: np.ndarray | jax.Array, data: object, key: Key, progress: Progress | None,
                checkpoint: Checkpoint | None = None) -> np.ndarray:
        """The last iterate, or all of them, (T, ...), for release="all"; refuses to release what is not finite.

        ``checkpoint``: where to begin, and what to keep on the way.
        """
        check_dimension(self.run, math.prod(np.shape(initial)))
        check_growth(self.run, initial, self.objective.ridge)
        state = start(self.program, initial, key)
        released = self._released(state, data, key, progress, checkpoint)
        check_released(released)
        return released

    def _released(self, state: State, data: object, key: Key, progress: Progress | None,
                  checkpoint: Checkpoint | None) -> np.ndarray:
        plan, steps, program, every = schedule(self.run), self.run.steps, self.program, self.run.release == "all"
        shape = state.theta.shape
        ahead = NoiseAhead.normal(key, shape) if self.draws is None else NoiseAhead.exact(self.draws, shape, steps)
        order, whole, pieces = stream(key, ORDER), progress is None and checkpoint is None, list[np.ndarray]()
        began, done, behind = time.perf_counter(), 0, deque[jax.Array]()
        if checkpoint is not None and (kept := checkpoint.state)[1]:
            done, state = kept[0], State.restored(kept[1])
        stretch = steps if whole else math.ceil(steps / STRETCHES)
        with closing(batches(program, data, key, done, steps)) as groups:
            for group in groups:
                while done < group.end:
                    until = min(group.end, done + stretch)
                    while done < until:
                        interrupts.check()
                        noise, end = ahead.at(done)
                        end = min(until, end)
                        state, iterates = advance(group.program, state, group.data, order, plan, noise, done, end,
                                                  every)
                        if every:
                            pieces.append(np.asarray(iterates)[done - noise.first:end - noise.first])
                        behind.append(iterates)
                        if len(behind) > WAITING:  # its noise is held until its steps are made
                            behind.popleft().block_until_ready()
                        done = end
                    if not whole or done == group.end:
                        state.theta.block_until_ready()  # the group's memory is used again
                    if checkpoint is not None and done < steps and checkpoint.due:
                        checkpoint.keep(done, state.kept())
                    if progress is not None:
                        progress(done, steps, time.perf_counter() - began)
                del group  # before the next one takes its memory
        return np.concatenate(pieces) if every else np.asarray(outcome(program, state))

    def many(self, initial: Any, data: object, keys: Key, firsts: np.ndarray | None = None) -> np.ndarray:
        """What is released for every key, the models' steps made together; ``data`` in public order. ``firsts``: the
        first parameters for every key, where they are not all ``initial``."""
        check_dimension(self.run, math.prod(np.shape(initial)))
        begun = jnp.broadcast_to(initial, (len(keys), *np.shape(initial))) if firsts is None else jnp.asarray(firsts)
        models, every = Models.begun(self.run, self.program, begun, data, keys), self.run.release == "all"
        pieces = models.onward(self.run.steps, every)
        return np.concatenate(pieces, axis=1) if every else models.outcomes()


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

    def fit(self, features: np.ndarray, target: object, key: Key | None = None, progress: Progress | None = None,
            released: tuple[np.ndarray, ...] = (), absent: Sequence[int] = (),
            checkpoint: Checkpoint | None = None, initial: np.ndarray | None = None) -> np.ndarray:
        """Train and return the last iterate, (k, d + 1) float64 (all of them, (T, k, d + 1), for release="all").

        ``key``: only for tests and audits; by default 128 fresh bits from the operating system. ``released``:
        what each part of the run's preparation found. ``absent``: records whose gradients are zeroed. ``initial``:
        the first weights, (k, d + 1), to which the run's start adds; 0 by default.
        Errors: bad data, or a diverging run; then nothing is returned.

        **Guarantee:** exactly the run that is accounted: rows clipped, noise at every step, no other output.
        """
        check_process()
        key = fresh_key() if key is None else key
        return self.trained(self.arranged(features, target, key, released, absent), key, progress, checkpoint, initial)

    def arranged(self, features: np.ndarray, target: object, key: Key, released: tuple[np.ndarray, ...] = (),
                 absent: Sequence[int] = ()) -> Arranged:
        """The records as ``trained`` reads them; parameters as in ``fit``."""
        with jax.enable_x64(True):
            order = places(self.run, key)
        return Arranged(*arrange(self.run, features, target, order, released, absent), order)

    def trained(self, arranged: Arranged, key: Key, progress: Progress | None = None,
                checkpoint: Checkpoint | None = None, initial: np.ndarray | None = None) -> np.ndarray:
        """``fit`` on records that are arranged by the same key; they stay as they are."""
        rows, labels, order = arranged
        with jax.enable_x64(True):
            if (solver := solver_of(self.run)) is not None:
                return solver.one(self.run, rows, labels, key, progress)
            data: Any = tuple(jax.device_put(part, may_alias=True) for part in readable(self.run, rows, labels))
            if order is None:
                data = drawn_once(self.loop.program, data, key)
            return self.loop.execute(self.first(rows, initial), data, key, progress, checkpoint)

    def fit_many(self, features: np.ndarray, target: object, keys: Key, absent: Sequence[int] = (),
                 initial: np.ndarray | None = None) -> np.ndarray:
        """Train one model per key in a single vectorised program, for tests and audits; (models, k, d + 1), with all
        iterates (models, T, k, d + 1). ``initial``: the first weights of every model, (models, k, d + 1)."""
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
        return np.zeros((outputs(linear_loss(self.run)), rows.shape[-1]))


__all__ = ["Loop", "Progress", "Trainer", "fresh_key"]
