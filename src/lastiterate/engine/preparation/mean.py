"""The mean of clipped rows with Gaussian noise, and rows that are centred by it."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, normals
from lastiterate.engine.preparation.sliced_sums import each_sum
from lastiterate.engine.rows import clip_rows
from lastiterate.run.preparation import PrivateMean


def noisy_mean(slices: Iterable[np.ndarray], n: int, d: int, part: PrivateMean, key: Key) -> np.ndarray:
    """Mean of the clipped rows with Gaussian noise; (d,) float32.

    **Guarantee:** zeroing one row moves the sum by at most ``row_norm``; the noise has std
    ``noise_multiplier * row_norm``. Sums are float64.
    """
    with jax.enable_x64(True):
        noise = normals(key, 0, d)
    total = part.noise_multiplier * part.row_norm * noise
    for subtotal in each_sum(slices, lambda rows: clip_rows(rows, part.row_norm).sum(axis=0, dtype=np.float64)):
        total = total + subtotal
    return (total / n).astype(np.float32)


def centred(part: PrivateMean, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Rows clipped to the part's norm, moved by its mean; (n, d)."""
    return clip_rows(rows, part.row_norm) - mean
