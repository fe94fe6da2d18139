"""Privacy filters: which release still fits a budget that was fixed beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar, final

import numpy as np

from lastiterate.curves.curve import (
    TINY,
    UP,
    BestOf,
    Curve,
    EpsDelta,
    WithFailure,
    check_delta,
    check_epsilon,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture, gdp_delta
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import smallest_true
from lastiterate.curves.selection import WorstOf
from lastiterate.errors import InputError
from lastiterate.run.validation import Array

# The least Gaussian mechanism, with a failure probability, that no release of a curve is easier to
# distinguish than.  The pair "with probability f say which data set it was, otherwise N(mu, 1)
# against N(0, 1)" has the profile f + (1 - f) delta_mu(eps) in both directions. A mechanism whose
# delta(eps) lies below it at every eps >= 0, in both directions, lies below it at every real eps,
# and is a post-processing of that pair (Blackwell; Dong, Roth, Su 2022, Theorem 2.10; Zhu, Dong,
# Wang 2022).

POINTS = 400
"""Intervals on which profiles are compared: the released curve at the left end, the Gaussian at the
right."""
NEAR_ONE = 1.01
"""A Renyi order whose divergence bounds the Kullback-Leibler divergence."""
PROBE = 1e-3
"""The delta at which a curve is first compared with what is known already."""
MOST = 1e3
"""No larger mu is looked for: it would exceed any budget."""
DOWN = 1 - 1e-12


def find_dominating_mu(curve: Curve, failure: float, least: float | None = None) -> float:
    """The least mu found for which ``curve`` lies below the Gaussian pair with ``failure``;
    infinite where none does.

    ``least``: the smallest of several failure probabilities that are asked for in turn: one table
    answers them all.

    **Guarantee:** the returned mu passed ``is_dominated``, or follows from a theorem about the kind of
    curve.
    """
    parts = curve.curves if isinstance(curve, BestOf) else (curve,)
    best = min(map(_exact, parts))
    for part in parts if failure > 0 else ():
        if _may_need_less(part, best, failure):
            best = min(best, _search_mu(part, failure, failure if least is None else least))
    return best


def is_dominated(curve: Curve, mu: float, failure: float, least: float | None = None) -> bool:
    """Whether delta(eps) <= failure + (1 - failure) delta_mu(eps) at every eps >= 0, to the safe
    side.

    ``least``: as in ``find_dominating_mu``, whose answers are found again on the same table.
    """
    if isinstance(curve, BestOf):
        return any(is_dominated(part, mu, failure, least) for part in curve.curves)
    if _exact(curve) <= mu:
        return True
    tables = (_table(curve, end) for end in dict.fromkeys((least or failure, failure)))
    return any(table is not None and _below(*table, mu, failure) for table in tables)


def _exact(curve: Curve) -> float:
    """The mu of curves that are Gaussian, or lie below one without a failure probability."""
    match curve:
        case Gdp(mu):
            return mu
        case GdpMixture():
            return max(curve.mus)  # its trade-off function lies above that of the largest mu
        case EpsDelta(epsilon, 0.0):
            return _pure(epsilon)
        case BestOf():
            return min(map(_exact, curve.curves))
        case WorstOf():
            return max(map(_exact, curve.curves))
        case _:
            return math.inf


def _pure(epsilon: float) -> float:
    """mu with total variation and slopes of pure epsilon-DP: 2 Phi^-1(e^eps / (1 + e^eps)), rounded
    up.

    The trade-off function of epsilon-randomised response touches G_mu at its corner (1/(1 + e^eps),
    1/(1 + e^eps)) and is a chord of the convex G_mu from there to (1, 0) and (0, 1): it lies above.
    """
    from scipy.special import ndtri  # pyright: ignore

    if (
        epsilon < 1e-3
    ):  # no digits of the corner are left: Phi(epsilon sqrt(pi/8)) lies above 1 / (1 + e^-epsilon)
        return epsilon * math.sqrt(math.pi / 2) * UP
    corner = math.exp(-epsilon) / (1 + math.exp(-epsilon)) if epsilon < 700 else 0.0
    return math.inf if corner == 0.0 else float(-2 * ndtri(corner)) * (1 + 1e-9)


def _may_need_less(curve: Curve, mu: float, failure: float) -> bool:
    """Whether one point of the curve allows a mu that is smaller by a thousandth: most curves fail
    there."""
    if not 0 < mu < math.inf:
        return mu > 0
    at = Gdp(mu).epsilon(PROBE)
    return curve.delta(at) <= failure + Gdp(mu * (1 - 1e-3)).delta(at)


@lru_cache(maxsize=64)
def _table(curve: Curve, failure: float) -> tuple[Array, Array] | None:
    """Points eps_0 = 0 < ... and delta of the curve at each; beyond the last one it is at most
    ``failure``."""
    top = curve.epsilon(failure) if 0 < failure < 1 else math.inf
    if not math.isfinite(top):
        return None
    points = np.linspace(0.0, top, POINTS + 1)
    most = variation(curve)
    values = [min(most, curve.delta(float(eps))) for eps in points[:-1]]
    return points, _by_later_points(points, np.array([*values, min(failure, 1.0)]))


def _by_later_points(points: Array, values: Array) -> Array:
    """Return the delta that (eps_j, delta_j) in both directions implies at a smaller eps:
    ``EpsDelta.delta``; curves can be worse there."""
    less = np.minimum(
        points[:, None] - points, 0.0
    )  # powers divided by e^eps_j, which may be beyond a double
    implied = values + -np.expm1(less) * (1 - values) / (1 + np.exp(-points)) * (1 + 1e-12)
    return np.minimum(values, np.where(points >= points[:, None], implied, 1.0).min(axis=1))


def variation(curve: Curve) -> float:
    """Total variation from the Kullback-Leibler divergence (Pinsker; Bretagnolle and Huber 1979)."""
    divergence = curve.rdp(NEAR_ONE)
    return min(
        1.0, math.sqrt(divergence / 2) * UP, math.sqrt(-math.expm1(-divergence)) * UP + 1e-15
    )


def _below(points: Array, values: Array, mu: float, failure: float) -> bool:
    if values[-1] > failure:  # beyond the last point nothing smaller is known
        return False
    if mu == 0:
        return bool((values <= failure).all())
    right = points[1:]
    gaussian = gdp_delta(right, np.full(right.size, mu))
    reach = failure + (1 - failure) * _lower(gaussian, right, mu)
    return bool((values[:-1] <= reach * DOWN).all())


def _lower(computed: Array, epsilon: Array, mu: float) -> Array:
    """Return a lower bound on the exact value of ``gdp_delta``, which adds at most 1e-14 Phi(a) and
    a relative 1e-15 (1 + a^2 + eps)."""
    from scipy.special import ndtr  # pyright: ignore

    with np.errstate(over="ignore", invalid="ignore"):  # what is no number is below nothing
        a = mu / 2 - epsilon / mu
        kept = (
            computed * (1 - 2e-14 - 4e-15 * (1 + a * a + epsilon))
            - 4e-14 * ndtr(a)
            - 5e-15 * (a > 0)
            - TINY
        )
    return np.maximum(0.0, kept)


def _search_mu(curve: Curve, failure: float, least: float) -> float:
    points = _table(curve, least) or _table(curve, failure)
    if points is None or not _below(*points, MOST, failure):
        return math.inf
    low, high = 0.0, 1e-3
    while not _below(*points, high, failure):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _below(*points, middle, failure) else (middle, high)
    return high


# Privacy filters: which release still fits a budget that was fixed beforehand
# (docs/theorems/privacy-filters.md).  Costs are integers, in a tiny unit, rounded up; budgets are
# rounded down: sums are exact, whatever their length.

UNIT = 2**-40
"""Unit of squared mu and of Renyi divergences: about 1e-12."""
FAILURE_UNIT = 2**-100
"""Unit of failure probabilities."""
LARGEST_ORDER = 999_999.0
"""The largest Renyi order that is chosen for a filter."""
LARGEST = 2**62
"""Costs above it fit no budget."""
PARTS = tuple(4.0**-k for k in range(5, -1, -1))
"""A release that is no Gaussian mechanism may fail with one of these parts of the whole failure
probability."""


@final
@dataclass(frozen=True)
class Charge:
    """The cost of a release, in the units of a filter.

    Parameters
    ----------
    costs : tuple of int
        One integer for every dimension of the filter.

    Examples
    --------
    >>> from lastiterate.curves import Gdp
    >>> from lastiterate.ledger import GaussianFilter
    >>> budget = GaussianFilter(mu=1.0)
    >>> 4 * budget.charge(Gdp(0.5)).costs[0] == budget.budget[0]
    True
    """

    costs: tuple[int, ...]


def _up(value: float, unit: float) -> int:
    """``value`` in units, rounded up exactly."""
    if not math.isfinite(value):
        return LARGEST
    return min(LARGEST, math.ceil(Fraction(value) / Fraction(unit)))


@final
@dataclass(frozen=True)
class GaussianFilter:
    """A budget of squared mu, and of failure probability.

    Parameters
    ----------
    mu : float
        Root of the budget of the sum of squared mu, within (0, 1000).
    failure : float, default 0.0
        Budget of the sum of failure probabilities, within [0, 1).

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    RenyiFilter : A budget of Renyi divergences.

    Notes
    -----
    **Guarantee:** all releases together, chosen adaptively, are at most as distinguishable as
    "everything is revealed with probability ``failure``, otherwise ``mu``-Gaussian DP". Source of
    the Gaussian part: Smith and Thakurta 2022 (arXiv:2210.17520); docs/theorems/privacy-filters has
    both parts.

    Examples
    --------
    >>> from lastiterate.ledger import GaussianFilter
    >>> budget = GaussianFilter.of(epsilon=3.0, delta=1e-6)
    >>> budget.total().epsilon(1e-6) <= 3.0
    True
    """

    mu: float
    failure: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.mu < 1e3 and 0 <= self.failure < 1):
            raise InputError(
                "filter",
                "needs mu in (0, 1000) and a failure probability in [0, 1)",
                (self.mu, self.failure),
            )

    @property
    def instead(self) -> str:
        """What to do about a curve that no charge pays for."""
        return "make the ledger with a larger failure probability, or with the renyi filter"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The quantity that each number of a charge counts, in words."""
        return "squared mu", "failure probability"

    @property
    def budget(self) -> tuple[int, ...]:
        """The budget in these units, rounded down."""
        square = Fraction(self.mu) ** 2 / Fraction(UNIT)
        return min(LARGEST - 1, math.floor(square)), math.floor(
            Fraction(self.failure) / Fraction(FAILURE_UNIT)
        )

    def charge(self, curve: Curve) -> Charge:
        """The charge that takes the least of both budgets together; refused where no Gaussian
        mechanism dominates."""
        best = math.inf, 0.0, 0.0
        for part in (0.0, *(PARTS if self.failure > 0 else ())):
            mu = find_dominating_mu(curve, self.failure * part, self.failure * PARTS[0])
            best = min(best, ((mu / self.mu) ** 2 + part, mu, part))
        if math.isinf(best[0]):
            raise InputError(
                "release",
                "has a curve that no Gaussian mechanism with this failure probability dominates",
                type(curve).__name__,
                self.instead,
            )
        return Charge(
            (
                _square_up(best[1]),
                math.ceil(Fraction(self.failure * best[2]) / Fraction(FAILURE_UNIT)),
            )
        )

    def covers(self, charge: Charge, curve: Curve) -> bool:
        """Whether a stored charge really pays for a stored curve."""
        if len(charge.costs) != 2 or min(charge.costs) < 0 or charge.costs[0] >= LARGEST:
            return False
        mu, failure = (
            math.sqrt(charge.costs[0] * UNIT),
            float(charge.costs[1] * Fraction(FAILURE_UNIT)),
        )
        while Fraction(mu) ** 2 > charge.costs[0] * Fraction(UNIT):
            mu = math.nextafter(mu, 0.0)
        known = isinstance(curve, Gdp) and _square_up(curve.mu) <= charge.costs[0]
        return known or is_dominated(curve, mu * (1 + 1e-12), failure, self.failure * PARTS[0])

    def total(self) -> Curve:
        """Return the guarantee for all releases together."""
        return WithFailure(Gdp(self.mu), self.failure) if self.failure else Gdp(self.mu)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        return {"type": "GaussianFilter", "mu": self.mu, "failure": self.failure}

    @classmethod
    def of(cls, epsilon: float, delta: float, failure: float | None = None) -> GaussianFilter:
        """The largest filter within (epsilon, delta); a tenth of delta may be failure where nothing
        else is said."""
        check_epsilon(epsilon)
        check_delta(delta)
        part = delta / 10 if failure is None else failure
        if not 0 <= part < delta:
            raise InputError("failure", "must lie in [0, delta)", part)
        fits = smallest_true(
            lambda inverse: _keeps(cls(1 / inverse, part), epsilon, delta), 2e-3, 1e25
        )
        return _check_filter(None if math.isinf(fits) else cls(1 / fits, part), epsilon, delta)


def _square_up(mu: float) -> int:
    return (
        min(LARGEST, math.ceil(Fraction(mu) ** 2 / Fraction(UNIT)))
        if math.isfinite(mu)
        else LARGEST
    )


@final
@dataclass(frozen=True)
class RenyiFilter:
    """A budget of Renyi divergence at every listed order.

    Parameters
    ----------
    slope : float
        Budget of the divergence of order a, divided by a; within (0, 1e6).
    orders : tuple of float
        Increasing orders within (1, 1e6).

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    GaussianFilter : A budget of squared mu.

    Notes
    -----
    **Guarantee:** all releases together, chosen adaptively, have a divergence of at most ``slope *
    a`` at every listed order a. Source: Feldman and Zrnic 2021 (arXiv:2008.11193), at each order.

    Examples
    --------
    >>> from lastiterate.ledger import RenyiFilter
    >>> budget = RenyiFilter.of(epsilon=3.0, delta=1e-6)
    >>> budget.total().epsilon(1e-6) <= 3.0, len(budget.orders)
    (True, 1)
    """

    slope: float
    orders: tuple[float, ...]

    def __post_init__(self) -> None:
        good = (
            0 < self.slope < 1e6 and self.orders and all(1 < order < 1e6 for order in self.orders)
        )
        if not good or list(self.orders) != sorted(set(self.orders)):
            raise InputError(
                "filter",
                "needs a slope in (0, 1e6) and increasing orders in (1, 1e6)",
                (self.slope, self.orders),
            )

    @property
    def instead(self) -> str:
        """What to do about a curve that no charge pays for."""
        return "use a ledger with filter=GaussianFilter(mu, failure)"

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The quantity that each number of a charge counts, in words."""
        return tuple(f"divergence of order {order:g}" for order in self.orders)

    @property
    def budget(self) -> tuple[int, ...]:
        """The budget in these units, rounded down."""
        return tuple(
            math.floor(Fraction(self.slope) * Fraction(order) / Fraction(UNIT))
            for order in self.orders
        )

    def charge(self, curve: Curve) -> Charge:
        """The curve's divergence at every order; refused where it is unknown."""
        costs = tuple(_up(curve.rdp(order), UNIT) for order in self.orders)
        if LARGEST in costs:
            raise InputError(
                "release",
                "has no Renyi divergence at the filter's orders",
                type(curve).__name__,
                self.instead,
            )
        return Charge(costs)

    def covers(self, charge: Charge, curve: Curve) -> bool:
        """Whether a stored charge really pays for a stored curve."""
        needed = tuple(
            _up(curve.rdp(order) * (1 - 1e-9), UNIT) for order in self.orders
        )  # another machine may round
        return len(charge.costs) == len(needed) and all(
            need <= cost < LARGEST for need, cost in zip(needed, charge.costs, strict=True)
        )

    def total(self) -> Curve:
        """Return the guarantee for all releases together."""
        return Rdp(orders=self.orders, values=tuple(self.slope * order for order in self.orders))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        return {"type": "RenyiFilter", "slope": self.slope, "orders": list(self.orders)}

    @classmethod
    def of(cls, epsilon: float, delta: float, orders: tuple[float, ...] = ()) -> RenyiFilter:
        """The largest filter within (epsilon, delta); one order, the best for Gaussian releases,
        where none is said."""
        check_epsilon(epsilon)
        check_delta(delta)
        listed = tuple(sorted(set(orders)))

        def at(inverse: float) -> RenyiFilter:
            slope = 1 / inverse
            best = min(1 + math.sqrt(math.log(1 / delta) / slope), LARGEST_ORDER)
            return cls(slope, listed or (math.ceil(best * 1000) / 1000,))

        fits = smallest_true(lambda inverse: _keeps(at(inverse), epsilon, delta), 1e-5, 1e25)
        if math.isinf(fits):
            enough = 1 + 2 * math.log(1 / delta) / epsilon
            remedy = (
                f"add one of about {enough:.3g}"
                if enough < LARGEST_ORDER
                else "ask for a larger epsilon or delta"
            )
            raise InputError(
                "orders",
                f"must hold one at which epsilon {epsilon:g} at delta {delta:g} leaves a budget",
                ", ".join(f"{order:g}" for order in listed) or None,
                remedy,
            )
        return _check_filter(at(fits), epsilon, delta)


Filter = GaussianFilter | RenyiFilter
Made = TypeVar("Made", GaussianFilter, RenyiFilter)


def _keeps(made: Filter, epsilon: float, delta: float) -> bool:
    """Return whether a full filter certifies no more than (epsilon, delta), asked both ways."""
    total = made.total()
    return total.epsilon(delta) <= epsilon and total.delta(epsilon) <= delta


def _check_filter(made: Made | None, epsilon: float, delta: float) -> Made:
    """Return a filter that keeps its budget and can be charged; refuse any other."""
    if made is None or made.budget[0] < 1:
        raise InputError(
            "epsilon",
            f"is too small for a ledger at delta {delta:g}, whose charges are multiples of 2^-40",
            epsilon,
            "ask for a larger epsilon or delta",
        )
    assert _keeps(made, epsilon, delta)
    return made


def filter_from_dict(data: Any) -> Filter:
    """The filter that ``to_dict`` described."""
    try:
        match data:
            case {"type": "GaussianFilter", "mu": mu, "failure": failure, **rest} if not rest:
                return GaussianFilter(float(mu), float(failure))
            case {"type": "RenyiFilter", "slope": slope, "orders": orders, **rest} if not rest:
                return RenyiFilter(float(slope), tuple(float(order) for order in orders))
            case _:
                pass
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            "ledger", "holds a filter that cannot be read", type(error).__name__
        ) from None
    raise InputError("ledger", "holds an unknown filter", None)
