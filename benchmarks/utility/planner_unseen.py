"""The automatic plan on problems that its rule was not tuned on, beside fixed plans chosen on the test data.

python -m benchmarks.utility.planner_unseen [PROBLEMS] [DATA_DIR]        DATA_DIR adds PneumoniaMNIST

Sizes are drawn at random from three unseen synthetic families. Every fixed plan keeps the same budget (epsilon 1, delta
1e-5); the best of them in hindsight is a yardstick that nobody could use.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import lastiterate as li
from benchmarks.utility.data_sets import load, split
from benchmarks.utility.synthetic_families import UNSEEN, Problem, draw
from lastiterate.engine import execute, scores, seeded_key
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

GRID = [(steps, momentum) for steps in (24, 96, 384) for momentum in (0.5, 0.875)]


def accuracy(run: li.Run, problem: Problem, seed: int) -> float:
    found = scores(run, execute(run, problem.x, problem.y, seeded_key(seed)), problem.x_test)
    return float((guessed(found) == problem.y_test).mean())


def guessed(found: np.ndarray) -> np.ndarray:
    """The most probable class of every row of scores."""
    return (found[:, 0] > 0).astype(int) if found.shape[1] == 1 else found.argmax(axis=1)


def fixed(run: li.Run, steps: int, momentum: float) -> li.Run:
    """Full batches with momentum and constant steps, whatever the planner chose; the same loss, clip and mean."""
    clip = 0.3 * run.loss.facts().fact("lipschitz")
    other = replace(run, steps=steps, step_size=li.Constant(run.first_step), clip=clip,
                    batching=li.FullBatch(), momentum=li.HeavyBall(momentum))
    return li.calibrate(other, epsilon=1.0, delta=1e-5).run


def main(problems: int, folder: Path | None) -> None:
    drawn = [draw(UNSEEN, seed, most=8000) for seed in range(problems)]
    if folder is not None:
        data = load("pneumonia", folder)
        part = split(data, 0)
        drawn.append(Problem("PneumoniaMNIST", part.x, part.y, part.x_test, part.y_test, data.classes, data.row_norm))
    print("| problem | n | features | classes | plan | accuracy | best of six fixed plans | one class |")
    print("|---|---|---|---|---|---|---|---|")
    lost = []
    for seed, problem in enumerate(drawn):
        n, d = problem.x.shape
        best = consider(Task(n, d, problem.classes, problem.row_norm), epsilon=1.0, delta=1e-5).best
        run = best.certificate.run
        ours = np.mean([accuracy(run, problem, seed + k) for k in range(2)])
        hindsight = max(accuracy(fixed(run, *setting), problem, seed) for setting in GRID)
        lost.append(hindsight - ours)
        print(f"| {problem.family} | {n} | {d} | {problem.classes} | {best.name}, {run.steps} steps | {ours:.4f} | "
              f"{hindsight:.4f} | {np.bincount(problem.y_test).max() / len(problem.y_test):.4f} |", flush=True)
    print(f"\nlost against hindsight: mean {np.mean(lost):.4f}, worst {np.max(lost):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
