"""One training run whose canaries' scores are Gaussian: a lower bound on mu from a regression.

Where every step is linear in what was drawn, canary i has the score a + theta w_i u_i + sigma z_i: u_i says whether it
is in, w_i how far it moves the model by the description (1 at most), z_i are independent. Least squares then give a
noncentral t whose noncentrality is theta / sigma = mu of the records with w = 1, times what the table of u and w says:
an exact confidence bound.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lastiterate.audit.witnessed import shift
from lastiterate.run.methods import Descent
from lastiterate.run.run import Run

MISFIT = 1e-6
"""A right trainer's scores look less Gaussian, or differ more in spread, with a smaller probability than this."""
WORK = 200_000
"""Steps that are followed on a line to learn how far every block's records move the model, for all blocks together."""


def shares_of_move(run: Run) -> np.ndarray | None:
    """How far each record moves the released model, by theory, as a share of the farthest; (n,).

    ``None`` where no line says it: blocks of a method with another result than its last iterate, and long runs.
    """
    if run.blocks == 1:
        return np.ones(run.n)
    if type(run.method) is not Descent or run.steps * run.blocks > WORK:
        return None
    size = int(run.divisor)
    moves = np.array([shift(run, block * size) for block in range(run.blocks)])
    if not np.isfinite(moves).all() or not moves.any():
        return None
    return np.repeat(moves / moves[np.abs(moves).argmax()], size)[:run.n]


def gaussian_mu(scores: np.ndarray, present: np.ndarray, shares: np.ndarray, failure: float) -> float | None:
    """Lower bound on mu, except with probability ``failure``; ``None`` where the scores cannot be what is described."""
    from scipy.optimize import brentq  # pyright: ignore
    from scipy.special import nctdtr  # pyright: ignore
    from scipy.stats import kstest, levene  # pyright: ignore

    count, moved = len(scores), shares * present
    centred = moved - moved.mean()
    square = float(centred @ centred)
    if count < 8 or square <= 0 or not 2 < present.sum() < count - 2:
        return None
    slope = float(centred @ scores) / square
    left = scores - scores.mean() - slope * centred
    spread = math.sqrt(float(left @ left) / (count - 2))
    if not spread > 1e-9 * float(np.abs(scores).max()):
        return None  # no noise that numbers of this size could show
    fits: list[Any] = [kstest(left / spread, "norm"), levene(left[present], left[~present])]
    if min(one.pvalue for one in fits) < MISFIT:
        return None
    t = slope * math.sqrt(square) / spread

    def beyond(center: float) -> float:
        return float(nctdtr(count - 2, center, t)) - (1 - failure)

    if t <= 0 or beyond(0.0) <= 0:
        return 0.0
    least = float(brentq(beyond, 0.0, t, xtol=1e-9 * max(t, 1.0)))  # type: ignore[arg-type]
    return max(0.0, least - 1e-8 * max(t, 1.0)) / math.sqrt(square)
