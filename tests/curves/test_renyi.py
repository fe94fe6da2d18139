"""Renyi curves: divergences from hockey sticks, conversions at the best order, groups, sums and
sampled steps."""

import math
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from lastiterate.curves.curve import EpsDelta
from lastiterate.curves.gaussian import Gdp, GdpMixture, gdp_log_delta
from lastiterate.curves.renyi import (
    FEW,
    Rdp,
    SampledRenyi,
    _log_integral,
    _log_tail,
    _order,
    divergence_of,
    renyi_divergence,
    renyi_sum,
)
from lastiterate.errors import InputError
from oracles.sampled import one_step, renyi

ALPHAS = (1.05, 1.5, 2.0, 4.0, 11.0)
LEGENDRE = np.polynomial.legendre.leggauss(24)


def integrate_chords(grid, values, rate, share=None):
    """The integral of e^{rate e} against chords in e (whose next value has the given share of its
    weight), or in e^e."""
    total = 0.0
    t = (1 + LEGENDRE[0]) / 2
    for low, high, one, two in zip(grid[:-1], grid[1:], values[:-1], values[1:], strict=True):
        w = high - low
        curved = np.expm1(t * w) / np.expm1(w)
        second = curved if share is None else t * max(1 - share * w, 0.0)
        terms = np.exp(rate * (low + t * w)) * ((1 - second) * one + second * two)
        total += float((LEGENDRE[1] * terms).sum()) / 2 * w
    return total


@pytest.mark.parametrize("rate", [-12.0, -1.5, -1.0, -0.04, 0.04, 0.5, 1.0, 9.0])
@pytest.mark.parametrize(
    "grid",
    [
        np.linspace(0.0, 3.0, 40),
        np.array([0.2, 0.9, 2.9, 3.0, 3.4]),
        np.array([0.0, 8e-5, 1.7e-4, 2.6e-4]),
        np.array([0.0, 9.5e-4, 1.8e-3, 2.7e-3]),
        np.array([0.0, 0.02, 0.0437]),
    ],
    ids=len,
)
def test_integrals_of_chords(grid, rate):
    """Against quadrature of the chord in e whose second weight is smaller by 1 - 0.6 w, which lies
    above that in e^e."""
    values = 0.4 * np.exp(-1.3 * grid) + 0.01
    found = math.exp(_log_integral(grid, values, rate))
    assert found == pytest.approx(integrate_chords(grid, values, rate, 0.6), rel=1e-8)
    assert found >= integrate_chords(grid, values, rate)
    values = np.arange(grid.size) % 2 + 1e-9  # each end of a chord alone
    for one in (values, values[::-1]):
        found = math.exp(_log_integral(grid, one, rate))
        assert found == pytest.approx(integrate_chords(grid, one, rate, 0.6), rel=5e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize(
    ("mu", "end", "rate"), [(1.0, 0.8, 1.0), (0.6, 2.5, 0.3), (2.0, 5.0, 0.05)]
)
def test_tails_beyond_a_grid(alpha, mu, end, rate):
    """Above the integral of rate delta_mu(log(1 + (e^e - 1) / rate)), and equal to its bound."""
    with mp.workdps(25):
        s = mp.log((1 - (1 - mp.mpf(rate)) * mp.exp(-mp.mpf(end))) / rate)
        middle, m = mp.mpf(mu) ** 2 / 2, mp.mpf(mu)

        def density(loss):
            return mp.exp((alpha - 1) * (loss - s)) * mp.npdf(loss, middle, m)

        top = middle + (alpha - 1) * m**2
        points = sorted({end + s, max(end + s, top), max(end + s, top) + 14 * m})
        bound = rate * mp.quad(density, points)
    found = _log_tail(end, alpha, mu, rate)
    assert found == pytest.approx(float(mp.log(bound)), rel=1e-8, abs=1e-8)
    e = np.linspace(end, end + float(top) + 30 * mu, 20_001)
    deltas = gdp_log_delta(np.log1p(np.expm1(e) / rate), np.array([mu]))
    logs = (alpha - 1) * e + math.log(rate) + deltas
    exact = alpha * (alpha - 1) * float(np.exp(logs - logs.max()).sum()) * (e[1] - e[0])
    assert found >= math.log(exact) + float(logs.max()) - 1e-3


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("end", [0.5, 2.0, 6.0])
def test_divergences_of_an_order_from_short_grids(alpha, end):
    """Beyond the grid both integrals have their bounds, which is all that a short grid has."""
    q, z = 0.2, 0.8
    grid = np.linspace(0.0, end, 801)
    forth, back = one_step(grid, q, z)
    for one, two in ((forth, back), (back, forth)):
        tail = _log_tail(end, alpha, 1 / z, q)
        parts = [
            integrate_chords(grid, one, alpha - 1, 0.6),
            integrate_chords(grid, two, -alpha, 0.6),
        ]
        beyond = (alpha - 1) * two[-1] * math.exp(-alpha * end) + math.exp(tail)
        wanted = math.log(1 + alpha * (alpha - 1) * sum(parts) + beyond) / (alpha - 1)
        found = _order(grid, one, two, alpha, tail)
        assert found == pytest.approx(wanted, rel=1e-7)
    larger = divergence_of((grid, forth, back), alpha, 1 / z, q)
    exact = renyi(alpha, q, z)
    assert exact <= larger <= alpha / z**2 / 2 * (1 + 1e-9)
    assert larger == divergence_of((grid, back, forth), alpha, 1 / z, q)
    for rate in (q, 1.0):
        tail = _log_tail(end, alpha, 1 / z, rate)
        both = [_order(grid, *pair, alpha, tail) for pair in ((forth, back), (back, forth))]
        wanted = min(alpha / z**2 / 2, max(both))
        found = divergence_of((grid, forth, back), alpha, 1 / z, *((q,) if rate == q else ()))
        assert found == pytest.approx(wanted, rel=1e-9)
    if end == 6.0 and alpha < 4:
        assert larger <= exact * (1 + 1e-2)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergences_of_curves(alpha):
    """Mixtures of Gaussian pairs have theirs in closed form."""
    for weights, mus in (((0.3, 0.7), (0.5, 1.5)), ((0.99, 0.01), (0.1, 0.9)), ((1.0,), (0.4,))):
        curve = GdpMixture(weights, mus)
        for mu in (max(mus), 1.1 * max(mus)):
            found = renyi_divergence(curve, alpha, mu)
            assert curve.rdp(alpha) * (1 - 1e-9) <= found <= alpha * mu * mu / 2 * (1 + 1e-9)
        if alpha < 4:
            assert renyi_divergence(curve, alpha, max(mus)) <= curve.rdp(alpha) * 1.01


@dataclass(frozen=True)
class Sampled:
    """The exact profile of one sampled step, or of its reverse."""

    rate: float
    z: float
    reverse: bool

    def profile(self, epsilons):
        forth, back = one_step(epsilons, self.rate, self.z)
        return np.stack([back, forth] if self.reverse else [forth, back], axis=1)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergences_need_both_orders(alpha):
    """Of one order alone they would be smaller than the exact one of a sampled step."""
    exact = renyi(alpha, 0.2, 0.8)
    for reverse in (False, True):
        found = renyi_divergence(Sampled(0.2, 0.8, reverse), alpha, 1 / 0.8)
        assert exact <= found <= alpha / 0.8**2 / 2 * (1 + 1e-9)


def test_divergences_of_nothing_and_of_everything():
    assert renyi_divergence(Gdp(0.0), 2.0, 0.0) == 0.0
    assert renyi_divergence(Gdp(0.5), 2.0, math.inf) == math.inf
    for alpha in (1.0, 0.5):
        assert renyi_divergence(Gdp(0.5), alpha, 0.5) == math.inf


# Tables and lines.


@pytest.mark.parametrize(
    ("orders", "values"),
    [((1.0,), (0.1,)), ((2.0, 0.5), (0.1, 0.1)), ((2.0,), ()), ((2.0,), (0.1, 0.2)), ((), (0.1,))],
)
def test_what_is_no_table_is_refused(orders, values):
    with pytest.raises(InputError, match="orders"):
        Rdp(orders=orders, values=values)
    assert Rdp(orders=(1.5, 3.0), values=(0.1, 0.2)).rdp(1.5) == 0.1


def by_order(rule, points):
    """The least of ``rule`` over log(alpha - 1), by Brent's method from the best of a grid."""
    logs = np.linspace(-25.0, 25.0, 4001)
    values = [rule(float(log)) for log in logs]
    at = int(np.argmin(values))
    bounds = float(logs[max(at - 1, 0)]), float(logs[min(at + 1, logs.size - 1)])
    inner = minimize_scalar(rule, bounds=bounds, method="bounded", options={"xatol": 1e-10})
    return min(float(inner.fun), values[at], points)


@pytest.mark.parametrize("slope", [1e-4, 0.02, 0.7, 1.0, 8.0, 300.0])
def test_lines_convert_at_the_best_order(slope):
    """Canonne, Kamath, Steinke 2020, and Mironov 2017, at the best of all orders: to 1e-9."""
    curve = Rdp.linear(slope)
    for epsilon in (0.0, slope / 2, slope, 1.5 * slope, 4 * slope + 1, 20 * slope + 3):

        def log_delta(log, epsilon=epsilon):
            gap = math.exp(log)
            plain = gap * (slope * (1 + gap) - epsilon)
            return min(plain, plain - log + (1 + gap) * math.log1p(-1 / (1 + gap)))

        best = by_order(log_delta, 0.0)
        found = float(curve.log_profile(np.array([epsilon]))[0, 0])
        slack = 1e-8 * (1 + abs(best)) if best < -1e-3 else 1e-3  # where delta is nearly 1
        assert best - 1e-12 <= found <= best + slack
        assert curve.delta(epsilon) == pytest.approx(math.exp(found), rel=1e-9)
    for delta in (0.9, 0.3, 1e-3, 1e-9, 1e-200):

        def epsilon_of(log, delta=delta):
            gap = math.exp(log)
            plain = slope * (1 + gap) - math.log(delta) / gap
            return min(plain, plain + math.log1p(-1 / (1 + gap)) - math.log1p(gap) / gap)

        best = max(by_order(epsilon_of, math.inf), 0.0)
        assert best * (1 - 1e-9) <= curve.epsilon(delta) <= best * (1 + 1e-7) + 1e-7 * slope


def test_epsilons_beyond_products_of_doubles():
    """Delta never increases: what holds at 1e100 holds beyond, where products overflow."""
    for slope in (1.0, 1e-5):
        logs = Rdp.linear(slope).log_profile(np.array([1e99, 1e100, 2e100, 1e300]))[:, 0]
        assert logs[1] == logs[2] == logs[3] < 2 * logs[0] < -1e100
    # the largest gap, 1e100, at the far end of the grid of orders around it
    assert logs[1] == pytest.approx(-math.exp(4) * 1e200, rel=0.05)


def test_logarithms_of_delta_are_at_most_0():
    assert (
        Rdp(orders=(2.0,), values=(5.0,)).log_profile(np.array([0.0, 5.0])).tolist()
        == [[0.0, 0.0]] * 1
        + Rdp(orders=(2.0,), values=(5.0,)).log_profile(np.array([5.0])).tolist()
    )
    assert Rdp().log_profile(np.array([3.0])).tolist() == [[0.0, 0.0]]
    assert Rdp.linear(0.0).log_profile(np.array([3.0])).tolist() == [[-math.inf] * 2]


@pytest.mark.parametrize("slope", [1e-3, 0.5, 20.0])
@pytest.mark.parametrize("short", [1e-15, 1e-9, 1e-4])
def test_an_epsilon_is_raised_until_its_delta_is_seen(slope, short):
    curve = Rdp.linear(slope)
    for delta in (1e-2, 1e-8):
        epsilon = curve.epsilon(delta)
        raised = curve._confirm(epsilon * (1 - short), delta)
        assert curve.delta(raised) <= delta and raised <= epsilon * (1 + 4 * short + 1e-8)
        assert curve._confirm(epsilon, delta) == epsilon
    assert curve._confirm(math.inf, 1e-3) == math.inf


@pytest.mark.parametrize(
    ("size", "orders", "values"),
    [
        (1, (2.0, 3.0, 4.0, 8.0, 16.0, 17.0), (0.02, 0.03, 0.04, 0.08, 0.16, 0.17)),
        (2, (2.0, 4.0, 8.0, 8.5), (0.12, 0.24, 0.48, 0.51)),
        (3, (2.0, 4.0, 4.25), (0.72, 1.44, 1.53)),
        (4, (2.0, 4.0, 4.25), (0.72, 1.44, 1.53)),
        (5, (2.0, 2.125), (4.32, 4.59)),
        (8, (2.0, 2.125), (4.32, 4.59)),
        (9, (), ()),
    ],
)
def test_groups_of_tables(size, orders, values):
    """Mironov 2017, Proposition 2: for 2^c records orders from 2^(c + 1) on, and 3^c times the
    divergence."""
    table = Rdp(
        orders=(2.0, 3.0, 4.0, 8.0, 16.0, 17.0), values=(0.02, 0.03, 0.04, 0.08, 0.16, 0.17)
    )
    found = table.group(size)
    assert found.orders == orders and found.slope == math.inf
    assert found.values == pytest.approx(values, rel=1e-9)
    line = Rdp.linear(0.3).group(size)
    assert line.slope == pytest.approx(0.3 * size**2, rel=1e-9) and line.orders == ()
    assert Rdp.linear(0.0).group(size).slope == 0.0


def test_sums_of_divergences():
    """Mironov 2017, Proposition 1: lines add up, and so do values at each order of a table."""
    lines = renyi_sum(Rdp.linear(0.3), Gdp(0.8))
    assert lines.slope == pytest.approx(0.3 + 0.32, rel=1e-9) and lines.orders == ()
    one = Rdp(orders=(2.0, 8.0), values=(0.1, 0.7))
    two = Rdp(0.5, orders=(3.0,), values=(0.2,))
    both = renyi_sum(one, two)
    assert both.slope == math.inf and {2.0, 3.0, 8.0} < set(both.orders)
    assert len(both.orders) == 303 and list(both.orders) == sorted(both.orders)
    grid = np.array([order for order in both.orders if order not in (2.0, 3.0, 8.0)]) - 1
    assert grid == pytest.approx(np.geomspace(0.01, 1e4, 300), rel=1e-9)
    for order in (1.5, 2.0, 2.5, 3.0, 5.0, 8.0):
        wanted = one.rdp(order) + two.rdp(order)
        at = min(known for known in both.orders if known >= order)
        assert wanted <= both.rdp(order) <= (one.rdp(at) + two.rdp(at)) * (1 + 1e-9)
    mixture = GdpMixture((0.5, 0.5), (0.5, 1.0))
    for other in (Rdp.linear(0.3), Gdp(0.8), EpsDelta(0.7, 0.0)):
        for found in (renyi_sum(mixture, other), renyi_sum(other, mixture)):
            assert found.slope == math.inf and len(found.orders) == 300
            at = found.orders[150]
            assert found.rdp(at) == pytest.approx(mixture.rdp(at) + other.rdp(at), rel=1e-9)
    tables = renyi_sum(Rdp(0.1, (2.0,), (0.05,)), Rdp(0.2, (3.0,), (0.3,)))
    assert tables.slope == pytest.approx(0.3) and tables.orders == (2.0, 3.0)
    assert tables.values == pytest.approx((0.05 + 0.3, 0.3 + 0.3), rel=1e-9)


# Sampled steps.


@pytest.mark.parametrize("coarse", [False, True])
def test_sampled_steps_have_the_divergences_of_their_pairs(coarse):
    curve = SampledRenyi(0.1, (1.0, 2.5), (3, 40), coarse)
    for order in (2.0, 4.0, 8.0):
        exact = 3 * renyi(order, 0.1, 1.0) + 40 * renyi(order, 0.1, 2.5)
        assert exact * (1 - 1e-6) <= curve.rdp(order) <= exact * (1 + 1e-6)
    assert curve.coarser() == SampledRenyi(0.1, (1.0, 2.5), (3, 40), True)
    assert curve.group(2) == curve.table().group(2)
    assert curve.epsilon(1e-6) == curve.table().epsilon(1e-6)
    assert curve.delta(2.0) == curve.table().delta(2.0)
    assert curve.coarser().table().orders == FEW
    assert FEW == (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)
    assert (2.0 in curve.table().orders) and (1.5 in curve.table().orders) == (not coarse)


def test_few_noises_of_coarse_sums():
    """Of nine noises, eight: the others are rounded down to them."""
    multipliers = tuple(1.5 * 1.1**i for i in range(9))
    for used, equal in ((8, True), (9, False)):
        curve = SampledRenyi(0.1, multipliers[:used], (5,) * used, True)
        alone = [SampledRenyi(0.1, (z,), (5,), True).rdp(8.0) for z in multipliers[:used]]
        assert (curve.rdp(8.0) == pytest.approx(sum(alone), rel=1e-9)) == equal
        assert sum(alone) * (1 - 1e-9) <= curve.rdp(8.0) <= sum(alone) * 1.3


def test_steps_without_noise_say_nothing():
    assert SampledRenyi(0.1, (0.0, 1.0), (1, 3)).table() == Rdp()
    assert SampledRenyi(0.1, (1.0,), (1,)).rdp(2.0) < math.inf
    assert SampledRenyi(1.0, (2.0,), (4,)).rdp(3.0) == pytest.approx(1.5, rel=1e-9)
    for rate in (0.0, 1.5, -0.1):
        with pytest.raises(InputError, match="rate"):
            SampledRenyi(rate, (1.0,), (1,))
    with pytest.raises(InputError, match="counts"):
        SampledRenyi(0.1, (1.0,), (0,))
