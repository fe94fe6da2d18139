"""Rows of the table of theorems that were farthest from what is known to leak: certified epsilon over
the epsilon of an explicit loss.

python -m benchmarks.figures.open_rows        (two minutes, one core)

Logistic regression as in ``slack``, n = 10,000, 20 batches in a pass, steps 1/smooth, zero-out, delta
1e-5. The losses are those of ``slack``, and two more. *All iterates*: whenever a step draws the
record, it takes the place of one that opposes it; the steps' mixtures compose (privacy losses rounded
down). *Forgets*: the other records' loss is a parabola of the largest slope, so that a step keeps
only the ridge's share of what was before it. Where positions are published the place of the record is
part of what is released: delta is the mean of the positions' deltas.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import ndtr

import lastiterate as li
from benchmarks.figures import bent_witness
from benchmarks.figures.slack import BLOCKS, DELTA, EXCHANGED, against, epsilon_of
from benchmarks.figures.witnesses import curved
from lastiterate.curves.gaussian import gdp_delta

N, RATE, WINDOW = 10_000, 1 / BLOCKS, 2**22


def described(batching: Any, ridge: float, z: float, passes: int, release: str) -> li.Run:
    """The run of one row."""
    return li.Run(
        n=N,
        steps=BLOCKS * passes,
        step_size=1 / (0.25 + ridge),
        noise=li.NoiseMultiplier(z),
        batching=batching,
        loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=ridge),
        release=release,
    )


def all_iterates(z: float, steps: int) -> float:
    """Epsilon of ``steps`` pairs (1 - q) N(0, 1) + q N(2/z, 1) against (1 - q) N(0, 1) + q N(1/z, 1).

    Losses are rounded down by 1/50 in all, and those beyond a window are left out, so that what comes
    out is leaked at least.
    """
    grid = 0.04 / steps  # half of it is lost in a step
    x = np.linspace(-12, 12 + 2 / z, 400_001)

    def masses(mean: float) -> np.ndarray:
        return (1 - RATE) * np.diff(ndtr(x)) + RATE * np.diff(ndtr(x - mean))

    p, q = masses(2 / z), masses(1 / z)
    seen = (p > 0) & (q > 0)
    losses, weights = np.floor(np.log(p[seen] / q[seen]) / grid).astype(int), p[seen]
    first = losses.min()
    law = np.bincount(losses - first, weights)
    # nearly nothing of the sum is below the window, so that what is wrapped around is left out
    steep = np.geomspace(0.05, 20, 60)[:, None]
    places = (first + np.arange(law.size)) * grid
    moments = steps * np.log(np.exp(-steep * places) @ law) - math.log(1e-15)
    lowest = math.floor((-moments / steep[:, 0]).max() / grid)
    if lowest + WINDOW < 60 / grid:
        raise ValueError("the window must reach losses of 60")
    total = np.maximum(np.fft.irfft(np.fft.rfft(law, WINDOW) ** steps, WINDOW), 0.0)
    reached = (lowest + (np.arange(WINDOW) + first * steps - lowest) % WINDOW) * grid
    low, high = 0.0, 80.0
    for _ in range(40):
        middle = (low + high) / 2
        above = reached > middle
        found = -(total[above] * np.expm1(middle - reached[above])).sum() - 2e-12
        low, high = (middle, high) if found > DELTA else (low, middle)
    return low


def forgets(ridge: float, z: float, published: bool) -> float:
    """Epsilon where steps keep the ridge's share alone: the last pass decides.

    Batch positions in public order: the last one is the worst. Published: each with its chance.
    """
    kept = (1 / (N // BLOCKS)) * 0.25 / (0.25 + ridge)  # the record itself has no curvature
    noise = math.sqrt(1 / (1 - kept**2))
    mus = kept ** np.arange(BLOCKS) / (z * noise)
    if not published:
        mus = mus[:1]
    low, high = 0.0, 80.0
    for _ in range(50):
        middle = (low + high) / 2
        found = gdp_delta(np.full(1, middle), mus).mean()
        low, high = (middle, high) if found > DELTA else (low, middle)
    return low


def smallest_upper(run: li.Run) -> float:
    return li.account(run).epsilon(DELTA)


def proved_lower(run: li.Run) -> float:
    rows = li.account(run).rows(DELTA)
    return max(
        (row["epsilon"] for row in rows if row["applies"] and row["kind"] == "lower"), default=0.0
    )


def hidden(name: str, batching: Any, ridge: float, z: float, passes: int) -> float:
    """The largest epsilon of a loss whose last iterate alone is released."""
    found = [proved_lower(described(batching, ridge, z, passes, "last"))]
    if name in EXCHANGED:
        found.append(against(name, ridge, z, passes))
        found += [epsilon_of(*each) for each in bent_witness.laws(name, N, ridge, z, passes)]
    if name in ("allocation", "Poisson") and ridge == 0:
        found += [curved(name, h, z, passes) for h in (0.05, 0.1, 0.3, 0.6, 0.9, 0.99)]
    if name == "cyclic":
        found.append(forgets(ridge, z, published=False))
    return max(found)


BATCHES = {
    "full": li.FullBatch(),
    "cyclic": li.Cyclic(N // BLOCKS),
    "allocation": li.RandomAllocation(N // BLOCKS),
    "Poisson": li.Poisson(RATE),
    "permuted": li.Permuted(N // BLOCKS),
    "reshuffled": li.Reshuffled(N // BLOCKS),
    "fixed size": li.FixedSize(N // BLOCKS),
}


def rows() -> Iterator[tuple[str, float, float]]:
    """A name, the certified epsilon and that of the loss."""
    for passes in (1, 5, 50):
        for z in (2.0, 1.0):
            run = described(BATCHES["fixed size"], 0.0, z, passes, "all")
            name = f"fixed size, all iterates, {passes} passes, z {z:g}"
            yield name, smallest_upper(run), all_iterates(z, run.steps)
    for ridge in (0.01, 0.1):
        run = described(BATCHES["cyclic"], ridge, 2.0, 50, "last")
        name = f"public order, hidden iterates, 50 passes, ridge {ridge:g}, z 2"
        yield name, smallest_upper(run), forgets(ridge, 2.0, published=False)
        run = described(BATCHES["permuted"], ridge, 2.0, 50, "last")
        name = f"published positions, hidden iterates, 50 passes, ridge {ridge:g}, z 2"
        yield name, smallest_upper(run), forgets(ridge, 2.0, published=True)
    for name in ("permuted", "reshuffled"):
        for ridge in (0.01, 0.1):
            run = described(BATCHES[name], ridge, 2.0, 50, "last")
            lower = hidden(name, BATCHES[name], ridge, 2.0, 50)
            yield f"{name}, 50 passes, ridge {ridge:g}, z 2", smallest_upper(run), lower
    for z in (0.7, 0.5, 0.4):
        for name, batching in BATCHES.items():
            run = described(batching, 0.0, z, 5, "last")
            lower = hidden(name, batching, 0.0, z, 5)
            yield f"{name}, 5 passes, z {z:g}", smallest_upper(run), lower


def main() -> None:
    print("| run | certified | some loss leaks | ratio |\n|---|---|---|---|")
    for name, upper, lower in rows():
        print(f"| {name} | {upper:.4g} | {lower:.4g} | {upper / lower:.2f} |", flush=True)


if __name__ == "__main__":
    main()
