"""The mean of clipped targets with Gaussian noise, and what it adds to predictions."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, normals
from lastiterate.engine.preparation.sliced_sums import each_sum
from lastiterate.run.preparation import PrivateTargetMean
from lastiterate.run.run import Run


def noisy_target_mean(slices: Iterable[np.ndarray], n: int, part: PrivateTargetMean, key: Key) -> np.ndarray:
    """Mean of the targets, clipped to the part's bound, with Gaussian noise; (1,) float64.

    **Guarantee:** zeroing one record moves the sum by at most ``bound``; the noise has std
    ``noise_multiplier * bound``.
    """
    with jax.enable_x64(True):
        noise = float(normals(key, 0, 1)[0])
    total = part.noise_multiplier * part.bound * noise
    for subtotal in each_sum(slices, lambda targets: np.clip(np.asarray(targets, np.float64), -part.bound,
                                                             part.bound).sum()):
        total += float(subtotal)
    return np.array([total / n])


def target_offset(run: Run, released: tuple[np.ndarray, ...]) -> float:
    """What the run's preparation takes from every target, and predictions add: 0 where it measures no mean."""
    return sum(float(mean[0]) for part, mean in zip(run.prelude, released, strict=False) if part.targets)
