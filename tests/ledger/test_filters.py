"""Filters: exact sums, domination checked on profiles, and whole adaptive processes enumerated."""

import math
from fractions import Fraction
from functools import lru_cache
from random import Random

import numpy as np
import pytest

from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.curve import BestOf, EpsDelta, WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import smallest_true
from lastiterate.errors import InputError
from lastiterate.ledger.filters import (
    FAILURE_UNIT,
    UNIT,
    Charge,
    GaussianFilter,
    RenyiFilter,
    find_dominating_mu,
    is_dominated,
    variation,
)

EPSILONS = np.linspace(0, 6, 61)


@pytest.mark.parametrize("mu", [1e-9, 0.1, 1 / 3, 0.7071067811865476, 1.1, 12.5])
def test_a_squared_mu_is_rounded_up_exactly(mu: float) -> None:
    cost = GaussianFilter(20.0).charge(Gdp(mu)).costs[0]
    assert (cost - 1) * Fraction(UNIT) < Fraction(mu) ** 2 <= cost * Fraction(UNIT)
    budget = GaussianFilter(mu).budget[0]
    assert budget * Fraction(UNIT) <= Fraction(mu) ** 2 < (budget + 1) * Fraction(UNIT)


def test_a_divergence_is_rounded_up_exactly() -> None:
    found = RenyiFilter(1.0, (1.5, 4.0, 32.0))
    for order, cost in zip(found.orders, found.charge(Rdp(0.01)).costs, strict=True):
        assert (cost - 1) * Fraction(UNIT) < Fraction(Rdp(0.01).rdp(order)) <= cost * Fraction(UNIT)


@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_a_filter_made_for_a_budget_uses_it_and_not_more(epsilon: float, delta: float) -> None:
    for made in (GaussianFilter.of(epsilon, delta), RenyiFilter.of(epsilon, delta)):
        assert epsilon * 0.99 < made.total().epsilon(delta) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    "curve",
    [
        EpsDelta(0.5, 1e-8),
        EpsDelta(2.0, 0.0),
        Rdp(0.02),
        Rdp(0.5),
        GdpMixture((0.9, 0.1), (0.1, 1.0)),
        Rdp(orders=(2.0, 8.0, 32.0), values=(0.1, 0.3, 1.5)),
    ],
)
def test_what_dominates_lies_above_the_curve_everywhere(curve: object) -> None:
    for failure in (1e-7, 1e-4):
        mu = find_dominating_mu(curve, failure)
        assert math.isfinite(mu)
        above = WithFailure(Gdp(mu), failure)
        grid = np.linspace(0, 20, 150)
        values = np.array([min(variation(curve), curve.delta(float(e))) for e in grid])
        for epsilon, value in zip(grid, values, strict=True):
            later = [
                EpsDelta(float(e), float(v)).delta(float(epsilon))
                for e, v in zip(grid, values, strict=True)
                if e > epsilon
            ]
            assert min([value, *later]) <= above.delta(float(epsilon)) * (
                1 + 2e-3
            )  # a coarser grid than ours
        assert is_dominated(curve, mu, failure) and not is_dominated(curve, mu * 0.5, failure / 2)


@pytest.mark.parametrize("orders", [None, (), (2.0, 4.0), (4.0, 8.0, 16.0), (2.0, 1000.0)])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-6, 1e-3, 0.1])
def test_no_filter_certifies_more_than_it_was_made_for(
    orders: tuple[float, ...] | None, delta: float
) -> None:
    """Over all budgets that a ledger may be asked for; the others are refused."""
    made = 0
    for epsilon in (1e-9, 1e-6, 1e-4, 0.01, 0.5, 1.0, 20.0, 100.0):
        try:
            found = (
                GaussianFilter.of(epsilon, delta)
                if orders is None
                else RenyiFilter.of(epsilon, delta, orders)
            )
        except InputError as error:
            assert error.argument in ("epsilon", "orders")
            continue
        made += 1
        assert found.total().epsilon(delta) <= epsilon and found.total().delta(epsilon) <= delta
        assert min(found.budget) > 0
    assert made >= (1 if orders else 5)


def test_orders_that_leave_nothing_are_refused_with_one_that_does() -> None:
    with pytest.raises(
        InputError,
        match=r"orders must hold one at which epsilon 1 at delta 1e-06.*add one of about 28",
    ):
        RenyiFilter.of(1.0, 1e-6, (2.0, 4.0))
    found = RenyiFilter.of(1.0, 1e-6, (2.0, 4.0, 28.6))
    assert 0.99 < found.total().epsilon(1e-6) <= 1.0


def test_pure_privacy_lies_below_its_gaussian() -> None:
    for epsilon in (1e-12, 1e-7, 1e-4, 0.01, 0.3, 1.0, 5.0, 30.0):
        mu = find_dominating_mu(EpsDelta(epsilon, 0.0), 0.0)
        assert Gdp(mu).delta(0.0) >= math.tanh(epsilon / 2) and Gdp(mu * 0.99).delta(
            0.0
        ) < math.tanh(epsilon / 2)


def test_a_stored_charge_must_pay_for_its_curve() -> None:
    gaussian, renyi = GaussianFilter.of(2.0, 1e-5), RenyiFilter.of(2.0, 1e-5, (2.0, 8.0))
    for made, curve in (
        (gaussian, Gdp(0.3)),
        (gaussian, EpsDelta(0.2, 1e-8)),
        (renyi, Rdp(0.01)),
        (renyi, Gdp(0.2)),
    ):
        charge = made.charge(curve)
        assert made.covers(charge, curve)
        assert not made.covers(Charge(tuple(cost * 9 // 10 for cost in charge.costs)), curve)


def test_a_curve_without_tails_is_refused() -> None:
    with pytest.raises(InputError, match="dominates"):
        GaussianFilter(1.0, 0.0).charge(Rdp(0.1))
    with pytest.raises(InputError, match="divergence"):
        RenyiFilter(1.0, (2.0,)).charge(EpsDelta(0.1, 1e-9))


def response(epsilon: float, delta: float) -> tuple[tuple[float, float], ...]:
    """The pair of probabilities of every outcome of the worst (epsilon, delta)-DP mechanism."""
    high, low = (1 - delta) / (1 + math.exp(-epsilon)), (1 - delta) / (1 + math.exp(epsilon))
    return (high, low), (low, high), (delta, 0.0), (0.0, delta)


@lru_cache
def charges(made: GaussianFilter) -> dict[tuple[float, float], Charge]:
    return {(e, d): made.charge(EpsDelta(e, d)) for e in (0.05, 0.2, 0.5, 1.0) for d in (0.0, 1e-3)}


def play(made: GaussianFilter, random: Random, rounds: int) -> list[tuple[float, float]]:
    """All transcripts of an adversary who chooses each mechanism by what was seen, while the budget
    lasts."""

    def go(left: tuple[int, ...], p: float, q: float, more: int) -> list[tuple[float, float]]:
        if more == 0:
            return [(p, q)]
        epsilon, delta = random.choice([0.05, 0.2, 0.5, 1.0]), random.choice([0.0, 1e-3])
        costs = known[epsilon, delta].costs
        if any(cost > rest for cost, rest in zip(costs, left, strict=True)):
            return go(left, p, q, more - 1)
        rest = tuple(rest - cost for rest, cost in zip(left, costs, strict=True))
        return [
            leaf
            for a, b in response(epsilon, delta)
            if a + b > 0
            for leaf in go(rest, p * a, q * b, more - 1)
        ]

    known = charges(made)
    return go(made.budget, 1.0, 1.0, rounds)


@pytest.mark.parametrize("seed", range(8))
def test_adaptive_processes_stay_below_the_total(seed: int) -> None:
    """Exact laws of all transcripts; halving the total's mu breaks it, so the comparison can fail."""
    made = GaussianFilter(1.5, 6e-3)
    leaves = np.array(play(made, Random(seed), 5))
    profile = [
        float(np.maximum(leaves[:, 0] - math.exp(e) * leaves[:, 1], 0).sum()) for e in EPSILONS
    ]
    assert all(
        found <= made.total().delta(float(e)) for found, e in zip(profile, EPSILONS, strict=True)
    )
    assert any(
        found > Gdp(made.mu / 3).delta(float(e)) for found, e in zip(profile, EPSILONS, strict=True)
    )


@pytest.mark.parametrize("seed", range(6))
def test_adaptive_divergences_stay_below_the_renyi_budget(seed: int) -> None:
    made, random = RenyiFilter(0.3, (2.0, 8.0)), Random(seed)

    def go(left: tuple[int, ...], p: float, q: float, more: int) -> list[tuple[float, float]]:
        epsilon = random.choice([0.1, 0.3, 0.6])
        costs = made.charge(EpsDelta(epsilon, 0.0)).costs
        if more == 0 or any(cost > rest for cost, rest in zip(costs, left, strict=True)):
            return [(p, q)]
        rest = tuple(rest - cost for rest, cost in zip(left, costs, strict=True))
        return [
            leaf for a, b in response(epsilon, 0.0)[:2] for leaf in go(rest, p * a, q * b, more - 1)
        ]

    p, q = np.array(go(made.budget, 1.0, 1.0, 9)).T
    for order in made.orders:
        divergence = math.log(float((p**order * q ** (1 - order)).sum())) / (order - 1)
        assert 0.2 * made.slope * order < divergence <= made.slope * order


def test_failures_are_summed_exactly() -> None:
    made = GaussianFilter(10.0, 1e-6)
    cost = made.charge(EpsDelta(0.1, 1e-8)).costs[1]
    assert cost == math.ceil(Fraction(1e-6 / 64) / Fraction(FAILURE_UNIT))
    assert 64 * cost <= made.budget[1] + 64


def test_secret_batches_cost_about_what_a_gaussian_of_the_same_epsilon_costs() -> None:
    """Charged without a failure probability they would cost what known blocks do: eight times as
    much."""
    curve = BestOf((Gdp(1.25), AllocationPld(9, (5.7,), (50,), mu=0.15)))
    epsilon = curve.epsilon(1e-6)
    same = Gdp(1 / smallest_true(lambda i: Gdp(1 / i).delta(epsilon) <= 1e-6, 1e-2, 1e3))
    made = GaussianFilter.of(3.0, 1e-5)
    charge, gaussian = made.charge(curve), made.charge(same)
    assert gaussian.costs[0] < charge.costs[0] < 1.05 * gaussian.costs[0]
    assert 0 < charge.costs[1] <= made.budget[1] / 64
    assert made.covers(charge, curve)
    assert not made.covers(Charge((charge.costs[0] * 99 // 100, charge.costs[1])), curve)
    assert not made.covers(Charge((charge.costs[0], 0)), curve)
    above = WithFailure(Gdp(math.sqrt(charge.costs[0] * UNIT)), charge.costs[1] * FAILURE_UNIT)
    assert all(curve.delta(float(e)) <= above.delta(float(e)) for e in np.linspace(0, 8, 97))
