"""Probabilities with and without calibration, against scikit-learn on the same rows.

    python -m benchmarks.utility.probabilities [--seeds 10] [--epsilon 1.0] [--n 8000,30000]

Synthetic tables of 12 numbers in [-1, 1] whose classes are drawn from a logistic model with a score
of standard deviation 1.2, and an intercept that gives the wanted part of positives. Seeds of the
fits and of the tables are new ones: the constants of the calibration were chosen on seeds 0 to 3.
Expected calibration error: 15 bins of equally many of 20,000 test records, mean distance between
mean probability and frequency.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from lastiterate.estimators import DPLogisticRegression

COLUMNS, SPREAD, TEST, BINS, FIRST_SEED = 12, 1.2, 20_000, 15, 100
POSITIVES = (0.04, 0.1, 0.27, 0.5)
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def table(n: int, positives: float, seed: int) -> Split:
    """Rows and labels to train on, and to test on."""
    rng = np.random.default_rng(seed)
    x = np.clip(0.4 * rng.normal(size=(n + TEST, COLUMNS)), -1, 1)
    score = x @ rng.normal(size=COLUMNS)
    score *= SPREAD / score.std()
    score += brentq(lambda added: float(expit(score + added).mean()) - positives, -30, 30)
    y = (rng.random(len(x)) < expit(score)).astype(int)
    return x[:n], y[:n], x[n:], y[n:]


def log_loss(y: np.ndarray, chance: np.ndarray) -> float:
    """Of probabilities of class 1."""
    return float(-np.log(np.where(y == 1, chance, 1 - chance)).mean())


def calibration_error(y: np.ndarray, chance: np.ndarray) -> float:
    """Expected calibration error over bins of equally many records."""
    order = np.argsort(chance, kind="stable")
    parts = np.array_split(order, BINS)
    return float(
        sum(abs(chance[part].mean() - y[part].mean()) * len(part) for part in parts) / len(y)
    )


def measured(n: int, positives: float, epsilon: float, seed: int) -> dict[str, float]:
    """One table: log loss relative to scikit-learn's, calibration error and accuracy, with and
    without calibration."""
    from sklearn.linear_model import LogisticRegression

    x, y, x_test, y_test = table(n, positives, seed)
    plain = LogisticRegression(C=1e6, max_iter=1000).fit(x, y)
    best = log_loss(y_test, plain.predict_proba(x_test)[:, 1])
    found = {"constant": log_loss(y_test, np.full(TEST, y.mean())) / best - 1, "sklearn": best}
    for name, calibrated in (("with", True), ("without", False)):
        model = DPLogisticRegression(
            epsilon=epsilon, row_norm=2.0, classes=[0, 1], calibrated=calibrated, random_state=seed
        ).fit(x, y)
        chance = model.predict_proba(x_test)[:, 1]
        found |= {
            f"loss {name}": log_loss(y_test, chance) / best - 1,
            f"error {name}": calibration_error(y_test, chance),
            f"accuracy {name}": float(((chance > 0.5) == y_test).mean()),
        }
    found["gained"] = found["accuracy with"] - found["accuracy without"]
    return found


def row(n: int, positives: float, found: Sequence[dict[str, float]]) -> str:
    """Medians over tables, the worst in brackets."""

    def middle(name: str) -> float:
        return statistics.median(one[name] for one in found)

    def worst(name: str) -> float:
        return max(one[name] for one in found)

    least = min(one["gained"] for one in found)
    return (
        f"| {n:,} | {positives:g} | {middle('sklearn'):.4f} | +{100 * middle('constant'):.0f} % "
        f"| +{100 * middle('loss without'):.0f} % (+{100 * worst('loss without'):.0f}) "
        f"| +{100 * middle('loss with'):.1f} % (+{100 * worst('loss with'):.1f}) "
        f"| {middle('error without'):.3f} | {middle('error with'):.3f} ({worst('error with'):.3f}) "
        f"| {middle('gained'):+.4f} ({least:+.4f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--n", default="8000,30000")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(
        "| n | positives | log loss of scikit-learn | one constant | without calibration | with it "
        "| calibration error without | with it | accuracy gained |\n" + "|---" * 9 + "|"
    )
    for n in map(int, given.n.split(",")):
        for positives in POSITIVES:
            found = [
                measured(n, positives, given.epsilon, FIRST_SEED + seed)
                for seed in range(given.seeds)
            ]
            print(row(n, positives, found), flush=True)


if __name__ == "__main__":
    main()
