"""DP-SVRG: plain steps on a capped loss that follow snapshots and differences to them (Wang, Ye, Xu 2017).

Constants were compared on the synthetic families of benchmarks/utility. The rate hardly matters: noise outweighs what a
batch leaves out.
"""

from __future__ import annotations

import math

from lastiterate.planning.families import whitened
from lastiterate.planning.families.asked import Asked
from lastiterate.run.batching import Batching, Poisson
from lastiterate.run.losses import LinearLoss
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant
from lastiterate.run.variance_reduced_steps import VarianceReduced

SNAPSHOTS, EVERY, RATE = 200, 3, 0.1
SHARE = 0.5  #: part of the budget mu^2 that goes to the steps between snapshots
WAY = 0.3  #: the length of all steps, relative to that with clips and momentum
LONGEST = 1.9  #: steps, relative to 1/smooth


def snapshot_run(asked: Asked, loss: LinearLoss, cap: float, batching: Batching | None, prox: Prox | None) -> Run:
    """About one unit of noise. ``cap``: of the loss, for the length of its steps."""
    task, batches = asked.task, Poisson(RATE) if batching is None else batching
    steps, rate = SNAPSHOTS * EVERY, batches.expected_batch(task.n) / task.n
    step = min(WAY * whitened.travelled(asked, cap) / steps, LONGEST / loss.facts().fact("smooth"))
    noise, method = split(SNAPSHOTS, EVERY, rate, SHARE)
    return Run(n=task.n, steps=steps, step_size=Constant(step), noise=noise, method=method,
               batching=batches, loss=loss, prox=prox, prelude=whitened.preparation(asked), adjacency=asked.adjacency,
               rows_per_unit=task.rows_per_unit, rows_per_record=task.rows_per_record)


def split(taken: int, every: int, rate: float, share: float) -> tuple[NoiseMultiplier, VarianceReduced]:
    """Noise and method of ``taken`` snapshots whose other steps cost about ``share`` of mu^2 = 1.

    For little noise of single steps: a sampled one costs mu^2 = rate^2 / z^2.
    """
    z = rate * math.sqrt(taken * (every - 1) / share)
    return NoiseMultiplier(z), VarianceReduced(every, math.sqrt(taken / (1 - share)) / z)
