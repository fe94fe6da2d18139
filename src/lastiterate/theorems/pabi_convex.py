"""Privacy amplification by iteration: convex, smooth losses, blocks in a public order, one pass or several.

epsilon(alpha) = alpha s^2/(2 v) ((E - 1)/l + 1), s = eta sensitivity/b, v = (eta noise_std)^2, l blocks per pass, E =
ceil(T/l) passes started: the worst place of the record. A record used k steps before the end of one pass has
alpha s^2/(2 v k). The pair is mu-GDP with mu^2 = 2 epsilon(alpha)/alpha.

Source: Feldman, Mironov, Talwar and Thakurta 2018, Theorem 23 (one pass) and Theorem 35 (l passes, b = 1), with the
proof for any number of passes and blocks in docs/theorems/cyclic-weakly-convex. Regime: step <= 2/smooth.
"""

from __future__ import annotations

from lastiterate.analysis.weakly_convex_shift import cyclic_mu
from lastiterate.curves.gdp import Gdp
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    constant_schedule,
    last_iterate_only,
    not_averaged,
    plain_updates,
    public_order,
)
from lastiterate.theorems.assumptions.geometry import convex, nonexpansive_step
from lastiterate.theorems.theorem import Theorem

THEOREM = Theorem(
    name="pabi-convex",
    kind="upper",
    citation="Feldman, Mironov, Talwar, Thakurta: Privacy amplification by iteration, FOCS 2018 (arXiv:1808.06651), "
             "Theorems 23 and 35 (docs/theorems/cyclic-weakly-convex)",
    formula="mu^2 = (s^2/v) ((ceil(T/l) - 1)/l + 1); epsilon(alpha) = alpha mu^2 / 2",
    assumptions=(*NOISY_STEPS, last_iterate_only, public_order, plain_updates, not_averaged, constant_schedule,
                 convex, nonexpansive_step),
    bound=lambda run: Gdp(cyclic_mu(run, log_square=0.0)),
)
