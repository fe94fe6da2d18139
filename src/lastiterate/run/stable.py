"""Runs whose step sizes stay stable on the second moments that a ``PrivateCovariance`` released."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.run.derived_fields import Described, DescribedRun
from lastiterate.run.losses import Abstract
from lastiterate.run.preparation import PrivateCovariance
from lastiterate.run.step_sizes import Constant, RelativeToSmooth, StableSteps, Steps
from lastiterate.run.updates import HeavyBall


def check_stable(run: Described) -> None:
    """Refuse stable steps where there are no released second moments, or where a guarantee would depend on them.

    With momentum no theorem speaks of the last iterate alone: every step is charged, whatever its length.
    """
    if type(run.step_size) is not StableSteps:
        return
    if not run.prelude or type(run.prelude[-1]) is not PrivateCovariance:
        raise InputError("step_size", "of stable steps needs a PrivateCovariance as the last part of the prelude", None,
                         "add prelude=(..., PrivateCovariance(noise_multiplier)), or give the step sizes themselves")
    if type(run.update) is not HeavyBall:
        raise InputError("update", "must be HeavyBall where steps follow released second moments", None,
                         "use HeavyBall(0.9), or give the step sizes themselves")
    if run.noise is not None and run.noise.temperature is not None:
        raise InputError("noise", "must not depend on the step size where steps follow released second moments",
                         type(run.noise).__name__, "use NoiseMultiplier or GradientNoise")
    if type(run.loss) is Abstract:
        raise InputError("loss", "must be a linear model's where steps follow its rows' second moments", "Abstract")


def top_share(values: Sequence[float], power: float) -> float:
    """The largest eigenvalue of the whitened rows' second moments, which have trace 1.

    ``values``: the eigenvalues m_i of the released M = V (w / max w)^-power V', or of a multiple of it. With the least
    of them at 1, w_i / max w = m_i^(-1/power), and M turns w_i into a multiple of m_i^(2 - 1/power), of which the
    largest is 1: m_i >= 1 and power <= 1/2.
    """
    return 1 / sum((value / min(values)) ** (2 - 1 / power) for value in values)


def longest_stable(run: Described, largest: float) -> float:
    """Heavy ball on curvature h is stable for steps below 2 (1 + beta) / h; h the loss's curvature by the scores times
    the largest eigenvalue of the rows' second moments, the intercept's added, plus the ridge."""
    assert isinstance(run.update, HeavyBall) and not isinstance(run.loss, Abstract)
    loss = run.loss
    square = loss.row_norm**2 + loss.intercept**2
    by_scores = (loss.facts().fact("smooth") - loss.ridge) / square
    return 2 * (1 + run.update.beta) / (by_scores * (largest + loss.intercept**2) + loss.ridge)


def typical_norm(run: Described) -> float:
    """Of rows that steps read: their root mean square where a ``PrivateCovariance`` makes it 1, else their bound."""
    assert not isinstance(run.loss, Abstract)
    scaled = any(isinstance(part, PrivateCovariance) and part.row_norm is not None for part in run.prelude)
    return 1.0 if scaled else run.loss.row_norm


def stabilised(run: DescribedRun, values: Sequence[float]) -> DescribedRun:
    """``run`` with the steps that follow from the eigenvalues of its released M; itself where that changes nothing."""
    if type(run.step_size) is not StableSteps:
        return run
    part, stated = run.prelude[-1], run.step_size.values
    assert isinstance(part, PrivateCovariance)
    factor = min(1.0, longest_stable(run, typical_norm(run) ** 2 * top_share(values, part.power)) / stated[0])
    return replace(run, step_size=Steps(tuple(factor * value for value in stated)))


def without_preparation(run: DescribedRun) -> DescribedRun:
    """``run`` on rows as they are; with steps as long as they are stated, or as the public smoothness allows."""
    if type(run.step_size) is StableSteps:
        return replace(run, prelude=(), step_size=Steps(run.step_size.values))
    if type(run.step_size) is RelativeToSmooth:
        return replace(run, prelude=(), step_size=Constant(run.step_size.relative / run.loss.facts().fact("smooth")))
    return replace(run, prelude=())
