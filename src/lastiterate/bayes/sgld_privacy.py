"""What releasing one iterate of cyclic SGLD leaks on the pair of its exact laws: a Gaussian against a mixture.

Lower bounds on epsilon, because every event is a witness: P1(S) <= e^epsilon P2(S) + delta must hold for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.bayes.sgld_law import Chain, common_law, neighbour_laws
from lastiterate.run.arrays import Array

BLOCKS = 4096
"""The differing record's places are taken in at most so many blocks, each replaced by what its worst place could do."""


@dataclass(frozen=True)
class Witness:
    """The event theta - ratio > threshold: at least ``log_p`` under data set 1, at most ``log_q`` under data set 2."""

    threshold: float
    log_p: float
    log_q: float

    def epsilon(self, delta: float) -> float:
        """No smaller epsilon is possible at ``delta`` (0 if the event shows nothing), rounded down."""
        p = math.exp(self.log_p)
        if p <= delta:
            return 0.0
        return max(0.0, (math.log(p - delta) - self.log_q) * (1 - 1e-9))


def chernoff_epsilon(chain: Chain, step: int, delta: float) -> float:
    """The lower bound of Heller and Fetaya's Figure 1 (Appendix A-E): the event theta > mean under data set 1.

    log(1/2 - delta) - log of the mean over places of exp(-gap^2 / (2 variance)), 1 where there is no positive gap.
    """
    mean, _ = common_law(chain, step)
    means, variances = neighbour_laws(chain, step)
    exponents = -np.maximum(mean - means, 0.0) ** 2 / (2 * variances)
    top = float(exponents.max())
    return max(0.0, math.log(0.5 - delta) - top - math.log(float(np.exp(exponents - top).mean())))


def log_tail_neighbour(chain: Chain, step: int, thresholds: Array, blocks: int = BLOCKS) -> Array:
    """Upper bounds on log P2(theta - ratio > threshold), one for each threshold; exact up to n = ``blocks``.

    After whole passes means and variances are monotone in the place r (both are constants plus a multiple of
    lambda^(n-r) or its square), so within a block of places the tail is at most that of the larger mean with the
    variance that is worse on its side of the threshold. Inside a pass every place is taken by itself.
    """
    from scipy.special import log_ndtr, logsumexp  # pyright: ignore

    if chain.n <= blocks or step % chain.n:
        first = last = np.arange(1, chain.n + 1, dtype=np.float64)
    else:
        edges = np.unique(np.linspace(0, chain.n, blocks + 1).astype(np.int64))
        first, last = (edges[:-1] + 1).astype(np.float64), edges[1:].astype(np.float64)
    weights = np.log((last - first + 1) / chain.n)
    (m1, v1), (m2, v2) = neighbour_laws(chain, step, first), neighbour_laws(chain, step, last)
    mean, least, most = np.maximum(m1, m2), np.sqrt(np.minimum(v1, v2)), np.sqrt(np.maximum(v1, v2))
    found = []
    for threshold in np.atleast_1d(thresholds):
        gap = threshold - mean
        found.append(logsumexp(weights + log_ndtr(-gap / np.where(gap > 0, most, least))))
    return np.array(found)


def best_witness(chain: Chain, step: int, delta: float, blocks: int = BLOCKS) -> Witness:
    """The half line that shows the largest epsilon at ``delta``, among those tried (two rounds of 33)."""
    from scipy.special import log_ndtr  # pyright: ignore

    mean, variance = common_law(chain, step)
    low, high, best = -8.0, 6.0, Witness(mean, -math.log(2), 0.0)
    for _ in range(2):
        units = np.linspace(low, high, 33)
        thresholds = mean + units * math.sqrt(variance)
        logs = zip(thresholds, log_ndtr(-units), log_tail_neighbour(chain, step, thresholds, blocks), strict=True)
        best = max([best, *(Witness(*map(float, each)) for each in logs)], key=lambda found: found.epsilon(delta))
        at, width = (best.threshold - mean) / math.sqrt(variance), (high - low) / 32
        low, high = at - width, at + width
    return best


def peak(chain: Chain, delta: float) -> tuple[int, Witness]:
    """The pass after which the witness is strongest, among those tried around (n/2) log(n beta/alpha)."""
    turning = chain.n / 2 * math.log(2 + chain.n * chain.model.noise_precision / chain.model.prior_precision)
    tried = np.unique(np.geomspace(1, 40 * turning, 40).astype(np.int64))
    for width in (0.3, 0.03, 0.003):
        scores = [best_witness(chain, int(k) * chain.n, delta, blocks=64).epsilon(delta) for k in tried]
        top = int(tried[int(np.argmax(scores))])
        tried = np.unique(np.maximum(np.linspace(top * (1 - width), top * (1 + width), 25), 1).astype(np.int64))
    scores = [best_witness(chain, int(k) * chain.n, delta, blocks=64).epsilon(delta) for k in tried]
    top = int(tried[int(np.argmax(scores))])
    return top, best_witness(chain, top * chain.n, delta)


@dataclass(frozen=True, eq=False)
class PairOnGrid:
    """Densities of data set 1 (``log_p``) and 2 (``log_q``) at one step, on a grid of shape (m,) with its spacing."""

    spacing: float
    log_p: Array
    log_q: Array

    def deltas(self, epsilon: float) -> tuple[float, float]:
        """delta(epsilon) of set 1 against 2 and of 2 against 1, by the trapezium rule: an estimate of both."""
        with np.errstate(over="ignore", under="ignore"):
            one = np.exp(self.log_p) * -np.expm1(np.minimum(epsilon + self.log_q - self.log_p, 0.0))
            two = np.exp(self.log_q) * -np.expm1(np.minimum(epsilon + self.log_p - self.log_q, 0.0))
        return float(one.sum() * self.spacing), float(two.sum() * self.spacing)

    def delta(self, epsilon: float) -> float:
        """The larger of both directions."""
        return max(self.deltas(epsilon))

    def epsilon(self, delta: float) -> float:
        """The epsilon at which ``delta(epsilon)`` is ``delta``, by bisection."""
        low, high = 0.0, 1.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def pair_on_grid(chain: Chain, step: int, points: int = 4001) -> PairOnGrid:
    """The pair at one step, on a grid that holds all but 1e-30 of both laws; O(n points) work."""
    from scipy.special import logsumexp  # pyright: ignore

    total: Any = logsumexp
    mean, variance = common_law(chain, step)
    means, variances = neighbour_laws(chain, step)
    reach = 12 * math.sqrt(max(variance, float(variances.max())))
    x = np.linspace(min(mean, float(means.min())) - reach, max(mean, float(means.max())) + reach, points)
    log_p = -((x - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2
    log_q = np.empty(points)
    for part in np.array_split(np.arange(points), max(1, points * chain.n // 4_000_000)):
        logs = -((x[part, None] - means) ** 2) / (2 * variances) - np.log(2 * math.pi * variances) / 2
        log_q[part] = total(logs, axis=1) - math.log(chain.n)
    return PairOnGrid(float(x[1] - x[0]), log_p, log_q)
