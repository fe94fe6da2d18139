"""Time of one private training step of lastiterate on the task of timed_bursts.py; a child of
linear_step_peers.py.

python -m benchmarks.peers.lastiterate_linear_step [--mode hidden|charged] [--bursts 21] [--count
100]

``hidden``: a run that theorems about the last iterate may certify, in double precision with float64
noise; ``charged``: a run whose every step is charged (Nesterov momentum), sums in single precision.
Data are float32.
"""

from __future__ import annotations

import os

import jax

import lastiterate as li
from benchmarks.peers.timed_bursts import (
    BATCH,
    RIDGE,
    ROW_NORM,
    STEP,
    K,
    Z,
    answer_bursts,
    option,
    records,
    task,
)
from benchmarks.speed.linear_step import ours


def main() -> None:
    mode = option("mode", ("hidden", "charged"), "hidden")
    features, labels = task(records())
    run = li.Run(
        n=len(features),
        steps=1000,
        step_size=li.Constant(STEP),
        noise=li.NoiseMultiplier(Z),
        batching=li.Cyclic(BATCH),
        loss=li.Softmax(classes=K, row_norm=ROW_NORM, ridge=RIDGE),
        optimizer=li.Nesterov() if mode == "charged" else None,
    )
    answer_bursts(
        {
            "name": f"lastiterate {li.__version__}, {mode}",
            "versions": f"JAX {jax.__version__}",
            "threads": f"XLA's, {os.cpu_count()} cores",
        },
        ours(run, features[:, :-1], labels),
    )


if __name__ == "__main__":
    main()
