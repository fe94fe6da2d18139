"""Objective perturbation and cosine features beside the automatic plan, on the same splits and
seeds.

python -m benchmarks.utility.objective_and_cosines DATA_DIR --sets digits breast_cancer --seeds 10

Delta 1e-5, zero-out. Nothing is tuned: the ridge of objective perturbation has the lowest predicted
risk, cosine features are as they are planned.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.utility.data_sets import LOADERS, load, split
from benchmarks.utility.planner_unseen import guessed
from lastiterate.accounting.noise_calibration import calibrate
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import consider
from lastiterate.planning.presets import describe_algorithm
from lastiterate.planning.task import Task
from lastiterate.run.run import Run

DELTA = 1e-5


def runs(task: Task, fourier: Task, epsilon: float) -> dict[str, Run]:
    """The three runs that are compared."""
    objective = describe_algorithm(
        PlanRequest(task, epsilon, DELTA, "zero-out", 600.0), "objective-perturbation"
    )
    return {
        "automatic": consider(task, epsilon=epsilon, delta=DELTA).best.certificate.run,
        "objective-perturbation": calibrate(objective, epsilon=epsilon, delta=DELTA).run,
        "features=fourier": consider(fourier, epsilon=epsilon, delta=DELTA).best.certificate.run,
    }


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path)
    given.add_argument(
        "--sets", nargs="*", choices=list(LOADERS), default=["digits", "breast_cancer"]
    )
    given.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 8.0])
    given.add_argument("--seeds", type=int, default=10)
    given.add_argument("--without", nargs="*", default=[], help="runs to leave out")
    asked = given.parse_args()
    print(
        "| set | epsilon | seeds | run | accuracy (sd) | seconds a fit, median "
        "|\n|---|---|---|---|---|---|"
    )
    for short in asked.sets:
        data = load(short, asked.folder)
        parts = [split(data, seed) for seed in range(asked.seeds)]
        task, fourier = (
            Task(len(parts[0].x), data.x.shape[1], data.classes, data.row_norm, feature_map=name)
            for name in ("plain", "fourier")
        )
        for epsilon in asked.epsilons:
            for name, run in runs(task, fourier, epsilon).items():
                if name in asked.without:
                    continue
                found, taken = [], []
                for seed, part in enumerate(parts):
                    began = time.perf_counter()
                    model = execute(run, part.x, part.y, key_from_seed(seed))
                    taken.append(time.perf_counter() - began)
                    found.append(
                        float((guessed(scores(run, model, part.x_test)) == part.y_test).mean())
                    )
                accuracy = f"{np.mean(found):.4f} ({np.std(found):.4f})"
                print(
                    f"| {data.name} | {epsilon:g} | {asked.seeds} | {name} | {accuracy} | "
                    f"{np.median(taken):.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
