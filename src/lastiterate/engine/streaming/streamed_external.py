"""Runs whose gradients another library computes, on records that come in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import jax
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.ahead import ahead
from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.external_gradients import ExternalLoop
from lastiterate.engine.gaussian_noise import ORDER, Key, stream
from lastiterate.engine.record_keys import keys_of_batch
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import AT_ONCE, Cursor, Piece, joined
from lastiterate.engine.trainer import Progress

PieceSums = Callable[[np.ndarray, Piece, np.ndarray | None], np.ndarray]
"""From parameters (size,), records and their keys of this step (where they draw something) to the sum of their clipped
gradients, (size,)."""
Share = tuple[bool, Piece | None]
"""Whether these are the last records of a step, and the records (``None``: a batch without any)."""


def execute_streamed(loop: ExternalLoop, initial: np.ndarray, sums: PieceSums, passes: Passes, key: Key,
                     progress: Progress | None = None, checkpoint: Checkpoint | None = None) -> np.ndarray:
    """The last iterate (size,) of ``loop`` on batches that are read in shares: their records, and no numbers of them.

    Refuses what ``loop`` does, and records that changed.
    """
    with jax.enable_x64(True):
        order = stream(key, ORDER)
    with closing(ahead(shares(passes, 0 if checkpoint is None else checkpoint.state[0]))) as every:
        def total(point: jax.Array, k: int) -> np.ndarray:
            found, last = np.zeros(initial.size), False
            while not last:
                interrupts.check()
                last, records = next(every)
                if records is not None:
                    keys = None
                    if loop.run.record_draws is not None:
                        *parts, numbers = records
                        records, keys = tuple(parts), keys_of_batch(order, numbers, k)
                    found = found + sums(np.asarray(point), records, keys)
            return found

        released = loop.executed(initial, total, key, progress, checkpoint)
    passes.check()
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
                    yield True, None
                while left > 0:
                    many = min(most, left)
                    left -= many
                    yield left == 0, joined(list(cursor.take(many)))
            if until % run.blocks == 0:
                cursor.finish()
            step = until
