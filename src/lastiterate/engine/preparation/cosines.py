"""Random cosine features of unit rows beside the rows themselves, centred by a mean with Gaussian noise."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, normals, seeded_key, stream, uniform
from lastiterate.engine.preparation.covariance import unit_rows
from lastiterate.engine.preparation.sliced_sums import each_sum
from lastiterate.run.preparation import CosineFeatures


@lru_cache(maxsize=4)
def directions(part: CosineFeatures, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Public directions (features, count) of standard deviation 1 / bandwidth, and phases (count,), from the seed."""
    key = seeded_key(part.seed)
    with jax.enable_x64(True):
        drawn = normals(stream(key, 0), 0, features * part.count).reshape(features, part.count)
        phases = np.asarray(uniform(stream(key, 1), 0, part.count))
    return drawn / part.bandwidth, 2 * math.pi * phases


def cosines(part: CosineFeatures, rows: np.ndarray) -> np.ndarray:
    """weight sqrt(2 / count) cos(u W + b) for the unit row u of every row (n, d); (n, count) float64.

    **Guarantee:** the norm of every row, computed exactly, is at most ``part.longest``: each entry is a product of a
    public number, rounded down, and a cosine.
    """
    unit = unit_rows(rows).astype(np.float64)
    matrix, phases = directions(part, rows.shape[1])
    scale = part.weight * math.sqrt(2 / part.count) * (1 - 1e-9)
    return scale * np.clip(np.cos(unit @ matrix + phases), -1.0, 1.0)


def noisy_cosines(slices: Iterable[np.ndarray], n: int, part: CosineFeatures, key: Key) -> np.ndarray:
    """Mean of the cosine features with Gaussian noise; (count,) float64.

    **Guarantee:** zeroing one row moves the sum by at most ``part.longest``; the noise has std ``noise_multiplier``
    times that.
    """
    with jax.enable_x64(True):
        noise = normals(key, 0, part.count)
    total = part.noise_multiplier * part.longest * noise
    for subtotal in each_sum(slices, lambda rows: cosines(part, rows).sum(axis=0)):
        total = total + subtotal
    return total / n


def with_cosines(part: CosineFeatures, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Unit rows and their centred cosine features, (n, d + count) float32."""
    return np.column_stack((unit_rows(rows), (cosines(part, rows) - mean).astype(np.float32)))
