"""Data as the trainer reads it: rows clipped once, an intercept column, zero rows that fill up blocks and chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lastiterate.engine.gaussian_noise import ORDER, Key, stream
from lastiterate.engine.gradients import AT_ONCE
from lastiterate.engine.preparation import prepared
from lastiterate.engine.preparation.in_threads import in_threads
from lastiterate.engine.preparation.target_mean import target_offset
from lastiterate.engine.rows import aligned_zeros, clip_rows, in_range, norms_of
from lastiterate.engine.samplers import layout_of, sampler_of
from lastiterate.errors import InputError
from lastiterate.run.losses import Abstract, LinearLoss
from lastiterate.run.preparation import columns
from lastiterate.run.run import Run

SLICE = 512
"""Rows that are prepared at once, so that no second copy of the data is ever made."""


class Arranged(NamedTuple):
    """What ``arrange`` makes of records, and their places in the run's one secret order, (n,), where it draws one."""

    rows: np.ndarray
    labels: np.ndarray
    order: np.ndarray | None


def hidden(run: Run) -> bool:
    """Whether everything that depends on parameters must be double precision: a hidden state, or batches that move."""
    return batches_move(run) or hidden_state(run)


def batches_move(run: Run) -> bool:
    """Whether theorems may rely on a record's own draws: a record that is drawn moves others to other places of a
    batch, so that single precision might round gradients that it is no part of."""
    return run.batching.independent or run.batching.drawn == "each step"


def hidden_state(run: Run) -> bool:
    """Whether the run's theorems may rely on a hidden state, and so compare a step at two different parameters.

    Otherwise every step is charged: with momentum, with all iterates or an average released, and where nothing is known
    of the loss but what its clip bounds.
    """
    if isinstance(run.loss, Abstract):
        known = run.loss.facts()
        curved = (known.smooth, known.hoelder, known.log_sobolev)
        if all(fact is None for fact in curved) and math.isinf(run.domain.diameter()):
            return False
    return run.release == "last" and run.update is None and not run.method.averaged


def places(run: Run, key: Key) -> np.ndarray | None:
    """The place of every record in the run's one secret order, (n,); None where it draws no such order."""
    order = sampler_of(run.batching, run.n, AT_ONCE).order(stream(key, ORDER))
    return None if order is None else np.asarray(order)


def linear_loss(run: Run) -> LinearLoss:
    """The run's loss, if the trainer knows its gradient."""
    if isinstance(run.loss, Abstract):
        raise InputError("loss", "is known only by its constants and cannot be executed", "Abstract",
                         "use Logistic, Softmax or HuberRidge")
    return run.loss


def check_target(run: Run, target: object) -> np.ndarray:
    """The target as the gradients want it, (n,): float32 for regression, class indices otherwise."""
    answers = np.asarray(target)
    if answers.ndim != 1 or not run.admits(len(answers)):
        raise InputError("target", f"must have shape ({'n' if run.nominal else run.n},)", answers.shape)
    return checked_answers(run, answers)


def checked_answers(run: Run, answers: np.ndarray) -> np.ndarray:
    """The targets of some records, (m,), as the gradients want them."""
    classes = linear_loss(run).target_classes
    if classes == 0:
        answers = in_range(answers)
        if not np.isfinite(answers).all():
            raise InputError("target", "must be finite numbers", "NaN or infinity", "fill or drop those values first")
        return answers
    if not np.isin(answers, np.arange(classes)).all():
        raise InputError("target", f"must be class indices 0..{classes - 1}", None, "encode labels first")
    return answers.astype(np.int32)


def prepare_into(rows: np.ndarray, run: Run, features: Any, released: tuple[np.ndarray, ...],
                 slots: np.ndarray | None = None) -> None:
    """Write rows (n, d), prepared and clipped, and the intercept behind them, to ``slots`` of ``rows`` (m, d' + 1); by
    default to the first n in order. No slot may be twice in ``slots``."""
    loss = linear_loss(run)

    def one(part: slice) -> None:
        target = part if slots is None else slots[part]
        rows[target, :-1] = clip_rows(prepared(features[part], run.prelude, released), loss.row_norm)
        rows[target, -1] = loss.intercept

    for _ in in_threads(one, (slice(first, first + SLICE) for first in range(0, len(features), SLICE))):
        pass


def readable(run: Run, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """What a step's gradients read: arranged rows (..., d), labels, and where gradients are clipped the rows' norms,
    (...,) float64, which stay the same for all steps."""
    if run.clip is None:
        return rows, labels
    flat = rows.reshape(-1, rows.shape[-1])
    parts = in_threads(norms_of, (flat[first:first + SLICE] for first in range(0, len(flat), SLICE)))
    return rows, labels, np.concatenate(list(parts)).reshape(labels.shape)


def slots_of(run: Run, places: np.ndarray | None, records: int) -> np.ndarray:
    """Where ``arrange`` puts every one of so many records, (n,), among all slots in a row."""
    return layout_of(run, records, AT_ONCE).slot(np.arange(records) if places is None else places)


def arrange(run: Run, features: np.ndarray, target: object, places: np.ndarray | None = None,
            released: tuple[np.ndarray, ...] = (), absent: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Rows (blocks, chunks, m, d + 1) float32, prepared, clipped, with their intercept; targets (blocks, chunks, m).

    Where batches are drawn by the program the records lie flat, (n, d + 1) and (n,). ``places[i]``: the place of record
    i in a secret order (absent: its own). Slots without a record hold zeros, and so do those of the records ``absent``,
    intercept included, which makes their gradients zero: what the neighbours of zero-out are.
    """
    if run.rows_per_record > 1:
        raise InputError("rows_per_record", "needs li.train(run, (x, y), unit=...), which says who a row belongs to",
                         run.rows_per_record, "or use 1 and rows_per_unit, for group privacy")
    answers = check_target(run, target)
    plan, records = layout_of(run, len(answers), AT_ONCE), len(answers)
    shape = np.shape(features)
    if len(shape) != 2 or 0 in shape:
        raise InputError("features", "must be a non-empty table of shape (n, d)", shape)
    if shape[0] != records:
        raise InputError("features", f"must have {'a row for every target' if run.nominal else f'n = {run.n} rows'}",
                         shape[0])
    if offset := target_offset(run, released):
        answers = (answers - offset).astype(answers.dtype)
    slots = slots_of(run, places, records)
    rows = aligned_zeros((plan.slots, columns(run.prelude[:len(released)], shape[1]) + 1), np.dtype(np.float32))
    prepare_into(rows, run, features, released, slots)
    rows[slots[list(absent)]] = 0.0
    labels = np.zeros(plan.slots, answers.dtype)
    labels[slots] = answers
    return rows.reshape(*plan.shape, -1), labels.reshape(plan.shape)
