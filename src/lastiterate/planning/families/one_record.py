"""Noisy SGD, one record a step, on a ridge problem (Bassily, Smith, Thakurta 2014): their n^2 steps, capped."""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.planning.families import whitened
from lastiterate.planning.families.asked import Asked
from lastiterate.planning.families.output import NORM, balanced_ridge
from lastiterate.run.batching import Batching, FixedSize
from lastiterate.run.losses import LinearLoss
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import InverseDecay

MOST = 40_000  #: steps
SHARE = 0.1  #: of the ridge that the last steps' noise asks for by itself; more is hardly worse, and less soon is


def one_record_run(asked: Asked, loss: LinearLoss, batching: Batching | None, prox: Prox | None) -> Run:
    """One unit of noise; steps of 1 / (2 smooth + ridge k)."""
    task, steps = asked.task, min(asked.task.n**2, MOST)
    loss = replace(loss, ridge=math.hypot(balanced_ridge(asked, loss), SHARE * forgetting_ridge(asked, loss, steps)))
    return Run(n=task.n, steps=steps, noise=NoiseMultiplier(1.0), loss=loss, prox=prox,
               step_size=InverseDecay(loss.facts().fact("smooth"), 2 * loss.ridge),
               batching=FixedSize(1) if batching is None else batching, prelude=whitened.preparation(asked),
               adjacency=asked.adjacency, rows_per_unit=task.rows_per_unit, rows_per_record=task.rows_per_record)


def forgetting_ridge(asked: Asked, loss: LinearLoss, steps: int) -> float:
    """What balances the ridge's cost for a model of norm ``NORM`` and that of a step's noise after steps that fall as
    1/(ridge k): one record's gradient, and noise of about its length along every parameter at any budget.

    Without it a generous budget has so small a ridge that the steps never fall, and their noise stays in the model.
    """
    parameters = asked.task.features * max(1, loss.outputs)
    spread = loss.facts().fact("lipschitz") ** 2 * (1 + parameters)
    return (spread / (2 * steps * NORM**2)) ** (1 / 3)
