"""The headline experiment on prepared rows: what each way to draw batches gives when all get the
same help.

python -m benchmarks.utility.prepared_methods DATA_DIR --out TABLE.md [--log FITS.jsonl] [--sets
cifar] [--epsilons 1 8]

All methods share the private mean and the whitening, their costs, 20 blocks of equal size and 50
passes (delta 1e-5, zero-out), and one grid: losses with a cap on a smoothness that is measured and
paid for, steps up to 1.9 / smooth. Methods whose certificate holds for any loss also get clipped
gradients with momentum, and several lengths of steps.

- permuted, cyclic: only the last iterate leaves, certified by the best theorem about it;
- composition: the cyclic run, every step charged in full;
- allocation, Poisson: every iterate could leave; secret blocks drawn anew in each pass, batches
  drawn at every step;
- full batches: 512 passes of one step each, what a plan without any of this does.

DATA_DIR: data_sets.py. An interrupted run goes on from its log.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import lastiterate as li
from benchmarks.utility.data_sets import Set, load, split
from benchmarks.utility.tuning import RULE, Log, tune
from lastiterate.accounting.certificate import Certificate
from lastiterate.planning import families
from lastiterate.planning.plan_request import PlanRequest, linear_loss
from lastiterate.planning.presets import in_a_pass
from lastiterate.planning.task import Task
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.pipeline import run_release
from lastiterate.release.training_request import TrainingRequest
from lastiterate.run.base import Release
from lastiterate.run.batching import Batching

DELTA, BLOCKS, PASSES = 1e-5, 20, 50
SMOOTH_SHARE = 0.03


@dataclass(frozen=True)
class Method:
    batching: Callable[[int, int], Batching]
    release: Release
    any_loss: bool
    passes: int = PASSES


METHODS = {
    "permuted": Method(lambda n, size: li.Permuted(size), "last", False),
    "cyclic": Method(lambda n, size: li.Cyclic(size), "last", False),
    "composition": Method(lambda n, size: li.Cyclic(size), "all", True),
    "allocation": Method(lambda n, size: li.RandomAllocation(size), "all", True),
    "Poisson": Method(lambda n, size: li.Poisson(size / n), "all", True),
    "full batches": Method(lambda n, size: li.FullBatch(), "all", True, 512),
}


@dataclass(frozen=True)
class Setting:
    """``step``: times 1/smooth with a ``cap``; times the plan's steps where gradients are clipped
    instead."""

    step: float
    cap: float | None = None

    def __str__(self) -> str:
        return (
            f"clip, steps x {self.step:g}"
            if self.cap is None
            else f"cap {self.cap:g}, step {self.step:g}/smooth"
        )


CAPPED = [Setting(step, cap) for cap in (0.05, 0.15) for step in (0.25, 0.6, 1.9)]
CLIPPED = [Setting(step) for step in (0.5, 1.0, 2.0)]


def run_of(asked: PlanRequest, method: Method, setting: Setting) -> li.Run:
    """One method at one setting, its noise still to be calibrated."""
    n = asked.task.n
    batching = method.batching(n, -(-n // BLOCKS))
    if setting.cap is None:
        run = families.run_of(
            asked, in_a_pass(asked, batching) * method.passes, li.NoiseMultiplier(1.0), batching
        )
        assert isinstance(run.step_size, li.StableSteps)
        steps = tuple(setting.step * size for size in run.step_size.values)
        return replace(run, release=method.release, step_size=li.StableSteps(steps))
    loss = replace(linear_loss(asked.task, 1.0), cap=setting.cap)
    measured = li.TopEigenvalue(asked.multiplier(SMOOTH_SHARE))
    return li.Run(
        n=n,
        steps=BLOCKS * PASSES,
        noise=li.NoiseMultiplier(1.0),
        batching=batching,
        loss=loss,
        step_size=li.RelativeToSmooth(setting.step),
        preprocessing=(*families.preparation(asked), measured),
        release=method.release,
    )


@lru_cache(maxsize=256)
def certified(run: li.Run, epsilon: float) -> Certificate:
    return li.calibrate(run, epsilon=epsilon, delta=DELTA)


def fit(data: Set, run: li.Run, epsilon: float, seed: int) -> dict[str, Any]:
    part, found = split(data, seed), certified(run, epsilon)
    theorem = found.best(DELTA)
    last = li.account(
        replace(found.run, release="last")
    )  # the model that is scored is the last iterate in any case
    model = run_release(
        LINEAR, TrainingRequest(proof=last, data=(part.x, part.y), delta=DELTA, seed=seed)
    )
    assert isinstance(found.run.noise, li.NoiseMultiplier)
    return {
        "accuracy": float((model.predict(part.x_test) == part.y_test).mean()),
        "noise": found.run.noise.z,
        "theorem": theorem.theorem.name if theorem else "none",
    }


def tuned(data: Set, budget: PlanRequest, name: str, seeds: int, log: Log) -> str:
    """One row of the table."""
    method = METHODS[name]

    def one(setting: Setting, seed: int) -> dict[str, Any]:
        key = {
            "set": data.name,
            "epsilon": budget.epsilon,
            "method": name,
            **asdict(setting),
            "seed": seed,
        }
        return log.once(
            key, lambda: fit(data, run_of(budget, method, setting), budget.epsilon, seed)
        )

    grid = (CAPPED if method.passes == PASSES else []) + (CLIPPED if method.any_loss else [])
    best = tune(grid, one, tuple(range(seeds)), 2)
    return (
        f"| {data.name} | {budget.epsilon:g} | {name} | {best.accuracy()} | {best.setting} | "
        f"{best.mean('noise'):.3f} | {best.fits[0]['theorem']} |"
    )


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path, metavar="DATA_DIR")
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--log", type=Path)
    given.add_argument("--sets", nargs="+", default=["cifar", "adult", "mnist"])
    given.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    given.add_argument("--seeds", type=int, default=3)
    asked = given.parse_args()
    warnings.simplefilter("ignore")
    log, lines = Log(asked.log), []
    for short in asked.sets:
        data = load(short, asked.folder)
        first = split(data, 0)
        task = Task(len(first.x), first.x.shape[1], data.classes, data.row_norm)
        for epsilon in asked.epsilons:
            for name in METHODS:
                lines.append(
                    tuned(
                        data,
                        PlanRequest(task, epsilon, DELTA, "zero-out", 1e9),
                        name,
                        asked.seeds,
                        log,
                    )
                )
                print(lines[-1], flush=True)
    head = "| set | epsilon | method | accuracy | chosen | noise multiplier | theorem |"
    rule = RULE.format(keep=2, seeds=asked.seeds)
    asked.out.write_text("\n".join((rule, "", head, "|---" * 7 + "|", *lines, "")))


if __name__ == "__main__":
    main()
