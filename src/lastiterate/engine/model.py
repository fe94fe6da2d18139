"""Execute a whole run, private preparation included, and use what it released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.special import ndtri

from lastiterate.engine.keeper import Keeper
from lastiterate.engine.noise import PREPARATION, Key, fresh_key, stream
from lastiterate.engine.preparation import executed, prepared
from lastiterate.engine.preparation.eigenvalue import released_eigenvalue, top_eigenvalue
from lastiterate.engine.preparation.target_mean import target_offset
from lastiterate.engine.prepare import SLICE, check_target, linear_loss, places
from lastiterate.engine.process import check_process
from lastiterate.engine.rows import clip_rows
from lastiterate.engine.trainer import Progress, Trainer
from lastiterate.run.paid import by_block, largest_eigenvalue, squared_row
from lastiterate.run.preparation import TopEigenvalue
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps


@dataclass(frozen=True, eq=False)
class Model:
    """What a run releases: weights (k, d + 1) float64, and what each part of its preparation released, in order."""

    weights: np.ndarray
    released: tuple[np.ndarray, ...] = ()


def execute(run: Run, features: Any, target: Any, key: Key | None = None,
            progress: Progress | None = None, keeper: Keeper | None = None) -> Model:
    """Run every step of ``run``, in order; the only way from data to a released model.

    ``keeper``: checkpoints of it; a resumed run draws what it drew before, its private preparation included.
    """
    if keeper is not None:
        key = keeper.begin(run, (features, target), key)
    check_process()
    key = fresh_key() if key is None else key
    released = prepare_privately(run, features, target, key)
    if run.prelude and isinstance(run.prelude[-1], TopEigenvalue):
        found = measure_eigenvalue(run, features, released, key)
        released = (*released[:-1], np.array([found]))
        run = run.measured(found, np.shape(features)[1] + 1)
    if type(run.step_size) is StableSteps:
        run = run.stabilised(np.linalg.eigvalsh(released[-1]).tolist())
    return Model(Trainer(run).fit(features, target, key, progress, released, keeper=keeper), released)


def _key(key: Key, part: int) -> Key:
    with jax.enable_x64(True):
        return stream(stream(key, PREPARATION), part)


def prepare_privately(run: Run, features: Any, target: Any, key: Key) -> tuple[np.ndarray, ...]:
    """What every part of the run's preparation releases, in order, each about rows as the parts before it left them (or
    about the targets)."""
    rows = np.asarray(features)
    answers = check_target(run, target) if any(part.targets for part in run.prelude) else np.zeros(0)
    if run.prelude and rows.ndim != 2:
        clip_rows(rows, 1.0)  # says what is wrong
    released: tuple[np.ndarray, ...] = ()
    for number, part in enumerate(run.prelude):
        slices = (answers,) if part.targets else (
            prepared(rows[first:first + SLICE], run.prelude, released) for first in range(0, len(rows), SLICE))
        released += (executed(part).release(part, slices, len(rows), rows.shape[1], _key(key, number)),)
    return released


def measure_eigenvalue(run: Run, features: Any, released: tuple[np.ndarray, ...], key: Key) -> float:
    """The released largest eigenvalue of the rows that steps read, as the run's ``TopEigenvalue`` describes.

    **Guarantee:** measured on rows after clipping and with their intercept; on the very batches of the run where they
    are the same in every pass, the secret order included, otherwise on all records.
    """
    part = run.prelude[-1]
    assert isinstance(part, TopEigenvalue)
    with jax.enable_x64(True):
        order = places(run, key) if by_block(run) else None
    blocks = rows_of_batches(run, features, released, order)
    most, scale = largest_eigenvalue(run), squared_row(run) * part.noise_multiplier
    return released_eigenvalue(top_eigenvalue(blocks), scale, -float(ndtri(part.failure)), part.floor * most, most,
                               _key(key, len(run.prelude) - 1))


def rows_of_batches(run: Run, features: Any, released: tuple[np.ndarray, ...],
                    order: np.ndarray | None) -> Iterator[Iterator[np.ndarray]]:
    """Prepared rows with their intercept, in slices, batch by batch where batches are fixed for the whole run (else all
    records as one)."""
    loss, rows = linear_loss(run), np.asarray(features)
    ranks = np.arange(run.n) if order is None else np.argsort(order)
    size = int(run.divisor) if by_block(run) else run.n

    def sliced(batch: np.ndarray) -> Iterator[np.ndarray]:
        for first in range(0, len(batch), SLICE):
            found = clip_rows(prepared(rows[batch[first:first + SLICE]], run.prelude, released), loss.row_norm)
            yield np.column_stack((found, np.full(len(found), loss.intercept, np.float32)))

    return (sliced(ranks[first:first + size]) for first in range(0, run.n, size))


def scores(run: Run, model: Model, features: Any) -> np.ndarray:
    """Linear scores of new rows, (n, k), prepared and clipped as in training."""
    loss = linear_loss(run)
    rows = clip_rows(prepared(features, run.prelude, model.released), loss.row_norm).astype(np.float64)
    found = rows @ model.weights[:, :-1].T + loss.intercept * model.weights[:, -1]
    return found + target_offset(run, model.released)
