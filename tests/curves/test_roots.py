"""The search for where a falling function turns: by halves, in a bracket, and from a start."""

import math

import numpy as np
import pytest

from lastiterate.curves.gaussian import Gdp, GdpMixture, bound_epsilon
from lastiterate.curves.roots import find_falling_root, first_within, smallest_true

BOUNDS = {"farthest": 60.0, "least": 1e-7}
SHAPES = {
    "line": lambda x: 3 - 20 * x,
    "parabola": lambda x: 4 - (x + 2) ** 2 if x > -2 else 4 + x + 2,
    "flat, then steep": lambda x: min(14.0, 1 - 40 * x),
    "steep, then flat": lambda x: max(-30 * x, -2 - x / 10),
    "steps": lambda x: math.floor(10 - 50 * x) / 3 + 0.1,
}
ROOTS = {
    "line": 0.15,
    "parabola": 0.0,
    "flat, then steep": 0.025,
    "steep, then flat": 0.0,
    "steps": 0.2,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", [-3.0, 0.1, 2.0])
@pytest.mark.parametrize("slope", [5.0, 20.0, 100.0])
def test_roots_are_met_from_the_side_that_holds(shape, start, slope):
    asked = []

    def excess(x):
        asked.append(x)
        return SHAPES[shape](x)

    found = find_falling_root(excess, start, slope, enough=1e-3, tries=60, longest=1.0, **BOUNDS)
    assert found.at in asked and SHAPES[shape](found.at) <= 0
    assert ROOTS[shape] - 1e-12 <= found.at <= ROOTS[shape] + 1e-3
    assert len(asked) < 40 and found.slope > 0


def test_near_a_root_every_question_gains_digits():
    asked = []
    found = find_falling_root(
        lambda x: asked.append(x) or 5 * (math.exp(-x) - 0.3),
        0.0,
        2.0,
        enough=1e-9,
        tries=60,
        longest=4.0,
        **BOUNDS,
    )
    assert found.at == pytest.approx(-math.log(0.3), abs=1e-7) and len(asked) <= 10


def test_a_line_takes_three_evaluations_and_no_root_is_none():
    asked = []
    found = find_falling_root(
        lambda x: asked.append(x) or -20 * x,
        -0.1,
        15.0,
        enough=1e-3,
        tries=9,
        longest=1.0,
        **BOUNDS,
    )
    assert len(asked) <= 4 and found.slope == pytest.approx(20)
    assert (
        find_falling_root(lambda x: 1.0, 0.0, 20.0, enough=1e-3, tries=9, longest=1.0, **BOUNDS)
        is None
    )


FALLING = {
    "Gaussian": lambda x: 3.0 - 2 * x,
    "curved": lambda x: 20 / (1 + math.exp(x)) - 1.3,
    "needs little": lambda x: -1 - x if x > -16 else 5.0,
    "a jump": lambda x: 1.0 if x < 2.85 else -2.0,
    "flat, then steep": lambda x: 14.0 if x < 6.8 else 6.9 - x,
}


def exactly(excess):
    return find_falling_root(
        excess, 0.0, 2.0, enough=0.0, tries=400, longest=4.0, farthest=55.0, least=9e-7
    )


@pytest.mark.parametrize("shape", FALLING)
def test_without_a_level_that_is_enough_both_ends_are_seen(shape):
    asked = []
    found = exactly(lambda x: asked.append(x) or FALLING[shape](x)).at
    halves = smallest_true(lambda x: FALLING[shape](x) <= 0, -55.0, 55.0, 1e-15)
    assert found in asked and FALLING[shape](found) <= 0 < FALLING[shape](found - 1e-6)
    assert halves - 1e-12 <= found <= halves + 9e-7
    assert len(asked) < (45 if "jump" in shape or "flat" in shape else 16)


def test_where_it_rises_again_what_is_found_still_holds():
    def excess(x):
        return -1.0 if 0.7 < x < 1.1 or x > 6.2 else 1.0

    found = exactly(excess).at
    assert excess(found) <= 0 < excess(found - 1e-6)


@pytest.mark.parametrize("holds", [False, True])
def test_no_point_lies_beyond_the_farthest(holds):
    asked = []
    found = exactly(lambda x: asked.append(x) or (-0.5 if holds else 0.5))
    assert found.at == -55.0 if holds else found is None
    assert len(asked) <= 15 and max(map(abs, asked)) == 55.0


RNG = np.random.default_rng(7)
CASES = [(math.exp(RNG.uniform(-3, 4)), 10 ** RNG.uniform(-12, -0.1)) for _ in range(40)]
CURVES = [Gdp(1.0), GdpMixture((0.01, 0.99), (1.0, 0.02))]


def scaled(curve, mu):
    return (
        Gdp(mu)
        if isinstance(curve, Gdp)
        else GdpMixture(curve.weights, tuple(mu * m for m in curve.mus))
    )


@pytest.mark.parametrize("tolerance", [1e-12, 1e-9])
@pytest.mark.parametrize("curve", CURVES, ids=["one", "mixture"])
def test_it_finds_what_bisection_finds_in_a_third_of_its_steps(curve, tolerance):
    steps = {"here": 0, "there": 0}
    for mu, delta in CASES:
        law, high = scaled(curve, mu), bound_epsilon(mu, delta)

        def values(epsilon, who="here", law=law):
            steps[who] += 1
            return law.delta(epsilon)

        found = first_within(values, delta, 0.0, high, tolerance)
        by_halves = smallest_true(
            lambda e, v=values, d=delta: v(e, "there") <= d, 0.0, high, tolerance
        )
        assert found == by_halves == 0 or law.delta(found) <= delta
        # delta itself is not smooth to 1e-12 where mu is small
        assert found == pytest.approx(by_halves, rel=2e-9, abs=0)
    assert steps["here"] < 0.45 * steps["there"]


def step(epsilon):
    return 1.0 if epsilon < 0.123 else 1e-9


def flat_then_cliff(epsilon):
    return math.exp(-epsilon * 1e-3) if epsilon < 5 else 0.0


@pytest.mark.parametrize(
    ("values", "level", "turn"),
    [
        (step, 1e-6, 0.123),
        (flat_then_cliff, 0.5, 5.0),
        (lambda e: max(0.0, 1 - e), 1e-3, 0.999),
        (lambda e: 0.0 if e else 1.0, 0.5, 0.0),
        (lambda e: 0.5, 0.5, 0.0),
    ],
)
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


@pytest.mark.parametrize("high", [0.1, 16.0])
def test_where_nothing_holds_no_point_is_named(high):
    assert smallest_true(lambda x: False, 0.0, high) == math.inf
    assert first_within(lambda x: 1.0 + 1 / (1 + x), 1.0, 0.0, high) == math.inf
    assert smallest_true(lambda x: x >= high, 0.0, high) == high
