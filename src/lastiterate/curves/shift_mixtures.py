"""One pair E N(shift, 1) against N(0, 1), the shift a sum of independent draws: its curve, and its law on a grid.

Shifts are rounded up: the pair of larger shifts dominates (docs/theorems/delayed-shifts). The likelihood ratio Y(x)
increases in x, so that E_Q[(Y - g)_+] = P(x, inf) - g Q(x, inf) at g = Y(x), in closed form at as many points as one
likes; between two of them it lies below the chord, for it is convex in g.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.curves.ratio_grid import RatioGrid
from lastiterate.curves.ratio_law import Ratio
from lastiterate.run.arrays import Array

PARTS, MOST_PLACES, MOST_ATOMS, FEW_ATOMS = 256, 20_000, 1500, 500
"""Places of the lattice of shifts for the largest weight, in all, and shifts that are distinguished afterwards, on fine
and coarse curves."""
TAIL, FAR_TAIL = 1e-20, 1e-40
"""Probability of the largest shifts, which count as seen; the second for deltas as small as that."""
POINTS, FEW_POINTS, REACH, FAR_REACH = 1200, 600, 9.7, 13.5
"""Points x, those of coarse curves, and how many standard deviations they reach beyond all shifts: less than 2e-22 lies
there, and 1e-41 beyond the second."""


def shift_law(weights: Array, rate: float, atoms: int = MOST_ATOMS, tail: float = TAIL) -> tuple[Array, Array, float]:
    """Chances and values of sum_t weights[t] B_t, B_t = 1 with probability ``rate``, rounded up, and the chance of what
    is larger; at most ``atoms`` of them. All terms are non-negative: errors are relative, ``wrong_chances``."""
    top = float(weights.max())
    even = bool(weights.min() > top * (1 - 1e-12))
    unit = top if even else max(top / PARTS, float(weights.sum()) / MOST_PLACES)
    places = np.ceil(weights / unit * (1 - 1e-12)).astype(np.int64)
    chances = np.ones(1)
    for step in np.sort(places):
        longer = np.zeros(chances.size + int(step))
        longer[: chances.size] = (1 - rate) * chances
        longer[int(step) :] += rate * chances
        above = np.cumsum(longer[::-1])[::-1]
        chances = longer[: int(np.searchsorted(-above, -tail / weights.size))]  # what is cut off is missing below
    values = np.arange(chances.size, dtype=np.float64) * (unit * (1 + 1e-11))
    starts = np.append(0, np.arange(1, chances.size, -(-chances.size // atoms)))  # no draw at all stands alone
    merged: Array = np.add.reduceat(chances, starts)
    highest: Array = values[np.append(starts[1:], chances.size) - 1]
    return merged[merged > 0], highest[merged > 0], tail + wrong_chances(weights)


def wrong_chances(weights: Array) -> float:
    """Relative error of the chances of ``shift_law``: below 2^-51 for each step."""
    return 2.0**-50 * weights.size


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper ends of E_Q[(Y - g)_+], ``removed`` at ``ratios``, and of E_P[(1/Y - g)_+], ``added`` at 1/``ratios``.

    ``variance``: about that of log Y under Q or P, whichever is smaller; ``largest``: log Y beyond which nothing lies.
    """

    ratios: Array
    removed: Array
    added: Array
    variance: float
    largest: float

    def on_nodes(self, h: float) -> Ratio:
        """A pair on the ratios e^{k h} that dominates: chords of both orders' curves."""
        last = math.ceil(self.largest / h) + 1
        nodes = np.exp(np.arange(last + 1, dtype=np.float64) * h)
        removed = np.interp(nodes, self.ratios, self.removed)
        added = np.interp(nodes, 1 / self.ratios[::-1], self.added[::-1])
        removed[0] = added[0] = min(removed[0], added[0])  # both bound the total variation
        falling = np.append(np.diff(removed) / np.diff(nodes), 0.0)
        rising = np.append(np.diff(added / nodes) / np.diff(1 / nodes), added[-1])  # of g added(1/g), 1 down to 0
        above, below = np.maximum(np.diff(falling), 0.0), np.maximum(-np.diff(rising), 0.0)
        middle = max(0.0, 1 + float(falling[0]) - float(rising[0]))
        q = np.concatenate((below[::-1], [middle], above))
        p = np.concatenate(((below / nodes[1:])[::-1], [middle], above * nodes[1:]))
        return Ratio(h, -last, q, p, float(added[-1]), float(removed[-1]))


def mixture_profile(chances: Array, shifts: Array, lost: float, points: int = POINTS, reach: float = REACH,
                    wrong: float = 0.0) -> Profile:
    """Of sum_k chances[k] N(shifts[k], 1), and ``lost`` of it seen for certain, against N(0, 1).

    ``wrong``: the relative error of chances. It moves a tail of the mixture relatively, and the ratio at which a half
    line is best: both move E_Q[(Y - g)_+] by no more than that part of the tail, as rounding does.
    """
    from scipy.special import ndtr  # pyright: ignore

    x = np.linspace(-reach, reach + float(shifts[-1]), points)
    exponents = np.log(chances) + shifts * (x[:, None] - shifts / 2)
    top = exponents.max(axis=1)
    log_ratio: Array = top + np.log(np.exp(exponents - top[:, None]).sum(axis=1))
    away = shifts - x[:, None]
    ahead, before = (np.asarray(ndtr(away) @ chances), np.asarray(ndtr(-away) @ chances))
    tails: Array = ndtr(-x)
    heads: Array = ndtr(x)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio, rounding = np.exp(log_ratio), 1e-13 * (1 + x * x) + 4 * wrong
        removed = ahead - ratio * tails + rounding * ahead + lost
        added = heads - before / ratio + rounding * heads + lost
    masses = np.diff(heads), np.diff(before)
    middle = (log_ratio[1:] + log_ratio[:-1]) / 2
    spread = [float((m * middle**2).sum() / m.sum() - ((m * middle).sum() / m.sum()) ** 2) for m in masses]
    return Profile(ratio, np.maximum(removed, lost), np.maximum(added, lost), max(min(spread), 1e-14),
                   float(np.abs(log_ratio).max()))


GRID, GRID_REACH, FAR_GRID_REACH, ERROR = 700, 9.5, 13.5, 1e-10
"""Points and reach of ``mixture_grid``; above the relative errors of its masses (differences of tails, good to 8 u (1 +
x^2) each, over cells of a fiftieth of a standard deviation: below 1e-11) and of its ratios."""


def mixture_grid(shifts: Array, reach: float = GRID_REACH) -> RatioGrid:
    """Y of the mean of N(shift, 1) over ``shifts`` to N(0, 1), its mass between two points shared by both with its mean
    preserved; what lies above the last point stays there under Q, and the P-mass that is missing then is lost."""
    x = np.linspace(-reach, reach + float(shifts.max()), GRID)
    ratio: Array = np.exp(shifts * (x[:, None] - shifts / 2)).mean(axis=1)
    value, mass = np.append(0.0, ratio), _cells(x)
    weighed = sum((_cells(x - shift) for shift in shifts), np.zeros(GRID + 1)) / shifts.size
    up = np.clip((weighed[:-1] - mass[:-1] * value[:-1]) / np.diff(value), 0.0, mass[:-1])
    out = np.append(mass[:-1] - up, mass[-1])
    out[1:] += up
    lost = max(0.0, float(weighed[-1] - mass[-1] * value[-1])) + 1e-6 * float(weighed[-1])
    return RatioGrid(value, out, lost, ERROR, ERROR)


def _cells(x: Array) -> Array:
    """Normal masses below, between and above the points; differences of tails on the nearer side."""
    from scipy.special import ndtr  # pyright: ignore

    low: Array = ndtr(x)
    high: Array = ndtr(-x)
    return np.concatenate((low[:1], np.where(x[1:] <= 0, np.diff(low), -np.diff(high)), high[-1:]))
