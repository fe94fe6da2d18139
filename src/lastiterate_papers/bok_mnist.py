"""Bok, Su and Altschuler 2024: the accuracy of noisy cyclic gradient descent on MNIST, certified as
it is executed."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import lastiterate as li
from lastiterate_papers import real_data
from lastiterate_papers.bok import BATCH, DELTA, PAPER, SIGMA, STEP
from lastiterate_papers.item import Item, Panel, Result, Row, Work, traced

if TYPE_CHECKING:
    from lastiterate.engine import TrainedWeights

CLIP, ROW = 5.0, 8.0
"""Clips of a record's gradient and of a row, as in their experiment."""


def run_for(n: int, passes: int, ridge: float) -> li.Run:
    """Their settings; the scalar 1 - p_y is capped so that no gradient exceeds their clip."""
    longest = math.hypot(ROW, 1.0)
    loss = li.Softmax(
        classes=10, row_norm=ROW, ridge=ridge, intercept=1.0, cap=CLIP / (math.sqrt(2) * longest)
    )
    return li.Run(
        n=n,
        steps=passes * (n // BATCH),
        step_size=STEP,
        noise=li.GradientNoise(SIGMA),
        batching=li.Cyclic(BATCH),
        adjacency="replace-one",
        loss=loss,
    )


def accuracy(work: Work) -> Result:
    """Test accuracy after 50, 100 and 200 passes, with blocks in public and in secret order."""
    images, labels = real_data.mnist_images(work.data_dir, "train", work.size(6000, 60_000))
    test, answers = real_data.mnist_images(work.data_dir, "t10k")
    x, x_test = ((part.reshape(len(part), -1) / 255).astype(np.float32) for part in (images, test))
    rows, lines = list[Row](), dict[str, list[float]]()
    counts = (5, 20, 50) if work.quick else (50, 100, 200)
    seeds = range(work.seed, work.seed + work.size(1, 3))
    for ridge in (0.002, 0.004):
        base = run_for(len(x), counts[-1], ridge)
        runs = {
            "cyclic": base,
            "one secret permutation": replace(base, batching=li.Permuted(BATCH)),
        }
        if ridge == 0.002:
            runs["no privacy"] = replace(base, noise=li.GradientNoise(0.0))
        for name, run in runs.items():
            found = work.cell(
                f"ridge {ridge}, {name}",
                partial(accuracies_after, run, (x, labels), (x_test, answers), seeds, counts),
            )
            lines[f"{name}, ridge {ridge}"] = [float(np.mean(of_seeds)) for of_seeds in found]
            for passes, right in zip(counts, lines[f"{name}, ridge {ridge}"], strict=True):
                what = f"ridge {ridge}, {passes} passes, {name}"
                rows.append(Row(f"{what}: test accuracy", right, unit="%"))
                if name != "no privacy":
                    shorter = run.truncate(passes * run.blocks)
                    rows.append(
                        Row(
                            f"{what}: epsilon at {DELTA:g}, certified",
                            li.account(shorter).epsilon(DELTA),
                        )
                    )
    private = [lines[f"{name}, ridge 0.002"] for name in ("cyclic", "one secret permutation")]
    rows.append(
        Row(
            "ridge 0.002: most accuracy that privacy costs at equal passes",
            float(np.max(np.array(lines["no privacy, ridge 0.002"]) - private)),
            unit="points of a hundred",
        )
    )
    traces = traced(counts, lines, "certified", "sampling", "chance", "other upper", "assumed")
    return Result(
        tuple(rows),
        (Panel(f"MNIST, n = {len(x)}", "passes", "test accuracy, %", traces, True),),
        {
            "n": len(x),
            "b": BATCH,
            "step": STEP,
            "sigma": SIGMA,
            "clip": CLIP,
            "row norm": ROW,
            "ridge": [0.002, 0.004],
            "passes": list(counts),
            "seeds": work.size(1, 3),
            "start": "0",
        },
        (
            "The accuracies of their Table 2 are not in the text at hand; its epsilons are those of "
            "bok-table1.",
            "Clipping the gradient of softmax with ten classes is not nonexpansive, so that their "
            "bound does "
            "not cover it: here the scalar 1 - p_y is capped to the same length "
            "(docs/theorems/capped-losses), "
            "which keeps the loss convex. Start at 0 instead of small random weights.",
            "Accuracies after fewer passes are those of the same executions, looked at on the way: "
            "what a run "
            "of so many passes releases.",
        ),
    )


def accuracies(
    run: li.Run, train: real_data.Labelled, test: real_data.Labelled, seeds: range
) -> list[float]:
    """Test accuracy in per cent of one execution per seed."""
    from lastiterate.engine import execute, key_from_seed

    return [right(run, execute(run, *train, key_from_seed(seed)), test) for seed in seeds]


def accuracies_after(
    run: li.Run,
    train: real_data.Labelled,
    test: real_data.Labelled,
    seeds: range,
    counts: tuple[int, ...],
) -> list[list[float]]:
    """The same after every number of passes: the first passes of a run are those of a shorter one,
    so that nothing is trained twice, and the seeds read every block together."""
    from lastiterate.audit import weights_after
    from lastiterate.engine import TrainedWeights, key_from_seed

    keys = np.stack([key_from_seed(seed) for seed in seeds])
    weights = weights_after(run, *train, keys, [passes * run.blocks for passes in counts])
    return [
        [right(run, TrainedWeights(one), test) for one in weights[:, place]]
        for place in range(len(counts))
    ]


def right(run: li.Run, model: TrainedWeights, test: real_data.Labelled) -> float:
    """Test accuracy in per cent."""
    from lastiterate.engine import scores

    return 100 * float((scores(run, model, test[0]).argmax(axis=1) == test[1]).mean())


ITEMS = (
    Item(
        "bok-mnist",
        PAPER,
        "MNIST: accuracy over passes, certified as executed",
        "not published",
        accuracy,
        real_data.MNIST,
        finding="Privacy costs almost no accuracy in their regime: at most [ridge 0.002: most "
        "accuracy that privacy "
        "costs at equal passes] of test accuracy.",
    ),
)
