"""Execute a whole run, private preparation included, and use what it released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from lastiterate.engine.noise import PREPARATION, fresh_key, gaussian, stream
from lastiterate.engine.prepare import SLICE, centred, clip_rows, linear_loss
from lastiterate.engine.trainer import Progress, Trainer
from lastiterate.run.run import Run


@dataclass(frozen=True, eq=False)
class Model:
    """What a run releases: weights (k, d + 1) float64, and the private centres in the order they were applied."""

    weights: np.ndarray
    centres: tuple[np.ndarray, ...] = ()


def execute(run: Run, features: Any, target: Any, key: jax.Array | None = None,
            progress: Progress | None = None) -> Model:
    """Run every step of ``run``, in order; the only way from data to a released model."""
    key = fresh_key() if key is None else key
    centres: tuple[np.ndarray, ...] = ()
    for _ in run.prelude:
        centres += (private_mean(run, features, centres, stream(stream(key, PREPARATION), len(centres))),)
    return Model(Trainer(run).fit(features, target, key, progress, centres), centres)


def private_mean(run: Run, features: Any, centres: tuple[np.ndarray, ...], key: jax.Array) -> np.ndarray:
    """Mean of the clipped rows, moved by the ``centres`` so far, with Gaussian noise; (d,) float32.

    **Guarantee:** zeroing one row moves the sum by at most ``row_norm``; the noise has std
    ``noise_multiplier * row_norm``. Sums are float64.
    """
    rows = np.asarray(features)
    if rows.ndim != 2:
        clip_rows(rows, 1.0)  # says what is wrong
    part, before = run.prelude[len(centres)], run.prelude[: len(centres)]
    with jax.enable_x64(True):
        noise = np.asarray(gaussian(key, 0, (rows.shape[1],)))
    total = part.noise_multiplier * part.row_norm * noise
    for first in range(0, len(rows), SLICE):
        moved = centred(rows[first:first + SLICE], before, centres)
        total = total + clip_rows(moved, part.row_norm).sum(axis=0, dtype=np.float64)
    return (total / len(rows)).astype(np.float32)


def scores(run: Run, model: Model, features: Any) -> np.ndarray:
    """Linear scores of new rows, (n, k), through the same clipping and centring as in training."""
    loss = linear_loss(run)
    rows = clip_rows(centred(features, run.prelude, model.centres), loss.row_norm).astype(np.float64)
    return rows @ model.weights[:, :-1].T + loss.intercept * model.weights[:, -1]
