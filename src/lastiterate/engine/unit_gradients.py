"""Linear models whose records are units: a unit's gradient is the mean over its positions, of which
some may be empty.

A run's batches, noise and steps know records only; here a record has a second axis of
``rows_per_record`` positions (docs/theorems/units.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.linear_gradients import (
    AT_ONCE,
    SLICE,
    UnitRecords,
    check_target,
    places,
    prepare_into,
    readable,
)
from lastiterate.engine.linear_model import (
    Measurable,
    Release,
    make_release,
    prepare_privately,
    with_calibration,
)
from lastiterate.engine.loop import arrange_once
from lastiterate.engine.preprocessing import TrainedWeights, target_offset
from lastiterate.engine.probability_calibration import make_rounds
from lastiterate.engine.random import Key
from lastiterate.engine.row_clipping import allocate_aligned
from lastiterate.engine.samplers import sampler_of
from lastiterate.engine.trainer import Progress, Trainer, begin
from lastiterate.errors import InputError
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps


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
