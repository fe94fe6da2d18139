"""Can an attack see one record of MNIST in a LeNet5?

python -m benchmarks.audit.network_adversary DATA_DIR [--n 2000 --passes 10 ...]

The attack of Heller and Fetaya (2023, section V) on unclipped SGLD and, with the prior's gradient
inside the clip, on SGLD clipped to 0.2 (their appendix E), on one pair of neighbours, crafted with
models of the first run. DATA_DIR holds the four files of MNIST; images get a border of 2 pixels.
The standard size is n = 2,000, 10 passes and 100 models per data set that count; --n 60000 is the
paper's data, for which lr = 500 / 60000^2 is the default step 1/240. --results DIR resumes an
interrupted run.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np

import lastiterate as li
from lastiterate.audit import AuditReport, fit_networks
from lastiterate.data import read_idx_array
from lastiterate.engine import keys_from_seed
from lastiterate_papers.finished_cells import Cells
from lastiterate_papers.langevin_network import (
    langevin_run,
    lenet_logits,
    lenet_loss,
    lenet_parameters,
    with_prior,
)
from lastiterate_papers.network_adversary import (
    Effort,
    ImageModel,
    all_logits,
    attack_network,
    instantiate,
)

MEAN, STD = 0.1307, 0.3081
"""The usual normalisation of MNIST, public numbers."""
LOW, HIGH = -MEAN / STD, (1 - MEAN) / STD
TESTED = 1000


def mnist(folder: Path, part: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The first n images (n, 1, 32, 32) float32, normalised, and labels (n,) int32; part: train or
    t10k."""
    pixels = read_idx_array(folder / f"{part}-images-idx3-ubyte.gz")[:n].reshape(-1, 1, 28, 28)
    labels = read_idx_array(folder / f"{part}-labels-idx1-ubyte.gz")[:n]
    padded = np.pad(pixels, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return ((padded / 255 - MEAN) / STD).clip(LOW, HIGH).astype(np.float32), labels.astype(np.int32)


def accuracy(
    run: li.Run, model: ImageModel, images: np.ndarray, labels: np.ndarray, folder: Path, seed: int
) -> float:
    """Mean test accuracy of three models."""
    trained = fit_networks(run, model.loss, model.params, (images, labels), keys_from_seed(seed, 3))
    test, answers = mnist(folder, "t10k", TESTED)
    return float((all_logits(model, trained, test).argmax(axis=2) == answers[:, None]).mean())


def row(name: str, passes: int, report: AuditReport) -> str:
    rate = report.rates[0]
    lower, (highest, upper) = (
        math.floor(100 * report.lower) / 100,
        (above(report.ceiling), above(report.upper)),
    )
    return (
        f"| {name} | {passes} | {rate.false_positives}, {rate.false_negatives} of {report.trials} "
        f"| {lower:.2f} | "
        f"{highest} | {upper} | {report.verdict} |"
    )


def above(value: float) -> str:
    return f"{math.ceil(100 * value) / 100:.2f}" if math.isfinite(value) else "none"


def told(done: int, of: int, rate: float, left: float) -> None:
    print(
        f"  {done} of {of} models, {rate:.1f} a minute, {left:.0f} s left",
        file=sys.stderr,
        flush=True,
    )


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("data", type=Path)
    for name, kind, default in (
        ("--n", int, 2000),
        ("--passes", int, 10),
        ("--step", float, 1 / 240),
        ("--batch", int, 4),
        ("--trials", int, 100),
        ("--pilot", int, 50),
        ("--crafting", int, 30),
        ("--batch-models", int, 30),
        ("--seed", int, 0),
        ("--delta", float, 1e-5),
    ):
        given.add_argument(name, type=kind, default=default)
    given.add_argument(
        "--clip",
        type=float,
        nargs="+",
        default=[0.0, 0.2],
        help="0: unclipped; the first run crafts the record",
    )
    given.add_argument("--results", type=Path, help="a folder to resume from")
    asked = given.parse_args()
    images, labels = mnist(asked.data, "train", asked.n)
    model = ImageModel(lenet_logits, with_prior(lenet_loss, asked.n), lenet_parameters(asked.seed))
    effort = Effort(asked.trials, asked.pilot, asked.batch_models, asked.seed)
    began = time.perf_counter()
    print(
        "| run | passes | false positives, false negatives | at least | ceiling | at most, "
        "certified | verdict |\n"
        "|---|---|---|---|---|---|---|",
        flush=True,
    )
    runs = {
        clip: langevin_run(
            asked.n, asked.passes, step_size=asked.step, batch=asked.batch, clip=clip or None
        )
        for clip in asked.clip
    }
    pair = instantiate(
        runs[asked.clip[0]],
        model,
        images,
        labels,
        low=LOW,
        high=HIGH,
        models=asked.crafting,
        seed=asked.seed,
        batch_models=asked.batch_models,
    )
    for clip, run in runs.items():
        about = {"item": "adversary", "run": run.to_dict(), "effort": vars(effort)}
        cells = None if asked.results is None else Cells.of(asked.results, about)
        name = f"clipped to {clip:g}" if clip else "SGLD"
        for place, report in enumerate(
            attack_network(
                run, model, pair, effort=effort, delta=asked.delta, cells=cells, progress=told
            ),
            1,
        ):
            print(row(name, place, report), flush=True)
        correct = accuracy(run, model, images, labels, asked.data, asked.seed)
        print(
            f"{name}: {pair.about}; test accuracy {correct:.3f}; {time.perf_counter() - began:.0f} "
            f"s so far",
            file=sys.stderr,
            flush=True,
        )


if __name__ == "__main__":
    main()
