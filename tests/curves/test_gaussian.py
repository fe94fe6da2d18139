"""Gaussian mechanisms and mixtures of them: deltas, logarithms, Renyi divergences and groups against
60 digits, in every branch."""

import math

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves.curve import LEAST_DELTA, TINY, BestOf, Exchanged, Grouped
from lastiterate.curves.gaussian import (
    Gdp,
    GdpMixture,
    bound_epsilon,
    compose_known_steps,
    delta_of_draw,
    gdp_delta,
    gdp_log_delta,
    log_sum_exp,
)
from lastiterate.errors import InputError

TIGHT = 1 + 1e-9


def exact_delta(epsilon, mu):
    """delta of N(mu, 1) against N(0, 1), as a number of 60 digits; 0 and 1 for mu of 0 and
    infinity."""
    if mu == 0 or math.isinf(mu):
        return mp.mpf(0 if mu == 0 else 1)
    with mp.workdps(60):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)


MUS = np.array([0.01, 0.3, 0.8, 1.0, 2.0, 7.0, 60.0])


@pytest.mark.parametrize("epsilon", [0.0, 0.02, 0.35, 0.5, 1.6, 2.0, 9.0, 24.5, 300.0])
def test_delta_is_rounded_up_on_both_sides_of_the_mean_loss(epsilon):
    """The formula changes at a loss of mu^2 / 2, which are 0.5, 2 and 24.5 here, and a few lie
    within one standard deviation above."""
    found = gdp_delta(epsilon, MUS)
    for delta, mu in zip(found, MUS, strict=True):
        exact = exact_delta(epsilon, mu)
        assert exact <= delta <= exact * TIGHT + 3 * TINY, mu
    single = [Gdp(float(mu)).delta(epsilon) for mu in MUS]
    np.testing.assert_allclose(found, single, rtol=1e-12)


def test_delta_has_a_value_where_doubles_overflow():
    found = gdp_delta(1e300, np.array([1e-300, 1.0, 1e155]))
    assert found[:2].tolist() == [TINY, TINY] and found[2] == 1
    found = gdp_delta(2.0, np.array([1e-200, 1e-5, 1.0]))
    assert found[:2].tolist() == [TINY, TINY]
    assert found[2] == pytest.approx(float(exact_delta(2.0, 1.0)), rel=1e-9)
    assert gdp_delta(1.0, np.zeros(0)).size == 0
    assert gdp_delta(0.0, np.array([1e3])).tolist() == [1.0]


@pytest.mark.parametrize(
    "epsilon, mu",
    [
        (0.1, 1.0),
        (1.0, 1.0),
        (3.0, 0.1),
        (3.7, 0.1),
        (4.2, 0.1),
        (7.5, 0.1),
        (90.0, 1.0),
        (9000.0, 3.0),
        (2900.0, 70.0),
    ],
)
def test_log_delta_has_the_same_precision_where_delta_has_none(epsilon, mu):
    """Between 30 and 3000 standard deviations of the loss."""
    with mp.workdps(60):
        e, m = mp.mpf(epsilon), mp.mpf(mu)
        a = m / 2 - e / m
        first, second = (mp.erfc(x / mp.sqrt(2)) / 2 for x in (-a, m - a))
        exact = mp.log(first - mp.exp(e) * second)
    found = float(gdp_log_delta(epsilon, np.array([mu]))[0])
    assert exact <= found <= exact + mp.mpf("1e-9") * (1 + abs(exact))


def test_log_delta_beyond_all_doubles():
    """A logarithm of -10^300 is above the exact one, and finite; what the code said."""
    found = gdp_log_delta(1e160, np.array([1.0, 2.0]))
    assert found == pytest.approx([-5e299, -5e299], rel=1e-9)
    assert gdp_log_delta(1e140, np.array([1.0])) == pytest.approx([-5e279], rel=1e-9)
    assert gdp_log_delta(0.0, np.array([1e3])).tolist() == [0.0]


def exact_draw(loss, q, mu):
    """delta of q N(2 mu) + (1 - q) N(0) against q N(mu) + (1 - q) N(0): the tails from the point on
    at which the densities have the ratio e^loss."""
    e, q, m = mp.exp(mp.mpf(loss)), mp.mpf(q), mp.mpf(mu)
    a, b, c = q * mp.exp(-2 * m * m), q * e * mp.exp(-m * m / 2), (1 - q) * (e - 1)
    at = mp.log((b + mp.sqrt(b * b + 4 * a * c)) / (2 * a)) / m
    far, near, none = (mp.erfc((at - mean) / mp.sqrt(2)) / 2 for mean in (2 * m, m, 0))
    return q * far + (1 - q) * none - e * (q * near + (1 - q) * none)


@pytest.mark.parametrize("q", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("mu", [0.1, 0.9, 2.5, 20.0])
def test_a_draw_replaced_by_one_of_twice_the_size(q, mu):
    losses = np.array([0.0, 0.05, 0.6, 3.0, 12.0, 150.0, 299.0, 301.0, 470.0])
    found = delta_of_draw(losses, q, mu)
    with mp.workdps(400):
        for loss, delta in zip(losses, found, strict=True):
            exact = exact_draw(float(loss), q, mu)
            assert exact <= delta + 1e-300, loss
            assert delta <= min(exact * TIGHT + mp.mpf(q) * mp.mpf("1e-14"), q), loss
            if exact > 1e-290 and exact < 0.1 * q:
                assert delta <= exact * (1 + mp.mpf("1e-6"))


def test_losses_beyond_300_of_records_that_are_hardly_ever_drawn():
    """Both terms under the root count, and neither square overflows."""
    loss, q, mu = 300.5, 1e-176, 10.5
    with mp.workdps(400):
        exact, found = exact_draw(loss, q, mu), float(delta_of_draw(np.array([loss]), q, mu)[0])
        assert 1e-300 < exact <= found <= exact * TIGHT


def test_a_certain_draw_is_a_gaussian_mechanism():
    losses = np.array([0.0, 0.3, 0.5, 2.0, 30.0])
    for mu in (0.2, 1.0, 5.0):
        exact = [Gdp(mu).delta(float(loss)) for loss in losses]
        np.testing.assert_allclose(delta_of_draw(losses, 1.0, mu), exact, rtol=1e-9, atol=1e-14)
    assert delta_of_draw(np.zeros(1), 0.25, 100.0).tolist() == [0.25]


def test_sums_of_exponentials():
    assert log_sum_exp(np.array([0.0, math.log(2.0), math.log(4.0)])) == pytest.approx(math.log(7))
    for large in (-1e6, 1e6):
        assert log_sum_exp(np.array([large, large - 1.0])) == large + math.log1p(math.exp(-1))
        assert log_sum_exp(np.array([large, large - 5e3])) == large
    assert log_sum_exp(np.array([-math.inf, -math.inf])) == -math.inf
    assert log_sum_exp(np.array([1.0, math.inf])) == math.inf


@pytest.mark.parametrize("mu, delta", [(0.0, 0.0), (math.inf, 1.0)])
def test_no_signal_and_no_noise(mu, delta):
    epsilons, log_delta = np.array([0.0, 0.5, 3.0]), -math.inf if mu == 0 else 0.0
    curve = Gdp(mu)
    assert curve.profile(epsilons).tolist() == [[delta, delta]] * 3
    assert curve.log_profile(epsilons).tolist() == [[log_delta, log_delta]] * 3
    assert [curve.delta(float(epsilon)) for epsilon in epsilons] == [delta] * 3
    assert curve.epsilon(1e-6) == (0 if mu == 0 else math.inf)
    for alike in (GdpMixture((1.0,), (mu,)), GdpMixture((0.25, 0.75), (mu, mu))):
        assert alike.profile(epsilons).tolist() == [[delta, delta]] * 3
        assert alike.log_profile(epsilons).tolist() == [[log_delta, log_delta]] * 3
        assert alike.epsilon(0.999) == (0 if mu == 0 else math.inf)
        assert alike.rdp(3.0) == pytest.approx(0 if mu == 0 else math.inf, abs=1e-11)


@pytest.mark.parametrize("mu", [0.05, 0.6, 1.0, 1.5, 8.0])
def test_profiles_are_the_curve_at_every_point(mu):
    epsilons = np.array([0.0, 0.4, 1.0, 12.0])
    curve = Gdp(mu)
    deltas = [curve.delta(float(epsilon)) for epsilon in epsilons]
    np.testing.assert_allclose(curve.profile(epsilons), np.transpose([deltas] * 2), rtol=1e-12)
    logs = [float(gdp_log_delta(float(epsilon), np.array([mu]))[0]) for epsilon in epsilons]
    np.testing.assert_allclose(
        curve.log_profile(epsilons), np.transpose([logs] * 2), rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("mu", [1e-3, 0.05, 0.4, 1.0, 6.0])
def test_divergence_and_group_of_a_gaussian(mu):
    for order in (1.1, 1.7, 2.0, 30.0):
        assert order * mu**2 / 2 <= Gdp(mu).rdp(order) <= order * mu**2 / 2 * TIGHT
    for size in (1, 2, 5):
        assert size * mu <= Gdp(mu).group(size).mu <= size * mu * TIGHT
    assert Gdp(mu).replace_one_curve() == Gdp(mu).group(2)


@pytest.mark.parametrize("delta", [0.9, 0.5, 0.05, 1e-5, 1e-30, LEAST_DELTA])
@pytest.mark.parametrize("mu", [1e-3, 0.7, 1.0, 3.0, 40.0])
def test_a_search_begins_above_its_result(delta, mu):
    """epsilon = mu^2 / 2 + mu sqrt(2 log(1/delta)), from zero-concentrated privacy, holds."""
    with mp.workdps(60):
        exact = mp.mpf(mu) ** 2 / 2 + mu * mp.sqrt(-2 * mp.log(delta))
    found = bound_epsilon(mu, delta)
    assert exact <= found <= exact * TIGHT + 2e-6 * mu
    assert exact_delta(found, mu) <= delta
    assert Gdp(mu).epsilon(delta) <= found
    assert exact_delta(Gdp(mu).epsilon(delta), mu) <= delta


@pytest.mark.parametrize(
    "multipliers, counts, mu, total",
    [
        ((2.0,), (3,), 0.0, 0.75),
        ((0.5, 2.0), (1, 8), 0.0, 6.0),
        ((0.5, 2.0), (1, 8), 3.0, 15.0),
        ((10.0, 1.0, 4.0), (100, 1, 16), 0.5, 3.25),
        ((1.0, 0.0), (2, 1), 1.0, math.inf),
        ((0.0, 1.0), (2, 1), 1.0, math.inf),
    ],
)
def test_known_batches_add_up_squares(multipliers, counts, mu, total):
    found = compose_known_steps(multipliers, counts, mu).mu
    assert math.sqrt(total) <= found <= math.sqrt(total) * TIGHT


MIXTURES = [
    ((1.0,), (0.7,)),
    ((0.25, 0.75), (2.0, 0.5)),
    ((0.2, 0.3, 0.5), (0.0, 0.4, 1.5)),
    ((0.0, 0.4, 0.6), (50.0, 0.8, 3.0)),
    ((0.0, 0.4, 0.6), (math.inf, 0.8, 0.0)),
    ((0.01, 0.3, 0.69), (math.inf, 2.5, 0.6)),
    ((0.125, 0.125, 0.75), (math.inf, math.inf, 0.0)),
]
EPSILONS = np.array([0.0, 0.02, 0.7, 2.0, 6.5])


@pytest.mark.parametrize("weights, mus", MIXTURES)
def test_a_mixture_is_the_mean_of_its_deltas(weights, mus):
    curve = GdpMixture(weights, mus)
    profile, logs = curve.profile(EPSILONS), curve.log_profile(EPSILONS)
    assert profile.shape == logs.shape == (EPSILONS.size, 2)
    for epsilon, pair, log_pair in zip(EPSILONS, profile, logs, strict=True):
        exact = sum(
            mp.mpf(weight) * exact_delta(float(epsilon), mu)
            for weight, mu in zip(weights, mus, strict=True)
        )
        found = curve.delta(float(epsilon))
        assert exact <= found <= exact * TIGHT + 3 * TINY
        assert pair.tolist() == pytest.approx([found, found], rel=1e-12)
        for log_delta in log_pair.tolist():
            assert mp.log(exact) <= log_delta <= mp.log(exact) + mp.mpf("1e-9")


def test_deltas_of_a_mixture_are_at_most_one():
    curve = GdpMixture((0.5, 0.5), (math.inf, 100.0))
    assert curve.delta(0.0) == 1 and curve.profile(np.zeros(2)).tolist() == [[1.0, 1.0]] * 2
    assert curve.log_profile(np.zeros(2)).tolist() == [[0.0, 0.0]] * 2
    far = GdpMixture((0.5, 0.5), (0.0, 1.0)).log_delta(300.0)
    assert far == pytest.approx(Gdp(1.0).log_delta(300.0) - math.log(2), rel=1e-9)


@pytest.mark.parametrize("weights, mus", MIXTURES)
@pytest.mark.parametrize("delta", [0.6, 0.2, 0.010001, 1e-5, 1e-30])
def test_the_epsilon_of_a_mixture_is_where_its_delta_is(weights, mus, delta):
    curve = GdpMixture(weights, mus)
    epsilon, lost = curve.epsilon(delta), sum(np.array(weights)[np.isinf(mus)])
    assert math.isinf(epsilon) == (lost >= delta)
    if math.isfinite(epsilon):
        assert curve.delta(epsilon) <= delta
        assert epsilon == 0 or curve.delta(epsilon * (1 - 1e-6)) > delta


def test_an_epsilon_at_the_weight_without_noise_is_infinite():
    curve = GdpMixture((0.25, 0.75), (math.inf, 1.0))
    assert curve.epsilon(0.25) == curve.epsilon(0.2) == math.inf
    assert curve.epsilon(0.2500001) < 10
    assert GdpMixture((0.25, 0.75), (math.inf, 0.0)).epsilon(0.26) == 0


@pytest.mark.parametrize(
    "weights, mus",
    [
        ((0.25, 0.75), (2.0, 0.5)),
        ((0.5, 0.5), (0.0, 1.5)),
        ((0.2, 0.3, 0.5), (0.0, 0.4, 1.2)),
        ((0.0, 1.0), (math.inf, 0.7)),
        ((0.5, 0.5), (0.1, 0.2)),
    ],
)
@pytest.mark.parametrize("order", [1.01, 1.5, 2.0, 2.5, 7.0])
def test_the_divergence_of_a_mixture(weights, mus, order):
    """log of the mean of exp(order (order - 1) mu^2 / 2), over order - 1."""
    pairs = [(w, mu) for w, mu in zip(weights, mus, strict=True) if w > 0]
    with mp.workdps(60):
        mean = sum(w * mp.exp(mp.mpf(order) * (order - 1) * mp.mpf(mu) ** 2 / 2) for w, mu in pairs)
        exact = mp.log(mean) / (order - 1)
    assert exact <= GdpMixture(weights, mus).rdp(order) <= exact * TIGHT + 2e-12 / (order - 1)


def test_the_divergence_is_infinite_without_noise():
    assert GdpMixture((0.1, 0.9), (math.inf, 1.0)).rdp(1.5) == math.inf
    for order in (1.0, 0.5):
        with pytest.raises(InputError, match="alpha"):
            GdpMixture((1.0,), (1.0,)).rdp(order)


def test_groups_and_exchanges_of_a_mixture():
    curve = GdpMixture((0.5, 0.25, 0.25), (0.1, 0.6, 0.0))
    assert curve.group(1) is curve
    for size in (2, 3):
        worst, walked = curve.group(size).curves
        assert 0.6 * size <= worst.mu <= 0.6 * size * TIGHT and walked == Grouped(curve, size)
    assert curve.replace_one_curve() == BestOf((curve.group(2), Exchanged(curve)))


@pytest.mark.parametrize(
    "weights, mus",
    [((0.5, 0.5), (-1.0, 1.0)), ((0.5, 0.5), (1.0, -1e-9)), ((0.5, 0.5), (1.0, math.nan))],
)
def test_mixtures_of_negative_sizes_are_refused(weights, mus):
    with pytest.raises(InputError, match="mus"):
        GdpMixture(weights, mus)
    assert GdpMixture(weights, (0.0, 0.5)).mus == (0.0, 0.5)
