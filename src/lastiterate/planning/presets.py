"""The published algorithms as runs on a linear model, from public numbers alone: what ``--algorithm`` stands for.

Step sizes and ridges are the usual choices for a known smoothness; the noise is left to calibration.
"""

from __future__ import annotations

from dataclasses import replace

from lastiterate.errors import InputError
from lastiterate.planning.families.asked import CLIP, linear_loss
from lastiterate.planning.task import Task
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import BallsInBins, Batching, Cyclic, FixedSize, Permuted, Poisson
from lastiterate.run.losses import HuberRidge, LinearLoss
from lastiterate.run.noise import Langevin, NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, InverseDecay

ALGORITHMS = ("automatic", "noisy-gd", "dp-sgld", "cyclic-dp-sgd", "permuted-sgd", "bins-sgd", "poisson-dp-sgd")
PASSES = 20
STEPS = 200  #: of full batches
BLOCKS = 20  #: batches in a pass, where the caller gives no size
RIDGE = 0.01  #: relative to the smoothness of the data term, where the algorithm's theorems need strong convexity


def described(task: Task, algorithm: str, *, batching: Batching | None = None, prox: Prox | None = None,
              cap: float | None = None, adjacency: Adjacency = "zero-out") -> Run:
    """The run of a named algorithm, with one unit of noise.

    - noisy-gd: full batches, Langevin noise, a ridge (Chourasia, Ye, Shokri 2021, Algorithm 1);
    - dp-sgld: fresh batches of one size, steps 1 / (2 beta + lambda k / 2), Langevin noise, a ridge (Ryffel, Bach,
      Pointcheval 2022, Algorithm 1 and Corollary 3.2);
    - cyclic-dp-sgd: blocks in a public order, per-example clipping, a proximal term (Kong, Ribero 2024, Algorithm 1);
    - permuted-sgd: the same blocks of one secret order, rows clipped instead of gradients;
    - bins-sgd: every record in one of the secret bins; - poisson-dp-sgd: Poisson batches and per-example clipping.

    ``cap``: of the loss (``Softmax(cap=)``), which takes the place of per-example clipping.
    """
    if algorithm not in ALGORITHMS[1:]:
        raise InputError("algorithm", "must be one of " + ", ".join(ALGORITHMS), algorithm)
    size = max(1, task.n // BLOCKS)
    convex, strong = _loss(task, 0.0, cap), _loss(task, RIDGE, cap)
    smooth = strong.facts().fact("smooth")
    plain = Run(n=task.n, steps=PASSES * -(-task.n // size), step_size=Constant(1 / smooth), noise=NoiseMultiplier(1.0),
                loss=convex, adjacency=adjacency, prox=prox, rows_per_unit=task.rows_per_unit)
    clipped = plain if cap is not None else replace(plain, clip=CLIP * convex.facts().fact("lipschitz"))
    match algorithm:
        case "noisy-gd":
            run = replace(plain, steps=STEPS, loss=strong, noise=Langevin(1.0), step_size=Constant(0.9 / smooth))
        case "dp-sgld":
            decay = InverseDecay(smooth, strong.ridge)
            run = replace(plain, loss=strong, noise=Langevin(1.0), step_size=decay, batching=FixedSize(size))
        case "cyclic-dp-sgd":
            run = replace(clipped, batching=Cyclic(size))
        case "permuted-sgd":
            run = replace(plain, batching=Permuted(size))
        case "bins-sgd":
            run = replace(plain, batching=BallsInBins(size))
        case _:
            run = replace(clipped, batching=Poisson(size / task.n))
    return run if batching is None else _with(run, batching)


def _with(run: Run, batching: Batching) -> Run:
    """As many passes over other batches."""
    changed = replace(run, batching=batching)
    if changed.divisor == run.n:
        return replace(changed, steps=STEPS)
    return replace(changed, steps=PASSES * max(1, round(run.n / changed.divisor)))


def _loss(task: Task, ridge: float, cap: float | None) -> LinearLoss:
    loss = linear_loss(task.classes, task.row_norm)
    if cap is not None:
        if isinstance(loss, HuberRidge):
            raise InputError("cap", "is for classes: a regression's residuals are clamped already", cap, "leave it out")
        loss = replace(loss, cap=cap)
    return replace(loss, ridge=ridge * loss.facts().fact("smooth"))
