"""Curves against 60-digit arithmetic, published conversions and their own laws."""

import math
import tomllib
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import BestOf, EpsDelta, Grouped
from lastiterate.curves.gaussian import Gdp, GdpMixture, bound_epsilon
from lastiterate.curves.renyi import Rdp, rdp_epsilon, rdp_log_delta
from lastiterate.errors import InputError

GOLDEN = tomllib.loads((Path(__file__).parents[1] / "golden" / "published.toml").read_text())


def true_delta(epsilon, mu):
    e, m = mp.mpf(epsilon), mp.mpf(mu)
    return mp.ncdf(m / 2 - e / m) - mp.e**e * mp.ncdf(-m / 2 - e / m)


@pytest.mark.parametrize("mu", [float(x) for x in np.geomspace(1e-3, 50, 24)])
def test_gdp_rounds_up_and_by_little(mu):
    curve = Gdp(mu)
    with mp.workdps(60):
        for delta in np.geomspace(1e-12, 0.1, 12):
            epsilon = curve.epsilon(float(delta))
            assert true_delta(epsilon, mu) <= delta, (
                "epsilon must lie on the side where the guarantee holds"
            )
            if epsilon > 0:
                assert true_delta(epsilon * (1 - 1e-6), mu) > delta, "and within 1e-6 of the truth"
            exact, ours = true_delta(epsilon, mu), curve.delta(epsilon)
            assert exact <= ours <= exact * (1 + mp.mpf("1e-9")) + mp.mpf(10) ** -300


def test_large_epsilon_does_not_overflow():
    assert 0 <= Gdp(50.0).delta(5000.0) < 1e-100
    assert Gdp(0.0).epsilon(1e-6) == 0 and Gdp(0.0).delta(0.0) == 0
    assert Gdp(math.inf).epsilon(1e-6) == math.inf and Gdp(math.inf).delta(3.0) == 1


def test_renyi_conversions():
    row = GOLDEN["conversion"]
    log = math.log(1 / row["delta"])
    mironov = row["slope"] + 2 * math.sqrt(
        row["slope"] * log
    )  # min over alpha of slope alpha + log/(alpha - 1)
    assert mironov == pytest.approx(row["mironov"], abs=1e-3)
    assert Rdp.linear(row["slope"]).epsilon(row["delta"]) == pytest.approx(
        row["improved"], abs=1e-4
    )


def test_renyi_of_a_gaussian_bounds_its_exact_curve():
    for mu in (0.05, 0.5, 2.0, 10.0):
        linear = Rdp.linear(mu * mu / 2)
        for delta in (1e-2, 1e-5, 1e-9):
            exact = Gdp(mu).epsilon(delta)
            assert exact <= linear.epsilon(delta) <= exact + mu * 2.5
        for epsilon in (0.1, 1.0, 5.0):
            assert Gdp(mu).delta(epsilon) <= linear.delta(epsilon)


def test_tabled_orders_round_up_between_orders():
    curve = Rdp(orders=(2.0, 8.0), values=(0.1, 0.4))
    assert (
        curve.rdp(1.5) == 0.1
        and curve.rdp(2.0) == 0.1
        and curve.rdp(3.0) == 0.4
        and curve.rdp(9.0) == math.inf
    )
    by_hand = min(rdp_epsilon(np.array([2.0, 8.0]), np.array([0.1, 0.4]), 1e-5))
    assert curve.epsilon(1e-5) == by_hand


def test_mixture():
    one = GdpMixture((1.0,), (0.7,))
    assert one.epsilon(1e-6) == pytest.approx(Gdp(0.7).epsilon(1e-6), rel=1e-9)
    two = GdpMixture((0.25, 0.75), (2.0, 0.5))
    for epsilon in (0.0, 0.5, 2.0):
        expected = 0.25 * Gdp(2.0).delta(epsilon) + 0.75 * Gdp(0.5).delta(epsilon)
        assert two.delta(epsilon) == pytest.approx(expected, rel=1e-9) and two.delta(
            epsilon
        ) >= expected * (1 - 1e-15)
    assert two.delta(two.epsilon(1e-7)) <= 1e-7
    expected = math.log(0.25 * math.exp(2 * 3 * 4 / 2) + 0.75 * math.exp(2 * 3 * 0.25 / 2)) / 2
    assert two.rdp(3.0) == pytest.approx(expected, rel=1e-9)
    lost = GdpMixture((0.01, 0.99), (math.inf, 0.1))
    assert (
        lost.epsilon(0.005) == math.inf
        and lost.delta(1.0) >= 0.01
        and math.isfinite(lost.epsilon(0.02))
    )
    assert lost.delta(lost.epsilon(0.0101)) <= 0.0101


def test_composition_and_best_of():
    assert compose(Gdp(3.0), Gdp(4.0)).mu == pytest.approx(5.0, rel=1e-9)
    mixed = compose(GdpMixture((0.5, 0.5), (0.0, 3.0)), Gdp(4.0))
    assert mixed.mus == pytest.approx((4.0, 5.0), rel=1e-9)
    assert compose(Rdp.linear(0.5), Gdp(1.0)).rdp(5.0) == pytest.approx(5.0, rel=1e-9)
    mixture = GdpMixture((0.5, 0.5), (0.5, 1.0))
    assert compose(mixture, Rdp.linear(0.3)).rdp(4.0) >= mixture.rdp(4.0) + 1.2 - 1e-9
    both = compose(EpsDelta(1.0, 1e-6), EpsDelta(2.0, 1e-6))
    assert both.epsilon(3e-6) == pytest.approx(3.0, rel=1e-9)
    best = BestOf((Gdp(1.0), EpsDelta(0.5, 1e-5)))
    assert best.epsilon(1e-5) == 0.5 and best.delta(0.4) <= Gdp(1.0).delta(0.4)
    with pytest.raises(InputError, match="compose only with one another"):
        compose(EpsDelta(1.0, 1e-6), Gdp(1.0))


def test_group_privacy():
    assert Gdp(0.3).group(3).mu == pytest.approx(0.9, rel=1e-9)
    mixture = GdpMixture((0.5, 0.5), (0.1, 0.3))
    assert mixture.group(1) == mixture
    worst, walked = mixture.group(2).curves  # all of it as its worst part, and two rows in turn
    assert worst.mu == pytest.approx(0.6, rel=1e-9)
    assert walked.delta(1.0) == pytest.approx(mixture.delta(0.5) * (1 + math.exp(0.5)), rel=1e-9)
    pure = EpsDelta(0.5, 1e-6).group(2)
    assert pure.at_epsilon == pytest.approx(1.0) and pure.at_delta == pytest.approx(
        1e-6 * (1 + math.exp(0.5))
    )
    # a line through 0 at all orders grows by the square (Bun and Steinke, Proposition 1.9), as a
    # Gaussian's does
    for size in (2, 3, 1000):
        grouped = Rdp.linear(0.01).group(size)
        for order in (1.5, 4.0, 1e6):
            exact = 0.01 * size**2 * order
            assert exact * (1 - 1e-15) <= grouped.rdp(order) <= exact * (1 + 1e-9)
    # a tabled order alpha becomes alpha / 2 at 3 times its divergence (Mironov, Proposition 2)
    tabled = Rdp(orders=(2.0, 3.0, 8.0), values=(0.02, 0.03, 0.08)).group(2)
    assert tabled.orders == (4.0,) and 0.24 <= tabled.values[0] <= 0.24 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("size", "doublings"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)]
)
def test_a_group_doubles_as_often_as_its_size_needs(size, doublings):
    """Mironov 2017, Proposition 2, for 2^c records: 3^c times the divergence at 2^c alpha."""
    for order in (2.0, 7.5):
        wanted = 3**doublings * Gdp(0.1).rdp(2**doublings * order)
        assert wanted <= Grouped(Gdp(0.1), size).rdp(order) <= wanted * (1 + 1e-9)


def test_point_guarantee_below_its_epsilon():
    # randomised response is exactly (e0, 0)-DP: its delta at e < e0 is (e^e0 - e^e) / (1 + e^e0)
    e0 = 1.2
    for e in (0.0, 0.5, 1.0):
        assert EpsDelta(e0, 0.0).delta(e) == pytest.approx(
            (math.exp(e0) - math.exp(e)) / (1 + math.exp(e0))
        )


def test_json_round_trip():
    curves = (
        Gdp(0.5),
        GdpMixture((0.5, 0.5), (1.0, 2.0)),
        Rdp.linear(0.1),
        Rdp(orders=(2.0,), values=(0.3,)),
        EpsDelta(1.0, 1e-6),
    )
    for curve in (*curves, BestOf(curves)):
        assert curve_from_dict(curve.to_dict()) == curve


@pytest.mark.parametrize(
    "stored",
    [
        {"type": "PoissonRuns", "expected": 3.0},
        {"type": "Run"},
        {"type": "Gdp", "mu": 1.0, "more": 1},
        {"type": "Gdp"},
        {"mu": 1.0},
        [{"type": "Gdp", "mu": 1.0}],
        5,
        None,
    ],
)
def test_what_is_no_curve_is_not_read_as_one(stored):
    with pytest.raises(InputError):
        curve_from_dict(stored)


def test_curves_in_curves_are_read_however_deep():
    curve = Gdp(0.5)
    for _ in range(20):
        curve = BestOf((curve,))
    assert curve_from_dict(curve.to_dict()) == curve


def test_groups_of_a_table_keep_its_orders():
    """Order 8 at most 0.1: pairs of records have at most 3 * 0.1 at order 4, and not the line's 3 *
    40."""
    curve = Rdp(slope=5.0, orders=(8.0,), values=(0.1,))
    assert curve.group(2).rdp(4.0) == pytest.approx(0.3) and Rdp(
        orders=(8.0,), values=(0.1,)
    ).group(2).rdp(4.0) == (pytest.approx(0.3))
    assert 4 * 5 * 40 <= curve.group(2).rdp(40.0) <= 4 * 5 * 40 * (1 + 1e-9), (
        "beyond the table the line"
    )


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Gdp(-1.0),
        lambda: Gdp(math.nan),
        lambda: Gdp(1.0).epsilon(0.0),
        lambda: Gdp(1.0).epsilon(1.0),
        lambda: Gdp(1.0).delta(-0.1),
        lambda: GdpMixture((0.5, 0.4), (1.0, 1.0)),
        lambda: GdpMixture((1.0,), (-1.0,)),
        lambda: Rdp(orders=(1.0,), values=(0.1,)),
        lambda: curve_from_dict({"type": "x"}),
    ],
)
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InputError):
        bad()


def test_tiny_mu_still_rounds_up():
    with mp.workdps(60):
        for mu in (1e-17, 1e-12, 1e-8):
            for epsilon in (0.0, mu * mu, mu, 3 * mu):
                assert Gdp(mu).delta(epsilon) >= true_delta(epsilon, mu)


def conversions(alpha, value, delta):
    """epsilon by Canonne, Kamath, Steinke 2020 (Proposition 12) and by Mironov 2017 (Proposition
    3)."""
    improved = value + math.log1p(-1 / alpha) - (math.log(delta) + math.log(alpha)) / (alpha - 1)
    return min(improved, value + math.log(1 / delta) / (alpha - 1))


def log_deltas(alpha, value, epsilon):
    """log delta by the same two rules."""
    plain = (alpha - 1) * (value - epsilon)
    return min(
        plain,
        plain + (alpha - 1) * math.log1p(-1 / alpha) - math.log(alpha - 1) + math.log1p(-1 / alpha),
    )


def test_both_conversion_rules_at_every_order():
    for alpha in (1.001, 1.1, 1.7, 2.0, 5.0, 80.0):
        for value in (0.0, 0.01, 1.0, 30.0):
            for delta in (0.5, 1e-3, 1e-10):
                found = float(rdp_epsilon(np.array([alpha]), np.array([value]), delta)[0])
                exact = conversions(alpha, value, delta)
                assert (
                    exact
                    <= found
                    <= exact + 1e-11 * (1 + abs(exact) + math.log(1 / delta) / (alpha - 1))
                )
            for epsilon in (0.0, 0.7, 12.0):
                found = float(rdp_log_delta(np.array([alpha]), np.array([value]), epsilon)[0])
                exact = log_deltas(alpha, value, epsilon)
                assert exact <= found <= exact + 1e-11 * (1 + abs(exact) + alpha * 31)


@pytest.mark.parametrize("slope", [1e-4, 0.02, 0.5, 8.0, 300.0])
def test_linear_renyi_curves_take_the_best_order(slope):
    orders = 1 + np.geomspace(1e-6, 1e7, 400_001)
    curve = Rdp.linear(slope)
    for delta in (0.3, 1e-3, 1e-9):
        mironov = slope * orders - math.log(delta) / (orders - 1)
        best = np.minimum(
            mironov, mironov + np.log1p(-1 / orders) - np.log(orders) / (orders - 1)
        ).min()
        assert (
            max(best, 0) * (1 - 1e-6) - 1e-9
            <= curve.epsilon(delta)
            <= max(best, 0) * (1 + 1e-5) + 1e-5 * slope
        )
    for epsilon in (0.0, slope / 2, slope, 1.5 * slope, 4 * slope + 1, 20 * slope + 3):
        plain = (orders - 1) * (slope * orders - epsilon)
        best = np.minimum(plain, plain - np.log(orders - 1) + orders * np.log1p(-1 / orders)).min()
        exact = min(1.0, math.exp(best))
        assert exact * (1 - 1e-6) <= curve.delta(epsilon) <= exact * (1 + 2e-2) + 1e-300
    assert curve.rdp(3.0) == pytest.approx(3 * slope, rel=1e-9) and curve.rdp(3.0) >= 3 * slope


def test_tabled_and_linear_bounds_both_count():
    both = Rdp(1.0, (2.0, 4.0), (0.5, 30.0))
    assert both.rdp(2.0) == 0.5 and both.rdp(3.0) == pytest.approx(3.0) and both.rdp(1.2) == 0.5
    assert both.rdp(5.0) == pytest.approx(5.0) and both.rdp(1.01) == 0.5
    table, linear = Rdp(orders=(2.0, 4.0), values=(0.5, 30.0)), Rdp.linear(1.0)
    for delta in (0.4, 1e-2, 1e-6):
        assert both.epsilon(delta) == min(table.epsilon(delta), linear.epsilon(delta))
        exact = max(0, min(conversions(2, 0.5, delta), conversions(4, 30, delta)))
        assert table.epsilon(delta) == pytest.approx(exact, abs=1e-9)
    for epsilon in (0.0, 1.0, 6.0):
        assert both.delta(epsilon) == min(table.delta(epsilon), linear.delta(epsilon))
        exact = min(1.0, math.exp(min(log_deltas(2, 0.5, epsilon), log_deltas(4, 30, epsilon))))
        assert (
            table.delta(epsilon) == pytest.approx(exact, rel=1e-9) and table.delta(epsilon) >= exact
        )
    nothing = Rdp()
    assert (
        nothing.epsilon(0.5) == math.inf
        and nothing.delta(3.0) == 1
        and nothing.rdp(2.0) == math.inf
    )
    assert (
        Rdp.linear(0.0).epsilon(1e-9) == 0
        and Rdp.linear(0.0).delta(0.0) == 0
        and Rdp.linear(0.0).rdp(9.0) == 0
    )
    assert Rdp(orders=(2.0,), values=(0.0,)).epsilon(0.9) == 0, "never negative"


def test_renyi_of_gaussians_and_mixtures():
    assert (
        Gdp(0.6).rdp(3.0) == pytest.approx(3 * 0.36 / 2, rel=1e-9)
        and Gdp(0.6).rdp(3.0) >= 3 * 0.36 / 2
    )
    assert Gdp(0.0).rdp(2.0) == 0 and Gdp(0.6).epsilon(0.9) == 0
    for weights, mus in (
        ((0.2, 0.8), (1.3, 0.0)),
        ((0.3, 0.5, 0.2), (0.4, 1.1, 2.0)),
        ((1.0,), (0.7,)),
    ):
        for alpha in (1.3, 2.0, 6.0):
            exact = math.log(
                sum(
                    w * math.exp((alpha - 1) * alpha * m * m / 2)
                    for w, m in zip(weights, mus, strict=True)
                )
            ) / (alpha - 1)
            found = GdpMixture(weights, mus).rdp(alpha)
            assert exact <= found <= exact + 1e-10 * (1 + exact) / (alpha - 1)
    silent = GdpMixture((0.5, 0.5), (0.0, 0.0))
    assert silent.delta(0.0) == 0 and silent.epsilon(1e-9) == 0 and silent.rdp(5.0) < 1e-10
    unused = GdpMixture((0.0, 1.0), (math.inf, 0.7))
    assert unused.epsilon(1e-6) == pytest.approx(
        Gdp(0.7).epsilon(1e-6), rel=1e-9
    ) and math.isfinite(unused.rdp(2.0))
    lost = GdpMixture((0.3, 0.7), (math.inf, 0.7))
    assert (
        lost.rdp(2.0) == math.inf
        and lost.delta(50.0) == pytest.approx(0.3)
        and lost.delta(50.0) >= 0.3
    )
    assert lost.delta(0.2) == pytest.approx(0.3 + 0.7 * Gdp(0.7).delta(0.2), rel=1e-9)
    for delta in (0.31, 0.5, 0.9, 0.99):
        assert lost.delta(lost.epsilon(delta)) <= delta
    assert GdpMixture((1.0,), (math.inf,)).delta(1.0) == 1 and lost.epsilon(0.3) == math.inf
    narrow = GdpMixture((0.999, 0.001), (0.01, 3.0))
    assert narrow.delta(narrow.epsilon(1e-7)) <= 1e-7 and narrow.epsilon(1e-7) > Gdp(0.01).epsilon(
        1e-7
    )


def test_where_searches_begin():
    """Bun and Steinke 2016: rho-zCDP is (rho + 2 sqrt(rho log(1/delta)), delta)-DP, rho = mu^2 / 2."""
    for mu in (1e-6, 0.1, 1.0, 7.0):
        for delta in (1e-12, 1e-3, 0.6):
            rho = mu * mu / 2
            expected = rho + 2 * math.sqrt(rho * math.log(1 / delta))
            assert (
                bound_epsilon(mu, delta) == pytest.approx(expected, rel=1e-4)
                and bound_epsilon(mu, delta) > expected
            )
            assert Gdp(mu).delta(bound_epsilon(mu, delta)) <= delta


def test_single_points():
    point = EpsDelta(1.2, 0.1)
    assert (
        point.delta(1.2) == point.delta(5.0) == 0.1
        and point.epsilon(0.1) == 1.2
        and point.epsilon(0.0999) == math.inf
    )
    for e in (0.0, 0.4, 1.1):
        # the trade-off curve's corner: type II error (1 - delta) / (1 + e^e0) at type I error the
        # same
        corner = (1 - 0.1) / (1 + math.exp(1.2))
        exact = 1 - corner - math.exp(e) * corner
        assert point.delta(e) == pytest.approx(exact, rel=1e-9) and point.delta(e) >= exact
    assert EpsDelta(0.0, 1.0).delta(0.0) == 1 and EpsDelta(900.0, 0.0).delta(1.0) == pytest.approx(
        1.0
    )
    assert EpsDelta(710.0, 0.0).delta(705.0) <= 1
    assert point.rdp(2.0) == math.inf
    for e0, alpha in ((0.5, 1.5), (0.5, 9.0), (3.0, 1.2)):
        exact = min(e0, alpha * e0 * e0 / 2)
        assert (
            EpsDelta(e0, 0.0).rdp(alpha) == pytest.approx(exact, rel=1e-9)
            and EpsDelta(e0, 0.0).rdp(alpha) >= exact
        )
    three = EpsDelta(0.5, 1e-3).group(3)
    assert three.at_epsilon == pytest.approx(1.5, rel=1e-9) and three.at_epsilon >= 1.5
    exact = 1e-3 * (1 + math.exp(0.5) + math.exp(1.0))
    assert three.at_delta == pytest.approx(exact, rel=1e-9) and three.at_delta >= exact
    assert EpsDelta(800.0, 0.5).group(4).at_delta == 1 and EpsDelta(2.0, 0.5).group(
        1
    ).at_delta == pytest.approx(0.5)


def test_best_of_takes_the_smallest_everywhere():
    parts = (Gdp(0.8), Rdp.linear(0.1), EpsDelta(1.0, 1e-9))
    best = BestOf(parts)
    for delta in (0.2, 1e-4, 1e-9):
        assert best.epsilon(delta) == min(part.epsilon(delta) for part in parts)
    for epsilon in (0.0, 0.5, 3.0):
        assert best.delta(epsilon) == min(part.delta(epsilon) for part in parts)
    assert best.rdp(2.0) == min(part.rdp(2.0) for part in parts) == Rdp.linear(0.1).rdp(2.0)
    assert (
        best.group(2) == BestOf(tuple(part.group(2) for part in parts)) and best.coarser() == best
    )


def test_compositions_of_every_kind():
    assert compose() == Gdp(0.0) and compose(Gdp(0.4)) == Gdp(0.4)
    three = compose(Gdp(1.0), Gdp(2.0), Gdp(2.0))
    assert three.mu == pytest.approx(3.0, rel=1e-9) and three.mu >= 3.0
    pair = compose(EpsDelta(1.0, 0.3), EpsDelta(0.25, 0.2))
    assert (pair.at_epsilon, pair.at_delta) == pytest.approx(
        (1.25, 0.5), rel=1e-9
    ) and pair.at_epsilon >= 1.25
    assert compose(EpsDelta(1.0, 0.8), EpsDelta(1.0, 0.7)).at_delta == 1
    linear = compose(Rdp.linear(0.3), Gdp(0.8))
    assert (
        linear.slope == pytest.approx(0.3 + 0.32, rel=1e-9)
        and linear.slope >= 0.62
        and linear.orders == ()
    )
    tabled = compose(Rdp(orders=(2.0, 5.0), values=(0.1, 0.2)), Gdp(1.0))
    assert tabled.rdp(2.0) == pytest.approx(1.1, rel=1e-9) and tabled.rdp(5.0) == pytest.approx(
        2.7, rel=1e-9
    )
    mixed = compose(Rdp(0.5, (2.0,), (0.1,)), Rdp.linear(0.25))
    assert mixed.rdp(2.0) == pytest.approx(0.6, rel=1e-9) and mixed.rdp(3.0) == pytest.approx(
        2.25, rel=1e-9
    )
    pure = compose(EpsDelta(0.5, 0.0), Rdp.linear(0.2))
    orders = np.array(pure.orders)
    assert 200 < orders.size < 400 and orders.min() < 1.02 and orders.max() > 5e3
    for order in (orders[10], orders[150], orders[-1]):
        exact = EpsDelta(0.5, 0.0).rdp(order) + 0.2 * order
        assert pure.rdp(order) == pytest.approx(exact, rel=1e-9)
    assert compose(Gdp(1.0), EpsDelta(0.5, 0.0)).rdp(4.0) >= 2.0 + 0.5
    best = compose(BestOf((Gdp(0.3), Gdp(0.4))), Gdp(0.4))
    assert [part.mu for part in best.curves] == pytest.approx([0.5, math.hypot(0.4, 0.4)])
    assert compose(Gdp(0.4), BestOf((Gdp(0.3), Gdp(0.4)))) == best


@pytest.mark.parametrize("size, c", [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_group_privacy_of_renyi_curves(size, c):
    """Mironov 2017, Proposition 2: order alpha / 2^c at 3^c times the loss, orders alpha >= 2^(c +
    1)."""
    table = Rdp(
        orders=(2.0, 3.0, 4.0, 8.0, 16.0, 40.0), values=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    ).group(size)
    orders = (2.0, 3.0, 4.0, 8.0, 16.0, 40.0)
    kept = [
        (order / 2**c, 3**c * value)
        for order, value in zip(orders, (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), strict=True)
        if order >= 2 ** (c + 1)
    ]
    assert list(zip(table.orders, table.values, strict=True)) == [
        pytest.approx(pair) for pair in kept
    ]
    linear = Rdp.linear(0.01).group(size)
    for order in (1.5, 2.0, 3.3, 50.0):
        exact = 0.01 * size**2 * order
        assert exact * (1 - 1e-15) <= linear.rdp(order) <= exact * (1 + 1e-9)
    assert (
        Gdp(0.3).group(size).mu == pytest.approx(0.3 * size, rel=1e-9)
        and Gdp(0.3).group(size).mu >= 0.3 * size
    )


@pytest.mark.parametrize(
    "bad",
    [
        lambda: GdpMixture((), ()),
        lambda: GdpMixture((0.5, 0.5), (1.0,)),
        lambda: GdpMixture((1.5, -0.5), (1.0, 1.0)),
        lambda: GdpMixture((0.5, 0.5), (1.0, -1.0)),
        lambda: GdpMixture((0.5, 0.5), (math.nan, 1.0)),
        lambda: GdpMixture((1.0,), (1.0,)).rdp(1.0),
        lambda: GdpMixture((1.0,), (1.0,)).epsilon(1.0),
        lambda: GdpMixture((1.0,), (1.0,)).delta(-1e-3),
        lambda: Rdp(-0.1),
        lambda: Rdp(math.nan),
        lambda: Rdp(1.0, (2.0,), ()),
        lambda: Rdp(1.0, (2.0, 0.5), (0.1, 0.1)),
        lambda: Rdp.linear(1.0).epsilon(0.0),
        lambda: Rdp.linear(1.0).delta(math.nan),
        lambda: EpsDelta(-0.1, 0.0),
        lambda: EpsDelta(0.1, -0.1),
        lambda: EpsDelta(0.1, 1.1),
        lambda: EpsDelta(0.1, 0.1).epsilon(1.0),
        lambda: compose(EpsDelta(0.1, 0.1), Rdp.linear(1.0)),
        lambda: compose(Gdp(1.0), EpsDelta(0.1, 0.1)),
    ],
)
def test_more_bad_numbers_are_refused(bad):
    with pytest.raises(InputError):
        bad()


def test_a_stored_curve_has_fields_of_their_types() -> None:
    one = {"type": "Gdp", "mu": 1.0}
    for told in (
        one | {"mu": True},
        {"type": "Grouped", "curve": one, "size": 1e-3},
        {"type": "Grouped", "curve": one, "size": [1]},
        {"type": "Grouped", "curve": 1.0, "size": 2},
        {"type": "Rdp", "orders": [2.0], "values": [-5.0]},
        {"type": "Rdp", "orders": [2.0], "values": [math.nan]},
        {"type": "BestOf", "curves": one},
        {"type": "Pld", "rate": 0.1, "multipliers": [1.0], "counts": [math.nan]},
        {"type": "Selected", "curve": one, "runs": one},
    ):
        with pytest.raises(InputError, match=r"curve|size|values|counts"):
            curve_from_dict(told)
    runs = {"type": "NegativeBinomial", "shape": -0.5, "stop": 0.1}
    assert curve_from_dict({"type": "Selected", "curve": one, "runs": runs}).curve.mu == 1
