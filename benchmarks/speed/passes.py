"""A pass over the data for every way of drawing batches, beside NumPy's own pass and the speed of
memory.

python -m benchmarks.speed.passes            tables for rows of several lengths, and for growing numbers of records
python -m benchmarks.speed.passes --small    the same in a few seconds, to see that it runs
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import lastiterate as li
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.run.batching import Batching

BLOCKS, ROUNDS, PASSES = 20, 9, 10
BATCHINGS: dict[str, Callable[[int], Batching]] = {
    "cyclic": lambda n: li.Cyclic(n // BLOCKS),
    "permuted": lambda n: li.Permuted(n // BLOCKS),
    "bins": lambda n: li.BallsInBins(n // BLOCKS),
    "reshuffled": lambda n: li.Reshuffled(n // BLOCKS),
    "allocation": lambda n: li.RandomAllocation(n // BLOCKS),
    "poisson": lambda n: li.Poisson(1 / BLOCKS),
    "fixed size": lambda n: li.FixedSize(n // BLOCKS),
}


def table(n: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up rows of norm about 1, and two classes."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n, features), np.float32) / np.float32(np.sqrt(features))
    return rows, (rows[:, 0] > 0).astype(np.int32)


def fit(batching: str, rows: np.ndarray, target: np.ndarray, passes: int) -> Callable[[], object]:
    """A fit of so many passes."""
    run = li.Run(
        n=len(rows),
        steps=BLOCKS * passes,
        loss=li.Logistic(),
        batching=BATCHINGS[batching](len(rows)),
        step_size=0.5,
        noise=li.NoiseMultiplier(5.0),
    )
    return lambda: Trainer(run).fit(rows, target, key_from_seed(1))


def numpy_pass(rows: np.ndarray, target: np.ndarray) -> Callable[[], object]:
    """The same gradients in public order, without noise or clipping, float32."""

    def one() -> None:
        theta = np.zeros(rows.shape[1], np.float32)
        for at in range(0, len(rows), len(rows) // BLOCKS):
            part, answer = (
                rows[at : at + len(rows) // BLOCKS],
                target[at : at + len(rows) // BLOCKS],
            )
            theta -= 0.5 / len(part) * (part.T @ (1 / (1 + np.exp(-part @ theta)) - answer))

    return one


def taken(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock and of the processors."""
    wall, processors = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - processors


def measured(n: int, features: int, rounds: int) -> list[str]:
    """A row for every batching: milliseconds of a pass beyond the first, and its ratios inside a
    round."""
    rows, target = table(n, features)
    copy, plain = np.empty_like(rows), numpy_pass(rows, target)
    pairs = {
        name: (fit(name, rows, target, 1), fit(name, rows, target, 1 + PASSES))
        for name in BATCHINGS
    }
    for short, _ in pairs.values():
        short()  # compile
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in pairs}
    for _ in range(rounds):
        memory, numpy, cyclic = taken(lambda: np.copyto(copy, rows))[0], taken(plain), (0.0, 0.0)
        for name, (short, long) in pairs.items():
            once, more = taken(short), taken(long)
            one = tuple((b - a) / PASSES for a, b in zip(once, more, strict=True))
            cyclic = one if name == "cyclic" else cyclic
            found[name].append(
                (
                    1e3 * one[0],
                    1e3 * one[1],
                    one[0] / cyclic[0],
                    one[1] / cyclic[1],
                    one[0] / numpy[0],
                    one[0] / memory,
                    once[0],
                )
            )
    return [
        f"| {n} | {4 * features} | {name} | "
        + " | ".join(f"{statistics.median(column):.3g}" for column in zip(*values, strict=True))
        + " |"
        for name, values in found.items()
    ]


def main() -> None:
    """Rows of several lengths, then more and more records."""
    small = "--small" in sys.argv
    sizes = (
        [(4000, 25)]
        if small
        else [
            (1_000_000, 25),
            (1_000_000, 256),
            (100_000, 1000),
            (10_000, 100),
            (100_000, 100),
            (1_000_000, 100),
            (10_000_000, 25),
        ]
    )
    print(
        "| records | bytes a row | batches | ms a pass | processor ms | over cyclic | processor | "
        "over NumPy's pass "
        "| over a copy | first fit of one pass, s |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    for n, features in sizes:
        print(
            "\n".join(measured(n, features, 3 if small or n * features > 1e8 else ROUNDS)),
            flush=True,
        )


if __name__ == "__main__":
    main()
