"""Forgetting records of plain ridge models against training anew: passes, seconds and accuracy.

    OMP_NUM_THREADS=1 python -m benchmarks.utility.forgetting DATA_DIR adult cifar made --out
    forgetting.md

Models: scikit-learn's logistic regression with a ridge and no noise, on rows of norm 1 with a
constant column, and ``forgetting-sgd`` at epsilon 1. Requests of 1, 10, 100 and 1,000 random
records, each from the same model, at epsilon 1 and delta 1e-5, the mean of three draws. Training
anew on the records that stay: the same solver from weights of 0 (its iterations count as passes),
or the same run. Accuracy on the test part.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lastiterate as li
from benchmarks.utility.data_sets import load, split
from lastiterate.errors import RepeatedFitWarning
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.presets import describe_algorithm
from lastiterate.planning.task import Task as PublicTask
from lastiterate.planning.unlearning_plans import plan_unlearning
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.model_kinds import UNLEARNED
from lastiterate.release.pipeline import finish
from lastiterate.release.unlearning import TrainingHistory, make_order, read_training

REQUESTS = (1, 10, 100, 1000)
EPSILON, DELTA = 1.0, 1e-5


@dataclass(frozen=True, eq=False)
class Task:
    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def unit(rows: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Rows of norm 1 with a constant column."""
    rows = np.asarray(rows, np.float64) - mean
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.column_stack((rows, np.ones(len(rows)))) / np.sqrt(2)


def made(n: int = 1_000_000, d: int = 255) -> Task:
    """A table of independent columns, and a linear rule with noise."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n + 20_000, d), dtype=np.float32)
    y = (
        x @ rng.standard_normal(d).astype(np.float32) + 8 * rng.standard_normal(len(x)) > 0
    ).astype(int)
    rows = unit(x, np.zeros(d))
    return Task(f"made, {n:,} x {d + 1}", rows[:n], y[:n], rows[n:], y[n:])


def task(name: str, folder: Path) -> Task:
    """The mean is taken as public here, so that models of all requests read the same rows."""
    if name == "made":
        return made()
    data = load(name, folder)
    part = split(data, 0)
    mean = np.asarray(part.x, np.float64).mean(axis=0)
    return Task(
        f"{data.name}, {len(part.x):,} x {part.x.shape[1] + 1}",
        unit(part.x, mean),
        np.asarray(part.y, int),
        unit(part.x_test, mean),
        np.asarray(part.y_test, int),
    )


def plain(found: Task, ridge: float, kept: np.ndarray):
    """scikit-learn's model on the records ``kept``; n stays the public number of records, by its C."""
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LogisticRegression(
            C=1 / (ridge * len(found.x)), fit_intercept=False, max_iter=1000
        ).fit(found.x[kept], found.y[kept])


def private(found: Task) -> li.Run:
    """The run of ``train --algorithm forgetting-sgd --epsilon 1``."""
    task = PublicTask(len(found.x), found.x.shape[1], int(found.y.max()) + 1)
    run = describe_algorithm(PlanRequest(task, EPSILON, DELTA, "zero-out", 60.0), "forgetting-sgd")
    return li.calibrate(run, epsilon=EPSILON, delta=DELTA).run


def requests(
    found: Task,
    start: TrainingHistory,
    anew: Callable[[np.ndarray], tuple[float, float, float]],
    how: str,
) -> Iterator[str]:
    """A line for each request; ``anew``: passes, seconds and accuracy of training on the records
    that stay."""
    n = len(found.x)
    for removed in REQUESTS:
        gone = np.sort(np.random.default_rng(removed).choice(n, removed, replace=False))
        try:
            plan = plan_unlearning(
                start.training, (), removed, found.x.shape[1], epsilon=EPSILON, delta=DELTA
            )
        except li.NotCertified:
            yield f"| {found.name} | {how} | {removed:,} | refused | | | | | | | |"
            continue
        scores, took = [], math.inf
        for seed in range(3):  # the first compiles
            began = time.perf_counter()
            order = make_order(
                start, plan, (found.x, found.y), tuple(gone.tolist()), DELTA, Charging(), seed
            )
            new = finish(UNLEARNED, order)
            took = min(took, time.perf_counter() - began)
            scores.append(float((new.predict(found.x_test) == found.y_test).mean()))
        passes, seconds, accuracy = anew(np.delete(np.arange(n), gone))
        yield (
            f"| {found.name} | {how} | {removed:,} | {plan.passes} | {took:.1f} | "
            f"{np.mean(scores):.4f} | "
            f"{passes:g} | {seconds:.1f} | {accuracy:.4f} | {plan.run.start.std:.3g} | "
            f"{plan.excess:.2g} |"
        )


def of_plain(found: Task, ridge: float) -> Iterator[str]:
    def anew(kept: np.ndarray) -> tuple[float, float, float]:
        began = time.perf_counter()
        model = plain(found, ridge, kept)
        return (
            float(np.max(model.n_iter_)),
            time.perf_counter() - began,
            model.score(found.x_test, found.y_test),
        )

    start = read_training(plain(found, ridge, np.arange(len(found.x))), found.x, found.y, 1.0)
    yield from requests(found, start, anew, f"ridge {ridge:g}, no noise")


def of_private(found: Task) -> Iterator[str]:
    run = private(found)

    def anew(kept: np.ndarray) -> tuple[float, float, float]:
        x, y = np.zeros_like(found.x), np.zeros_like(found.y)
        x[kept], y[kept] = found.x[kept], found.y[kept]
        began = time.perf_counter()
        model = li.train(run, (x, y), delta=DELTA, seed=1)
        took = time.perf_counter() - began
        return (
            run.steps / run.blocks,
            took,
            float((model.predict(found.x_test) == found.y_test).mean()),
        )

    start = read_training(
        li.train(run, (found.x, found.y), delta=DELTA, seed=0), found.x, found.y, None
    )
    yield from requests(
        found, start, anew, f"ridge {run.loss.ridge:.2g}, forgetting-sgd at epsilon 1"
    )


HEAD = (
    "| data | training | removed | passes | seconds | accuracy | passes anew | seconds anew | "
    "accuracy anew | "
    "noise | predicted excess |",
    "|" + "---|" * 11,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", help="adult, cifar or made")
    parser.add_argument(
        "--trainings", default="0.01,0.001,private", help="ridges without noise, or private"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", RepeatedFitWarning)
    lines = [*HEAD]
    for name in asked.names:
        found = task(name, asked.folder)
        for how in asked.trainings.split(","):
            for line in of_private(found) if how == "private" else of_plain(found, float(how)):
                print(line, flush=True)
                lines.append(line)
                if asked.out is not None:
                    asked.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
