"""Time of one step of SGLD on LeNet5, of one of several models that train together; a child of
network_step_peers.py.

python -m benchmarks.peers.lastiterate_lenet_step [--mode sgld|clipped]
"""

from __future__ import annotations

import os
from collections.abc import Callable

import jax

import lastiterate as li
from benchmarks.peers.timed_bursts import answer_bursts, fastest, lenet_task, option
from lastiterate.audit.networks import observe
from lastiterate.engine import keys_from_seed
from lastiterate.engine.network import prepare_loop
from lastiterate_papers.langevin_network import (
    langevin_run,
    lenet_loss,
    lenet_parameters,
    with_prior,
)

IMAGES = 400


def stepper(models: int, clip: float | None) -> Callable[[int], object]:
    """So many steps of one model, rounded up to whole steps of all ``models``; as the audit of
    networks does them."""
    images, labels = lenet_task(IMAGES)
    run, loss = langevin_run(IMAGES, 10, clip=clip), with_prior(lenet_loss, IMAGES)
    keys = keys_from_seed(0, models)
    with jax.enable_x64(True):
        loop, first, data = prepare_loop(run, loss, lenet_parameters(0), (images, labels))

    def steps(count: int) -> None:
        with jax.enable_x64(True):
            observe(loop, first, data, keys, [-(-count // models)], lambda theta: theta[:, :1])

    return steps


def main() -> None:
    mode = option("mode", ("sgld", "clipped"), "sgld")
    models, steps = fastest(
        {str(m): stepper(m, 0.2 if mode == "clipped" else None) for m in (5, 10, 20)},
        count=200,
        repeats=3,
    )
    answer_bursts(
        {
            "name": f"lastiterate {li.__version__}, {mode}, {models} models together",
            "versions": f"JAX {jax.__version__}",
            "threads": f"XLA's, {os.cpu_count()} cores",
        },
        steps,
    )


if __name__ == "__main__":
    main()
