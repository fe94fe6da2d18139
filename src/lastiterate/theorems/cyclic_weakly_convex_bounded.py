"""Blocks in a public order in a bounded domain: a bound that does not depend on the number of steps.

epsilon(alpha) = alpha mu^2/2, mu^2 v = (D + 2 eta C)^2 for any loss whose records' gradients are at most C, and
mu^2 v = (L D + s)^2 for smooth ones; v = (eta noise_std)^2, s = eta sensitivity/b, D the diameter, L by Proposition
2.1: the worst place of the record. With a ridge outside the records D becomes |1 - eta ridge| D in the first form. The
pair is mu-GDP.

Source: Kong and Ribero 2025, Theorem 2.2, as restored and proved in docs/theorems/cyclic-weakly-convex. Of the two
forms the one that rests on stronger facts counts; between equals the smaller.
"""

from __future__ import annotations

import math

from lastiterate.analysis.langevin_curves import ROUNDING
from lastiterate.analysis.step_map import step_map
from lastiterate.analysis.weakly_convex_shift import log_square
from lastiterate.curves.gdp import Gdp
from lastiterate.run.evidence import Evidence, Fact, weakest
from lastiterate.run.facts import FLOAT_SLACK, known
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    bounded_domain,
    constant_schedule,
    last_iterate_only,
    not_averaged,
    plain_updates,
    public_order,
)
from lastiterate.theorems.assumptions.weakly_convex import PAPER, weakly_convex_step
from lastiterate.theorems.theorem import Assumption, Broken, Held, Theorem

Spread = tuple[float, tuple[Fact, ...]]
"""Largest distance of the two states before the last noise, and the facts that it rests on."""


def _by_gradients(run: Run) -> Spread | None:
    lipschitz = known(run.facts(), "lipschitz")
    if lipschitz is None:
        return None
    eta, slack = run.first_step, 1 + FLOAT_SLACK if lipschitz.evidence >= Evidence.ENFORCED else 1.0
    kept = abs(1 - eta * run.loss.ridge) * run.domain.diameter()
    return kept + 2 * eta * lipschitz.value * slack, (lipschitz,)


def _by_smoothness(run: Run) -> Spread | None:
    if isinstance(held := weakly_convex_step.check(run), Broken):
        return None
    curvature, sensitivity, eta = step_map(run), known(run.facts(), "sensitivity"), run.first_step
    assert curvature is not None and sensitivity is not None
    grown = math.exp(log_square(curvature, eta) / 2) * run.domain.diameter()
    return grown + eta * sensitivity.value / run.divisor, (*held.facts, sensitivity)


def spread(run: Run) -> Spread | None:
    """The smaller of the two forms among those with the strongest facts."""
    if known(run.facts(), "sensitivity") is None:
        return None
    forms = [form for form in (_by_gradients(run), _by_smoothness(run)) if form is not None]
    return min(forms, key=lambda form: (-weakest(*form[1]), form[0]), default=None)


def _bounded_step(run: Run) -> Held | Broken:
    form = spread(run)
    if form is None:
        return Broken("it needs a bound on a record's gradient (clip=C or lipschitz=L), or a smooth loss (smooth=M) "
                      "and a step of at most 1/(M + m), half of it where clips can act")
    return Held(form[1])


bounded_step = Assumption("bounded_step", "bounded gradients of records, or a smooth loss and a short step",
                          _bounded_step)


def _bound(run: Run) -> Gdp:
    form, std = spread(run), run.first_noise
    assert form is not None
    return Gdp(form[0] / (run.first_step * std) * ROUNDING if std > 0 else math.inf)


THEOREM = Theorem(
    name="cyclic-weakly-convex-bounded",
    kind="upper",
    citation=f"{PAPER}, Theorem 2.2 (docs/theorems/cyclic-weakly-convex)",
    formula="mu^2 = min((D + 2 eta C)^2, (L D + s)^2) / v; epsilon(alpha) = alpha mu^2 / 2",
    assumptions=(*NOISY_STEPS, last_iterate_only, public_order, plain_updates, not_averaged, constant_schedule,
                 bounded_domain, bounded_step),
    bound=_bound,
    remark="D is the diameter, not the radius. The number of steps does not enter.",
)
