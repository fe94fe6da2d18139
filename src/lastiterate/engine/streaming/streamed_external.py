"""Runs whose gradients another library computes, on records that come in pieces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import jax
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.ahead import ahead
from lastiterate.engine.checkpoint import Keeper
from lastiterate.engine.external_gradients import ExternalLoop
from lastiterate.engine.external_steps import StepEnds, external_noise
from lastiterate.engine.gaussian_noise import ORDER, Key, stream
from lastiterate.engine.growth import check_growth, check_released
from lastiterate.engine.loop import looked_from, outcome, schedule, start
from lastiterate.engine.noise_ahead import NoiseAhead
from lastiterate.engine.process import check_process
from lastiterate.engine.program import StepProgram
from lastiterate.engine.record_keys import keys_of_batch
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import AT_ONCE, Cursor, Piece, joined
from lastiterate.engine.trainer import STRETCHES, Progress, check_dimension
from lastiterate.errors import InputError
from lastiterate.run.run import Run
from lastiterate.run.update_rule import UpdateRule

PieceSums = Callable[[np.ndarray, Piece, np.ndarray | None], np.ndarray]
"""From parameters (size,), records and their keys of this step (where they draw something) to the sum of their clipped
gradients, (size,)."""
Share = tuple[int, bool, Piece | None]
"""A step's number, whether these are its last records, and the records (``None``: a batch without any)."""


@dataclass(frozen=True)
class ExternalStreamLoop:
    """As ``ExternalLoop``, with batches that are read in shares: their records, and no numbers of them.

    **Guarantee:** that of ``ExternalLoop``: the draws and noise of every run with this key, and sums that noise is
    added to before anything is released.
    """

    run: Run
    shapes: tuple[tuple[int, ...], ...]
    rule: UpdateRule | None = None  #: as in ``ExternalLoop``

    def __post_init__(self) -> None:
        if self.run.release != "last":
            raise InputError("release", "must be 'last' where records are read in pieces", self.run.release,
                             "hold the data in memory to release all iterates")

    def execute(self, initial: np.ndarray, sums: PieceSums, passes: Passes, key: Key, progress: Progress | None = None,
                keeper: Keeper | None = None) -> np.ndarray:
        """The last iterate (size,); refuses what is not finite, and records that changed."""
        check_process()
        check_dimension(self.run, initial.size)
        check_growth(self.run, initial, 0.0)
        run, plan, began, done = self.run, schedule(self.run), time.perf_counter(), 0
        program: StepProgram = replace(ExternalLoop(run, self.shapes, rule=self.rule).program, sampler=None)  # type: ignore[arg-type]
        with jax.enable_x64(True):
            state, order, ending = start(program, initial, key), stream(key, ORDER), StepEnds(program, plan, self.rule)
            noise_ahead = NoiseAhead.normal(key, initial.shape)
            if keeper is not None and (kept := keeper.state)[1]:
                done, state = kept[0], ending.restored(kept[1])
            with closing(ahead(shares(passes, done))) as every:
                total, point = np.zeros(initial.size), looked_from(program, state, done)
                for k, last, records in every:
                    interrupts.check()
                    if records is not None:
                        keys = None
                        if run.record_draws is not None:
                            *parts, numbers = records
                            records, keys = tuple(parts), keys_of_batch(order, numbers, k)
                        total = total + sums(np.asarray(point), records, keys)
                    if not last:
                        continue
                    noise, state = external_noise(program, state, noise_ahead.at(k)[0], plan, k)
                    state = ending.ended(state, point, total, noise, k)
                    total, point = np.zeros(initial.size), looked_from(program, state, k + 1)
                    if (k + 1) % max(1, run.steps // STRETCHES) == 0 or k + 1 == run.steps:
                        if keeper is not None and k + 1 < run.steps and keeper.due:
                            keeper.keep(k + 1, ending.kept(state))
                        if progress is not None:
                            progress(k + 1, run.steps, time.perf_counter() - began)
            released = np.asarray(outcome(program, state))
        passes.check()
        check_released(released)
        return released


def shares(passes: Passes, first: int) -> Iterator[Share]:
    """The batches of all steps from ``first`` on, about ``AT_ONCE`` bytes of records at a time."""
    run, step = passes.run, first
    most = max(1, AT_ONCE // max(1, passes.form.size))
    with closing(passes.from_pass(first // run.blocks)) as every:
        for one in every:
            cursor = Cursor(one.pieces(int(one.sizes[:step % run.blocks].sum())))
            until = min(run.steps, (step // run.blocks + 1) * run.blocks)
            for k in range(step, until):
                left = int(one.sizes[k % run.blocks])
                if left == 0:
                    yield k, True, None
                while left > 0:
                    many = min(most, left)
                    left -= many
                    yield k, left == 0, joined(list(cursor.take(many)))
            if until % run.blocks == 0:
                cursor.finish()
            step = until
