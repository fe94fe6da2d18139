"""Ryffel et al., Lemma 5.1: how smooth softmax regression with (ridge/2) |W|^2 is, in three forms.

As printed, beta = lambda_max(sum x x' / n) / 2 + ridge: a number about the records, which is not
public. For rows of norm at most B it is never above B^2/2 + ridge. Measured with noise it is paid
for (docs/theorems/paid-smoothness).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from random import Random, SystemRandom

import numpy as np

from lastiterate.errors import InputError

UNPAID = (
    "the largest eigenvalue of the rows' second moments is a number about private records: used "
    "unpaid, as in "
    "Lemma 5.1, it voids the guarantee; use data_independent, or pay for it (paid, or "
    "TopEigenvalue in a run)"
)


class UnpaidWarning(UserWarning):
    """A number about private records is used as if it were public: what rests on it has no
    guarantee."""


@dataclass(frozen=True)
class Paid:
    """``smooth``: an upper bound except with probability ``failure``; ``mu``: its cost in Gaussian
    DP, zero-out."""

    smooth: float
    mu: float
    failure: float


def of_data(x: np.ndarray, ridge: float) -> float:
    """Lemma 5.1 as printed, rows (n, d). Warns: ``UnpaidWarning``, because it depends on the
    records."""
    warnings.warn(UNPAID, UnpaidWarning, stacklevel=2)
    return _largest(x) / len(x) / 2 + ridge


def data_independent(row_norm: float, ridge: float) -> float:
    """For any rows of norm at most ``row_norm``: free, and never below ``of_data``."""
    return row_norm**2 / 2 + ridge


def paid(
    x: np.ndarray,
    ridge: float,
    *,
    row_norm: float,
    noise_multiplier: float,
    failure: float = 1e-8,
    seed: int | None = None,
) -> Paid:
    """Lemma 5.1 with the eigenvalue released as lambda + B^2 noise_multiplier (N(0, 1) + t), P[N <
    -t] = ``failure``.

    Rows longer than ``row_norm`` = B are scaled to it. ``seed``: for figures and tests; by default
    from the operating system. A run pays for it with ``TopEigenvalue``.

    **Guarantee:** one record zeroed moves lambda by at most B^2, so that what is released is
    1/noise_multiplier-GDP; clamping to n B^2 is a function of it.
    """
    from scipy.stats import norm

    if row_norm <= 0 or noise_multiplier <= 0 or not 0 < failure < 1:
        raise InputError(
            "row_norm, noise_multiplier and failure",
            "must be > 0, > 0 and between 0 and 1",
            (row_norm, noise_multiplier, failure),
        )
    rows = np.asarray(x, np.float64)
    rows = rows * np.minimum(
        1, row_norm / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    )
    drawn, square = (SystemRandom() if seed is None else Random(seed)).gauss(0.0, 1.0), row_norm**2
    found = _largest(rows) + square * noise_multiplier * (drawn + float(norm.isf(failure)))
    found = min(max(found, 0.0), len(rows) * square)
    return Paid(found / len(rows) / 2 + ridge, 1 / noise_multiplier, failure)


def _largest(x: np.ndarray) -> float:
    rows = np.asarray(x, np.float64)
    return float(np.linalg.eigvalsh(rows.T @ rows)[-1])
