"""Execute linear, network and external runs on records that come in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lastiterate import interrupts
from lastiterate.engine.checkpoint import Checkpoint, FollowedCheckpoint
from lastiterate.engine.exact_gradients import RecordSums, make_exact_loop
from lastiterate.engine.exact_linear import PROGRAM as EXACT_PROGRAM
from lastiterate.engine.exact_linear import (
    ChunkSums,
    Grid,
    exact_loop,
    exact_rounds,
    grid_of,
    release_exactly,
    round_to_grid,
)
from lastiterate.engine.exact_residuals import score_records
from lastiterate.engine.external_gradients import ExternalLoop
from lastiterate.engine.linear_gradients import (
    SLICE,
    Linear,
    check_targets,
    hidden,
    linear_loss,
    prepare_into,
    readable,
)
from lastiterate.engine.linear_model import (
    Blocks,
    Measurable,
    make_release,
    prepare_privately,
    resolve_step_sizes,
)
from lastiterate.engine.network import EXACT, LabelCheck, identity, objective_of
from lastiterate.engine.noise import ahead
from lastiterate.engine.optimizers import GradientTransformation, rule_of
from lastiterate.engine.parameters import Form
from lastiterate.engine.preprocessing import SharedSlices, TrainedWeights, scores, target_offset
from lastiterate.engine.probability_calibration import calibrate_weights, make_rounds
from lastiterate.engine.random import ORDER, Key, fresh_key, host_stream
from lastiterate.engine.record_loss import (
    Augment,
    RecordLoss,
    check_classes,
    check_finite,
)
from lastiterate.engine.step_iterator import Steps, map_steps, resume_within, run_to_end
from lastiterate.engine.streaming.buffers import ChunkBuffer, Devices, Shape
from lastiterate.engine.streaming.scratch import again_and_again
from lastiterate.engine.streaming.sorting import Passes, move_cursor
from lastiterate.engine.streaming.source import (
    AT_ONCE,
    Cursor,
    Piece,
    Source,
    count_records,
    first_record,
    join_pieces,
    number_records,
    own_records,
    regroup,
    rows_of,
)
from lastiterate.engine.streaming.steps import StreamLoop, iterate_buffers
from lastiterate.engine.trainer import Loop, Progress, begin, check_process
from lastiterate.errors import InputError
from lastiterate.run.measured_smoothness import is_measured_by_block
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run

# Runs whose gradients another library computes, on records that come in pieces.

PieceSums = Callable[[np.ndarray, Piece, np.ndarray | None], np.ndarray]
"""From parameters (size,), records and their keys of this step (where they draw something) to the
sum of their clipped gradients, (size,)."""
Share = tuple[bool, Piece | None]
"""Whether these are the last records of a step, and the records (``None``: a batch without any)."""


def iterate_streamed(
    loop: ExternalLoop,
    initial: np.ndarray,
    sums: PieceSums,
    passes: Passes,
    key: Key,
    progress: Progress | None = None,
    checkpoint: Checkpoint | FollowedCheckpoint | None = None,
    *,
    by_step: bool = False,
    together: int = 1,
) -> Steps[np.ndarray]:
    """The steps of ``loop`` on batches that are read in shares, their records and no numbers of
    them; to the last iterate (size,). ``together``: as in ``shares``.

    Refuses what ``loop`` does, and records that changed.
    """
    order = host_stream(key, ORDER)
    done = 0 if checkpoint is None else checkpoint.state[0]
    with closing(ahead(shares(passes, done, together))) as every:

        def total(point: jax.Array, k: int) -> np.ndarray:
            found, last = np.zeros(initial.shape), False
            while not last:
                interrupts.check()
                last, records = next(every)
                if records is not None:
                    keys = None
                    if loop.run.augmentation is not None:
                        *parts, numbers = records
                        records, keys = tuple(parts), loop.draw_keys(order, numbers, k)
                    found = found + sums(np.asarray(point), records, keys)
            return found

        released = yield from loop.iterate_totals(
            initial, total, key, progress, checkpoint, by_step=by_step
        )
    passes.check()
    return released


def shares(passes: Passes, first: int, together: int = 1) -> Iterator[Share]:
    """The batches of all steps from ``first`` on, about ``AT_ONCE`` bytes of records at a time; of
    several processes each has its own records, or its positions of every piece.

    ``together``: records of a batch that are never parted, counted from its begin.
    """
    run, step, (part, parts) = passes.run, first, passes.part
    most = max(1, AT_ONCE // max(1, passes.form.size) // together) * together
    with closing(passes.from_pass(first // run.blocks)) as every:
        for one in every:
            sizes = one.sizes if one.counts is None else one.counts[part]
            cursor = Cursor(one.pieces(int(sizes[: step % run.blocks].sum())))
            until = min(run.steps, (step // run.blocks + 1) * run.blocks)
            for k in range(step, until):
                left = int(sizes[k % run.blocks])
                if left == 0:
                    yield True, None
                while left > 0:
                    many = min(most, left)
                    left -= many
                    piece = join_pieces(list(cursor.take(many)))
                    if one.counts is None and parts > 1:
                        own = np.arange(len(piece[0])) // together % parts == part
                        piece = tuple(array[own] for array in piece)
                    yield left == 0, piece
            if until % run.blocks == 0:
                cursor.finish()
            step = until


# Linear models on records that come in pieces: private preparation, steps, and what is released.


@dataclass(frozen=True)
class Rows:
    """From (features, targets) to what steps read, rows with their intercept first: a map of single
    records.

    **Guarantee:** rows are prepared and clipped exactly as they are in memory.
    """

    run: Run
    released: tuple[np.ndarray, ...]

    def __call__(self, piece: Piece) -> Piece:
        features, target = piece
        answers = check_targets(self.run, target)
        if offset := target_offset(self.run, self.released):
            answers = (answers - offset).astype(answers.dtype)
        rows = np.empty(
            (len(features), columns(self.run.preprocessing, features.shape[1]) + 1), np.float32
        )
        prepare_into(rows, self.run, features, self.released)
        return readable(self.run, rows, answers)


@dataclass(frozen=True)
class ExactRows:
    """From (features, targets) to rows and targets as exact sums read them: rounded to ``grid``."""

    rows: Rows
    grid: Grid

    def __call__(self, piece: Piece) -> Piece:
        rows, labels, *_ = self.rows(piece)
        return round_to_grid(rows, linear_loss(self.rows.run), self.grid), labels


def execute_streaming(
    run: Run,
    source: Source,
    key: Key | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    folder: Path | None = None,
    devices: int = 1,
    *,
    exact: bool = False,
) -> TrainedWeights:
    """Run every step of ``run`` on records that come in pieces; the draws and noise of a run in
    memory with this key.

    ``folder``: for scratch files (see ``Scratch``). ``devices``: how many share every chunk (see
    ``Devices``). ``exact``: exact sums with exact noise, as ``execute_exactly`` has them: then the
    sums of every step have the same bits in memory, in pieces, and on any number of devices and
    processes, except for the last bit of a whitened row. Peak memory does not depend on the number
    of records.
    """
    check_linear(source)
    shared, grid = Devices(devices), grid_of(run) if exact else None
    shared.check_checkpoint(checkpoint)
    shared.check_records(run.n)
    known = "linear" if grid is None else EXACT_PROGRAM
    key = begin(run, source.fingerprint(), key, checkpoint, known)
    key = shared.same_key(key, run.to_json(), f"{devices} devices, {known}")
    followed = shared.follow(checkpoint, source.fingerprint)
    with closing(again_and_again(run, source, folder, True, shared.part)) as records:
        released = prepare_privately(
            run,
            _measurable(run, records.source, shared),
            make_release(key) if grid is None else release_exactly(key),
        )
        order, made = host_stream(key, ORDER), Rows(run, released)
        made = made if grid is None else ExactRows(made, grid)
        with closing(
            Passes(run, records.source, made, order, folder, dear=True, part=shared.part)
        ) as passes:
            features = first_record(source)[0].shape[1]
            done, released = resolve_step_sizes(
                run, features, released, key, lambda: _batches(run, passes, shared)
            )
            first = np.zeros((linear_loss(run).outputs, columns(run.preprocessing, features) + 1))
            if grid is None:
                loop = StreamLoop(done, Linear(linear_loss(run), run.clip, hidden(run)), shared)
                with jax.enable_x64(True):
                    weights = loop.execute(first, passes, key, progress, followed)
            else:
                gather = None if shared.part[1] == 1 else shared.add_same
                steps = exact_loop(done, grid, key, gather)
                weights = run_to_end(
                    iterate_exactly(steps, first, passes, key, shared, progress, followed)
                )
        model = TrainedWeights(weights, released)

        def iterate_scores() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for piece in _own_pieces(run, records.source, shared):
                if grid is None:
                    yield scores(run, model, piece[0]), check_targets(run, piece[1])
                else:
                    rows, labels = made(piece)
                    yield score_records(weights, rows, grid.rows, grid.norm), labels

        rounds = make_rounds(key) if grid is None else exact_rounds(run.n, key)
        return TrainedWeights(
            calibrate_weights(run, weights, iterate_scores, rounds, _together(shared)), released
        )


def iterate_exactly(
    loop: ExternalLoop,
    initial: np.ndarray,
    passes: Passes,
    key: Key,
    shared: Devices,
    progress: Progress | None = None,
    checkpoint: Checkpoint | FollowedCheckpoint | None = None,
) -> Steps[np.ndarray]:
    """The steps of ``loop`` on exact sums over the chunks of ``passes``; to the last iterate, with
    the shape of ``initial``.

    Refuses what ``loop`` does, and records that changed.
    """
    sums = ChunkSums(loop.objective, shared.local)
    shape = StreamLoop(loop.run, loop.objective, shared).choose_shape(passes)
    done = 0 if checkpoint is None else checkpoint.state[0]
    with closing(ahead(iterate_buffers(passes, shape, done))) as buffers:
        chunks = iterate_chunks(buffers)

        def total(point: jax.Array, k: int) -> np.ndarray:
            found, last = np.zeros(initial.shape), False
            while not last:
                interrupts.check()
                last, records = next(chunks)
                found = found + sums(np.asarray(point), records)
            return found

        released = yield from loop.iterate_totals(initial, total, key, progress, checkpoint)
    passes.check()
    return released


def iterate_chunks(buffers: Iterable[ChunkBuffer]) -> Iterator[tuple[bool, Piece]]:
    """Whether a chunk is its step's last one, and its records, of all buffers; each is valid until
    the next one is asked for."""
    for buffer in buffers:
        for number in range(buffer.used):
            yield bool(buffer.ends[number]), tuple(part[number] for part in buffer.records)


@dataclass(frozen=True)
class PresentRows:
    """From (features, targets, whether each is there) to what steps read.

    **Guarantee:** of records that are not there rows and intercepts are 0, and so are gradients.
    """

    rows: Rows

    def __call__(self, piece: Piece) -> Piece:
        features, target, present = piece
        made = self.rows((features, target))
        for part in made:
            part[present == 0] = 0
        return made


def continue_streaming(
    run: Run,
    source: Source,
    initial: np.ndarray,
    key: Key | None = None,
    progress: Progress | None = None,
    folder: Path | None = None,
) -> np.ndarray:
    """The steps of ``run`` from the weights ``initial`` (k, d + 1) on; the last iterate.

    ``source``: rows that are prepared already, targets, and which of the run's n positions hold a
    record. ``folder``: for scratch files (see ``Scratch``).
    """
    check_process()
    key = fresh_key() if key is None else key
    with (
        closing(again_and_again(run, source, folder, True)) as records,
        closing(
            Passes(
                run,
                records.source,
                PresentRows(Rows(run, ())),
                host_stream(key, ORDER),
                folder,
                dear=True,
            )
        ) as passes,
        jax.enable_x64(True),
    ):
        loop = StreamLoop(run, Linear(linear_loss(run), run.clip, hidden(run)))
        return loop.execute(initial, passes, key, progress)


def check_linear(source: Source) -> None:
    """Refuse, before a record counts, what is no table."""
    record = first_record(source)
    forms = [part.ndim for part in record]
    if forms != [2, 1] or record[0].dtype.kind not in "biuf":
        raise InputError(
            "data",
            "must give rows (m, d) of numbers and targets (m,) for a linear model",
            tuple(part.shape[1:] for part in record),
        )


def _measurable(run: Run, source: Source, shared: Devices) -> Measurable:
    """A source as preparations read it; every one of several processes reads its own records."""

    def column(which: int) -> Iterator[np.ndarray]:
        return (piece[which] for piece in _own_pieces(run, source, shared))

    return Measurable(
        run.n,
        first_record(source)[0].shape[1],
        lambda: column(0),
        lambda: (check_targets(run, part) for part in column(1)),
        _together(shared),
    )


def _own_pieces(run: Run, source: Source, shared: Devices) -> Iterator[Piece]:
    """Features and targets of this process, in slices."""
    begin, end = own_records(run.n, *shared.part)
    return regroup(Cursor(count_records(source, run.n, begin)).take(end - begin), SLICE)


def _together(shared: Devices) -> Callable[[Iterator[np.ndarray]], Any]:
    """Slices of this process as sums over those of all take them."""
    return iter if shared.part[1] == 1 else lambda slices: SharedSlices(slices, shared.gather)


def _batches(run: Run, passes: Passes, shared: Devices) -> Blocks:
    """Rows of the run's batches where they are the same in every pass, otherwise of all records."""
    together, nothing = _together(shared), np.zeros((1, passes.form.shapes[0][0]), np.float32)
    if not is_measured_by_block(run):
        most = rows_of(passes.source, AT_ONCE)
        yield together(
            chain(
                [nothing], (piece[0] for piece in regroup(passes.iterate_own_pieces(most), SLICE))
            )
        )
        return
    with closing(passes.from_pass(0)) as every:
        one = next(every)
        at, cursor = 0, Cursor(one.pieces(0))
        for begin, many, _ in one.shares(Shape(1, 1, 1, *shared.part)).tolist():
            if shared.part[1] > 1 and one.counts is None:
                cursor, at = move_cursor(passes, one, cursor, at, begin), begin + many
            yield together(
                chain([nothing], (piece[0] for piece in regroup(cursor.take(many), SLICE)))
            )


# Networks and other losses of one record, on records that come in pieces.


def iterate_streaming(
    run: Run,
    loss: RecordLoss,
    params: object,
    source: Source,
    key: Key | None = None,
    *,
    microbatch: int | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    folder: Path | None = None,
    devices: int = 1,
    optimizer: GradientTransformation | None = None,
    augment: Augment | None = None,
    by_step: bool = False,
    exact: bool = False,
) -> Steps[Any]:
    """Execute ``run`` on ``loss(params, *record)``, in pauses; to the last parameters, structured
    like ``params``.

    As ``iterate_network``, with records that come in pieces. ``folder``: for scratch files (see
    ``Scratch``). ``devices``: how many share every chunk (see ``Devices``). ``exact``: exact sums
    with exact noise, which have the bits that they have in memory.

    **Guarantee:** exactly the run that is accounted, with the draws and noise of a run in memory
    with this key.
    """

    def iterate() -> Steps[Any]:
        check_process()
        objective = objective_of(run, loss, params, first_record(source), microbatch, augment)
        labels = (
            LabelCheck(loss, objective.form, objective.exact) if run.augmentation is None else None
        )
        initial, rule = objective.form.vector(params), rule_of(optimizer, objective.form, params)
        shared = Devices(devices)
        shared.check_checkpoint(checkpoint)
        shared.check_records(run.n)
        alone = checkpoint is None and shared.part[1] == 1
        known = "" if alone else identity(objective, first_record(source), rule)
        known += EXACT if exact else ""
        begun, given = key, np.asarray(initial)
        if checkpoint is not None:
            begun = checkpoint.begin(run, source.fingerprint(), key, known, given)
        begun = shared.same_key(
            fresh_key() if begun is None else begun,
            run.to_json(),
            f"{devices} devices",
            known,
            hashlib.sha256(given.tobytes()).hexdigest(),
        )
        followed = shared.follow(checkpoint, source.fingerprint)
        if followed is not None:
            initial = jax.numpy.asarray(followed.initial)
        order = host_stream(begun, ORDER)
        whole = exact and run.batching.streams == "in order"  # there each reads all batches
        with (
            closing(
                again_and_again(run, source, folder, part=(0, 1) if whole else shared.part)
            ) as records,
            closing(
                Passes(
                    run,
                    number_records(run, records.source),
                    partial(check_labelled if exact else with_flags, run, labels),
                    order,
                    folder,
                    part=shared.part,
                )
            ) as passes,
        ):
            if exact:
                gather = None if shared.part[1] == 1 else shared.add_same
                loop = make_exact_loop(Loop(run, objective, rule=rule), begun, gather)
                summed = RecordSums.of(run, objective, first_record(source), shared.local)
                steps = iterate_streamed(
                    loop,
                    np.asarray(initial),
                    summed.sum_piece,
                    passes,
                    begun,
                    progress,
                    followed,
                    by_step=by_step,
                    together=summed.objective.most,
                )
            else:
                steps = StreamLoop(run, objective, shared, rule).iterate(
                    initial, passes, begun, progress, followed, by_step=by_step
                )
            return (yield from map_steps(Form.of(params).from_vector, steps))

    return resume_within(partial(jax.enable_x64, True), iterate())


def fit_streaming(
    run: Run,
    loss: RecordLoss,
    params: object,
    source: Source,
    key: Key | None = None,
    **more: Any,
) -> Any:
    """Make all steps of ``iterate_streaming``; the last parameters."""
    return run_to_end(iterate_streaming(run, loss, params, source, key, **more))


def check_piece(run: Run, piece: Piece) -> Piece:
    """Return records of finite values, of classes that have weights, unchanged."""
    for part in piece:
        check_finite(part)
    check_classes(run, piece)
    return piece


def check_labelled(run: Run, labels: LabelCheck | None, piece: Piece) -> Piece:
    """``check_piece``, and of records that draw nothing that the loss knows their labels."""
    if labels is not None:
        labels(piece)
    return check_piece(run, piece)


def with_flags(run: Run, labels: LabelCheck | None, piece: Piece) -> Piece:
    """Records, and behind them that they are no empty slots."""
    return (*check_labelled(run, labels, piece), np.ones(len(piece[0]), np.uint8))
