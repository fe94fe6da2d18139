"""Noise that cancels beside what the planner takes without it, in memory, on synthetic problems of
random size.

python -m benchmarks.utility.cancelling_noise [PROBLEMS]

Problems of both kinds of synthetic families in turn, delta 1e-5, three runs of every plan on the
same keys. Under zero-out the rival is secret blocks that are drawn anew in every pass, under
replace-one (where the planner takes noise that cancels for streams alone) whitened rows in full
batches. A row is a kind of neighbours and an epsilon: mean differences in test accuracy with their
standard errors, for all problems and for those where noise that cancels has the lower predicted
risk; medians of the ratios of processor time and of risk.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace

import numpy as np

from benchmarks.utility.planner_unseen import accuracy
from benchmarks.utility.synthetic_families import CHOSEN_ON, UNSEEN, Problem, draw
from lastiterate.planning.families import FAMILIES
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import Plan, best_of
from lastiterate.planning.task import Task
from lastiterate.run.adjacency import Adjacency

RIVALS: dict[Adjacency, str] = {"zero-out": "allocation", "replace-one": "whitened"}
EPSILONS, SEEDS, NAME = (0.3, 1.0, 3.0, 8.0), 3, "correlated"


def compared(
    problem: Problem, adjacency: Adjacency, epsilon: float
) -> tuple[float, float, float] | None:
    """Difference in accuracy, ratio of processor time, ratio of predicted risk; ``None`` where a
    plan is missing."""
    task = Task(len(problem.x), problem.x.shape[1], problem.classes, problem.row_norm)
    plans = [
        best_of(
            PlanRequest(replace(task, streamed=streamed), epsilon, 1e-5, adjacency, 60.0),
            name,
            FAMILIES[name].runs,
        )
        for name, streamed in ((NAME, adjacency != "zero-out"), (RIVALS[adjacency], False))
    ]
    found: list[tuple[float, float, float]] = []
    for plan in plans:
        if not isinstance(plan, Plan):
            return None
        run = plan.certificate.run
        accuracy(run, problem, 0)  # compile
        began = time.process_time()
        right = np.mean([accuracy(run, problem, seed) for seed in range(SEEDS)])
        found.append((float(right), time.process_time() - began, plan.risk))
    ours, theirs = found
    return ours[0] - theirs[0], ours[1] / theirs[1], ours[2] / theirs[2]


def words(differences: np.ndarray) -> str:
    """Their number, mean and standard error."""
    if len(differences) < 2:
        return f"{len(differences)}"
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return f"{len(differences)}: {differences.mean():+.5f} ({error:.5f}), worst {differences.min():+.4f}"


def main(problems: int) -> None:
    """A row as soon as it is known."""
    warnings.simplefilter("ignore")
    drawn = [draw(families, seed) for seed in range(problems) for families in (CHOSEN_ON, UNSEEN)]
    print("| neighbours, rival | epsilon | all problems | lower predicted risk | time | risk |")
    print("|---|---|---|---|---|---|")
    for adjacency, rival in RIVALS.items():
        for epsilon in EPSILONS:
            rows = np.array(
                [row for each in drawn if (row := compared(each, adjacency, epsilon)) is not None]
            )
            lower = rows[rows[:, 2] < 1, 0]
            print(
                f"| {adjacency}, {rival} | {epsilon:g} | {words(rows[:, 0])} | {words(lower)} | "
                f"{np.median(rows[:, 1]):.2f} | {np.median(rows[:, 2]):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
