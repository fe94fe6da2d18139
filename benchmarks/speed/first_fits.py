"""Seconds of the first fit of a process and of later ones, with the automatic plan.

python -m benchmarks.speed.first_fits [--rounds 3]      synthetic rows of the sizes of MNIST, CIFAR-10 features, Adult

Every round starts a process for each size; clocks and, in brackets, processor seconds are medians over
rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

SIZES = ((60_000, 784, 10), (50_000, 512, 10), (45_000, 100, 2))
LATER = 3


def measure(n: int, columns: int, classes: int) -> dict[str, list[float]]:
    """Clock and processor seconds of imports, the first fit, and the median of later ones."""
    began, spent = time.perf_counter(), time.process_time()

    def lap() -> list[float]:
        nonlocal began, spent
        found = [time.perf_counter() - began, time.process_time() - spent]
        began, spent = time.perf_counter(), time.process_time()
        return found

    import numpy as np

    import lastiterate.engine  # noqa: F401  # what a fit imports
    from lastiterate.estimators import DPLogisticRegression

    imports = lap()
    random = np.random.default_rng(0)
    x = random.random((n, columns), dtype=np.float32)
    y = (x @ random.normal(size=(columns, classes)) + random.normal(size=(n, classes))).argmax(1)
    laps = list[list[float]]()
    for _ in range(1 + LATER):
        model = DPLogisticRegression(
            epsilon=1.0,
            delta=1e-5,
            classes=list(range(classes)),
            row_norm=columns**0.5,
        )
        lap()
        model.fit(x, y)
        laps.append(lap())
    later = [statistics.median(each) for each in zip(*laps[1:], strict=True)]
    return {"imports": imports, "first": laps[0], "later": later}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=int, nargs=3)
    asked = parser.parse_args()
    if asked.child:
        print(json.dumps(measure(*asked.child)))
        return
    found: dict[tuple[int, int, int], list[dict[str, list[float]]]] = {size: [] for size in SIZES}
    kept = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}  # what is imported is compiled once
    for _ in range(asked.rounds):
        for size in SIZES:
            child = [
                sys.executable,
                "-m",
                "benchmarks.speed.first_fits",
                "--child",
                *map(str, size),
            ]
            done = subprocess.run(child, capture_output=True, text=True, check=True, env=kept)
            found[size].append(json.loads(done.stdout.splitlines()[-1]))
    print("| rows | imports | first fit | later fits |\n|---|---|---|---|")
    for size, laps in found.items():
        cells = [
            "{:.2f} ({:.2f})".format(
                *(statistics.median(one[part][at] for one in laps) for at in (0, 1))
            )
            for part in ("imports", "first", "later")
        ]
        print(f"| {size[0]:,} x {size[1]}, {size[2]} classes | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
