"""Privacy filters: which release still fits a budget that was fixed beforehand (docs/theorems/privacy-filters.md).

Costs are whole numbers of a tiny unit, rounded up; budgets are rounded down: sums are exact, whatever their length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, final

from lastiterate.curves.curve import Curve, check_delta, check_epsilon
from lastiterate.curves.failure import WithFailure
from lastiterate.curves.gdp import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import smallest_true
from lastiterate.errors import InputError
from lastiterate.ledger.gaussian_majorant import dominated, dominating_mu

UNIT = 2**-40
"""Of squared mu and of Renyi divergences: about 1e-12."""
FAILURE_UNIT = 2**-100
"""Of failure probabilities."""
LARGEST_ORDER = 999_999.0
"""The largest Renyi order that is chosen for a filter."""
LARGEST = 2**62
"""Costs above it fit no budget."""
PARTS = tuple(4.0**-k for k in range(5, -1, -1))
"""A release that is no Gaussian mechanism may fail with one of these parts of the whole failure probability."""


@final
@dataclass(frozen=True)
class Charge:
    """What a release takes from a budget: one whole number for every dimension of the filter, in the filter's units."""

    costs: tuple[int, ...]


def _up(value: float, unit: float) -> int:
    """``value`` in units, rounded up exactly."""
    if not math.isfinite(value):
        return LARGEST
    return min(LARGEST, math.ceil(Fraction(value) / Fraction(unit)))


@final
@dataclass(frozen=True)
class GaussianFilter:
    """The sum of squared mu stays below ``mu``^2, and the sum of failure probabilities below ``failure``.

    **Guarantee:** all releases together, chosen adaptively, are at most as distinguishable as "with probability
    ``failure`` everything, otherwise ``mu``-Gaussian DP" (Smith and Thakurta 2022, arXiv:2210.17520, for the Gaussian
    part; the proof note has both).
    """

    mu: float
    failure: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.mu < 1e3 and 0 <= self.failure < 1):
            raise InputError("filter", "needs mu in (0, 1000) and a failure probability in [0, 1)",
                             (self.mu, self.failure))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """What each number of a charge counts, in words."""
        return "squared mu", "failure probability"

    @property
    def units(self) -> tuple[float, ...]:
        """The unit of each number of a charge: charges are whole multiples."""
        return UNIT, FAILURE_UNIT

    @property
    def budget(self) -> tuple[int, ...]:
        """The budget in these units, rounded down."""
        square = Fraction(self.mu) ** 2 / Fraction(UNIT)
        return min(LARGEST - 1, math.floor(square)), math.floor(Fraction(self.failure) / Fraction(FAILURE_UNIT))

    def charge(self, curve: Curve) -> Charge:
        """The charge that takes the least of both budgets together; refused where no Gaussian mechanism dominates."""
        best = math.inf, 0.0, 0.0
        for part in (0.0, *(PARTS if self.failure > 0 else ())):
            mu = dominating_mu(curve, self.failure * part, self.failure * PARTS[0])
            best = min(best, ((mu / self.mu) ** 2 + part, mu, part))
        if math.isinf(best[0]):
            raise InputError("release", "has a curve that no Gaussian mechanism with this failure probability "
                             "dominates", type(curve).__name__,
                             "make the ledger with a larger failure probability, or with the renyi filter")
        return Charge((_square_up(best[1]), math.ceil(Fraction(self.failure * best[2]) / Fraction(FAILURE_UNIT))))

    def covers(self, charge: Charge, curve: Curve) -> bool:
        """Whether a stored charge really pays for a stored curve."""
        if len(charge.costs) != 2 or min(charge.costs) < 0 or charge.costs[0] >= LARGEST:
            return False
        mu, failure = math.sqrt(charge.costs[0] * UNIT), float(charge.costs[1] * Fraction(FAILURE_UNIT))
        while Fraction(mu) ** 2 > charge.costs[0] * Fraction(UNIT):
            mu = math.nextafter(mu, 0.0)
        known = isinstance(curve, Gdp) and _square_up(curve.mu) <= charge.costs[0]
        return known or dominated(curve, mu * (1 + 1e-12), failure, self.failure * PARTS[0])

    def total(self) -> Curve:
        """What holds for all releases together."""
        return WithFailure(Gdp(self.mu), self.failure) if self.failure else Gdp(self.mu)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        return {"type": "GaussianFilter", "mu": self.mu, "failure": self.failure}

    @classmethod
    def of(cls, epsilon: float, delta: float, failure: float | None = None) -> GaussianFilter:
        """The largest filter within (epsilon, delta); a tenth of delta may be failure where nothing else is said."""
        check_epsilon(epsilon)
        check_delta(delta)
        part = delta / 10 if failure is None else failure
        if not 0 <= part < delta:
            raise InputError("failure", "must lie in [0, delta)", part)
        fits = smallest_true(lambda inverse: _keeps(cls(1 / inverse, part), epsilon, delta), 2e-3, 1e25)
        return _made(None if math.isinf(fits) else cls(1 / fits, part), epsilon, delta)


def _square_up(mu: float) -> int:
    return min(LARGEST, math.ceil(Fraction(mu) ** 2 / Fraction(UNIT))) if math.isfinite(mu) else LARGEST


@final
@dataclass(frozen=True)
class RenyiFilter:
    """At every one of ``orders``, the sum of Renyi divergences stays below ``slope`` times the order.

    **Guarantee:** all releases together, chosen adaptively, have divergence at most ``slope`` * order at every listed
    order (Feldman and Zrnic 2021, arXiv:2008.11193, at each order; every one of them is enforced, so that their minimum
    may be taken at the end).
    """

    slope: float
    orders: tuple[float, ...]

    def __post_init__(self) -> None:
        good = 0 < self.slope < 1e6 and self.orders and all(1 < order < 1e6 for order in self.orders)
        if not good or list(self.orders) != sorted(set(self.orders)):
            raise InputError("filter", "needs a slope in (0, 1e6) and increasing orders in (1, 1e6)",
                             (self.slope, self.orders))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """What each number of a charge counts, in words."""
        return tuple(f"divergence of order {order:g}" for order in self.orders)

    @property
    def units(self) -> tuple[float, ...]:
        """The unit of each number of a charge: charges are whole multiples."""
        return (UNIT,) * len(self.orders)

    @property
    def budget(self) -> tuple[int, ...]:
        """The budget in these units, rounded down."""
        return tuple(math.floor(Fraction(self.slope) * Fraction(order) / Fraction(UNIT)) for order in self.orders)

    def charge(self, curve: Curve) -> Charge:
        """The curve's divergence at every order; refused where it is unknown."""
        costs = tuple(_up(curve.rdp(order), UNIT) for order in self.orders)
        if LARGEST in costs:
            raise InputError("release", "has no Renyi divergence at the filter's orders", type(curve).__name__,
                             "use a ledger with filter=GaussianFilter(mu, failure)")
        return Charge(costs)

    def covers(self, charge: Charge, curve: Curve) -> bool:
        """Whether a stored charge really pays for a stored curve."""
        needed = tuple(_up(curve.rdp(order) * (1 - 1e-9), UNIT) for order in self.orders)  # another machine may round
        return len(charge.costs) == len(needed) and all(
            need <= cost < LARGEST for need, cost in zip(needed, charge.costs, strict=True))

    def total(self) -> Curve:
        """What holds for all releases together."""
        return Rdp(orders=self.orders, values=tuple(self.slope * order for order in self.orders))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        return {"type": "RenyiFilter", "slope": self.slope, "orders": list(self.orders)}

    @classmethod
    def of(cls, epsilon: float, delta: float, orders: tuple[float, ...] = ()) -> RenyiFilter:
        """The largest filter within (epsilon, delta); one order, the best for Gaussian releases, where none is said."""
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
            remedy = f"add one of about {enough:.3g}" if enough < LARGEST_ORDER else "ask for a larger epsilon or delta"
            raise InputError("orders", f"must hold one at which epsilon {epsilon:g} at delta {delta:g} leaves a budget",
                             ", ".join(f"{order:g}" for order in listed) or None, remedy)
        return _made(at(fits), epsilon, delta)


Filter = GaussianFilter | RenyiFilter
Made = TypeVar("Made", GaussianFilter, RenyiFilter)


def _keeps(made: Filter, epsilon: float, delta: float) -> bool:
    """Return whether a full filter certifies no more than (epsilon, delta), asked both ways."""
    total = made.total()
    return total.epsilon(delta) <= epsilon and total.delta(epsilon) <= delta


def _made(made: Made | None, epsilon: float, delta: float) -> Made:
    """Return a filter that keeps its budget and can be charged; refuse any other."""
    if made is None or made.budget[0] < 1:
        raise InputError("epsilon", f"is too small for a ledger at delta {delta:g}, whose charges are multiples of "
                         "2^-40", epsilon, "ask for a larger epsilon or delta")
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
        raise InputError("ledger", "holds a filter that cannot be read", type(error).__name__) from None
    raise InputError("ledger", "holds an unknown filter", None)
