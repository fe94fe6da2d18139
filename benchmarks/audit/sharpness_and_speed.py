"""How sharp and how fast audits are: python -m benchmarks.audit.sharpness_and_speed [--quick]
[--torch-python PYTHON].

Tightness: lower over upper bound, runs calibrated to epsilon 1, 100,000 models per data set,
failure probability 0.05. ``any trainer``: the (eps, delta) test, which assumes nothing;
``Gaussian``: for a trainer whose two laws are Gaussian given the batches, as these are for squared
error: the GDP test where nothing is drawn. Speed: models per minute of one batch, against a loop in
PyTorch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import replace

import numpy as np

import lastiterate as li
from benchmarks.peers.child_process import TORCH, Child
from lastiterate.audit import audit, worst_case
from lastiterate.audit.statistics import Counts, epsilon_lower, gaussian_epsilon, mu_lower
from lastiterate.engine import Trainer, keys_from_seed

TASK = {"n": 100, "d": 20, "steps": 200, "step_size": 1.0, "std": 0.05, "ridge": 0.01}
QUADRATIC = li.HuberRidge(row_norm=1.0, residual_clip=1.0, ridge=0.2, intercept=0.0)
FLAT = replace(QUADRATIC, ridge=0.0)
BASE = li.Run(
    n=10, steps=20, step_size=li.Constant(0.5), noise=li.GradientNoise(1.0), loss=QUADRATIC
)
LOGISTIC = li.Logistic(row_norm=1.0, ridge=0.01, intercept=0.0)
RUNS = {
    "full batch, quadratic": (BASE, 1e-5),
    "cyclic, 2 blocks, quadratic": (replace(BASE, batching=li.Cyclic(5)), 1e-5),
    "cyclic, 5 blocks, ridge 1.5": (
        replace(BASE, batching=li.Cyclic(2), loss=replace(QUADRATIC, ridge=1.5)),
        1e-5,
    ),
    "cyclic, 5 blocks, quadratic": (replace(BASE, batching=li.Cyclic(2)), 1e-5),
    "full batch, quadratic, delta 1e-2": (BASE, 1e-2),
    "full batch, logistic, delta 1e-2": (
        replace(BASE, steps=50, step_size=li.Constant(2.0), loss=LOGISTIC),
        1e-2,
    ),
    "cyclic, logistic, delta 1e-2": (
        replace(BASE, steps=50, step_size=li.Constant(2.0), loss=LOGISTIC, batching=li.Cyclic(2)),
        1e-2,
    ),
} | {
    f"{batching.word}, {about}": (replace(BASE, batching=batching, loss=loss), 1e-5)
    for batching in (
        li.Poisson(0.2),
        li.RandomAllocation(2),
        li.FixedSize(2),
        li.BallsInBins(2),
        li.Permuted(2),
        li.Reshuffled(2),
    )
    for about, loss in (("quadratic", QUADRATIC), ("flat", FLAT))
}


def tightness(trials: int, seed: int, only: str = "") -> list[dict[str, float | str]]:
    """One row per run."""
    rows: list[dict[str, float | str]] = []
    for name, (base, delta) in ((name, found) for name, found in RUNS.items() if only in name):
        run = li.calibrate(base, epsilon=1.0, delta=delta).run
        began = time.perf_counter()
        report = audit(run, trials=trials, delta=delta, seed=seed)
        rows.append(
            {
                "run": name,
                "delta": delta,
                "upper": report.upper,
                "exact pair": li.account(run).lower(delta),
                "any trainer": report.lower,
                "Gaussian": report.lower_gaussian or math.nan,
                "ratio": (report.lower_gaussian or report.lower) / report.upper,
                "verdict": report.verdict,
                "seconds": time.perf_counter() - began,
            }
        )
    return rows


def power(repetitions: int = 2000) -> list[dict[str, float]]:
    """Median lower bound at 95 % on a pair of Gaussians of epsilon 1 at delta 1e-5, by models per
    data set."""
    from scipy.special import ndtr

    mu, rng, rows = 0.2675, np.random.default_rng(0), []
    tail = np.linspace(0, 4, 81)
    for trials in (500, 2000, 10_000, 100_000, 1_000_000):
        middle = rng.binomial(trials, ndtr(-mu / 2), (2, repetitions))
        found = mu_lower(Counts(middle[0], trials, middle[1], trials), 0.05)
        best = max(
            float(
                np.median(
                    epsilon_lower(
                        Counts(
                            rng.binomial(trials, ndtr(-t), repetitions),
                            trials,
                            rng.binomial(trials, ndtr(t - mu), repetitions),
                            trials,
                        ),
                        1e-5,
                        0.05,
                    )
                )
            )
            for t in tail
        )
        rows.append(
            {
                "models per data set": trials,
                "GDP test": gaussian_epsilon(float(np.median(found)), 1e-5),
                "(eps, delta) test, best threshold": best,
            }
        )
    return rows


def speed(models: int) -> dict[str, float]:
    """Models per minute of one batch: by the clock, and per minute of processor time; without
    compilation."""
    loss = li.Logistic(row_norm=1.0, ridge=TASK["ridge"], intercept=1.0)
    run = li.Run(
        n=int(TASK["n"]),
        steps=int(TASK["steps"]),
        step_size=li.Constant(TASK["step_size"]),
        noise=li.GradientNoise(TASK["std"]),
        loss=loss,
    )
    data_set = worst_case(run, int(TASK["d"])).with_record
    found: list[np.ndarray] = []
    for count in (models // 10, models):
        keys = keys_from_seed(0, count)
        began = np.array([time.perf_counter(), time.process_time()])
        Trainer(run).fit_many(data_set.features, data_set.target, keys)
        found.append(np.array([time.perf_counter(), time.process_time()]) - began)
    clock, processor = 60 * (models - models // 10) / (found[1] - found[0])
    return {"with compilation": 60 * models / found[1][0], "clock": clock, "processor": processor}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("--quick", action="store_true", help="a tenth of the models")
    given.add_argument("--speed", action="store_true", help="only the speed")
    given.add_argument("--seed", type=int, default=0)
    given.add_argument("--only", default="", help="only runs whose name has this in it")
    TORCH.option(given)
    asked = given.parse_args()
    scale = 10 if asked.quick else 1
    for row in (
        ()
        if asked.speed
        else (*tightness(100_000 // scale, asked.seed, asked.only), *power(2000 // scale))
    ):
        print(
            json.dumps(
                {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in row.items()}
            ),
            flush=True,
        )
    own = speed(20_000 // scale)
    print(
        json.dumps({"task": TASK, "models per minute": {k: round(v) for k, v in own.items()}}),
        flush=True,
    )
    python = TORCH.python(asked)
    if python is None:
        return
    with Child(python, "torch_many_models", json.dumps(TASK)) as child:
        for mode in ("autograd", "closed form"):
            answer = child.ask(mode=mode, models=200 // scale)
            rates = {key: 60 * answer["models"] / answer[key] for key in ("clock", "processor")}
            print(
                json.dumps(
                    {
                        "name": f"{child.about['name']}, {mode}",
                        "threads": child.about["threads"],
                        "models per minute": {key: round(rate) for key, rate in rates.items()},
                        "times faster": {
                            key: round(own[key] / rate, 1) for key, rate in rates.items()
                        },
                    }
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
