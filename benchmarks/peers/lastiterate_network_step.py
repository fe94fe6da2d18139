"""Time of one private training step of lastiterate on network_task.py; a child of
network_step_peers.py.

python -m benchmarks.peers.lastiterate_network_step [--mode cyclic|poisson|plain] [--records 10000]

cyclic, poisson: per-example clipping and noise on blocks in public order, or on Poisson batches of
the same expected size. plain: blocks without clipping and noise. The size of microbatches is the
fastest of a few at the start.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import jax

import lastiterate as li
from benchmarks.peers.network_task import BATCH, CLIP, STEP, Z, images, loss, network
from benchmarks.peers.timed_bursts import answer_bursts, fastest, option, records
from lastiterate.engine import key_from_seed
from lastiterate.engine.network import prepare_loop


def stepper(run: li.Run, n: int, microbatch: int) -> Callable[[int], object]:
    """Training steps of the trainer's own loop from the first parameters on."""
    key, params = key_from_seed(0), network()
    with jax.enable_x64(True):
        loop, first, data = prepare_loop(run, loss, params, images(n), microbatch)

    def steps(count: int) -> None:
        with jax.enable_x64(True):
            replace(loop, run=replace(run, steps=count)).execute(first, data, key, None)

    return steps


def main() -> None:
    mode, n = option("mode", ("cyclic", "poisson", "plain"), "cyclic"), records()
    batching = li.Poisson(BATCH / n) if mode == "poisson" else li.Cyclic(BATCH)
    run = li.Run(
        n=n // BATCH * BATCH,
        steps=1000,
        step_size=li.Constant(STEP),
        batching=batching,
        noise=li.GradientNoise(0.0 if mode == "plain" else Z * CLIP / BATCH),
        clip=None if mode == "plain" else CLIP,
        loss=li.KnownConstants(),
    )
    size, steps = fastest(
        {str(m): stepper(run, run.n, m) for m in (8, 16, 32, 64, 256)}, count=3, repeats=3
    )
    answer_bursts(
        {
            "name": f"lastiterate {li.__version__}, {mode}, microbatches of {size}",
            "versions": f"JAX {jax.__version__}",
            "threads": f"XLA's, {os.cpu_count()} cores",
        },
        steps,
    )


if __name__ == "__main__":
    main()
