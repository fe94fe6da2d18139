"""Lower bound.

epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - e^{-eta m K}) on a quadratic of curvature m = strong.

Source: Chourasia et al. 2021, Theorem 3 (m = 1; rescaled time otherwise; it holds for eta m <= 1). The two laws are
Gaussians of equal covariance, so the pair is mu-GDP exactly and the Renyi bound is a bound on mu^2 / 2: its
(epsilon, delta) form is a lower bound too. S_g is what the constants allow, without the allowance of upper bounds for
floating-point sums. Proof: docs/theorems/langevin.
"""

from __future__ import annotations

import math

from lastiterate.analysis.langevin_curves import decay
from lastiterate.analysis.witness_losses import largest_gradient
from lastiterate.curves.lower_bound import MixturePair
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import everywhere, fixed_start, released_as_left
from lastiterate.theorems.assumptions.geometry import short_step, strongly_convex
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> MixturePair:
    strong, gradient = known(run.facts(), "strong"), largest_gradient(run)
    assert strong is not None
    squared_ratio = ((gradient.ahead + gradient.behind) / run.n) ** 2 / run.temperature
    slope = squared_ratio / (4 * strong.value) * decay(strong.value * run.first_step * run.steps)
    return MixturePair.of_one(math.sqrt(2 * slope))


THEOREM = Theorem(
    name="langevin-lower-bound",
    kind="lower",
    citation=f"{PAPER}, Theorem 3 (docs/theorems/langevin)",
    formula="epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - exp(-eta m K)), some loss of the class",
    assumptions=(*LAST_ITERATE, released_as_left, everywhere, fixed_start, strongly_convex, short_step),
    bound=_bound,
)
