"""Families of runs that the planner compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from lastiterate.planning import whitened_families
from lastiterate.planning import whitened_families as whitened
from lastiterate.planning.plan_request import PlanRequest, linear_decay
from lastiterate.run.batching import Batching, Cyclic, FixedSize, Permuted, Poisson
from lastiterate.run.losses import LinearLoss
from lastiterate.run.methods import VarianceReduced
from lastiterate.run.noise import GradientNoise, NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, InverseDecay, StepSchedule
from lastiterate.run.updates import HeavyBall

# Blocks in one order for the whole run, secret or public.

BLOCKS, PASSES = (4, 16, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STREAM_BLOCKS = (64, 512, 4096)  #: small enough to hold one in memory
FEWEST_RECORDS = 20  #: in a block


def plan_permuted(asked: PlanRequest) -> Iterator[Run]:
    """One secret order, certified for the last iterate."""
    return _plan_in_order(asked, Permuted, BLOCKS)


def cyclic(asked: PlanRequest) -> Iterator[Run]:
    """A public order: what reads data larger than memory with no scratch file."""
    return _plan_in_order(asked, Cyclic, STREAM_BLOCKS)


def _plan_in_order(
    asked: PlanRequest, kind: type[Cyclic] | type[Permuted], counts: tuple[int, ...]
) -> Iterator[Run]:
    """Constant steps below 2 / smooth; ever more passes while the prediction improves."""
    step = min(asked.first, 1.9 / asked.loss.facts().fact("smooth"))
    for blocks in counts:
        size = -(-asked.task.n // blocks)
        run = replace(asked.empty, step_size=Constant(step), batching=kind(size))
        best = math.inf
        for passes in PASSES if size >= FEWEST_RECORDS else ():
            calibrated = asked.calibrate_run(replace(run, steps=passes * run.blocks))
            if calibrated is None or (risk := asked.risk(calibrated)) > best:
                break
            best = risk
            yield calibrated


# Full batches.

STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FRICTIONS = tuple(2.0**-j for j in range(1, 7))  #: 1 - momentum
FORGOTTEN = (
    8  #: memories of the momentum that a run must last: shorter ones do worse than their prediction
)
PLAIN_STEPS = tuple(round(8 * 2 ** (j / 2)) for j in range(26))


def plan_accelerated(asked: PlanRequest) -> Iterator[Run]:
    """Momentum, steps that fall linearly."""
    for one, steps, friction in product(asked.clips, STEPS, FRICTIONS):
        if steps * friction >= FORGOTTEN:
            yield replace(
                one.empty,
                steps=steps,
                step_size=StepSchedule(linear_decay(one.first, steps)),
                clip=one.clip,
                noise=one.composition_noise(steps),
                optimizer=HeavyBall(1 - friction),
            )


def plain(asked: PlanRequest) -> Iterator[Run]:
    """Constant steps."""
    for one, steps in product(asked.clips, PLAIN_STEPS):
        yield replace(one.empty, steps=steps, noise=one.composition_noise(steps), clip=one.clip)


# Families of runs that the planner weighs: one file each, and this table.
#
# A family is a function from what is asked to runs with (nearly) the noise that they need.


@dataclass(frozen=True)
class Family:
    """The candidate runs of a kind for a request. ``larger`` and ``smaller``: whether they are for
    data that do not, and that do, fit in memory. ``whitened``: whether they train on partly
    whitened rows, to which cosine features may be appended."""

    runs: Callable[[PlanRequest], Iterator[Run]]
    larger: bool = True
    smaller: bool = True
    whitened: bool = False


FAMILIES: dict[str, Family] = {
    "allocation": Family(whitened.allocation, whitened=True),
    "correlated": Family(whitened.plan_correlated, whitened=True),
    "whitened": Family(whitened.plan_whitened, larger=False, whitened=True),
    "accelerated": Family(plan_accelerated),
    "plain": Family(plain),
    "permuted": Family(plan_permuted),
    "objective": Family(whitened_families.plan_perturbed, larger=False, whitened=True),
    "cyclic": Family(cyclic, smaller=False),
}


# Output perturbation: gradient descent on a ridge problem, noise on its last step alone (Zhang et
# al. 2017).  After many steps a record moves the result by at most sensitivity / (n ridge)
# (Chaudhuri, Monteleoni, Sarwate 2011). The row that certifies it charges the very steps that are
# executed, so that no solver's tolerance enters.

NORM = 10.0  #: what a model's norm may need to be
FEWEST, MOST_OUTPUT_STEPS = 100, 1000  #: steps


def output_run(
    asked: PlanRequest, batching: Batching, blocks: int, loss: LinearLoss, prox: Prox | None
) -> Run:
    """One unit of noise on the last step. ``blocks``: batches in a pass; the steps are whole
    passes.

    Steps of 1/smooth contract by 1 - step ridge; longer ones less, at the other end of the
    curvature.
    """
    ridge = balance_ridge(asked, loss)
    loss = replace(loss, ridge=ridge)
    step = 1 / loss.facts().fact("smooth")
    steps = max(
        FEWEST, min(MOST_OUTPUT_STEPS, math.ceil(math.log(MOST_OUTPUT_STEPS) / (step * ridge)))
    )
    steps = -(-steps // blocks) * blocks
    return Run(
        n=asked.task.n,
        steps=steps,
        step_size=Constant(step),
        batching=batching,
        loss=loss,
        prox=prox,
        noise=GradientNoise((0.0,) * (steps - 1) + (1.0,)),
        preprocessing=whitened.preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=asked.task.rows_per_unit,
        rows_per_record=asked.task.rows_per_record,
    )


def balance_ridge(asked: PlanRequest, loss: LinearLoss) -> float:
    """Return the ridge that balances its cost for a model of norm ``NORM`` and that of noise on the
    minimiser for a loss whose mean curvature is at most 1/4."""
    moved = loss.facts().fact("lipschitz") / (asked.task.n * asked.mu)
    return (moved**2 / (2 * NORM**2)) ** (1 / 3)


# Noisy SGD on a ridge problem (Bassily, Smith, Thakurta 2014), its n^2 steps capped.

MOST_STEPS = 40_000  #: steps
#: of the ridge that the last steps' noise asks for by itself; more is hardly worse, and less soon
#: is
ONE_RECORD_SHARE = 0.1


def one_record_run(
    asked: PlanRequest, loss: LinearLoss, batching: Batching | None, prox: Prox | None
) -> Run:
    """One unit of noise; steps of 1 / (2 smooth + ridge k)."""
    task, steps = asked.task, min(asked.task.n**2, MOST_STEPS)
    loss = replace(
        loss,
        ridge=math.hypot(
            balance_ridge(asked, loss), ONE_RECORD_SHARE * ridge_for_forgetting(asked, loss, steps)
        ),
    )
    return Run(
        n=task.n,
        steps=steps,
        noise=NoiseMultiplier(1.0),
        loss=loss,
        prox=prox,
        step_size=InverseDecay(loss.facts().fact("smooth"), 2 * loss.ridge),
        batching=FixedSize(1) if batching is None else batching,
        preprocessing=whitened.preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )


def ridge_for_forgetting(asked: PlanRequest, loss: LinearLoss, steps: int) -> float:
    """Return the ridge that balances its cost for a model of norm ``NORM`` and that of a step's
    noise after steps that fall as 1/(ridge k): one record's gradient, and noise of about its length
    along every parameter at any budget.

    Without it a generous budget has so small a ridge that the steps never fall, and their noise
    stays in the model.
    """
    parameters = asked.task.features * max(1, loss.outputs)
    spread = loss.facts().fact("lipschitz") ** 2 * (1 + parameters)
    return (spread / (2 * steps * NORM**2)) ** (1 / 3)


# DP-SVRG: plain steps on a capped loss that follow snapshots and differences to them (Wang, Ye, Xu
# 2017).  Constants were compared on the synthetic families of benchmarks/utility. The rate hardly
# matters: noise outweighs what a batch leaves out.

SNAPSHOTS, EVERY, RATE = 200, 3, 0.1
SNAPSHOT_SHARE = 0.5  #: part of the budget mu^2 that goes to the steps between snapshots
WAY = 0.3  #: the length of all steps, relative to that with clips and momentum
LONGEST = 1.9  #: steps, relative to 1/smooth


def snapshot_run(
    asked: PlanRequest, loss: LinearLoss, cap: float, batching: Batching | None, prox: Prox | None
) -> Run:
    """About one unit of noise. ``cap``: of the loss, for the length of its steps."""
    task, batches = asked.task, Poisson(RATE) if batching is None else batching
    steps, rate = SNAPSHOTS * EVERY, batches.expected_batch(task.n) / task.n
    step = min(
        WAY * whitened.path_length(asked, cap) / steps, LONGEST / loss.facts().fact("smooth")
    )
    noise, method = split(SNAPSHOTS, EVERY, rate, SNAPSHOT_SHARE)
    return Run(
        n=task.n,
        steps=steps,
        step_size=Constant(step),
        noise=noise,
        method=method,
        batching=batches,
        loss=loss,
        prox=prox,
        preprocessing=whitened.preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )


def split(
    taken: int, every: int, rate: float, share: float
) -> tuple[NoiseMultiplier, VarianceReduced]:
    """Noise and method of ``taken`` snapshots whose other steps cost about ``share`` of mu^2 = 1.

    For little noise of single steps: a sampled one costs mu^2 = rate^2 / z^2.
    """
    z = rate * math.sqrt(taken * (every - 1) / share)
    return NoiseMultiplier(z), VarianceReduced(every, math.sqrt(taken / (1 - share)) / z)
