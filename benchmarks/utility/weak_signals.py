"""Blocks of clipped contributions beside objective perturbation, by how much rows say of labels:
synthetic only.

    python -m benchmarks.utility.weak_signals [--n 8000] [--seeds 3]

Two classes drawn from a logistic model whose scores have a standard deviation of 0.8, 1.5 or 3:
Gaussian rows with power-law spectra, and tables of numbers and categories (synthetic_families.py),
8 to 120 features. Both methods have the same preparation, calibration and budget; the ridge of
objective perturbation has the lowest predicted risk. Printed are medians over kinds and seeds: log
loss above the best possible one, and above that of the exact minimiser of the log loss without
privacy; AUROC gained by the perturbed objective; what the planner predicts of both.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from benchmarks.utility.synthetic_families import table
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning import families
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.task import Task
from lastiterate.run.run import Run

TEST, DELTA, FIRST = 8000, 1e-5, 500
Rows = tuple[np.ndarray, np.ndarray, np.ndarray, float]


def drawn(kind: str, seed: int, n: int, spread: float) -> Rows:
    """Rows, labels, chances of the second class, and the public norm."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(8, 120))
    if kind == "table":
        x, _, norm = table(rng, n + TEST, d, 2)
        score = x @ rng.normal(size=x.shape[1])
    else:
        eigenvalue = np.arange(1.0, d + 1) ** -rng.uniform(0.5, 2)
        deviation = np.sqrt(eigenvalue / eigenvalue.sum())
        x = rng.normal(size=(n + TEST, d)) * deviation + rng.normal(
            size=d
        ) * deviation * rng.uniform(0, 2)
        score, norm = (
            x @ (rng.normal(size=d) * deviation ** -rng.uniform(0, 1)),
            2 * rng.uniform(1, 2),
        )
    chance = expit((score - score.mean()) / score.std() * spread + rng.uniform(-1, 1))
    return x.astype(np.float32), (rng.random(len(score)) < chance).astype(int), chance, float(norm)


def excess(chance: np.ndarray, y: np.ndarray, given: np.ndarray) -> tuple[float, float]:
    """Log loss of scores above the best possible one, and AUROC."""
    best = -(chance * np.log(chance) + (1 - chance) * np.log1p(-chance)).mean()
    loss = (chance * np.logaddexp(0, -given) + (1 - chance) * np.logaddexp(0, given)).mean()
    return float(loss - best), float(roc_auc_score(y, given))


def measured(kind: str, seed: int, n: int, spread: float, epsilon: float) -> list[float]:
    """Log loss of blocks and of the perturbed objective, of neither; AUROC gained; both
    predictions."""
    x, y, chance, norm = drawn(kind, seed, n, spread)
    asked = PlanRequest(
        Task(n, x.shape[1], 2, norm, calibrated=True), epsilon, DELTA, "zero-out", 60.0
    )
    blocks = next(families.allocation(asked))
    objective = min(families.plan_perturbed(asked), key=asked.risk)

    def fitted(run: Run) -> tuple[float, float]:
        run = asked.certificate(run).run
        model = execute(run, x[:n], y[:n], key_from_seed(seed))
        return excess(
            chance[n:], y[n:], np.asarray(scores(run, model, x[n:]), dtype=np.float64)[:, 0]
        )

    plain = LogisticRegression(C=1e4, max_iter=3000).fit(x[:n] - x[:n].mean(axis=0), y[:n])
    without, _ = excess(chance[n:], y[n:], plain.decision_function(x[n:] - x[:n].mean(axis=0)))
    (one, first), (other, second) = fitted(blocks), fitted(objective)
    return [one, other, without, second - first, asked.risk(blocks), asked.risk(objective)]


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--n", type=int, default=8000)
    given.add_argument("--seeds", type=int, default=3)
    asked = given.parse_args()
    print(
        "| epsilon | spread of scores | blocks | objective | no privacy | AUROC gained | "
        "predicted, blocks "
        "| predicted, objective |\n" + "|---" * 8 + "|"
    )
    for epsilon, spread in product((1.0, 8.0), (0.8, 1.5, 3.0)):
        found = np.median(
            [
                measured(kind, seed, asked.n, spread, epsilon)
                for seed, kind in product(range(FIRST, FIRST + asked.seeds), ("spectrum", "table"))
            ],
            axis=0,
        )
        print(
            f"| {epsilon:g} | {spread:g} | " + " | ".join(f"{value:.4f}" for value in found) + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
