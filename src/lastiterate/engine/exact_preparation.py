"""Private preparation on whole numbers: rows rounded toward zero, summed exactly, exact discrete noise.

Each query is that of the part's own file, on rows that are rounded to a grid; so it moves no further between
neighbours, and what is released is a function of whole numbers to which exact noise was added.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from lastiterate.engine.exact_draws import places_for
from lastiterate.engine.exact_noise import DiscreteGaussian
from lastiterate.engine.preparation.covariance import short_rows, whitening
from lastiterate.engine.random_bits import Bits
from lastiterate.engine.rows import clip_rows
from lastiterate.errors import InputError
from lastiterate.run.preparation import (
    CosineFeatures,
    PrivateCovariance,
    PrivateMean,
    PrivateTargetMean,
    SquareRoots,
    TopEigenvalue,
    UnitRows,
)
from lastiterate.run.run import Run

FINEST, COARSEST = 30, 6
"""Binary places below a row's norm: int64 holds all squared norms, and rounding keeps what a row says."""
SUMMABLE = 2.0**61
"""Squared norms up to here are summed in int64 without a wrap; float64 knows them well enough to say so."""


def whole_rows(rows: np.ndarray, norm: float, places: int) -> np.ndarray:
    """Rows (m, d) in units of 2^-``places``, rounded toward zero, as float64 that hold whole numbers.

    **Guarantee:** the Euclidean norm of every row is at most ``norm``, checked on whole numbers; longer ones are 0.
    """
    whole, most = np.trunc(rows.astype(np.float64) * 2.0**places), math.floor(Fraction(norm) ** 2 * 4**places)
    with np.errstate(over="ignore", invalid="ignore"):  # what int64 cannot hold, NaN too
        whole = np.where(((whole**2).sum(-1) < SUMMABLE)[:, None], whole, 0.0)
    return np.where(((whole.astype(np.int64) ** 2).sum(-1) <= most)[:, None], whole, 0.0)


def row_places(n: int, norm: float, std: float) -> int:
    """Binary places of rows of at most ``norm`` whose sum gets noise of deviation ``std``."""
    return _fit(min(FINEST - max(0, math.ceil(math.log2(norm))), places_for(n * norm, std)), norm)


def moment_places(n: int, noise_multiplier: float) -> int:
    """Binary places of unit rows whose outer products are summed: they have twice as many."""
    return _fit(min(FINEST, places_for(n, noise_multiplier) // 2), 1.0)


def _fit(places: int, norm: float) -> int:
    if places + math.log2(norm) < COARSEST:
        raise InputError("secure_noise", f"needs a grid of at least {COARSEST} binary places below a row's norm",
                         places, "the sums of the preparation would not be exact: use fewer records, or less noise")
    return places


def check_independent(run: Run) -> None:
    """Refuse noise that later steps take back in part."""
    if not run.decided_noise.independent:
        raise InputError("secure_noise", "needs noise of its own at every step: correlated noise is no whole number of "
                         "grid steps", type(run.noise).__name__, "use NoiseMultiplier, or leave secure_noise out")


def check_exact(run: Run) -> None:
    """Refuse a preparation or a calibration that is not executed exactly, correlated noise, and units as records."""
    check_independent(run)
    if run.rows_per_record > 1:
        raise InputError("secure_noise", "is for records of one row", run.rows_per_record,
                         "use rows_per_unit, for group privacy")
    for std in () if run.calibration is None else run.calibration.stds.tolist():
        row_places(run.n, 1.0, std)
    for part in run.prelude:
        match part:
            case TopEigenvalue():
                raise InputError("prelude", "may not measure a top eigenvalue with secure_noise", None,
                                 "eigenvalues are computed in floating point, with an error that nothing bounds here; "
                                 "give the step sizes themselves, every step is charged anyway")
            case PrivateMean(noise_multiplier=z, row_norm=norm) | PrivateTargetMean(noise_multiplier=z, bound=norm):
                row_places(run.n, norm, z * norm)
            case PrivateCovariance(noise_multiplier=z):
                moment_places(run.n, z)
            case SquareRoots() | UnitRows():
                pass
            case CosineFeatures():
                raise InputError("prelude", "may not add cosine features with secure_noise", None,
                                 "their mean is not summed on whole numbers here: leave them out")


def exact_mean(slices: Iterable[np.ndarray], n: int, d: int, part: PrivateMean, bits: Bits) -> np.ndarray:
    """Mean of the clipped rows, (d,) float32."""
    places = row_places(n, part.row_norm, part.noise_multiplier * part.row_norm)
    noise = DiscreteGaussian(part.noise_multiplier * part.row_norm * 2.0**places).sample(bits, d)
    total = sum((whole_rows(clip_rows(rows, part.row_norm), part.row_norm, places).sum(axis=0) for rows in slices),
                noise.astype(np.float64))
    return (total * 2.0**-places / n).astype(np.float32)


def exact_target_mean(slices: Iterable[np.ndarray], n: int, part: PrivateTargetMean, bits: Bits) -> np.ndarray:
    """Mean of the clipped targets, (1,) float64."""
    places = row_places(n, part.bound, part.noise_multiplier * part.bound)
    total = float(DiscreteGaussian(part.noise_multiplier * part.bound * 2.0**places).sample(bits, 1)[0])
    for targets in slices:
        inside = np.clip(np.asarray(targets, np.float64), -part.bound, part.bound)
        total += float(whole_rows(inside[:, None], part.bound, places).sum())
    return np.array([total * 2.0**-places / n])


def exact_moments(slices: Iterable[np.ndarray], n: int, d: int, part: PrivateCovariance, bits: Bits) -> np.ndarray:
    """sum_i u_i u_i' over the short rows with noise, (d, d) float64.

    An entry off the diagonal counts twice in the matrix, and has noise of 1/sqrt 2 the deviation: in the coordinates
    (C_ii, C_ij) with these deviations one row's share is at most |u|^4 / noise_multiplier^2, as for spherical noise.
    """
    noise_multiplier = part.noise_multiplier
    places = moment_places(n, noise_multiplier)
    total, scale = np.zeros((d, d)), 4.0**places
    for rows in slices:
        whole = whole_rows(short_rows(part, rows), 1.0, places)
        total = total + whole.T @ whole
    noise, above = np.zeros((d, d)), np.triu_indices(d, 1)
    noise[np.diag_indices(d)] = DiscreteGaussian(noise_multiplier * scale).sample(bits, d)
    off = math.nextafter(noise_multiplier * scale / math.sqrt(2), math.inf)
    noise[above] = DiscreteGaussian(off).sample(bits, len(above[0]))
    noise.T[above] = noise[above]
    return (total + noise) / scale


def _covariance(part: PrivateCovariance, slices: Iterable[np.ndarray], n: int, d: int, bits: Bits) -> np.ndarray:
    return whitening(part, exact_moments(slices, n, d, part, bits), n)


NOTHING = np.zeros(0)
EXACT: dict[type, Callable[[Any, Any, int, int, Bits], np.ndarray]] = {
    PrivateMean: lambda part, slices, n, d, bits: exact_mean(slices, n, d, part, bits),
    PrivateTargetMean: lambda part, slices, n, d, bits: exact_target_mean(slices, n, part, bits),
    SquareRoots: lambda part, slices, n, d, bits: NOTHING,
    UnitRows: lambda part, slices, n, d, bits: NOTHING,
    PrivateCovariance: _covariance,
}
"""What each part releases about rows, exactly."""
