"""Whether the noise of all steps together has the law of the description, read off all iterates of a small run.

Rows of zeros have no gradients: what the iterates show of every step is its noise alone. Multiplied by the C of the
description it must be independent standard normal draws, over steps, coordinates and models.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lastiterate.audit import trajectory
from lastiterate.engine import Trainer, seeded_keys
from lastiterate.run.losses import HuberRidge
from lastiterate.run.run import Run
from lastiterate.run.starts import Fixed

COLUMNS, MODELS = 4, 500
SILENT = 1e-6
"""Noise so much smaller than the largest is lost in the rounding of iterates."""


def columns(run: Run) -> np.ndarray:
    """C, (T, T): the noise of the steps is its inverse times independent draws."""
    column = run.decided_noise.column(run.steps)
    full = np.concatenate((np.zeros(run.steps - 1), column, np.zeros(run.steps - column.size)))
    return np.stack([full[run.steps - 1 - k: 2 * run.steps - 1 - k] for k in range(run.steps)], axis=1)


def draws(run: Run, seed: int) -> np.ndarray:
    """Of every noisy step, in units of the described draws, (models, T, COLUMNS); ``run``: a small one without a
    domain.
    """
    silent = replace(run, release="all", start=Fixed(), loss=HuberRidge(
        row_norm=1.0, residual_clip=float(run.noise_unit or 1.0), intercept=0.0))
    rows, target = np.zeros((run.n, COLUMNS)), np.zeros(run.n)
    released = Trainer(silent).fit_many(rows, target, seeded_keys(seed, MODELS))
    added = trajectory.noisy_gradients(silent, released)[..., 0, :COLUMNS]
    std, noisy = silent.noise_stds, silent.noise_stds > SILENT * silent.largest_noise
    return np.einsum("kt,mtp->mkp", columns(silent), added)[:, noisy] / std[noisy, None]


def noise_p(run: Run, seed: int) -> float:
    """p of what the description says, from all second moments over steps: a sum of squared normal scores."""
    from scipy.stats import chi2  # pyright: ignore

    noise = draws(run, seed)
    count, steps = noise.shape[0] * noise.shape[2], noise.shape[1]
    moments = np.einsum("mkp,mtp->kt", noise, noise) / count
    scores = count * (((np.diag(moments) - 1) ** 2 / 2).sum() + (np.tril(moments, -1) ** 2).sum())
    return float(chi2.sf(scores, steps * (steps + 1) / 2))  # pyright: ignore
