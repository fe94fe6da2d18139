"""The minimiser of an objective with a random linear term: what it may be combined with, and its numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.batching import FullBatch
from lastiterate.run.combined import allow, multiplier_of, only_single_rows
from lastiterate.run.derived_fields import Described
from lastiterate.run.domains import Everywhere
from lastiterate.run.fields import settle
from lastiterate.run.losses import Logistic, Softmax
from lastiterate.run.method import ReleaseMethod
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.starts import Fixed
from lastiterate.run.step_sizes import Constant
from lastiterate.run.validate import executable, whole

KEPT = 0.875
"""The part of the ridge that acceleration counts on; the rest absorbs errors of gradients."""


@final
@dataclass(frozen=True)
class PerturbedMinimiser(ReleaseMethod):
    """Noise is drawn once: a random linear term of the objective, whose minimiser is released (docs/theorems).

    The objective summed over records gets <b, theta>, b ~ N(0, (z L)^2 I) with L the loss's Lipschitz constant and z
    the run's ``NoiseMultiplier``. ``parameters``: how many weights the model has, intercepts included. ``last``: the
    minimiser, which is found up to a public tolerance, gets noise of standard deviation ``last`` z L / (n smooth)
    before it is released: a part of the least that b leaves in any direction, for n records and an objective that is
    ``smooth`` on average.
    """

    parameters: int
    last: float = 0.05
    hides_way: ClassVar[bool] = True

    def __post_init__(self) -> None:
        settle(self)
        whole("parameters", self.parameters, most=10**9)
        executable("last", self.last)

    @property
    def model_parameters(self) -> int:
        return self.parameters

    def check(self, run: Described) -> None:
        """Its steps have no noise, and only its end is released."""
        where, nothing = "where the objective is perturbed", (type(None),)
        allow(run, where, "the minimiser of one convex objective of a classifier is released", loss=(
            Logistic, Softmax), batching=(FullBatch,), step_size=(Constant,), domain=(Everywhere,), start=(Fixed,),
            prox=nothing, clip=nothing, update=nothing, noise=(NoiseMultiplier, type(None)))
        if run.release != "last":
            raise InputError("release", f"must be 'last' {where}", run.release,
                             "what the solver visits on its way has no noise")
        assert run.loss.outputs is not None
        if self.parameters % run.loss.outputs or self.parameters < 2 * run.loss.outputs:
            raise InputError("parameters", f"must be {run.loss.outputs} outputs times the columns of a row",
                             self.parameters, "count the features and the intercept")
        only_single_rows(run, where, "its proof speaks of records of one row")

    def last_noise(self, run: Described) -> float:
        """Standard deviation of what is added to every entry of the minimiser."""
        return self.last * linear_term(run) / (run.n * run.loss.facts().fact("smooth"))

    def gradient_evaluations(self, run: Described) -> float:
        return float(run.steps * run.n)

    def farthest_draw(self, run: Described) -> float:
        return run.rows_per_unit * run.facts().fact("sensitivity", math.inf) / linear_term(run)

    def stated_noise(self, run: Described) -> dict[str, Any]:
        """One draw that every mean gradient of the solver holds."""
        return {"kind": type(self).__name__, "same_every_step": True, "std_of_mean_gradient": linear_term(run) / run.n,
                "multiplier": linear_term(run) / run.noise_unit if run.noise_unit else None}

    def words(self, run: Described) -> str:
        return (f"the minimiser over {run.n} records, {run.steps} solver steps, one linear term of multiplier "
                f"{multiplier_of(run):.4g}")

    def calibrated(self, run: Described) -> str:
        return (f"{run.steps} steps of the solver, one random linear term of multiplier {multiplier_of(run):.6g}, and "
                f"noise of {self.last:.3g} of its least effect on the minimiser")

    @property
    def beyond_composition(self) -> str:
        return ("composition has nothing to charge for: one random term of the objective is drawn, no step has noise, "
                "and what the solver visits stays secret")


def linear_term(run: Described) -> float:
    """Standard deviation of every entry of the random linear term of the summed objective."""
    assert run.noise_unit is not None
    return multiplier_of(run) * run.noise_unit


def contraction(run: Described) -> float:
    """a = sqrt(step ``KEPT`` ridge): what accelerated steps take off the distance to the optimum, in squares."""
    return math.sqrt(run.first_step * KEPT * run.loss.facts().fact("strong"))


def look_ahead(run: Described) -> float:
    """The part of the last step that an accelerated step goes on before it takes the gradient."""
    a = contraction(run)
    return (1 - a) / (1 + a)
