"""What theorems see of a run whose steps follow a smoothness that is measured and paid for.

In units of 1/smooth every step is ``relative`` long, whatever is measured. The run that theorems read has steps of 1
and a data term that is ``relative``-smooth, by a fact of evidence ``PAID``: shifts and noise are scaled alike, so
that its curve is that of the executed run for every released value. What is released beside the
steps is not in it. The ridge is only used to be not negative.
Statement and proof: docs/theorems/paid-smoothness.
"""

from __future__ import annotations

from dataclasses import replace

from lastiterate.run.evidence import Evidence, mint
from lastiterate.run.facts import LossFacts, known
from lastiterate.run.losses import derived
from lastiterate.run.noise import GradientNoise
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, RelativeToSmooth

WHY = "the largest eigenvalue of the rows' second moments is measured with noise, and the steps follow it"


def as_accounted(run: Run) -> Run:
    """The run that theorems speak of: ``run`` itself, unless its steps are relative to a measured smoothness."""
    if type(run.step_size) is not RelativeToSmooth:
        return run
    own = run.facts()
    convex = known(own, "smooth") is not None  # a clip that can act on a vector leaves nothing to measure
    facts = LossFacts(
        lipschitz=own.lipschitz,
        smooth=mint(run.step_size.relative, Evidence.PAID, WHY) if convex else None,
        strong=mint(0.0, Evidence.PROVED, "the data term is convex") if convex else None,
        weak_convexity=mint(0.0, Evidence.PROVED, "the data term is convex") if convex else None,
    )
    plain = replace(run, step_size=Constant(1.0), loss=derived(facts), clip=None, prelude=(),
                   calibration=None)
    if not run.decided_noise.independent:
        return replace(plain, noise=run.decided_noise.scaled(run.first_noise / plain.first_noise))
    return replace(plain, noise=GradientNoise(run.first_noise if run.same_noise else tuple(run.noise_stds.tolist())))
