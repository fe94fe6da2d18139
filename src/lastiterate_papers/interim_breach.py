"""A problem whose posterior sample is private while SGLD, stopped on its way there, is not.

Heller and Fetaya 2023, Theorem IV.1, as a construction: it searches n and the ratio, and returns
both numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastiterate.bayes import LinearModel, RatioDomain, posterior_curve
from lastiterate.errors import InputError
from lastiterate_papers.sgld_law import Chain
from lastiterate_papers.sgld_privacy import Witness, best_witness, peak

EXPONENT = 1 / 64
"""gamma_1 of the domain: a spread of n^(1/64)."""
LARGEST = 2**32


@dataclass(frozen=True)
class Breach:
    """One exact posterior sample is (epsilon, delta)-DP on ``domain``; SGLD after ``step`` steps is
    not even (target, delta)-DP there: ``witness`` is an event of the two members of the domain that
    ``chain`` describes.

    **Guarantee:** ``posterior_epsilon`` is an upper bound for every pair of neighbours;
    ``sgld_epsilon`` is a lower bound by the exact probabilities of one event.
    """

    domain: RatioDomain
    chain: Chain
    step: int
    delta: float
    target: float
    posterior_epsilon: float
    witness: Witness

    @property
    def sgld_epsilon(self) -> float:
        """No smaller epsilon holds for SGLD at ``delta``."""
        return self.witness.epsilon(self.delta)

    @property
    def epochs(self) -> int:
        """Whole passes over the data after ``step`` steps."""
        return self.step // self.chain.n

    def verify(self) -> bool:
        """Whether both numbers follow from the problem: the bound is computed again, and the
        event's probabilities."""
        inside = self.domain.n == self.chain.n and all(
            self.domain.x_low <= x <= self.domain.x_high
            and abs(y - self.domain.ratio * x) <= self.domain.spread * x
            for x, y in (self.chain.common, self.chain.differing)
        )
        certified = posterior_curve(self.chain.model, self.domain).epsilon(self.delta)
        again = best_witness(self.chain, self.step, self.delta)
        same = (certified, again) == (self.posterior_epsilon, self.witness)
        return inside and same and self.target < self.sgld_epsilon


def breach(epsilon: float, delta: float, target: float) -> Breach:
    """A concrete problem for which sampling by SGLD breaks ``target`` while the posterior keeps
    ``epsilon``.

    alpha = beta = x_high = 1, x_low = 1/2, lambda = 1 - 1/n^2 (equation 8); n doubles until the
    largest ratio that keeps the posterior private is enough. Errors: ``InputError`` for budgets
    that no n up to 2^32 serves.
    """
    if not 0 < epsilon < math.inf:
        raise InputError("epsilon", "must be a positive finite number", epsilon)
    if not 0 < delta < 0.5:
        raise InputError("delta", "must lie strictly between 0 and 1/2", delta)
    if not epsilon <= target < math.inf:
        raise InputError("target", "must be finite and at least epsilon", target)
    n = 64
    while n <= LARGEST:
        ratio = largest_ratio(n, epsilon, delta)
        if ratio is not None:
            domain, chain = _problem(n, ratio)
            epoch, witness = peak(chain, delta)
            if witness.epsilon(delta) > target:
                certified = posterior_curve(chain.model, domain).epsilon(delta)
                return Breach(domain, chain, epoch * n, delta, target, certified, witness)
        n *= 2
    raise InputError(
        "target", "needs more than 2^32 records", target, "raise epsilon or lower target"
    )


def largest_ratio(n: int, epsilon: float, delta: float) -> float | None:
    """The largest ratio (to 1e-3, up to n^1.6) whose posterior is certified (epsilon, delta)-DP, if
    one above 1 is."""

    def private(log_ratio: float) -> bool:
        domain, chain = _problem(n, math.exp(log_ratio))
        return posterior_curve(chain.model, domain).epsilon(delta) <= epsilon

    low, high = 0.0, 1.6 * math.log(n)
    if not private(low):
        return None
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if private(middle) else (low, middle)
    return math.exp(low)


def _problem(n: int, ratio: float) -> tuple[RatioDomain, Chain]:
    return RatioDomain.paper(n=n, exponent=EXPONENT, ratio=ratio), Chain.paper(
        LinearModel(), n, ratio=ratio
    )
