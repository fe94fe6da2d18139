"""Linear models whose gradients are summed exactly: whole numbers in, whole-number noise, and only then arithmetic.

Rows and residuals are rounded toward zero to multiples of powers of two, their squared norms checked in int64; then a
batch's sum of gradients is two exact matrix products apart from nothing: every partial sum is a multiple of the grid
below 2^53 of it, which float64 holds in any order of summation. The discrete Gaussian is added in the same units.
Everything after is post-processing of sums whose law is known exactly (docs/theorems/exact-noise.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.checkpoint import Checkpoint
from lastiterate.engine.exact_draws import draws_of, places_for, preparation_bits
from lastiterate.engine.exact_preparation import EXACT, check_exact
from lastiterate.engine.exact_rounds import exact_rounds
from lastiterate.engine.gaussian_noise import Key, fresh_key
from lastiterate.engine.gradients import AT_ONCE, clip_residuals, outputs, residuals, weighted
from lastiterate.engine.loop import drawn_once
from lastiterate.engine.measured import Measurable, prepare_privately
from lastiterate.engine.model import Model, in_memory, scored_in_memory
from lastiterate.engine.newton_rounds import calibrated
from lastiterate.engine.prepare import arrange, linear_loss, places, slots_of
from lastiterate.engine.process import check_process
from lastiterate.engine.structure import Described
from lastiterate.engine.trainer import Loop, Progress
from lastiterate.errors import InputError
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps

ROW_BITS, RESIDUAL_BITS = 20, 20
"""Binary places of rows and of residuals, at most: float32 holds a row's numbers, int64 all squared norms."""


@final
@dataclass(frozen=True)
class Grid:
    """Rows are multiples of 2^-``rows``, residuals of 2^-``residuals``, gradients of the product."""

    rows: int
    residuals: int

    @property
    def step(self) -> float:
        """The grid of sums: a power of two."""
        return 2.0 ** -(self.rows + self.residuals)


def grid_of(run: Run) -> Grid:
    """The finest grid on which sums and their noise are exact; from public numbers alone."""
    loss = linear_loss(run)
    check_exact(run)
    norm = math.hypot(loss.row_norm, loss.intercept)
    bits = places_for(run.n * norm * float(residual_norm(loss)), float(run.noise_stds.max()) * run.divisor)
    rows = min(ROW_BITS, bits // 2, 23 - max(0, math.ceil(math.log2(norm))))
    left = min(RESIDUAL_BITS, bits - rows, 30 - max(0, math.ceil(math.log2(residual_norm(loss)))))  # squares: int64
    if min(rows, left) < 4:
        raise InputError("secure_noise", "needs a grid of at least 4 binary places", min(rows, left),
                         "its sums would not be exact: use smaller batches, row norms or residual clips")
    return Grid(rows, left)


def residual_norm(loss: LinearLoss) -> float:
    """What the Euclidean norm of a record's residuals does not exceed."""
    match loss:
        case Logistic(cap=cap):
            return 1.0 if cap is None else min(1.0, cap)
        case Softmax(cap=cap):
            return math.sqrt(2) * (1.0 if cap is None else min(1.0, cap))
        case HuberRidge(residual_clip=bound):
            return bound


def on_grid(rows: np.ndarray, loss: LinearLoss, grid: Grid) -> np.ndarray:
    """Arranged rows, (..., d + 1) float32, rounded toward zero; the squared norms are checked as whole numbers.

    **Guarantee:** features have norm at most ``row_norm`` and the intercept is at most its own, exactly.
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
    """Exact sums of a linear model's gradients; ``most_squared``: of a record's residuals, in squared grid units;
    ``clip_squared``: of a record's gradient, in squared units of the sums, where the run clips.

    **Guarantee:** a chunk's sum is the exact sum of one vector per record, each a function of that record and of the
    parameters alone, of norm at most ``residual_norm`` times the row's, and at most the clip; both are checked on whole
    numbers, and records beyond one of them count as 0.
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
        bound = Fraction(2) * Fraction(residual_norm(loss) / math.sqrt(2)) ** 2 if isinstance(loss, Softmax) else \
            Fraction(residual_norm(loss)) ** 2
        most = np.int64(math.floor(bound * 4**grid.residuals))
        if run.clip is None:
            return cls(loss, grid, most)
        # less than the bound itself by more than two roundings of float64
        return cls(loss, grid, most, run.clip, run.clip**2 * 4.0 ** (grid.rows + grid.residuals) * (1 - 2.0**-40))

    @property
    def most(self) -> int:
        return AT_ONCE

    @property
    def ridge(self) -> float:
        return self.loss.ridge

    def chunk_sum(self, theta: jax.Array, chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Exact sum of the gradients of a chunk, (k, d) float64, a multiple of the grid."""
        times, scale = partial(jnp.matmul, precision="highest"), 2.0**self.grid.residuals
        rows, target = chunk[0].astype(jnp.float64), chunk[1]
        slope = residuals(self.loss, times(theta, rows.T), target)
        slope = clip_residuals(rows, jnp.where(jnp.isfinite(slope), slope, 0.0), self.clip)
        whole = jnp.trunc(weighted(self.loss, slope, target) * scale)
        squared = (whole.astype(jnp.int64) ** 2).sum(0)
        within = squared <= self.most_squared
        if self.clip is not None:
            lengths = ((rows * 2.0**self.grid.rows).astype(jnp.int64) ** 2).sum(1)
            most = jnp.minimum(self.clip_squared / jnp.maximum(lengths, 1), 2.0**62)  # beyond, int64 would wrap
            within &= squared <= jnp.floor(most).astype(jnp.int64)
        return times(jnp.where(within, whole, 0.0) / scale, rows)

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters."""
        return function(theta)


jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    ExactLinear,
    lambda model: ((Described(model.loss), model.most_squared, model.clip, model.clip_squared), model.grid),
    lambda grid, held: ExactLinear(held[0].value, grid, *held[1:]))


def prepare_exactly(run: Run, features: np.ndarray, target: object, key: Key, absent: Sequence[int] = ()
                    ) -> tuple[np.ndarray, ...]:
    """What the run's preparation releases, from exact sums with exact noise."""
    if not run.prelude:
        return ()

    def release(number: int, part: object, slices: Iterable[np.ndarray], data: Measurable) -> np.ndarray:
        return EXACT[type(part)](part, slices, data.n, data.features, preparation_bits(key, number))

    return prepare_privately(run, in_memory(run, features, target, absent), release)


def execute_exactly(run: Run, features: Any, target: object, key: Key | None = None, progress: Progress | None = None,
                    checkpoint: Checkpoint | None = None, absent: Sequence[int] = ()) -> Model:
    """The preparation and every step of ``run`` on exact sums with exact noise; ``absent``: as ``execute`` has it.

    **Guarantee:** what leaves a step, or a part of the preparation, is a function of sum + noise, both whole numbers of
    grid steps, added exactly.
    """
    grid = grid_of(run)
    if checkpoint is not None:
        key = checkpoint.begin(run, (features, target), key, "linear, exact sums")
    check_process()
    key = fresh_key() if key is None else key
    loss, released = linear_loss(run), prepare_exactly(run, features, target, key, absent)
    if type(run.step_size) is StableSteps:
        run = run.stabilised(np.linalg.eigvalsh(released[-1]).tolist())
    with jax.enable_x64(True):
        order = places(run, key)
        rows, labels = arrange(run, features, target, order, released, absent)
        loop = Loop(run, ExactLinear.of(run, grid), draws_of(run, grid.step, key))
        data: Any = jnp.asarray(on_grid(rows, loss, grid)), jnp.asarray(labels)
        if order is None:
            data = drawn_once(loop.program, data, key)
        weights = loop.execute(np.zeros((outputs(loss), rows.shape[-1])), data, key, progress, checkpoint)
    model = Model(weights, released)
    if run.calibration is None:
        return model
    scored = scored_in_memory(run, model, rows, labels, np.delete(slots_of(run, order, run.n), list(absent)))
    return Model(calibrated(run, weights, scored, exact_rounds(run.n, key)), released)
