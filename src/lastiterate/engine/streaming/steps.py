"""Run steps on buffers: one compiled program for every batching and size."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint, FollowedCheckpoint
from lastiterate.engine.job import explain_loss
from lastiterate.engine.loop import (
    Objective,
    Schedule,
    State,
    StepProgram,
    chunk_sum,
    evaluation_point,
    finish_step,
    noise_at,
    outcome,
    schedule,
    start,
)
from lastiterate.engine.noise import Noise, NoiseAhead
from lastiterate.engine.noise import ahead as made_ahead
from lastiterate.engine.random import ORDER, Key, Number, stream
from lastiterate.engine.step_iterator import Pause, Steps, run_to_end
from lastiterate.engine.streaming.buffers import ChunkBuffer, Devices, Shape
from lastiterate.engine.streaming.sorting import Passes, move_cursor, rows_of_chunk
from lastiterate.engine.streaming.source import Cursor
from lastiterate.engine.trainer import (
    STRETCHES,
    Progress,
    check_dimension,
    check_growth,
    check_released,
)
from lastiterate.run.run import Run, check_described
from lastiterate.run.updates import UpdateRule

# The buffers of a run: made of records as they come, or where batches are the same in every pass
# read again.


def iterate_buffers(passes: Passes, shape: Shape, first: int) -> Generator[ChunkBuffer, None, None]:
    """The buffers of all steps from ``first`` on; each is valid until the one after the next is
    asked for.

    A buffer ends with a step unless that step alone is longer than a buffer, and with a pass: so
    the buffers of all processes hold the same chunks, whichever of them keep theirs.
    """
    run, pair = (
        passes.run,
        [ChunkBuffer.empty(passes.form, shape.chunks, shape.rows) for _ in range(2)],
    )
    whole = -(-first // run.blocks) * run.blocks  # where the next pass begins
    kept = passes.find_storage(shape) if whole + run.blocks < run.steps else None
    if kept is None:
        yield from _make_buffers(passes, shape, first, run.steps, pair)
        return
    with closing(kept):
        yield from _make_buffers(passes, shape, first, whole, pair)
        for buffer in _make_buffers(passes, shape, whole, whole + run.blocks, pair):
            kept.keep(buffer)
            yield buffer
        passes.close()
        for begin in range(whole + run.blocks, run.steps, run.blocks):
            passes.check()
            yield from kept.again(begin, run.steps, pair)


def _make_buffers(
    passes: Passes, shape: Shape, first: int, end: int, pair: list[ChunkBuffer]
) -> Iterator[ChunkBuffer]:
    """The buffers of the steps ``first`` .. ``end`` - 1; ``pair[0]`` is the one that is not in use."""
    blocks = passes.run.blocks
    step = first
    if first >= end:
        return
    with closing(passes.from_pass(first // blocks)) as every:
        for one in every:
            shares = one.shares(shape).tolist()
            at = shares[step % blocks][0]
            cursor = Cursor(one.pieces(at))
            until = min(end, (step // blocks + 1) * blocks)
            for k in range(step, until):
                begin, many, chunks = shares[k % blocks]
                if shape.parts > 1 and one.counts is None:
                    cursor, at = move_cursor(passes, one, cursor, at, begin), begin + many
                for number in range(chunks):
                    if pair[0].full or (
                        number == 0 and pair[0].used + chunks > shape.chunks and pair[0].used
                    ):
                        yield from _yield_buffer(pair)
                    left = max(0, many - number * shape.records)
                    pair[0].add(cursor, min(shape.records, left), k, number + 1 == chunks)
                if chunks > shape.chunks:
                    yield from _yield_buffer(pair)
            if until % blocks == 0 and (shape.parts == 1 or one.counts is not None):
                cursor.finish()
            if pair[0].used:
                yield from _yield_buffer(pair)
            step = until
            if step == end:
                break


def _yield_buffer(pair: list[ChunkBuffer]) -> Iterator[ChunkBuffer]:
    """The buffer that is filled; when the next is asked for the one before it is free."""
    yield pair[0]
    pair.reverse()
    pair[0].used = 0


# Steps on buffers: one compiled program for every batching, every size of batches, and one device
# or many.


def advance_chunks(
    program: StepProgram,
    state: State,
    total: jax.Array,
    records: Any,
    steps: jax.Array,
    ends: jax.Array,
    order: Key,
    plan: Schedule,
    noise: Noise,
    first: Number,
    last: Number,
) -> tuple[State, jax.Array]:
    """Add the gradients of chunks first .. last - 1 to ``total``, and end a step with each that is
    its step's last.

    **Guarantee:** noise of step k is added once, when step k ends, from the one stream of the run's
    noise: how the rows of a chunk are shared by devices changes where sums are computed, and not
    what the program means.
    """

    def one(i: Number, held: tuple[State, jax.Array]) -> tuple[State, jax.Array]:
        now, so_far = held
        k = steps[i]
        point = evaluation_point(program, now, k)
        so_far = so_far + chunk_sum(program, point, jax.tree.map(lambda a: a[i], records), order, k)

        def end(now: State, so_far: jax.Array) -> tuple[State, jax.Array]:
            made, now = noise_at(program, now, noise, plan, k)
            after = finish_step(program, now, point, so_far, made, k, plan.step_size_at(k))
            return after, jnp.zeros_like(so_far)

        return jax.lax.cond(ends[i], end, lambda now, so_far: (now, so_far), now, so_far)

    return jax.lax.fori_loop(first, last, one, (state, total))


ONE = Devices()
_COMPILED: dict[Devices, Any] = {}


@dataclass(frozen=True)
class StreamLoop:
    """A run on a model, executed on records that come in buffers; ``devices`` share the rows of
    every chunk.

    **Guarantee:** the run that is accounted: the draws, noise and update rule of every run with
    this key.
    """

    run: Run
    objective: Objective
    devices: Devices = ONE
    rule: UpdateRule | None = None  #: as in ``Loop``

    def __post_init__(self) -> None:
        check_described(self.run)

    @cached_property
    def program(self) -> StepProgram:
        """Without its sampler: batches come as they were drawn, so that all batchings share one
        compiled program."""
        return replace(StepProgram.of(self.run, self.objective, self.rule), sampler=None)  # type: ignore[arg-type]

    def execute(
        self,
        initial: np.ndarray | jax.Array,
        passes: Passes,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | FollowedCheckpoint | None = None,
    ) -> np.ndarray:
        """The last iterate; refuses to release what is not finite. ``checkpoint``: as in ``Loop``."""
        return run_to_end(self.iterate(initial, passes, key, progress, checkpoint))

    def iterate(
        self,
        initial: np.ndarray | jax.Array,
        passes: Passes,
        key: Key,
        progress: Progress | None = None,
        checkpoint: Checkpoint | FollowedCheckpoint | None = None,
        *,
        by_step: bool = False,
    ) -> Steps[np.ndarray]:
        """``execute`` in pauses, as ``Loop.iterate`` makes them."""
        check_dimension(self.run, int(np.size(initial)))
        check_growth(self.run, initial, self.objective.ridge)
        plan, done, began, shown = schedule(self.run), 0, time.perf_counter(), 0
        state = start(self.program, initial, key)
        if checkpoint is not None and (kept := checkpoint.state)[1]:
            done, state = kept[0], State.from_arrays(kept[1])
        total, noise, order = (
            jnp.zeros_like(state.theta),
            NoiseAhead.normal(key, state.theta.shape),
            stream(key, ORDER),
        )
        state, total = jax.tree.map(
            np.asarray, (state, total)
        )  # on no device yet, so that any may take it
        yield Pause(done)
        with closing(made_ahead(iterate_buffers(passes, self.choose_shape(passes), done))) as every:
            for buffer in every:
                parts = self._run_steps(buffer, state, total, order, plan, noise, by_step)
                for last, now, so_far in parts:
                    state, total = now, so_far
                    whole = bool(buffer.ends[last])
                    done = int(buffer.steps[last]) + whole
                    if (
                        isinstance(checkpoint, Checkpoint)
                        and whole
                        and done < self.run.steps
                        and checkpoint.due
                    ):
                        checkpoint.keep(done, state.to_arrays())
                    if progress is not None and (
                        done - shown >= self.run.steps / STRETCHES or done == self.run.steps
                    ):
                        shown = done
                        progress(done, self.run.steps, time.perf_counter() - began)
                    if whole and by_step:
                        yield Pause(done)
        passes.check()
        released = np.asarray(outcome(self.program, state))
        check_released(released)
        return released

    def _run_steps(
        self,
        buffer: ChunkBuffer,
        state: State,
        total: jax.Array,
        order: Key,
        plan: Schedule,
        ahead: NoiseAhead,
        by_step: bool,
    ) -> Iterator[tuple[int, State, jax.Array]]:
        """Read a buffer to its last chunk, ``by_step`` to that of every step; each time the index
        of the chunk, and the state and the sum behind it."""
        begin = 0
        ends = np.flatnonzero(buffer.ends[: buffer.used - 1]).tolist() if by_step else []
        with nullcontext() if self.devices.count == 1 else explain_loss():
            held = self.devices.place(buffer.records)
            for last in (*ends, buffer.used - 1):
                while begin <= last:
                    noise, end = ahead.at(int(buffer.steps[begin]))
                    noise = jax.tree.map(np.asarray, noise)  # on no device, as the first state
                    until = min(last + 1, int(np.searchsorted(buffer.steps[: buffer.used], end)))
                    state, total = self._compiled(
                        self.program,
                        state,
                        total,
                        held,
                        buffer.steps,
                        buffer.ends,
                        order,
                        plan,
                        noise,
                        begin,
                        until,
                    )
                    begin = until
                total.block_until_ready()  # the buffer is written again
                yield last, state, total

    @property
    def _compiled(self) -> Any:
        return _COMPILED.setdefault(self.devices, self.devices.compile(advance_chunks))

    def choose_shape(self, passes: Passes) -> Shape:
        """The shape of the run's buffers."""
        largest = int(min(self.run.n, self.run.divisor))
        return Shape.of(
            passes.form,
            rows_of_chunk(self.run, self.objective.most),
            self.devices,
            self.run.blocks,
            largest,
        )
