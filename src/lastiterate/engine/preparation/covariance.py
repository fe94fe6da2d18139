"""Second moments of short rows with symmetric Gaussian noise, and the map that whitens rows in part."""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax
import numpy as np

from lastiterate.engine.gaussian_noise import Key, normals
from lastiterate.engine.preparation.sliced_sums import each_sum
from lastiterate.engine.rows import clip_rows
from lastiterate.errors import InputError
from lastiterate.run.preparation import PrivateCovariance

UNIT = 1 - 2.0**-19
"""Unit rows have this norm: rounding to float32 (relative 2^-24) brings none above 1, nor above what clipping to 1
leaves as it is."""


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows (n, d) divided by their norms, which are computed in float64; rows of norm 0 stay 0. float32.

    Errors: numbers that are not finite.
    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most 1.
    """
    exact = np.asarray(rows, dtype=np.float64)
    squares: np.ndarray = np.einsum("ij,ij->i", exact, exact)
    odd = np.logical_not((squares > 1e-200) & (squares < 1e200))  # they overflowed, vanished, or are of no numbers
    if odd.any():  # these alone are scaled: what becomes of a row is no matter of the rows beside it
        largest = np.abs(exact).max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise InputError("features", "must be finite numbers", "NaN or infinity", "fill or drop those values first")
        scaled = np.divide(exact, largest, out=np.zeros_like(exact), where=odd[:, None] & (largest > 0))
        exact = np.where(odd[:, None], scaled, exact)
        squares = np.where(odd, np.einsum("ij,ij->i", scaled, scaled), squares)
    scale = np.divide(UNIT, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
    return np.multiply(exact, scale[:, None], out=np.empty(exact.shape, np.float32), casting="same_kind")


def short_rows(part: PrivateCovariance, rows: np.ndarray) -> np.ndarray:
    """Rows (n, d) divided by their norms, or clipped to ``row_norm`` and divided by it. float32.

    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most 1.
    """
    if part.row_norm is None:
        return unit_rows(rows)
    return (clip_rows(rows, part.row_norm).astype(np.float64) / part.row_norm).astype(np.float32)


def noisy_moments(slices: Iterable[np.ndarray], features: int, part: PrivateCovariance, key: Key) -> np.ndarray:
    """sum_i u_i u_i' over the short rows with noise, (d, d) float64.

    The noise is symmetric, of standard deviation ``noise_multiplier`` on the diagonal and 1/sqrt 2 of it off it: in the
    coordinates (C_ii, sqrt 2 C_ij) it is spherical, and there one row moves the sum by |u|^2 <= 1.
    """
    with jax.enable_x64(True):
        drawn = normals(key, 0, features * (features + 1) // 2)
    noise = np.zeros((features, features))
    noise[np.triu_indices(features)] = drawn
    diagonal = np.diag(noise).copy()
    noise = (noise + noise.T) / math.sqrt(2)
    noise[np.diag_indices(features)] = diagonal
    total = part.noise_multiplier * noise
    for subtotal in each_sum(slices, lambda rows: gram(short_rows(part, rows))):
        total = total + subtotal
    return total


def gram(rows: np.ndarray) -> np.ndarray:
    """sum_i x_i x_i' over rows (n, d) of single precision, (d, d) float64."""
    exact = np.asarray(rows, dtype=np.float64)
    return exact.T @ exact


def whitening(part: PrivateCovariance, moments: np.ndarray, count: int) -> np.ndarray:
    """M = V (w / max w)^-power V', w the eigenvalues of moments / count raised by the noise's size; (d, d) float64.
    With ``row_norm`` it is divided by the root mean square of |M u|.

    A function of what was released and of public numbers. The spectral norm of the noise is about s sqrt(2 d), s its
    standard deviation on the diagonal: directions that it drowns are treated alike, and mean squares that it drowns
    count as large as its part in them.
    """
    values, vectors = np.linalg.eigh(moments / count)
    noise, d = part.noise_multiplier / count, len(values)
    raised = np.maximum(values, 0.0) + noise * math.sqrt(2 * d)
    stretched = (raised / raised.max()) ** -part.power
    if part.row_norm is not None:
        stretched /= math.sqrt(max(float(values @ stretched**2), noise * math.sqrt(d)))
    return (vectors * stretched) @ vectors.T


def whitened(part: PrivateCovariance, rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """M u for every row, u its short row; M u / |M u| where rows are divided by their norms. (n, d) float32."""
    mapped = short_rows(part, rows).astype(np.float64) @ matrix
    return unit_rows(mapped) if part.row_norm is None else mapped.astype(np.float32)


def stretch(part: PrivateCovariance, matrix: np.ndarray) -> float:
    """Root mean square of |M u| over unit rows u, whose second moments are those that M = S^-power was made of."""
    values = np.maximum(np.linalg.eigvalsh(np.asarray(matrix, np.float64)), 1e-12)
    moments = values ** (-1 / part.power)
    return math.sqrt(float((moments * values**2).sum() / moments.sum()))


def keeps_lengths(part: PrivateCovariance, matrix: np.ndarray) -> bool:
    """Whether at most two thirds of rows can have been clipped to ``row_norm``: no more than their mean square there,
    which the release knows, because M makes it 1."""
    return part.row_norm is not None and stretch(part, matrix) ** 2 >= 1.5
