"""Gradients of the linear models: residual times row, so that no per-example gradient is ever stored."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lastiterate.losses import HuberRidge, Logistic, Softmax

Loss = Logistic | Softmax | HuberRidge


def outputs(loss: Loss) -> int:
    """Rows of the weight matrix: one per class for softmax, one otherwise."""
    return loss.classes if isinstance(loss, Softmax) else 1


def residuals(loss: Loss, scores: jax.Array, target: jax.Array) -> jax.Array:
    """Derivative of each record's loss by its scores; (m, k)."""
    match loss:
        case Logistic():
            return jax.nn.sigmoid(scores) - target[:, None].astype(scores.dtype)
        case Softmax(classes=classes):
            return jax.nn.softmax(scores) - jax.nn.one_hot(target, classes, dtype=scores.dtype)
        case HuberRidge(residual_clip=bound):
            return jnp.clip(scores - target[:, None], -bound, bound)


def clip_residuals(rows: jax.Array, found: jax.Array, clip: float | None) -> jax.Array:
    """Per-example gradient clipping: a gradient's norm is |residual| |row|."""
    if clip is None:
        return found
    wide = (values.astype(jnp.float64) for values in (found, rows))
    norms = jnp.sqrt((next(wide) ** 2).sum(1)) * jnp.sqrt((next(wide) ** 2).sum(1))
    scale = jnp.minimum(1.0, clip * (1 - 2.0**-20) / jnp.maximum(norms, 1e-300))
    return found * scale[:, None].astype(found.dtype)


@partial(jax.jit, static_argnums=(0, 1, 2))
def gradient_sum(loss: Loss, clip: float | None, exact: bool, theta: Any, rows: Any, target: Any) -> jax.Array:
    """Sum of the (clipped) data gradients of a block; rows (chunks, m, d), theta (k, d) -> (k, d) float64.

    **Guarantee:** with ``exact`` everything is float64, because theorems about a hidden state compare one step at two
    *different* parameters, where rounding them to float32 would be a jump. Without it (all steps are charged) float32
    is used inside a chunk of at most ``CHUNK`` rows only (see ``FLOAT_SLACK``). Zero rows add nothing.
    """
    dtype = jnp.float64 if exact else jnp.float32
    weights = theta.astype(dtype).T
    times = partial(jnp.matmul, precision="highest")

    def found(rows: Any, target: Any) -> jax.Array:
        return clip_residuals(rows, residuals(loss, times(rows, weights), target), clip)

    chunks, m, d = rows.shape
    if chunks <= 2:
        # one product against a block-diagonal residual: exact zeros add no rounding, and a step costs one pass
        flat = rows.reshape(chunks * m, d).astype(dtype)
        own = jnp.repeat(jnp.eye(chunks, dtype=dtype), m, axis=0)
        wide = own[:, :, None] * found(flat, target.reshape(-1))[:, None, :]
        parts = times(wide.reshape(chunks * m, -1).T, flat)
        return parts.reshape(chunks, -1, d).astype(jnp.float64).sum(0)

    def add(total: Any, chunk: Any) -> Any:
        part = chunk[0].astype(dtype)
        return total + times(found(part, chunk[1]).T, part).astype(jnp.float64), None

    return jax.lax.scan(add, jnp.zeros(theta.shape, jnp.float64), (rows, target))[0]
