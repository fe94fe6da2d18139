"""Poisson batches by privacy loss distributions: the numerically exact composition of the dominating pair.

delta(eps) = H_eps(prod_t P_t || prod_t Q_t), P_t = (1 - q) N(0, z_t^2) + q N(1, z_t^2), Q_t = N(0, z_t^2), the larger
of both orders, on a grid of privacy losses rounded to the safe side.

Source: Zhu, Dong, Wang 2022 (arXiv:2106.08567), Theorems 10 and 11; Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022
(arXiv:2207.04380) for the grid, as dp-accounting computes it. Regime: any loss, any schedule (many different noises are
rounded down to a few); zero-out or add-remove. See docs/theorems/poisson.
"""

from __future__ import annotations

from lastiterate.analysis.sampled_steps import poisson_steps
from lastiterate.theorems.assumptions.basic import POISSON_STEPS
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="poisson-pld",
    kind="upper",
    citation="Zhu, Dong, Wang: Optimal accounting of differential privacy via characteristic function, AISTATS 2022 "
             "(arXiv:2106.08567), Theorems 10 and 11, through dp-accounting (docs/theorems/poisson)",
    formula="delta(eps) = H_eps(prod_t (1 - q) N(0, z_t^2) + q N(1, z_t^2) || prod_t N(0, z_t^2)), the larger of both "
            "orders, z_t = noise_std_t q n / sensitivity",
    assumptions=POISSON_STEPS,
    bound=poisson_steps,
    remark="Holds for any loss, with momentum, and when all iterates are released.",
)
