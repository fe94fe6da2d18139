"""What objective perturbation needs."""

from __future__ import annotations

import math

from lastiterate.analysis.perturbed_objective import distance
from lastiterate.run.facts import known
from lastiterate.run.methods import minimiser_of
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Assumption, Broken, Held

LONGEST = 16 / 17
"""Steps of the solver times smooth: what is left of 1/step absorbs errors of gradients."""


def _perturbed(run: Run) -> Held | Broken:
    if minimiser_of(run.method) is None:
        return Broken("it speaks of a random linear term of the objective, whose minimiser is released: use "
                      "method=PerturbedMinimiser(...)")
    return Held()


def _solved(run: Run) -> Held | Broken:
    if minimiser_of(run.method) is None:
        return Broken("it needs a solver that finds the minimiser of a perturbed objective")
    facts = run.loss.facts()
    smooth, strong, lipschitz = (known(facts, name) for name in ("smooth", "strong", "lipschitz"))
    assert smooth is not None and strong is not None and lipschitz is not None
    if strong.value <= 0:
        return Broken("without a ridge the perturbed objective may have no minimiser: add a ridge to the loss")
    if run.first_step * smooth.value > LONGEST:
        return Broken(f"the solver's steps must be at most 16/17 of 1/smooth = {1 / smooth.value:.4g}")
    if not math.isfinite(distance(run)):
        return Broken("double precision cannot bound the solver's error with so small a ridge: use a larger one")
    return Held((lipschitz, smooth, strong))


perturbed_objective = Assumption("perturbed_objective", "a random linear term of a classifier's objective, and its "
                                 "minimiser released", _perturbed, of_method=True)
solved_objective = Assumption("solved_objective", "a ridge, and steps of the solver below 16/17 of 1/smooth", _solved)
