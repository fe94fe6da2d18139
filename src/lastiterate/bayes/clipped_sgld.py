"""SGLD with clipped gradients as a run that the table of theorems can certify: privacy comes from
the clip.

Heller and Fetaya 2023, Appendix E, equation 66 (after Li, Chen, Liu, Carin 2019): theta <- theta +
(eta/2)(grad log prior + (n/b) sum of clip(grad log likelihood, C)) + sqrt(eta temperature) N(0, I).
"""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import Batching, Cyclic
from lastiterate.run.losses import Abstract, Loss
from lastiterate.run.noise import Langevin
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, Fixed, Start
from lastiterate.run.validation import positive


def clipped_sgld_run(
    *,
    n: int,
    steps: int,
    step_size: float,
    clip: float,
    batching: Batching | None = None,
    temperature: float = 1.0,
    prior_precision: float = 1.0,
    loss: Loss | None = None,
    start: Start | None = None,
    adjacency: Adjacency = "zero-out",
) -> Run:
    """The run that executes clipped SGLD; hand it to ``lastiterate.account``.

    With mean losses the step is eta n / 2, the prior N(0, I / prior_precision) a ridge of
    prior_precision / n outside the clip, and the noise sqrt(2 step) sigma N(0, I) with sigma^2 =
    temperature / n. ``batching``: Cyclic(1) unless given; ``loss``: one of the linear models (its
    ridge is set), or constants (``Abstract``) for anything else, which only composition certifies.
    """
    for name, value in (
        ("step_size", step_size),
        ("clip", clip),
        ("temperature", temperature),
        ("prior_precision", prior_precision),
    ):
        positive(name, value)
    ridge, step = prior_precision / n, step_size * n / 2
    if step * ridge >= 2:
        raise InputError(
            "step_size",
            "must lie below 4 / prior_precision",
            step_size,
            "the prior's gradient steps alone diverge",
        )
    described = (
        Abstract()
        if loss is None
        else loss
        if isinstance(loss, Abstract)
        else replace(loss, ridge=ridge)
    )
    return Run(
        n=n,
        steps=steps,
        step_size=Constant(step),
        noise=Langevin(math.sqrt(temperature / n)),
        clip=clip,
        batching=Cyclic(1) if batching is None else batching,
        start=Fixed() if start is None else start,
        loss=described,
        adjacency=adjacency,
    )
