"""Step times in short bursts: the task that every library is timed on, and how a timed child
answers its parent.

Only NumPy and the standard library, because every library's environment imports this file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.peers.child_process import serve

N, D, K, BATCH = 50_000, 512, 10, 500
ROW_NORM, STEP, Z, RIDGE = 1.5, 0.1, 1.0, 1e-4
CLIP = float(
    np.sqrt(2) * np.hypot(ROW_NORM, 1.0)
)  #: the softmax loss's Lipschitz constant on these rows


def task(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, D + 1) float32 with a constant column, labels (n,) int32; the same for every
    library."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, D)).astype(np.float32) / np.float32(np.sqrt(D))
    return np.concatenate((features, np.ones((n, 1), np.float32)), axis=1), rng.integers(
        0, K, n
    ).astype(np.int32)


def lenet_task(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 32, 32) float32 and labels (n,) int32 for LeNet5."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 1, 32, 32)).astype(np.float32), rng.integers(0, 10, n).astype(
        np.int32
    )


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return middle, high - low


def answer_bursts(about: dict[str, Any], steps: Callable[[int], object]) -> None:
    """A child's whole life: with ``--serve`` obey the parent, else time ``--bursts`` of ``--count``
    steps, print JSON.

    ``steps(count)`` does that many training steps and returns when they are finished.
    """
    given = argparse.ArgumentParser()
    given.add_argument("--serve", action="store_true")
    given.add_argument("--bursts", type=int, default=21)
    given.add_argument("--count", type=int, default=100, help="steps in a burst")
    asked, _ = given.parse_known_args()
    steps(3)  # compile and warm up

    def burst(go: int) -> dict[str, float]:
        began, worked = time.perf_counter(), time.process_time()
        steps(go)
        ended, done = time.perf_counter(), time.process_time()
        return {"ms": (ended - began) * 1e3 / go, "cpu_ms": (done - worked) * 1e3 / go}

    if asked.serve:
        serve(about, burst)
        return
    middle, spread = quartiles([burst(asked.count)["ms"] for _ in range(asked.bursts)])
    print(
        json.dumps(
            about
            | {"median_ms": middle, "iqr_ms": spread, "bursts": asked.bursts, "count": asked.count}
        )
    )


def option(name: str, choices: Sequence[str], default: str) -> str:
    """One flag of a child, beside those that all children share."""
    given = argparse.ArgumentParser(add_help=False)
    given.add_argument(f"--{name}", choices=choices, default=default)
    return getattr(given.parse_known_args()[0], name)


def records() -> int:
    """``--records``: how many rows a child makes."""
    given = argparse.ArgumentParser(add_help=False)
    given.add_argument("--records", type=int, default=N)
    return given.parse_known_args()[0].records


def fastest(
    candidates: dict[str, Callable[[int], object]], count: int = 30, repeats: int = 5
) -> tuple[str, Callable[[int], object]]:
    """The candidate with the least median time; candidates take turns."""
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for steps in candidates.values():
        steps(3)
    for _ in range(repeats):
        for name, steps in candidates.items():
            began = time.perf_counter()
            steps(count)
            taken[name].append(time.perf_counter() - began)
    name = min(taken, key=lambda one: statistics.median(taken[one]))
    return name, candidates[name]
