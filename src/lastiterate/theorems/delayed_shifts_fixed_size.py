"""Batches of a fixed size, the last iterate: given the draws, what they add is hidden by the noise of later steps.

The steps are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of the later Lipschitz
constants, S_i = sum over J_i of s_t R_t B_t, B_t = 1 with probability b/n, and X_i = sum over J_i of v_t R_t^2:
delta(eps) is at most the mean over the draws of delta_mu(eps), mu^2 = sum over i < m of S_{i-1}^2 / X_i, and
(S_{m-1} + S_m)^2 / X_m. The best of several choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins where noise is little and steps are many, since
draws that are published need not be compared with another record that takes the place.
"""

from __future__ import annotations

from lastiterate.analysis.published_draws import averaged
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
    name="delayed-shifts-fixed-size",
    kind="upper",
    citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024)",
    formula="delta(eps) = E delta_mu(eps), mu^2 = sum_i S_{i-1}^2 / X_i, S_i = sum of s_t R_t B_t, X_i = sum of "
            "v_t R_t^2 over interval i",
    assumptions=(*NOISY_STEPS, sampled_batches, last_iterate_only, plain_updates, not_averaged, no_prox,
                 lipschitz_step, unmeasured_smoothness),
    bound=averaged,
)
