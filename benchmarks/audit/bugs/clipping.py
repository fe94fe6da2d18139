"""Contributions that are not bounded as described."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.audit.bugs import runs
from benchmarks.audit.bugs.bug import Bug
from lastiterate.engine import linear_gradients, loop

summed, residuals = loop.batch_sum, linear_gradients.residuals
SHRINK = 1 - 2.0**-20


def clipped_mean(program, *rest):
    """The sum of the unclipped gradients, clipped as if it were one record's mean."""
    total = summed(replace(program, objective=replace(program.objective, clip=None)), *rest)
    return total * jnp.minimum(
        1.0, program.objective.clip * program.divisor / jnp.linalg.norm(total)
    )


def by(norm):
    """Gradients clipped by another measure of rows (m, d) and residuals (k, m)."""

    def clipped(rows, found, clip, *lengths):
        return (
            found
            if clip is None
            else found * jnp.minimum(1.0, clip * SHRINK / jnp.maximum(norm(rows, found), 1e-300))
        )

    return clipped


def length(rows):
    return jnp.sqrt((rows**2).sum(1))


def largest(rows, found):
    return jnp.abs(found).max(0) * jnp.abs(rows).max(1)


def without_intercept(rows, found):
    return jnp.sqrt((found**2).sum(0)) * length(rows[:, :-1])


def squared(rows, found):
    return (found**2).sum(0) * (rows**2).sum(1)


def rows_by_the_largest(features, row_norm):
    rows = np.asarray(features, np.float32)
    return rows * np.minimum(1, row_norm * SHRINK / np.maximum(np.abs(rows).max(1), 1e-30))[:, None]


def rows_by_squares(features, row_norm):
    """A norm without its root: too small for short rows."""
    rows = np.asarray(features, np.float32)
    return rows * np.minimum(1, row_norm * SHRINK / np.maximum((rows**2).sum(1), 1e-30))[:, None]


def unclipped_above_a_quantile(features, row_norm):
    """The longest rows are taken for outliers that are dealt with elsewhere."""
    rows = np.asarray(features, np.float32)
    norms = np.linalg.norm(rows, axis=1)
    scale = np.minimum(1, row_norm * SHRINK / np.maximum(norms, 1e-30))
    return (rows * np.where(norms > np.quantile(norms, 0.75), 1.0, scale)[:, None]).astype(
        np.float32
    )


def rows_unclipped(features, row_norm):
    return np.asarray(features, np.float32)


def per_class(rows, found, clip, *lengths):
    return jnp.clip(found, -clip / length(rows), clip / length(rows))


def lengths_of_neighbours(rows):
    """Every row's norm is taken for that of the row behind it."""
    return np.roll(np.linalg.norm(rows.astype(np.float64), axis=1), 1)


def uncapped(loss, scores, target):
    return jax.nn.sigmoid(scores) - target[None, :]


def capped_but_for_the_first_class(loss, scores, target):
    return jnp.where(
        target[None, :] == 0, uncapped(loss, scores, target), residuals(loss, scores, target)
    )


def weighted(loss, scores, target):
    """Classes weigh as much as each other: by their shares in the batch."""
    share = (target[None, :] == target[:, None]).mean(1)
    return residuals(loss, scores, target) / jnp.maximum(share, 1e-9) / 2


UNCLIPPED = (linear_gradients, "clip_residuals", lambda rows, found, clip, *lengths: found)
CLIPPED_MEAN = (loop, "batch_sum", clipped_mean)
SHORT_ROWS = replace(runs.BASE, loss=replace(runs.LOSS, row_norm=0.25, intercept=0.0))

BUGS = (
    Bug("clipping forgotten", runs.FAR_CLIP, (UNCLIPPED,)),
    Bug("clipping after averaging", runs.FAR_CLIP, (CLIPPED_MEAN,)),
    Bug(
        "gradients clipped by the largest coordinate",
        runs.FAR_CLIP,
        ((linear_gradients, "clip_residuals", by(largest)),),
    ),
    Bug(
        "rows clipped by the largest coordinate",
        runs.BASE,
        ((linear_gradients, "clip_rows", rows_by_the_largest),),
    ),
    Bug("rows not clipped", runs.BASE, ((linear_gradients, "clip_rows", rows_unclipped),)),
    Bug(
        "intercept left out of the clipping norm",
        runs.FAR_CLIP_INTERCEPT,
        ((linear_gradients, "clip_residuals", by(without_intercept)),),
    ),
    Bug(
        "gradients clipped by their squared norm",
        replace(runs.FAR_CLIP, clip=0.1),
        ((linear_gradients, "clip_residuals", by(squared)),),
    ),
    Bug(
        "gradients clipped by the length of another row",
        runs.FAR_CLIP,
        ((linear_gradients, "norms_of", lengths_of_neighbours),),
    ),
    Bug(
        "short rows clipped by their squared norm",
        SHORT_ROWS,
        ((linear_gradients, "clip_rows", rows_by_squares),),
    ),
    Bug(
        "rows above a quantile unclipped",
        runs.BASE,
        ((linear_gradients, "clip_rows", unclipped_above_a_quantile),),
    ),
    Bug(
        "rows above a quantile unclipped, logistic",
        runs.LOGISTIC,
        ((linear_gradients, "clip_rows", unclipped_above_a_quantile),),
    ),
    Bug(
        "softmax clipped per class",
        runs.SOFTMAX_CLIPPED,
        ((linear_gradients, "clip_residuals", per_class),),
    ),
    Bug("a cap that is ignored", runs.CAPPED, ((linear_gradients, "residuals", uncapped),)),
    Bug(
        "a cap that leaves the first class out",
        runs.CAPPED,
        ((linear_gradients, "residuals", capped_but_for_the_first_class),),
    ),
    Bug("class weights", runs.LOGISTIC, ((linear_gradients, "residuals", weighted),)),
)
