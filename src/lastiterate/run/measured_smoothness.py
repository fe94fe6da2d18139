"""Runs whose step sizes follow a smoothness or second moments that are measured privately."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.run.base import DescribedRun, RunBase
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import KnownConstants, data_curvature
from lastiterate.run.noise import Langevin
from lastiterate.run.preprocessing import PrivateCovariance, TopEigenvalue
from lastiterate.run.step_sizes import (
    Constant,
    FixedStart,
    RelativeToSmooth,
    StableSteps,
    StepSchedule,
)
from lastiterate.run.updates import HeavyBall

# Step sizes relative to a measured smoothness (docs/theorems/paid-smoothness).


def check_relative(run: RunBase) -> None:
    """Refuse step sizes that are relative to a smoothness unless the run measures it, last, and
    nothing else of its guarantee would depend on what is found."""
    parts = [type(part) for part in run.preprocessing]
    if TopEigenvalue in parts[:-1]:
        raise InputError(
            "preprocessing",
            "must measure the top eigenvalue once, as its last part",
            None,
            "it speaks of the rows that the steps read",
        )
    if type(run.step_size) is not RelativeToSmooth:
        return
    if not parts or parts[-1] is not TopEigenvalue:
        raise InputError(
            "step_size",
            "relative to 1/smooth needs a TopEigenvalue as the last part of the preprocessing",
            None,
            "add preprocessing=(..., TopEigenvalue(noise_multiplier)), or give the step size itself",
        )
    for name, value, allowed in (
        ("domain", run.domain, Everywhere),
        ("start", run.start, FixedStart),
    ):
        if type(value) is not allowed:
            raise InputError(
                name,
                f"must be {allowed.__name__} where steps follow a measured smoothness",
                type(value).__name__,
                "what it guarantees would depend on what is measured",
            )
    if run.prox is not None:
        raise InputError(
            "prox",
            "must be left out where steps follow a measured smoothness",
            type(run.prox).__name__,
        )
    if type(run.noise) is Langevin:
        raise InputError(
            "noise",
            "must not depend on the step size where steps follow a measured smoothness",
            "Langevin",
            "use NoiseMultiplier or GradientNoise",
        )
    if type(run.loss) is KnownConstants:
        raise InputError(
            "loss", "must be a linear model's where its smoothness is measured", "KnownConstants"
        )


def max_squared_row_norm(run: RunBase) -> float:
    """The largest squared norm of a row with its intercept, for a linear model."""
    assert not isinstance(run.loss, KnownConstants)
    return run.loss.row_norm**2 + run.loss.intercept**2


def is_measured_by_block(run: RunBase) -> bool:
    """Whether the eigenvalue is measured on every batch; otherwise on all records, and drawn
    batches follow by a matrix Chernoff bound."""
    return run.batching.drawn in ("never", "once") and run.batching.sizes != "random"


def largest_eigenvalue(run: RunBase) -> float:
    """The public largest value that what ``TopEigenvalue`` measures can have."""
    return max_squared_row_norm(run) * (run.divisor if is_measured_by_block(run) else run.n)


def apply_top_eigenvalue(run: DescribedRun, eigenvalue: float, parameters: int) -> DescribedRun:
    """``run`` with the step sizes that follow from a released top eigenvalue."""
    if type(run.step_size) is not RelativeToSmooth:
        return run
    part = run.preprocessing[-1]
    facts, square = run.loss.facts(), max_squared_row_norm(run)
    curvature = data_curvature(facts.fact("smooth"), run.loss.ridge) / square
    batch = eigenvalue
    if not is_measured_by_block(run):
        mean = eigenvalue * run.divisor / run.n
        x = chernoff_excess(mean / square, run.steps, parameters, part.failure)
        batch = min((1 + x) * mean, largest_eigenvalue(run))
    smooth = (curvature * batch / run.divisor + run.loss.ridge) * (1 + 1e-12)
    return replace(run, step_size=Constant(run.step_size.relative / smooth))


def chernoff_excess(mean: float, batches: int, dimension: int, failure: float) -> float:
    """The least x (rounded up) with batches dimension (e^x / (1 + x)^(1 + x))^mean <= failure.

    ``mean``: the largest eigenvalue of a batch's expected second moments over the largest squared
    norm of a row. Then no batch's eigenvalue exceeds (1 + x) times its mean, but with probability
    ``failure`` (Tropp 2012, Theorem 1.1, for independent inclusion; Tropp 2011, Theorem 2.2,
    without replacement). (1 + x) mean increases in the mean, so that an upper bound of it serves.
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


# Step sizes that are stable on released second moments.


def check_stable(run: RunBase) -> None:
    """Refuse stable steps where there are no released second moments, or where a guarantee would
    depend on them.

    With momentum no theorem speaks of the last iterate alone: every step is charged, whatever its
    length.
    """
    if type(run.step_size) is not StableSteps:
        return
    if not run.preprocessing or type(run.preprocessing[-1]) is not PrivateCovariance:
        raise InputError(
            "step_size",
            "of stable steps needs a PrivateCovariance as the last part of the preprocessing",
            None,
            "add preprocessing=(..., PrivateCovariance(noise_multiplier)), or give the step sizes "
            "themselves",
        )
    if type(run.optimizer) is not HeavyBall:
        raise InputError(
            "optimizer",
            "must be HeavyBall where steps follow released second moments",
            None,
            "use HeavyBall(0.9), or give the step sizes themselves",
        )
    if run.noise is not None and run.noise.temperature is not None:
        raise InputError(
            "noise",
            "must not depend on the step size where steps follow released second moments",
            type(run.noise).__name__,
            "use NoiseMultiplier or GradientNoise",
        )
    if type(run.loss) is KnownConstants:
        raise InputError(
            "loss",
            "must be a linear model's where steps follow its rows' second moments",
            "KnownConstants",
        )


def top_share(values: Sequence[float], power: float) -> float:
    """The largest eigenvalue of the whitened rows' second moments, which have trace 1.

    ``values``: the eigenvalues m_i of the released M = V (w / max w)^-power V', or of a multiple of
    it. With the least of them at 1, w_i / max w = m_i^(-1/power), and M turns w_i into a multiple
    of m_i^(2 - 1/power), of which the largest is 1: m_i >= 1 and power <= 1/2.
    """
    return 1 / sum((value / min(values)) ** (2 - 1 / power) for value in values)


def longest_stable(run: RunBase, largest: float) -> float:
    """Heavy ball on curvature h is stable for steps below 2 (1 + beta) / h; h the loss's curvature
    by the scores times the largest eigenvalue of the rows' second moments, the intercept's added,
    plus the ridge."""
    assert isinstance(run.optimizer, HeavyBall) and not isinstance(run.loss, KnownConstants)
    loss = run.loss
    square = loss.row_norm**2 + loss.intercept**2
    by_scores = data_curvature(loss.facts().fact("smooth"), loss.ridge) / square
    return 2 * (1 + run.optimizer.beta) / (by_scores * (largest + loss.intercept**2) + loss.ridge)


def typical_norm(run: RunBase) -> float:
    """Return the typical norm of rows that steps read: their root mean square where a
    ``PrivateCovariance`` makes it 1, else their bound."""
    assert not isinstance(run.loss, KnownConstants)
    scaled = any(
        isinstance(part, PrivateCovariance) and part.row_norm is not None
        for part in run.preprocessing
    )
    return 1.0 if scaled else run.loss.row_norm


def apply_eigenvalues(run: DescribedRun, values: Sequence[float]) -> DescribedRun:
    """``run`` with the steps that follow from the eigenvalues of its released M; itself where that
    changes nothing."""
    if type(run.step_size) is not StableSteps:
        return run
    part, stated = run.preprocessing[-1], run.step_size.values
    assert isinstance(part, PrivateCovariance)
    factor = min(
        1.0, longest_stable(run, typical_norm(run) ** 2 * top_share(values, part.power)) / stated[0]
    )
    return replace(run, step_size=StepSchedule(tuple(factor * value for value in stated)))


def without_preparation(run: DescribedRun) -> DescribedRun:
    """``run`` on rows as they are; with steps as long as they are stated, or as the public
    smoothness allows."""
    if type(run.step_size) is StableSteps:
        return replace(run, preprocessing=(), step_size=StepSchedule(run.step_size.values))
    if type(run.step_size) is RelativeToSmooth:
        return replace(
            run,
            preprocessing=(),
            step_size=Constant(run.step_size.relative / run.loss.facts().fact("smooth")),
        )
    return replace(run, preprocessing=())
