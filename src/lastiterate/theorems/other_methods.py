"""Methods other than noisy steps: objective perturbation and variance reduction."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.analysis.perturbed_objective import FAILURE, last_mu, log_determinants
from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.curves.sampled_batches import Pld
from lastiterate.run.batching import FullBatch, Poisson
from lastiterate.run.facts import find_fact
from lastiterate.run.losses import Logistic
from lastiterate.run.methods import (
    ObjectivePerturbation,
    VarianceReduced,
    linear_term,
    snapshots_of,
)
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions import (
    dp_accounting_installed,
    not_replace_one,
    perturbed_objective,
    solved_objective,
)
from lastiterate.theorems.theorem import EXAMPLE, Assumption, Satisfied, Theorem, Violated, register


def _bound_objective_perturbation(run: Run) -> PerturbedObjective:
    assert run.loss.target_classes is not None
    return PerturbedObjective(
        mu=run.facts().fact("lipschitz") / linear_term(run) * UP,
        others=run.loss.target_classes - 1,
        shift=log_determinants(run),
        gaussian=last_mu(run),
        failure=FAILURE,
    )


OBJECTIVE_PERTURBATION = register(
    Theorem(
        name="objective-perturbation",
        kind="upper",
        family="last iterate",
        statement="""
The minimiser of an objective with one random linear term: no steps to pay for.

theta = argmin sum_i loss_i + n ridge/2 |theta|^2 + <b, theta>, b ~ N(0, (z L)^2 I). With mu = 1/z,
J = classes - 1 normals of correlation 1/2 (one for two classes), M the largest, D a bound on the
logarithm of the quotient of the Hessians' determinants and nu = 2 (distance to the minimiser) /
(standard deviation of the noise on it),

    delta(eps) = E[delta_nu(eps - D - max(0, mu^2/2 + mu M))].

Source: Chaudhuri, Monteleoni and Sarwate 2011, and Kifer, Smith and Thakurta 2012, for the
mechanism; this statement, its composition and the solver's tolerance:
docs/theorems/objective-perturbation. Regime: classifiers with a ridge.""",
        citation="this project, docs/theorems/objective-perturbation (the mechanism: Chaudhuri, "
        "Monteleoni, Sarwate: "
        "Differentially private empirical risk minimization, JMLR 12 (2011), arXiv:0912.0071, "
        "Algorithm 2)",
        formula="delta(eps) = E[delta_nu(eps - D - max(0, mu^2/2 + mu M))], mu = 1/z, D = sum_i "
        "log(1 + h_i / (n ridge)), "
        "nu = 2 tolerance / (n ridge last_std)",
        latex=r"\delta(\epsilon) = E\left[\delta_\nu(\epsilon - D - \max(0, \mu^2/2 + \mu "
        r"M))\right], \quad \mu = \frac{1}{z}, \quad D = \sum_i \log\left(1 + \frac{h_i}{n "
        r"\, \text{ridge}}\right), \quad \nu = \frac{2 \, \text{tolerance}}{n \, "
        r"\text{ridge} \, \text{last_std}}",
        assumptions=(perturbed_objective, not_replace_one, solved_objective),
        bound=_bound_objective_perturbation,
        example=replace(
            EXAMPLE,
            batching=FullBatch(),
            noise=NoiseMultiplier(2.0),
            method=ObjectivePerturbation(6, 0.3),
            loss=Logistic(ridge=0.01),
        ),
        remark="No steps, no clipping: the solver is exact up to a public tolerance that is paid "
        "for.",
    )
)


def _snapshots(run: Run) -> Satisfied | Violated:
    if snapshots_of(run.method) is None:
        return Violated(
            "it speaks of steps that follow noisy snapshots and differences to them: use "
            "method=VarianceReduced(...)"
        )
    sensitivity = find_fact(run.facts(), "sensitivity")
    assert sensitivity is not None, "linear models have one"
    return Satisfied((sensitivity,))


snapshots_taken = Assumption(
    "snapshots_taken",
    "steps that follow noisy gradients at snapshots, and noisy differences "
    "to them over Poisson batches",
    _snapshots,
    of_method=True,
)


def _bound_variance_reduction(run: Run) -> Curve:
    method = snapshots_of(run.method)
    assert run.noise_unit is not None and method is not None
    longer = max(
        1.0, run.facts().fact("sensitivity") / run.noise_unit
    )  # rounding, as sensitivities count it
    taken, rate = method.count_snapshots(run), run.sampling_rate
    mu = math.sqrt(taken) * longer / method.snapshot_multiplier(run) * UP
    between = run.steps - taken
    return (
        Pld(rate, (method.difference_multiplier(run) / longer / UP,), (between,), mu=mu)
        if between
        else Gdp(mu)
    )


VARIANCE_REDUCTION = register(
    Theorem(
        name="variance-reduction",
        kind="upper",
        family="last iterate",
        statement="""
Variance-reduced steps (DP-SVRG): snapshots are Gaussian mechanisms, the steps between them sampled
ones.

With S snapshots of n records, T - S other steps, noise multipliers r z and z, Poisson batches of
rate q:

    delta(eps) = H_eps((N(1, (r z)^2) x ...)_S x ((1 - q) N(0, z^2) + q N(1, z^2) x ...)_(T - S) ||
the same at 0),

the larger of both orders, on a grid rounded to the safe side. What is released at a step decides
how far differences are clipped at the next one, and their noise is in units of that clip.

Source: docs/theorems/variance-reduction; the algorithm: Wang, Ye, Xu 2017, whose own noise is not
published here. Regime: linear models with a known smooth loss, Poisson batches; zero-out or
add-remove.""",
        citation="this project, docs/theorems/variance-reduction (the algorithm: Wang, Ye, Xu: "
        "Differentially private "
        "empirical risk minimization revisited: faster and more general, NeurIPS 2017)",
        formula="delta(eps) = H_eps of S Gaussian mechanisms of multiplier snapshot z and T - S "
        "Poisson-sampled ones of "
        "multiplier z, S = ceil(T / every)",
        latex=r"\delta(\epsilon) = H_\epsilon \text{ of } S \text{ Gaussian mechanisms of "
        r"multiplier snapshot } z \text{ and } T - S \text{ Poisson-sampled ones of "
        r"multiplier } z, \quad S = \lceil T / \text{every} \rceil",
        assumptions=(snapshots_taken, not_replace_one, dp_accounting_installed),
        bound=_bound_variance_reduction,
        example=replace(
            EXAMPLE,
            batching=Poisson(0.1),
            noise=NoiseMultiplier(2.0),
            method=VarianceReduced(10, 10.0),
            loss=Logistic(),
        ),
        remark="All iterates and snapshots are charged. The noise between snapshots shrinks with "
        "the way since the last.",
    )
)
