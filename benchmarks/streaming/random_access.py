"""Poisson batches of a file by random access: every record is drawn for itself, and its row is read
where it lies."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import lastiterate as li
from benchmarks.streaming.made import FEATURES
from lastiterate.engine.preprocessing import clip_rows

HEAD = 128
"""Bytes before the first row of a .npy file."""


def trained(path: Path, run: li.Run, steps: int) -> np.ndarray:
    """The first ``steps`` steps of logistic regression with the run's noise, as NumPy does them:
    weights (d + 1,).

    For comparison, and not for release: the generator is not one for secrets.
    """
    rng, n, size = np.random.default_rng(0), run.n, 4 * FEATURES
    labels, weights = np.load(path.with_name("made.labels.npy")), np.zeros(FEATURES + 1)
    with path.open("rb", buffering=0) as file:
        for k in range(steps):
            places = np.flatnonzero(rng.random(n) < run.divisor / n)
            rows = np.empty((len(places), FEATURES), np.float32)
            for place, row in zip(places.tolist(), rows, strict=True):
                file.seek(HEAD + place * size)
                file.readinto(row.data)
            clipped = np.column_stack(
                (clip_rows(rows, run.loss.row_norm), np.full(len(rows), run.loss.intercept))
            )
            residuals = 1 / (1 + np.exp(-clipped @ weights)) - labels[places]
            gradient = residuals @ clipped / run.divisor + run.noise_stds[k] * rng.standard_normal(
                FEATURES + 1
            )
            weights -= run.step_sizes[k] * (gradient + run.loss.ridge * weights)
    return weights
