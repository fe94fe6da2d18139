"""Poisson batches, the last iterate: early steps contract, late ones are sampled.

For a restart at step r and a share beta in (0, 1): delta(eps) is at most that of the later sampled steps with noise
sqrt(beta) nu, composed with a Gaussian mechanism mu, mu^2 = z_r^2 prod c^2 / ((1 - beta) sum_t v_t prod_(u > t) c_u^2),
z_r = a bound on the distance that the record causes before (Chernoff over its draws, or the diameter of the domain),
plus the probabilities that it is farther and that batches are not of usual size. The best of several r, beta and
probabilities; r = 0 is poisson-pld.

Source: docs/theorems/restarted-sampling. Regime: any smooth loss; it wins where steps contract or the domain is small.
"""

from __future__ import annotations

from lastiterate.analysis.restart import distances_of_draws, restarted
from lastiterate.analysis.sampled_steps import poisson_steps
from lastiterate.curves.curve import Curve
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    POISSON_STEPS,
    counted_records,
    last_iterate_only,
    no_prox,
    not_averaged,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Curve:
    rate = run.batching.inclusion_probability(run.n)
    assert rate is not None
    return restarted(run, chance=rate, every=1, distances=distances_of_draws(rate),
                     curve=lambda run, at: poisson_steps(run, at.first, at.share, at.mu))


THEOREM = Theorem(
    name="restarted-poisson-pld",
    kind="upper",
    citation="this project, docs/theorems/restarted-sampling (on Bok, Su, Altschuler 2024, and Zhu, Dong, Wang 2022)",
    formula="delta(eps) = H_eps(prod_(t > r) (1 - q) N(0, beta z_t^2) + q N(1, beta z_t^2) x N(mu, 1) || "
            "prod_t N(0, beta z_t^2) x N(0, 1)) + P[unusual draws]",
    assumptions=(*POISSON_STEPS, last_iterate_only, counted_records, plain_updates, not_averaged, no_prox,
                 lipschitz_step),
    bound=_bound,
)
