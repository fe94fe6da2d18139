"""Secret blocks drawn anew in every pass, the last iterate: what a record adds is hidden by the noise of later steps,
its blocks stay secret.

The passes are cut into intervals J_1, ..., J_m, the last one a single step. With R_t the product of the later Lipschitz
constants and X_i = sum over J_i of v_t R_t^2, a pass with the intervals J_a, ..., J_b has the pair (1/l) sum over its
steps t in J_i of N(s_t R_t / sqrt(X_{i+1}) e_i, I) against N(0, I); the very last step is hidden by itself. delta is at
most that of all passes' pairs, composed, plus the probability that blocks are not of usual size. The best of several
choices.

Source: docs/theorems/delayed-shifts. Regime: any smooth loss; it wins where noise is little or steps contract.
"""

from __future__ import annotations

from lastiterate.analysis.delayed_blocks import delayed_blocks
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

THEOREM = Theorem(
    name="delayed-shifts-allocated",
    kind="upper",
    citation="this project, docs/theorems/delayed-shifts (on Bok, Su, Altschuler 2024; Mueller, Scarsini 2001)",
    formula="delta(eps) = H_eps(prod_e (1/l) sum_t N(s_t R_t / sqrt(X_{i+1}) e_i, I) || prod_e N(0, I)) + "
            "P[unusual blocks], X_i = sum of v_t R_t^2 over interval i",
    assumptions=(*NOISY_STEPS, last_iterate_only, fresh_blocks, counted_records, not_replace_one,
                 plain_updates, not_averaged, no_prox, lipschitz_step),
    bound=delayed_blocks,
)
