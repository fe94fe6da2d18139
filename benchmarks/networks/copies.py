"""What augmentation multiplicity gains: one budget, one number of steps, with and without copies of
every record.

python -m benchmarks.networks.copies [--seeds 5] [--steps 100]

The coloured images of ``tasks``, whose patterns lie a few pixels off their place, as a module;
copies are moved by up to two pixels. Random allocation, epsilon 3; a line for every number of
copies and step size.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import statistics
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import lastiterate as li
from benchmarks.networks.contestants import DELTA, EPSILON, run_of
from benchmarks.networks.digits_from_scratch import moved
from benchmarks.networks.tasks import tasks


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--steps", type=int, default=100)
    asked = given.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    task = replace(next(one for one in tasks(None) if one.name.startswith("32")), steps=asked.steps)
    for copies in (0, 1, 4):
        how: dict[str, Any] = (
            {"augment": lambda key, x: moved(key, x, 0.0), "copies": copies} if copies else {}
        )
        for rate in task.rates:
            begun, scores = time.process_time(), list[float]()
            for seed in range(asked.seeds):
                model: Any = li.train(
                    run_of(task, li.RandomAllocation(task.batch), rate),
                    task.data[:2],
                    model=task.module(),
                    loss=cross_entropy,
                    epsilon=EPSILON,
                    delta=DELTA,
                    seed=seed,
                    **how,
                )
                scores.append(
                    task.accuracy({name: tensor.numpy() for name, tensor in model.state.items()})
                )
            seconds = (time.process_time() - begun) / asked.seeds
            print(
                f"copies {copies or 'none'}, step size {rate:g}: {statistics.mean(scores):.4f} +- "
                f"{statistics.stdev(scores):.4f}, {seconds:.1f} s of processor time a fit",
                flush=True,
            )


if __name__ == "__main__":
    main()
