"""Execute a whole linear run, private preparation included."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri  # pyright: ignore

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.linear_gradients import (
    AT_ONCE,
    UnitRecords,
    arrange,
    check_target,
    places,
    prepare_into,
    readable,
    slots_of,
)
from lastiterate.engine.loop import advance, arrange_for_pass, arrange_once, schedule, start
from lastiterate.engine.noise import NoiseAhead, normal_program
from lastiterate.engine.preprocessing import (
    SLICE,
    TrainedWeights,
    allocate_aligned,
    clip_rows,
    execution_of,
    intercept_entry,
    linear_loss,
    prepare_rows,
    release_eigenvalue,
    scores_of_prepared,
    target_offset,
    top_eigenvalue,
)
from lastiterate.engine.probability_calibration import Noisy, Scored, calibrate_weights, make_rounds
from lastiterate.engine.random import ORDER, PREPARATION, Key, host_stream, key_from_seed, stream
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.trainer import Progress, Trainer, begin
from lastiterate.errors import InputError
from lastiterate.processor_threads import map_in_threads, one_thread
from lastiterate.run.measured_smoothness import (
    is_measured_by_block,
    largest_eigenvalue,
    max_squared_row_norm,
)
from lastiterate.run.preprocessing import TopEigenvalue, columns
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps

# Private measurements of a run before its first step, whatever the source of the records.

Released = tuple[np.ndarray, ...]
"""The releases of the parts of a run's preparation, in order."""
Blocks = Iterable[Iterable[np.ndarray]]
"""Rows as steps read them, in slices, batch by batch."""


@dataclass(frozen=True)
class Measurable:
    """Rows and targets as preparations read them: as often as there are parts, in slices, in public
    order."""

    n: int
    features: int
    rows: Callable[[], Iterator[np.ndarray]]
    targets: Callable[[], Iterator[np.ndarray]]
    together: Callable[[Iterator[np.ndarray]], Any] = (
        iter  #: what is read, as the sums take it: ``SharedSlices``, or itself
    )


def _key(key: Key, part: int) -> Key:
    return host_stream(key, PREPARATION, part)


Release = Callable[[int, Any, Iterable[np.ndarray], Measurable], np.ndarray]
"""The release of a part, by its index, about slices of rows or of targets."""


def make_release(key: Key) -> Release:
    """Releases with Gaussian noise in double precision, from the key."""
    return lambda number, part, slices, data: execution_of(part).release(
        part, slices, data.n, data.features, _key(key, number)
    )


@one_thread
def prepare_privately(run: Run, data: Measurable, release: Release) -> Released:
    """Return the releases of all parts of the run's preparation, in order, each about rows as the
    parts before it left them (or about the targets)."""
    released: Released = ()
    for number, part in enumerate(run.preprocessing):
        slices = (
            data.targets()
            if part.targets
            else (prepare_rows(rows, run.preprocessing, released) for rows in data.rows())
        )
        width = columns(run.preprocessing[:number], data.features)
        released += (release(number, part, data.together(slices), replace(data, features=width)),)
    return released


@one_thread
def resolve_step_sizes(
    run: Run, features: int, released: Released, key: Key, blocks: Callable[[], Blocks]
) -> tuple[Run, Released]:
    """The run with the step sizes that follow from its preparation, and what that released;
    ``blocks``: the batches that an eigenvalue is measured on (see ``measure_eigenvalue``)."""
    if run.preprocessing and isinstance(run.preprocessing[-1], TopEigenvalue):
        top = measure_eigenvalue(run, blocks(), key)
        run, released = (
            run.with_top_eigenvalue(top, columns(run.preprocessing, features) + 1),
            (*released[:-1], np.array([top])),
        )
    if type(run.step_size) is StableSteps:
        run = run.with_eigenvalues(np.linalg.eigvalsh(released[-1]).tolist())
    return run, released


def measure_eigenvalue(run: Run, blocks: Blocks, key: Key) -> float:
    """The released largest eigenvalue of the rows that steps read, as the run's ``TopEigenvalue``
    describes.

    **Guarantee:** measured on rows after clipping and with their intercept; on the very batches of
    the run where they are the same in every pass, the secret order included, otherwise on all
    records.
    """
    part = run.preprocessing[-1]
    assert isinstance(part, TopEigenvalue)
    most, scale = largest_eigenvalue(run), max_squared_row_norm(run) * part.noise_multiplier
    return release_eigenvalue(
        top_eigenvalue(blocks),
        scale,
        -float(ndtri(part.failure)),
        part.floor * most,
        most,
        _key(key, len(run.preprocessing) - 1),
    )


# Execute a whole run, private preparation included, and use what it released.


def execute(
    run: Run,
    features: np.ndarray,
    target: object,
    key: Key | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    absent: Sequence[int] = (),
    initial: np.ndarray | None = None,
) -> TrainedWeights:
    """Run every step of ``run``, in order; the only way from data in memory to a released model.

    ``checkpoint``: checkpoints of it; a resumed run draws what it drew before, its private
    preparation included. ``absent``: records that no sum holds: none of the preparation, of
    gradients and of the calibration; n counts them. ``initial``: first weights (k, d + 1) instead
    of 0, public or hidden as the caller accounts for them.
    """
    key = begin(run, (features, target), key, checkpoint, "linear")
    released: tuple[np.ndarray, ...] = ()
    if run.preprocessing:
        released = prepare_privately(
            run, slice_arrays(run, features, target, absent), make_release(key)
        )

    def batches() -> Iterator[Iterator[np.ndarray]]:
        with jax.enable_x64(True):
            order = places(run, key) if is_measured_by_block(run) else None
        return rows_of_batches(run, features, released, order, absent)

    done, released = resolve_step_sizes(run, (0, *np.shape(features))[-1], released, key, batches)
    trainer = Trainer(done)
    arranged = trainer.arrange(features, target, key, released, absent)
    model = TrainedWeights(
        trainer.fit_arranged(arranged, key, progress, checkpoint, initial), released
    )
    return with_calibration(
        run,
        model,
        arranged.rows,
        arranged.labels,
        np.delete(slots_of(run, arranged.order, len(np.asarray(target))), list(absent)),
        make_rounds(key),
    )


def with_calibration(
    run: Run,
    model: TrainedWeights,
    rows: np.ndarray,
    labels: np.ndarray,
    slots: np.ndarray,
    rounds: Noisy,
) -> TrainedWeights:
    """``model`` as the run's calibration leaves it, with the noise of ``rounds``, on arranged
    records (see ``score_in_memory``)."""
    if run.probability_calibration is None:
        return model
    scored = score_in_memory(run, model, rows, labels, slots)
    return TrainedWeights(calibrate_weights(run, model.weights, scored, rounds), model.released)


def score_in_memory(
    run: Run, model: TrainedWeights, rows: np.ndarray, labels: np.ndarray, slots: np.ndarray
) -> Scored:
    """Scores and targets of the records in ``slots`` of arranged rows (..., d + 1), in slices,
    computed once; none for a run whose calibration measures nothing. Records that are absent add
    nothing and have no slot."""
    if private_calibration(run.probability_calibration) is None:
        return lambda: iter(())
    flat, answers = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)

    def one(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores_of_prepared(run, model, flat[part][:, :-1]), answers[part]

    pairs = list(
        map_in_threads(one, (slots[first : first + SLICE] for first in range(0, len(slots), SLICE)))
    )
    return lambda: iter(pairs)


def slice_arrays(
    run: Run, features: np.ndarray, target: object, absent: Sequence[int] = ()
) -> Measurable:
    """Arrays as preparations read them, without the records that are absent: a row of zeros from
    which a mean is subtracted is no longer zero."""
    rows = np.asarray(features)
    answers = (
        check_target(run, target)
        if any(part.targets for part in run.preprocessing)
        else np.zeros(0)
    )
    if rows.ndim != 2 or not rows.size:
        clip_rows(rows, 1.0)  # says what is wrong
    if not run.admits(len(rows)):
        raise InputError("features", f"must have the run's n = {run.n} rows", len(rows))
    if absent:
        rows, answers = (
            np.delete(rows, absent, axis=0),
            np.delete(answers, absent if len(answers) else []),
        )
    return Measurable(
        run.n,
        rows.shape[1],  # sums are divided by the public n, whatever their length
        lambda: (rows[first : first + SLICE] for first in range(0, len(rows), SLICE)),
        lambda: iter((answers,)),
    )


def rows_of_batches(
    run: Run,
    features: np.ndarray,
    released: tuple[np.ndarray, ...],
    order: np.ndarray | None,
    absent: Sequence[int] = (),
) -> Iterator[Iterator[np.ndarray]]:
    """Prepared rows with their intercept, in slices, batch by batch where batches are fixed for the
    whole run (else all records as one); zeros for the records that are absent."""
    loss, rows = linear_loss(run), np.asarray(features)
    ranks = np.arange(len(rows)) if order is None else np.argsort(order)
    block = run.batching.assign_blocks(len(rows)) if is_measured_by_block(run) else None
    batches = (
        [ranks]
        if block is None
        else [
            ranks[found]
            for found in np.split(
                np.argsort(block, kind="stable"), np.bincount(block).cumsum()[:-1]
            )
        ]
    )

    last = intercept_entry(loss.intercept)

    def iterate_slices(batch: np.ndarray) -> Iterator[np.ndarray]:
        for first in range(0, len(batch), SLICE):
            here = batch[first : first + SLICE]
            clipped = clip_rows(
                prepare_rows(rows[here], run.preprocessing, released), loss.row_norm
            )
            full = np.column_stack((clipped, np.full(len(clipped), last)))
            yield np.where(np.isin(here, absent)[:, None], np.float32(0), full) if absent else full

    return (iterate_slices(batch) for batch in batches)


# Memory that the compiled steps of a run need in addition to the data and the weights.


def temporary_memory(run: Run, features: np.ndarray, target: object) -> int:
    """Bytes of temporary memory of the program of a linear model's steps, as XLA states them;
    nothing is trained.

    ``features`` (n, d), ``target`` (n,): data of the shape that the run will have.
    """
    trainer, key = Trainer(run), key_from_seed(0)
    with jax.enable_x64(True):
        program, data = trainer.loop.program, readable(run, *arrange(run, features, target))
        state = start(program, trainer.zero(data[0]), key)
        data = arrange_for_pass(program, arrange_once(program, data, key), key, 0)
        noise = NoiseAhead.normal(key, state.theta.shape).at(0)[0]
        plan, order = schedule(run), stream(key, ORDER)
        made = (
            advance.lower(program, state, data, order, plan, noise, 0, run.steps, False),
            normal_program(order, state.theta.shape),
        )
    usage: list[Any] = [each.compile().memory_analysis() for each in made]
    return int(sum(each.temp_size_in_bytes for each in usage) + noise.units.nbytes)


# Linear models whose records are units: a unit's gradient is the mean over its positions, of which
# some may be empty.
#
# A run's batches, noise and steps know records only; here a record has a second axis of
# ``rows_per_record`` positions (docs/theorems/units.md).


def release_by_units(rows: int, release: Release) -> Release:
    """``release`` of a unit's mean instead of a row's: sums over rows and noise are ``rows`` times
    as large, and so is what they are divided by.

    **Guarantee:** a unit's rows, at most ``rows`` of them, move the sum over ``rows`` by no more
    than one row moves it, and the noise over ``rows`` is the part's own.
    """

    def release_part(
        number: int, part: Any, slices: Iterable[np.ndarray], data: Measurable
    ) -> np.ndarray:
        wider = (
            part
            if part.noise_multiplier is None
            else replace(part, noise_multiplier=part.noise_multiplier * rows)
        )
        return release(number, wider, slices, data)

    return release_part


def measurable(run: Run, data: UnitRecords) -> Measurable:
    """The rows that are there; divided by as many as there could be."""
    features, target = data.flat
    answers = check_target(replace(run, n=len(target)), target)

    def slices() -> Iterator[np.ndarray]:
        return (features[first : first + SLICE] for first in range(0, len(features), SLICE))

    return Measurable(
        run.n * run.rows_per_record, features.shape[1], slices, lambda: iter((answers,))
    )


def arrange_units(
    run: Run, data: UnitRecords, order: np.ndarray | None, released: tuple[np.ndarray, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Like ``arrange``, with an axis of positions behind that of records; empty positions and empty
    slots are 0. Return also the index of every row among all positions."""
    many = run.rows_per_record
    plan = sampler_of(run.batching, run.n, records_at_once(run)).layout
    slots = plan.slot(np.arange(run.n) if order is None else order)
    features, target = data.flat
    answers = check_target(replace(run, n=len(target)), target)
    if offset := target_offset(run, released):
        answers = (answers - offset).astype(answers.dtype)
    unit, place = np.nonzero(data.present)
    where = slots[unit] * many + place
    width = columns(run.preprocessing[: len(released)], features.shape[1])
    rows = allocate_aligned((plan.slots * many, width + 1), np.dtype(np.float32))
    prepare_into(rows, run, features, released, where)
    labels = np.zeros(plan.slots * many, answers.dtype)
    labels[where] = answers
    return rows.reshape(*plan.shape, many, -1), labels.reshape(*plan.shape, many), where


def records_at_once(run: Run) -> int:
    """Records that a step reads at once, at most."""
    return max(1, AT_ONCE // run.rows_per_record)


def execute_units(
    run: Run,
    data: UnitRecords,
    key: Key | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
) -> TrainedWeights:
    """``execute`` for records that are units.

    **Guarantee:** batches draw units, all rows of one together; a unit's share of every sum is the
    mean over its positions, so that it is bounded like a single row's.
    """
    if data.rows.shape[:2] != (run.n, run.rows_per_record):
        raise InputError(
            "data",
            f"must be n = {run.n} units of {run.rows_per_record} places",
            data.rows.shape[:2],
        )
    arrays = data.rows, data.target, data.present
    key = begin(run, arrays, key, checkpoint, "linear, units")
    release = release_by_units(run.rows_per_record, make_release(key))
    released = prepare_privately(run, measurable(run, data), release)
    if type(run.step_size) is StableSteps:
        run = run.with_eigenvalues(np.linalg.eigvalsh(released[-1]).tolist())
    with jax.enable_x64(True):
        order, trainer = places(run, key), Trainer(run)
        rows, labels, where = arrange_units(run, data, order, released)
        arranged: Any = tuple(
            jax.device_put(part, may_alias=True) for part in readable(run, rows, labels)
        )
        if order is None:
            arranged = arrange_once(trainer.loop.program, arranged, key)
        model = TrainedWeights(
            trainer.loop.execute(trainer.zero(rows), arranged, key, progress, checkpoint), released
        )
    return with_calibration(run, model, rows, labels, where, make_rounds(key))
