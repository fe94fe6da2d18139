"""How cost grows with the number of records: 16 features, rows made by a source and never stored,
100 blocks.

python -m benchmarks.streaming.growth 10000 100000 1000000 10000000
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np

import lastiterate as li
from benchmarks.streaming.one import Watch, described, peak, warmed
from lastiterate.engine import key_from_seed
from lastiterate.engine.streaming.execution import execute_streaming

D = 16
ROWS = np.random.default_rng(0).standard_normal((2**16, D), dtype=np.float32) / 4
LABELS = (ROWS.sum(1) > 0).astype(np.int64)


def made(first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The same 65,536 rows again and again, so that making them costs nothing."""
    place = np.arange(first, first + count) % len(ROWS)
    return ROWS[place], LABELS[place]


def one(n: int, kind: str) -> None:
    warmed()
    began = time.perf_counter()
    run = described(kind, n)
    accounting, imported, watch = time.perf_counter() - began, peak(), Watch(run.blocks)
    execute_streaming(run, li.data.Generated(n, made), key_from_seed(1), watch)
    seconds, processor = watch.per_pass()
    print(json.dumps([n, kind, seconds, processor, peak() - imported, accounting]))


def main(counts: list[str]) -> None:
    print(
        "| records | batches | s per pass | processor s per pass | peak beyond imports, MB | "
        "accounting, s |\n"
        "|---|---|---|---|---|---|"
    )
    for count in counts:
        for kind in ("cyclic", "permuted"):
            ran = subprocess.run(
                [sys.executable, "-m", "benchmarks.streaming.growth", "--one", count, kind],
                capture_output=True,
                text=True,
                check=True,
            )
            n, kind, *numbers = json.loads(ran.stdout.splitlines()[-1])
            print(
                f"| {n:,} | {kind} | " + " | ".join(f"{number:.3g}" for number in numbers) + " |",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        one(int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1:])
