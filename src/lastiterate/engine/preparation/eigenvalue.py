"""The largest eigenvalue of the rows' second moments, block by block, with noise."""

from __future__ import annotations

from collections.abc import Iterable

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, normals
from lastiterate.engine.preparation.covariance import gram
from lastiterate.engine.preparation.sliced_sums import each_sum

ROUNDING = 1 + 1e-9
"""Eigenvalues of Gram matrices in float64 are good to a few ulp of the largest, times the dimension."""


def top_eigenvalue(blocks: Iterable[Iterable[np.ndarray]]) -> float:
    """The largest eigenvalue of sum x x' over the rows of a block, and the largest of all blocks, rounded up.

    Each block is an iterable of slices of rows (m, d + 1).
    """
    largest = 0.0
    for slices in blocks:
        total = sum(each_sum(slices, gram))
        largest = max(largest, float(np.linalg.eigvalsh(total)[-1]) * ROUNDING)
    return largest


def released_eigenvalue(exact: float, scale: float, shift: float, low: float, high: float, key: Key) -> float:
    """``exact`` + ``scale`` (N(0, 1) + ``shift``), clamped to the public interval [``low``, ``high``].

    **Guarantee:** at least ``exact`` (which never exceeds ``high``) unless the normal number lies below -``shift``.
    """
    with jax.enable_x64(True):
        drawn = float(normals(key, 0, 1)[0])
    return min(max(exact + scale * (drawn + shift), low), high)
