"""The table of an exchange of records: its epsilons, its chords and the best split, against direct
computations."""

import math
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves.curve import (
    LEAST_DELTA,
    PARTS,
    POINTS,
    REACH,
    Curve,
    EpsDelta,
    Exchanged,
    Grouped,
    WithFailure,
    _chord,
    _end,
    _part,
    _parts,
    _table,
    _through_best_split,
    _width,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.renyi import Rdp


@dataclass(frozen=True)
class Wavy(Curve):
    """Two directions of which neither is always the larger, with errors that make them rise here
    and there."""

    seed: int = 0

    def delta(self, epsilon):
        return max(self.directions(epsilon))

    def directions(self, epsilon):
        one = 0.5 * math.exp(-epsilon) * (1 + 0.2 * math.sin(50 * epsilon + self.seed))
        return one, 0.4 * math.exp(-0.8 * epsilon) * (1 + 0.2 * math.cos(37 * epsilon))

    def epsilon(self, delta):
        return 1.0

    def rdp(self, alpha):
        return math.inf

    def group(self, size):
        return Grouped(self, size)


@pytest.mark.parametrize(
    "lost, typical", [(0.0, 1e-6), (1e-5, 1e-3), (1.5e-3, 0.1), (0.15, 0.5), (0.05, 0.1)]
)
def test_a_table_is_as_wide_as_the_first_delta_that_has_an_epsilon_says(lost, typical):
    curve = GdpMixture((lost, 1 - lost), (math.inf, 2.0))
    assert _width(curve) == pytest.approx(3 * curve.epsilon(typical) + 1e-9, rel=1e-9)
    assert _end(curve) == pytest.approx(24 * curve.epsilon(typical) + 8e-9, rel=1e-9)
    assert PARTS == 4 and REACH == 3


def test_a_table_has_a_width_where_no_delta_has_an_epsilon():
    assert _width(GdpMixture((0.75, 0.25), (math.inf, 2.0))) == pytest.approx(3.0)
    assert _width(Gdp(math.inf)) == pytest.approx(3.0)
    assert _width(Gdp(0.0)) == pytest.approx(3.0)
    assert _width(Gdp(0.01)) == pytest.approx(3 * Gdp(0.01).epsilon(1e-6) + 1e-9)


@pytest.mark.parametrize(
    "parts, shares",
    [
        (1, (0.0, 0.3, 0.999)),
        (2, (1.001, 1.9, 2.828)),
        (3, (2.829, 4.0, 5.196)),
        (4, (5.197, 7.9, 8.1, 60.0, math.inf)),
    ],
)
def test_parts_of_a_table_reach_beyond_what_is_asked(parts, shares):
    """Part i ends at i^1.5 widths, and the last one at 8."""
    curve = Gdp(0.8)
    for share in shares:
        assert _parts(curve, share * _width(curve)) == parts
        assert share >= 8 or _part(curve, parts - 1)[0][-1] >= share * _width(curve) * (1 - 1e-9)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_epsilons_of_a_table(parts):
    """(i / 400)^1.5 widths, from 0 on, and what the curve says at each in either direction."""
    curve = GdpMixture((0.5, 0.5), (0.3, 1.0))
    grid, removed, added = _table(curve, parts)
    expected = _width(curve) * (np.arange(400 * parts + 1) / 400) ** 1.5
    np.testing.assert_allclose(grid, expected, rtol=1e-12)
    for column, logs in enumerate((removed, added)):
        expected = np.array([curve.log_profile(np.array([e]))[0, column] for e in grid[::37]])
        np.testing.assert_allclose(logs[::37], expected, rtol=1e-12)
    assert POINTS == 400


def test_a_table_never_rises_and_keeps_directions_apart():
    grid, removed, added = _table(Wavy(), 2)
    logs = Wavy().log_profile(grid)
    assert np.any(np.diff(logs, axis=0) > 0), "the curve does"
    for column, found in enumerate((removed, added)):
        expected = [logs[: end + 1, column].min() for end in range(grid.size)]
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.any(removed > added) and np.any(removed < added)


def chord(grid, logs, at):
    """log of the value at ``at`` of straight lines in e^epsilon, in 60 digits."""
    with mp.workdps(60):
        if at >= grid[-1]:
            return mp.mpf(logs[-1])
        after = int(np.searchsorted(grid, at, side="right"))
        low, high, x = (mp.exp(mp.mpf(e)) for e in (grid[after - 1], grid[after], at))
        one, two = (mp.exp(mp.mpf(log)) for log in (logs[after - 1], logs[after]))
        return mp.log(one + (two - one) * (x - low) / (high - low))


@pytest.mark.parametrize(
    "grid, logs",
    [
        ([0.0, 0.5, 1.2, 4.0], [-0.1, -0.9, -2.0, -9.0]),
        ([0.0, 0.001, 0.003, 0.9], [-1.0, -1.5, -1.5, -800.0]),
        ([0.0, 30.0, 700.0, 2000.0], [0.0, -20.0, -900.0, -2500.0]),
        ([0.0, 2.0], [-0.5, -3.0]),
    ],
)
def test_chords_are_straight_in_the_power_of_epsilon(grid, logs):
    grid, logs = np.array(grid), np.array(logs)
    inner = np.concatenate([grid[:-1] + share * np.diff(grid) for share in (0.01, 0.3, 0.5, 0.98)])
    at = np.concatenate([inner, grid, grid[-1] * np.array([1.001, 1.5, 40.0])])
    expected = [float(chord(grid, logs, float(x))) for x in at]
    np.testing.assert_allclose(_chord(grid, logs, at), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "curve", [Wavy(), Wavy(2), Gdp(0.8), Rdp.linear(0.3), WithFailure(Gdp(1.0), 1e-4)]
)
@pytest.mark.parametrize("share", [0.0, 0.004, 0.2, 0.7, 1.0, 1.4, 2.5, 6.0])
def test_the_best_split_is_the_least_of_all_that_the_table_allows(curve, share):
    """Every tabled epsilon of one direction with the chord of the other one, one by one."""
    table = grid, removed, added = _table(curve, 2)
    epsilon = share * float(grid[400])
    sums = [
        np.logaddexp(first + away, second)
        for x, log_removed, log_added in zip(grid, removed, added, strict=True)
        if x <= epsilon
        for first, away, second in (
            (float(chord_of(grid, added, epsilon - x)), x, log_removed),
            (log_added, epsilon - x, float(chord_of(grid, removed, epsilon - x))),
        )
    ]
    found = _through_best_split(table, epsilon)
    assert found == pytest.approx(min(0.0, *sums), rel=1e-9, abs=1e-11) and found <= 0
    assert found >= min(0.0, *sums) * (1 + 1e-15)


def chord_of(grid, logs, at):
    """The same as ``chord`` in doubles."""
    after = min(int(np.searchsorted(grid, at, side="right")), grid.size - 1)
    low, high, x = (math.exp(e - at) for e in (grid[after - 1], grid[after], max(at, 0.0)))
    share = min((x - low) / (high - low), 1.0)
    return np.logaddexp(
        logs[after - 1] + (math.log1p(-share) if share < 1 else -math.inf),
        logs[after] + (math.log(share) if share > 0 else -math.inf),
    )


def test_splits_do_not_say_more_than_nothing():
    table = np.array([0.0, 1.0]), np.array([0.0, -0.1]), np.array([0.0, -0.1])
    assert _through_best_split(table, 0.5) == 0
    assert _through_best_split(table, 3.0) == 0


def first_epsilon(curve, delta):
    """The least epsilon of a falling table, by halves; infinite where its end is above ``delta``."""
    low, high = 0.0, 60 * _end(curve.curve)
    if curve.delta(low) <= delta:
        return 0.0
    if curve.delta(high) > delta:
        return math.inf
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if curve.delta(middle) <= delta else (middle, high)
    return high


@pytest.mark.parametrize(
    "curve",
    [
        Gdp(1e-3),
        Gdp(0.7),
        Gdp(6.0),
        GdpMixture((0.25, 0.75), (2.0, 0.1)),
        WithFailure(Gdp(0.5), 1e-6),
        WithFailure(Gdp(3.0), 0.02),
        EpsDelta(0.5, 1e-3),
        Gdp(0.0),
    ],
    ids=str,
)
@pytest.mark.parametrize("delta", [0.9, 0.6, 0.3, 0.05, 3e-3, 4e-6, 1e-7, 1e-20, LEAST_DELTA])
def test_the_epsilon_of_an_exchange_is_where_its_delta_is(curve, delta):
    exchanged = Exchanged(curve)
    found, expected = exchanged.epsilon(delta), first_epsilon(exchanged, delta)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert math.isinf(found) or exchanged.delta(found) <= delta


def test_an_epsilon_is_finite_wherever_half_of_its_delta_has_one():
    """A third of it need not: two failures of 1e-4 fit into 2.3e-4."""
    exchanged = Exchanged(WithFailure(Gdp(0.01), 1e-4))
    found = exchanged.epsilon(2.3e-4)
    assert found == pytest.approx(first_epsilon(exchanged, 2.3e-4), rel=1e-6) and found < 0.2


@dataclass(frozen=True)
class Slow(Curve):
    """delta = e^(-epsilon / 4): an exchange needs six times the epsilon of one record."""

    def delta(self, epsilon):
        return math.exp(-epsilon / 4)

    def epsilon(self, delta):
        return -4 * math.log(delta)

    def rdp(self, alpha):
        return math.inf

    def group(self, size):
        return Grouped(self, size)


@pytest.mark.parametrize("delta", [0.5, 1e-2])
def test_the_epsilon_of_an_exchange_may_be_many_times_that_of_one_record(delta):
    found = Exchanged(Slow()).epsilon(delta)
    assert found == pytest.approx(first_epsilon(Exchanged(Slow()), delta), rel=1e-6)
    assert 4 * Slow().epsilon(delta / 2) + 1 < found < 6.5 * Slow().epsilon(delta / 2)


def test_what_follows_from_an_exchange():
    curve = Exchanged(Gdp(0.6))
    assert curve.rdp(3.0) == Gdp(0.6).group(2).rdp(3.0)
    assert Exchanged(Rdp.linear(0.1)).rdp(1.5) == Rdp.linear(0.1).group(2).rdp(1.5)
    assert curve.group(3) == Grouped(curve, 3) and curve.coarser() == curve
    epsilons = np.array([0.0, 0.4, 3.0])
    logs = curve.log_profile(epsilons)
    expected = [[curve.log_delta(float(e))] * 2 for e in epsilons]
    np.testing.assert_allclose(logs, expected, rtol=1e-12)
    deltas = [curve.delta(float(e)) for e in epsilons]
    np.testing.assert_allclose(curve.profile(epsilons), np.transpose([deltas] * 2), rtol=1e-12)
    np.testing.assert_allclose(deltas, np.exp(logs[:, 0]), rtol=1e-9)
