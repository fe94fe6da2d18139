"""What an average of the iterates gains: one budget, the same noise, with and without it, on every
task.

python -m benchmarks.networks.averages [--mnist FOLDER] [--seeds 2] [--steps 60] [--only TASK]
[--longer 2]

Losses written with JAX, random allocation, epsilon 3: one price for all, because every iterate is
charged. Fits of one seed have the same batches and the same noise, so that a difference is the
average's. Averages bear longer steps, so that longer ones than the task's are tried, by default
twice its larger one. A line for every step size: the mean accuracy on the public records, and that
of every seed.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import lastiterate as li
from benchmarks.networks.contestants import DELTA, EPSILON, run_of
from benchmarks.networks.tasks import tasks

AVERAGES = {
    "last iterate": None,
    "exponential, .9": li.ExponentialAverage(0.9),
    "last half": li.TailAverage(0.5),
}


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--mnist", type=Path, help="folder with MNIST's four files")
    given.add_argument("--seeds", type=int, default=2)
    given.add_argument("--steps", type=int, default=60)
    given.add_argument("--only", default="", help="tasks whose name begins so")
    given.add_argument(
        "--longer", default="2", help="multiples of the larger step size that are tried besides"
    )
    asked = given.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| task | step size | "
        + " | ".join(AVERAGES)
        + " |\n|---|---"
        + len(AVERAGES) * "|---"
        + "|"
    )
    for task in tasks(asked.mnist):
        if not task.name.startswith(asked.only):
            continue
        task = replace(task, steps=asked.steps)
        for rate in (
            *task.rates,
            *(float(factor) * task.rates[-1] for factor in asked.longer.split(",")),
        ):
            run, scores = run_of(task, li.RandomAllocation(task.batch), rate), list[str]()
            run = li.calibrate(run, epsilon=EPSILON, delta=DELTA).run
            for average in AVERAGES.values():
                found = list[float]()
                for seed in range(asked.seeds):
                    model: Any = li.train(
                        run,
                        task.data[:2],
                        model=task.first(),
                        loss=task.loss,
                        delta=DELTA,
                        seed=seed,
                        average=average,
                    )
                    found.append(task.accuracy(model.params))
                each = ", ".join(f"{one:.3f}" for one in found)
                scores.append(f"{statistics.mean(found):.3f} ({each})")
            print(f"| {task.name} | {rate:g} | {' | '.join(scores)} |", flush=True)


if __name__ == "__main__":
    main()
