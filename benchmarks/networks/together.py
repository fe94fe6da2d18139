"""Accuracy and processor time of a private step, all contestants in turn, same budget, same steps.

python -m benchmarks.networks.together [--mnist FOLDER] [--rounds 3] [--only TASK] [--by
    'NAME;NAME'] [--steps 400] [--small] [--log FILE.jsonl]

Needs torch, opacus, jax-privacy and optax in this environment; who is missing is left out. Every
contestant tries its two step sizes in the first round and keeps the better one, by the public
records, which flatters all alike. One line of the log is one fit, and --rounds 0 makes the tables
of a log.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.networks.contestants import CONTESTANTS
from benchmarks.networks.tasks import Task, tasks
from benchmarks.peers.timed_bursts import quartiles


def rounds(every: list[Task], count: int, by: tuple[str, ...] = ()) -> Iterable[dict[str, Any]]:
    """One fit after another; a round is one of everything, or of those contestants whose name is
    among ``by``."""
    best = dict[tuple[str, str], float]()
    for number, task in product(range(count), every):
        for name, fit in CONTESTANTS.items():
            at = task.name, name
            if (by and name not in by) or (number and at not in best):
                continue
            found = list[tuple[float, float]]()
            for rate in (best[at],) if number else task.rates:
                try:
                    one = fit(task, rate, number)
                except ModuleNotFoundError as error:
                    print(f"{name} is left out: {error}")
                    break
                found.append((one.accuracy, rate))
                yield {
                    "task": task.name,
                    "by": name,
                    "round": number,
                    "rate": rate,
                    **one._asdict(),
                }
            if found and not number:
                best[at] = max(found)[1]


def table(lines: list[dict[str, Any]]) -> str:
    """A section for every task, in Markdown."""
    text = ""
    for task in dict.fromkeys(line["task"] for line in lines):
        text += (
            f"\n**{task}**\n\n| by | noise multiplier | step size | accuracy, median (least to "
            f"most) "
            "| processor, ms a step (IQR) |\n|---|---|---|---|---|\n"
        )
        for by in dict.fromkeys(line["by"] for line in lines if line["task"] == task):
            every = [line for line in lines if (line["task"], line["by"]) == (task, by)]
            rate = max(every, key=lambda line: (line["round"], line["accuracy"]))["rate"]
            kept = [line for line in every if line["rate"] == rate]
            scores, times = [line["accuracy"] for line in kept], [line["ms"] for line in every]
            middle, spread = quartiles(times) if len(times) > 1 else (times[0], 0.0)
            text += (
                f"| {by} | {kept[0]['noise']:.3f} | {rate:g} | {statistics.median(scores):.4f} "
                f"({min(scores):.4f} "
                f"to {max(scores):.4f}) | {middle:.1f} ({spread:.1f}) |\n"
            )
    return text


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--mnist", type=Path, help="folder with MNIST's four files")
    given.add_argument("--rounds", type=int, default=3)
    given.add_argument("--only", default="", help="tasks whose name begins so")
    given.add_argument(
        "--by", default="", help="contestants, with semicolons between their names; all without it"
    )
    given.add_argument(
        "--steps", type=int, help="another number of steps, for which noise is calibrated"
    )
    given.add_argument("--small", action="store_true", help="a few seconds of everything")
    given.add_argument("--log", type=Path, help="a line for every fit is added to it")
    asked = given.parse_args()
    torch.set_num_threads(1)
    kept = asked.log is not None and asked.rounds == 0
    lines: list[dict[str, Any]] = (
        [json.loads(line) for line in asked.log.read_text().splitlines()] if kept else []
    )
    wanted = [task for task in tasks(asked.mnist, asked.small) if task.name.startswith(asked.only)]
    if asked.steps is not None:
        wanted = [replace(task, steps=asked.steps) for task in wanted]
    for line in rounds(wanted, asked.rounds, tuple(filter(None, asked.by.split(";")))):
        lines.append(line)
        print(json.dumps(line), flush=True)
        if asked.log is not None:
            with asked.log.open("a") as log:
                log.write(json.dumps(line) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
