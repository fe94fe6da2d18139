"""Poisson batches, the last iterate: what a drawn record adds is hidden by the noise of later steps, its draws stay
secret.

The steps are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of the later Lipschitz
constants, S_i = sum over J_i of s_t R_t B_t, B_t = 1 with probability q, and X_i = sum over J_i of v_t R_t^2: delta is
at most that of the pairs E N(S_{i-1} / sqrt(X_i), 1) against N(0, 1), i < m, and E N((S_{m-1} + S_m) / sqrt(X_m), 1)
against N(0, 1), composed, plus the probability that batches are not of usual size. The best of several choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins over many steps and where steps contract.
"""

from __future__ import annotations

from lastiterate.analysis.delayed_draws import delayed
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

THEOREM = Theorem(
    name="delayed-shifts-poisson",
    kind="upper",
    citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024; Mueller, Scarsini 2001)",
    formula="delta(eps) = H_eps(prod_i E N(S_{i-1} / sqrt(X_i), 1) || prod_i N(0, 1)) + P[unusual draws], "
            "S_i = sum of s_t R_t B_t, X_i = sum of v_t R_t^2 over interval i",
    assumptions=(*POISSON_STEPS, last_iterate_only, counted_records, plain_updates, not_averaged, no_prox,
                 lipschitz_step),
    bound=delayed,
)
