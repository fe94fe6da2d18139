"""Whether plans of few records and small budgets should centre rows on a private mean: synthetic
tables only.

    python -m benchmarks.utility.noisy_means

Sizes and budgets of ``SHAPES``, one problem of every family each: those of synthetic_families.py,
and columns of public ranges. Accuracy of the automatic plan with a mean and without one, mean of
six seeds of the noise (delta 1e-5). "Noise": the length of the mean's noise, relative to the norm
of rows.
"""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np

from benchmarks.utility.planner_unseen import accuracy
from benchmarks.utility.synthetic_families import CHOSEN_ON, TEST, UNSEEN, Made, Maker, Problem
from lastiterate.planning import plan_request
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

SHAPES = (
    (100, 20, 2, 0.3),
    (142, 13, 3, 0.3),
    (280, 25, 2, 0.3),
    (700, 64, 5, 0.3),
    (240, 6, 2, 0.3),
    (280, 8, 3, 0.3),
    (142, 13, 3, 1.0),
    (500, 10, 2, 0.3),
)
"""Records, features, classes, epsilon."""
SEEDS, FIRST, DELTA = 6, 9000, 1e-5


def ranges(rng: np.random.Generator, n: int, d: int, classes: int) -> Made:
    """Columns in public ranges, whose middles are 0: correlated numbers around the means of the
    classes."""
    y = rng.choice(classes, n, p=rng.dirichlet(np.full(classes, 8.0)))
    offset, spread = rng.uniform(-0.5, 0.2, d), rng.uniform(0.1, 0.35, d)
    mixed = np.linalg.qr(rng.normal(size=(d, d)))[0] * 0.5 + np.eye(d)
    centres = rng.normal(size=(classes, d)) * rng.uniform(0.4, 1.2)
    return (
        np.clip(offset + spread * (centres[y] + rng.normal(size=(n, d)) @ mixed), -1, 1),
        y,
        math.sqrt(d),
    )


FAMILIES: dict[str, Maker] = {"ranges": ranges, **CHOSEN_ON, **UNSEEN}


def compared(problem: Problem, epsilon: float) -> tuple[float, float, float]:
    """The mean's noise, and accuracies with a mean and without one."""
    n, d = problem.x.shape
    task = Task(n, d, problem.classes, problem.row_norm)
    mean = plan_request.PlanRequest(task, epsilon, DELTA, "zero-out", 20.0).mean(
        plan_request.MEAN_SHARE
    )
    found = []
    for farthest in (math.inf, 0.0):
        consider.cache_clear()
        with patch.object(plan_request, "FARTHEST_MEAN", farthest):
            run = consider(
                task, epsilon=epsilon, delta=DELTA, time_budget=20.0
            ).best.certificate.run
        found.append(float(np.mean([accuracy(run, problem, seed) for seed in range(SEEDS)])))
    return mean.noise_multiplier * math.sqrt(d) / n, found[0], found[1]


def main() -> None:
    print(
        "| records | features | classes | epsilon | noise | "
        + " | ".join(FAMILIES)
        + " | mean gain |\n"
        + "|---" * (6 + len(FAMILIES))
        + "|",
        flush=True,
    )
    for n, d, classes, epsilon in SHAPES:
        cells, gains, noise = list[str](), list[float](), 0.0
        for place, maker in enumerate(FAMILIES.values()):
            x, y, norm = maker(np.random.default_rng(FIRST + place), n + TEST, d, classes)
            x = (x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True) / norm)).astype(
                np.float32
            )
            noise, before, after = compared(
                Problem("", x[:n], y[:n], x[n:], y[n:], classes, norm), epsilon
            )
            cells.append(f"{before:.3f} to {after:.3f}")
            gains.append(after - before)
        print(
            f"| {n} | {d} | {classes} | {epsilon:g} | {noise:.2f} | "
            + " | ".join(cells)
            + f" | {np.mean(gains):+.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
