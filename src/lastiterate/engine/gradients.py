"""Gradients of the linear models: residual times row, so that no per-example gradient is ever stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lastiterate.losses import HuberRidge, Logistic, Softmax

Loss = Logistic | Softmax | HuberRidge
UNROLLED = 4  #: chunks that are added one after the other instead of in a loop


def outputs(loss: Loss) -> int:
    """Rows of the weight matrix: one per class for softmax, one otherwise."""
    return loss.classes if isinstance(loss, Softmax) else 1


def residuals(loss: Loss, scores: jax.Array, target: jax.Array) -> jax.Array:
    """Derivative of each record's loss by its scores; (k, m)."""
    match loss:
        case Logistic():
            return jax.nn.sigmoid(scores) - target[None, :].astype(scores.dtype)
        case Softmax(classes=classes):
            return jax.nn.softmax(scores, axis=0) - jax.nn.one_hot(target, classes, dtype=scores.dtype, axis=0)
        case HuberRidge(residual_clip=bound):
            return jnp.clip(scores - target[None, :], -bound, bound)


def clip_residuals(rows: jax.Array, found: jax.Array, clip: float | None) -> jax.Array:
    """Per-example gradient clipping: a gradient's norm is |residual| |row|; rows (m, d), found (k, m)."""
    if clip is None:
        return found
    norms = jnp.sqrt((found.astype(jnp.float64) ** 2).sum(0)) * jnp.sqrt((rows.astype(jnp.float64) ** 2).sum(1))
    scale = jnp.minimum(1.0, clip * (1 - 2.0**-20) / jnp.maximum(norms, 1e-300))
    return found * scale.astype(found.dtype)


@partial(jax.jit, static_argnums=(0, 1, 2))
def gradient_sum(loss: Loss, clip: float | None, exact: bool, theta: Any, rows: Any, target: Any) -> jax.Array:
    """Sum of the (clipped) data gradients of a block; rows (chunks, m, d), theta (k, d) -> (k, d) float64.

    **Guarantee:** with ``exact`` everything is float64, because theorems about a hidden state compare one step at two
    *different* parameters, where rounding them to float32 would be a jump. Without it (all steps are charged) float32
    is used inside a chunk of at most ``CHUNK`` rows only (see ``FLOAT_SLACK``). Zero rows add nothing.
    """
    dtype = jnp.float64 if exact else jnp.float32
    weights = theta.astype(dtype)
    times = partial(jnp.matmul, precision="highest")

    def part(rows: Any, target: Any) -> jax.Array:
        rows = rows.astype(dtype)
        found = clip_residuals(rows, residuals(loss, times(weights, rows.T), target), clip)
        return times(found, rows).astype(jnp.float64)

    if rows.shape[0] <= UNROLLED:
        return sum((part(rows[i], target[i]) for i in range(1, rows.shape[0])), part(rows[0], target[0]))
    return jax.lax.scan(lambda total, chunk: (total + part(*chunk), None), jnp.zeros(theta.shape, jnp.float64),
                        (rows, target))[0]
