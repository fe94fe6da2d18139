"""Statistics of audits: coverage on mechanisms of known epsilon, the published caps, and what is
refused."""

from math import comb

import numpy as np
import pytest
from scipy.special import expit, ndtr

from lastiterate.audit.statistics import (
    CombinedBounds,
    Counts,
    epsilon_at,
    epsilon_lower,
    find_ceiling,
    gaussian_epsilon,
    mu_at,
    mu_lower,
    one_run_epsilon,
    one_run_p_value,
    rate_upper,
    refutes,
    require_statement,
)
from lastiterate.curves.curve import EpsDelta
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.errors import InputError

REPETITIONS = 2000
FAILURE = 0.05
# a correct bound misses at most FAILURE of the time; four standard errors of 2,000 repetitions on
# top
MOST_MISSES = FAILURE + 4 * np.sqrt(FAILURE * (1 - FAILURE) / REPETITIONS)


def drawn(fpr, fnr, trials, seed):
    rng = np.random.default_rng(seed)
    size = REPETITIONS
    return Counts(rng.binomial(trials, fpr, size), trials, rng.binomial(trials, fnr, size), trials)


@pytest.mark.parametrize("rate", [0.0, 0.003, 0.2, 0.5, 0.97])
@pytest.mark.parametrize("trials", [30, 1000])
def test_rates_are_covered(rate, trials):
    errors = np.random.default_rng(1).binomial(trials, rate, REPETITIONS)
    assert (rate_upper(errors, trials, FAILURE) < rate).mean() <= MOST_MISSES


def test_a_rate_bound_is_clopper_and_pearsons():
    # the bound is the p at which P[Bin(n, p) <= k] = failure: here 1 - 0.05^(1/10), and the
    # binomial sum by hand
    assert rate_upper(0, 10, 0.05) == pytest.approx(1 - 0.05 ** (1 / 10), rel=1e-6)
    p = float(rate_upper(2, 10, 0.05))
    assert (1 - p) ** 10 + 10 * p * (1 - p) ** 9 + 45 * p**2 * (1 - p) ** 8 == pytest.approx(
        0.05, rel=1e-6
    )
    assert rate_upper(10, 10, 0.05) == 1


@pytest.mark.parametrize("epsilon,delta", [(0.0, 0.0), (0.5, 0.0), (1.0, 0.05), (3.0, 1e-5)])
@pytest.mark.parametrize("trials", [100, 2000])
def test_epsilon_is_covered_on_the_extreme_mechanism(epsilon, delta, trials):
    """With probability delta the record is named, else randomised response of parameter epsilon."""
    lie = (1 - delta) * expit(-epsilon)
    lower = epsilon_lower(drawn(lie, lie, trials, 2), delta, FAILURE)
    assert (lower > epsilon).mean() <= MOST_MISSES
    if trials == 2000 and epsilon >= 0.5:
        assert np.median(lower) > 0.5 * epsilon, "and is not empty"


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_the_second_direction_counts(epsilon):
    """A mechanism that names the record's absence: the other inequality is the sharp one."""
    fpr, fnr = 0.3, 1 - 0.3 * np.exp(epsilon)
    if fnr < 0:
        fpr, fnr = 0.1, 1 - 0.1 * np.exp(epsilon)
    assert epsilon_at(fpr, fnr, 0.0) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_at(fnr, fpr, 0.0) == pytest.approx(epsilon, rel=1e-6)
    assert epsilon_at(0.7, 0.6, 0.0) == 0


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 2.5])
def test_mu_is_covered(mu):
    rate = ndtr(-mu / 2)
    lower = mu_lower(drawn(rate, rate, 2000, 3), FAILURE)
    assert (lower > mu).mean() <= MOST_MISSES
    assert np.median(lower) > mu - 0.2


def test_mu_is_the_same_at_every_threshold_of_a_gaussian_pair():
    z = np.linspace(-3, 3, 13)
    assert mu_at(ndtr(-z), ndtr(z - 1.3)) == pytest.approx(1.3, rel=1e-8)
    assert mu_at(0.0, 0.5) == np.inf and mu_at(1.0, 0.3) == 0 and mu_at(1.0, 0.0) == 0


def test_many_thresholds_share_one_budget():
    """Ten thresholds on noise: the largest of ten statements is wrong no more often than one alone."""
    rng = np.random.default_rng(4)
    wrong = single = 0
    for _ in range(300):
        scores = rng.normal(size=(2, 500))
        counts = tuple(
            Counts(int((scores[1] > t).sum()), 500, int((scores[0] <= t).sum()), 500)
            for t in np.linspace(-2, 2, 10)
        )
        wrong += CombinedBounds(counts, 0.2).epsilon(0.0) > 0
        single += max(float(epsilon_lower(c, 0.0, 0.2)) for c in counts) > 0
    assert wrong <= 0.2 * 300 + 4 * np.sqrt(0.16 * 300)
    assert single > wrong, "without the split there are more"


@pytest.mark.parametrize("trials,epsilon", [(100, 3.28), (500, 4.91), (1000, 5.60), (2000, 6.29)])
def test_caps_are_the_known_ones(trials, epsilon):
    assert find_ceiling(trials, 0.05, 1e-5) == pytest.approx(epsilon, abs=0.005)
    perfect = Counts(0, trials, 0, trials)
    assert find_ceiling(trials, 0.05, 1e-5) == CombinedBounds((perfect,), 0.05).epsilon(1e-5)
    assert find_ceiling(trials, 0.05, 1e-5, thresholds=3) < find_ceiling(trials, 0.05, 1e-5)


def test_a_curve_is_refuted_exactly_where_the_rates_leave_its_region():
    for mu in (0.3, 1.0, 3.0):
        for z in (-1.0, 0.0, 1.5):
            fpr = float(ndtr(-z - mu / 2))
            fnr = float(ndtr(z - mu / 2))
            assert refutes(Gdp(mu * 1.001), fpr, fnr) is None
            found = refutes(Gdp(mu * 0.97), fpr, fnr)
            assert found is not None
            worst = max(1 - np.exp(found) * fpr - fnr, 1 - fpr - np.exp(found) * fnr)
            assert worst > Gdp(mu * 0.97).delta(found), "the epsilon named is a counterexample"
    assert refutes(EpsDelta(1.0, 1e-5), 0.3, 0.3 * 0.9) is None
    assert refutes(EpsDelta(0.5, 1e-5), 0.3, 0.3) is not None
    assert refutes(GdpMixture((0.5, 0.5), (1.0, 2.0)), 0.24, 0.24) is None
    assert refutes(GdpMixture((0.5, 0.5), (1.0, 2.0)), 0.1, 0.1) is not None


def test_a_gaussian_epsilon_is_rounded_down():
    assert 0 < Gdp(0.7).epsilon(1e-5) - gaussian_epsilon(0.7, 1e-5) < 1e-6
    assert gaussian_epsilon(0.0, 1e-5) == 0


@pytest.mark.parametrize(
    "right,delta,epsilon", [(600, 1e-5, 0.297), (1000, 1e-5, 5.782), (1000, 0.0, 5.809)]
)
def test_one_run_has_the_known_values(right, delta, epsilon):
    assert one_run_epsilon(right, 1000, 1000, delta, 0.05) == pytest.approx(epsilon, abs=6e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("guesses", [40, 1000])
def test_one_run_is_covered_on_randomised_response(epsilon, guesses):
    right = np.random.default_rng(5).binomial(guesses, expit(epsilon), REPETITIONS)
    values = {v: one_run_epsilon(v, guesses, 1000, 0.0, FAILURE) for v in set(right.tolist())}
    lower = np.array([values[v] for v in right.tolist()])
    assert (lower > epsilon).mean() <= MOST_MISSES
    assert guesses < 1000 or np.median(lower) > epsilon - 0.25


def test_one_run_is_covered_where_delta_names_records():
    """m records; with probability m delta all of them are named at once, else randomised response."""
    m, delta, epsilon, rng = 100, 1e-3, 0.5, np.random.default_rng(6)
    named = rng.random(REPETITIONS) < m * delta
    right = np.where(named, m, rng.binomial(m, expit(epsilon), REPETITIONS))
    values = {v: one_run_epsilon(v, m, m, delta, 0.2) for v in set(right.tolist())}
    assert np.mean([values[v] > epsilon for v in right.tolist()]) <= 0.2 + 4 * np.sqrt(
        0.16 / REPETITIONS
    )
    blind = {v: one_run_epsilon(v, m, m, 0.0, 0.05) for v in set(right.tolist())}
    assert np.mean([blind[v] > epsilon for v in right.tolist()]) > 0.05, (
        "without the delta term it is not"
    )


@pytest.mark.parametrize("right,guesses,records", [(1, 1, 1), (7, 9, 12), (0, 5, 5), (12, 12, 40)])
def test_one_run_p_values_are_the_published_formula(right, guesses, records):
    for epsilon, delta in ((0.3, 0.01), (1.0, 0.0), (2.0, 0.002)):
        q = expit(epsilon)
        mass = [comb(guesses, w) * q**w * (1 - q) ** (guesses - w) for w in range(guesses + 1)]
        near = [sum(mass[max(right - i, 0) : right]) / i for i in range(1, records + 1)]
        exact = min(1.0, sum(mass[right:]) + 2 * records * delta * max(near))
        assert one_run_p_value(right, guesses, records, epsilon, delta) == pytest.approx(
            exact, rel=1e-6
        )


def test_one_run_p_values_grow_with_epsilon():
    grid = np.linspace(0, 6, 200)
    for right in (520, 700, 990):
        values = np.array([one_run_p_value(right, 1000, 1200, float(e), 1e-5) for e in grid])
        small = values < 0.3
        assert (np.diff(values[small]) >= -1e-12).all()


@pytest.mark.parametrize(
    "call,words",
    [
        (lambda: require_statement(3, 0.05, 1e-5), "trials are too few for any statement"),
        (lambda: require_statement(1000, 0.05, 0.9999), "delta is above what the trials resolve"),
        (lambda: require_statement(1000, 1.5, 1e-5), "failure must lie strictly between 0 and 1"),
        (lambda: one_run_epsilon(11, 10, 10, 0.0, 0.05), "correct <= guesses <= records"),
    ],
)
def test_what_cannot_be_said_is_refused(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_least_number_of_trials_is_told_and_suffices():
    with pytest.raises(InputError, match="take at least 7 models") as _:
        require_statement(3, 0.05, 0.0)
    require_statement(7, 0.05, 0.0)
