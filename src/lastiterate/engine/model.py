"""Execute a whole run, private preparation included, and use what it released."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from lastiterate.engine.noise import PREPARATION, fresh_key, gaussian, stream
from lastiterate.engine.prepare import clip_rows, linear_loss
from lastiterate.engine.trainer import Progress, Trainer
from lastiterate.run import Run
from lastiterate.schedules import PrivateMean


@dataclass(frozen=True, eq=False)
class Model:
    """What a run releases: weights (k, d + 1) float64, and the private centres in the order they were applied."""

    weights: np.ndarray
    centres: tuple[np.ndarray, ...] = ()


def execute(run: Run, features: Any, target: Any, key: jax.Array | None = None,
            progress: Progress | None = None) -> Model:
    """Run every step of ``run``, in order; the only way from data to a released model."""
    key = fresh_key() if key is None else key
    rows, centres = np.asarray(features), []
    for place, part in enumerate(run.prelude):
        centres.append(private_mean(part, clip_rows(rows, part.row_norm), stream(stream(key, PREPARATION), place)))
        rows = centre(rows, part, centres[-1])
    weights = Trainer(replace(run, prelude=())).fit(rows, target, key, progress)
    return Model(weights, tuple(centres))


def private_mean(part: PrivateMean, rows: np.ndarray, key: jax.Array) -> np.ndarray:
    """Mean of the clipped rows with Gaussian noise; (d,) float32.

    **Guarantee:** zeroing one row moves the sum by at most ``row_norm``; the noise has std
    ``noise_multiplier * row_norm``. Sums are float64.
    """
    with jax.enable_x64(True):
        noise = np.asarray(gaussian(key, 0, (rows.shape[1],)))
    total = rows.sum(axis=0, dtype=np.float64) + part.noise_multiplier * part.row_norm * noise
    return (total / rows.shape[0]).astype(np.float32)


def centre(features: Any, part: PrivateMean, mean: np.ndarray) -> np.ndarray:
    """Rows as the next stage sees them: clipped, then moved by the private mean."""
    return clip_rows(features, part.row_norm) - mean


def scores(run: Run, model: Model, features: Any) -> np.ndarray:
    """Linear scores of new rows, (n, k), through the same clipping and centring as in training."""
    rows = np.asarray(features)
    for part, mean in zip(run.prelude, model.centres, strict=True):
        rows = centre(rows, part, mean)
    loss = linear_loss(run)
    rows = clip_rows(rows, loss.row_norm).astype(np.float64)
    return rows @ model.weights[:, :-1].T + loss.intercept * model.weights[:, -1]
