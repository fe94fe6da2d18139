"""Bayesian linear regression and divergences between Gaussians."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.adjacency import records_moved
from lastiterate.run.validation import Array, check_kept, positive, whole

# How far two Gaussians are apart: Renyi divergences in one dimension.


def renyi(order: float, mean1: float, precision1: float, mean2: float, precision2: float) -> float:
    """Renyi divergence of order > 1 of N(mean1, 1/precision1) from N(mean2, 1/precision2); may be
    infinite.

    Gil, Alajaji, Linder 2013, Table 2. With A = order * precision1 - (order - 1) * precision2 > 0
    (else infinite) it is [order log precision1 - (order - 1) log precision2 - log A] / (2 (order -
    1)) + order gap^2 precision1 precision2 / (2 A).
    """
    share = (order - 1) * (precision2 - precision1) / precision1
    if share >= 1:
        return math.inf
    gap = (mean1 - mean2) ** 2 * precision2 / (1 - share)
    return float(log_part(order, (precision2 - precision1) / precision1)) + order / 2 * gap


def log_part(order: ArrayLike, change: ArrayLike) -> Array:
    """Renyi divergence between centred Gaussians whose precisions are A and A (1 + change), (order
    - 1) change < 1.

    It falls for change < 0 and grows for change > 0: its derivative is order change / (2 (1 +
    change) (1 - (order - 1) change)).
    """
    above, moved = np.asarray(order, dtype=np.float64) - 1, np.asarray(change, dtype=np.float64)
    return -(np.log1p(moved) + np.log1p(-above * moved) / above) / 2


# Bayesian linear regression with one feature and known precision: its posterior, and what one
# sample of it leaks. y = theta x + noise, noise ~ N(0, 1/beta), theta ~ N(0, 1/alpha) (Heller and
# Fetaya 2023, equation 4). Proofs: docs/theorems/posterior-sample.md.

Neighbours = Literal["replace-one", "zero-out"]
NEIGHBOURS: tuple[Neighbours, ...] = ("replace-one", "zero-out")
MOST_ORDER = 1e6
SLACK = 1 + 1e-12
"""Each bound is some thirty correctly rounded operations on terms of one sign."""


@dataclass(frozen=True, kw_only=True)
class LinearModel:
    """The precisions (1/variance) of the prior and of the noise of a label."""

    prior_precision: float = 1.0
    noise_precision: float = 1.0

    def __post_init__(self) -> None:
        positive("prior_precision", self.prior_precision)
        positive("noise_precision", self.noise_precision)

    def posterior(self, x: Array, y: Array) -> tuple[float, float]:
        """Mean and variance of theta given records x, y of shape (n,) (Heller and Fetaya 2023,
        Lemma IV.2)."""
        precision = self.prior_precision + self.noise_precision * float(x @ x)
        return self.noise_precision * float(x @ y) / precision, 1 / precision


@dataclass(frozen=True, kw_only=True)
class RatioDomain:
    """All sets of n records with x_low <= x <= x_high and |y/x - ratio| <= spread (Heller and
    Fetaya 2023, equation 5).

    All five are public numbers: choosing them by looking at the data voids every guarantee.
    """

    n: int
    ratio: float
    spread: float
    x_low: float = 0.5
    x_high: float = 1.0

    def __post_init__(self) -> None:
        whole("n", self.n)
        positive("ratio", self.ratio)
        positive("spread", self.spread, zero=True)
        positive("x_low", self.x_low)
        positive("x_high", self.x_high)
        if self.x_low > self.x_high:
            raise InputError("x_low", f"cannot exceed x_high = {self.x_high:g}", self.x_low)

    @classmethod
    def paper(
        cls, *, n: int, exponent: float, ratio: float, x_low: float = 0.5, x_high: float = 1.0
    ) -> RatioDomain:
        """The domain D(n, gamma_1, x_h, x_l, c) of the paper: spread = n^exponent, 0 < exponent <
        1/2."""
        if not 0 < exponent < 0.5:
            raise InputError("exponent", "must lie strictly between 0 and 1/2", exponent)
        return cls(n=n, ratio=ratio, spread=float(n) ** exponent, x_low=x_low, x_high=x_high)

    def check(self, x: ArrayLike, y: ArrayLike) -> tuple[Array, Array]:
        """The records as arrays of shape (n,), or ``InputError`` if they are not a member of the
        domain."""
        check_kept("data", (x, y))
        arrays = tuple(np.asarray(values, dtype=np.float64) for values in (x, y))
        if any(values.shape != (self.n,) for values in arrays):
            raise InputError(
                "data", f"must be x and y of shape ({self.n},)", [v.shape for v in arrays]
            )
        inside = (arrays[0] >= self.x_low) & (arrays[0] <= self.x_high)
        with np.errstate(invalid="ignore", over="ignore"):
            inside &= np.abs(arrays[1] - self.ratio * arrays[0]) <= self.spread * arrays[0]
        if not inside.all():
            raise InputError(
                "data",
                "hold a record outside the public domain, so nothing is sampled",
                None,
                "clip or drop such records by a public rule, or see propose_test_sample",
            )
        return arrays[0], arrays[1]


def lemma_bound(order: ArrayLike, model: LinearModel, domain: RatioDomain) -> Array:
    """Heller and Fetaya 2023, Lemma IV.3 (as restored in docs/theorems/posterior-sample.md),
    replace or remove one.

    With h = x_high^2, kappa = (n - 1) x_low^2, for order <= kappa / (2 h), else infinite:
    (3/2) h / kappa + order beta h^2 / kappa (3 spread + ratio alpha / (alpha + beta kappa))^2.
    """
    alpha, beta, (spread, ratio) = model.prior_precision, model.noise_precision, _rounded(domain)
    high, kappa, orders = (
        domain.x_high**2,
        (domain.n - 1) * domain.x_low**2,
        np.asarray(order, dtype=np.float64),
    )
    if kappa == 0:
        return np.full(orders.shape, np.inf)
    mean = beta * high**2 / kappa * (3 * spread + ratio * alpha / (alpha + beta * kappa)) ** 2
    return np.where(
        2 * orders * high <= kappa, (1.5 * high / kappa + orders * mean) * SLACK, np.inf
    )


def corner_bound(
    order: ArrayLike, model: LinearModel, domain: RatioDomain, adjacency: Neighbours = "replace-one"
) -> Array:
    """The largest Renyi divergence between posteriors of neighbours in the domain, from its worst
    pair.

    With A = alpha + beta (n - 1) x_low^2 + beta low, d = x_high^2 - low, t = beta d / A, g =
    max(ratio - spread, 0): log_part(t) + (order/2) beta^2 (2 spread x_high^2 + g alpha d / A)^2 /
    ((A + beta d) (1 - (order - 1) t)), infinite unless max(order - 1, sqrt(order)) beta x_high^2 <=
    alpha + beta (n - 1) x_low^2 and (order - 1) t <= 0.999. low = x_low^2 under replace-one; under
    zero-out one record counts for nothing (the same as removed) and low = 0. Exact for ratio >=
    spread: Theorem 2 of docs/theorems/posterior-sample.md.
    """
    alpha, beta, (spread, ratio) = model.prior_precision, model.noise_precision, _rounded(domain)
    orders = np.asarray(order, dtype=np.float64)
    high, rest = domain.x_high**2, alpha + beta * (domain.n - 1) * domain.x_low**2
    low = domain.x_low**2 if records_moved(adjacency) == 2 else 0.0
    lighter, width = rest + beta * low, beta * (high - low)
    t = width / lighter
    gap = beta * 2 * spread * high + max(ratio - spread, 0.0) * alpha * t
    with np.errstate(all="ignore"):
        bound = log_part(orders, t) + orders / 2 * gap**2 / (
            (lighter + width) * (1 - (orders - 1) * t)
        )
    allowed = np.maximum(orders - 1, np.sqrt(orders)) * beta * high <= rest
    allowed &= (orders - 1) * t <= 0.999  # so that 1 - (order - 1) t is good to twelve digits
    # both logarithms of log_part are off by a few units in the last place of t
    return np.where(allowed, bound * SLACK + 1e-14 * t, np.inf)


def posterior_curve(
    model: LinearModel, domain: RatioDomain, adjacency: Neighbours = "replace-one"
) -> Rdp:
    """What one posterior sample of any data set in the domain leaks: a Renyi curve at 200 orders.

    **Guarantee:** an upper bound at every order; ``InputError`` where n is too small for any order
    above 1.05.
    """
    high, rest = domain.x_high**2, (domain.n - 1) * domain.x_low**2
    least = model.prior_precision / model.noise_precision + rest
    if least < 1.05 * high:
        needed = 2 + math.floor(
            (1.05 * high - model.prior_precision / model.noise_precision) / domain.x_low**2
        )
        raise InputError(
            "n",
            f"is too small for the lemma, which needs at least {needed} records here",
            domain.n,
            "use more records or a larger prior_precision",
        )
    orders = 1 + np.geomspace(0.01, min(least / high, MOST_ORDER), 200)
    values = corner_bound(orders, model, domain, adjacency)
    if records_moved(adjacency) == 2:
        values = np.minimum(values, lemma_bound(orders, model, domain))
    kept = np.isfinite(values)
    return Rdp(orders=tuple(map(float, orders[kept])), values=tuple(map(float, values[kept])))


def _rounded(domain: RatioDomain) -> tuple[float, float]:
    """Spread and ratio, the spread widened by what ``check`` may misjudge in double precision."""
    return domain.spread * SLACK + 1e-15 * domain.ratio, domain.ratio
