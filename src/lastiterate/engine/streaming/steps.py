"""Steps on buffers: one compiled program for every batching, every size of batches, and one device or many."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.ahead import ahead as made_ahead
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gaussian_noise import ORDER, Key, Number, stream
from lastiterate.engine.growth import check_growth, check_released
from lastiterate.engine.loop import (
    Schedule,
    State,
    chunk_sum,
    ended,
    looked_from,
    noise_at,
    outcome,
    schedule,
    start,
)
from lastiterate.engine.noise_ahead import Noise, NoiseAhead
from lastiterate.engine.objective import Objective
from lastiterate.engine.program import StepProgram
from lastiterate.engine.streaming.chunk_buffer import ChunkBuffer, Shape
from lastiterate.engine.streaming.chunk_buffers import filled_buffers
from lastiterate.engine.streaming.devices import Devices
from lastiterate.engine.streaming.passes import Passes, rows_of_chunk
from lastiterate.engine.trainer import STRETCHES, Progress, check_dimension
from lastiterate.errors import InputError
from lastiterate.run.run import Run, check_described
from lastiterate.run.update_rule import UpdateRule


def advance_chunks(program: StepProgram, state: State, total: jax.Array, records: Any, steps: jax.Array,
                   ends: jax.Array, order: Key, plan: Schedule, noise: Noise, first: Number, last: Number
                   ) -> tuple[State, jax.Array]:
    """Add the gradients of chunks first .. last - 1 to ``total``, and end a step with each that is its step's last.

    **Guarantee:** noise of step k is added once, when step k ends, from the one stream of the run's noise: how the rows
    of a chunk are shared by devices changes where sums are computed, and not what the program means.
    """
    def one(i: Number, held: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        now, so_far = held
        k = steps[i]
        point = looked_from(program, now, k)
        so_far = so_far + chunk_sum(program, point, jax.tree.map(lambda a: a[i], records), order, k)

        def end(now: State, so_far: jax.Array) -> tuple[State, jax.Array]:
            step_size = plan.step_size[jnp.minimum(k, plan.step_size.shape[0] - 1)]
            made, now = noise_at(program, now, noise, plan, k)
            return ended(program, now, point, so_far, made, k, step_size), jnp.zeros_like(so_far)

        return jax.lax.cond(ends[i], end, lambda now, so_far: (now, so_far), now, so_far)

    return jax.lax.fori_loop(first, last, one, (state, total))


ONE = Devices()
_COMPILED: dict[Devices, Any] = {}


@dataclass(frozen=True)
class StreamLoop:
    """A run on a model, executed on records that come in buffers; ``devices`` share the rows of every chunk.

    **Guarantee:** the run that is accounted: the draws, noise and update rule of every run with this key.
    """

    run: Run
    objective: Objective
    devices: Devices = ONE
    rule: UpdateRule | None = None  #: as in ``Loop``

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def program(self) -> StepProgram:
        """Without its sampler: batches come as they were drawn, so that all batchings share one compiled program."""
        return replace(StepProgram.of(self.run, self.objective, self.rule), sampler=None)  # type: ignore[arg-type]

    def execute(self, initial: np.ndarray | jax.Array, passes: Passes, key: Key, progress: Progress | None = None,
                checkpoint: Checkpoint | None = None) -> np.ndarray:
        """The last iterate; refuses to release what is not finite. ``checkpoint``: as in ``Loop``."""
        check_dimension(self.run, int(np.size(initial)))
        check_growth(self.run, initial, self.objective.ridge)
        plan, done, began, shown = schedule(self.run), 0, time.perf_counter(), 0
        state = start(self.program, initial, key)
        if checkpoint is not None and (kept := checkpoint.state)[1]:
            done, state = kept[0], State.restored(kept[1])
        total, noise, order = jnp.zeros_like(state.theta), NoiseAhead.normal(key, state.theta.shape), stream(key, ORDER)
        state, total = jax.tree.map(np.asarray, (state, total))  # on no device yet, so that any may take it
        with closing(made_ahead(filled_buffers(passes, self._shape(passes), done))) as every:
            for buffer in every:
                state, total = self._advanced(buffer, state, total, order, plan, noise)
                whole = bool(buffer.ends[buffer.used - 1])
                done = int(buffer.steps[buffer.used - 1]) + whole
                if checkpoint is not None and whole and done < self.run.steps and checkpoint.due:
                    checkpoint.keep(done, state.kept())
                if progress is not None and (done - shown >= self.run.steps / STRETCHES or done == self.run.steps):
                    shown = done
                    progress(done, self.run.steps, time.perf_counter() - began)
        passes.check()
        released = np.asarray(outcome(self.program, state))
        check_released(released)
        return released

    def _advanced(self, buffer: ChunkBuffer, state: State, total: jax.Array, order: Key, plan: Schedule,
                  ahead: NoiseAhead) -> tuple[State, jax.Array]:
        begin = 0
        try:
            held = self.devices.place(buffer.records)
            while begin < buffer.used:
                noise, end = ahead.at(int(buffer.steps[begin]))
                noise = jax.tree.map(np.asarray, noise)  # on no device, as the first state
                until = int(np.searchsorted(buffer.steps[:buffer.used], end))
                state, total = self._compiled(self.program, state, total, held, buffer.steps, buffer.ends, order, plan,
                                              noise, begin, until)
                begin = until
            total.block_until_ready()  # the buffer is written again
        except jax.errors.JaxRuntimeError as error:
            if self.devices.count == 1:
                raise
            raise InputError("devices", "stopped: one of them, or a process, no longer answers",
                             str(error).strip().split("\n")[0][:120], "nothing was released; " + self._remedy) from None
        return state, total

    @property
    def _remedy(self) -> str:
        return "go on from a checkpoint on the devices that are left" if jax.process_count() == 1 else \
            "start again with the processes that are left, under a charge of its own"

    @property
    def _compiled(self) -> Any:
        return _COMPILED.setdefault(self.devices, self.devices.compiled(advance_chunks))

    def _shape(self, passes: Passes) -> Shape:
        largest = int(min(self.run.n, self.run.divisor))
        return Shape.of(passes.form, rows_of_chunk(self.run, self.objective.most), self.devices, self.run.blocks,
                        largest)
