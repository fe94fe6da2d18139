"""Mechanisms whose two directions differ: the worse one counts, for several bounds, failures, groups
and exchanges."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from lastiterate.curves.curve import (
    LEAST_DELTA,
    TINY,
    BestOf,
    Curve,
    EpsDelta,
    Exchanged,
    Grouped,
    WithFailure,
    check_counts,
    check_delta,
    check_mixture,
    from_log,
    log_of,
    search_epsilon,
)
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.errors import InputError

EPSILONS = np.array([0.0, 0.1, 0.5, 0.58, 0.6, 1.2, 1.6, 4.0])
CLOSE = 1 + 1e-9


@dataclass(frozen=True)
class OneBit(Curve):
    """The exact curve of one released bit: it is 1 with probability ``p`` in the first data set and
    with probability ``q`` in the second."""

    p: float
    q: float

    def directions(self, epsilon):
        power = math.exp(min(epsilon, 700.0))  # both are 0 long before

        def one_way(p, q):
            return max(0.0, p - power * q) + max(0.0, 1 - p - power * (1 - q))

        return one_way(self.p, self.q), one_way(self.q, self.p)

    def delta(self, epsilon):
        return max(self.directions(epsilon))

    def epsilon(self, delta):
        return search_epsilon(self.delta, delta)

    def rdp(self, alpha):
        one, two = (
            math.log(p**alpha * q ** (1 - alpha) + (1 - p) ** alpha * (1 - q) ** (1 - alpha))
            for p, q in ((self.p, self.q), (self.q, self.p))
        )
        return max(one, two) / (alpha - 1)

    def group(self, size):
        return Grouped(self, size)


WIDE, NARROW = OneBit(0.9, 0.5), OneBit(0.5, 0.9)
BITS = (WIDE, NARROW, OneBit(0.3, 0.2), OneBit(0.65, 0.2))


def test_both_directions_of_a_bit():
    assert WIDE.directions(0.2) == NARROW.directions(0.2)[::-1]
    removed, added = WIDE.directions(1.0)
    assert removed == 0 and added == pytest.approx(0.5 - 0.1 * math.e)


@pytest.mark.parametrize("curve", BITS)
def test_profiles_and_logarithms_hold_both_directions(curve):
    profile, logs = curve.profile(EPSILONS), curve.log_profile(EPSILONS)
    assert profile.tolist() == [list(curve.directions(float(epsilon))) for epsilon in EPSILONS]
    expected = np.log(np.maximum(profile, TINY))
    assert np.all(logs >= expected) and np.all(logs <= expected + 1e-9)
    for epsilon, (one, two) in zip(EPSILONS, logs, strict=True):
        assert curve.log_delta(float(epsilon)) == pytest.approx(max(one, two), rel=1e-12)
    assert Gdp(0.5).directions(0.7) == (Gdp(0.5).delta(0.7), Gdp(0.5).delta(0.7))


def test_the_least_of_several_bounds_on_their_worse_direction():
    """Each bound has one number for both directions: which of them a bound is lower in does not
    say that the other one is."""
    best = BestOf((WIDE, Gdp(1.0), NARROW))
    parts = np.array([[part.delta(float(epsilon)) for part in best.curves] for epsilon in EPSILONS])
    least = parts.min(axis=1)
    assert len(set(parts.argmin(axis=1))) > 1
    np.testing.assert_array_equal(best.profile(EPSILONS), np.transpose([least, least]))
    logs = np.minimum(np.log(np.maximum(least, TINY)) + 2e-13, 0)
    np.testing.assert_allclose(best.log_profile(EPSILONS), np.transpose([logs, logs]), rtol=1e-12)
    assert [best.delta(float(epsilon)) for epsilon in EPSILONS] == least.tolist()
    for delta in (0.3, 0.01):
        assert best.epsilon(delta) == min(part.epsilon(delta) for part in best.curves)
    assert best.rdp(1.5) == min(part.rdp(1.5) for part in best.curves)
    assert best.replace_one_curve().curves[1] == Gdp(1.0).replace_one_curve()


@pytest.mark.parametrize("curve", BITS)
@pytest.mark.parametrize("failure", [0.0, 1e-9, 0.05, 0.75, 1.0])
def test_failures_add_to_both_directions(curve, failure):
    failing = WithFailure(curve, failure)
    pairs = [curve.directions(float(epsilon)) for epsilon in EPSILONS]
    wanted = np.minimum(np.array(pairs) + failure, 1)
    for found in (
        failing.profile(EPSILONS),
        np.array([failing.directions(float(epsilon)) for epsilon in EPSILONS]),
        np.exp(failing.log_profile(EPSILONS)),
    ):
        assert found.shape == wanted.shape and found.max() <= 1
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=2 * TINY)
        assert np.all(found >= wanted * (1 - 1e-15))
    deltas = np.array([failing.delta(float(epsilon)) for epsilon in EPSILONS])
    np.testing.assert_allclose(deltas, wanted.max(axis=1), rtol=1e-9)
    assert deltas.max() <= 1 and np.all(deltas >= wanted.max(axis=1))
    assert failing.rdp(1.5) == (curve.rdp(1.5) if failure == 0 else math.inf)
    assert failing.log_profile(EPSILONS).max() <= 0
    for delta in (0.8, 0.06, 1e-4):
        left = delta - failure
        assert failing.epsilon(delta) == (
            pytest.approx(curve.epsilon(left), rel=1e-6) if left > 0 else math.inf
        )
    assert failing.group(3) == Grouped(failing, 3)
    assert failing.replace_one_curve() == Exchanged(failing) and failing.coarser() == failing


@pytest.mark.parametrize("curve", BITS)
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_group_of_bits_in_its_worse_direction(curve, size):
    """delta(e) (1 + e^e + ... + e^((size - 1) e)) at the best e of at most epsilon / size."""
    grouped = Grouped(curve, size)
    for epsilon in (0.0, 0.4, 1.0, 1.7, 2.9, 5.0):
        parts = np.linspace(0, epsilon / size, 2001)
        powers = sum(np.exp(power * parts) for power in range(size))
        bounds = np.array([curve.delta(float(part)) for part in parts]) * powers
        found = grouped.delta(epsilon)
        assert min(1.0, bounds.min()) * (1 - 1e-6) <= found <= min(1.0, bounds[-1]) * CLOSE + 1e-300
        (pair,) = grouped.profile(np.array([epsilon])).tolist()
        assert pair == pytest.approx([found, found], rel=1e-9)
    assert Grouped(curve, size).group(2) == Grouped(curve, 2 * size)
    assert curve.replace_one_curve() == Grouped(curve, 2)


def best_split(curve, epsilon):
    """The least of removed(x) + e^x added(epsilon - x), on a grid."""
    x = np.linspace(0, epsilon, 4001)
    removed, added = curve.profile(x).T
    return min(1.0, float((removed + np.exp(x) * added[::-1]).min()))


@pytest.mark.parametrize("curve", BITS)
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.4, 1.0, 1.9, 2.15, 2.3, 3.5, 9.0])
def test_an_exchange_adds_up_two_directions_at_the_best_split(curve, epsilon):
    found, best = Exchanged(curve).delta(epsilon), best_split(curve, epsilon)
    assert best * (1 - 1e-9) <= found <= best * CLOSE + (4e-3 if best > 0 else 1e-300)
    (pair,) = Exchanged(curve).profile(np.array([epsilon])).tolist()
    assert pair == pytest.approx([found, found], rel=1e-9)


@pytest.mark.parametrize("p", [0.55, 0.7, 0.9])
def test_an_exchange_of_records_that_pull_to_opposite_sides(p):
    """A bit of probability p against 1 - p; without either record it is fair."""
    curve = Exchanged(OneBit(p, 0.5))
    for epsilon in (0.0, 0.2, 0.7, 1.5, 2.0):
        assert OneBit(p, 1 - p).delta(epsilon) <= curve.delta(epsilon)


def test_logarithms_of_deltas():
    assert log_of(np.array([0.0, 1.0])).tolist() == [-math.inf, 0.0]
    for delta in (TINY, LEAST_DELTA, 1e-9, 0.3):
        found = float(log_of(np.array([delta]))[0])
        assert math.log(delta) < found <= math.log(delta) + 1e-9
        assert delta <= from_log(math.log(delta)) <= delta * CLOSE
    assert from_log(-math.inf) == 0 and from_log(-5000.0) == TINY
    assert from_log(0.0) == from_log(0.5) == from_log(2.0) == from_log(5000.0) == 1


@pytest.mark.parametrize(
    "at, delta, epsilon, value",
    [
        (1.0, 0.25, 1.0, 0.25),
        (1.0, 0.25, 7.0, 0.25),
        (1.0, 0.0, 1.0, 0.0),
        (1.0, 1.0, 0.5, 1.0),
        (1.0, 1.0, 3.0, 1.0),
        (1.0, 0.25, 0.0, 1 - 2 * 0.75 / (1 + math.e)),
        (0.6, 0.125, 0.4, 1 - (1 + math.exp(0.4)) * 0.875 / (1 + math.exp(0.6))),
        (900.0, 0.5, 2.0, 1.0),
    ],
)
def test_the_delta_of_a_point(at, delta, epsilon, value):
    """What two tests of equal errors (1 - delta) / (1 + e^at) allow below the point."""
    curve = EpsDelta(at, delta)
    found = curve.delta(epsilon)
    assert value * (1 - 1e-15) <= found <= min(1.0, value * CLOSE)
    assert value == 0 or found == value or epsilon < at
    logs = curve.log_profile(np.array([epsilon]))
    assert logs.tolist() == [[pytest.approx(math.log(value) if value else -math.inf, abs=1e-9)] * 2]


@pytest.mark.parametrize(
    "at, delta, order, divergence",
    [
        (0.5, 0.0, 1.5, 0.1875),
        (0.5, 0.0, 4.0, 0.5),
        (0.5, 0.0, 9.0, 0.5),
        (3.0, 0.0, 1.01, 3.0),
        (0.5, 1e-300, 1.5, math.inf),
        (0.5, 1.0, 1.5, math.inf),
    ],
)
def test_the_divergence_of_a_point(at, delta, order, divergence):
    assert divergence <= EpsDelta(at, delta).rdp(order) <= divergence * CLOSE


def test_the_group_of_a_point_is_a_point():
    for at, delta, size in ((0.5, 0.0, 3), (0.5, 1e-3, 3), (0.25, 0.125, 2), (2.0, 0.5, 2)):
        found = EpsDelta(at, delta).group(size)
        powers = sum(math.exp(power * at) for power in range(size))
        assert size * at <= found.at_epsilon <= size * at * CLOSE
        assert min(1.0, delta * powers) <= found.at_delta <= min(1.0, delta * powers) * CLOSE


@pytest.mark.parametrize("delta", [-0.1, 1.1, math.nan])
def test_points_of_no_probability_are_refused(delta):
    with pytest.raises(InputError, match="delta"):
        EpsDelta(1.0, delta)
    for epsilon in (-0.5, math.nan):
        with pytest.raises(InputError, match="epsilon"):
            EpsDelta(epsilon, 0.1)
    assert EpsDelta(0.0, 1.0).epsilon(0.5) == math.inf and EpsDelta(0.5, 0.3).epsilon(0.3) == 0.5


@pytest.mark.parametrize(
    "counts, values, least",
    [
        ((), (), 1),
        ((1,), (), 1),
        ((1,), (1.0, 2.0), 1),
        ((0,), (1.0,), 1),
        ((5, 0), (1.0, 1.0), 1),
        ((-1, 5), (1.0, 1.0), 1),
        ((1, 1), (1.0, 1.0), 3),
        ((), (1.0,), 0),
        ((1, 1), (-1e-9, 1.0), 1),
        ((1, 1), (1.0, -1.0), 1),
        ((1, 1), (1.0, math.nan), 1),
    ],
)
def test_counts_without_their_values_are_refused(counts, values, least):
    with pytest.raises(InputError):
        check_counts(counts, values, "value", least=least)


def test_counts_with_their_values_are_accepted():
    check_counts((1,), (0.0,), "value")
    check_counts((1, 7), (0.5, math.inf), "value")
    check_counts((1, 1, 2), (0.0, 0.0, 3.0), "value", least=3)
    check_counts((), (), "value", least=0)


@pytest.mark.parametrize(
    "weights, values",
    [
        ((), ()),
        ((1.0,), ()),
        ((1.0,), (1.0, 1.0)),
        ((0.5, 0.5), (1.0,)),
        ((-0.5, 1.5), (1.0, 1.0)),
        ((1.5, -0.5), (1.0, 1.0)),
        ((0.5, 0.4), (1.0, 1.0)),
        ((0.5, 0.6), (1.0, 1.0)),
        ((1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_weights_that_are_no_probabilities_are_refused(weights, values):
    with pytest.raises(InputError, match="weights"):
        check_mixture(weights, values)


def test_weights_that_are_probabilities_are_accepted():
    check_mixture((1.0,), (3.0,))
    check_mixture((0.0, 0.25, 0.75), (1.0, 2.0, 3.0))
    assert GdpMixture((0.1,) * 10, (1.0,) * 10).delta(0.5) == pytest.approx(Gdp(1.0).delta(0.5))


def test_deltas_outside_their_range_are_refused():
    for delta in (-1.0, 0.0, 1.0, 1.5, 2.0, math.nan, LEAST_DELTA / 2):
        with pytest.raises(InputError, match="delta"):
            check_delta(delta)
    for delta in (LEAST_DELTA, 1e-9, 0.5, 1 - 1e-16):
        check_delta(delta)
