"""Conditions on the Langevin diffusion that a run's steps follow."""

from __future__ import annotations

import math

from lastiterate.run.facts import Fact, find_fact, require_fact
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    constant_step,
    full_batch,
    known_noise,
    last_iterate_only,
    no_prox,
    not_averaged,
    plain_updates,
    short_step,
    strongly_convex,
)
from lastiterate.theorems.theorem import Assumption, Satisfied, Violated


def _langevin(run: Run) -> Satisfied | Violated:
    if not run.one_temperature:
        return Violated(
            "it needs the same temperature sigma^2 at every step: use noise=Langevin(sigma)"
        )
    noise = known_noise.check(run)
    if isinstance(noise, Satisfied) and run.temperature <= 0:
        return Violated("the run adds no noise: use noise=Langevin(sigma)")
    return noise


langevin_noise = Assumption(
    "langevin_noise", "one temperature > 0: noise sqrt(2 step) sigma on the iterate", _langevin
)


def _gibbs_start(run: Run) -> Satisfied | Violated:
    strong = find_fact(run.facts(), "strong")
    if strong is None or strong.value <= 0:
        return Violated("the start N(0, 2 sigma^2 / strong) needs a strongly convex loss")
    noise = known_noise.check(run)
    if isinstance(noise, Violated):
        return noise
    wanted = math.sqrt(2 * run.temperature / strong.value)
    std = run.start.std
    if not math.isclose(std, wanted, rel_tol=1e-13):  # less than bounds are rounded up by
        return Violated(
            f"the start must be Gaussian with std sqrt(2 sigma^2 / strong) = {wanted:.6g}: "
            f"use start=GaussianStart({wanted!r})"
        )
    return Satisfied((strong,))


gibbs_start = Assumption(
    "gibbs_start", "start N(0, 2 sigma^2 / strong), projected on the domain", _gibbs_start
)


def _is_squared_norm(run: Run) -> Satisfied | Violated:
    facts = run.facts()
    smooth, strong = find_fact(facts, "smooth"), find_fact(facts, "strong")
    if smooth is None or strong is None or strong.value <= 0 or smooth.value != strong.value:
        return Violated(
            "it is proved for the squared norm |theta - x|^2 / 2 only, where smooth = strong"
        )
    if run.first_step * smooth.value >= 2:
        return Violated(f"the step size must lie below 2/smooth = {2 / smooth.value:g}")
    return Satisfied((smooth, strong))


squared_norm = Assumption(
    "squared_norm", "the squared norm loss: smooth = strong, step < 2/smooth", _is_squared_norm
)


def log_sobolev_constant(run: Run) -> tuple[float, tuple[Fact, ...]] | None:
    """Return a log-Sobolev constant of every distribution on the tracing diffusion: given, or by
    Lemma 5 of Chourasia et al."""
    given = find_fact(run.facts(), "log_sobolev")
    if given is not None:
        return (given.value, (given,)) if given.value > 0 else None
    checks = [
        assumption.check(run)
        for assumption in (langevin_noise, strongly_convex, short_step, gibbs_start)
    ]
    if any(isinstance(check, Violated) for check in checks):
        return None
    strong = require_fact(run.facts(), "strong")
    facts = tuple(fact for check in checks if isinstance(check, Satisfied) for fact in check.facts)
    return strong.value / (2 * run.temperature), facts


def find_constant(run: Run) -> float:
    """``log_sobolev_constant`` of a run for which the assumption holds."""
    pair = log_sobolev_constant(run)
    assert pair is not None
    return pair[0]


def _log_sobolev(run: Run) -> Satisfied | Violated:
    pair = log_sobolev_constant(run)
    if pair is None:
        return Violated(
            "no log-Sobolev constant is known: state log_sobolev=c, or satisfy Lemma 5 (strongly "
            "convex, "
            "step < 1/smooth, start N(0, 2 sigma^2 / strong))"
        )
    return Satisfied(pair[1])


log_sobolev = Assumption(
    "log_sobolev",
    "a log-Sobolev constant of every distribution on the tracing diffusion",
    _log_sobolev,
)


# Algorithm 1 of Chourasia, Ye and Shokri (2021).

LANGEVIN_PAPER = (
    "Chourasia, Ye, Shokri: Differential privacy dynamics of Langevin diffusion and noisy gradient "
    "descent, "
    "NeurIPS 2021 (arXiv:2102.05855)"
)


LANGEVIN_ALGORITHM = (*NOISY_STEPS, full_batch, constant_step, langevin_noise, no_prox)
"""The assumptions of their Algorithm 1."""


LAST_ITERATE = (*LANGEVIN_ALGORITHM, last_iterate_only, plain_updates, not_averaged)
"""The same with a hidden state: only theta_K is released, by plain steps."""


# Algorithm 1 of Ryffel, Bach and Pointcheval (2022), for any batches.

SGLD_PAPER = (
    "Ryffel, Bach, Pointcheval: Differential privacy guarantees for stochastic gradient Langevin "
    "dynamics, 2022 "
    "(arXiv:2201.11980)"
)


SGLD_ALGORITHM = (
    *NOISY_STEPS,
    langevin_noise,
    last_iterate_only,
    plain_updates,
    not_averaged,
    no_prox,
)
"""The assumptions of their Algorithm 1, without those about batches."""


LSI = (*SGLD_ALGORITHM, log_sobolev)


STRONGLY_CONVEX = (*SGLD_ALGORITHM, strongly_convex, short_step, gibbs_start)


REFUTED = (
    "Refuted: a record that is drawn rarely is seen clearly when it is drawn (docs/theorems/sgld)."
)
