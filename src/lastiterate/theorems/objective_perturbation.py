"""The minimiser of an objective with one random linear term: no steps to pay for.

theta = argmin sum_i loss_i + n ridge/2 |theta|^2 + <b, theta>, b ~ N(0, (z L)^2 I). With mu = 1/z, J = classes - 1
normals of correlation 1/2 (one for two classes), M the largest, D a bound on the logarithm of the quotient of the
Hessians' determinants and nu = 2 (distance to the minimiser) / (standard deviation of the noise on it),

    delta(eps) = E[delta_nu(eps - D - max(0, mu^2/2 + mu M))].

Source: Chaudhuri, Monteleoni and Sarwate 2011, and Kifer, Smith and Thakurta 2012, for the mechanism; this statement,
its composition and the solver's tolerance: docs/theorems/objective-perturbation. Regime: classifiers with a ridge.
"""

from __future__ import annotations

from lastiterate.analysis.perturbed_objective import FAILURE, last_mu, log_determinants
from lastiterate.curves.curve import UP
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.run.perturbed_minimiser import linear_term
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import not_replace_one
from lastiterate.theorems.assumptions.perturbed import perturbed_objective, solved_objective
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> PerturbedObjective:
    assert run.loss.target_classes is not None
    return PerturbedObjective(mu=run.facts().fact("lipschitz") / linear_term(run) * UP,
                              others=run.loss.target_classes - 1,
                              shift=log_determinants(run), gaussian=last_mu(run), failure=FAILURE)


THEOREM = Theorem(
    name="objective-perturbation",
    kind="upper",
    citation="this project, docs/theorems/objective-perturbation (the mechanism: Chaudhuri, Monteleoni, Sarwate: "
             "Differentially private empirical risk minimization, JMLR 12 (2011), arXiv:0912.0071, Algorithm 2)",
    formula="delta(eps) = E[delta_nu(eps - D - max(0, mu^2/2 + mu M))], mu = 1/z, D = sum_i log(1 + h_i / (n ridge)), "
            "nu = 2 tolerance / (n ridge last_std)",
    assumptions=(perturbed_objective, not_replace_one, solved_objective),
    bound=_bound,
    remark="No steps, no clipping: the solver is exact up to a public tolerance that is paid for.",
)
