"""A curve with a probability of failure against pairs whose divergence is known exactly."""

import math

import numpy as np
import pytest

from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import WithFailure
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.errors import InputError


def flagged(mu, failure, epsilon):
    """Exact delta of releasing (N(mu, 1), 0), or with probability ``failure`` a flag that only one
    neighbour can show, against (N(0, 1), 0): the worst mechanism with this curve."""
    # P[A] - e^eps Q[A], with A the flag and every x beyond the threshold, P = (1 - failure) N(mu,
    # 1) + failure flag
    grid = np.linspace(-12, 12, 480_001)
    p = (1 - failure) * np.exp(-((grid - mu) ** 2) / 2) / math.sqrt(2 * math.pi)
    q = np.exp(-(grid**2) / 2) / math.sqrt(2 * math.pi)
    return failure + float(np.maximum(p - math.exp(epsilon) * q, 0).sum() * (grid[1] - grid[0]))


@pytest.mark.parametrize("mu", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("failure", [0.0, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_delta_lies_above_a_mechanism_that_shows_a_flag(mu, failure, epsilon):
    exact = flagged(mu, failure, epsilon)
    bound = WithFailure(Gdp(mu), failure).delta(epsilon)
    assert exact <= bound * (1 + 1e-6) + 1e-12
    assert bound <= exact + failure + 1e-8, (
        "no more than one failure is charged beyond the worst mechanism"
    )
    assert failure == 0 or exact > Gdp(mu).delta(epsilon), "and it cannot be left out"


def test_epsilon_is_a_confirmed_point_and_infinite_below_the_failure():
    curve = WithFailure(Gdp(1.0), 1e-6)
    assert curve.epsilon(1e-6) == math.inf == curve.epsilon(5e-7)
    assert curve.delta(curve.epsilon(1e-5)) <= 1e-5
    assert curve.epsilon(1e-5) == pytest.approx(Gdp(1.0).epsilon(9e-6), rel=1e-6)
    assert curve.rdp(2.0) == math.inf and WithFailure(Gdp(1.0), 0.0).rdp(2.0) == Gdp(1.0).rdp(2.0)


def test_composition_adds_failures_and_composes_what_is_left():
    one, two = WithFailure(Gdp(0.6), 1e-4), WithFailure(GdpMixture((0.5, 0.5), (0.8, 0.0)), 1e-5)
    both = compose(one, two)
    assert isinstance(both, WithFailure) and both.failure == pytest.approx(1.1e-4)
    assert isinstance(both.curve, GdpMixture) and both.curve.mus == pytest.approx((1.0, 0.6))
    assert compose(one, Gdp(0.8)).delta(0.3) == pytest.approx(Gdp(1.0).delta(0.3) + 1e-4)
    assert compose(Gdp(0.8), one) == compose(one, Gdp(0.8))


def test_groups_and_json():
    curve = WithFailure(Gdp(0.5), 1e-6)
    # two records apart: delta_2(2 e) <= delta(e) (1 + e^e), the failure included
    assert curve.group(2).delta(1.0) == pytest.approx(
        curve.delta(0.5) * (1 + math.exp(0.5)), rel=1e-9
    )
    assert curve.group(2).epsilon(1e-5) >= Gdp(1.0).epsilon(1e-5)
    assert curve_from_dict(curve.to_dict()) == curve
    for bad in (-1e-9, 1.5, math.nan):
        with pytest.raises(InputError, match="failure must be a probability"):
            WithFailure(Gdp(1.0), bad)
