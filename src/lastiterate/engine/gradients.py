"""Gradients of the linear models: residual times row, so that no per-example gradient is ever stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lastiterate.engine.structure import Described
from lastiterate.run.facts import CHUNK
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax

AT_ONCE = 1020
"""Rows that a step reads at once, at most: a choice of speed and memory, not of precision. A multiple of ``EVEN``."""


def outputs(loss: LinearLoss) -> int:
    """Rows of the weight matrix: one per class for softmax, one otherwise."""
    return loss.outputs


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
    """What clipped contributions are multiplied by, the public weight of each record's class, (m,)."""
    return jnp.asarray(weights)[target]


def weighted(loss: LinearLoss, slope: jax.Array, target: jax.Array) -> jax.Array:
    """Clipped residuals (k, m) times the public weight of each record's class, which is at most 1."""
    return slope if loss.class_weights is None else slope * counts(loss.class_weights, target).astype(slope.dtype)


def clip_residuals(rows: jax.Array, slope: jax.Array, clip: float | jax.Array | None,
                   lengths: jax.Array | None = None) -> jax.Array:
    """Per-example gradient clipping: a gradient's norm is |residual| |row|; rows (m, d), slope (k, m).

    ``lengths``: the rows' norms, (m,) float64, where somebody computed them before: in every step that took a fifth to
    two fifths of its time.
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
    """The clipped data gradients of a linear model; weights (k, d), a chunk is rows (m, d), targets (m,) and, if they
    are known, the rows' norms (m,) float64.

    ``places``: rows of one record. Where there are more than one a chunk is (m, places, d) and (m, places), and a
    record's gradient is the mean of its rows' clipped ones; empty places are rows of 0.

    **Guarantee:** with ``exact`` everything is float64, because theorems about a hidden state compare one step at two
    *different* parameters, where rounding them to float32 would be a jump. Without it (all steps are charged) float32
    sums have at most ``CHUNK`` rows each (see ``FLOAT_SLACK``). Zero rows add nothing. For every ``theta``, overflowed
    ones included, each record adds a finite vector of norm at most L: scores that are no numbers (infinity times 0)
    count as residuals of 0. If they ended the run instead, one record could be recognised by that alone.
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
        return self._rows_sum(theta, *(part.reshape(-1, *part.shape[2:]) for part in chunk)) / self.places

    def moved_sum(self, theta: jax.Array, origin: jax.Array, longest: jax.Array, chunk: tuple[Any, ...]) -> jax.Array:
        """Sum over a chunk of what every record's data gradient has moved from ``origin`` to ``theta``, each clipped to
        norm ``longest`` by its own; (k, d) float64."""
        rows, target = chunk[0].astype(jnp.float64), chunk[1]
        here, there = (self._residuals(point @ rows.T, target) for point in (theta, origin))
        return weighted(self.loss, clip_residuals(rows, here - there, longest, *chunk[2:]), target) @ rows

    def _residuals(self, scores: jax.Array, target: jax.Array) -> jax.Array:
        slope = residuals(self.loss, scores, target)
        return jnp.where(jnp.isfinite(slope), slope, 0.0)

    def _rows_sum(self, theta: jax.Array, rows: jax.Array, target: jax.Array, *lengths: jax.Array) -> jax.Array:
        dtype = jnp.float64 if self.exact else jnp.float32
        times = partial(jnp.matmul, precision="highest")
        rows = rows.astype(dtype)
        slope = self._residuals(times(theta.astype(dtype), rows.T), target)
        slope = clip_residuals(rows, slope, self.clip, *lengths)
        slope = weighted(self.loss, slope, target)
        groups = 1 if self.exact else -(-rows.shape[0] // CHUNK)
        if groups == 1:
            return times(slope, rows).astype(jnp.float64)
        short = -rows.shape[0] % groups
        slope, rows = jnp.pad(slope, ((0, 0), (0, short))), jnp.pad(rows, ((0, short), (0, 0)))  # pyright: ignore
        each = times(slope.reshape(slope.shape[0], groups, -1).swapaxes(0, 1), rows.reshape(groups, -1, rows.shape[1]))
        return each.astype(jnp.float64).sum(0)

    def leafwise(self, function: Callable[[jax.Array], jax.Array], theta: jax.Array) -> jax.Array:
        """``function`` of every array of parameters."""
        return function(theta)


jax.tree_util.register_pytree_node(  # pyright: ignore[reportUnknownMemberType]
    Linear, lambda model: ((Described(model.loss), model.clip), (model.exact, model.places)),
    lambda shape, held: Linear(held[0].value, held[1], *shape))
