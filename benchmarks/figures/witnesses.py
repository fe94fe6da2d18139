"""Which losses leak most: curvature that is the same everywhere, and losses that contract in one
step alone.

python -m benchmarks.figures.witnesses      (half a minute)

Batches are drawn 20 times a pass, steps are 1/smooth, zero-out, delta 1e-5, the last iterate.
Curvature: of ``linear-witness`` with more of it than the class asks for. Two phases, where batches
have one size: all others oppose the record, and one step, some steps before the end, leaves the
share ``kept`` of what was before it. That is the limit of large batches, in which others' gradients
stay opposed while iterates cross a bend; ``bent_witness`` has the exact laws of such a step at the
end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy.stats import binom

from benchmarks.figures.slack import BLOCKS, DELTA, described, epsilon_of
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match

CURVATURES = (0.05, 0.1, 0.3, 0.6, 0.9)
KEPT, LATE = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7), (1, 2, 3, 5, 8, 12, 16, 20, 30, 40)
Draws = tuple[np.ndarray, np.ndarray]
"""Probabilities of the ways that a record is drawn, and what it adds at the end."""


def curved(batches: str, h: float, z: float, passes: int) -> float:
    """Epsilon of the losses of ``linear-witness`` whose steps keep 1 - h."""
    found = match(
        TABLE["linear-witness"], described(batches, 10_000, 0.25 * h / (1 - h), z, passes)
    )
    assert isinstance(found, Applies)
    return found.bound.epsilon(DELTA)


def draws(batches: str, kept: float, late: int, passes: int) -> Draws:
    """Of a record whose first steps, all but ``late``, count ``kept``."""
    first = BLOCKS * passes - late
    if batches == "fixed size":
        early, later = (
            binom.pmf(np.arange(count + 1), count, 1 / BLOCKS) for count in (first, late)
        )
        return np.outer(early, later).ravel(), (
            kept * np.arange(first + 1)[:, None] + np.arange(late + 1)
        ).ravel()
    steps = np.arange(BLOCKS * passes).reshape(passes, BLOCKS)
    counts = np.where(steps < first, kept, 1.0)
    if batches == "permuted":
        return np.full(BLOCKS, 1 / BLOCKS), counts.sum(0)
    mixed = counts.min(1) < counts.max(1)  # one pass at most; in all others each place counts alike
    return np.full(BLOCKS, 1 / BLOCKS), counts[~mixed, 0].sum() + counts[mixed].sum(0)


def two_phases(batches: str, kept: float, late: int, z: float, passes: int) -> float:
    """Epsilon of 2 S against S."""
    chances, sums = draws(batches, kept, late, passes)
    likely = chances > 1e-13
    std = z * math.sqrt(kept**2 * (BLOCKS * passes - late) + late)
    x = np.linspace(-9 * std, 2 * float(sums[likely].max()) + 9 * std, 4001)
    p, q = (
        np.exp(-(((x[:, None] - times * sums[likely]) / std) ** 2) / 2)
        @ chances[likely]
        / (std * math.sqrt(2 * math.pi))
        for times in (2, 1)
    )
    return epsilon_of(p, q, x[1] - x[0])


def lines() -> Iterator[str]:
    yield "| passes, z, batches | flat | " + " | ".join(f"h {h:g}" for h in CURVATURES) + " |"
    for passes, z in ((5, 2.0), (5, 0.8), (50, 2.0)):
        for batches in ("allocation", "Poisson"):
            found = [curved(batches, h, z, passes) for h in (0.0, *CURVATURES)]
            yield (
                f"| {passes}, {z:g}, {batches} | "
                + " | ".join(f"{one:.3g}" for one in found)
                + " |"
            )
    yield "\n| z, batches | flat | two phases | kept, steps before the end |"
    for z in (2.0, 0.8):
        for batches in ("permuted", "reshuffled", "fixed size"):
            flat = two_phases(batches, 1.0, 1, z, 5)
            best, kept, late = max(
                (two_phases(batches, kept, late, z, 5), kept, late)
                for kept in KEPT
                for late in LATE
            )
            yield f"| {z:g}, {batches} | {flat:.3g} | {best:.3g} | {kept:g}, {late} |"


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
