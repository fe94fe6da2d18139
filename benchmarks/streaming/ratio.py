"""Linear models in pieces beside the same runs in memory, interleaved in one process, page cache
warm.

python -m benchmarks.streaming.ratio FILE [ROUNDS]     a .npy file that made.write makes (0.6 without FILE)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

import lastiterate as li
from benchmarks.streaming.made import write
from benchmarks.streaming.one import Watch, described, warmed
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.streaming.execution import execute_streaming

PASSES, KINDS = 6, ("cyclic", "permuted", "allocation", "cyclic/10", "allocation/10")


def passes_of(watch: Watch) -> np.ndarray:
    """Seconds and processor seconds of every pass behind the second, (passes, 2): rows are arranged
    before."""
    return np.diff([watch.times[i] for i in sorted(watch.times)], axis=0)[1:]


def main(path: Path, rounds: int) -> None:
    source, rows, labels = (
        li.data.stream(path),
        np.load(path),
        np.load(path.with_name("made.labels.npy")),
    )
    warmed()
    print(
        "| batches | s per pass in memory | in pieces | throughput | processor s in memory | in "
        "pieces | "
        "throughput per processor s |\n" + "|---" * 7 + "|"
    )
    for kind in KINDS:
        run = described(kind, len(source), PASSES)
        found: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for _ in range(rounds):
            for place in (0, 1):
                watch = Watch(run.blocks)
                if place == 0:
                    execute(run, rows, labels, key_from_seed(1), watch)
                else:
                    execute_streaming(run, source, key_from_seed(1), watch)
                found[place].append(passes_of(watch))
        (wall, busy), (wall_in_pieces, busy_in_pieces) = (
            np.median(np.concatenate(part), 0) for part in found
        )
        print(
            f"| {kind} | {wall:.3g} | {wall_in_pieces:.3g} | {wall / wall_in_pieces:.0%} | "
            f"{busy:.3g} | "
            f"{busy_in_pieces:.3g} | {busy / busy_in_pieces:.0%} |",
            flush=True,
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(
            Path(sys.argv[1]) if len(sys.argv) > 1 else write(Path(folder), 0.6)[0],
            int(sys.argv[2]) if len(sys.argv) > 2 else 2,
        )
