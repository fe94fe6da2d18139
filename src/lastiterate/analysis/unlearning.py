"""Distance of two last iterates of which one never saw certain records, where late steps are
without them.

Both are trained with the same draws and then continued alike on the records that stay: during the
training the records to be forgotten move it, in the steps after the last request they do not.
Distances contract, and the noise of all steps hides the remaining distance: the optimal allocation
of shifts of one long run. Proof: docs/theorems/forgetting.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from lastiterate.analysis import perturbed_objective
from lastiterate.analysis.block_positions import latest_shift
from lastiterate.analysis.restarted_sampling import LastSteps, distances_of_draws, last_steps
from lastiterate.analysis.shifts import best_restart, optimal_mu
from lastiterate.curves.curve import BestOf, Curve, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.adjacency import single_record_adjacency
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.methods import NORM_SLACK, RidgeMinimiser, last_noise, minimiser_of
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

FAILURES = (1e-30, 1e-20, 1e-12, 1e-9, 1e-7)
"""Probabilities that batches are larger than usual, or that a record is drawn more often."""
UP = 1 + 1e-9
"""Above the rounding of a few operations."""
Training = Run | RidgeMinimiser


@dataclass(frozen=True)
class Continued:
    """Steps from the weights before them, on the data without ``removed`` more records."""

    run: Run
    removed: int


@dataclass(frozen=True, eq=False)
class StepConstants:
    """Constants of some steps: ``c``, Lipschitz constants; ``s``, how far apart one record moves
    them; ``v``, variances of their noise; each of shape (steps,). ``before``: how far apart the
    record moved the iterates before them."""

    c: Array
    s: Array
    v: Array
    before: float = 0.0


def forgotten_curve(training: Training, requests: tuple[Continued, ...]) -> Curve:
    """The curve between the last weights and those of the same procedure without all removed
    records; both orders.

    What a private preparation of the training released is taken as given.
    """
    curves = [
        _curve(training, requests, failure)
        for failure in (FAILURES if _has_random_batches(training, requests) else (0.0,))
    ]
    curve = curves[0] if len(curves) == 1 else BestOf(tuple(curves))
    if isinstance(training, Run) and minimiser_of(
        training.method
    ):  # the solver's distance holds for usual terms
        return WithFailure(curve, perturbed_objective.FAILURE)
    return curve


def _has_random_batches(training: Training, requests: tuple[Continued, ...]) -> bool:
    """Whether sizes of batches, or how often a record takes part, are random."""
    runs = [part.run for part in requests] + ([training] if isinstance(training, Run) else [])
    return any(run.batching.sizes == "random" or run.batching.drawn == "each step" for run in runs)


def _curve(training: Training, requests: tuple[Continued, ...], failure: float) -> Curve:
    total = sum(part.removed for part in requests)
    each = failure / (len(requests) + 1)
    parts, present = [_curve_of_training(training, total, each)], [total]
    for part in requests:
        present.append(present[-1] - part.removed)
        parts += [_initial_moves(part.run), _steps(part.run, each)]
        present.append(present[-1])
    c = np.concatenate([part.c for part in parts])
    s = np.concatenate([part.s * count for part, count in zip(parts, present, strict=True)])
    v = np.concatenate([part.v for part in parts])
    begun = present[0] * parts[0].before
    diameter = _diameter(training, requests)
    mu = (
        optimal_mu(c, s, v, min(begun, diameter))
        if math.isfinite(min(begun, diameter))
        else math.inf
    )
    if math.isfinite(diameter):
        mu = min(mu, best_restart(c, s, v, diameter))
    return WithFailure(Gdp(mu), failure) if failure else Gdp(mu)


def _diameter(training: Training, requests: tuple[Continued, ...]) -> float:
    """Return the diameter of the domain, where all steps are projected onto the same one."""
    first = None if isinstance(training, RidgeMinimiser) else training.domain
    domains = {first, *(part.run.domain for part in requests)}
    return requests[0].run.domain.diameter() if len(domains) == 1 else math.inf


def _initial_moves(run: Run) -> StepConstants:
    """Noise on the weights before the first step: a step that moves nothing."""
    return StepConstants(np.ones(1), np.zeros(1), np.array([run.start.std**2]))


def _curve_of_training(training: Training, total: int, failure: float) -> StepConstants:
    """Return the moves of a training by one of ``total`` records."""
    if isinstance(training, RidgeMinimiser):
        facts = training.loss.facts()
        moved = facts.fact("lipschitz") * (1 + NORM_SLACK) / training.n / facts.fact("strong")
        return _curve_of_end(moved + 2 * training.residual / facts.fact("strong") / total, 0.0)
    if minimiser_of(training.method) is not None:
        facts = training.loss.facts()
        moved = facts.fact("lipschitz") * (1 + FLOAT_SLACK) / training.n / facts.fact("strong")
        return _curve_of_end(
            moved + 2 * perturbed_objective.distance(training) / total,
            last_noise(training.method, training),
        )
    if training.batching.drawn != "each step":
        return _steps(training, failure)
    steps = _curve_of_last_steps(training, failure / 2)
    rate = training.sampling_rate
    apart = distances_of_draws(rate, total)(steps, failure / 2, np.array([steps.c.size]))
    return _curve_of_end(float(np.exp(apart)[0]) / total, 0.0)


def _curve_of_end(apart: float, std: float) -> StepConstants:
    """Weights that one record moves by ``apart`` at most, whatever lies before, with noise of
    ``std`` on them."""
    return StepConstants(np.zeros(1), np.array([apart * UP]), np.array([std**2]))


def _curve_of_last_steps(run: Run, failure: float) -> LastSteps:
    """The run's last steps for a record that is zeroed, with batches of usual sizes."""
    alone = replace(run, adjacency=single_record_adjacency(run.adjacency))
    chance = run.batching.inclusion_probability(run.n) or 1 / run.blocks
    return last_steps(
        alone, chance, failure, run.blocks, None if run.batching.sizes == "random" else run.shares
    )


def _steps(run: Run, failure: float) -> StepConstants:
    """Return moves in which every pass counts a record at its worst position, at the pass's end."""
    steps = _curve_of_last_steps(run, failure)
    s = np.zeros_like(steps.s)
    for begin in range(0, s.size, run.blocks):
        last = min(begin + run.blocks, s.size) - 1
        s[last] = latest_shift(steps.c, steps.s, begin, last)
    return StepConstants(steps.c, s, steps.v, steps.before)
