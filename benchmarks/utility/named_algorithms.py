"""Accuracy of every named algorithm at delta 1e-5, zero-out; splits and noise varied over seeds.

python -m benchmarks.utility.named_algorithms DATA_DIR [SEEDS] [--sets digits,adult] [--epsilons
    0.5,1] [--algorithms noisy-gd,dp-sgld] [--json FILE]

Nothing is tuned: the runs follow from n, the number of features and classes, and the budget.
DATA_DIR: data_sets.py. What FILE has already, of at least so many seeds, is kept and not measured
again; everything else joins it. The algorithm ``none`` is scikit-learn's logistic regression
without privacy on the same rows, once for all budgets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.utility.data_sets import load, split
from lastiterate.accounting.noise_calibration import calibrate
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.presets import ALGORITHMS, describe_algorithm
from lastiterate.planning.task import Task
from lastiterate.release.model_kinds import LINEAR
from lastiterate.release.pipeline import run_release
from lastiterate.release.training_request import TrainingRequest

DELTA, NONE = 1e-5, "none"


def measured(
    short: str, folder: Path, name: str, seeds: int, epsilon: float = 1.0
) -> dict[str, Any]:
    """One algorithm on one set: what certifies it, the accuracies, seconds of a fit."""
    data = load(short, folder)
    first = split(data, 0)
    asked = PlanRequest(
        Task(len(first.x), first.x.shape[1], data.classes, data.row_norm),
        epsilon,
        DELTA,
        "zero-out",
        600.0,
    )
    began = time.perf_counter()
    certificate = calibrate(describe_algorithm(asked, name), epsilon=epsilon, delta=DELTA)
    calibrating, run = time.perf_counter() - began, certificate.run
    found, taken = [], []
    for seed in range(seeds):
        part = split(data, seed)
        began = time.perf_counter()
        model = run_release(
            LINEAR,
            TrainingRequest(proof=certificate, data=(part.x, part.y), delta=DELTA, seed=seed),
        )
        taken.append(time.perf_counter() - began)
        found.append(float((model.predict(part.x_test) == part.y_test).mean()))
    return {
        "set": data.name,
        "n": run.n,
        "epsilon": epsilon,
        "algorithm": name,
        "theorem": certificate.best(DELTA).theorem.name,
        "passes": run.gradient_evaluations / run.n,
        "batches in a pass": round(run.n / run.divisor),
        "steps": run.steps,
        "accuracy": found,
        "mean": float(np.mean(found)),
        "sd": float(np.std(found)),
        "seconds": float(np.median(taken)),
        "probability_calibration": calibrating,
    }


def without_privacy(short: str, folder: Path, seeds: int) -> dict[str, Any]:
    """The same splits by scikit-learn's defaults: accuracies, seconds of a fit, iterations as
    passes."""
    data = load(short, folder)
    found, taken, passes = list[float](), list[float](), list[int]()
    for seed in range(seeds):
        part = split(data, seed)
        model = LogisticRegression(max_iter=100 if part.x.size > 3e7 else 1000)
        began = time.perf_counter()
        model.fit(part.x, part.y)
        taken.append(time.perf_counter() - began)
        passes.append(int(np.max(model.n_iter_)))
        found.append(float(model.score(part.x_test, part.y_test)))
    return {
        "set": data.name,
        "n": len(split(data, 0).x),
        "epsilon": None,
        "algorithm": NONE,
        "passes": float(np.median(passes)),
        "accuracy": found,
        "mean": float(np.mean(found)),
        "sd": float(np.std(found)),
        "seconds": float(np.median(taken)),
    }


def kept(file: Path | None) -> dict[tuple[object, ...], dict[str, Any]]:
    """The rows of a file, by set, budget and algorithm; rows without a budget are of epsilon 1."""
    rows = json.loads(file.read_text()) if file is not None and file.is_file() else []
    return {(row["set"], row.get("epsilon", 1.0), row["algorithm"]): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("seeds", type=int, nargs="?", default=10)
    parser.add_argument("--sets", default="digits,adult,mnist,cifar")
    parser.add_argument("--epsilons", default="1", help="budgets, by commas")
    parser.add_argument("--algorithms", default=",".join(ALGORITHMS[1:]), help="names, by commas")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = kept(asked.json)
    print(
        "| set | epsilon | algorithm | theorem | batches in a pass | steps | accuracy, mean | sd | "
        "seconds a fit |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for short in asked.sets.split(","):
        called = load(short, asked.folder).name
        budgets = [float(text) for text in asked.epsilons.split(",")]
        wanted = itertools.product(asked.algorithms.split(","), budgets)
        for name, epsilon in dict.fromkeys(
            (name, None if name == NONE else budget) for name, budget in wanted
        ):
            if len(rows.get((called, epsilon, name), {"accuracy": ()})["accuracy"]) >= asked.seeds:
                continue
            row = (
                without_privacy(short, asked.folder, asked.seeds)
                if epsilon is None
                else measured(short, asked.folder, name, asked.seeds, epsilon)
            )
            rows[called, epsilon, name] = row
            cells = (
                str(row.get(key, ""))
                for key in ("set", "epsilon", "algorithm", "theorem", "batches in a pass", "steps")
            )
            numbers = f"{row['mean']:.4f} | {row['sd']:.4f} | {row['seconds']:.1f}"
            print("| " + " | ".join(cells) + f" | {numbers} |", flush=True)
            if asked.json is not None:
                asked.json.write_text(json.dumps(list(rows.values()), indent=1) + "\n")


if __name__ == "__main__":
    main()
