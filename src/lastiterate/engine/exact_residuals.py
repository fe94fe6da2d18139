"""Scores and residuals of linear models whose bits follow from a record and the parameters alone.

Scores are exact sums: parameters are rounded to a grid on which no order of summation rounds.
Residuals are computed by integers. So neither the position of a record in a chunk, nor the size of
chunks, nor the number of devices or processes, nor a processor's instructions change a bit.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic

DIGITS = 30
"""Fractional bits of probabilities: more than residuals have, and few enough for products in
int64."""
ONE = 1 << DIGITS
INPUT, FARTHEST = 28, 64
"""Fractional bits of a score's distance from the largest, and the distance from which on its
probability is 0: e^-64 is less than 2^-92."""
TERMS = 9
"""Of the Taylor series around 1/2: the next one is below 3e-10 on [0, 1]."""
SERIES = tuple(
    round(math.sqrt(0.5) * math.log(2) ** power / math.factorial(power) * ONE)
    for power in range(TERMS)
)
"""2^-(1/2 + h) = sum of (-1)^i SERIES[i] h^i, in units of 2^-DIGITS."""
LOG2_E = round(math.log2(math.e) * 2**INPUT)
LARGEST_SHIFT = 1000
"""Scales of parameters stay within the powers of two that double precision has."""


def round_parameters(numpy: Any, theta: Any, places: int, norm: int) -> tuple[Any, Any]:
    """Return parameters (k, d) as integers, held as float64, and the power of two that they are
    multiples of.

    ``places``: fractional bits of rows, whose norm is at most 2^``norm``. ``numpy``: NumPy, or that
    of JAX.

    **Guarantee:** every sum of products of entries of a row and of parameters is a multiple of one
    number, at most 2^53 of it (Cauchy and Schwarz: |row| |parameters|), so float64 rounds none.
    """
    reach = norm + math.ceil(math.log2(theta.shape[-1]) / 2)
    largest = numpy.frexp(numpy.abs(theta).max())[1]  # below 2^largest
    shift = numpy.minimum(53 - places - reach - largest, LARGEST_SHIFT)
    one = numpy.float64(1.0)
    return numpy.trunc(theta * numpy.ldexp(one, shift)), numpy.ldexp(one, -shift)


def compute_scores(numpy: Any, theta: Any, rows: Any, places: int, norm: int) -> Any:
    """Return the scores (k, m) of rows (m, d), multiples of 2^-``places`` held as float64; see
    ``round_parameters``."""
    whole, scale = round_parameters(numpy, theta, places, norm)
    return numpy.matmul(whole, rows.T) * scale


def compute_residuals(loss: LinearLoss, scores: jax.Array, target: jax.Array) -> jax.Array:
    """Derivative of each record's loss by its scores, (k, m) float64, of scores (k, m) and targets
    (m,); of K classes to 2^-28 + K 2^-30, in multiples of 2^-``DIGITS``.

    Scores that are not finite give residuals of 0.
    """
    finite = jnp.isfinite(scores).all(0)
    scores = jnp.where(finite, scores, 0.0)
    if isinstance(loss, HuberRidge):
        bound = loss.residual_clip
        return jnp.where(finite, jnp.clip(scores - target[None, :], -bound, bound), 0.0)
    if isinstance(loss, Logistic):
        (_, chance) = _probabilities(jnp.concatenate([jnp.zeros_like(scores), scores]))
        slope = (chance - ONE * target.astype(jnp.int64))[None, :]
        return jnp.where(finite, _cap(slope, loss.cap), 0.0)
    answer = (jnp.arange(loss.classes)[:, None] == target[None, :]).astype(jnp.int64)
    chances = _probabilities(scores)
    if loss.cap is None:
        return jnp.where(finite, (chances - ONE * answer) / ONE, 0.0)
    others = chances * (1 - answer)
    missed = others.sum(0)  # 1 - p_y without cancellation
    cap = jnp.floor(jnp.asarray(loss.cap) * ONE).astype(jnp.int64)
    shrunk = (others - missed * answer) * cap // jnp.maximum(missed, jnp.maximum(cap, 1))
    return jnp.where(finite, shrunk / ONE, 0.0)


def _cap(slope: jax.Array, cap: Any) -> jax.Array:
    found = slope / ONE
    return found if cap is None else jnp.clip(found, -cap, cap)


def _probabilities(scores: jax.Array) -> jax.Array:
    """Return e^score over their sum, (k, m) int64 in units of 2^-``DIGITS``, rounded down."""
    below = jnp.minimum(scores.max(0) - scores, float(FARTHEST))
    # computed once: XLA would compute powers again for their sum
    powers: jax.Array = jax.lax.optimization_barrier(  # pyright: ignore
        _exponential(jnp.floor(below * 2.0**INPUT).astype(jnp.int64))
    )
    return powers * ONE // powers.sum(0)


def _exponential(distance: jax.Array) -> jax.Array:
    """Return e^-x in units of 2^-``DIGITS``, int64, of integers x >= 0 in units of 2^-``INPUT``."""
    doubled = distance * LOG2_E  # of 2^-(2 INPUT): e^-x = 2^-doubled
    halvings = doubled >> (2 * INPUT)
    rest = (doubled >> (2 * INPUT - DIGITS)) & (ONE - 1)
    off = rest - ONE // 2
    found = jnp.full_like(off, SERIES[-1])
    for term in reversed(SERIES[:-1]):
        found = term - ((found * off) >> DIGITS)
    return found >> jnp.minimum(halvings, 2 * DIGITS)


def score_records(weights: np.ndarray, rows: np.ndarray, places: int, norm: int) -> np.ndarray:
    """Return the scores (m, k) of rows (m, d + 1), with their intercept, which are multiples of
    2^-``places``."""
    return compute_scores(np, weights, rows.astype(np.float64), places, norm).T
