"""Renyi curves, the two rules that turn them into (epsilon, delta), and their sums.

**Guarantee:** every number returned is an upper end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from lastiterate.curves.curve import UP, Curve, check_delta, check_epsilon, from_log
from lastiterate.curves.gdp import Gdp
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

LEAST_GAP = 1e-9
"""Orders are looked for from 1 + a part of this on: below, alpha - 1 has no digits left."""
LARGEST_EPSILON, MOST_GAP = 1e100, 1e100
"""Beyond them products of orders and epsilons overflow."""


@final
@dataclass(frozen=True)
class Rdp(Curve):
    """Renyi curve: at most ``slope * alpha`` at every order, and at most ``values[i]`` at ``orders[i]``.

    **Guarantee:** ``delta(epsilon(d))`` is at most d.
    """

    slope: float = math.inf
    orders: tuple[float, ...] = ()
    values: tuple[float, ...] = ()
    _GRID: ClassVar[Array] = np.exp(np.linspace(-4.0, 4.0, 801))

    def __post_init__(self) -> None:
        if math.isnan(self.slope) or self.slope < 0:
            raise InputError("slope", "must be a number >= 0", self.slope)
        if len(self.orders) != len(self.values) or any(a <= 1 for a in self.orders):
            raise InputError("orders", "must exceed 1, with one value each", self.orders)

    @classmethod
    def linear(cls, slope: float) -> Rdp:
        """epsilon(alpha) = slope * alpha for all alpha > 1."""
        return cls(slope)

    def rdp(self, alpha: float) -> float:
        # Renyi divergence does not decrease with the order: any tabled order >= alpha bounds it
        tabled = [value for order, value in zip(self.orders, self.values, strict=True) if order >= alpha]
        return min([self.slope * alpha * UP if self.slope else 0.0, *tabled])

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        if self.slope == 0:
            return 0.0
        best = math.inf
        for orders, values in self._candidates(math.log(1 / delta)):
            best = min(best, float(rdp_epsilon(orders, values, delta).min()))
        return self._confirmed(max(0.0, best), delta)

    def _confirmed(self, epsilon: float, delta: float) -> float:
        """``epsilon``, raised by what rounding takes until ``delta`` is seen there: both rules round up."""
        step = 2.0**-50
        while epsilon < math.inf and self.delta(epsilon) > delta:
            epsilon, step = epsilon * (1 + step) + step, 2 * step
        return epsilon

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return from_log(self._log_delta(epsilon))

    def log_profile(self, epsilons: Array) -> Array:
        logs = np.array([self._log_delta(float(epsilon)) for epsilon in epsilons])
        return np.stack([logs, logs], axis=1)

    def _log_delta(self, epsilon: float) -> float:
        if self.slope == 0:
            return -math.inf
        best = 0.0
        epsilon = min(epsilon, LARGEST_EPSILON)  # delta never increases
        if math.isfinite(self.slope):
            # exp((alpha - 1)(slope alpha - eps)) is least near alpha - 1 = (eps/slope - 1)/2, where that is positive;
            # below, slope (alpha - 1)^2 - log(alpha - 1) decides
            gaps = min(max((epsilon / self.slope - 1) / 2, 1e-6), MOST_GAP), max(self.slope**-0.5, LEAST_GAP)
            rest = np.concatenate([gap * self._GRID for gap in gaps])
            for width in (0.012, 2.5e-4, 5e-6, 0.0):  # beside the best so far
                logs = rdp_log_delta(1 + rest, self.slope * (1 + rest), epsilon)
                best = min(best, float(logs.min()))
                rest = rest[int(logs.argmin())] * np.exp(np.linspace(-width, width, 101))
        if self.orders:
            table = np.array(self.orders), np.array(self.values)
            best = min(best, float(rdp_log_delta(*table, epsilon).min()))
        return best

    def _candidates(self, log_inverse_delta: float) -> list[tuple[Array, Array]]:
        tables: list[tuple[Array, Array]] = []
        if math.isfinite(self.slope):
            gap = max(math.sqrt(log_inverse_delta / self.slope), LEAST_GAP)
            coarse = 1 + gap * self._GRID
            at = coarse[int(np.argmin(rdp_epsilon(coarse, self.slope * coarse, math.exp(-log_inverse_delta))))]
            fine = 1 + (at - 1) * np.exp(np.linspace(-0.02, 0.02, 401))
            tables.append((fine, self.slope * fine))
        if self.orders:
            tables.append((np.array(self.orders), np.array(self.values)))
        return tables

    def group(self, size: int) -> Rdp:
        """Return the curve of ``size`` records that change together.

        A line through 0 at all orders, slope * alpha, becomes size^2 * slope * alpha (Bun and Steinke 2016,
        Proposition 1.9). A tabled order alpha becomes alpha / 2^c at 3^c times the divergence, size rounded up to 2^c
        (Mironov 2017, Proposition 2).
        """
        c = max(0, math.ceil(math.log2(size)))
        kept = [alpha for alpha in self.orders if alpha >= 2 ** (c + 1)]
        return Rdp(self.slope * size**2 * UP if self.slope else 0.0, tuple(alpha / 2**c for alpha in kept),
                   tuple(3**c * self.rdp(alpha) * UP for alpha in kept))


def rdp_epsilon(orders: Array, values: Array, delta: float) -> Array:
    """(epsilon, delta) at each order: the smaller of the improved rule and Mironov's, rounded up.

    Canonne, Kamath, Steinke 2020, Proposition 12 (also Balle et al. 2020, Theorem 21):
    r + log((alpha-1)/alpha) - (log delta + log alpha)/(alpha-1); Mironov 2017, Proposition 3: r + log(1/delta) /
    (alpha-1).
    """
    gap = orders - 1
    mironov = values - math.log(delta) / gap
    improved = mironov + np.log1p(-1 / orders) - np.log(orders) / gap
    return np.minimum(mironov, improved) + 1e-12 * (1 + np.abs(mironov))


def rdp_log_delta(orders: Array, values: Array, epsilon: float) -> Array:
    """log delta at each order by the same two rules, rounded up."""
    gap = orders - 1
    mironov = gap * (values - epsilon)
    improved = mironov - np.log(gap) + orders * np.log1p(-1 / orders)
    return np.minimum(mironov, improved) + 1e-12 * (1 + np.abs(mironov))


def renyi_sum(one: Curve, two: Curve) -> Rdp:
    """Both mechanisms on the same data: divergences of an order add up (Mironov 2017, Proposition 1)."""
    slopes = [c.slope if isinstance(c, Rdp) else c.mu**2 / 2 if isinstance(c, Gdp) else math.inf for c in (one, two)]
    orders = {order for curve in (one, two) if isinstance(curve, Rdp) for order in curve.orders}
    if not math.isfinite(sum(slopes)):
        orders |= {float(1 + gap) for gap in np.geomspace(0.01, 1e4, 300)}
    listed = tuple(sorted(orders))
    values = tuple((one.rdp(order) + two.rdp(order)) * UP for order in listed)
    return Rdp(sum(slopes) * UP, listed, values)
