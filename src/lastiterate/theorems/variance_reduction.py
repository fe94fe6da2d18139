"""Variance-reduced steps (DP-SVRG): snapshots are Gaussian mechanisms, the steps between them sampled ones.

With S snapshots of n records, T - S other steps, noise multipliers r z and z, Poisson batches of rate q:

    delta(eps) = H_eps((N(1, (r z)^2) x ...)_S x ((1 - q) N(0, z^2) + q N(1, z^2) x ...)_(T - S) || the same at 0),

the larger of both orders, on a grid rounded to the safe side. What is released at a step decides how far differences
are clipped at the next one, and their noise is in units of that clip.

Source: docs/theorems/variance-reduction; the algorithm: Wang, Ye, Xu 2017, whose own noise is not published here.
Regime: linear models with a known smooth loss, Poisson batches; zero-out or add-remove.
"""

from __future__ import annotations

import math

from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.pld import Pld
from lastiterate.run.facts import known
from lastiterate.run.methods import snapshots_of
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import dp_accounting_installed, not_replace_one
from lastiterate.theorems.theorem import Assumption, Broken, Held, Theorem


def _snapshots(run: Run) -> Held | Broken:
    if snapshots_of(run.method) is None:
        return Broken("it speaks of steps that follow noisy snapshots and differences to them: use "
                      "method=VarianceReduced(...)")
    sensitivity = known(run.facts(), "sensitivity")
    assert sensitivity is not None, "linear models have one"
    return Held((sensitivity,))


snapshots_taken = Assumption("snapshots_taken", "steps that follow noisy gradients at snapshots, and noisy differences "
                             "to them over Poisson batches", _snapshots, of_method=True)


def _bound(run: Run) -> Curve:
    method = snapshots_of(run.method)
    assert run.noise_unit is not None and method is not None
    longer = max(1.0, run.facts().fact("sensitivity") / run.noise_unit)  # rounding, as sensitivities count it
    taken, rate = method.taken(run), run.batching.inclusion_probability(run.n)
    assert rate is not None
    mu = math.sqrt(taken) * longer / method.snapshot_multiplier(run) * UP
    between = run.steps - taken
    return Pld(rate, (method.difference_multiplier(run) / longer / UP,), (between,), mu=mu) if between else Gdp(mu)


THEOREM = Theorem(
    name="variance-reduction",
    kind="upper",
    citation="this project, docs/theorems/variance-reduction (the algorithm: Wang, Ye, Xu: Differentially private "
             "empirical risk minimization revisited: faster and more general, NeurIPS 2017)",
    formula="delta(eps) = H_eps of S Gaussian mechanisms of multiplier snapshot z and T - S Poisson-sampled ones of "
            "multiplier z, S = ceil(T / every)",
    assumptions=(snapshots_taken, not_replace_one, dp_accounting_installed),
    bound=_bound,
    remark="All iterates and snapshots are charged. The noise between snapshots shrinks with the way since the last.",
)
