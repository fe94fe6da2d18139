"""What losses leak whose other records oppose one and bend where the iterates end: exact laws on a
grid.

The record's gradient is 1 everywhere, the others' is -1 up to some point and rises from there with
slope k: convex, gradients at most 1 long, slopes at most the smoothness. So steps may forget more
than the ridge makes them forget, and where a step forgets all before it, the last batch alone is
seen: one batch of a fixed size, in which a record takes the place of one that opposes it.

In units of one record's step (step size / batch size), counted from the bend, a batch of b without
the record maps y to (1 - a) y + drift - k y_+ (a: step times ridge; k: step times slope), and the
record moves it by r - 1 + k y_+ / b besides: r = -1 with it, 0 without. Then comes noise N(0, z^2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

BLOCKS = 20
FORGOTTEN = 5
"""Passes that are followed where there is a ridge: steps above the bend keep a fifth of what was
before them, or less, and those below it go back."""
FINER = 10
"""Points of the grid that delta is computed on for one that laws are followed on."""
LARGEST = 4000
"""Points of a grid; losses that need more of them are left out."""
SHARES, WINDOWS = (1.0, 0.95, 0.9, 0.8), (2.0, 3.0, 4.0, 6.0)
"""Of the largest slope; from the bend to where iterates are, in standard deviations of the noise.
"""


def step(
    grid: np.ndarray, moved: float, kept: float, slope: float, drift: float, b: int, z: float
) -> np.ndarray:
    """Weights on the grid after a step from each of its points; ``moved``: -2 and -1 where the
    record has its place, with it and without it, otherwise 0."""
    up = np.maximum(grid, 0.0) * slope
    mean = kept * grid + drift - up + (moved + up / b if moved else 0.0)
    return np.exp(-((grid - mean[:, None]) ** 2) / (2 * z * z)) * (
        (grid[1] - grid[0]) / (z * math.sqrt(2 * math.pi))
    )


def with_ridge(
    batches: str, a: float, slope: float, window: float, b: int, z: float
) -> Iterator[np.ndarray]:
    """The laws of the last iterate with the record and without it: at rest, ``window`` above the
    bend."""
    drift = (a + slope) * window
    grid = window + np.arange(-30 * z - 20, 30 * z + 20, z / 10)
    still = step(grid, 0, 1 - a, slope, drift, b, z)
    rest = np.zeros(grid.size)
    rest[np.argmin(abs(grid - window))] = 1.0
    for moved in (-2.0, -1.0):
        yield followed(batches, rest, still, step(grid, moved, 1 - a, slope, drift, b, z)) / (
            z / 10
        )


def followed(batches: str, law: np.ndarray, still: np.ndarray, moved: np.ndarray) -> np.ndarray:
    """The law after passes whose steps are ``still`` but ``moved`` at the record's place, drawn as
    ``batches`` says."""
    if batches == "permuted":
        laws = np.tile(law, (BLOCKS, 1))  # one for every place
        for t in range(BLOCKS * FORGOTTEN):
            place = t % BLOCKS
            here = laws[place] @ moved
            laws = laws @ still
            laws[place] = here
        return laws.mean(0)
    for _ in range(FORGOTTEN):
        after = np.zeros(law.size)  # the record is gone; ``law``: it is still to come
        for left in range(BLOCKS, 0, -1):
            if batches == "fixed size":
                law = (law @ moved + (BLOCKS - 1) * (law @ still)) / BLOCKS
            else:
                after, law = after @ still + (law @ moved) / left, (law @ still) * (1 - 1 / left)
        law = law + after
    return law


def drifting(window: float, spread: float, passes: int, z: float) -> np.ndarray:
    """The grid of ``without_ridge``, as far as the record and the noise of all steps move the
    iterates."""
    return window + np.arange(-9 * spread - 6 * passes, 9 * spread + 3 * passes, z / 5)


def without_ridge(
    batches: str, slope: float, window: float, b: int, z: float, passes: int
) -> Iterator[np.ndarray]:
    """The same without a ridge: steps drift by b, farther than the noise, and the last one alone
    meets the bend."""
    from scipy.stats import binom

    steps, spread = BLOCKS * passes, z * math.sqrt(BLOCKS * passes - 1)
    if b <= window + 9 * spread + 3 * passes:
        return
    grid = drifting(window, spread, passes, z)
    if grid.size > LARGEST:
        return
    still = step(grid, 0, 1.0, slope, 0.0, b, z)

    def before(times: np.ndarray, chance: np.ndarray, moved: float) -> np.ndarray:
        means = window + 1.5 * passes + moved * times  # one bend for both laws
        density = np.exp(-((grid - means[:, None]) ** 2) / (2 * spread**2))
        return chance @ density * (z / 5 / (spread * math.sqrt(2 * math.pi)))

    for moved in (-2.0, -1.0):
        times = np.arange(steps)
        drawn = binom.pmf(times, steps - 1, 1 / BLOCKS)
        fixed = batches == "fixed size"
        now = before(times, drawn if fixed else (times == passes - 1) * 1.0, moved)
        earlier = before(times, drawn if fixed else (times == passes) * 1.0, moved)
        yield (
            (now @ step(grid, moved, 1.0, slope, 0.0, b, z) + (BLOCKS - 1) * (earlier @ still))
            / BLOCKS
            / (z / 5)
        )


def finer(density: np.ndarray) -> np.ndarray:
    """The density on a finer grid, so that the end of an event may lie anywhere: cubic splines of
    its logarithm."""
    from scipy.interpolate import CubicSpline

    at = np.arange(density.size)
    return np.exp(
        CubicSpline(at, np.log(np.maximum(density, 1e-200)))(
            np.arange(0, density.size - 1, 1 / FINER)
        )
    )


def laws(
    batches: str, n: int, ridge: float, z: float, passes: int
) -> Iterator[tuple[np.ndarray, np.ndarray, float]]:
    """Densities of the last iterate with the record and without it, and the width of their grid,
    for every loss."""
    a, b = ridge / (0.25 + ridge), n // BLOCKS
    for share in SHARES:
        for window in WINDOWS:
            if a > 0:
                found, width = (
                    tuple(with_ridge(batches, a, share * (1 - a), window * z, b, z)),
                    z / 10,
                )
            else:
                far = window * z * math.sqrt(BLOCKS * passes - 1)
                found, width = tuple(without_ridge(batches, share, far, b, z, passes)), z / 5
            if found:
                yield *map(finer, found), width / FINER
