"""Curves against 60-digit arithmetic, published conversions and their own laws."""

import math
import tomllib
from pathlib import Path

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curve import BestOf, EpsDelta, Gdp, GdpMixture, Rdp, compose, curve_from_dict, rdp_epsilon
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
            assert true_delta(epsilon, mu) <= delta, "epsilon must lie on the side where the guarantee holds"
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
    mironov = row["slope"] + 2 * math.sqrt(row["slope"] * log)  # min over alpha of slope alpha + log/(alpha - 1)
    assert mironov == pytest.approx(row["mironov"], abs=1e-3)
    assert Rdp.linear(row["slope"]).epsilon(row["delta"]) == pytest.approx(row["improved"], abs=1e-4)


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
    assert curve.rdp(1.5) == 0.1 and curve.rdp(2.0) == 0.1 and curve.rdp(3.0) == 0.4 and curve.rdp(9.0) == math.inf
    by_hand = min(rdp_epsilon(np.array([2.0, 8.0]), np.array([0.1, 0.4]), 1e-5))
    assert curve.epsilon(1e-5) == by_hand


def test_mixture():
    one = GdpMixture((1.0,), (0.7,))
    assert one.epsilon(1e-6) == pytest.approx(Gdp(0.7).epsilon(1e-6), rel=1e-9)
    two = GdpMixture((0.25, 0.75), (2.0, 0.5))
    for epsilon in (0.0, 0.5, 2.0):
        expected = 0.25 * Gdp(2.0).delta(epsilon) + 0.75 * Gdp(0.5).delta(epsilon)
        assert two.delta(epsilon) == pytest.approx(expected, rel=1e-9) and two.delta(epsilon) >= expected * (1 - 1e-15)
    assert two.delta(two.epsilon(1e-7)) <= 1e-7
    expected = math.log(0.25 * math.exp(2 * 3 * 4 / 2) + 0.75 * math.exp(2 * 3 * 0.25 / 2)) / 2
    assert two.rdp(3.0) == pytest.approx(expected, rel=1e-9)
    lost = GdpMixture((0.01, 0.99), (math.inf, 0.1))
    assert lost.epsilon(0.005) == math.inf and lost.delta(1.0) >= 0.01 and math.isfinite(lost.epsilon(0.02))
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
    assert GdpMixture((0.5, 0.5), (0.1, 0.3)).group(2).mu == pytest.approx(0.6, rel=1e-9)
    pure = EpsDelta(0.5, 1e-6).group(2)
    assert pure.at_epsilon == pytest.approx(1.0) and pure.at_delta == pytest.approx(1e-6 * (1 + math.exp(0.5)))
    grouped = Rdp.linear(0.01).group(2)  # order alpha/2 at 3 times the loss of order alpha (Mironov, Proposition 2)
    assert grouped.rdp(4.0) == pytest.approx(3 * 0.08, rel=0.03) and grouped.rdp(4.0) >= 3 * 0.08 * (1 - 1e-12)


def test_point_guarantee_below_its_epsilon():
    # randomised response is exactly (e0, 0)-DP: its delta at e < e0 is (e^e0 - e^e) / (1 + e^e0)
    e0 = 1.2
    for e in (0.0, 0.5, 1.0):
        assert EpsDelta(e0, 0.0).delta(e) == pytest.approx((math.exp(e0) - math.exp(e)) / (1 + math.exp(e0)))


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
