"""The optimal allocation of shifts: mu of the last iterate for any schedule, in the log domain.

Proof: docs/theorems/shifted-interpolation.

With R_t the product of the later Lipschitz constants, write S_t, X_t for the running sums of s_u R_u and
v_u R_u^2. The optimum is the greatest convex minorant of (0, 0), (X_1, S_1), ..., (X_T, S_T): pool adjacent
violators until the slopes dS/dX increase; mu^2 is the sum of dS^2 / dX over the pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def allowance(steps: int, growth: float = 0.0) -> float:
    """Relative rounding allowance of mu: below 1e-12 up to 1,000 non-expanding steps, growing with the length.

    A factor R_t of k steps carries a relative error of at most k u (1 + |log R_t|), u = 2^-53; where R_t decays, the
    term's weight R_t |log R_t| <= 1/e absorbs the logarithm, where it grows (``growth`` = largest log R_t) it stays.
    Square roots and pools halve relative errors, so 2^-52 k (1 + growth) covers S and X together.
    """
    return 1e-13 + 2.0**-52 * steps * (1.0 + max(growth, 0.0))


def pool(log_shift: Array, log_noise: Array) -> tuple[Array, Array]:
    """Pools of the greatest convex minorant, given log dS and log dX of consecutive blocks in common coordinates.

    Every maximal run of non-increasing slopes is pooled at once; the order of pooling does not matter.
    """
    while log_shift.size > 1:
        slope = log_shift - log_noise
        starts = np.flatnonzero(np.concatenate(([True], slope[1:] > slope[:-1])))
        if starts.size == slope.size:
            break
        log_shift = np.logaddexp.reduceat(log_shift, starts)
        log_noise = np.logaddexp.reduceat(log_noise, starts)
    return log_shift, log_noise


def optimal_mu(c: ArrayLike, s: ArrayLike, v: ArrayLike, start: float = 0.0) -> float:
    """The optimal mu for Lipschitz constants ``c``, sensitivities ``s`` and noise variances ``v`` (each length T).

    ``start``: distance of the two starts, or the diameter after a restart. Steps without noise absorb no shift and
    are folded into the next noisy one.
    """
    c, s, v = (np.asarray(x, dtype=np.float64) for x in (c, s, v))
    last = np.flatnonzero(c == 0)
    if last.size:  # a constant map forgets everything before it
        c, s, v, start = c[last[-1] :].copy(), s[last[-1] :], v[last[-1] :], 0.0
        c[0] = 1.0
    if start > 0:
        s = s.copy()
        s[0] += c[0] * start
    if not (s > 0).any():
        return 0.0
    noisy = v > 0
    if not noisy.any() or (s[np.flatnonzero(noisy)[-1] + 1 :] > 0).any():
        return math.inf
    with np.errstate(divide="ignore"):
        later = np.concatenate((np.cumsum(np.log(c[::-1]))[::-1][1:], [0.0]))  # log R_t
        dS, dX = np.log(s) + later, np.log(v) + 2 * later
    if not (dS.max() < math.inf and dX.max() < math.inf):  # a nan is its own maximum
        return math.inf  # outside double precision: no statement
    # noise without a shift helps the block before (the first: nothing is there to absorb); a shift without noise has an
    # infinite slope, and is pooled with the noise that follows
    shifted = np.flatnonzero(dS > -math.inf)
    dS, dX = pool(dS[shifted], np.logaddexp.reduceat(dX, shifted))
    mu = math.sqrt(float(np.exp(2 * dS - dX).sum()))
    return mu * (1 + allowance(c.size, float(later.max())))


ALL = 2**15
"""Steps times restarts up to which every restart is tried."""


def best_restart(c: Array, s: Array, v: Array, diameter: float) -> float:
    """The smallest mu over restarts at distance ``diameter``; any subset of restart times is a valid bound.

    A restart at an earlier step without the record costs no more where that step's map does not expand: it begins at
    most as far apart, and more noise hides the distance. So restarts right behind the record's steps are all.
    """
    steps = c.size

    def cost(window: int) -> float:
        return optimal_mu(c[steps - window :], s[steps - window :], v[steps - window :], diameter)

    def numbered(number: int) -> float:
        return cost(windows[number - 1])

    behind = steps - 1 - np.flatnonzero(s > 0)[::-1]
    windows = np.append(behind[behind > 0], steps).tolist()
    least = min(map(cost, windows)) if len(windows) * steps <= ALL else search(numbered, len(windows))
    return min(least, search(cost, steps)) if len(windows) < steps and (c > 1).any() else least


def search(cost: Callable[[int], float], longest: int) -> float:
    """Smallest value of ``cost(w)`` found on a geometric grid of 1 <= w <= longest, then around its best point."""
    grid = sorted({round(longest ** (i / 24)) for i in range(25)})
    values = {w: cost(w) for w in grid}
    best = min(grid, key=values.__getitem__)
    place = grid.index(best)
    low, high = grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]
    while high - low > 2:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        values |= {w: cost(w) for w in (left, right) if w not in values}
        low, high = (low, right) if values[left] <= values[right] else (left, high)
    values |= {w: cost(w) for w in range(low, high + 1) if w not in values}
    return min(values.values())
