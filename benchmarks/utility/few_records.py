"""Log loss of too few records for calibrated probabilities, with and without the public factor:
synthetic tables only.

    python -m benchmarks.utility.few_records [PROBLEMS]

Problems of synthetic_families.py with 80 to 1,200 records, 4 to 40 features, two or three classes,
epsilon .3 to 8, whose budget does not carry calibration; the best plans over secret blocks (clip
.1) and of full batches with momentum (clip .3), three seeds of the noise each. The factor is
planning/predicted_risk.py's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax

from benchmarks.utility.synthetic_families import CHOSEN_ON, TEST, UNSEEN
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task
from lastiterate.run.probability_calibration import AssumedSlope

PLANS, SEEDS, FIRST = ("allocation", "accelerated"), 3, 3000


def problems(count: int) -> Iterator[tuple[Task, float, np.ndarray, np.ndarray]]:
    """Tasks, budgets, rows and labels, the last ``TEST`` to test on."""
    makers = [*CHOSEN_ON.values(), *UNSEEN.values()]
    for seed in range(FIRST, FIRST + count):
        rng = np.random.default_rng(seed)
        n, d = (
            int(np.exp(rng.uniform(np.log(low), np.log(high))))
            for low, high in ((80, 1200), (4, 40))
        )
        classes, epsilon = int(rng.choice([2, 3])), float(rng.choice([0.3, 1.0, 3.0, 8.0]))
        x, y, norm = makers[seed % len(makers)](rng, n + TEST, d, classes)
        yield Task(n, x.shape[1], classes, norm, calibrated=True), epsilon, x.astype(np.float32), y


def main() -> None:
    lost: dict[str, list[tuple[float, float]]] = {name: [] for name in PLANS}
    for task, epsilon, x, y in problems(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
        for plan in consider(task, epsilon=epsilon, delta=1e-5).plans:
            factor = plan.certificate.run.probability_calibration
            if plan.name not in PLANS or not isinstance(factor, AssumedSlope):
                continue
            run, found = replace(plan.certificate.run, probability_calibration=None), []
            for seed in range(SEEDS):
                given = np.asarray(
                    scores(
                        run,
                        execute(run, x[: task.n], y[: task.n], key_from_seed(seed)),
                        x[task.n :],
                    )
                )
                both = np.column_stack((0 * given, given)) if given.shape[1] == 1 else given
                found.append(
                    [
                        -log_softmax(slope * both, axis=1)[np.arange(TEST), y[task.n :]].mean()
                        for slope in (1.0, factor.slope)
                    ]
                )
            before, after = np.mean(found, axis=0)
            lost[plan.name].append((float(before), float(after)))
    print(
        "| plan | problems | log loss without | with the factor | lower in |\n" + "|---" * 5 + "|"
    )
    for name, pairs in lost.items():
        before, after = np.median(pairs, axis=0)
        print(
            f"| {name} | {len(pairs)} | {before:.3f} | {after:.3f} | "
            f"{sum(b > a for b, a in pairs)} |"
        )


if __name__ == "__main__":
    main()
