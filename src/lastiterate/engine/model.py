"""Execute a whole run, private preparation included, and use what it released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.gaussian_noise import Key, fresh_key
from lastiterate.engine.measured import Measurable, drawn_with, prepare_privately, settled
from lastiterate.engine.newton_rounds import Scored, calibrated, drawn_rounds
from lastiterate.engine.preparation import prepared
from lastiterate.engine.preparation.in_threads import in_threads
from lastiterate.engine.preparation.target_mean import target_offset
from lastiterate.engine.prepare import SLICE, check_target, linear_loss, places, slots_of
from lastiterate.engine.process import check_process
from lastiterate.engine.rows import clip_rows
from lastiterate.engine.trainer import Progress, Trainer
from lastiterate.errors import InputError
from lastiterate.run.measured_smoothness import by_block
from lastiterate.run.probability_calibration import measured
from lastiterate.run.run import Run


@dataclass(frozen=True, eq=False)
class Model:
    """What a run releases: weights (k, d + 1) float64, and what each part of its preparation released, in order."""

    weights: np.ndarray
    released: tuple[np.ndarray, ...] = ()


def execute(run: Run, features: np.ndarray, target: object, key: Key | None = None,
            progress: Progress | None = None, checkpoint: Checkpoint | None = None, absent: Sequence[int] = (),
            initial: np.ndarray | None = None) -> Model:
    """Run every step of ``run``, in order; the only way from data in memory to a released model.

    ``checkpoint``: checkpoints of it; a resumed run draws what it drew before, its private preparation included.
    ``absent``: records that no sum holds: none of the preparation, of gradients and of the calibration; n counts them.
    ``initial``: first weights (k, d + 1) instead of 0, public or hidden as the caller accounts for them.
    """
    if checkpoint is not None:
        key = checkpoint.begin(run, (features, target), key, "linear")
    check_process()
    key = fresh_key() if key is None else key
    released: tuple[np.ndarray, ...] = ()
    if run.prelude:
        released = prepare_privately(run, in_memory(run, features, target, absent), drawn_with(key))

    def batches() -> Iterator[Iterator[np.ndarray]]:
        with jax.enable_x64(True):
            order = places(run, key) if by_block(run) else None
        return rows_of_batches(run, features, released, order, absent)

    done, released = settled(run, (0, *np.shape(features))[-1], released, key, batches)
    trainer = Trainer(done)
    arranged = trainer.arranged(features, target, key, released, absent)
    model = Model(trainer.trained(arranged, key, progress, checkpoint, initial), released)
    return with_calibration(run, model, arranged.rows, arranged.labels,
                            np.delete(slots_of(run, arranged.order, len(np.asarray(target))), list(absent)), key)


def with_calibration(run: Run, model: Model, rows: np.ndarray, labels: np.ndarray, slots: np.ndarray,
                     key: Key) -> Model:
    """``model`` as the run's calibration leaves it, with Gaussian noise from the key, on arranged records (see
    ``scored_in_memory``)."""
    if run.calibration is None:
        return model
    scored = scored_in_memory(run, model, rows, labels, slots)
    return Model(calibrated(run, model.weights, scored, drawn_rounds(key)), model.released)


def scored_in_memory(run: Run, model: Model, rows: np.ndarray, labels: np.ndarray, slots: np.ndarray) -> Scored:
    """Scores and targets of the records in ``slots`` of arranged rows (..., d + 1), in slices, computed once; none for
    a run whose calibration measures nothing. Records that are absent add nothing and have no slot."""
    if measured(run.calibration) is None:
        return lambda: iter(())
    flat, answers = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)

    def one(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scores_of_prepared(run, model, flat[part][:, :-1]), answers[part]

    pairs = list(in_threads(one, (slots[first:first + SLICE] for first in range(0, len(slots), SLICE))))
    return lambda: iter(pairs)


def in_memory(run: Run, features: np.ndarray, target: object, absent: Sequence[int] = ()) -> Measurable:
    """Arrays as preparations read them, without the records that are absent: a row of zeros that a mean is taken from
    is none."""
    rows = np.asarray(features)
    answers = check_target(run, target) if any(part.targets for part in run.prelude) else np.zeros(0)
    if rows.ndim != 2 or not rows.size:
        clip_rows(rows, 1.0)  # says what is wrong
    if not run.admits(len(rows)):
        raise InputError("features", f"must have the run's n = {run.n} rows", len(rows))
    if absent:
        rows, answers = np.delete(rows, absent, axis=0), np.delete(answers, absent if len(answers) else [])
    return Measurable(run.n, rows.shape[1],  # sums are divided by the public n, whatever their length
                      lambda: (rows[first:first + SLICE] for first in range(0, len(rows), SLICE)),
                      lambda: iter((answers,)))


def rows_of_batches(run: Run, features: np.ndarray, released: tuple[np.ndarray, ...],
                    order: np.ndarray | None, absent: Sequence[int] = ()) -> Iterator[Iterator[np.ndarray]]:
    """Prepared rows with their intercept, in slices, batch by batch where batches are fixed for the whole run (else all
    records as one); zeros for the records that are absent."""
    loss, rows = linear_loss(run), np.asarray(features)
    ranks = np.arange(len(rows)) if order is None else np.argsort(order)
    size = int(run.divisor) if by_block(run) else len(rows)

    def sliced(batch: np.ndarray) -> Iterator[np.ndarray]:
        for first in range(0, len(batch), SLICE):
            here = batch[first:first + SLICE]
            clipped = clip_rows(prepared(rows[here], run.prelude, released), loss.row_norm)
            full = np.column_stack((clipped, np.full(len(clipped), loss.intercept, np.float32)))
            yield np.where(np.isin(here, absent)[:, None], np.float32(0), full) if absent else full

    return (sliced(ranks[first:first + size]) for first in range(0, len(ranks), size))


def scores(run: Run, model: Model, features: np.ndarray) -> np.ndarray:
    """Linear scores of new rows, (n, k), prepared and clipped as in training."""
    rows = np.asarray(features)
    slices = np.split(rows, range(SLICE, len(rows), SLICE)) if rows.ndim == 2 else [rows]
    return np.concatenate(list(in_threads(partial(scores_of_slice, run, model), slices)))


def scores_of_slice(run: Run, model: Model, rows: np.ndarray) -> np.ndarray:
    """The same of a few rows, in this thread."""
    return scores_of_prepared(run, model, clip_rows(prepared(rows, run.prelude, model.released),
                                                    linear_loss(run).row_norm))


def scores_of_prepared(run: Run, model: Model, rows: np.ndarray) -> np.ndarray:
    """The same of rows (m, d) that are prepared and clipped already, without their intercept."""
    predictor = rows.astype(np.float64) @ model.weights[:, :-1].T + linear_loss(run).intercept * model.weights[:, -1]
    return predictor + target_offset(run, model.released)
