"""Linear models: clipped rows in memory, units of rows, and gradients without per-example arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.engine.noise import NoiseArguments
from lastiterate.engine.preprocessing import (
    SLICE,
    allocate_aligned,
    clamp_to_float32,
    clip_rows,
    intercept_entry,
    linear_loss,
    norms_of,
    prepare_rows,
    target_offset,
)
from lastiterate.engine.random import ORDER, Key, stream
from lastiterate.engine.samplers import layout_of, sampler_of
from lastiterate.errors import InputError
from lastiterate.processor_threads import map_in_threads
from lastiterate.run.facts import CHUNK
from lastiterate.run.losses import HuberRidge, KnownConstants, LinearLoss, Logistic, Softmax
from lastiterate.run.preprocessing import columns
from lastiterate.run.run import Run

# Gradients of the linear models: residual times row, so that no per-example gradient is ever
# stored.

AT_ONCE = 1020
"""Largest number of records that a step reads at once: a choice of speed and memory, not of
precision. A multiple of ``EVEN``."""


def residuals(loss: LinearLoss, scores: jax.Array, target: jax.Array) -> jax.Array:
    """Derivative of each record's loss by its scores; (k, m)."""
    match loss:
        case Logistic(cap=cap):
            slope = jax.nn.sigmoid(scores) - target[None, :].astype(scores.dtype)
            return slope if cap is None else jnp.clip(slope, -cap, cap)
        case Softmax(classes=classes, cap=cap):
            answer = jax.nn.one_hot(target, classes, dtype=scores.dtype, axis=0)
            if cap is None:
                return jax.nn.softmax(scores, axis=0) - answer
            others = jax.nn.softmax(scores, axis=0) * (1 - answer)
            missed = others.sum(0)  # 1 - p_y without cancellation
            return (others - missed * answer) * (cap / jnp.maximum(missed, cap))
        case HuberRidge(residual_clip=bound):
            return jnp.clip(scores - target[None, :], -bound, bound)


def counts(weights: tuple[float, ...], target: jax.Array) -> jax.Array:
    """Return the factors of clipped contributions: the public weight of each record's class,
    (m,)."""
    return jnp.asarray(weights)[target]


def weight_residuals(loss: LinearLoss, slope: jax.Array, target: jax.Array) -> jax.Array:
    """Clipped residuals (k, m) times the public weight of each record's class, which is at most 1."""
    return (
        slope
        if loss.class_weights is None
        else slope * counts(loss.class_weights, target).astype(slope.dtype)
    )


def clip_residuals(
    rows: jax.Array,
    slope: jax.Array,
    clip: float | jax.Array | None,
    lengths: jax.Array | None = None,
) -> jax.Array:
    """Per-example gradient clipping: a gradient's norm is |residual| |row|; rows (m, d), slope (k,
    m).

    ``lengths``: the rows' norms, (m,) float64, where somebody computed them before: in every step
    that took a fifth to two fifths of its time.
    """
    if clip is None:
        return slope
    if lengths is None:
        lengths = jnp.sqrt((rows.astype(jnp.float64) ** 2).sum(1))
    norms = jnp.sqrt((slope.astype(jnp.float64) ** 2).sum(0)) * lengths
    scale = jnp.minimum(1.0, clip * (1 - 2.0**-20) / jnp.maximum(norms, 1e-300))
    return slope * scale.astype(slope.dtype)


@dataclass(frozen=True)
class Linear:
    """The clipped data gradients of a linear model; weights (k, d), a chunk is rows (m, d), targets
    (m,) and, if they are known, the rows' norms (m,) float64.

    ``places``: rows of one record. Where there are more than one a chunk is (m, places, d) and (m,
    places), and a record's gradient is the mean of its rows' clipped ones; empty positions are rows
    of 0.

    **Guarantee:** with ``exact`` everything is float64, because theorems about a hidden state
    compare one step at two *different* parameters, where rounding them to float32 would be a jump.
    Without it (all steps are charged) float32 sums have at most ``CHUNK`` rows each (see
    ``FLOAT_SLACK``). Zero rows add nothing. For every ``theta``, overflowed ones included, each
    record adds a finite vector of norm at most L: scores that are no numbers (infinity times 0)
    count as residuals of 0. If they ended the run instead, one record could be recognised by that
    alone.
    """

    loss: LinearLoss
    clip: float | None
    exact: bool
    places: int = 1

    @property
    def most(self) -> int:
        """Records in a chunk, at most."""
        return max(1, AT_ONCE // self.places)

    @property
    def ridge(self) -> float:
        return self.loss.ridge

    def chunk_sum(self, theta: jax.Array, chunk: tuple[jax.Array, ...]) -> jax.Array:
        """Sum of the clipped data gradients of a chunk, (k, d) float64."""
        if self.places == 1:
            return self._rows_sum(theta, *chunk)
        return (
            self._rows_sum(theta, *(part.reshape(-1, *part.shape[2:]) for part in chunk))
            / self.places
        )

    def sum_differences(
        self, theta: jax.Array, origin: jax.Array, longest: jax.Array, chunk: tuple[Any, ...]
    ) -> jax.Array:
        """Sum over a chunk of what every record's data gradient has moved from ``origin`` to
        ``theta``, each clipped to norm ``longest`` by its own; (k, d) float64."""
        rows, target = chunk[0].astype(jnp.float64), chunk[1]
        here, there = (self._residuals(point @ rows.T, target) for point in (theta, origin))
        return (
            weight_residuals(
                self.loss, clip_residuals(rows, here - there, longest, *chunk[2:]), target
            )
            @ rows
        )

    def _residuals(self, scores: jax.Array, target: jax.Array) -> jax.Array:
        slope = residuals(self.loss, scores, target)
        return jnp.where(jnp.isfinite(slope), slope, 0.0)

    def _rows_sum(
        self, theta: jax.Array, rows: jax.Array, target: jax.Array, *lengths: jax.Array
    ) -> jax.Array:
        dtype = jnp.float64 if self.exact else jnp.float32
        times = partial(jnp.matmul, precision="highest")
        rows = rows.astype(dtype)
        slope = self._residuals(times(theta.astype(dtype), rows.T), target)
        slope = clip_residuals(rows, slope, self.clip, *lengths)
        slope = weight_residuals(self.loss, slope, target)
        groups = 1 if self.exact else -(-rows.shape[0] // CHUNK)
        if groups == 1:
            return times(slope, rows).astype(jnp.float64)
        short = -rows.shape[0] % groups
        slope, rows = jnp.pad(slope, ((0, 0), (0, short))), jnp.pad(rows, ((0, short), (0, 0)))  # pyright: ignore
        each = times(
            slope.reshape(slope.shape[0], groups, -1).swapaxes(0, 1),
            rows.reshape(groups, -1, rows.shape[1]),
        )
        return each.astype(jnp.float64).sum(0)

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters."""
        return function(theta)


jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    Linear,
    lambda model: ((NoiseArguments(model.loss), model.clip), (model.exact, model.places)),
    lambda shape, held: Linear(held[0].value, held[1], *shape),
)


# Data as the trainer reads it: rows clipped once, an intercept column, zero rows that fill up
# blocks and chunks.


class Arranged(NamedTuple):
    """Records as ``arrange`` gives them, and their positions in the run's one secret order, (n,),
    where it draws one."""

    rows: np.ndarray
    labels: np.ndarray
    order: np.ndarray | None


def hidden(run: Run) -> bool:
    """Whether everything that depends on parameters must be double precision: a hidden state, or
    batches that move."""
    return batches_move(run) or hidden_state(run)


def batches_move(run: Run) -> bool:
    """Whether theorems may rely on a record's own draws: a record that is drawn moves others to
    other positions of a batch, so that single precision might round their gradients differently.
    """
    return run.batching.independent or run.batching.drawn == "each step"


def hidden_state(run: Run) -> bool:
    """Whether the run's theorems may rely on a hidden state, and so compare a step at two different
    parameters.

    Otherwise every step is charged: with momentum, with all iterates or an average released, and
    where nothing is known of the loss but what its clip bounds.
    """
    if isinstance(run.loss, KnownConstants):
        known = run.loss.facts()
        curved = (known.smooth, known.hoelder, known.log_sobolev)
        if all(fact is None for fact in curved) and math.isinf(run.domain.diameter()):
            return False
    return run.release == "last" and run.optimizer is None and not run.method.averaged


def places(run: Run, key: Key) -> np.ndarray | None:
    """Return the position of every record in the run's one secret order, (n,); None where it draws
    no such order."""
    order = sampler_of(run.batching, run.n, AT_ONCE).order(stream(key, ORDER))
    return None if order is None else np.asarray(order)


def check_target(run: Run, target: object) -> np.ndarray:
    """The target as the gradients want it, (n,): float32 for regression, class indices otherwise."""
    answers = np.asarray(target)
    if answers.ndim != 1 or not run.admits(len(answers)):
        raise InputError(
            "target", f"must have shape ({'n' if run.nominal else run.n},)", answers.shape
        )
    return check_targets(run, answers)


def check_targets(run: Run, answers: np.ndarray) -> np.ndarray:
    """The targets of some records, (m,), as the gradients want them."""
    classes = linear_loss(run).target_classes
    if classes == 0:
        answers = clamp_to_float32(answers)
        if not np.isfinite(answers).all():
            raise InputError(
                "target",
                "must be finite numbers",
                "NaN or infinity",
                "fill or drop those values first",
            )
        return answers
    if not np.isin(answers, np.arange(classes)).all():
        raise InputError(
            "target", f"must be class indices 0..{classes - 1}", None, "encode labels first"
        )
    return answers.astype(np.int32)


def prepare_into(
    rows: np.ndarray,
    run: Run,
    features: Any,
    released: tuple[np.ndarray, ...],
    slots: np.ndarray | None = None,
) -> None:
    """Write rows (n, d), prepared and clipped, and the intercept behind them, to ``slots`` of
    ``rows`` (m, d' + 1); by default to the first n in order. No slot may be twice in ``slots``."""
    loss = linear_loss(run)

    def one(part: slice) -> None:
        target = part if slots is None else slots[part]
        rows[target, :-1] = clip_rows(
            prepare_rows(features[part], run.preprocessing, released), loss.row_norm
        )
        rows[target, -1] = intercept_entry(loss.intercept)

    for _ in map_in_threads(
        one, (slice(first, first + SLICE) for first in range(0, len(features), SLICE))
    ):
        pass


def readable(run: Run, rows: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the inputs of a step's gradients: arranged rows (..., d), labels, and where gradients
    are clipped the rows' norms, (...,) float64, which stay the same for all steps."""
    if run.clip is None:
        return rows, labels
    flat = rows.reshape(-1, rows.shape[-1])
    parts = map_in_threads(
        norms_of, (flat[first : first + SLICE] for first in range(0, len(flat), SLICE))
    )
    return rows, labels, np.concatenate(list(parts)).reshape(labels.shape)


def slots_of(run: Run, places: np.ndarray | None, records: int) -> np.ndarray:
    """Return the slots, (n,), into which ``arrange`` puts so many records, counted over all
    blocks."""
    return layout_of(run, records, AT_ONCE).slot(np.arange(records) if places is None else places)


def arrange(
    run: Run,
    features: np.ndarray,
    target: object,
    places: np.ndarray | None = None,
    released: tuple[np.ndarray, ...] = (),
    absent: Sequence[int] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (blocks, chunks, m, d + 1) float32, prepared, clipped, with their intercept; targets
    (blocks, chunks, m).

    Where batches are drawn by the program the records lie flat, (n, d + 1) and (n,). ``places[i]``:
    the position of record i in a secret order (absent: its own). Slots without a record hold zeros,
    and so do those of the records ``absent``, intercept included, which makes their gradients zero:
    what the neighbours of zero-out are.
    """
    if run.rows_per_record > 1:
        raise InputError(
            "rows_per_record",
            "needs li.train(run, (x, y), unit=...), which says who a row belongs to",
            run.rows_per_record,
            "or use 1 and rows_per_unit, for group privacy",
        )
    answers = check_target(run, target)
    plan, records = layout_of(run, len(answers), AT_ONCE), len(answers)
    shape = np.shape(features)
    if len(shape) != 2 or 0 in shape:
        raise InputError("features", "must be a non-empty table of shape (n, d)", shape)
    if shape[0] != records:
        raise InputError(
            "features",
            f"must have {'a row for every target' if run.nominal else f'n = {run.n} rows'}",
            shape[0],
        )
    if offset := target_offset(run, released):
        answers = (answers - offset).astype(answers.dtype)
    slots = slots_of(run, places, records)
    rows = allocate_aligned(
        (plan.slots, columns(run.preprocessing[: len(released)], shape[1]) + 1),
        np.dtype(np.float32),
    )
    prepare_into(rows, run, features, released, slots)
    rows[slots[list(absent)]] = 0.0
    labels = np.zeros(plan.slots, answers.dtype)
    labels[slots] = answers
    return rows.reshape(*plan.shape, -1), labels.reshape(plan.shape)


# Records that are units of several rows, as arrays.


@final
@dataclass(frozen=True, eq=False)
class UnitRecords:
    """Rows (units, places, d), targets (units, places), and which positions hold a row, (units,
    places) booleans."""

    rows: np.ndarray
    target: np.ndarray
    present: np.ndarray

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that are there, (rows, d), and their targets."""
        return self.rows[self.present], self.target[self.present]
