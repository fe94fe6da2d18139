"""Lower bound.

epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - e^{-eta m K}) on a quadratic of curvature m = strong.

Source: Chourasia et al. 2021, Theorem 3 (m = 1; rescaled time otherwise; it holds for eta m <= 1). The two laws are
Gaussians of equal covariance, so the pair is mu-GDP exactly and the Renyi bound is a bound on mu^2 / 2: its
(epsilon, delta) form is a lower bound too.
"""

from __future__ import annotations

import math

from lastiterate.assumptions import everywhere, fixed_start, known
from lastiterate.curve import Gdp
from lastiterate.geometry import short_step, strongly_convex
from lastiterate.run import Run
from lastiterate.theorem import Theorem
from lastiterate.theorems.langevin import LAST_ITERATE, PAPER, decay, squared_ratio


def _bound(run: Run) -> Gdp:
    strong = known(run.facts(), "strong")
    assert strong is not None
    slope = squared_ratio(run) / (4 * strong.value) * decay(strong.value * run.step_size.at(0) * run.steps)
    return Gdp(math.sqrt(2 * slope) * (1 - 1e-9))  # rounded down, by more than curves round up


THEOREM = Theorem(
    name="langevin-lower-bound",
    kind="lower",
    citation=f"{PAPER}, Theorem 3",
    formula="epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - exp(-eta m K)), some loss of the class",
    assumptions=(*LAST_ITERATE, everywhere, fixed_start, strongly_convex, short_step),
    bound=_bound,
)
