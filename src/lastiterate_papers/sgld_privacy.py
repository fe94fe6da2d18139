"""Leakage of releasing one iterate of cyclic SGLD, on the pair of its exact distributions: a
Gaussian against a mixture.

Lower bounds on epsilon, because every event is a witness: P1(S) <= e^epsilon P2(S) + delta must
hold for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate_papers.sgld_law import Chain, common_law, neighbour_laws

BLOCKS = 4096
"""The differing record's places are taken in at most so many blocks, each replaced by what its
worst place could do."""


@dataclass(frozen=True)
class Witness:
    """The event theta - ratio > threshold: at least ``log_p`` under data set 1, at most ``log_q``
    under data set 2."""

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
    """The lower bound of Heller and Fetaya's Figure 1 (Appendix A-E): the event theta > mean under
    data set 1.

    log(1/2 - delta) - log of the mean over places of exp(-gap^2 / (2 variance)), 1 where there is
    no positive gap.
    """
    mean, _ = common_law(chain, step)
    means, variances = neighbour_laws(chain, step)
    exponents = -(np.maximum(mean - means, 0.0) ** 2) / (2 * variances)
    top = float(exponents.max())
    return max(0.0, math.log(0.5 - delta) - top - math.log(float(np.exp(exponents - top).mean())))


def log_tail_neighbour(
    chain: Chain, step: int, thresholds: np.ndarray, blocks: int = BLOCKS
) -> np.ndarray:
    """Upper bounds on log P2(theta - ratio > threshold), one for each threshold; exact up to n =
    ``blocks``.

    After whole passes means and variances are monotone in the place r (both are constants plus a
    multiple of lambda^(n-r) or its square), so within a block of places the tail is at most that of
    the larger mean with the variance that is worse on its side of the threshold. Inside a pass
    every place is taken by itself.
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
    """The half line that shows the largest epsilon at ``delta``, among those tried (two rounds of
    33)."""
    from scipy.special import log_ndtr  # pyright: ignore

    mean, variance = common_law(chain, step)
    low, high, best = -8.0, 6.0, Witness(mean, -math.log(2), 0.0)
    for _ in range(2):
        units = np.linspace(low, high, 33)
        thresholds = mean + units * math.sqrt(variance)
        logs = zip(
            thresholds,
            log_ndtr(-units),
            log_tail_neighbour(chain, step, thresholds, blocks),
            strict=True,
        )
        best = max(
            [best, *(Witness(*map(float, each)) for each in logs)],
            key=lambda found: found.epsilon(delta),
        )
        at, width = (best.threshold - mean) / math.sqrt(variance), (high - low) / 32
        low, high = at - width, at + width
    return best


def peak(chain: Chain, delta: float) -> tuple[int, Witness]:
    """The pass after which the witness is strongest, among those tried around (n/2) log(n
    beta/alpha)."""
    turning = (
        chain.n
        / 2
        * math.log(2 + chain.n * chain.model.noise_precision / chain.model.prior_precision)
    )
    tried = np.unique(np.geomspace(1, 40 * turning, 40).astype(np.int64))
    for width in (0.3, 0.03, 0.003):
        scores = [
            best_witness(chain, int(k) * chain.n, delta, blocks=64).epsilon(delta) for k in tried
        ]
        top = int(tried[int(np.argmax(scores))])
        tried = np.unique(
            np.maximum(np.linspace(top * (1 - width), top * (1 + width), 25), 1).astype(np.int64)
        )
    scores = [best_witness(chain, int(k) * chain.n, delta, blocks=64).epsilon(delta) for k in tried]
    top = int(tried[int(np.argmax(scores))])
    return top, best_witness(chain, top * chain.n, delta)
