"""Secret blocks drawn anew in every pass, the last iterate: early passes contract, late ones are sampled.

For a restart after pass r and a share beta in (0, 1): delta(eps) is at most that of the later passes by their exact
pairs with noise sqrt(beta) nu, composed with a Gaussian mechanism mu,
mu^2 = z_r^2 prod c^2 / ((1 - beta) sum_t v_t prod_(u > t) c_u^2), z_r = the largest distance that the record causes in
the passes before (or the diameter of the domain), plus the probability that blocks are not of usual size. The best of
several r, beta and sizes; r = 0 is random-allocation-pld.

Source: docs/theorems/restarted-sampling. Regime: any smooth loss; it wins where steps contract or the domain is small.
"""

from __future__ import annotations

from lastiterate.analysis.restart import distances_of_passes, restarted
from lastiterate.analysis.sampled_steps import allocated_passes
from lastiterate.curves.curve import Curve
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    counted_records,
    fresh_blocks,
    last_iterate_only,
    no_prox,
    not_averaged,
    not_replace_one,
    plain_updates,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Curve:
    return restarted(run, chance=1 / run.blocks, every=run.blocks, distances=distances_of_passes(run.blocks),
                     curve=lambda run, at: allocated_passes(run, at.first, at.share, at.mu))


THEOREM = Theorem(
    name="restarted-allocation-pld",
    kind="upper",
    citation="this project, docs/theorems/restarted-sampling (on Bok, Su, Altschuler 2024, and "
             "docs/theorems/random-allocation)",
    formula="delta(eps) = H_eps(prod_(e > r) (1/l) sum_j N(e_j / (z_e sqrt(beta)), I) x N(mu, 1) || "
            "prod_e N(0, I) x N(0, 1)) + P[unusual blocks]",
    assumptions=(*NOISY_STEPS, last_iterate_only, fresh_blocks, counted_records, not_replace_one,
                 plain_updates, not_averaged, no_prox, lipschitz_step),
    bound=_bound,
)
