"""Privacy curves: what an adversary may learn, as delta(epsilon), epsilon(delta) and Renyi divergence.

**Guarantee:** every number returned is an upper end; searches return the side on which the guarantee holds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import numpy as np

from lastiterate._numerics import Array, gdp_delta, log_sum_exp, smallest_true
from lastiterate.errors import InputError

UP = 1 + 1e-12
"""Inflation of closed forms made of a few correctly rounded, well-conditioned operations."""


class Curve(ABC):
    """An upper bound on the privacy loss of a mechanism, in both directions of the neighbouring pair."""

    @abstractmethod
    def delta(self, epsilon: float) -> float:
        """Upper bound on delta at ``epsilon`` >= 0."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Upper bound on epsilon at ``delta`` in (0, 1); may be infinite."""

    @abstractmethod
    def rdp(self, alpha: float) -> float:
        """Upper bound on the Renyi divergence of order ``alpha`` > 1; infinite where unknown."""

    @abstractmethod
    def group(self, size: int) -> Curve:
        """A curve that holds for neighbours ``size`` records apart."""

    def rough(self) -> Curve:
        """A looser bound on the same mechanism that is cheaper to evaluate, for searches; the curve itself if it is
        cheap. Twice rough is cheaper still."""
        return self

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready form."""
        return {"type": type(self).__name__, **{item.name: getattr(self, item.name) for item in fields(self)}}  # pyright: ignore


@final
@dataclass(frozen=True)
class Gdp(Curve):
    """mu-Gaussian differential privacy (Dong, Roth, Su 2022, Definition 2.6 and Corollary 2.13)."""

    mu: float

    def __post_init__(self) -> None:
        if math.isnan(self.mu) or self.mu < 0:
            raise InputError("mu", "must be a number >= 0", self.mu)

    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        if self.mu == 0 or math.isinf(self.mu):
            return 0.0 if self.mu == 0 else 1.0
        return float(gdp_delta(epsilon, np.array([self.mu]))[0])

    def epsilon(self, delta: float) -> float:
        _check_delta(delta)
        if math.isinf(self.mu):
            return math.inf
        return smallest_true(lambda e: self.delta(e) <= delta, 0.0, _ceiling(self.mu, delta))

    def rdp(self, alpha: float) -> float:
        return alpha * self.mu**2 / 2 * UP

    def group(self, size: int) -> Gdp:
        return Gdp(self.mu * size * UP)


@final
@dataclass(frozen=True)
class GdpMixture(Curve):
    """The pair (J, N(mu_J, 1)) against (J, N(0, 1)) with P[J = j] = weights[j] (docs: one secret permutation)."""

    weights: tuple[float, ...]
    mus: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.weights) != len(self.mus) or not self.mus:
            raise InputError("weights", "need one entry for every mu", len(self.weights))
        if min(self.weights) < 0 or abs(math.fsum(self.weights) - 1) > 1e-12:
            raise InputError("weights", "must be non-negative and sum to 1", math.fsum(self.weights))
        if not all(mu >= 0 for mu in self.mus):
            raise InputError("mus", "must be numbers >= 0", self.mus)

    def _finite(self) -> tuple[Array, Array, float]:
        """Weights and mus of the finite positive atoms, and the weight of the infinite ones."""
        w, mu = np.array(self.weights), np.array(self.mus)
        keep = (mu > 0) & np.isfinite(mu) & (w > 0)
        return w[keep], mu[keep], float(w[np.isinf(mu)].sum())

    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        w, mu, lost = self._finite()
        total = float((w * gdp_delta(epsilon, mu)).sum()) if w.size else 0.0
        return min(1.0, (total + lost) * UP)

    def epsilon(self, delta: float) -> float:
        _check_delta(delta)
        _, mu, lost = self._finite()
        if lost * UP >= delta:
            return math.inf
        if not mu.size:
            return 0.0
        # with an infinite atom the finite ones must do with less
        return smallest_true(lambda e: self.delta(e) <= delta, 0.0, _ceiling(float(mu.max()), (delta - lost) / 2))

    def rdp(self, alpha: float) -> float:
        if alpha <= 1:
            raise InputError("alpha", "must exceed 1", alpha)
        w, mu, lost = self._finite()
        if lost > 0:
            return math.inf
        rest = max(0.0, 1 - float(w.sum()))
        terms = np.log(np.append(w, rest + 1e-300)) + np.append((alpha - 1) * alpha * mu**2 / 2, 0.0)
        return max(0.0, log_sum_exp(terms) / (alpha - 1)) * UP + 1e-12 / (alpha - 1)

    def group(self, size: int) -> Gdp:
        # its trade-off function lies above G(max mu), whose group privacy is size * max mu
        return Gdp(max(self.mus) * size * UP)


@final
@dataclass(frozen=True)
class Rdp(Curve):
    """Renyi curve: at most ``slope * alpha`` at every order, and at most ``values[i]`` at ``orders[i]``."""

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
        _check_delta(delta)
        if self.slope == 0:
            return 0.0
        best = math.inf
        for orders, values in self._candidates(math.log(1 / delta)):
            best = min(best, float(rdp_epsilon(orders, values, delta).min()))
        return max(0.0, best)

    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        if self.slope == 0:
            return 0.0
        best = 0.0
        if math.isfinite(self.slope):
            # exp((alpha - 1)(slope alpha - eps)) is least near alpha - 1 = (eps/slope - 1)/2, where that is positive;
            # below, slope (alpha - 1)^2 - log(alpha - 1) decides
            gaps = max((epsilon / self.slope - 1) / 2, 1e-6), self.slope**-0.5
            orders = 1 + np.concatenate([gap * self._GRID for gap in gaps])
            best = min(best, float(rdp_log_delta(orders, self.slope * orders, epsilon).min()))
        if self.orders:
            table = np.array(self.orders), np.array(self.values)
            best = min(best, float(rdp_log_delta(*table, epsilon).min()))
        return min(1.0, math.exp(best) * UP)

    def _candidates(self, log_inverse_delta: float) -> list[tuple[Array, Array]]:
        found: list[tuple[Array, Array]] = []
        if math.isfinite(self.slope):
            gap = math.sqrt(log_inverse_delta / self.slope)
            coarse = 1 + gap * self._GRID
            at = coarse[int(np.argmin(rdp_epsilon(coarse, self.slope * coarse, math.exp(-log_inverse_delta))))]
            fine = 1 + (at - 1) * np.exp(np.linspace(-0.02, 0.02, 401))
            found.append((fine, self.slope * fine))
        if self.orders:
            found.append((np.array(self.orders), np.array(self.values)))
        return found

    def group(self, size: int) -> Rdp:
        """Mironov 2017, Proposition 2: order alpha / 2^c at 3^c times the loss, size rounded up to 2^c."""
        c = max(0, math.ceil(math.log2(size)))
        orders = self.orders
        if math.isfinite(self.slope):
            gaps = np.concatenate((np.geomspace(0.01, 1e4, 600), np.array(orders) - 1 if orders else []))
            orders = tuple(float(1 + gap) for gap in gaps)
        kept = [alpha for alpha in orders if alpha >= 2 ** (c + 1)]
        return Rdp(orders=tuple(alpha / 2**c for alpha in kept), values=tuple(3**c * self.rdp(a) for a in kept))


@final
@dataclass(frozen=True)
class EpsDelta(Curve):
    """A single (epsilon, delta) guarantee and what follows from it."""

    at_epsilon: float
    at_delta: float

    def __post_init__(self) -> None:
        _check_epsilon(self.at_epsilon)
        if not 0 <= self.at_delta <= 1:
            raise InputError("delta", "must lie in [0, 1]", self.at_delta)

    def delta(self, epsilon: float) -> float:
        _check_epsilon(epsilon)
        if epsilon >= self.at_epsilon:
            return self.at_delta
        # a pair at (e0, d0): P(A) - e^e Q(A) <= d0 + (e^e0 - e^e) Q(A), and Q(A) <= (1 - d0)/(1 + e^e0) at the corner
        top = math.exp(min(self.at_epsilon, 700.0))
        return min(1.0, (self.at_delta + (top - math.exp(epsilon)) * (1 - self.at_delta) / (1 + top)) * UP)

    def epsilon(self, delta: float) -> float:
        _check_delta(delta)
        return self.at_epsilon if delta >= self.at_delta else math.inf

    def rdp(self, alpha: float) -> float:
        # Bun and Steinke 2016, Proposition 3.3: pure epsilon-DP is epsilon^2/2-zCDP
        return min(self.at_epsilon, alpha * self.at_epsilon**2 / 2) * UP if self.at_delta == 0 else math.inf

    def group(self, size: int) -> EpsDelta:
        total = sum(math.exp(min(i * self.at_epsilon, 700.0)) for i in range(size))
        return EpsDelta(size * self.at_epsilon * UP, min(1.0, total * self.at_delta * UP))


@final
@dataclass(frozen=True)
class BestOf(Curve):
    """Several bounds on one mechanism: the smallest at every point."""

    curves: tuple[Curve, ...]

    def delta(self, epsilon: float) -> float:
        return min(curve.delta(epsilon) for curve in self.curves)

    def epsilon(self, delta: float) -> float:
        return min(curve.epsilon(delta) for curve in self.curves)

    def rdp(self, alpha: float) -> float:
        return min(curve.rdp(alpha) for curve in self.curves)

    def group(self, size: int) -> BestOf:
        return BestOf(tuple(curve.group(size) for curve in self.curves))

    def rough(self) -> BestOf:
        return BestOf(tuple(curve.rough() for curve in self.curves))

    def to_dict(self) -> dict[str, Any]:
        return {"type": "BestOf", "curves": [curve.to_dict() for curve in self.curves]}


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


def compose(*curves: Curve) -> Curve:
    """One curve for mechanisms run one after the other on the same data (adaptively)."""
    if not curves:
        return Gdp(0.0)
    total = curves[0]
    for curve in curves[1:]:
        total = _pair(total, curve)
    return total


def _pair(one: Curve, two: Curve) -> Curve:
    from lastiterate.pld import Pld
    from lastiterate.sampled_renyi import SampledRenyi

    one, two = (curve.table() if isinstance(curve, SampledRenyi) else curve for curve in (one, two))
    match one, two:
        case BestOf(), _:
            return BestOf(tuple(_pair(curve, two) for curve in one.curves))
        case _, BestOf():
            return BestOf(tuple(_pair(one, curve) for curve in two.curves))
        case Gdp(), Gdp():
            return Gdp(math.hypot(one.mu, two.mu) * UP)
        case (GdpMixture(), Gdp()) | (Gdp(), GdpMixture()):
            mixture, single = (one, two) if isinstance(one, GdpMixture) else (two, one)
            assert isinstance(mixture, GdpMixture) and isinstance(single, Gdp)
            return GdpMixture(mixture.weights, tuple(math.hypot(mu, single.mu) * UP for mu in mixture.mus))
        case (Pld(), Gdp()) | (Gdp(), Pld()):
            sampled, single = (one, two) if isinstance(one, Pld) else (two, one)
            assert isinstance(sampled, Pld) and isinstance(single, Gdp)
            return sampled.with_gaussian(single.mu)
        case EpsDelta(), EpsDelta():
            return EpsDelta((one.at_epsilon + two.at_epsilon) * UP, min(1.0, one.at_delta + two.at_delta))
        case (EpsDelta(), _) | (_, EpsDelta()):
            if (one if isinstance(one, EpsDelta) else two).rdp(2.0) == math.inf:
                raise InputError("curves", "with a single (epsilon, delta) point compose only with one another",
                                 type(two if isinstance(one, EpsDelta) else one).__name__, "convert the other first")
        case _:
            pass
    return _renyi_sum(one, two)


def _renyi_sum(one: Curve, two: Curve) -> Rdp:
    slopes = [c.slope if isinstance(c, Rdp) else c.mu**2 / 2 if isinstance(c, Gdp) else math.inf for c in (one, two)]
    orders = {float(1 + gap) for gap in np.geomspace(0.01, 1e4, 300)}
    for curve in (one, two):
        orders |= set(curve.orders) if isinstance(curve, Rdp) else set()
    if math.isfinite(sum(slopes)):
        orders = {order for curve in (one, two) if isinstance(curve, Rdp) for order in curve.orders}
    listed = tuple(sorted(orders))
    values = tuple((one.rdp(order) + two.rdp(order)) * UP for order in listed)
    return Rdp(sum(slopes) * UP, listed, values)


def curve_from_dict(data: dict[str, Any]) -> Curve:
    """The curve that ``to_dict`` described."""
    from lastiterate.pld import Grouped, Pld
    from lastiterate.sampled_renyi import SampledRenyi

    kinds: dict[str, type[Curve]] = {
        kind.__name__: kind for kind in (Gdp, GdpMixture, Rdp, EpsDelta, Pld, SampledRenyi)
    }
    body: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k != "type"}  # pyright: ignore
    if data.get("type") == "BestOf":
        return BestOf(tuple(curve_from_dict(part) for part in data["curves"]))
    if data.get("type") == "Grouped":
        return Grouped(curve_from_dict(data["curve"]), data["size"])
    if data.get("type") not in kinds:
        raise InputError("curve", "has an unknown type", data.get("type"))
    return kinds[data["type"]](**body)


def _ceiling(mu: float, delta: float) -> float:
    """An epsilon at which mu-GDP surely has at most ``delta`` (zCDP conversion, Bun and Steinke 2016)."""
    return mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + mu * 1e-6 + 1e-300


def _check_epsilon(epsilon: float) -> None:
    if not epsilon >= 0:
        raise InputError("epsilon", "must be a number >= 0", epsilon)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise InputError("delta", "must lie strictly between 0 and 1", delta, "choose less than 1/n, such as 1e-6")
