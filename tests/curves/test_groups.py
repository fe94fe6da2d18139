"""Groups of records by the triangle inequality, and epsilons that are searched, against direct
minima."""

import math

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves.curve import (
    FARTHEST,
    Exchanged,
    Grouped,
    WithFailure,
    _lowest,
    confirm_epsilon,
    log_powers,
    search_epsilon,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture


@pytest.mark.parametrize("size", [1, 2, 3, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 1e-300, 1e-9, 0.3, 1.0, 1.5, 40.0, 900.0, 1e6])
def test_sums_of_powers(epsilon, size):
    """log(1 + e^epsilon + ... + e^((size - 1) epsilon)), term by term in 60 digits."""
    with mp.workdps(60):
        exact = mp.log(mp.fsum(mp.exp(power * mp.mpf(epsilon)) for power in range(size)))
        found = log_powers(epsilon, size)
        assert exact <= found <= exact + mp.mpf("1e-12") * (1 + size * mp.mpf(epsilon))


def bounds_of(curve, size, parts):
    """log of delta(e) (1 + e^e + ...) at every e of ``parts``, at most 0."""
    powers = np.logaddexp.reduce(np.outer(np.arange(size), parts), axis=0)
    return np.minimum(curve.log_profile(parts).max(axis=1) + powers, 0.0)


@pytest.mark.parametrize("mu", [0.3, 3.0, 20.0])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_bound_of_a_group_that_falls(mu, size):
    """It is read at epsilon / size."""
    shares = np.array([0.0, 0.01, 0.3, 0.9, 4.0, 30.0, 250.0])
    logs = Grouped(Gdp(mu), size).log_profile(size * shares)
    expected = bounds_of(Gdp(mu), size, shares)
    np.testing.assert_allclose(logs, np.transpose([expected] * 2), rtol=1e-9, atol=1e-9)
    deltas = Grouped(Gdp(mu), size).profile(size * shares)
    np.testing.assert_allclose(deltas, np.exp(logs), rtol=1e-9, atol=1e-300)
    assert (
        np.all(np.exp(logs) * (1 - 1e-14) <= deltas + 1e-304)
        and deltas.max() <= 1
        and logs.max() <= 0
    )


@pytest.mark.parametrize(
    "curve, size, least",
    [
        (WithFailure(Gdp(0.5), 1e-9), 2, (2.0, 3.5)),
        (WithFailure(Gdp(0.5), 1e-9), 7, (2.0, 3.5)),
        (WithFailure(Gdp(3.0), 1e-60), 2, (40.0, 70.0)),
        (WithFailure(Gdp(1.0), 1e-200), 3, (20.0, 40.0)),
    ],
)
def test_the_least_bound_of_a_group_holds_beyond_where_it_rises(curve, size, least):
    """A probability of failure is multiplied by more and more; the bound that was least holds at
    every larger epsilon, and none below it says as little."""
    grid = np.linspace(*least, 4001)
    bounds = bounds_of(curve, size, grid)
    at, best, grouped = float(grid[bounds.argmin()]), float(bounds.min()), Grouped(curve, size)
    assert least[0] < at < least[1]
    for factor in (1.01, 1.5, 4.0, 100.0, 1e5):
        assert grouped.log_delta(factor * at * size) == pytest.approx(best, abs=1e-3)
    together = grouped.log_profile(np.array([0.3, 1.5, 4.0]) * at * size)[:, 0]
    apart = [grouped.log_delta(factor * at * size) for factor in (0.3, 1.5, 4.0)]
    assert together.tolist() == pytest.approx(apart, rel=1e-12)
    for factor in (0.0, 0.02, 0.1, 0.3, 0.6, 0.9, 0.99):
        (bound,) = bounds_of(curve, size, np.array([factor * at]))
        assert grouped.log_delta(factor * at * size) == pytest.approx(bound, rel=1e-9, abs=1e-9)


def test_a_bound_that_rises_says_nothing_of_what_it_falls_to_later():
    """A hundredth of much signal: the bound of two records is least near 0.5, rises from there to
    1, and falls beyond 90."""
    curve = GdpMixture((0.01, 0.99), (6.0, 0.2))
    shares = np.array([0.1, 0.5, 1.0, 2.0, 3.0, 4.0, 8.0, 40.0, 130.0])
    bounds = bounds_of(curve, 2, shares)
    assert bounds[1] < bounds[2] < bounds[3] < bounds[4] < bounds[5] and bounds[-1] < bounds[1] - 1
    logs = Grouped(curve, 2).log_profile(2 * shares)[:, 0]
    np.testing.assert_allclose(logs, bounds, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "curve, size",
    [
        (WithFailure(Gdp(0.5), 1e-9), 2),
        (WithFailure(Gdp(0.5), 1e-9), 6),
        (WithFailure(Gdp(1e-3), 1e-12), 4),
        (WithFailure(Gdp(30.0), 1e-290), 2),
        (WithFailure(Gdp(0.0), 1e-9), 2),
    ],
)
def test_the_least_bound_of_a_group(curve, size):
    """The position is on a grid of four rounds; the bound is what the curve says there."""
    grouped = Grouped(curve, size)
    at, least = _lowest(grouped)
    assert float(grouped.at_parts(np.array([at]))[0]) == pytest.approx(least, rel=1e-12)
    grid = np.unique(np.append(np.geomspace(1e-3, 1e5, 4001), at * np.linspace(0.9, 1.1, 2001)))
    best = float(grouped.at_parts(grid).min())
    assert best - 1e-6 <= least <= best + 1e-4


@pytest.mark.parametrize(
    "at", [0.0, 1e-6, 0.1, 0.25, 0.3, 0.5, 0.7, 3.0, 1000.0, 6e6, 8.3e6, 8388608.0]
)
def test_an_epsilon_is_found_wherever_it_lies(at):
    """Steps from 1 to 0; what is found was seen, and lies within 1e-8 of the step."""
    found = search_epsilon(lambda epsilon: 0.0 if epsilon >= at else 1.0, 0.5)
    assert at <= found <= at * (1 + 1e-8) + 1e-299
    seen = search_epsilon(lambda epsilon: 0.5 if epsilon >= at else 1.0, 0.5)
    assert at <= seen <= at * (1 + 1e-8) + 1e-299


def test_no_epsilon_is_looked_for_beyond_the_farthest():
    for at in (1.2e7, 1.6e7, 1e9, math.inf):
        assert search_epsilon(lambda epsilon, at=at: float(epsilon < at), 0.5) == math.inf
    assert 8388608 < FARTHEST < 2 * 8388608, "the last epsilon that is looked at is 2^23"


@pytest.mark.parametrize("mu", [0.01, 0.4, 3.0])
@pytest.mark.parametrize("delta", [0.7, 1e-2, 1e-8])
def test_epsilons_are_searched_like_those_that_are_known(mu, delta):
    exact = Gdp(mu).epsilon(delta)
    assert confirm_epsilon(Gdp(mu), delta) == pytest.approx(exact, rel=1e-8, abs=1e-290)
    grouped = Grouped(Gdp(mu), 1).epsilon(delta)
    assert exact <= grouped * (1 + 1e-12) and grouped == pytest.approx(exact, rel=1e-8, abs=1e-290)


@pytest.mark.parametrize(
    "size, order, factor, inner",
    [
        (1, 2.0, 1, 2),
        (1, 7.0, 1, 7),
        (2, 2.0, 3, 4),
        (2, 2.5, 3, 5),
        (3, 3.0, 9, 12),
        (4, 2.0, 9, 8),
        (5, 2.0, 27, 16),
        (8, 4.0, 27, 32),
        (9, 2.0, 81, 32),
    ],
)
def test_the_divergence_of_a_group(size, order, factor, inner):
    """Mironov 2017, Proposition 2, holds from order 2 on; orders below have what 2 has."""
    curve = GdpMixture((0.5, 0.5), (0.1, 0.4))
    exact = factor * curve.rdp(float(inner))
    assert exact <= Grouped(curve, size).rdp(order) <= exact * (1 + 1e-9)
    for below in (1.01, 1.5, 1.999):
        assert Grouped(curve, size).rdp(below) == Grouped(curve, size).rdp(2.0)


def test_groups_of_groups_multiply():
    curve = Exchanged(Gdp(0.5))
    assert Grouped(curve, 3).group(4) == Grouped(curve, 12) == curve.group(2).group(6)
