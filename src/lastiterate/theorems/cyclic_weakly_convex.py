"""Blocks in a public order, smooth losses that need not be convex, the last iterate, any domain.

epsilon(alpha) = alpha s^2/(2 v) ((E - 1) theta_L(l) + 1), s = eta sensitivity/b, v = (eta noise_std)^2, l blocks per
pass, E = ceil(T/l) passes started, theta_L(k) = L^(2k-2)/(1 + L^2 + ... + L^(2k-2)), L by Proposition 2.1: the worst
place of the record. It is the Renyi curve of mu-GDP, mu^2 = 2 epsilon(alpha)/alpha, and the pair is mu-GDP.

Source: Kong and Ribero 2025, Theorem 2.3, as restored and proved in docs/theorems/cyclic-weakly-convex (E counts a
pass that was only begun: floor(T/l) would be false). Regime: step <= 1/(M + m), half of it where clips can act.
"""

from __future__ import annotations

from lastiterate.analysis.step_map import step_map
from lastiterate.analysis.weakly_convex_shift import cyclic_mu, log_square
from lastiterate.curves.gdp import Gdp
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    constant_schedule,
    last_iterate_only,
    not_averaged,
    plain_updates,
    public_order,
)
from lastiterate.theorems.assumptions.weakly_convex import PAPER, weakly_convex_step
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Gdp:
    curvature = step_map(run)
    assert curvature is not None
    return Gdp(cyclic_mu(run, log_square(curvature, run.first_step)))


THEOREM = Theorem(
    name="cyclic-weakly-convex",
    kind="upper",
    citation=f"{PAPER}, Theorem 2.3 (docs/theorems/cyclic-weakly-convex)",
    formula="mu^2 = (s^2/v) ((ceil(T/l) - 1) theta_L(l) + 1); epsilon(alpha) = alpha mu^2 / 2",
    assumptions=(*NOISY_STEPS, last_iterate_only, public_order, plain_updates, not_averaged, constant_schedule,
                 weakly_convex_step),
    bound=_bound,
    remark="shifted-interpolation has the exact constant of the step and the optimal shifts, and is never worse.",
)
