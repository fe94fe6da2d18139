"""Which partition of a number's range, how many hat functions, and from how many records on:
synthetic tables only.

    python -m benchmarks.utility.curved_tables [--seeds 3] [--epsilon 1] [--regression] [--lines]

A score is a sum of effects of single columns: lines, saturating ones, bumps and steps, on uniform,
bell-shaped and heavy-tailed numbers and on categories. Printed: accuracy below the best possible
one, and AUROC, by records and knots, beside what the planner predicts for plain columns and for
curves; of regressions (targets: the score and as much noise) R^2 below the best possible one, and
R^2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score

from lastiterate.data import Category, Numeric, Schema, Table, encode
from lastiterate.data.columns import Column
from lastiterate.features import Curves
from lastiterate.planning.task import Task
from lastiterate.release import linear_plans
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.pipeline import run_release
from lastiterate.release.score_meaning import Labels, Range
from lastiterate.release.training_request import Budget, TrainingRequest

TEST = 8000
SIZES, KNOTS = (500, 2000, 8000, 30_000), (0, 4, 8, 12, 16, 32)
EFFECTS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda u: u,
    lambda u: np.tanh(4 * u),
    lambda u: -(u**2),
    lambda u: np.exp(-(((u - 0.2) / 0.25) ** 2)),
    lambda u: np.sign(u - 0.3),
    lambda u: np.abs(u + 0.2),
)
"""Of a number that a public scale has brought to [-1, 1]."""


def made(
    rng: np.random.Generator, n: int, numbers: int, categories: int, lines: bool
) -> tuple[Table, np.ndarray, tuple[Column, ...]]:
    """A table, a score of mean 0 and deviation 1, and the columns; ``lines``: all effects of
    numbers are lines."""
    cells, columns, score = {}, [], np.zeros(n)
    hidden = rng.normal(size=(n, 2))
    for i in range(numbers):
        base = hidden @ rng.normal(size=2) * 0.4 + rng.normal(size=n)
        kind = rng.integers(3)
        value = [np.tanh(base) * 50 + 50, base * 12 + 50, np.exp(base * 1.2 + 4)][kind]
        column = Numeric(
            f"n{i}",
            *((0.0, 100.0), (0.0, 100.0), (0.0, 20_000.0))[kind],
            scale=("linear", "linear", "log")[kind],
        )
        effect = EFFECTS[0 if lines else rng.integers(len(EFFECTS))]
        found = effect(column.to_unit(np.clip(value, column.low, column.high)))
        score += rng.uniform(0.3, 1) * (found - found.mean()) / max(found.std(), 1e-9)
        cells[column.name], _ = value, columns.append(column)
    for i in range(categories):
        size = int(rng.integers(2, 12))
        code = rng.choice(
            size, n, p=np.arange(1.0, size + 1) ** -1 / (np.arange(1.0, size + 1) ** -1).sum()
        )
        effect = rng.normal(size=size)[code]
        score += rng.uniform(0.2, 0.8) * (effect - effect.mean())
        cells[f"c{i}"] = [str(one) for one in code]
        columns.append(Category(f"c{i}", tuple(map(str, range(size)))))
    return Table(tuple(cells), cells), (score - score.mean()) / score.std(), tuple(columns)


def part(table: Table, rows: slice) -> Table:
    assert table.cells is not None
    return Table(table.names, {name: cells[rows] for name, cells in table.cells.items()})


def measured(
    seed: int, n: int, numbers: int, knots: int, epsilon: float, lines: bool, regression: bool
) -> tuple[float, float, float]:
    """Accuracy or R^2 below the best possible one, AUROC or R^2, and the risk that the planner
    predicts."""
    rng = np.random.default_rng(seed)
    table, score, columns = made(rng, n + TEST, numbers, numbers, lines)
    chance = 1 / (1 + np.exp(-2 * score + rng.uniform(0, 1.5)))
    y = (
        np.clip(0.25 * (score + rng.normal(size=len(score))), -1, 1)
        if regression
        else (rng.random(len(chance)) < chance).astype(int)
    )
    maps = (Curves(knots),) if knots else ()
    schema = (
        Schema(columns, features=maps, target_range=(-1.0, 1.0))
        if regression
        else Schema(columns, classes=("0", "1"), features=maps)
    )
    assert table.cells is not None
    table.cells["y"] = [str(label) for label in y]
    names = (*table.names, "y")
    x, target = encode(
        Table(names, part(table, slice(n)).cells | {"y": table.cells["y"][:n]}), schema
    )
    held, _ = encode(
        Table(names, part(table, slice(n, None)).cells | {"y": table.cells["y"][n:]}), schema
    )
    task = Task(n, x.shape[1], 0 if regression else 2, schema.form().norm)
    plan = linear_plans.plan_run(
        TrainingRequest(data=(x, target), budget=Budget(epsilon, 1e-6)), task
    )
    assert plan.choice is not None
    model = run_release(
        LINEAR,
        replace(
            plan,
            seed=seed,
            answers=Range(-1.0, 1.0) if regression else Labels((0, 1)),
        ),
    )
    scores, truth = model.scores(held)[:, 0], chance[n:]
    if regression:
        found = float(r2_score(y[n:], np.clip(scores, -1, 1)))
        return float(r2_score(y[n:], 0.25 * score[n:])) - found, found, plan.choice.best.risk
    right = np.where(scores > 0, truth, 1 - truth).mean()
    below = np.maximum(truth, 1 - truth).mean() - right
    return float(below), float(roc_auc_score(y[n:], scores)), plan.choice.best.risk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--numbers", type=int, default=6)
    parser.add_argument("--knots", default=",".join(map(str, KNOTS)))
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--lines", action="store_true", help="every effect of a number is a line")
    parser.add_argument("--regression", action="store_true", help="numbers instead of two classes")
    asked = parser.parse_args()
    measure = "R^2" if asked.regression else "AUROC"
    print(f"{'records':>8} {'knots':>6} {'below best':>11} {measure:>7} {'predicted':>10}")
    for n in map(int, asked.sizes.split(",")):
        for knots in map(int, asked.knots.split(",")):
            found = np.mean(
                [
                    measured(
                        seed, n, asked.numbers, knots, asked.epsilon, asked.lines, asked.regression
                    )
                    for seed in range(asked.seeds)
                ],
                axis=0,
            )
            print(
                f"{n:8d} {knots or 'plain':>6} {found[0]:11.4f} {found[1]:7.4f} {found[2]:10.5f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
