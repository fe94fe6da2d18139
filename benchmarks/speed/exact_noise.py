"""What exact noise costs: draws of the discrete Gaussian, and steps of a linear model with it.

python -m benchmarks.speed.exact_noise [DRAWS=1000000]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import lastiterate as li
from lastiterate.engine import execute, key_from_seed
from lastiterate.engine.exact_linear import execute_exactly
from lastiterate.engine.exact_noise import DiscreteGaussian
from lastiterate.engine.random import Bits, gaussian


def timed(work: Callable[[], Any], rounds: int = 3) -> float:
    """The least processor time of some rounds, in seconds; the first call is not counted."""
    work()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def main(draws: int) -> None:
    for sigma in (1.0, 100.0, 1e6, 1e12):
        spent = timed(lambda sigma=sigma: DiscreteGaussian(sigma).sample(Bits(bytes(32), 0), draws))
        print(f"discrete Gaussian, sigma {sigma:g}: {spent / draws * 1e9:.0f} ns a number")
    with jax.enable_x64(True):
        drawn = jax.jit(lambda k: gaussian(key_from_seed(0), k, (draws,)))
        print(
            f"default noise: {timed(lambda: drawn(1).block_until_ready()) / draws * 1e9:.0f} ns a "
            f"number"
        )
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20_000, 256)).astype(np.float32), rng.integers(0, 10, 20_000)
    run = li.Run(
        n=20_000,
        steps=200,
        step_size=0.3,
        noise=li.GradientNoise(0.01),
        batching=li.Permuted(500),
        loss=li.Softmax(classes=10, ridge=1e-3),
    )
    for name, fit in (("default", execute), ("exact", execute_exactly)):
        spent = timed(lambda fit=fit: fit(run, x, y, key_from_seed(1)))
        print(
            f"20,000 x 256, 10 classes, batches of 500, {name} noise: "
            f"{spent / run.steps * 1e3:.2f} ms a step, "
            "preparation of the data included"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
