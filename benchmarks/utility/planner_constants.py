"""The planner's constants, one at a time, on the synthetic families that they were chosen on.

python -m benchmarks.utility.planner_constants [PROBLEMS] [--out TABLES.md]

Every row changes one constant of ``lastiterate.planning`` and leaves the others; the numbers are
mean differences of test accuracy from the values in use, over problems and two seeds each, with
their standard errors (epsilon 1, delta 1e-5). No real data are read: a constant that was tuned on
private data would have to be paid for.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy as np

from benchmarks.utility.planner_unseen import accuracy
from benchmarks.utility.synthetic_families import CHOSEN_ON, Problem, draw
from lastiterate.planning import families, plan_request, planner
from lastiterate.planning.task import Task

VALUES: dict[tuple[tuple[ModuleType, ...], str], tuple[float, ...]] = {
    ((plan_request,), "CLIP"): (0.1, 0.2, 0.3, 0.5, 1.0),
    ((plan_request,), "INTERCEPT"): (0.05, 0.1, 0.2, 0.4, 0.8),
    ((plan_request,), "CENTRED"): (0.125, 0.25, 0.5, 1.0),
    ((plan_request, families), "MEAN_SHARE"): (0.02, 0.04, 0.08, 0.16, 0.3),
    ((plan_request,), "LAST_STEP"): (0.03, 0.1, 0.3, 1.0),
    ((families,), "FORGOTTEN"): (2, 4, 8, 16),
    ((families,), "CLIP"): (0.05, 0.1, 0.2, 0.4),
    ((families,), "POWER"): (0.1, 0.25, 0.35, 0.45),
    ((families,), "COVARIANCE_SHARE"): (0.02, 0.04, 0.08),
    ((families,), "TRAVELLED"): (1.8, 3.7, 7.4),
    ((families,), "RESOLVED"): (0, 3, 10, 30),
    ((families,), "SHORTEST"): (0.3, 0.6, 1.0),
}
"""Modules that hold a constant, its name, and the values that it is given."""


def scored(problem: Problem, seed: int) -> float:
    """Mean test accuracy of the automatic plan over two seeds of the noise."""
    n, d = problem.x.shape
    planner.consider.cache_clear()
    task = Task(n, d, problem.classes, problem.row_norm)
    run = planner.consider(task, epsilon=1.0, delta=1e-5, time_budget=20.0).best.certificate.run
    return float(np.mean([accuracy(run, problem, 1000 * seed + k) for k in range(2)]))


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("problems", type=int, nargs="?", default=18)
    given.add_argument("--out", type=Path, help="Markdown file that a section is appended to")
    asked = given.parse_args()
    drawn = [draw(CHOSEN_ON, seed, most=8000) for seed in range(asked.problems)]
    base = np.array([scored(problem, seed) for seed, problem in enumerate(drawn)])
    lines = [
        "\n## The planner's constants on synthetic families\n\n`python -m "
        f"benchmarks.utility.planner_constants "
        f"{asked.problems}`: mean accuracy {base.mean():.4f} as it is; differences from that when "
        f"one constant is "
        "changed, in points of accuracy, with standard errors over problems.\n",
        "| constant | in use | value: difference |",
        "|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for (modules, name), values in VALUES.items():
        cells, used = [], getattr(modules[-1], name)
        title = f"{modules[-1].__name__.rsplit('.', 1)[1]}.{name}"
        for value in values:
            if value == used:
                continue
            with ExitStack() as patched:
                for module in modules:
                    patched.enter_context(patch.object(module, name, value))
                moved = 100 * (
                    np.array([scored(problem, seed) for seed, problem in enumerate(drawn)]) - base
                )
            cells.append(
                f"{value:g}: {moved.mean():+.2f} ± {moved.std() / np.sqrt(len(moved)):.2f}"
            )
        lines.append(f"| {title} | {used:g} | {'; '.join(cells)} |")
        print(lines[-1], flush=True)
    if asked.out is not None:
        with asked.out.open("a") as out:
            out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
