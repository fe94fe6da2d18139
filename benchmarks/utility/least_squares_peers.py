"""Private regression on made-up tables: the automatic plan, and least squares from noisy second
moments.

python -m benchmarks.utility.least_squares_peers [--tables 10]        (five minutes, one core)

Tables are those of ``made_up_tables``, with seeds that nothing was chosen on. Peers are given a public
range for every column as the plan is, and the larger budget mu of Gaussian differential privacy that
(epsilon, delta) allows. AdaSSP: Wang 2018 (arXiv:1803.02596), algorithm 2, its three releases by
Gaussian noise of equal shares. Boosted AdaSSP: Tang, Aydore, Kearns, Rho, Roth, Wang, Wang, Wu 2023
(arXiv:2303.03451): noisy second moments once, then rounds of noisy sums of clipped residuals; rounds
and clip are the best in hindsight for every budget, free of charge.
"""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np
from sklearn.metrics import r2_score

import lastiterate as li
from benchmarks.utility.made_up_tables import DELTA, FITS, LOWEST, made
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task, budget

EPSILONS, FIRST, FAILURE = (0.3, 1.0, 3.0), 20_000, 0.05
ROUNDS, CLIPS = (2, 5, 20), (0.25, 0.5, 1.0)


def executed(run: li.Run, rows: np.ndarray, target: np.ndarray, n: int, seed: int) -> np.ndarray:
    """Predictions for all rows, of a run on the first n."""
    model = execute(run, rows[:n], target[:n], key_from_seed(seed))
    return scores(run, model, rows[n:])[:, 0]


def noisy_moments(
    x: np.ndarray, mu: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Second moments of rows of norm at most 1 with a ridge that keeps them invertible; two releases
    of budget ``mu`` each."""
    d = x.shape[1]
    moments = x.T @ x
    least = (
        np.linalg.eigvalsh(moments)[0] + (rng.normal() - math.sqrt(2 * math.log(6 / DELTA))) / mu
    )
    wanted = math.sqrt(d * math.log(2 * d * d / FAILURE)) / mu
    half = np.triu(rng.normal(size=(d, d))) / mu
    noise = half + np.triu(half, 1).T
    return moments + noise + max(0.0, wanted - max(least, 0.0)) * np.eye(d), moments


def boosted(
    x: np.ndarray, y: np.ndarray, mu: float, rounds: int, clip: float, rng: np.random.Generator
) -> np.ndarray:
    """Weights after ``rounds`` sums of residuals that are clipped to ``clip``; one round with clip 1 is
    AdaSSP."""
    share = mu / math.sqrt(3)
    inverse = np.linalg.pinv(noisy_moments(x, share, rng)[0])
    weights = np.zeros(x.shape[1])
    for _ in range(rounds):
        residuals = np.clip(y - x @ weights, -clip, clip)
        noise = rng.normal(size=x.shape[1]) * clip * math.sqrt(rounds) / share
        weights = weights + inverse @ (x.T @ residuals + noise)
    return weights


def compare(seed: int, epsilon: float) -> dict[str, float]:
    """R^2 on the test records of one table, means of FITS fits."""
    n, rows, target = made(seed, 0)
    d = rows.shape[1]
    task, truth = Task(n, d, 0, d**0.5), target[n:]
    plan = consider(task, epsilon=epsilon, delta=DELTA).best.certificate.run
    x = np.concatenate((rows, np.ones((len(rows), 1))), axis=1) / math.sqrt(d + 1)
    mu = budget(epsilon, DELTA)

    def score(predictions: np.ndarray) -> float:
        return max(LOWEST, float(r2_score(truth, np.clip(predictions, -1, 1))))

    def mean(name: str, fit: int) -> float:
        key = seed + 1000 * fit
        if name == "plan":
            return score(executed(plan, rows, target, n, key))
        rounds, clip = settings[name]
        return score(
            x[n:] @ boosted(x[:n], target[:n], mu, rounds, clip, np.random.default_rng(key))
        )

    settings = {"AdaSSP": (1, 1.0)} | {
        f"boosted {rounds} {clip}": (rounds, clip)
        for rounds, clip in itertools.product(ROUNDS, CLIPS)
    }
    names = ("plan", *settings)
    return {name: float(np.mean([mean(name, fit) for fit in range(FITS)])) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=10)
    tables = parser.parse_args().tables
    print("| epsilon | plan | AdaSSP | boosted: rounds, clip | behind the better peer at most |")
    print("|---|---|---|---|---|")
    for epsilon in EPSILONS:
        found = [compare(FIRST + at, epsilon) for at in range(tables)]
        means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        best = max((name for name in means if name.startswith("boosted")), key=means.__getitem__)
        peers = ("AdaSSP", best)
        behind = [max(one[name] for name in peers) - one["plan"] for one in found]
        print(
            f"| {epsilon:g} | {means['plan']:.3f} | {means['AdaSSP']:.3f} | "
            f"{means[best]:.3f} ({best.removeprefix('boosted ')}) | {max(behind):.3f} of table "
            f"{int(np.argmax(behind))}; in {sum(gap > 0.005 for gap in behind)} of {tables} by .005 |",
            flush=True,
        )


if __name__ == "__main__":
    main()
