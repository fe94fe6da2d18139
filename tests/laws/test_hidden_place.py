"""The pair of a record whose place nobody sees: exact events, rounded down."""

import math

import numpy as np
import pytest

from lastiterate.curves.gdp import Gdp
from lastiterate.curves.lower_bound import HiddenPlace
from lastiterate.errors import InputError
from oracles.gaussian import hidden_place_delta

PAIRS = [
    ((1.0,), (0.8,)),
    ((0.3, 0.7), (0.2, 1.5)),
    ((0.5, 0.5), (0.0, 2.0)),
    ((0.05, 0.9, 0.05), (0.01, 0.02, 5.0)),
    ((0.2, 0.8), (0.003, 0.001)),
    ((0.6, 0.4), (4.0, 9.0)),
]


@pytest.mark.parametrize("weights, mus", PAIRS)
def test_delta_is_exact_and_rounded_down(weights, mus):
    curve = HiddenPlace(weights, mus)
    for epsilon in (0.0, 1e-3, 0.3, 1.0, 4.0):
        exact = hidden_place_delta(epsilon, weights, mus)
        assert exact * (1 - 1e-6) - 3e-8 <= curve.delta(epsilon) <= exact + 3e-8


def test_one_place_is_a_gaussian_pair():
    for mu in (1e-4, 0.3, 2.0, 12.0):
        for epsilon in (0.0, 0.2, 3.0):
            exact = Gdp(mu).delta(epsilon)
            found = HiddenPlace((1.0,), (mu,)).delta(epsilon)
            assert exact * (1 - 1e-8) - 1e-13 <= found <= exact
        for delta in (0.3, 1e-3, 1e-8):
            exact, found = Gdp(mu).epsilon(delta), HiddenPlace((1.0,), (mu,)).epsilon(delta)
            assert found <= exact
            if exact < 8:  # beyond, rounding of e^epsilon times a tail is allowed for
                assert found >= exact * (1 - 1e-5) - 1e-9


@pytest.mark.parametrize("weights, mus", PAIRS)
def test_epsilon_is_one_that_the_pair_exceeds(weights, mus):
    curve = HiddenPlace(weights, mus)
    for delta in (0.1, 1e-3, 1e-6):
        found = curve.epsilon(delta)
        if found > 0:
            assert curve.delta(found) >= delta * (1 - 1e-8) and curve.delta(found * (1 + 1e-6)) < delta
        else:
            assert curve.delta(0.0) <= delta * (1 + 1e-8)


def test_both_directions_and_the_edges():
    """With half of the mass at 0 the likelihood ratio stays above 1/2: beyond log 2 only one direction is left."""
    curve = HiddenPlace((0.5, 0.5), (0.0, 30.0))
    assert curve.delta(0.0) == pytest.approx(0.5, rel=1e-6) and curve.delta(1.0) == pytest.approx(0.5, rel=1e-6)
    rare = HiddenPlace((0.99, 0.01), (0.0, 3.0))
    back = HiddenPlace((0.01, 0.99), (0.0, 3.0))
    for pair in (rare, back):
        x = np.linspace(-12, 18, 600_001)
        p = sum(w * np.exp(-((x - m) ** 2) / 2) for w, m in zip(pair.weights, pair.mus, strict=True))
        q = np.exp(-(x**2) / 2)
        h = (x[1] - x[0]) / math.sqrt(2 * math.pi)
        both = [np.maximum(p - math.exp(0.5) * q, 0).sum() * h, np.maximum(q - math.exp(0.5) * p, 0).sum() * h]
        assert pair.delta(0.5) == pytest.approx(max(both), rel=1e-5)
        assert abs(both[0] - both[1]) > 1e-4, "the two directions differ"
    silent = HiddenPlace((0.5, 0.5), (0.0, 0.0))
    assert silent.delta(0.0) == 0 and silent.delta(1.0) == 0 and silent.epsilon(1e-9) == 0
    nothing = HiddenPlace((0.5, 0.5), (1.0, math.inf))
    assert nothing.epsilon(1e-3) == 0 and nothing.delta(0.1) == 0, "no statement"
    many = HiddenPlace((0.2,) * 5, (0.7, 0.7, 0.7, 0.0, 0.0))
    assert many.delta(0.3) == pytest.approx(HiddenPlace((0.6, 0.4), (0.7, 0.0)).delta(0.3), rel=1e-12)
    assert curve.delta(900.0) == 0
    unused = HiddenPlace((0.0, 1.0), (5.0, 0.5))
    assert unused.delta(0.1) == pytest.approx(Gdp(0.5).delta(0.1), rel=1e-7)


@pytest.mark.parametrize(
    "bad",
    [
        lambda c: c.epsilon(0.0),
        lambda c: c.epsilon(1.0),
        lambda c: c.epsilon(1.5),
        lambda c: c.rdp(2.0),
        lambda c: c.group(2),
    ],
)
def test_what_is_no_lower_bound_is_refused(bad):
    with pytest.raises(InputError):
        bad(HiddenPlace((1.0,), (1.0,)))
