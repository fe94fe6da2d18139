"""Lower bound.

epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - e^{-eta m K}) on a quadratic of curvature m = strong.

Source: Chourasia et al. 2021, Theorem 3 (m = 1; rescaled time otherwise; it holds for eta m <= 1). The two laws are
Gaussians of equal covariance, so the pair is mu-GDP exactly and the Renyi bound is a bound on mu^2 / 2: its
(epsilon, delta) form is a lower bound too.
"""

from __future__ import annotations

import math

from lastiterate.analysis.langevin import decay, squared_ratio
from lastiterate.curves.gdp import Gdp
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import everywhere, fixed_start
from lastiterate.theorems.assumptions.geometry import short_step, strongly_convex
from lastiterate.theorems.assumptions.langevin import LAST_ITERATE, PAPER
from lastiterate.theorems.theorem import Theorem


def _bound(run: Run) -> Gdp:
    strong = known(run.facts(), "strong")
    assert strong is not None
    slope = squared_ratio(run) / (4 * strong.value) * decay(strong.value * run.first_step * run.steps)
    return Gdp(math.sqrt(2 * slope) * (1 - 1e-9))  # rounded down, by more than curves round up


THEOREM = Theorem(
    name="langevin-lower-bound",
    kind="lower",
    citation=f"{PAPER}, Theorem 3",
    formula="epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - exp(-eta m K)), some loss of the class",
    assumptions=(*LAST_ITERATE, everywhere, fixed_start, strongly_convex, short_step),
    bound=_bound,
)
