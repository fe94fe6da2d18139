"""Squared norm loss.

epsilon(alpha) = alpha S_g^2/((2 - eta m) m sigma^2 n^2) (1 - e^{-(2 - eta m) eta m K / 2}), m = smooth = strong.

Source: Chourasia et al. 2021, Corollary 2 (m = 1; rescaled time for other curvatures). The text at hand prints eta^2
for n^2 in the denominator; Theorem 2 with c = (2 - eta)/(2 sigma^2) gives n^2, and only that passes the exact check.
Proof: docs/theorems/langevin.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import decay, linear, squared_ratio
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import everywhere, fixed_start
from lastiterate.theorems.assumptions.diffusion import squared_norm
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Rdp:
    strong = known(run.facts(), "strong")
    assert strong is not None
    scaled = run.first_step * strong.value
    return linear(squared_ratio(run) / ((2 - scaled) * strong.value) * decay((2 - scaled) * scaled * run.steps / 2))


THEOREM = Theorem(
    name="langevin-squared-norm",
    kind="upper",
    citation=f"{PAPER}, Corollary 2 (with n^2 in the denominator; docs/theorems/langevin)",
    formula="epsilon(alpha) = alpha S_g^2 / ((2 - eta m) m sigma^2 n^2) (1 - exp(-(2 - eta m) eta m K / 2))",
    assumptions=(*LAST_ITERATE, everywhere, fixed_start, squared_norm),
    bound=_bound,
)
