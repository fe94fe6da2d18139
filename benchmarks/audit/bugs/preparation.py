"""What is computed from the data before training, and not paid for."""

from __future__ import annotations

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from benchmarks.audit.bugs import runs
from benchmarks.audit.bugs.bug import Bug, Patch, stepping
from lastiterate.engine import loop, preprocessing, trainer
from lastiterate.engine.loop import State
from lastiterate.estimators import DPLogisticRegression
from lastiterate.release import linear_model

arrange, advanced, fit = trainer.arrange, loop.run_steps, linear_model.fit


def before(change) -> tuple[Patch, ...]:
    """Features (n, d) and target (n,) that are changed before anything is arranged."""

    def changed(run, features, target, *rest, **named):
        rows, answers = change(np.asarray(features, np.float32), np.asarray(target))
        return arrange(run, rows.astype(np.float32), answers, *rest, **named)

    return ((trainer, "arrange", changed),)


def outliers_dropped(rows, answers):
    norms = np.linalg.norm(rows, axis=1)
    return rows * (norms <= 2 * norms.mean())[:, None], answers


def standardised(rows, answers):
    return (rows - rows.mean(0)) / np.maximum(rows.std(0), 1e-9), answers


def started(at) -> tuple[Patch, ...]:
    """First parameters that are a function of rows and targets."""

    def moved(program, state, data, order, plan, noise, first, *rest):
        begun = State(state.theta + jnp.where(first == 0, at(*data), 0.0), state.memory)
        return advanced(program, begun, data, order, plan, noise, first, *rest)

    return stepping(moved)


def log_class_ratio(rows, target):
    ones = (target == 1).sum()
    return (
        jnp.zeros((1, rows.shape[-1]))
        .at[0, -1]
        .set(jnp.log((ones + 0.5) / (target.size - ones + 0.5)))
    )


START_OF_DATA = started(lambda rows, target: rows.mean((0, 1, 2)))[0]


def without_noise(slices, n, d, part, key):
    from lastiterate.engine.preprocessing import clip_rows

    return (
        sum(clip_rows(rows, part.row_norm).sum(0, dtype=np.float64) for rows in slices) / n
    ).astype(np.float32)


def scaled_by_the_largest(order, key):
    features, target = order.data
    return fit(
        replace(order, data=(features / max(float(np.abs(features).max()), 1e-30), target)), key
    )


BUGS = (
    Bug(
        "rows centred by the data's mean",
        runs.BASE,
        before(lambda rows, y: (rows - rows.mean(0), y)),
    ),
    Bug(
        "rows divided by the longest",
        runs.BASE,
        before(lambda rows, y: (rows / max(float(np.linalg.norm(rows, axis=1).max()), 1e-30), y)),
    ),
    Bug("columns standardised by the data", runs.LOGISTIC, before(standardised)),
    Bug(
        "labels scaled by their own maximum",
        runs.BASE,
        before(lambda rows, y: (rows, y / max(float(np.abs(y).max()), 1e-30))),
    ),
    Bug("outliers dropped by the data's mean norm", runs.BASE, before(outliers_dropped)),
    Bug("log class ratio as start", runs.LOGISTIC, started(log_class_ratio)),
    Bug("a start at the mean row", replace(runs.BASE, steps=3), (START_OF_DATA,)),
    Bug(
        "an estimator that scales rows by their largest entry",
        DPLogisticRegression(row_norm=1.0, classes=[0, 1], delta=1e-5),
        ((linear_model, "fit", scaled_by_the_largest),),
    ),
    Bug(
        "a private mean without noise",
        runs.CENTRED,
        ((preprocessing, "noisy_mean", without_noise),),
    ),
)
