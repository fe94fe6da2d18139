"""Plans for forgetting records: the least noise that a budget allows, and the steps after it, by
public numbers alone.

Steps without noise after the last noise change nothing of the guarantee, and take the noise away
wherever the loss is curved. So a model that was trained without noise gets all of it before the
first step. One that was trained with noise continues with as much noise at every step, so that
everybody else stays protected, and gets more before the first step only where that is not enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from lastiterate.accounting.certificate import Certificate, account
from lastiterate.accounting.certificate_subject import format_rounded_up
from lastiterate.accounting.unlearning import NOT_OTHERS, Unlearning, check_training
from lastiterate.analysis.restarted_sampling import LONGEST
from lastiterate.analysis.unlearning import Continued, Training
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve
from lastiterate.curves.roots import smallest_true
from lastiterate.errors import InputError, NotCertified
from lastiterate.planning.task import budget
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import Batching, Cyclic, FullBatch
from lastiterate.run.domains import Everywhere
from lastiterate.run.methods import NoisySGD
from lastiterate.run.noise import GradientNoise
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, FixedStart, GaussianStart, InverseDecay, StepSize
from lastiterate.run.validation import Array, check_integer

PASSES = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80)
"""Passes over the data that are tried, fewest first."""
BLOCKS = (1, 10, 30, 100, 300, 1000, 3000)
"""Blocks of a pass that are tried, where the training does not say how many."""
FEWEST = 8
"""Records of a block at least."""
GOOD = 5e-4
"""Predicted excess loss (nats) below which fewer passes are preferred."""
SPREAD = 0.25
"""The expected square of a record's gradient at the optimum, relative to the square of its bound.
"""
DIRECTIONS = 48
"""Points of the public spectrum at which a prediction is computed."""
TOLERANCE = 1e-4
"""Relative, of the noise that is found."""


@dataclass(frozen=True)
class ForgettingPlan:
    """The executed plan of a request, and its predictions.

    ``passes``: over the data; ``excess``: of the loss, in nats; ``retraining``: passes that
    training from the beginning took, or is predicted to take for an excess of its own of at most
    ``GOOD`` (``None``: more than any that is tried).
    """

    certificate: Certificate
    passes: float
    excess: float
    retraining: int | None

    @property
    def subject(self) -> Unlearning:
        subject = self.certificate.subject
        assert isinstance(subject, Unlearning)
        return subject

    @property
    def run(self) -> Run:
        """The steps of this request."""
        return self.subject.requests[-1].run

    @property
    def worth_it(self) -> bool:
        """Whether it takes fewer passes than retraining."""
        return self.retraining is None or self.passes < self.retraining

    def everybody_else(self) -> Certificate | None:
        """Certify the steps of this request for the records that stay; ``None`` where they are
        without noise, and nothing is promised."""
        return private(self.run)


def certify_others(subject: Unlearning) -> Curve | None:
    """The curve of a record that stays: of the training and of all steps since; ``None`` where one
    of them had no noise, and nothing is promised."""
    training = subject.training
    return together(
        private(training) if isinstance(training, Run) else None,
        *(private(part.run) for part in subject.requests),
    )


def describe_others(subject: Unlearning, delta: float) -> str:
    """What holds for the records that stay, in words."""
    curve = certify_others(subject)
    if curve is None:
        return (
            "nothing is promised: the training or steps since had no noise, or are about other "
            "neighbours"
        )
    return (
        f"epsilon {format_rounded_up(curve.epsilon(delta))} at delta {delta:g} "
        f"({subject.requests[-1].run.adjacency}) for the training and all steps since"
    )


def explain_caveat(text: str, certificate: Certificate, delta: float) -> str:
    """A caveat as people read it: of a model that forgot, with what holds for the others."""
    subject = certificate.subject
    if text != NOT_OTHERS or not isinstance(subject, Unlearning):
        return text
    return (
        f"the number {format_rounded_up(certificate.epsilon(delta))} says nothing about the records "
        f"that stay; for them: {describe_others(subject, delta)}"
    )


def plan_unlearning(
    training: Training,
    earlier: tuple[Continued, ...],
    removed: int,
    features: int,
    *,
    epsilon: float,
    delta: float,
    most: int = PASSES[-1],
) -> ForgettingPlan:
    """The steps that forget ``removed`` more records within (epsilon, delta) with the least
    predicted loss, in as few passes as serve it.

    ``features``: columns of a row; ``most``: passes at most. Errors: ``NotCertified`` where the
    training is not known to forget, or no noise suffices (a preparation that saw the records may
    cost more than the budget by itself).
    """
    budget(epsilon, delta)  # refuses what no budget can be
    check_integer("epochs", most)
    if isinstance(training, Run):
        check_training(training)
    best, chosen, std = math.inf, None, None
    for passes, runs in groupby(candidates(training), key=lambda pair: pair[0]):
        if passes > most or best <= GOOD:
            break
        for _, run in runs:
            if std is None or run.largest_noise > 0:
                std = least_noise(training, earlier, removed, run, epsilon, delta)
            shrunk, rest = predict_excess(run, features)
            if std**2 * shrunk + rest < best / 1.1:
                best, chosen = std**2 * shrunk + rest, (passes, _begun(run, std))
    if chosen is None:
        raise InputError(
            "n", f"makes epochs of more than {LONGEST} steps", training.n, "use larger batches"
        )
    passes, run = chosen
    certificate = Certificate(Unlearning(training, (*earlier, Continued(run, removed))))
    return ForgettingPlan(certificate, passes, best, count_retraining_passes(training, features))


def least_noise(
    training: Training,
    earlier: tuple[Continued, ...],
    removed: int,
    run: Run,
    epsilon: float,
    delta: float,
) -> float:
    """The least standard deviation of noise on the weights before the steps of ``run`` that keeps
    the budget."""

    def enough(std: float) -> bool:
        found = Certificate(Unlearning(training, (*earlier, Continued(_begun(run, std), removed))))
        return found.certifies(epsilon, delta) and found.epsilon(delta) <= epsilon

    if enough(0.0):
        return 0.0
    high = 1.0
    while not enough(high):
        high *= 8
        if high > 1e12:
            raise NotCertified(
                "no noise makes the model forget within this budget: what was prepared privately "
                "from "
                "the records costs more by itself, or distances are not bounded: ask for a larger "
                "epsilon, or train again"
            )
    low = high / 8
    while low > 1e-12 and enough(low):
        low, high = low / 8, low
    return smallest_true(enough, low, high, TOLERANCE)


def _begun(run: Run, std: float) -> Run:
    return replace(run, start=GaussianStart(std) if std > 0 else FixedStart())


def candidates(training: Training) -> Iterator[tuple[int, Run]]:
    """Passes and steps that may follow a training; those of a noisy one are like its own last
    steps."""
    loss, n = training.loss, training.n
    smooth = loss.facts().fact("smooth")
    noisy = (
        isinstance(training, Run)
        and type(training.method) is NoisySGD
        and training.largest_noise > 0
    )
    domain = training.domain if isinstance(training, Run) else Everywhere()
    for passes in PASSES:
        for batching in _batchings(training, noisy):
            steps = passes * batching.blocks(n)
            if steps > LONGEST:
                continue
            for size in _sizes(training, noisy, smooth):
                std = _tail(training, steps) if isinstance(training, Run) and noisy else 0.0
                yield (
                    passes,
                    Run(
                        n=n,
                        steps=steps,
                        step_size=size,
                        noise=GradientNoise(std),
                        batching=batching,
                        loss=loss,
                        clip=training.clip if isinstance(training, Run) else None,
                        domain=domain,
                        adjacency=_adjacency(training, batching),
                    ),
                )


def _adjacency(training: Training, batching: Batching) -> Adjacency:
    """The training's, so that what both cost a record that stays is about the same neighbours,
    where it is defined."""
    wanted = training.adjacency if isinstance(training, Run) else "zero-out"
    return wanted if wanted in batching.adjacencies else "zero-out"


def _tail(training: Run, steps: int) -> float | tuple[float, ...]:
    """The noise of the training's last steps: one number where it is the same."""
    stds = training.noise_stds[-steps:]
    stds = np.concatenate((np.full(steps - stds.size, training.noise_stds[0]), stds))
    return float(stds[0]) if (stds == stds[0]).all() else tuple(stds.tolist())


def _batchings(training: Training, noisy: bool) -> tuple[Batching, ...]:
    if isinstance(training, Run) and noisy:
        kept = training.batching.drawn != "each step"
        return (
            training.batching if kept else Cyclic(min(training.n, math.ceil(training.divisor))),
        )
    sizes = {max(FEWEST, -(-training.n // blocks)) for blocks in BLOCKS}
    return tuple(
        FullBatch() if size >= training.n else Cyclic(size) for size in sorted(sizes, reverse=True)
    )


def _sizes(training: Training, noisy: bool, smooth: float) -> tuple[StepSize, ...]:
    """Steps of 1/smooth, that may fall as strong convexity allows."""
    if isinstance(training, Run) and noisy:
        return (Constant(float(training.step_sizes[-1])),)
    ridge = training.loss.ridge
    return (
        Constant(1 / smooth),
        *((InverseDecay(smooth / 2, ridge * times) for times in (1.0, 4.0)) if ridge else ()),
    )


def predict_excess(run: Run, features: int) -> tuple[float, float]:
    """The expected excess loss of noise of standard deviation 1 before the first step, and that of
    all else.

    On a quadratic with the curvature that rows of the loss's norm have if their second moments fall
    as 1/i.
    """
    h, count, share = _spectrum(run, features)
    left, later = _contract(run, h)
    eta, outputs = run.step_sizes, run.loss.outputs or 1
    sampled = 0.0 if run.blocks == 1 else SPREAD * run.facts().fact("lipschitz") ** 2 / run.divisor
    steps = ((eta * later) ** 2).sum(axis=1)
    noise = ((eta * run.noise_stds * later) ** 2).sum(axis=1)
    excess = float((count * h * (outputs * noise + sampled * share * steps)).sum()) / 2
    return float((count * h * outputs * left**2).sum()) / 2, excess


def count_retraining_passes(training: Training, features: int) -> int | None:
    """Return the passes that retraining would take: those of the run itself, or, where a solver
    found the minimiser, predicted like the steps of a request."""
    if isinstance(training, Run):
        return max(1, math.ceil(training.gradient_evaluations / training.n))
    first = math.log(max(2, training.loss.target_classes or 2))
    for passes, run in candidates(training):
        h, count, _ = _spectrum(run, features)
        left = float((count * _contract(run, h)[0] ** 2).sum() / count.sum())
        if first * left + predict_excess(run, features)[1] <= GOOD:
            return passes
    return None


def _spectrum(run: Run, features: int) -> tuple[Array, Array, Array]:
    """Return curvatures at some points, the number of directions that each represents, and each
    direction's share of the gradients."""
    edges = np.unique(np.round(np.geomspace(1, features + 1, DIRECTIONS + 1)).astype(int))
    count = np.diff(edges).astype(float)
    falling = np.concatenate((np.zeros(1), np.cumsum(1 / np.arange(1.0, features + 1))))
    share: Array = np.diff(falling[edges - 1]) / count / falling[-1]
    ridge = run.loss.ridge
    return ridge + (run.loss.facts().fact("smooth") - ridge) * share, count, share


def _contract(run: Run, h: Array) -> tuple[Array, Array]:
    """Return the factor of a displacement along each direction over all steps, and over those after
    every step."""
    factors: Array = np.abs(1 - np.outer(h, run.step_sizes)).astype(np.float64)
    later = np.cumprod(factors[:, ::-1], axis=1)[:, ::-1].astype(np.float64)
    return later[:, 0], np.concatenate((later[:, 1:], np.ones((h.size, 1))), axis=1)


def private(run: Run) -> Certificate | None:
    """Return the certificate of a run for every record; ``None`` where nothing certifies it."""
    certificate = account(run)
    return certificate if certificate.certifying and certificate.delta(1.0) < 1 else None


def together(*certificates: Certificate | None) -> Curve | None:
    """Return the curve of several releases for a record that stays, under the adjacency of the
    first; ``None`` where one of them promises nothing under it."""
    first = certificates[0]
    converted = [
        None if one is None or first is None else one.with_adjacency(first.adjacency)
        for one in certificates
    ]
    curves = [one.curve() for one in converted if one is not None and one.subject.curves]
    return compose(*curves) if len(curves) == len(certificates) else None
