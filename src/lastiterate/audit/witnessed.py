"""How a record moves the last iterate, by theory: the run on a line, without noise, as the witnesses have it."""

from __future__ import annotations

import numpy as np

from lastiterate.engine.prepare import linear_loss
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run

LONGEST = 200_000
"""Steps that are looked at, the last ones."""


def shift(run: Run, record: int) -> float:
    """How far a record whose gradient is always 1 lets the last iterate go against it.

    Steps that draw whether the record takes part count with its share. Curvature is the ridge's alone.
    """
    ridge = 0.0 if isinstance(run.loss, Abstract) else linear_loss(run).ridge
    first, eta = max(0, run.steps - LONGEST), run.step_sizes
    steps = np.arange(run.steps)
    uses = steps % run.blocks == record // int(run.divisor) if run.batching.drawn == "never" else steps >= 0
    theta, rule = 0.0, run.rule
    memory = rule.init(theta)
    for k in range(first, run.steps):
        point = rule.point(theta, memory, k)
        direction, memory = rule.update(ridge * point - float(uses[k]), memory, theta, k)
        theta = point - float(eta[k]) * direction
    return float(theta)


def sign_of_shift(run: Run, record: int) -> float:
    """+1 where the record's gradient moves the last iterate against itself, as one step does; -1 where steps beyond
    2/smooth or momentum turn it round."""
    return -1.0 if shift(run, record) < 0 else 1.0
