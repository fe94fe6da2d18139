"""Scores that are learned from pilot models or follow from the record's path through the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np

from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import KnownConstants
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import FixedStart

# Scores that are learned from pilot models: where two distributions differ that nobody has
# described.  All of them read flat features (models, p) of what is released: parameters, or what
# each step added. Models of the data set with the record are ``one``, without it ``two``.

Score = Callable[[np.ndarray], np.ndarray]
"""Features (models, p) to scores (models,), higher where the record seems present."""
NEIGHBOURS = 12
"""Columns in which nearest models are looked for."""
SMALL = 1e-9


def discriminant(one: np.ndarray, two: np.ndarray, shrink: float | None = None) -> Score:
    """Fisher's linear discriminant, its covariance shrunk towards its diagonal (by p / models where
    nothing is said).

    Directions in which noise is missing have next to no variance: with little shrinkage they are
    found.
    """
    gap, spread = one.mean(0) - two.mean(0), _pool_covariances(one, two)
    shrink = min(1.0, gap.size / len(one)) if shrink is None else shrink
    spread = (1 - shrink) * spread + shrink * np.diag(np.diag(spread))
    scale = max(float(np.diag(spread).mean()), 1e-300)
    direction = cast(np.ndarray, np.linalg.solve(spread + SMALL * scale * np.eye(gap.size), gap))
    return lambda features: features @ direction


def likelihood(one: np.ndarray, two: np.ndarray) -> Score:
    """Log likelihood ratio of Gaussians with the pilot's means and covariances (variances alone for
    many columns)."""
    full = one.shape[1] ** 2 < len(one)
    laws = [_gaussian(part, full=full) for part in (one, two)]
    return lambda features: laws[0](features) - laws[1](features)


def coordinate(one: np.ndarray, two: np.ndarray) -> Score:
    """The single column whose mean, or whose spread around the middle, differs most between the
    data sets."""
    count, both = min(len(one), len(two)), np.concatenate((one, two))
    middle, size = np.median(both, axis=0), np.maximum(both.std(0), 1e-300)
    candidates: list[tuple[float, int, bool, float]] = []
    for squared in (False, True):
        parts = [((part - middle) / size) ** (2 if squared else 1) for part in (one, two)]
        gap = parts[0].mean(0) - parts[1].mean(0)
        spread = np.sqrt((parts[0].var(0) + parts[1].var(0)) / count) + SMALL * np.abs(gap) + 1e-300
        best = int(np.abs(gap / spread).argmax())
        candidates.append(
            (float(np.abs(gap / spread)[best]), best, squared, float(np.sign(gap[best]) or 1.0))
        )
    _, column, squared, sign = max(candidates)

    def score(features: np.ndarray) -> np.ndarray:
        at = (features[:, column] - middle[column]) / size[column]
        return sign * (np.abs(at) if squared else at)

    return score


def outside(one: np.ndarray, two: np.ndarray) -> Score:
    """How far a model lies outside of all pilot models without the record, less how far outside of
    those with it.

    Noise of bounded size, or of another distribution than the Gaussian, shows in the tails alone.
    """
    ends = [(part.min(0), part.max(0)) for part in (one, two)]
    size = np.maximum(np.concatenate((one, two)).std(0), 1e-300)

    def beyond(features: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.maximum((low - features) / size, (features - high) / size).max(axis=1)

    return lambda features: (
        np.maximum(beyond(features, *ends[1]), 0) - np.maximum(beyond(features, *ends[0]), 0)
    )


def nearest(one: np.ndarray, two: np.ndarray) -> Score:
    """How much nearer, column by column, the nearest pilot model with the record is than the
    nearest without it.

    Noise of few different values, or from few different keys, repeats what pilot models showed.
    """
    columns = np.argsort(-np.concatenate((one, two)).std(0))[:NEIGHBOURS]
    held = [np.sort(part[:, columns], axis=0) for part in (one, two)]
    size = np.maximum(np.concatenate((one, two))[:, columns].std(0), 1e-300)

    def score(features: np.ndarray) -> np.ndarray:
        with_record, without = (
            np.stack([_gap(part[:, j], features[:, c]) / size[j] for j, c in enumerate(columns)])
            for part in held
        )
        return (np.log(without + SMALL) - np.log(with_record + SMALL)).mean(0)

    return score


def _gap(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    place = np.searchsorted(known, values)
    below, above = known[np.maximum(place - 1, 0)], known[np.minimum(place, len(known) - 1)]
    return np.minimum(np.abs(values - below), np.abs(values - above))


def _pool_covariances(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return (np.cov(one.T, ddof=1) + np.cov(two.T, ddof=1)).reshape(one.shape[1], one.shape[1]) / 2


def _gaussian(part: np.ndarray, *, full: bool) -> Score:
    """Return the log density, up to a constant that both distributions share."""
    mean, scale = part.mean(0), max(float(part.var()), 1e-300)
    if not full:
        variance = part.var(0) + SMALL * scale
        return lambda features: -0.5 * ((features - mean) ** 2 / variance + np.log(variance)).sum(1)
    spread = np.cov(part.T, ddof=1).reshape(mean.size, mean.size) + SMALL * scale * np.eye(
        mean.size
    )
    root = np.linalg.cholesky(np.linalg.inv(spread))
    log_size = float(np.linalg.slogdet(spread)[1])
    return lambda features: -0.5 * ((((features - mean) @ root) ** 2).sum(1) + log_size)


# The attack on a run that releases all iterates: what each step added along the direction of the
# record's gradient.  theta_{k+1} = point_k - eta_k (data gradients / b + ridge point_k + noise_k +
# what momentum remembers): of two iterates (three with momentum) the noisy mean gradient can be
# read off. Where data gradients are constant, as on the tight pair of squared error, its weighted
# sum over the steps is the whole trajectory's likelihood ratio.

NAME = "trajectory"


def readable(run: Run) -> bool:
    """Whether a step's gradient can be read off the iterates: no projection or proximal map between
    them, and noise of its own."""
    assert run.noise is not None
    return (
        run.release == "all"
        and run.prox is None
        and isinstance(run.domain, Everywhere)
        and run.method.noisy_steps
        and run.rule.linear
    )


def weights(run: Run, record: int) -> np.ndarray:
    """Weight of every step, (T,): one over noise variance; zero where the record does not take
    part. Of correlated noise C^{-1} Z: C'C times where it does.
    """
    if not readable(run):
        raise InputError(
            "attack",
            "'trajectory' needs all iterates, without a domain",
            run.release,
            "take 'projection', or audit a run with release='all'",
        )
    steps = np.arange(run.steps)
    seen = (steps > 0) | isinstance(run.start, FixedStart)  # a start is not released
    uses = run.reads(record).astype(float)
    column = run.decided_noise.column(
        run.steps
    )  # the noise is C^{-1} Z: the draws are moved by C times the uses
    moved = np.convolve(column, uses)[: run.steps]
    return (
        seen
        * np.convolve(column, moved[::-1])[: run.steps][::-1]
        / np.maximum(run.noise_stds, 1e-300) ** 2
    )


def noisy_gradients(run: Run, released: np.ndarray) -> np.ndarray:
    """Mean data gradients with their noise, (models, T, ...), from all iterates of the same shape,
    up to their sign."""
    ridge = 0.0 if isinstance(run.loss, KnownConstants) else linear_loss(run).ridge
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


# How a record moves the last iterate, by theory: the run on a line, without noise, as the witnesses
# have it.

LONGEST = 200_000
"""Steps that are looked at, the last ones."""


def shift(run: Run, record: int) -> float:
    """How far a record whose gradient is always 1 lets the last iterate go against it.

    Steps that draw whether the record takes part count with its share. Curvature is the ridge's
    alone.
    """
    ridge = 0.0 if isinstance(run.loss, KnownConstants) else linear_loss(run).ridge
    first, eta = max(0, run.steps - LONGEST), run.step_sizes
    uses = run.reads(record)
    theta, rule = 0.0, run.rule
    memory = rule.init(theta)
    for k in range(first, run.steps):
        point = rule.point(theta, memory, k)
        direction, memory = rule.update(ridge * point - float(uses[k]), memory, theta, k)
        theta = point - float(eta[k]) * direction
    return float(theta)


def sign_of_shift(run: Run, record: int) -> float:
    """+1 where the record's gradient moves the last iterate against itself, as one step does; -1
    where steps beyond 2/smooth or momentum turn it round."""
    return -1.0 if shift(run, record) < 0 else 1.0
