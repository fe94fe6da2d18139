"""SGLD with clipped gradients, as a run that theorems can certify.

Heller and Fetaya 2023, Appendix E, equation 66 (after Li, Chen, Liu, Carin 2019): theta <- theta +
(eta/2)(grad log prior + (n/b) sum of clip(grad log likelihood, C)) + sqrt(eta temperature) N(0, I).
"""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import Batching, Cyclic
from lastiterate.run.losses import KnownConstants, Loss
from lastiterate.run.noise import Langevin
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, FixedStart, Start
from lastiterate.run.validation import positive


def make_clipped_sgld_run(
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
    """Describe SGLD with clipped gradients as a run that theorems certify.

    With mean losses the step is eta n / 2, the prior N(0, I / ``prior_precision``) is a ridge of
    ``prior_precision`` / n outside the clip, and the noise is sqrt(2 step) sigma N(0, I) with
    sigma^2 = ``temperature`` / n.

    Parameters
    ----------
    n : int
        Number of records.
    steps : int
        Number of steps.
    step_size : float
        Step size eta of SGLD, positive.
    clip : float
        Clipping norm of one record's gradient.
    batching : Batching, optional
        Batches; by default ``Cyclic(1)``.
    temperature : float, default 1.0
        Temperature, positive.
    prior_precision : float, default 1.0
        Precision of the prior, positive.
    loss : Logistic, Softmax, HuberRidge or KnownConstants, optional
        Linear model, whose ridge is set, or constants of another loss, which only composition
        certifies.
    start : Fixed or GaussianStart, optional
        First parameters; by default 0.
    adjacency : {"zero-out", "replace-one", "add-remove"}, default "zero-out"
        Relation of neighbouring data sets.

    Returns
    -------
    Run
        Run for `lastiterate.account` and `lastiterate.train`.

    Raises
    ------
    InputError
        If a value is out of range, or the steps on the prior alone diverge.

    Notes
    -----
    Source: Heller and Fetaya 2023, Appendix E, equation 66, after Li, Chen, Liu and Carin 2019. The
    guarantee is that of the run's certificate (docs/theorems/sgld).

    Examples
    --------
    >>> from lastiterate.bayes import make_clipped_sgld_run
    >>> run = make_clipped_sgld_run(n=100, steps=10, step_size=0.01, clip=1.0)
    >>> run.first_step, run.noise
    (0.5, Langevin(sigma=0.1))
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
        KnownConstants()
        if loss is None
        else loss
        if isinstance(loss, KnownConstants)
        else replace(loss, ridge=ridge)
    )
    return Run(
        n=n,
        steps=steps,
        step_size=Constant(step),
        noise=Langevin(math.sqrt(temperature / n)),
        clip=clip,
        batching=Cyclic(1) if batching is None else batching,
        start=FixedStart() if start is None else start,
        loss=described,
        adjacency=adjacency,
    )
