"""Runs whose step sizes follow a smoothness that is measured privately (docs/theorems/paid-smoothness)."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.run.derived_fields import Described, DescribedRun
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import Abstract
from lastiterate.run.noise import Langevin
from lastiterate.run.preparation import TopEigenvalue
from lastiterate.run.starts import Fixed
from lastiterate.run.step_sizes import Constant, RelativeToSmooth


def check_relative(run: Described) -> None:
    """Refuse step sizes that are relative to a smoothness unless the run measures it, last, and nothing else of its
    guarantee would depend on what is found."""
    parts = [type(part) for part in run.prelude]
    if TopEigenvalue in parts[:-1]:
        raise InputError("prelude", "must measure the top eigenvalue once, as its last part", None,
                         "it speaks of the rows that the steps read")
    if type(run.step_size) is not RelativeToSmooth:
        return
    if not parts or parts[-1] is not TopEigenvalue:
        raise InputError("step_size", "relative to 1/smooth needs a TopEigenvalue as the last part of the prelude",
                         None, "add prelude=(..., TopEigenvalue(noise_multiplier)), or give the step size itself")
    for name, value, allowed in (("domain", run.domain, Everywhere), ("start", run.start, Fixed)):
        if type(value) is not allowed:
            raise InputError(name, f"must be {allowed.__name__} where steps follow a measured smoothness",
                             type(value).__name__, "what it guarantees would depend on what is measured")
    if run.prox is not None:
        raise InputError("prox", "must be left out where steps follow a measured smoothness", type(run.prox).__name__)
    if type(run.noise) is Langevin:
        raise InputError("noise", "must not depend on the step size where steps follow a measured smoothness",
                         "Langevin", "use NoiseMultiplier or GradientNoise")
    if type(run.loss) is Abstract:
        raise InputError("loss", "must be a linear model's where its smoothness is measured", "Abstract")


def squared_row(run: Described) -> float:
    """The largest squared norm of a row with its intercept, for a linear model."""
    assert not isinstance(run.loss, Abstract)
    return run.loss.row_norm**2 + run.loss.intercept**2


def by_block(run: Described) -> bool:
    """Whether the eigenvalue is measured on every batch; otherwise on all records, and drawn batches follow by a matrix
    Chernoff bound."""
    return run.batching.drawn in ("never", "once") and run.batching.sizes != "random"


def largest_eigenvalue(run: Described) -> float:
    """The public largest value that what ``TopEigenvalue`` measures can have."""
    return squared_row(run) * (run.divisor if by_block(run) else run.n)


def measured(run: DescribedRun, eigenvalue: float, parameters: int) -> DescribedRun:
    """``run`` with the step sizes that follow from a released top eigenvalue."""
    if type(run.step_size) is not RelativeToSmooth:
        return run
    part = run.prelude[-1]
    facts, square = run.loss.facts(), squared_row(run)
    curvature = (facts.fact("smooth") - run.loss.ridge) / square
    batch = eigenvalue
    if not by_block(run):
        mean = eigenvalue * run.divisor / run.n
        x = chernoff_excess(mean / square, run.steps, parameters, part.failure)
        batch = min((1 + x) * mean, largest_eigenvalue(run))
    smooth = (curvature * batch / run.divisor + run.loss.ridge) * (1 + 1e-12)
    return replace(run, step_size=Constant(run.step_size.relative / smooth))


def chernoff_excess(mean: float, batches: int, dimension: int, failure: float) -> float:
    """The least x (rounded up) with batches dimension (e^x / (1 + x)^(1 + x))^mean <= failure.

    ``mean``: the largest eigenvalue of a batch's expected second moments over the largest squared norm of a row. Then
    no batch's eigenvalue exceeds (1 + x) times its mean, but with probability ``failure`` (Tropp 2012, Theorem 1.1, for
    independent inclusion; Tropp 2011, Theorem 2.2, without replacement). (1 + x) mean increases in the mean, so that an
    upper bound of it serves.
    """
    wanted = (math.log(batches) + math.log(dimension) - math.log(failure)) / mean

    def exponent(x: float) -> float:
        return (1 + x) * math.log1p(x) - x

    low, high = 0.0, 1.0
    while exponent(high) < wanted:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if exponent(middle) >= wanted else (middle, high)
    return high * (1 + 1e-9)
