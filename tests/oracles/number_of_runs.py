"""The laws of the number of runs of a private search, mass by mass."""

import math
from itertools import count

from lastiterate.curves.selection import PoissonRuns, Runs


def masses_of(runs: Runs, below: float) -> list[float]:
    """P[K = 0], P[K = 1], ... up to a rest of less than ``below``."""
    if isinstance(runs, PoissonRuns):
        masses = [math.exp(-runs.expected)]
        ratios = (runs.expected / k for k in count(1))
    else:
        log_stop = math.log(runs.stop)
        first = (
            -1 / log_stop if runs.shape == 0 else runs.shape / math.expm1(-runs.shape * log_stop)
        )
        masses = [0.0, (1 - runs.stop) * first]
        ratios = ((1 - runs.stop) * (k + runs.shape) / (k + 1) for k in count(1))
    while sum(masses) < 1 - below:
        masses.append(masses[-1] * next(ratios))
    return masses
