"""Linear models with exact noise: integer sums for preparation, steps and calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import cycle
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.exact_noise import DiscreteGaussian, draws_of, places_for, preparation_bits
from lastiterate.engine.exact_residuals import compute_residuals, compute_scores, score_records
from lastiterate.engine.external_gradients import ExternalLoop, Gather
from lastiterate.engine.linear_gradients import (
    AT_ONCE,
    arrange,
    linear_loss,
    places,
    slots_of,
    weight_residuals,
)
from lastiterate.engine.linear_model import (
    Measurable,
    Release,
    prepare_privately,
    slice_arrays,
)
from lastiterate.engine.loop import arrange_once
from lastiterate.engine.noise import NoiseArguments
from lastiterate.engine.preprocessing import (
    SLICE,
    Slices,
    TrainedWeights,
    add_sums,
    clip_rows,
    compute_whitening,
    short_rows,
)
from lastiterate.engine.probability_calibration import Noisy, Scored, calibrate_weights
from lastiterate.engine.random import Bits, Key, derive_key
from lastiterate.engine.step_iterator import run_to_end
from lastiterate.engine.trainer import Progress, begin
from lastiterate.errors import InputError
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax
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
from lastiterate.run.step_sizes import StableSteps

# Private preparation on integers: rows rounded toward zero, summed exactly, exact discrete noise.
# Each query is that of the part's own file, on rows that are rounded to a grid; so it moves no
# further between neighbours, and what is released is a function of integers to which exact noise
# was added.

FINEST, COARSEST = 30, 6
"""Fractional bits, relative to a row's norm: int64 holds all squared norms, and rounding keeps the
information of a row."""
SUMMABLE = 2.0**61
"""Squared norms up to here are summed in int64 without a wrap; float64 knows them well enough to
say so."""


def whole_rows(rows: np.ndarray, norm: float, places: int) -> np.ndarray:
    """Return rows (m, d) in units of 2^-``places``, rounded toward zero: integers, held as float64.

    **Guarantee:** the Euclidean norm of every row is at most ``norm``, checked on integers; longer
    ones are 0.
    """
    whole, most = (
        np.trunc(rows.astype(np.float64) * 2.0**places),
        math.floor(Fraction(norm) ** 2 * 4**places),
    )
    with np.errstate(over="ignore", invalid="ignore"):  # what int64 cannot hold, NaN too
        whole = np.where(((whole**2).sum(-1) < SUMMABLE)[:, None], whole, 0.0)
    return np.where(((whole.astype(np.int64) ** 2).sum(-1) <= most)[:, None], whole, 0.0)


def row_places(n: int, norm: float, std: float) -> int:
    """Return the fractional bits of rows of at most ``norm`` whose sum gets noise of deviation
    ``std``."""
    return _fit(min(FINEST - max(0, math.ceil(math.log2(norm))), places_for(n * norm, std)), norm)


def moment_places(n: int, noise_multiplier: float) -> int:
    """Return the fractional bits of unit rows whose outer products are summed: those have twice as
    many."""
    return _fit(min(FINEST, places_for(n, noise_multiplier) // 2), 1.0)


def _fit(places: int, norm: float) -> int:
    if places + math.log2(norm) < COARSEST:
        raise InputError(
            "secure_noise",
            f"needs a grid of at least {COARSEST} binary places below a row's norm",
            places,
            "the sums of the preparation would not be exact: use fewer records, or less noise",
        )
    return places


def check_independent(run: Run) -> None:
    """Refuse noise that later steps take back in part."""
    if not run.decided_noise.independent:
        raise InputError(
            "secure_noise",
            "needs noise of its own at every step: correlated noise is not an integer number of "
            "grid steps",
            type(run.noise).__name__,
            "use NoiseMultiplier, or leave secure_noise out",
        )


def check_exact(run: Run) -> None:
    """Refuse a preparation or a calibration that is not executed exactly, correlated noise, and
    units as records."""
    check_independent(run)
    if run.rows_per_record > 1:
        raise InputError(
            "secure_noise",
            "is for records of one row",
            run.rows_per_record,
            "use rows_per_unit, for group privacy",
        )
    for std in (
        () if run.probability_calibration is None else run.probability_calibration.stds.tolist()
    ):
        row_places(run.n, 1.0, std)
    for part in run.preprocessing:
        match part:
            case TopEigenvalue():
                raise InputError(
                    "preprocessing",
                    "may not measure a top eigenvalue with secure_noise",
                    None,
                    "eigenvalues are computed in floating point, with an error that nothing bounds "
                    "here; "
                    "give the step sizes themselves, every step is charged anyway",
                )
            case (
                PrivateMean(noise_multiplier=z, row_norm=norm)
                | PrivateTargetMean(noise_multiplier=z, bound=norm)
            ):
                row_places(run.n, norm, z * norm)
            case PrivateCovariance(noise_multiplier=z):
                moment_places(run.n, z)
            case SquareRoots() | UnitRows():
                pass
            case CosineFeatures():
                raise InputError(
                    "preprocessing",
                    "may not add cosine features with secure_noise",
                    None,
                    "their mean is not summed on integers here: leave them out",
                )


def exact_sum(
    slices: Slices,
    n: int,
    norm: float,
    std: float,
    size: int,
    bits: Bits,
    read: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> np.ndarray:
    """Sum over ``n`` rows of at most ``norm`` with noise of deviation ``std``, (size,) float64;
    ``read``: from a slice to its rows."""
    places = row_places(n, norm, std)
    noise = DiscreteGaussian(std * 2.0**places).sample(bits, size).astype(np.float64)
    return (
        add_sums(noise, slices, lambda part: whole_rows(read(part), norm, places).sum(axis=0))
        * 2.0**-places
    )


def exact_mean(slices: Slices, n: int, d: int, part: PrivateMean, bits: Bits) -> np.ndarray:
    """Mean of the clipped rows, (d,) float32."""
    norm = part.row_norm
    std, read = part.noise_multiplier * norm, partial(clip_rows, row_norm=norm)
    return (exact_sum(slices, n, norm, std, d, bits, read) / n).astype(np.float32)


def exact_target_mean(slices: Slices, n: int, part: PrivateTargetMean, bits: Bits) -> np.ndarray:
    """Mean of the clipped targets, (1,) float64."""
    bound = part.bound

    def read(targets: np.ndarray) -> np.ndarray:
        return np.clip(np.asarray(targets, np.float64), -bound, bound)[:, None]

    return exact_sum(slices, n, bound, part.noise_multiplier * bound, 1, bits, read) / n


def exact_moments(
    slices: Slices, n: int, d: int, part: PrivateCovariance, bits: Bits
) -> np.ndarray:
    """sum_i u_i u_i' over the short rows with noise, (d, d) float64.

    An entry off the diagonal counts twice in the matrix, and has noise of 1/sqrt 2 the deviation:
    in the coordinates (C_ii, C_ij) with these deviations one record's share is at most |u|^4 /
    noise_multiplier^2, as for spherical noise.
    """
    noise_multiplier = part.noise_multiplier
    places = moment_places(n, noise_multiplier)
    noise, above, scale = np.zeros((d, d)), np.triu_indices(d, 1), 4.0**places

    def multiply(rows: np.ndarray) -> np.ndarray:
        whole = whole_rows(short_rows(part, rows), 1.0, places)
        return whole.T @ whole

    noise[np.diag_indices(d)] = DiscreteGaussian(noise_multiplier * scale).sample(bits, d)
    off = math.nextafter(noise_multiplier * scale / math.sqrt(2), math.inf)
    noise[above] = DiscreteGaussian(off).sample(bits, len(above[0]))
    noise.T[above] = noise[above]
    return add_sums(noise, slices, multiply) / scale


def _covariance(part: PrivateCovariance, slices: Slices, n: int, d: int, bits: Bits) -> np.ndarray:
    return compute_whitening(part, exact_moments(slices, n, d, part, bits), n)


NOTHING = np.zeros(0)
EXACT: dict[type, Callable[[Any, Any, int, int, Bits], np.ndarray]] = {
    PrivateMean: lambda part, slices, n, d, bits: exact_mean(slices, n, d, part, bits),
    PrivateTargetMean: lambda part, slices, n, d, bits: exact_target_mean(slices, n, part, bits),
    SquareRoots: lambda part, slices, n, d, bits: NOTHING,
    UnitRows: lambda part, slices, n, d, bits: NOTHING,
    PrivateCovariance: _covariance,
}
"""The exact release of each part about rows."""


# Calibration on integers: vectors rounded toward zero, summed exactly, exact discrete noise.


def exact_rounds(n: int, key: Key) -> Noisy:
    """Sums over ``n`` records.

    **Guarantee:** what is released is a function of the sum of integer vectors, one per record,
    whose norm is checked on integers, to which exact noise was added.
    """
    secret = derive_key(np.asarray(key).tobytes(), "exact calibration")

    def noisy(number: int, std: float, size: int, slices: Slices) -> np.ndarray:
        return exact_sum(slices, n, 1.0, std, size, Bits(secret, number))

    return noisy


# Linear models whose gradients are summed exactly: integers in, integer noise, and only then
# arithmetic. Rows and residuals are rounded toward zero to multiples of powers of two, and their
# squared norms are checked in int64. Then a batch's sum of gradients is two exact matrix products:
# every partial sum is a multiple of the grid below 2^53 of it, which float64 holds in any order of
# summation. The discrete Gaussian is added in the same units. Everything after is post-processing
# of sums whose distribution is known exactly (docs/theorems/exact-noise.md).

PROGRAM = "linear, exact sums of integer residuals"
"""What checkpoints know of this arithmetic."""
ROW_BITS, RESIDUAL_BITS = 20, 20
"""Largest fractional bits of rows and of residuals: float32 holds a row's entries, int64 all
squared norms."""


@final
@dataclass(frozen=True)
class Grid:
    """Rows are multiples of 2^-``rows``, of norm at most 2^``norm``, residuals multiples of
    2^-``residuals``, and gradients of the product."""

    rows: int
    residuals: int
    norm: int

    @property
    def step(self) -> float:
        """The grid of sums: a power of two."""
        return 2.0 ** -(self.rows + self.residuals)


def grid_of(run: Run) -> Grid:
    """The finest grid on which sums and their noise are exact; from public numbers alone."""
    loss = linear_loss(run)
    check_exact(run)
    norm = math.hypot(loss.row_norm, loss.intercept)
    bits = places_for(
        run.n * norm * float(residual_norm(loss)), float(run.noise_stds.max()) * run.divisor
    )
    rows = min(ROW_BITS, bits // 2, 23 - max(0, math.ceil(math.log2(norm))))
    left = min(
        RESIDUAL_BITS, bits - rows, 30 - max(0, math.ceil(math.log2(residual_norm(loss))))
    )  # squares: int64
    if min(rows, left) < 4:
        raise InputError(
            "secure_noise",
            "needs a grid of at least 4 binary places",
            min(rows, left),
            "its sums would not be exact: use smaller batches, row norms or residual clips",
        )
    return Grid(rows, left, math.ceil(math.log2(norm)))


def residual_norm(loss: LinearLoss) -> float:
    """Return an upper bound on the Euclidean norm of a record's residuals."""
    match loss:
        case Logistic(cap=cap):
            return 1.0 if cap is None else min(1.0, cap)
        case Softmax(cap=cap):
            return math.sqrt(2) * (1.0 if cap is None else min(1.0, cap))
        case HuberRidge(residual_clip=bound):
            return bound


def round_to_grid(rows: np.ndarray, loss: LinearLoss, grid: Grid) -> np.ndarray:
    """Return arranged rows, (..., d + 1) float32, rounded toward zero; the squared norms are
    checked as integers.

    **Guarantee:** features have norm at most ``row_norm`` and the intercept is at most its own,
    exactly.
    """
    whole = np.trunc(rows.astype(np.float64) * 2.0**grid.rows)
    intercept: int = math.floor(Fraction(loss.intercept) * 2**grid.rows)  # not of its float32
    whole[..., -1] = np.minimum(whole[..., -1], intercept)
    counts = whole.astype(np.int64)
    most = math.floor(Fraction(loss.row_norm) ** 2 * 4**grid.rows)
    within = (counts[..., :-1] ** 2).sum(-1) <= most
    return np.where(within[..., None], whole * 2.0**-grid.rows, 0.0).astype(np.float32)


@dataclass(frozen=True)
class ExactLinear:
    """Exact sums of a linear model's gradients; ``most_squared``: of a record's residuals, in
    squared grid units; ``clip_squared``: of a record's gradient, in squared units of the sums,
    where the run clips.

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, each a function of that
    record and of the parameters alone, of norm at most ``residual_norm`` times the row's, and at
    most the clip; both are checked on integers, and records beyond one of them count as 0.
    """

    loss: LinearLoss
    grid: Grid
    most_squared: Any
    clip: float | None = None
    clip_squared: Any = None

    @classmethod
    def of(cls, run: Run, grid: Grid) -> ExactLinear:
        """The objective of a run."""
        loss = linear_loss(run)
        bound = (
            Fraction(2) * Fraction(residual_norm(loss) / math.sqrt(2)) ** 2
            if isinstance(loss, Softmax)
            else Fraction(residual_norm(loss)) ** 2
        )
        most = np.int64(math.floor(bound * 4**grid.residuals))
        if run.clip is None:
            return cls(loss, grid, most)
        # less than the bound itself by more than two roundings of float64
        return cls(
            loss,
            grid,
            most,
            run.clip,
            run.clip**2 * 4.0 ** (grid.rows + grid.residuals) * (1 - 2.0**-40),
        )

    @property
    def most(self) -> int:
        return AT_ONCE

    @property
    def ridge(self) -> float:
        return self.loss.ridge

    def chunk_sum(self, theta: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Exact sum of the gradients of a chunk, (k, d) float64, a multiple of the grid."""
        rows, target, grid = chunk[0].astype(jnp.float64), chunk[1], self.grid
        scores = compute_scores(jnp, theta, rows, grid.rows, grid.norm)
        # computed once, for its sum and its norm
        whole: jax.Array = jax.lax.optimization_barrier(  # pyright: ignore
            jnp.trunc(compute_residuals(self.loss, scores, target) * 2.0**grid.residuals)
        )
        if self.clip is not None:
            whole = self._clip(whole, rows)
        whole = jnp.trunc(weight_residuals(self.loss, whole, target))
        squared = (whole.astype(jnp.int64) ** 2).sum(0)
        within = squared <= self.most_squared
        if self.clip is not None:
            most = jnp.minimum(
                self.clip_squared / jnp.maximum(self._compute_squared_norms(rows), 1), 2.0**62
            )  # beyond, int64 would wrap
            within &= squared <= jnp.floor(most).astype(jnp.int64)
        slope = jnp.where(within, whole, 0.0) / 2.0**grid.residuals
        return jnp.matmul(slope, rows, precision="highest")

    def _compute_squared_norms(self, rows: jax.Array) -> jax.Array:
        """The squared norm of every row, (m,) int64, in squared units of the rows' grid."""
        return ((rows * 2.0**self.grid.rows).astype(jnp.int64) ** 2).sum(1)

    def _clip(self, whole: jax.Array, rows: jax.Array) -> jax.Array:
        """Residuals (k, m) in units of their grid whose gradients have norm at most the clip, but
        for rounding; from integers, so that no order of operations changes a bit."""
        assert self.clip is not None
        squared = (whole.astype(jnp.int64) ** 2).sum(0).astype(jnp.float64)
        squared_norms = squared * self._compute_squared_norms(rows).astype(jnp.float64)
        shrunk = self.clip * (1 - 2.0**-20) * 2.0 ** (self.grid.rows + self.grid.residuals)
        scale = jnp.minimum(1.0, shrunk / jnp.maximum(jnp.sqrt(squared_norms), 1.0))
        return whole * scale

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters."""
        return function(theta)


jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    ExactLinear,
    lambda model: (
        (NoiseArguments(model.loss), model.most_squared, model.clip, model.clip_squared),
        model.grid,
    ),
    lambda grid, held: ExactLinear(held[0].value, grid, *held[1:]),
)


SHORTEST = 64
"""Rows of the shortest chunk that a program is compiled for."""


@dataclass(frozen=True)
class ChunkSums:
    """Exact sums over rows (m, d), multiples of the grid, and targets (m,). ``devices``: each takes
    a part of the rows; JAX's own choice where there are none.

    **Guarantee:** which records share a chunk or a device changes no bit.
    """

    objective: ExactLinear
    devices: tuple[Any, ...] = ()

    def __call__(self, point: np.ndarray, records: tuple[np.ndarray, ...]) -> np.ndarray:
        """The sum at the parameters ``point``, of their shape."""
        rows, labels = records
        devices = self.devices or (None,)
        share = max(1, min(AT_ONCE, -(-len(rows) // len(devices))))
        with jax.enable_x64(True):
            started = [
                self._start(
                    point, rows[first : first + share], labels[first : first + share], device
                )
                for first, device in zip(range(0, len(rows), share), cycle(devices), strict=False)
            ]  # none of them is waited for before all are started
            return np.sum([np.zeros(point.shape), *map(np.asarray, started)], axis=0)

    def _start(
        self, point: np.ndarray, rows: np.ndarray, labels: np.ndarray, device: Any
    ) -> jax.Array:
        """Start the sum of a chunk, padded so that few shapes are compiled."""
        many = min(AT_ONCE, max(SHORTEST, 1 << (len(rows) - 1).bit_length()))
        short = many - len(rows)
        chunk = np.pad(rows, ((0, short), (0, 0))), np.pad(labels, (0, short))
        return _sum_chunk(self.objective, *jax.device_put((point, chunk), device))


@jax.jit
def _sum_chunk(objective: ExactLinear, theta: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
    return objective.chunk_sum(theta, chunk)


def exact_loop(run: Run, grid: Grid, key: Key, gather: Gather | None = None) -> ExternalLoop:
    """The steps of a linear run whose batches are summed exactly, with exact noise: sums and steps
    are programs of their own, so that how a sum is computed changes no bit of a step."""
    draws = draws_of(run, grid.step, key)
    return ExternalLoop(run, (), draws, gather=gather, objective=ExactLinear.of(run, grid))


def release_exactly(key: Key) -> Release:
    """Releases of the parts of a preparation from exact sums with exact noise."""

    def release(number: int, part: Any, slices: Slices, data: Measurable) -> np.ndarray:
        return EXACT[type(part)](part, slices, data.n, data.features, preparation_bits(key, number))

    return release


def score_exactly(
    weights: np.ndarray, rows: np.ndarray, labels: np.ndarray, slots: np.ndarray, grid: Grid
) -> Scored:
    """Scores and targets of the records in ``slots`` of rows (..., d + 1), multiples of the grid,
    as calibrations read them."""
    flat, answers = rows.reshape(-1, rows.shape[-1]), labels.reshape(-1)

    def iterate_slices() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for first in range(0, len(slots), SLICE):
            part = slots[first : first + SLICE]
            yield score_records(weights, flat[part], grid.rows, grid.norm), answers[part]

    return iterate_slices


def execute_exactly(
    run: Run,
    features: Any,
    target: object,
    key: Key | None = None,
    progress: Progress | None = None,
    checkpoint: Checkpoint | None = None,
    absent: Sequence[int] = (),
) -> TrainedWeights:
    """The preparation and every step of ``run`` on exact sums with exact noise; ``absent``: as
    ``execute`` has it.

    **Guarantee:** what leaves a step, or a part of the preparation, is a function of sum + noise,
    both integer numbers of grid steps, added exactly.
    """
    grid = grid_of(run)
    key = begin(run, (features, target), key, checkpoint, PROGRAM)
    loss, released = linear_loss(run), tuple[np.ndarray, ...]()
    if run.preprocessing:
        sliced = slice_arrays(run, features, target, absent)
        released = prepare_privately(run, sliced, release_exactly(key))
    if type(run.step_size) is StableSteps:
        run = run.with_eigenvalues(np.linalg.eigvalsh(released[-1]).tolist())
    with jax.enable_x64(True):
        order = places(run, key)
        rows, labels = arrange(run, features, target, order, released, absent)
        rows = round_to_grid(rows, loss, grid)
        loop = exact_loop(run, grid, key)
        data: Any = jnp.asarray(rows), jnp.asarray(labels)
        if order is None:
            data = arrange_once(loop.program, data, key)
        first = np.zeros((loss.outputs, rows.shape[-1]))
        weights = run_to_end(loop.iterate_records(first, data, key, progress, checkpoint))
    slots = np.delete(slots_of(run, order, run.n), list(absent))
    scored = score_exactly(weights, rows, labels, slots, grid)
    return TrainedWeights(
        calibrate_weights(run, weights, scored, exact_rounds(run.n, key)), released
    )
