"""Accuracy of the automatic plan at delta 1e-5, zero-out, beside the best plan without whitened
rows and secret blocks.

python -m benchmarks.utility.automatic_plan DATA_DIR --out TABLES.md --log FITS.jsonl [--sets ...]
[--seeds N]

DATA_DIR: see data_sets.py (mnist/, adult/, *.npz). Splits and noise vary with the seed and are the
same for both plans. Where a set has its own test part, training takes a random 90 % of the train
part. ``--log`` keeps every finished fit, one JSON object a line, so that an interrupted run goes
on.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.utility.data_sets import LOADERS, Set, load, split
from benchmarks.utility.planner_unseen import guessed
from lastiterate.accounting.explain import composition_epsilon
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.planner import Choice, Plan, consider
from lastiterate.planning.task import Task

DELTA = 1e-5
EPSILONS = (0.3, 1.0, 3.0, 8.0)
NEW = ("allocation", "whitened")


def before(choice: Choice) -> Plan:
    """The plan that would be chosen among families on centred rows."""
    return min((plan for plan in choice.plans if plan.name not in NEW), key=lambda plan: plan.risk)


def measured(data: Set, plan: Plan, seed: int) -> dict[str, Any]:
    """Test accuracy and seconds of one fit."""
    part, run = split(data, seed), plan.certificate.run
    began = time.perf_counter()
    model = execute(run, part.x, part.y, key_from_seed(seed))
    seconds = time.perf_counter() - began
    right = guessed(scores(run, model, part.x_test)) == part.y_test
    return {
        "plan": plan.name,
        "passes": run.steps / run.blocks,
        "blocks": run.blocks,
        "accuracy": float(right.mean()),
        "seconds": seconds,
        "composition": composition_epsilon(plan.certificate, DELTA),
    }


def fits(
    data: Set,
    short: str,
    seeds: int,
    which: list[str],
    log: Path,
    done: dict[tuple[Any, ...], dict[str, Any]],
) -> None:
    """Every fit that the log does not hold yet."""
    for seed in range(seeds):
        n = len(split(data, seed).x)
        for epsilon in EPSILONS:
            choice = consider(
                Task(n, data.x.shape[1], data.classes, data.row_norm), epsilon=epsilon, delta=DELTA
            )
            for name, plan in (("automatic", choice.best), ("centred", before(choice))):
                key = (short, epsilon, name, seed)
                if key in done or name not in which:
                    continue
                done[key] = measured(data, plan, seed)
                with log.open("a") as out:
                    out.write(
                        json.dumps(
                            dict(zip(("set", "epsilon", "which", "seed"), key, strict=True))
                            | done[key]
                        )
                        + "\n"
                    )


def row(short: str, name: str, epsilon: float, done: dict[tuple[Any, ...], dict[str, Any]]) -> str:
    """One line of the table; differences over the seeds that both plans have."""
    every = [k[3] for k in done if k[:3] == (short, epsilon, "automatic")]
    seeds = [seed for seed in every if (short, epsilon, "centred", seed) in done]
    ours = [done[short, epsilon, "automatic", seed] for seed in every]
    theirs = [done[short, epsilon, "centred", seed] for seed in seeds]
    accuracy, other = (np.array([fit["accuracy"] for fit in fits]) for fits in (ours, theirs))
    gain, one = (
        np.array([done[short, epsilon, "automatic", seed]["accuracy"] for seed in seeds]) - other,
        ours[0],
    )
    other_plan = f"{theirs[0]['plan']}, {theirs[0]['passes']:g} passes" if theirs else "not run"
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else float("nan")
    later = [fit["seconds"] for fit in ours[1:]] or [one["seconds"]]
    centred = f"{other.mean():.4f} | {gain.mean():+.4f} ({error:.4f})" if len(other) else "|"
    return (
        f"| {name} | {epsilon:g} | {len(every)} ({len(seeds)}) | {one['plan']}, {one['passes']:g} "
        f"passes of "
        f"{one['blocks']} | {accuracy.mean():.4f} ({accuracy.std():.4f}) | {other_plan} | "
        f"{centred} | "
        f"{one['composition']:.3g} | {np.median(later):.2f} |"
    )


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path)
    given.add_argument("--out", type=Path, help="Markdown file that a section is appended to")
    given.add_argument(
        "--log",
        type=Path,
        default=Path("automatic_plan.jsonl"),
        help="finished fits, to resume from",
    )
    given.add_argument("--sets", nargs="*", choices=list(LOADERS), default=list(LOADERS))
    given.add_argument("--seeds", type=int, default=10)
    given.add_argument(
        "--which", nargs="*", choices=["automatic", "centred"], default=["automatic", "centred"]
    )
    asked = given.parse_args()
    lines = asked.log.read_text().splitlines() if asked.log.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(fit["set"], fit["epsilon"], fit["which"], fit["seed"]): fit for fit in found}
    table = [
        "| set | epsilon | seeds (both) | plan | accuracy (sd) | centred rows | accuracy | "
        "difference (se) | "
        "composition would charge | seconds a fit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for short in asked.sets:
        data = load(short, asked.folder)
        fits(data, short, asked.seeds, asked.which, asked.log, done)
        table += [row(short, data.name, epsilon, done) for epsilon in EPSILONS]
    print("\n".join(table))
    if asked.out is not None:
        with asked.out.open("a") as out:
            out.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
