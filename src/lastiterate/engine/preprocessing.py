"""Private preparation of rows: means, covariances, eigenvalues, cosine features; linear scores of
prepared rows.

Prediction imports this module and not JAX: releases import the generator of their noise themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lastiterate.engine import public_random
from lastiterate.errors import InputError
from lastiterate.processor_threads import map_in_threads
from lastiterate.run.losses import KnownConstants, LinearLoss
from lastiterate.run.preprocessing import (
    CosineFeatures,
    PrivateCovariance,
    PrivateMean,
    PrivateTargetMean,
    SquareRoots,
    TopEigenvalue,
    UnitRows,
)
from lastiterate.run.run import Run

if TYPE_CHECKING:
    from lastiterate.engine.random import Key

# Rows scaled down to a public norm.

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


def intercept_entry(intercept: float) -> np.float32:
    """The last entry of every row: the largest number of single precision that is not above
    ``intercept``, which bounds are computed with."""
    nearest = np.float32(intercept)
    return nearest if float(nearest) <= intercept else np.nextafter(nearest, np.float32(0))


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


# Sums over slices of rows, which several processes may share.

Statistic = Callable[[np.ndarray], np.ndarray]
"""From a slice of rows to what is summed over slices; one shape for all."""


@dataclass(frozen=True)
class SharedSlices:
    """The slices that one of several processes reads; ``gathered``: from its sum to those of all,
    in their order."""

    slices: Iterable[np.ndarray]
    gathered: Callable[[np.ndarray], Iterable[np.ndarray]]


def each_sum(
    slices: Iterable[np.ndarray] | SharedSlices, statistic: Statistic
) -> Iterator[np.ndarray]:
    """``statistic`` of every slice; one sum of every process where they share the rows.

    **Guarantee:** added up these are the sum over all rows, each counted once, and the same bits in
    every process.
    """
    if isinstance(slices, SharedSlices):
        yield from slices.gathered(np.asarray(sum(map_in_threads(statistic, slices.slices))))
    else:
        yield from map_in_threads(statistic, slices)


def add_sums(
    noise: np.ndarray, slices: Iterable[np.ndarray] | SharedSlices, statistic: Statistic
) -> np.ndarray:
    """``noise`` plus the sum of ``statistic`` over all slices."""
    for subtotal in each_sum(slices, statistic):
        noise = noise + subtotal
    return noise


# Second moments of short rows with symmetric Gaussian noise, and the map that whitens rows in part.

UNIT = 1 - 2.0**-19
"""Unit rows have this norm: rounding to float32 (relative 2^-24) brings none above 1, nor above
what clipping to 1 leaves as it is."""


def unit_rows(rows: np.ndarray) -> np.ndarray:
    """Rows (n, d) divided by their norms, which are computed in float64; rows of norm 0 stay 0.
    float32.

    Errors: numbers that are not finite.
    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most 1.
    """
    exact = np.asarray(rows, dtype=np.float64)
    squares: np.ndarray = np.einsum("ij,ij->i", exact, exact)
    odd = np.logical_not(
        (squares > 1e-200) & (squares < 1e200)
    )  # they overflowed, vanished, or are of no numbers
    if (
        odd.any()
    ):  # these alone are scaled: the result for a record does not depend on other records
        largest = np.abs(exact).max(axis=1, keepdims=True)
        if not np.isfinite(largest).all():
            raise InputError(
                "features",
                "must be finite numbers",
                "NaN or infinity",
                "fill or drop those values first",
            )
        scaled = np.divide(
            exact, largest, out=np.zeros_like(exact), where=odd[:, None] & (largest > 0)
        )
        exact = np.where(odd[:, None], scaled, exact)
        squares = np.where(odd, np.einsum("ij,ij->i", scaled, scaled), squares)
    scale = np.divide(UNIT, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)
    return np.multiply(
        exact, scale[:, None], out=np.empty(exact.shape, np.float32), casting="same_kind"
    )


def short_rows(part: PrivateCovariance, rows: np.ndarray) -> np.ndarray:
    """Rows (n, d) divided by their norms, or clipped to ``row_norm`` and divided by it. float32.

    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most 1.
    """
    if part.row_norm is None:
        return unit_rows(rows)
    return (clip_rows(rows, part.row_norm).astype(np.float64) / part.row_norm).astype(np.float32)


def noisy_moments(
    slices: Iterable[np.ndarray], features: int, part: PrivateCovariance, key: Key
) -> np.ndarray:
    """sum_i u_i u_i' over the short rows with noise, (d, d) float64.

    The noise is symmetric, of standard deviation ``noise_multiplier`` on the diagonal and 1/sqrt 2
    of it off it: in the coordinates (C_ii, sqrt 2 C_ij) it is spherical, and there one record moves
    the sum by |u|^2 <= 1.
    """
    from lastiterate.engine.random import normals

    noise = np.zeros((features, features))
    noise[np.triu_indices(features)] = normals(key, 0, features * (features + 1) // 2)
    diagonal = np.diag(noise).copy()
    noise = (noise + noise.T) / math.sqrt(2)
    noise[np.diag_indices(features)] = diagonal
    return add_sums(
        part.noise_multiplier * noise, slices, lambda rows: gram(short_rows(part, rows))
    )


def gram(rows: np.ndarray) -> np.ndarray:
    """sum_i x_i x_i' over rows (n, d) of single precision, (d, d) float64."""
    exact = np.asarray(rows, dtype=np.float64)
    return exact.T @ exact


def compute_whitening(part: PrivateCovariance, moments: np.ndarray, count: int) -> np.ndarray:
    """M = V (w / max w)^-power V', w the eigenvalues of moments / count raised by the noise's size;
    (d, d) float64. With ``row_norm`` it is divided by the root mean square of |M u|.

    A function of what was released and of public numbers. The spectral norm of the noise is about s
    sqrt(2 d), s its standard deviation on the diagonal: directions that it drowns are treated
    alike, and mean squares that it drowns count as large as its part in them.
    """
    values, vectors = np.linalg.eigh(moments / count)
    noise, d = part.noise_multiplier / count, len(values)
    raised = np.maximum(values, 0.0) + noise * math.sqrt(2 * d)
    stretched = (raised / raised.max()) ** -part.power
    if part.row_norm is not None:
        stretched /= math.sqrt(max(float(values @ stretched**2), noise * math.sqrt(d)))
    return (vectors * stretched) @ vectors.T


def whiten_rows(part: PrivateCovariance, rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """M u for every row, u its short row; M u / |M u| where rows are divided by their norms. (n, d)
    float32."""
    mapped = short_rows(part, rows).astype(np.float64) @ matrix
    return unit_rows(mapped) if part.row_norm is None else mapped.astype(np.float32)


def stretch(part: PrivateCovariance, matrix: np.ndarray) -> float:
    """Root mean square of |M u| over unit rows u, whose second moments are those that M = S^-power
    was made of."""
    values = np.maximum(np.linalg.eigvalsh(np.asarray(matrix, np.float64)), 1e-12)
    moments = values ** (-1 / part.power)
    return math.sqrt(float((moments * values**2).sum() / moments.sum()))


def keeps_lengths(part: PrivateCovariance, matrix: np.ndarray) -> bool:
    """Whether at most two thirds of rows can have been clipped to ``row_norm``: no more than their
    mean square there, which the release knows, because M makes it 1."""
    return part.row_norm is not None and stretch(part, matrix) ** 2 >= 1.5


# Random cosine features of unit rows, appended to the rows and centred by a mean with Gaussian
# noise.


@lru_cache(maxsize=4)
def directions(part: CosineFeatures, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Public directions (features, count) of standard deviation 1 / bandwidth, and phases (count,),
    from the seed."""
    key, numbers = public_random.key_from_seed(part.seed), features * part.count
    drawn = public_random.normals(public_random.stream(key, 0), 0, numbers)
    phases = public_random.uniform(public_random.stream(key, 1), 0, part.count)
    drawn = drawn.reshape(features, part.count)
    return drawn / part.bandwidth, 2 * math.pi * phases


def cosines(part: CosineFeatures, rows: np.ndarray) -> np.ndarray:
    """weight sqrt(2 / count) cos(u W + b) for the unit row u of every row (n, d); (n, count)
    float64.

    **Guarantee:** the norm of every row, computed exactly, is at most ``part.longest``: each entry
    is a product of a public number, rounded down, and a cosine.
    """
    unit = unit_rows(rows).astype(np.float64)
    matrix, phases = directions(part, rows.shape[1])
    scale = part.weight * math.sqrt(2 / part.count) * (1 - 1e-9)
    return scale * np.clip(np.cos(unit @ matrix + phases), -1.0, 1.0)


def noisy_cosines(
    slices: Iterable[np.ndarray], n: int, part: CosineFeatures, key: Key
) -> np.ndarray:
    """Mean of the cosine features with Gaussian noise; (count,) float64.

    **Guarantee:** zeroing one record moves the sum by at most ``part.longest``; the noise has std
    ``noise_multiplier`` times that.
    """
    from lastiterate.engine.random import normals

    noise = part.noise_multiplier * part.longest * normals(key, 0, part.count)
    return add_sums(noise, slices, lambda rows: cosines(part, rows).sum(axis=0)) / n


def with_cosines(part: CosineFeatures, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Unit rows and their centred cosine features, (n, d + count) float32."""
    return np.column_stack((unit_rows(rows), (cosines(part, rows) - mean).astype(np.float32)))


# The mean of clipped rows with Gaussian noise, and rows that are centred by it.


def noisy_mean(
    slices: Iterable[np.ndarray], n: int, d: int, part: PrivateMean, key: Key
) -> np.ndarray:
    """Mean of the clipped rows with Gaussian noise; (d,) float32.

    **Guarantee:** zeroing one record moves the sum by at most ``row_norm``; the noise has std
    ``noise_multiplier * row_norm``. Sums are float64.
    """
    from lastiterate.engine.random import normals

    total = add_sums(
        part.noise_multiplier * part.row_norm * normals(key, 0, d),
        slices,
        lambda rows: clip_rows(rows, part.row_norm).sum(axis=0, dtype=np.float64),
    )
    return (total / n).astype(np.float32)


def centre_rows(part: PrivateMean, rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Rows clipped to the part's norm, moved by its mean; (n, d)."""
    return clip_rows(rows, part.row_norm) - mean


# The mean of clipped targets with Gaussian noise, and what it adds to predictions.


def noisy_target_mean(
    slices: Iterable[np.ndarray], n: int, part: PrivateTargetMean, key: Key
) -> np.ndarray:
    """Mean of the targets, clipped to the part's bound, with Gaussian noise; (1,) float64.

    **Guarantee:** zeroing one record moves the sum by at most ``bound``; the noise has std
    ``noise_multiplier * bound``.
    """
    from lastiterate.engine.random import normals

    total = add_sums(
        part.noise_multiplier * part.bound * normals(key, 0, 1),
        slices,
        lambda targets: np.clip(np.asarray(targets, np.float64), -part.bound, part.bound).sum(),
    )
    return total / n


def target_offset(run: Run, released: tuple[np.ndarray, ...]) -> float:
    """Return the offset that the run's preparation subtracts from every target and predictions add:
    0 where it measures no mean."""
    return sum(
        float(mean[0])
        for part, mean in zip(run.preprocessing, released, strict=False)
        if part.targets
    )


# Private preparation of rows: noisy measurements, and the maps that follow from them. The table has
# one entry for every part: its release about rows, slice by slice, and its map of any row, in
# training and in prediction alike.

Slices = Iterable[np.ndarray]


@dataclass(frozen=True)
class PreprocessingStep:
    """The execution of a part of the preparation.

    ``release(part, slices, n, d, key)``: what it publishes about rows (n, d) that the parts before
    it have prepared, or about targets (n,). ``apply(part, rows, measured)``: the rows after it; a
    map of single rows.
    """

    release: Callable[[Any, Slices, int, int, Key], np.ndarray]
    apply: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]


def _covariance(part: PrivateCovariance, slices: Slices, n: int, d: int, key: Key) -> np.ndarray:
    return compute_whitening(part, noisy_moments(slices, d, part, key), n)


NOTHING = np.zeros(0)
PARTS: dict[type, PreprocessingStep] = {
    PrivateMean: PreprocessingStep(
        lambda part, slices, n, d, key: noisy_mean(slices, n, d, part, key), centre_rows
    ),
    PrivateTargetMean: PreprocessingStep(
        lambda part, slices, n, d, key: noisy_target_mean(slices, n, part, key),
        lambda part, rows, measured: rows,
    ),
    SquareRoots: PreprocessingStep(
        lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: square_roots(rows)
    ),
    UnitRows: PreprocessingStep(
        lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: unit_rows(rows)
    ),
    CosineFeatures: PreprocessingStep(
        lambda part, slices, n, d, key: noisy_cosines(slices, n, part, key), with_cosines
    ),
    PrivateCovariance: PreprocessingStep(_covariance, whiten_rows),
    # measured where the steps read the rows, with their intercept: engine/linear_model.py
    TopEigenvalue: PreprocessingStep(
        lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: rows
    ),
}


def execution_of(part: object) -> PreprocessingStep:
    """Return the execution of ``part``; refuse a part that is not in the table."""
    if type(part) not in PARTS:
        raise InputError(
            "preprocessing", "has a part that the trainer cannot execute", type(part).__name__
        )
    return PARTS[type(part)]


def prepare_rows(
    rows: object, parts: tuple[Any, ...], released: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Rows (n, d) as they are after the first ``len(released)`` parts."""
    mapped = np.asarray(rows)
    for part, value in zip(parts, released, strict=False):
        mapped = execution_of(part).apply(part, mapped, value)
    return mapped


# The largest eigenvalue of the rows' second moments, block by block, with noise.

ROUNDING = 1 + 1e-9
"""Eigenvalues of Gram matrices in float64 are good to a few ulp of the largest, times the
dimension."""


def top_eigenvalue(blocks: Iterable[Iterable[np.ndarray]]) -> float:
    """The largest eigenvalue of sum x x' over the rows of a block, and the largest of all blocks,
    rounded up.

    Each block is an iterable of slices of rows (m, d + 1).
    """
    largest = 0.0
    for slices in blocks:
        total = sum(each_sum(slices, gram))
        largest = max(largest, float(np.linalg.eigvalsh(total)[-1]) * ROUNDING)
    return largest


def release_eigenvalue(
    exact: float, scale: float, shift: float, low: float, high: float, key: Key
) -> float:
    """``exact`` + ``scale`` (N(0, 1) + ``shift``), clamped to the public interval [``low``,
    ``high``].

    **Guarantee:** at least ``exact`` (which never exceeds ``high``) unless the normal number lies
    below -``shift``.
    """
    from lastiterate.engine.random import normals

    return min(max(exact + scale * (float(normals(key, 0, 1)[0]) + shift), low), high)


# Linear scores of rows, prepared and clipped as in training.

SLICE = 512
"""Records that are prepared at once, so that no second copy of the data is ever made."""


@dataclass(frozen=True, eq=False)
class TrainedWeights:
    """A released linear model: weights (k, d + 1), float64, and the releases of the parts of its
    preparation, in order."""

    weights: np.ndarray
    released: tuple[np.ndarray, ...] = ()


def linear_loss(run: Run) -> LinearLoss:
    """The run's loss, if the trainer knows its gradient."""
    if isinstance(run.loss, KnownConstants):
        raise InputError(
            "loss",
            "is known only by its constants and cannot be executed",
            "KnownConstants",
            "use Logistic, Softmax or HuberRidge",
        )
    return run.loss


def scores(run: Run, model: TrainedWeights, features: np.ndarray) -> np.ndarray:
    """Linear scores of new rows, (n, k), prepared and clipped as in training."""
    rows = np.asarray(features)
    slices = np.split(rows, range(SLICE, len(rows), SLICE)) if rows.ndim == 2 else [rows]
    return np.concatenate(list(map_in_threads(partial(scores_of_slice, run, model), slices)))


def scores_of_slice(run: Run, model: TrainedWeights, rows: np.ndarray) -> np.ndarray:
    """Return the scores of a few rows, in this thread."""
    return scores_of_prepared(
        run,
        model,
        clip_rows(prepare_rows(rows, run.preprocessing, model.released), linear_loss(run).row_norm),
    )


def scores_of_prepared(run: Run, model: TrainedWeights, rows: np.ndarray) -> np.ndarray:
    """Return the scores of rows (m, d) that are prepared and clipped already, without their
    intercept."""
    predictor = (
        rows.astype(np.float64) @ model.weights[:, :-1].T
        + linear_loss(run).intercept * model.weights[:, -1]
    )
    return predictor + target_offset(run, model.released)
