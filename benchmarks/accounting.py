"""Times of imports, accounting and calibration: medians, written as rows of a Markdown table.

python benchmarks/accounting.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np


def median(action: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Median and interquartile range, in milliseconds, after one warm call."""
    action()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        taken.append((time.perf_counter() - began) * 1e3)
    quarters = statistics.quantiles(taken, n=4)
    return statistics.median(taken), quarters[2] - quarters[0]


def python(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def main() -> None:
    """Print one row per question."""
    import lastiterate as li
    from lastiterate.theorems.places import place_mus
    from lastiterate.theorems.shift import optimal_mu

    loss = li.Abstract(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.001))
    run = li.Run(n=60_000, steps=10_000, step_size=li.Constant(0.5), noise=li.NoiseMultiplier(3.0),
                 batching=li.Permuted(300), loss=loss)
    full = li.Run(n=60_000, steps=1_000_000, step_size=li.Constant(0.5), noise=li.NoiseMultiplier(3.0), loss=loss)
    rng = np.random.default_rng(0)
    eta = rng.uniform(0.1, 1, 100_000)
    assumed = li.Evidence.ASSUMED

    def fresh(described: li.Run) -> Callable[[], object]:
        def ask() -> object:
            place_mus.cache_clear()
            return li.account(described, at_least=assumed).epsilon(1e-6)
        return ask

    rows = [
        ("bare python", *median(python("pass"), 9)),
        ("import lastiterate", *median(python("import lastiterate"), 9)),
        ("account, permuted, 10,000 steps, 200 blocks", *median(fresh(run), 25)),
        ("account, full batch, 1,000,000 steps", *median(fresh(full), 25)),
        ("optimal shift, arbitrary schedule, 100,000 steps",
         *median(lambda: optimal_mu(1 - eta * 1e-3, eta * 0.1, eta**2), 25)),
        ("calibrate noise, permuted, 200 blocks",
         *median(lambda: li.calibrate(run, epsilon=1.0, delta=1e-6, at_least=assumed), 9)),
        ("calibrate noise, full batch",
         *median(lambda: li.calibrate(full, epsilon=1.0, delta=1e-6, at_least=assumed), 9)),
    ]
    print("| question | median ms | spread (IQR) ms |\n|---|---|---|")
    for name, middle, spread in rows:
        print(f"| {name} | {middle:.3g} | {spread:.2g} |")


if __name__ == "__main__":
    main()
