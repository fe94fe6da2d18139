"""Noisy gradient descent, strongly convex.

epsilon(alpha) = alpha S_g^2/(lambda sigma^2 n^2) (1 - e^{-lambda eta K/2}).

Source: Chourasia et al. 2021, Corollary 1. Regime: eta < 1/beta, start projected N(0, 2 sigma^2/lambda I).
Proof: docs/theorems/langevin.
"""

from __future__ import annotations

from lastiterate.analysis.langevin_curves import decay, linear, squared_ratio
from lastiterate.curves.renyi import Rdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.diffusion import gibbs_start
from lastiterate.theorems.assumptions.geometry import short_step, strongly_convex
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Rdp:
    strong = known(run.facts(), "strong")
    assert strong is not None
    time = run.first_step * run.steps
    return linear(squared_ratio(run) / strong.value * decay(strong.value * time / 2))


THEOREM = Theorem(
    name="langevin-strongly-convex",
    kind="upper",
    citation=f"{PAPER}, Corollary 1 (docs/theorems/langevin)",
    formula="epsilon(alpha) = alpha S_g^2 / (lambda sigma^2 n^2) (1 - exp(-lambda eta K / 2))",
    assumptions=(*LAST_ITERATE, strongly_convex, short_step, gibbs_start),
    bound=_bound,
)
