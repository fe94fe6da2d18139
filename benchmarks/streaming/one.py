"""One run in a process of its own, as a line of JSON: seconds per pass, peak memory, bytes read,
noise, accuracy.

python -m benchmarks.streaming.one KIND FILE [PASSES [STEPS]]    KIND: memory, cyclic, correlated, permuted, reshuffled,
allocation, full, poisson or opacus; with /10 behind it softmax regression of ten classes, whose steps take longer. Only
the first STEPS steps of poisson and opacus are made where it is given, and no accuracy is said then
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import lastiterate as li
from benchmarks.streaming.made import PIECE, records
from benchmarks.streaming.random_access import trained
from lastiterate.engine import TrainedWeights, execute, key_from_seed, scores
from lastiterate.engine.streaming.execution import execute_streaming

PASSES, BLOCKS, EPSILON, STEP, RIDGE = 3, 100, 1.0, 2.0, 1e-4
KINDS: dict[str, Any] = {
    "memory": li.Cyclic,
    "cyclic": li.Cyclic,
    "correlated": li.Cyclic,
    "permuted": li.Permuted,
    "reshuffled": li.Reshuffled,
    "allocation": li.RandomAllocation,
}


def described(kind: str, n: int, passes: int = PASSES) -> li.Run:
    """Passes in 100 blocks, or as many batches of the same expected size, at epsilon 1; correlated:
    a public order."""
    kind, _, classes = kind.partition("/")
    loss = li.Softmax(classes=int(classes), ridge=RIDGE) if classes else li.Logistic(ridge=RIDGE)
    batching = (
        li.FullBatch()
        if kind == "full"
        else li.Poisson(1 / BLOCKS)
        if kind == "poisson"
        else KINDS[kind](-(-n // BLOCKS))
    )
    steps = passes if kind == "full" else passes * BLOCKS
    noise = li.Correlated(1.0, BLOCKS) if kind == "correlated" else li.NoiseMultiplier(1.0)
    run = li.Run(n=n, steps=steps, step_size=STEP, batching=batching, loss=loss, noise=noise)
    return li.calibrate(run, epsilon=EPSILON, delta=delta_for(n)).run


def delta_for(n: int) -> float:
    return float(10.0 ** -np.ceil(np.log10(10 * n)))


def peak() -> float:
    """The largest resident size of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def busy() -> float:
    """Processor seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def characters() -> int:
    """Bytes that this process has asked to read."""
    return int(
        dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"]
    )


@dataclass
class Watch:
    """The clock after every pass."""

    blocks: int
    times: dict[int, tuple[float, float]] = field(default_factory=dict)

    def __call__(self, done: int, steps: int, seconds: float) -> None:
        self.times.setdefault(done // self.blocks, (time.perf_counter(), busy()))

    def per_pass(self) -> tuple[float, float]:
        """Seconds and processor seconds between the end of the first pass and the end of the last
        one."""
        ends = sorted(self.times)[-1]
        (first, before), (last, after) = self.times[1], self.times[ends]
        return (last - first) / max(1, ends - 1), (after - before) / max(1, ends - 1)


def accuracy(run: li.Run, model: TrainedWeights) -> float:
    rows, labels = records(PIECE * 10**6, 20_000)
    return float((answers(scores(run, model, rows)) == labels).mean())


def linear_accuracy(weights: Any) -> float:
    rows, labels = records(PIECE * 10**6, 20_000)
    return float(((rows @ np.asarray(weights[:-1]) + weights[-1] > 0) == labels).mean())


def answers(found: np.ndarray) -> np.ndarray:
    return found.argmax(1) if found.shape[1] > 1 else found[:, 0] > 0


def warmed() -> None:
    """Everything imported and threads started, on a run of a few records."""
    rows, labels = records(0, 200)
    run = li.Run(
        n=200,
        steps=4,
        step_size=1.0,
        noise=li.GradientNoise(1.0),
        batching=li.Cyclic(100),
        loss=li.Logistic(ridge=1e-4),
    )
    execute_streaming(
        run,
        li.data.Generated(
            200, lambda first, count: (rows[first : first + count], labels[first : first + count])
        ),
        key_from_seed(0),
    )


def main(kind: str, path: Path, passes: int = PASSES, steps: int = 0) -> None:
    source: Any = li.data.stream(path)
    if kind in ("poisson", "opacus"):
        print(
            json.dumps(
                {"kind": kind} | (poisson if kind == "poisson" else by_opacus)(path, passes, steps)
            )
        )
        return
    run = described(kind, len(source), passes)
    warmed()
    watch, imported, began, used = Watch(run.blocks), peak(), time.perf_counter(), busy()
    if kind.startswith("memory"):
        model = execute(
            run, np.load(path), np.load(path.with_name("made.labels.npy")), key_from_seed(1), watch
        )
    else:
        model = execute_streaming(run, source, key_from_seed(1), watch)
    seconds, processor = watch.per_pass()
    print(
        json.dumps(
            {
                "kind": kind,
                "z": run.noise.z,
                "seconds": seconds,
                "processor": processor,
                "whole": time.perf_counter() - began,
                "busy": busy() - used,
                "memory": peak() - imported,
                "read": characters() / passes,
                "accuracy": accuracy(run, model),
            }
        )
    )


def poisson(path: Path, passes: int, steps: int) -> dict[str, float]:
    """Poisson batches, row by row in the order of the file."""
    run = described("poisson", len(li.data.stream(path)), passes)
    made = steps or run.steps
    began, used, before = time.perf_counter(), busy(), characters()
    weights = trained(path, run, made)
    seconds, each = time.perf_counter() - began, BLOCKS / made
    found = {
        "z": run.noise.z,
        "seconds": seconds * each,
        "processor": (busy() - used) * each,
        "read": (characters() - before) * each,
    }
    return (
        found
        if steps
        else found | {"whole": seconds, "busy": busy() - used, "accuracy": linear_accuracy(weights)}
    )


def by_opacus(path: Path, passes: int, steps: int) -> dict[str, float]:
    """The same batches by Opacus and its loader, in an interpreter of its own."""
    n, made = len(li.data.stream(path)), steps or passes * BLOCKS
    numbers = (passes, BLOCKS, EPSILON, delta_for(n), STEP, RIDGE, 1.0, made)
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.opacus_from_file", str(path), *map(str, numbers)],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ran.stdout.splitlines()[-1])
    weights, seconds = found.pop("weights"), found["seconds"]
    found |= {name: found[name] * BLOCKS / made for name in ("seconds", "processor", "read")}
    return found if steps else found | {"whole": seconds, "accuracy": linear_accuracy(weights)}


if __name__ == "__main__":
    jax.config.update("jax_compilation_cache_dir", None)
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
