"""The automatic plan on made-up tables of few and many columns: R^2 of regressions, AUROC of two
classes.

python -m benchmarks.utility.made_up_tables LOG.jsonl [--classes 2] [--problems 48] [--before
OTHER.jsonl]

Columns are normal, heavy-tailed, uniform or one-hot, correlated by chance, with ranges wider than
their values; the target is a bent sum of some of them with normal, lognormal, exponential or
Laplace noise. Every problem is fitted at epsilon .3, 1, 3 and 8 (delta 1e-5), twice. ``--before``:
the log of another version, for the mean difference by cell.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score

from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

COLUMNS, RECORDS = (1, 2, 4, 8, 16, 30, 60, 100), (500, 2000, 8000, 20_000)
EPSILONS, DELTA, TEST, FITS = (0.3, 1.0, 3.0, 8.0), 1e-5, 4000, 2
LOWEST = -0.2  #: what a worse R^2 counts as


class Made(NamedTuple):
    """Rows (n + TEST, d) with entries in [-1, 1], and targets in [-1, 1] or classes."""

    n: int
    rows: np.ndarray
    target: np.ndarray


def made(seed: int, classes: int) -> Made:
    """One table; its size goes round with the seed."""
    rng, d = np.random.default_rng(seed), COLUMNS[seed % len(COLUMNS)]
    n, kind = int(rng.choice(RECORDS)), str(rng.choice(("normal", "heavy", "uniform", "one-hot")))
    values = rng.normal(size=(n + TEST, d))
    values = values @ (
        np.eye(d) + rng.normal(size=(d, d)) * rng.uniform(0, 0.6) / max(1.0, d / 8) ** 0.5
    )
    values /= values.std(axis=0)
    if kind == "heavy":
        values = np.sign(values) * np.expm1(np.abs(values)) / 3
    elif kind == "uniform":
        values = 1.5 * np.tanh(values)
    rows = np.clip(rng.uniform(-0.4, 0.4, d) + rng.uniform(0.08, 0.35, d) * values, -1, 1)
    if kind == "one-hot":
        half = d // 2
        rows[:, :half] = values[:, :half] > rng.uniform(-0.5, 2, half)
    weights = rng.normal(size=d) * (rng.random(d) < max(0.5, 2 / d))
    weights[0] = 1.0
    signal = (rows - rows.mean(axis=0)) / np.maximum(rows.std(axis=0), 1e-3) @ weights
    signal += 0.3 * signal.std() * np.sin(1.5 * signal / signal.std())
    signal /= signal.std()
    if classes:
        chance = 1 / (1 + np.exp(-rng.uniform(1, 3) * signal - rng.choice((0.0, 0.0, -2.0))))
        return Made(n, rows.astype(np.float32), (rng.random(n + TEST) < chance).astype(int))
    drawn = {
        "normal": rng.normal,
        "lognormal": partial(rng.lognormal, 0.0, 0.8),
        "exponential": rng.exponential,
        "laplace": rng.laplace,
    }
    noise = drawn[str(rng.choice(list(drawn)))](size=n + TEST)
    part = rng.choice((0.2, 0.4, 0.7, 0.9))
    target = np.sqrt(part) * signal + np.sqrt(1 - part) * (noise - noise.mean()) / noise.std()
    target = rng.uniform(-0.5, 0.2) + rng.uniform(0.15, 0.4) * target
    return Made(n, rows.astype(np.float32), np.clip(target, -1, 1))


def measured(seed: int, classes: int, epsilon: float) -> dict[str, object]:
    """The plan that is chosen for one table and budget, and the mean of its scores on test records."""
    n, rows, target = made(seed, classes)
    d = rows.shape[1]
    best = consider(Task(n, d, classes, d**0.5), epsilon=epsilon, delta=DELTA).best
    run = best.certificate.run

    def score(fit: int) -> float:
        found = scores(
            run, execute(run, rows[:n], target[:n], key_from_seed(seed + 1000 * fit)), rows[n:]
        )[:, -1]
        by = (
            roc_auc_score(target[n:], found)
            if classes
            else r2_score(target[n:], np.clip(found, -1, 1))
        )
        return max(LOWEST, float(by))

    return {
        "seed": seed,
        "classes": classes,
        "n": n,
        "d": d,
        "epsilon": epsilon,
        "plan": best.name,
        "score": float(np.mean([score(fit) for fit in range(FITS)])),
    }


def compared(before: Path, after: Path) -> str:
    """Mean change by cell with its standard error, and how many cells moved by more than .002."""
    logs = [
        {
            (line["seed"], line["classes"], line["epsilon"]): line["score"]
            for line in map(json.loads, path.read_text().splitlines())
        }
        for path in (before, after)
    ]
    change = np.array(
        [logs[1][cell] - logs[0][cell] for cell in sorted(set(logs[0]) & set(logs[1]))]
    )
    return (
        f"{len(change)} cells: {change.mean():+.4f} (standard error "
        f"{change.std() / len(change) ** 0.5:.4f}), "
        f"better by more than .002 in {(change > 0.002).sum()}, worse in {(change < -0.002).sum()} "
        f"(at most "
        f"{max(0.0, -change.min()):.3f})"
    )


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("log", type=Path)
    given.add_argument("--classes", type=int, choices=(0, 2), default=0, help="0 for a regression")
    given.add_argument("--problems", type=int, default=48)
    given.add_argument("--before", type=Path, help="the log of another version")
    asked = given.parse_args()
    with asked.log.open("a") as out:
        for seed in range(10_000, 10_000 + asked.problems):
            for epsilon in EPSILONS:
                print(json.dumps(measured(seed, asked.classes, epsilon)), file=out, flush=True)
    if asked.before is not None:
        print(compared(asked.before, asked.log))


if __name__ == "__main__":
    main()
