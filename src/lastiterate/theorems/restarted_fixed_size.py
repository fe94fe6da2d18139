"""Batches of a fixed size, the last iterate: early steps contract, late ones are sampled.

For a restart at step r and a share beta in (0, 1): delta(eps) is at most that of the later steps of
fixed-size-amplified with noise sqrt(beta) z_t / (1 + M k_t zeta_t / S), composed with a Gaussian mechanism mu, mu^2 =
zeta_r^2 prod c^2 / ((1 - beta) sum_t v_t prod_(u > t) c_u^2). zeta_r = a bound on the distance that the record causes
before (Chernoff over its draws, or the diameter of the domain), M = smoothness of one record's term, k_t zeta_t = the
part of the distance that shift t closes (replace-one: 2 zeta_t + 2 k_t zeta_t). The best of several r, beta and
probabilities; r = 0 is fixed-size-amplified.

Source: docs/theorems/restarted-fixed-size. It holds where Theorem 3.2 of Ryffel, Bach, Pointcheval 2022 does not.
Regime: any smooth loss; it wins where steps contract or the domain is small.
"""

from __future__ import annotations

from lastiterate.analysis.replaced_draws import restarted_subsets
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    last_iterate_only,
    no_prox,
    not_averaged,
    plain_updates,
    sampled_batches,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step, unmeasured_smoothness
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="restarted-fixed-size",
    kind="upper",
    citation="this project, docs/theorems/restarted-fixed-size (on Bok, Su, Altschuler 2024, and Balle, Barthe, "
             "Gaboardi 2018)",
    formula="fixed-size-amplified's pairs of steps t > r at noise sqrt(beta) z_t / (1 + M k_t zeta_t / S), x N(mu, 1) "
            "against N(0, 1); mu^2 = zeta_r^2 prod c^2 / ((1 - beta) sum v_t prod c^2); + P[unusual draws]",
    assumptions=(*NOISY_STEPS, sampled_batches, last_iterate_only, plain_updates, not_averaged, no_prox,
                 lipschitz_step, unmeasured_smoothness),
    bound=restarted_subsets,
)
