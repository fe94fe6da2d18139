"""The search for an epsilon, against bisection."""

import math

import numpy as np
import pytest

from lastiterate.curves.gdp import Gdp, ceiling
from lastiterate.curves.mixtures import GdpMixture
from lastiterate.curves.tails import first_within, smallest_true

RNG = np.random.default_rng(7)
CASES = [(math.exp(RNG.uniform(-3, 4)), 10 ** RNG.uniform(-12, -0.1)) for _ in range(40)]
CURVES = [Gdp(1.0), GdpMixture((0.01, 0.99), (1.0, 0.02))]


def scaled(curve, mu):
    return Gdp(mu) if isinstance(curve, Gdp) else GdpMixture(curve.weights, tuple(mu * m for m in curve.mus))


@pytest.mark.parametrize("tolerance", [1e-12, 1e-9])
@pytest.mark.parametrize("curve", CURVES, ids=["one", "mixture"])
def test_it_finds_what_bisection_finds_in_a_third_of_its_steps(curve, tolerance):
    steps = {"here": 0, "there": 0}
    for mu, delta in CASES:
        law, high = scaled(curve, mu), ceiling(mu, delta)

        def values(epsilon, who="here", law=law):
            steps[who] += 1
            return law.delta(epsilon)

        found = first_within(values, delta, 0.0, high, tolerance)
        by_halves = smallest_true(lambda e, v=values, d=delta: v(e, "there") <= d, 0.0, high, tolerance)
        assert found == by_halves == 0 or law.delta(found) <= delta
        # delta itself is not smooth to 1e-12 where mu is small
        assert found == pytest.approx(by_halves, rel=2e-9, abs=0)
    assert steps["here"] < 0.45 * steps["there"]


def step(epsilon):
    return 1.0 if epsilon < 0.123 else 1e-9


def flat_then_cliff(epsilon):
    return math.exp(-epsilon * 1e-3) if epsilon < 5 else 0.0


@pytest.mark.parametrize(("values", "level", "turn"), [
    (step, 1e-6, 0.123),
    (flat_then_cliff, 0.5, 5.0),
    (lambda e: max(0.0, 1 - e), 1e-3, 0.999),
    (lambda e: 0.0 if e else 1.0, 0.5, 0.0),
    (lambda e: 0.5, 0.5, 0.0),
])
def test_falls_that_no_secant_follows(values, level, turn):
    steps = []

    def counted(epsilon):
        steps.append(epsilon)
        return values(epsilon)

    found = first_within(counted, level, 0.0, 16.0, 1e-9)
    assert values(found) <= level and turn <= found <= turn * (1 + 2e-9) + 1e-290
    assert len(steps) < (150 if turn else 4500), "at worst four times as many as halves"


def test_no_point_is_taken_on_trust():
    """What rounding lifts above the level is never the answer, wherever it lies."""
    def values(epsilon):
        return math.exp(-epsilon) * (1 + 1e-7 * math.sin(1e9 * epsilon))

    for level in np.geomspace(0.9, 1e-6, 50):
        assert values(first_within(values, float(level), 0.0, 64.0)) <= level
