"""Secret blocks drawn anew in every pass by the exact pairs of single passes, whatever is released.

delta(eps) = H_eps(prod_e P_e || prod_e Q_e), the larger of both orders, P_e = (1/l) sum_j N(e_j / z_e, I) against Q_e =
N(0, I), z_e the least noise multiplier of pass e. A pass that ends after r of its l blocks uses the record with
probability r/l. Likelihood ratios and losses are rounded on grids with their means preserved.

Source: docs/theorems/random-allocation. Regime: any loss, any schedule (many different noises are rounded down to a
few); zero-out or add-remove. In every case computed it needs no more noise than Poisson batches of that expected size.
"""

from __future__ import annotations

from lastiterate.analysis.sampled_steps import allocated_passes
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    fresh_blocks,
    not_replace_one,
)
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="random-allocation-pld",
    kind="upper",
    citation="this project, docs/theorems/random-allocation (with Zhu, Dong, Wang 2022, Theorem 10; Feldman, Shenfeld "
             "2026, arXiv:2602.17284, on the same scheme)",
    formula="delta(eps) = H_eps(prod_e (1/l) sum_j N(e_j / z_e, I) || prod_e N(0, I)), the larger of both orders, "
            "z_e = the least noise_std of pass e times b / sensitivity",
    assumptions=(*NOISY_STEPS, fresh_blocks, not_replace_one),
    bound=allocated_passes,
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)
