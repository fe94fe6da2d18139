"""One run in a process of its own, as a line of JSON: seconds per pass, peak memory, bytes read, noise, accuracy.

python -m benchmarks.streaming.one KIND FILE    KIND: memory, cyclic, permuted, reshuffled, allocation,
full or poisson; with /10 behind it softmax regression of ten classes, whose steps take longer
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lastiterate as li
from benchmarks.streaming.made import FEATURES, PIECE, records
from lastiterate.engine import Model, execute, scores, seeded_key
from lastiterate.engine.streaming.linear import execute_streaming

PASSES, BLOCKS, EPSILON = 3, 100, 1.0
KINDS: dict[str, Any] = {"memory": li.Cyclic, "cyclic": li.Cyclic, "permuted": li.Permuted,
                         "reshuffled": li.Reshuffled, "allocation": li.RandomAllocation}


def described(kind: str, n: int) -> li.Run:
    """Three passes in 100 blocks, or as many batches of the same expected size, at epsilon 1."""
    kind, _, classes = kind.partition("/")
    loss = li.Softmax(classes=int(classes), ridge=1e-4) if classes else li.Logistic(ridge=1e-4)
    batching = li.FullBatch() if kind == "full" else li.Poisson(1 / BLOCKS) if kind == "poisson" else \
        KINDS[kind](-(-n // BLOCKS))
    steps = PASSES if kind == "full" else PASSES * BLOCKS
    run = li.Run(n=n, steps=steps, step_size=2.0, batching=batching, loss=loss)
    return li.calibrate(run, epsilon=EPSILON, delta=10.0 ** -np.ceil(np.log10(10 * n))).run


def peak() -> float:
    """The largest resident size of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def busy() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def characters() -> int:
    """Bytes that this process has asked to read."""
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@dataclass
class Watch:
    """The clock after every pass."""

    blocks: int
    times: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, done: int, steps: int, seconds: float) -> None:
        self.times.setdefault(done // self.blocks, (time.perf_counter(), busy()))

    def per_pass(self) -> tuple[float, float]:
        """Seconds and processor seconds between the end of the first pass and the end of the last one."""
        (first, before), (last, after) = self.times[1], self.times[PASSES]
        return (last - first) / (PASSES - 1), (after - before) / (PASSES - 1)


def accuracy(run: li.Run, model: Model) -> float:
    rows, labels = records(PIECE * 10**6, 20_000)
    return float((answers(scores(run, model, rows)) == labels).mean())


def answers(found: np.ndarray) -> np.ndarray:
    return found.argmax(1) if found.shape[1] > 1 else found[:, 0] > 0


def warmed() -> None:
    """Everything imported and threads started, on a run of a few records."""
    rows, labels = records(0, 200)
    run = li.Run(n=200, steps=4, step_size=1.0, noise=li.GradientNoise(1.0), batching=li.Cyclic(100),
                 loss=li.Logistic(ridge=1e-4))
    execute_streaming(run, li.data.Generated(200, lambda first, count: (rows[first:first + count],
                                                                        labels[first:first + count])), seeded_key(0))


def main(kind: str, path: Path) -> None:
    source: Any = li.data.stream(path)
    run = described(kind, len(source))
    if kind == "poisson":
        print(json.dumps({"kind": kind, "z": run.noise.z} | random_access(path, run)))
        return
    warmed()
    watch, imported, began = Watch(run.blocks), peak(), time.perf_counter()
    if kind.startswith("memory"):
        model = execute(run, np.load(path), np.load(path.with_name("made.labels.npy")), seeded_key(1), watch)
    else:
        model = execute_streaming(run, source, seeded_key(1), watch)
    seconds, processor = watch.per_pass()
    print(json.dumps({"kind": kind, "z": run.noise.z, "seconds": seconds, "processor": processor,
                      "whole": time.perf_counter() - began, "memory": peak() - imported,
                      "read": characters() / PASSES, "accuracy": accuracy(run, model)}))


def random_access(path: Path, run: li.Run) -> dict[str, float]:
    """Only the reading of Poisson batches, row by row in the order of the file, for 10 of 300 batches."""
    rng, n, size = np.random.default_rng(0), run.n, 4 * FEATURES
    found, before = np.empty(FEATURES, np.float32), characters()
    with path.open("rb", buffering=0) as file:
        began, used = time.perf_counter(), busy()
        for _ in range(10):
            for place in np.flatnonzero(rng.random(n) < 1 / BLOCKS):
                file.seek(128 + int(place) * size)
                file.readinto(found)  # type: ignore[arg-type]
        seconds, processor = time.perf_counter() - began, busy() - used
    return {"seconds": 10 * seconds, "processor": 10 * processor, "read": 10 * (characters() - before)}


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    main(sys.argv[1], Path(sys.argv[2]))
