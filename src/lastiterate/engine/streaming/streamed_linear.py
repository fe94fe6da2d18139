"""Linear models on records that come in pieces: private preparation, steps, and what is released."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gaussian_noise import ORDER, Key, fresh_key, stream
from lastiterate.engine.gradients import Linear, outputs
from lastiterate.engine.measured import Blocks, Measurable, drawn_with, prepare_privately, settled
from lastiterate.engine.model import Model, scores
from lastiterate.engine.newton_rounds import calibrated, drawn_rounds
from lastiterate.engine.preparation.sliced_sums import Shared
from lastiterate.engine.preparation.target_mean import target_offset
from lastiterate.engine.prepare import SLICE, checked_answers, hidden, linear_loss, prepare_into, readable
from lastiterate.engine.process import check_process
from lastiterate.engine.streaming.chunk_buffer import Shape
from lastiterate.engine.streaming.devices import Devices
from lastiterate.engine.streaming.kept import again_and_again
from lastiterate.engine.streaming.passes import Passes
from lastiterate.engine.streaming.record_source import (
    AT_ONCE,
    Cursor,
    Piece,
    Source,
    counted,
    first_record,
    own_records,
    regrouped,
    rows_of,
)
from lastiterate.engine.streaming.steps import StreamLoop
from lastiterate.engine.trainer import Progress
from lastiterate.errors import InputError
from lastiterate.run.measured_smoothness import by_block
from lastiterate.run.preparation import columns
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Rows:
    """From (features, targets) to what steps read, rows with their intercept first: a map of single records.

    **Guarantee:** rows are prepared and clipped exactly as they are in memory.
    """

    run: Run
    released: tuple[np.ndarray, ...]

    def __call__(self, piece: Piece) -> Piece:
        features, target = piece
        answers = checked_answers(self.run, target)
        if offset := target_offset(self.run, self.released):
            answers = (answers - offset).astype(answers.dtype)
        rows = np.empty((len(features), columns(self.run.prelude, features.shape[1]) + 1), np.float32)
        prepare_into(rows, self.run, features, self.released)
        return readable(self.run, rows, answers)


def execute_streaming(run: Run, source: Source, key: Key | None = None, progress: Progress | None = None,
                      checkpoint: Checkpoint | None = None, folder: Path | None = None, devices: int = 1) -> Model:
    """Run every step of ``run`` on records that come in pieces; the draws and noise of a run in memory with this key.

    ``folder``: for scratch files (see ``Scratch``). ``devices``: how many share every chunk (see ``Devices``).
    Peak memory does not depend on the number of records.
    """
    check_linear(source)
    shared = Devices(devices)
    shared.check_checkpoint(checkpoint)
    shared.check_records(run.n)
    if checkpoint is not None:
        key = checkpoint.begin(run, source.digested(), key, "linear")
    check_process()
    key = shared.same_key(fresh_key() if key is None else key, run.to_json(), f"{devices} devices")
    with closing(again_and_again(run, source, folder, arranged_once=True)) as records:
        released = prepare_privately(run, _measurable(run, records.source, shared), drawn_with(key))
        with jax.enable_x64(True):
            order = np.asarray(stream(key, ORDER))
        with closing(Passes(run, records.source, Rows(run, released), order, folder, dear=True,
                            part=shared.part)) as passes:
            features = first_record(source)[0].shape[1]
            done, released = settled(run, features, released, key, lambda: _batches(run, passes, shared))
            loop = StreamLoop(done, Linear(linear_loss(run), run.clip, hidden(run)), shared)
            with jax.enable_x64(True):
                first = np.zeros((outputs(linear_loss(run)), columns(run.prelude, features) + 1))
                weights = loop.execute(first, passes, key, progress, checkpoint)
        model = Model(weights, released)

        def scored() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for rows, target in _own_pieces(run, records.source, shared):
                yield scores(run, model, rows), checked_answers(run, target)

        return Model(calibrated(run, weights, scored, drawn_rounds(key), _together(shared)), released)


def check_linear(source: Source) -> None:
    """Refuse, before a record counts, what is no table."""
    record = first_record(source)
    if len(record) != 2 or record[0].ndim != 2 or record[0].dtype.kind not in "biuf":
        raise InputError("data", "must give rows (m, d) of numbers and targets (m,) for a linear model",
                         tuple(part.shape[1:] for part in record))


def _measurable(run: Run, source: Source, shared: Devices) -> Measurable:
    """A source as preparations read it; every one of several processes reads its own records."""
    def column(which: int) -> Iterator[np.ndarray]:
        return (piece[which] for piece in _own_pieces(run, source, shared))

    return Measurable(run.n, first_record(source)[0].shape[1], lambda: column(0),
                      lambda: (checked_answers(run, part) for part in column(1)), _together(shared))


def _own_pieces(run: Run, source: Source, shared: Devices) -> Iterator[Piece]:
    """Features and targets of this process, in slices."""
    begin, end = own_records(run.n, *shared.part)
    return regrouped(Cursor(counted(source, run.n, begin)).take(end - begin), SLICE)


def _together(shared: Devices) -> Callable[[Iterator[np.ndarray]], Any]:
    """Slices of this process as sums over those of all take them."""
    return iter if shared.part[1] == 1 else lambda slices: Shared(slices, shared.gathered)


def _batches(run: Run, passes: Passes, shared: Devices) -> Blocks:
    """Rows of the run's batches where they are the same in every pass, otherwise of all records."""
    together, nothing = _together(shared), np.zeros((1, passes.form.shapes[0][0]), np.float32)
    if not by_block(run):
        most = rows_of(passes.source, AT_ONCE)
        yield together(chain([nothing], (piece[0] for piece in regrouped(passes.arranged_own(most), SLICE))))
        return
    with closing(passes.from_pass(0)) as every:
        one = next(every)
        cursor = Cursor(one.pieces(0))
        for begin, many, _ in one.shares(Shape(1, 1, 1, *shared.part)).tolist():
            if shared.part[1] > 1 and one.counts is None:
                cursor = Cursor(one.pieces(begin))
            yield together(chain([nothing], (piece[0] for piece in regrouped(cursor.take(many), SLICE))))
