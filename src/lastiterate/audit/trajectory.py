"""The attack on a run that releases all iterates: what each step added along the direction of the record's gradient.

theta_{k+1} = point_k - eta_k (data gradients / b + ridge point_k + noise_k + what momentum remembers): of two iterates
(three with momentum) the noisy mean gradient can be read off. Where data gradients are constant, as on the tight pair
of squared error, its weighted sum over the steps is the whole trajectory's likelihood ratio.
"""

from __future__ import annotations

import numpy as np

from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run
from lastiterate.run.starts import Fixed

NAME = "trajectory"


def readable(run: Run) -> bool:
    """Whether a step's gradient can be read off the iterates: no projection or proximal map between them, and noise of
    its own."""
    assert run.noise is not None
    return run.release == "all" and run.prox is None and isinstance(run.domain, Everywhere) \
        and run.method.noisy_steps and run.rule.linear


def weights(run: Run, record: int) -> np.ndarray:
    """Weight of every step, (T,): one over noise variance; zero where the record does not take part. Of correlated
    noise C^{-1} Z: C'C times where it does.
    """
    if not readable(run):
        raise InputError("attack", "'trajectory' needs all iterates, without a domain", run.release,
                         "take 'projection', or audit a run with release='all'")
    steps = np.arange(run.steps)
    seen, uses = (steps > 0) | isinstance(run.start, Fixed), np.ones(run.steps)  # a start is not released
    if run.batching.drawn == "never":
        uses = (steps % run.blocks == record // int(run.divisor)).astype(float)
    column = run.decided_noise.column(run.steps)  # the noise is C^{-1} Z: the draws are moved by C times the uses
    moved = np.convolve(column, uses)[:run.steps]
    return seen * np.convolve(column, moved[::-1])[:run.steps][::-1] / np.maximum(run.noise_stds, 1e-300) ** 2


def noisy_gradients(run: Run, released: np.ndarray) -> np.ndarray:
    """Mean data gradients with their noise, (models, T, ...), from all iterates of the same shape, up to their sign."""
    ridge = 0.0 if isinstance(run.loss, Abstract) else linear_loss(run).ridge
    theta, gradients, rule = np.zeros_like(released[:, 0]), np.empty_like(released), run.rule
    memory = rule.init(theta)
    for k, step_size in enumerate(run.step_sizes):
        point = rule.point(theta, memory, k)
        remembered, _ = rule.update(np.zeros_like(theta), memory, theta, k)
        gradient = (point - released[:, k]) / step_size - remembered
        gradients[:, k] = ridge * point - gradient
        _, memory = rule.update(gradient, memory, theta, k)
        theta = released[:, k]
    return gradients


def along(run: Run, weight: np.ndarray, direction: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Scores (models,) from all iterates (models, T, k, d + 1); a record present makes them larger."""
    at = np.tensordot(released, direction, axes=direction.ndim)[:, :, None]
    return noisy_gradients(run, at)[:, :, 0] @ weight
