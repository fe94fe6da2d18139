"""The automatic plan on problems that its rule was not tuned on, beside fixed plans chosen on the
test data.

python -m benchmarks.utility.planner_unseen [PROBLEMS] [DATA_DIR]        DATA_DIR adds PneumoniaMNIST

Sizes are drawn at random from three unseen synthetic families. Every fixed plan keeps the same
budget (epsilon 1, delta 1e-5): six of full batches on centred rows, and whitened rows in 128 full
batches and in 20 passes over secret blocks. The best of them in hindsight is a yardstick that
nobody could use.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

import lastiterate as li
from benchmarks.utility.data_sets import load, split
from benchmarks.utility.synthetic_families import UNSEEN, Problem, draw
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning import families
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

GRID = [(steps, momentum) for steps in (24, 96, 384) for momentum in (0.5, 0.875)]


def accuracy(run: li.Run, problem: Problem, seed: int) -> float:
    found = scores(run, execute(run, problem.x, problem.y, key_from_seed(seed)), problem.x_test)
    return float((guessed(found) == problem.y_test).mean())


def guessed(found: np.ndarray) -> np.ndarray:
    """The most probable class of every row of scores."""
    return (found[:, 0] > 0).astype(int) if found.shape[1] == 1 else found.argmax(axis=1)


def fixed(asked: PlanRequest) -> Iterator[li.Run]:
    """Plans that are the same whatever the task: constant steps with momentum, and both kinds of
    whitened rows."""
    for steps, momentum in GRID:
        yield replace(
            asked.empty,
            steps=steps,
            clip=asked.clip,
            noise=asked.composition_noise(steps),
            optimizer=li.HeavyBall(momentum),
        )
    yield next(run for run in families.plan_whitened(asked) if run.steps == 128)
    with patch.object(families, "CORRELATED_PASSES", (20,)):
        yield from families.allocation(asked)


def main(problems: int, folder: Path | None) -> None:
    drawn = [draw(UNSEEN, seed, most=8000) for seed in range(problems)]
    if folder is not None:
        data = load("pneumonia", folder)
        part = split(data, 0)
        drawn.append(
            Problem(
                "PneumoniaMNIST",
                part.x,
                part.y,
                part.x_test,
                part.y_test,
                data.classes,
                data.row_norm,
            )
        )
    print(
        "| problem | n | features | classes | plan | accuracy | best of eight fixed plans | one "
        "class |"
    )
    print("|---|---|---|---|---|---|---|---|")
    lost = []
    for seed, problem in enumerate(drawn):
        n, d = problem.x.shape
        task = Task(n, d, problem.classes, problem.row_norm)
        best = consider(task, epsilon=1.0, delta=1e-5).best
        run = best.certificate.run
        ours = np.mean([accuracy(run, problem, seed + k) for k in range(2)])
        asked = PlanRequest(task, 1.0, 1e-5, "zero-out", 60.0)
        hindsight = max(
            np.mean([accuracy(asked.certificate(other).run, problem, seed + k) for k in range(2)])
            for other in fixed(asked)
        )
        lost.append(hindsight - ours)
        print(
            f"| {problem.family} | {n} | {d} | {problem.classes} | {best.name}, {run.steps} steps "
            f"| {ours:.4f} | "
            f"{hindsight:.4f} | {np.bincount(problem.y_test).max() / len(problem.y_test):.4f} |",
            flush=True,
        )
    print(f"\nlost against hindsight: mean {np.mean(lost):.4f}, worst {np.max(lost):.4f}")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 12,
        Path(sys.argv[2]) if len(sys.argv) > 2 else None,
    )
