"""Where Poisson batches need less noise than fresh secret blocks, if anywhere: a grid of blocks,
passes and budgets.

python -m benchmarks.figures.allocation_or_poisson [--quick]   (a quarter of an hour; --quick: every eighth cell)

For each cell the noise multiplier z of random allocation; Poisson batches of the same expected size
need less than z / 1.001 only if their delta at z / 1.001 is below that of random allocation at z.
Both are upper bounds: a cell that is listed is to be decided by importance sampling
(tests/curves/test_allocation.py).
"""

from __future__ import annotations

import argparse
import itertools
import math

from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.sampled_batches import Pld

BLOCKS = (2, 3, 5, 10, 20, 50, 100, 200, 1000)
PASSES = (1, 2, 5, 10, 20, 50, 100, 200)
EPSILONS = (0.1, 0.3, 1.0, 3.0, 8.0, 16.0)
DELTAS = (1e-5, 1e-8)
SLACK = 1.001


def least_noise(blocks: int, passes: int, epsilon: float, delta: float) -> float:
    """The multiplier of random allocation, to 2 in 1,000: any near it decides the cell as well."""
    low, high = 0.05, 10 * math.sqrt(passes) / epsilon + 1
    while high > low * 1.002:
        middle = math.sqrt(low * high)
        curve = AllocationPld(blocks, (middle,), (passes,))
        low, high = (low, middle) if curve.coarser().delta(epsilon) <= delta else (middle, high)
    return high


def compared(blocks: int, passes: int, epsilon: float, delta: float) -> tuple[float, float, float]:
    """The multiplier, delta of random allocation at it, and of Poisson batches with a thousandth
    less noise."""
    z = least_noise(blocks, passes, epsilon, delta)
    ours = AllocationPld(blocks, (z,), (passes,)).delta(epsilon)
    return z, ours, Pld(1 / blocks, (z / SLACK,), (blocks * passes,)).delta(epsilon)


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--quick", action="store_true")
    cells = list(itertools.product(BLOCKS, PASSES, EPSILONS, DELTAS))
    cells = cells[::8] if given.parse_args().quick else cells
    found: list[str] = []
    for done, cell in enumerate(cells):
        z, ours, theirs = compared(*cell)
        if theirs < ours:
            found.append(
                f"l {cell[0]}, passes {cell[1]}, epsilon {cell[2]:g}, delta {cell[3]:g}: noise "
                f"{z:.4f}, delta "
                f"of blocks {ours:.3e}, of Poisson batches with .1 % less noise {theirs:.3e}"
            )
            print(found[-1], flush=True)
        if done % 50 == 49:
            print(f"{done + 1} of {len(cells)} cells, {len(found)} listed", flush=True)
    print(f"{len(cells)} cells; Poisson needs less in {len(found)}")


if __name__ == "__main__":
    main()
