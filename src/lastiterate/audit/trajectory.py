"""The attack on a run that releases all iterates: what each step added along the direction of the record's gradient.

theta_{k+1} - (1 - eta_k ridge) theta_k = -eta_k (data gradients / b + noise_k): where data gradients are constant, as
on the tight pair of squared error, the weighted sum over the record's steps is the whole trajectory's likelihood ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lastiterate.engine import Trainer
from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.run import Run
from lastiterate.run.starts import Fixed

NAME = "trajectory"


def fit_one_by_one(run: Run, features: Any, target: Any, keys: Any, absent: Sequence[int] = ()) -> np.ndarray:
    """All iterates of one model per key, (models, T, k, d + 1); the vectorised program keeps the last ones only."""
    return np.stack([Trainer(run).fit(features, target, key, absent=absent) for key in keys])


def readable(run: Run) -> bool:
    """Whether a step's gradient can be read off two iterates: no momentum, projection or proximal map between them."""
    return (run.release == "all" and run.momentum is None and run.prox is None
            and isinstance(run.domain, Everywhere))


def weights(run: Run, record: int) -> np.ndarray:
    """Weight of every step, (T,): one over step size times noise variance; zero where the record does not take part."""
    if not readable(run):
        raise InputError("attack", "'trajectory' needs all iterates, without momentum or a domain", run.release,
                         "take 'projection', or audit a run with release='all'")
    steps = np.arange(run.steps)
    uses = np.ones_like(steps)
    if run.batching.drawn == "never":
        uses = steps % run.blocks == record // int(run.divisor)
    std, eta = run.noise_stds, run.step_sizes
    if not isinstance(run.start, Fixed):
        uses = uses * (steps > 0)  # the first step starts from a point that is not released
    return uses / (eta * np.maximum(std, 1e-300) ** 2)


def along(run: Run, record: int, direction: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Scores (models,) from all iterates (models, T, k, d + 1); a record present makes them larger or smaller."""
    at = np.tensordot(released, direction, axes=direction.ndim)
    shrink = 1 - run.step_sizes * linear_loss(run).ridge
    before = np.concatenate((np.zeros((len(at), 1)), at[:, :-1]), axis=1)
    return (at - shrink * before) @ weights(run, record)
