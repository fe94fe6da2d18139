"""Hoelder continuous gradients in a bounded domain: neither convexity nor smoothness, any blocks.

mu^2 = min sum_t a_t^2 / (eta noise_std)^2 over paths D = z_tau, ..., z_T = 0 (or from z_0 = 0) with
z_t = z_{t-1} + min(eta H z_{t-1}^l + eta sensitivity / b, 2 eta L) - a_t, a_t >= 0 (L if known).

Source: Chien and Li 2024 (arXiv:2410.01068), for the recursion; docs/theorems/bounded-domain for the proof and the
paths. Regime: 0 < l <= 1; the record counts at every step, whatever the order of the batches.
"""

from __future__ import annotations

from lastiterate.analysis.continuity import Modulus, scaled_mu
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    bounded_domain,
    constant_schedule,
    counted_batches,
    last_iterate_only,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import hoelder_gradient
from lastiterate.theorems.lipschitz_bounded_domain import largest_move
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Gdp:
    facts = run.facts()
    sensitivity, lipschitz = known(facts, "sensitivity"), known(facts, "lipschitz")
    assert sensitivity is not None
    eta = run.first_step
    growth, shift = eta * facts.fact("hoelder"), eta * sensitivity.value / run.divisor
    exponent = facts.fact("hoelder_exponent")
    if lipschitz is None:
        return Gdp(scaled_mu(Modulus(growth, exponent, shift), run))
    return Gdp(scaled_mu(Modulus(growth, exponent, shift, largest_move(run)), run))


THEOREM = Theorem(
    name="hoelder-bounded-domain",
    kind="upper",
    citation="Chien, Li: Convergent privacy loss of noisy-SGD without convexity and smoothness (arXiv:2410.01068), "
             "proved in docs/theorems/bounded-domain",
    formula="mu^2 = min sum_t a_t^2 / (eta noise_std)^2 over z_t = z_{t-1} + min(eta H z_{t-1}^l + "
            "eta sensitivity / b, 2 eta L) - a_t, from z_tau = D (or z_0 = 0) to z_T = 0",
    assumptions=(*NOISY_STEPS, last_iterate_only, counted_batches, plain_updates, not_averaged, constant_schedule,
                 bounded_domain, hoelder_gradient),
    bound=_bound,
)
