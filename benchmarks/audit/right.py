"""How often does an audit contradict a right trainer? python -m benchmarks.audit.right [--count N]
[--seed S] ...

Descriptions are drawn at random: batches, loss, clip, update rule, method, domain, penalty,
adjacency, what is released and the noise of epsilon 1/2 to 4. Each is audited as a user audits it.
What nothing certifies or executes is drawn again. One JSON line per audit, then how many of them
say that there is a bug; a failure probability of 0.05 each allows some.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.audit import audit
from lastiterate.errors import NotCertified

DELTA = 1e-5


def drawn(rng: np.random.Generator) -> li.Run | None:
    """A random description with its noise; ``None`` where its parts do not go together."""

    def one(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    def size() -> int:
        return int(rng.integers(2, 5))

    rows = {
        "row_norm": float(rng.uniform(0.2, 2)),
        "ridge": float(rng.uniform(0, 1)),
        "intercept": one(0.0, 0.5, 1.0),
    }
    kind = one("squares", "logistic", "classes", "network")
    loss = {
        "squares": lambda: li.HuberRidge(residual_clip=float(rng.uniform(0.5, 3)), **rows),
        "logistic": lambda: li.Logistic(**rows),
        "classes": lambda: li.Softmax(classes=3, **rows),
        "network": lambda: li.KnownConstants(li.LossFacts()),
    }[kind]()
    batching = one(
        li.FullBatch,
        lambda: li.Cyclic(size()),
        lambda: li.Permuted(size()),
        lambda: li.Reshuffled(size()),
        lambda: li.Poisson(float(rng.uniform(0.1, 0.6))),
        lambda: li.FixedSize(size()),
        lambda: li.RandomAllocation(size()),
        lambda: li.BallsInBins(size()),
    )()
    given: dict[str, Any] = {
        "n": int(rng.integers(6, 13)),
        "steps": int(rng.integers(2, 25)),
        "step_size": float(rng.uniform(0.1, 1)),
        "loss": loss,
        "batching": batching,
        "adjacency": one("zero-out", "replace-one"),
        "release": one("last", "last", "all"),
        "optimizer": one(None, None, li.Nesterov(), li.HeavyBall(0.5), li.Adam()),
        "clip": float(rng.uniform(0.3, 2)) if kind == "network" else one(None, 0.7),
    }
    if kind != "network":
        given |= one(
            {},
            {},
            {"domain": li.domains.Ball(2.0)},
            {"prox": li.penalties.L1(0.01)},
            {"method": li.TailAverage(0.5)},
        )
    try:
        return li.calibrate(li.Run(**given), epsilon=float(rng.uniform(0.5, 4)), delta=DELTA).run
    except (li.InputError, NotCertified):
        return None


def row(run: li.Run, trials: int | None, seed: int) -> dict[str, Any] | None:
    """One line, or ``None`` where audits do not execute the run."""
    began = time.perf_counter()
    try:
        report = audit(run, trials=trials, seed=seed, delta=DELTA)
    except (li.InputError, NotCertified):
        return None
    by = [one.attack for one in report.seen if one.refuted_at is not None]
    return {
        "run": run.to_dict(),
        "alarm": report.refuted,
        "by": [*by, *report.violations],
        "upper": report.upper,
        "lower": report.lower,
        "trials": report.trials,
        "seconds": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("--count", type=int, default=100)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument(
        "--trials", type=int, help="models per data set that count; default: as the audit chooses"
    )
    asked = given.parse_args()
    rng, alarms, done = np.random.default_rng(asked.seed), 0, 0
    while done < asked.count:
        run = drawn(rng)
        found = None if run is None else row(run, asked.trials, int(rng.integers(2**31)))
        if found is not None:
            done, alarms = done + 1, alarms + found["alarm"]
            print(json.dumps(found), flush=True)
    print(json.dumps({"audits": done, "alarms": alarms}), flush=True)


if __name__ == "__main__":
    main()
