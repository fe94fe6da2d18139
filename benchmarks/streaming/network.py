"""A small network in memory and in pieces, interleaved: 256 inputs, 64 hidden units, per-example
clipping.

python -m benchmarks.streaming.network          20,000 records, 10 batches, 3 passes
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import lastiterate as li
from benchmarks.streaming.made import FEATURES, records
from benchmarks.streaming.one import Watch, busy
from lastiterate.engine import key_from_seed
from lastiterate.engine.network import fit_network
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.engine.streaming.execution import fit_streaming

N, HIDDEN = 20_000, 64


def loss(params: Any, row: Any, label: Any) -> Any:
    """Cross-entropy of two classes."""
    return -jax.nn.log_softmax(jax.nn.relu(row @ params["in"]) @ params["out"])[label]


def main() -> None:
    data, rng = records(0, N), np.random.default_rng(0)
    first = {
        "in": (rng.normal(size=(FEATURES, HIDDEN)) / 16).astype(np.float32),
        "out": np.zeros((HIDDEN, 2), np.float32),
    }
    run = li.Run(
        n=N,
        steps=30,
        step_size=0.5,
        noise=li.NoiseMultiplier(1.0),
        batching=li.Cyclic(N // 10),
        clip=1.0,
    )
    secret = replace(run, batching=li.Permuted(N // 10))
    for name, fit in (
        (
            "cyclic, in memory",
            lambda watch: fit_network(run, loss, first, data, key_from_seed(0), progress=watch),
        ),
        (
            "cyclic, in pieces",
            lambda watch: fit_streaming(
                run, loss, first, Arrays(data), key_from_seed(0), progress=watch
            ),
        ),
        (
            "permuted, in pieces",
            lambda watch: fit_streaming(
                secret, loss, first, Arrays(data), key_from_seed(0), progress=watch
            ),
        ),
    ) * 2:
        watch, began = Watch(10), (time.perf_counter(), busy())
        fit(watch)
        seconds, processor = watch.per_pass()
        print(
            f"{name}: {N / seconds:,.0f} examples/s, {processor:.3g} processor s per pass, "
            f"{time.perf_counter() - began[0]:.3g} s in all",
            flush=True,
        )


if __name__ == "__main__":
    main()
