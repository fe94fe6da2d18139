"""Runs that minimise an objective with a random linear term: what they may be combined with, and their numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lastiterate.errors import InputError
from lastiterate.run.batching import FullBatch
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import Logistic, Softmax
from lastiterate.run.noise import ObjectiveNoise
from lastiterate.run.starts import Fixed
from lastiterate.run.step_sizes import Constant

if TYPE_CHECKING:
    from lastiterate.run.run import Run

KEPT = 0.875
"""The part of the ridge that acceleration counts on; the rest absorbs errors of gradients."""


def check_perturbed(run: Run) -> None:
    """Refuse what a minimisation cannot be combined with: its steps have no noise, and only its end is released."""
    if type(run.noise) is not ObjectiveNoise:
        return
    for name, value, allowed in (("loss", run.loss, (Logistic, Softmax)), ("batching", run.batching, (FullBatch,)),
                                 ("step_size", run.step_size, (Constant,)), ("domain", run.domain, (Everywhere,)),
                                 ("start", run.start, (Fixed,)), ("prox", run.prox, (type(None),)),
                                 ("clip", run.clip, (type(None),)), ("momentum", run.momentum, (type(None),))):
        if type(value) not in allowed:
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
            raise InputError(name, f"must be {names} where the objective is perturbed", type(value).__name__,
                             "the minimiser of one convex objective of a classifier is released")
    if run.release != "last":
        raise InputError("release", "must be 'last' where the objective is perturbed", run.release,
                         "what the solver visits on its way has no noise")
    assert run.loss.outputs is not None
    if run.noise.parameters % run.loss.outputs or run.noise.parameters < 2 * run.loss.outputs:
        raise InputError("parameters", f"must be {run.loss.outputs} outputs times the columns of a row",
                         run.noise.parameters, "count the features and the intercept")


def linear_term(run: Run) -> float:
    """Standard deviation of every entry of the random linear term of the summed objective."""
    assert isinstance(run.noise, ObjectiveNoise) and run.noise_unit is not None
    return run.noise.z * run.noise_unit


def last_noise(run: Run) -> float:
    """Standard deviation of what is added to every entry of the minimiser."""
    assert isinstance(run.noise, ObjectiveNoise)
    return run.noise.last * linear_term(run) / (run.n * run.loss.facts().fact("smooth"))


def contraction(run: Run) -> float:
    """a = sqrt(step ``KEPT`` ridge): what accelerated steps take off the distance to the optimum, in squares."""
    return math.sqrt(run.first_step * KEPT * run.loss.facts().fact("strong"))


def look_ahead(run: Run) -> float:
    """The part of the last step that an accelerated step goes on before it takes the gradient."""
    a = contraction(run)
    return (1 - a) / (1 + a)
