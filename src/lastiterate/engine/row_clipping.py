"""Rows scaled down to a public norm."""

from __future__ import annotations

import math

import numpy as np

from lastiterate.errors import InputError

ROW_SHRINK = 1 - 2.0**-20
"""Rows are clipped to this fraction of ``row_norm``: more than rounding to float32 can add
(relative 2^-24)."""


def clamp_to_float32(values: object) -> np.ndarray:
    """The same numbers in float32, those beyond its range at its end; NaN and infinity stay what
    they are.

    Whether data are refused may not depend on how large a record's finite numbers are.
    """
    end = np.finfo(np.float32).max
    given = np.asarray(values)
    given = given if given.dtype.kind == "f" else given.astype(np.float64)
    with np.errstate(over="ignore"):
        single = given.astype(np.float32)
    return np.where(np.isfinite(given), np.clip(single, -end, end), single)


def clip_rows(features: object, row_norm: float) -> np.ndarray:
    """Rows scaled down to norm at most ``row_norm`` (norms in float64); (n, d) float32.

    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most
    ``row_norm``.
    """
    with np.errstate(over="ignore"):
        rows = np.asarray(features, np.float32)
    if rows.ndim != 2 or rows.size == 0:
        raise InputError("features", "must be a non-empty table of shape (n, d)", rows.shape)
    norms = norms_of(rows)
    if not np.isfinite(norms).all():
        rows = clamp_to_float32(features)
        norms = norms_of(rows)
    if not np.isfinite(norms).all():
        raise InputError(
            "features",
            "must be finite numbers",
            "NaN or infinity",
            "fill or drop those values first",
        )
    scale = np.minimum(1.0, row_norm * ROW_SHRINK / np.maximum(norms, 1e-300))
    if (scale == 1.0).all():
        return rows
    return np.multiply(
        rows, scale[:, None], out=np.empty_like(rows), dtype=np.float64, casting="same_kind"
    )


def norms_of(rows: np.ndarray) -> np.ndarray:
    """Euclidean norms of rows (m, d) of single precision, (m,) float64."""
    exact = rows.astype(np.float64)
    return np.sqrt(np.einsum("ij,ij->i", exact, exact))


def square_roots(rows: object) -> np.ndarray:
    """sign(x) sqrt|x| of every entry, float32; NaN and infinity stay what they are."""
    exact = np.asarray(rows, np.float64)
    return clamp_to_float32(np.sign(exact) * np.sqrt(np.abs(exact)))


def allocate_aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros on a boundary of 64 bytes: JAX can use such memory as it is, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    buffer = np.zeros(size + 64, np.uint8)
    first = -buffer.ctypes.data % 64
    return buffer[first : first + size].view(dtype).reshape(shape)
