"""The last iterate by the optimal allocation of shifts, for any schedule, full batch or blocks in public order.

z_0 = 0, z_t = c_t z_{t-1} + s_t - a_t >= 0, z_T = 0 (or restart at z_tau = diameter of the domain):
mu^2 = min sum_t a_t^2 / v_t, with c_t the Lipschitz constant of step t, s_t = eta_t sensitivity / b where the record
participates, v_t = (eta_t noise_std_t)^2; the worst place of the record.

Source: Bok, Su, Altschuler 2024 (arXiv:2403.00278), shifted interpolation; for variable steps, noises and Lipschitz
constants and its exact optimum docs/theorems/shifted-interpolation. Regime: any step; beyond 2/smooth maps expand.
"""

from __future__ import annotations

from lastiterate.analysis.block_places import place_mus
from lastiterate.curves.gdp import Gdp
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    last_iterate_only,
    not_averaged,
    plain_updates,
    public_order,
)
from lastiterate.theorems.assumptions.geometry import lipschitz_step
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="shifted-interpolation",
    kind="upper",
    citation="Bok, Su, Altschuler: Shifted interpolation for differential privacy, ICML 2024 (arXiv:2403.00278), "
             "generalised in docs/theorems/shifted-interpolation",
    formula="mu^2 = min sum_t a_t^2 / v_t over z_t = c_t z_{t-1} + s_t - a_t >= 0, z_0 = 0 (or restart at D), z_T = 0",
    assumptions=(*NOISY_STEPS, last_iterate_only, public_order, plain_updates, not_averaged, lipschitz_step),
    bound=lambda run: Gdp(float(place_mus(run).max())),
)
