"""The exact distribution of cyclic SGLD with batches of one record on Bayesian linear regression,
without stepping through it.

theta <- theta + (eta/2)(-alpha theta + n beta x (y - theta x)) + sqrt(eta) N(0, 1), theta_0 ~ N(0,
1/alpha) (Heller and Fetaya 2023, equation 3). n - 1 records are (x, y), the differing one is not;
its place in the order is uniform and the same in every pass. Everything is measured from ratio =
y/x, where the map of a common record is phi -> lambda phi - tau, tau = (eta/2) alpha ratio, and
nothing cancels: their Lemma A.2 with all means shifted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.bayes import LinearModel
from lastiterate.errors import InputError
from lastiterate_papers.comparisons import positive, whole


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Cyclic SGLD on n records (x, y): all of them ``common`` (data set 1), or one of them
    ``differing`` (data set 2).

    Errors: ``InputError`` for a ``step_size`` with which the chain diverges or overshoots.
    """

    model: LinearModel
    n: int
    step_size: float
    common: tuple[float, float] = (1.0, 1.0)
    differing: tuple[float, float] = (0.5, 0.5)

    def __post_init__(self) -> None:
        whole("n", self.n)
        positive("step_size", self.step_size)
        positive("the common record's x", self.common[0])
        for (x, _), name in ((self.common, "common"), (self.differing, "differing")):
            rate = self.shrinkage(x)
            if not rate < 1:
                what = "diverges" if rate >= 2 else "overshoots"
                raise InputError(
                    "step_size",
                    f"must lie below 2 / (alpha + n beta x^2) for the {name} record",
                    self.step_size,
                    f"the chain {what}",
                )

    @classmethod
    def paper(cls, model: LinearModel, n: int, *, ratio: float, x_high: float = 1.0) -> Chain:
        """The pair of Heller and Fetaya's equation 8, with their step size: lambda = 1 - 1/n^2."""
        step_size = (
            2 / (model.prior_precision + n * x_high**2 * model.noise_precision) / float(n) ** 2
        )
        return cls(
            model=model,
            n=n,
            step_size=step_size,
            common=(x_high, ratio * x_high),
            differing=(x_high / 2, ratio * x_high / 2),
        )

    def shrinkage(self, x: float) -> float:
        """1 - the factor of a step on a record with feature x."""
        return (
            self.step_size
            / 2
            * (self.model.prior_precision + self.n * self.model.noise_precision * x * x)
        )

    @property
    def ratio(self) -> float:
        """y/x of the common records."""
        return self.common[1] / self.common[0]

    @property
    def drift(self) -> tuple[float, float]:
        """tau of a common and of a differing record."""
        half = self.step_size / 2
        common = half * self.model.prior_precision * self.ratio
        excess = self.differing[1] - self.ratio * self.differing[0]
        return common, common - half * self.n * self.model.noise_precision * self.differing[
            0
        ] * excess


def common_law(chain: Chain, step: int) -> tuple[float, float]:
    """Mean (minus the ratio) and variance of theta after ``step`` steps on data set 1."""
    whole("step", step, 0)
    g, eta = chain.shrinkage(chain.common[0]), chain.step_size
    log_factor = step * math.log1p(-g)
    mean = -chain.ratio * math.exp(log_factor) + chain.drift[0] / g * math.expm1(log_factor)
    variance = math.exp(2 * log_factor) / chain.model.prior_precision - eta * math.expm1(
        2 * log_factor
    ) / (g * (2 - g))
    return mean, variance


def neighbour_laws(chain: Chain, step: int, places: object = None) -> tuple[np.ndarray, np.ndarray]:
    """The same on data set 2, one law for each place 1..n of the differing record (or the
    ``places`` given).

    Theta is distributed as their mixture with equal weights.
    """
    whole("step", step, 0)
    r = (
        np.arange(1, chain.n + 1, dtype=np.float64)
        if places is None
        else np.asarray(places, dtype=np.float64)
    )
    passes, rest = divmod(step, chain.n)
    log_factor, shift, spread = _with_differing(chain, chain.n, r)
    # the pass repeated: sums of geometric series in exp(log_factor)
    grown = passes * log_factor
    mean = -chain.ratio * np.exp(grown) - shift * np.expm1(grown) / np.expm1(log_factor)
    variance = np.exp(2 * grown) / chain.model.prior_precision + spread * np.expm1(
        2 * grown
    ) / np.expm1(2 * log_factor)
    if rest == 0:
        return mean, variance
    seen, unseen = _with_differing(chain, rest, np.minimum(r, rest)), _common(chain, rest)
    log_factor, shift, spread = (
        np.where(r <= rest, a, b) for a, b in zip(seen, unseen, strict=True)
    )
    return np.exp(log_factor) * mean - shift, np.exp(2 * log_factor) * variance + spread


def _common(chain: Chain, steps: int) -> tuple[float, float, float]:
    """Log factor, shift (downwards) and added variance of some common steps."""
    g = chain.shrinkage(chain.common[0])
    log_factor = steps * math.log1p(-g)
    return (
        log_factor,
        -chain.drift[0] * math.expm1(log_factor) / g,
        -chain.step_size * math.expm1(2 * log_factor) / (g * (2 - g)),
    )


def _with_differing(
    chain: Chain, steps: int, r: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """The same for steps that hold the differing record at place r (1-based)."""
    g, d = chain.shrinkage(chain.common[0]), chain.shrinkage(chain.differing[0])
    tau, differing_tau = chain.drift
    log_factor = (steps - 1) * math.log1p(-g) + math.log1p(-d)
    after = np.exp((steps - r) * math.log1p(-g))  # the remainder of the differing step at the end
    shift = (
        -tau * math.expm1(log_factor) + after * (tau * (g - d) + g * (differing_tau - tau))
    ) / g
    spread = (
        chain.step_size
        * (-math.expm1(2 * log_factor) + after**2 * (g - d) * (2 - g - d))
        / (g * (2 - g))
    )
    return log_factor, shift, spread
