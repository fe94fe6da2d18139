"""Output perturbation: gradient descent on a ridge problem, noise on its last step alone (Zhang et al. 2017).

After many steps a record moves the result by at most sensitivity / (n ridge) (Chaudhuri, Monteleoni, Sarwate 2011). The
row that certifies it charges the very steps that are executed, so that no solver's tolerance enters.
"""

from __future__ import annotations

import math
from dataclasses import replace

from lastiterate.planning.families import whitened
from lastiterate.planning.families.asked import Asked
from lastiterate.run.batching import Batching
from lastiterate.run.losses import LinearLoss
from lastiterate.run.noise import GradientNoise
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant

NORM = 10.0  #: what a model's norm may need to be
FEWEST, MOST = 100, 1000  #: steps


def output_run(asked: Asked, batching: Batching, blocks: int, loss: LinearLoss, prox: Prox | None) -> Run:
    """One unit of noise on the last step. ``blocks``: batches in a pass; the steps are whole passes.

    Steps of 1/smooth contract by 1 - step ridge; longer ones less, at the other end of the curvature.
    """
    ridge = balanced_ridge(asked, loss)
    loss = replace(loss, ridge=ridge)
    step = 1 / loss.facts().fact("smooth")
    steps = max(FEWEST, min(MOST, math.ceil(math.log(MOST) / (step * ridge))))
    steps = -(-steps // blocks) * blocks
    return Run(n=asked.task.n, steps=steps, step_size=Constant(step), batching=batching, loss=loss, prox=prox,
               noise=GradientNoise((0.0,) * (steps - 1) + (1.0,)), prelude=whitened.preparation(asked),
               adjacency=asked.adjacency, rows_per_unit=asked.task.rows_per_unit,
               rows_per_record=asked.task.rows_per_record)


def balanced_ridge(asked: Asked, loss: LinearLoss) -> float:
    """What balances the ridge's cost for a model of norm ``NORM`` and that of noise on the minimiser for a loss whose
    mean curvature is at most 1/4."""
    moved = loss.facts().fact("lipschitz") / (asked.task.n * asked.mu)
    return (moved**2 / (2 * NORM**2)) ** (1 / 3)
