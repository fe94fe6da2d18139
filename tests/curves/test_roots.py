"""The search for where a falling function turns: by halves, in a bracket, and from a start."""

import math

import numpy as np
import pytest

from lastiterate.curves.curve import search_epsilon
from lastiterate.curves.gaussian import Gdp, GdpMixture, bound_epsilon
from lastiterate.curves.roots import (
    _narrow_bracket,
    find_falling_root,
    first_within,
    smallest_true,
)

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


# The points of a search, one by one: what is computed today, so that no change passes unnoticed.


def decay(x):
    return 5 * (math.exp(-x) - 0.3)


def jump(at, before=1.0, after=-1.0):
    return lambda x: before if x < at else after


# (function, start, slope, options), the points asked, and the root with its slope
SEARCHES = {
    "both signs, then a bracket": (
        (decay, 0.0, 2.0, {}),
        [0.0, 1.750001, 1.482645618, 1.342691584, 1.208517909, 1.19919545],
        (1.208517909, 1.50017963),
    ),
    "aims at the middle of what is enough": (
        (decay, 3.0, 2.0, {"enough": 0.2}),
        [3.0, 2.424466671, -1.842637375, 2.293207317, 2.173997955, 1.964162263],
        (1.964162263, 8.107720067),
    ),
    "steps half longer each time": (
        (decay, -3.0, 400.0, {"longest": 0.1, "tries": 9}),
        [-3.0, -2.9, -2.75, -2.525, -2.1875, -1.68125, -0.921875, 0.2171875, 1.92578125],
        (1.92578125, 1.928536913),
    ),
    "steps to the left": (
        (decay, 5.0, 2.0, {"longest": 0.25, "enough": 0.5, "tries": 8}),
        [5.0, 4.75, 4.375, 3.8125, 2.96875, 1.703125, -0.1953125, 1.578433579],
        (1.578433579, 2.845370168),
    ),
    "up to the farthest point": ((jump(10), 0.0, 0.01, {"farthest": 7.0}), [0.0, 4.0, 7.0], None),
    "down to the farthest point": (
        (jump(-10), 0.0, 0.01, {"farthest": 7.0}),
        [0.0, -4.0, -7.0],
        (-7.0, 0.01),
    ),
    "where it rises the slope stays as it was": (
        (lambda x: 3 + x if x < 0 else 1 - x, -2.0, 3.0, {}),
        [-2.0, -1.666665667, -0.999997, 0.5000075, 2.187478813, 1.0],
        (1.0, 1.0),
    ),
    "a start that is near enough": (
        (lambda x: -0.4 - x, 0.0, 3.0, {"enough": 0.5}),
        [0.0],
        (0.0, 3.0),
    ),
    "a start that is just too far": (
        (lambda x: -0.5 - x, 0.0, 2.0, {"enough": 0.5, "tries": 2}),
        [0.0, -0.125001],
        (-0.125001, 1.0),
    ),
    "a start on the root": ((lambda x: -x, 0.0, 3.0, {"enough": 0.5}), [0.0], (0.0, 3.0)),
    "one try above": ((lambda x: 2 - x, 0.0, 3.0, {"tries": 1}), [0.0], None),
    "one try below": ((lambda x: -2 - x, 1.0, 3.0, {"tries": 1}), [1.0], (1.0, 3.0)),
    "two tries": (
        (lambda x: -2 - x, 1.0, 3.0, {"tries": 2, "enough": 0.1}),
        [1.0, 0.016665667],
        (0.016665667, 1.0),
    ),
    "steep beyond": (
        (lambda x: 4 - x**3, 0.5, 3.0, {"tries": 7, "enough": 0.1}),
        [0.5, 1.808334333, 1.387157975, 1.566421865, 1.610312595, 1.593704223],
        (1.593704223, 7.48998375),
    ),
}


@pytest.mark.parametrize("case", SEARCHES)
def test_points_of_a_search(case):
    (excess, start, slope, options), points, root = SEARCHES[case]
    asked = []
    given = {"enough": 0.0, "tries": 6, "longest": 4.0, "farthest": 60.0, "least": 1e-6} | options
    found = find_falling_root(lambda x: asked.append(x) or excess(x), start, slope, **given)
    assert asked == pytest.approx(points, rel=1e-7, abs=1e-9)
    if root is None or found is None:
        assert found is root
        return
    assert (found.at, found.slope) == pytest.approx(root, rel=1e-7)


# (function, ends, options) and the points asked
BRACKETS = {
    "secants": (
        (decay, 0.0, 4.0, {}),
        [
            2.852240609,
            2.118858019,
            1.399691599,
            1.072786215,
            1.216920902,
            1.204805263,
            1.20325632,
            1.203973103,
        ],
    ),
    "relative": (
        (decay, 0.0, 4.0, {"relative": 0.01, "absolute": 0.0}),
        [2.852240609, 2.118858019, 1.399691599, 1.072786215, 1.216920902, 1.204805263, 1.198781237],
    ),
    "relative and absolute": (
        (decay, 0.0, 4.0, {"relative": 0.05, "absolute": 0.02}),
        [2.852240609, 2.118858019, 1.399691599, 1.072786215, 1.216920902, 1.17649788],
    ),
    "enough": (
        (decay, 0.0, 4.0, {"enough": 0.2}),
        [2.933733198, 2.230971264, 1.50804715, 1.137394362, 1.28912191],
    ),
    "little is enough": (
        (decay, 0.0, 4.0, {"enough": 0.02, "absolute": 1e-12}),
        [2.860389868, 2.129924263, 1.410163522, 1.078846238, 1.223929637, 1.211518849],
    ),
    "three tries": ((decay, 0.0, 4.0, {"tries": 3}), [2.852240609, 2.118858019, 1.399691599]),
    "half a tolerance from either end": ((decay, -5.0, 1.5, {"absolute": 0.4}), [1.3, 1.1]),
    "a line": ((lambda x: 1 - x, 0.0, 3.0, {}), [1.0, 0.9995]),
    "a root next to the low end": ((lambda x: 1e-6 - x, 0.0, 8.0, {}), [0.0005]),
    "a line, coarsely": ((lambda x: 1 - x, 0.0, 3.0, {"absolute": 0.5}), [1.0, 0.75]),
    "a cliff on the right": (
        (lambda x: 14.0 if x < 6.8 else 6.9 - x, 0.0, 8.0, {}),
        [7.417218543, 7.15295835, 6.903487658, 6.896615362, 6.9, 6.8995],
    ),
    "a cliff on the left": (
        (lambda x: 0.1 - x if x < 1.2 else -14.0, 0.0, 8.0, {}),
        [0.056737589, 0.08120802, 0.102409643, 0.1, 0.0995],
    ),
    "secants that are too slow from the left": (
        (jump(6.8, 1e-3), 0.0, 8.0, {"tries": 9}),
        [
            0.007992008,
            0.015976032,
            0.031912208,
            0.063657577,
            4.031828789,
            4.094319674,
            4.215426041,
            4.443069587,
            4.846692896,
        ],
    ),
    "secants that are too slow from the right": (
        (jump(0.8, 1.0, -1e-3), 0.0, 8.0, {"tries": 9}),
        [
            7.992007992,
            7.984023968,
            7.968087792,
            7.936342423,
            3.968171211,
            3.905680326,
            3.784573959,
            3.556930413,
            3.153307104,
        ],
    ),
    "halves where it is infinite": (
        (jump(3.3, math.inf, -math.inf), 0.0, 8.0, {"tries": 6}),
        [4.0, 2.0, 3.0, 3.5, 3.25, 3.375],
    ),
    "halves where one side is infinite": (
        (lambda x: math.inf if x < 3.3 else 3.3 - x, 0.0, 8.0, {"tries": 6}),
        [4.0, 2.0, 3.0, 3.5, 3.25, 3.375],
    ),
    "no double between the ends": (
        (lambda x: 2 if x < 5 else 5 - x, 4.0, 6.0, {"absolute": 1e-300}),
        [5.333333333, 5.142857143, 5.0],
    ),
    "narrow enough": ((decay, 1.2035, 1.2044, {}), []),
    "near enough": ((decay, 1.0, 1.3, {"enough": 1.0}), []),
}


@pytest.mark.parametrize("case", BRACKETS)
def test_points_of_a_bracket(case):
    """The last ends were seen, one above 0 and one not, and no point between them."""
    (excess, start, end, options), points = BRACKETS[case]
    asked = []
    given = {"absolute": 1e-3} | options
    low, high = _narrow_bracket(
        lambda x: asked.append(x) or excess(x), (start, excess(start)), (end, excess(end)), **given
    )
    assert asked == pytest.approx(points, rel=1e-7)
    seen = [start, *asked, end]
    assert low == (max(x for x in seen if excess(x) > 0), excess(low[0]))
    assert high == (min(x for x in seen if excess(x) <= 0), excess(high[0]))


def test_slopes_are_those_of_the_last_bracket():
    for enough, least in ((0.0, 1e-3), (0.05, 1e-9), (0.0, 0.3)):
        asked = []
        found = find_falling_root(
            lambda x, asked=asked: asked.append(x) or decay(x),
            -0.7,
            2.0,
            enough=enough,
            tries=60,
            longest=4.0,
            farthest=60.0,
            least=least,
        )
        low, high = max(x for x in asked if decay(x) > 0), min(x for x in asked if decay(x) <= 0)
        assert found.at == high
        assert found.slope == pytest.approx((decay(low) - decay(high)) / (high - low), rel=1e-9)
        assert high - low <= least or decay(high) > -enough


def test_smallest_true_takes_as_many_halves_as_the_tolerance_needs():
    asked = []
    found = smallest_true(lambda x: asked.append(x) or x >= 0.7, 0.0, 1.0, 1e-3)
    assert asked[:5] == [0.0, 1.0, 0.5, 0.75, 0.625]
    assert 0.7 <= found <= 0.7 * (1 + 1e-3) and len(asked) == 2 + 11
    assert smallest_true(lambda x: x >= 0.7, 0.7, 1.0) == 0.7


@pytest.mark.parametrize(
    ("level", "low", "high", "expected"),
    [
        (0.0, 0.0, 8.0, 1.0),  # no logarithm of the level
        (1e-305, 0.0, 8.0, 1.0),
        (0.25, 0.0, 8.0, 0.75),
        (0.25, 0.75, 8.0, 0.75),  # at the low end
        (0.25, 0.9, 8.0, 0.9),
        (0.25, 0.0, 0.7, math.inf),  # less than e times the level at either end, and above it
        (0.25, 0.7, 0.7499999, math.inf),
        (0.0, 0.0, 1 - 1e-12, math.inf),
    ],
)
def test_first_within_a_level(level, low, high, expected):
    def values(x):
        return max(0.0, 1 - x)

    found = first_within(values, level, low, high)
    assert found == pytest.approx(expected, rel=1e-11)
    assert found == math.inf or values(found) <= level


def test_values_that_differ_by_less_than_a_logarithm_shows():
    """Below 1e-300, and by one digit of the last: above the level is above."""
    for before, level, after in (
        (1e-304, 1e-305, 1e-306),
        (math.nextafter(0.3, 1), 0.3, 0.3),
        (3e-301, 2e-301, 2e-301),
    ):
        found = first_within(jump(0.6, before, after), level, 0.0, 1.0)
        assert 0.6 <= found <= 0.6 * (1 + 1e-12)
        assert first_within(jump(0.6, before, after), level, 0.0, 0.5) == math.inf


def test_what_is_no_number_is_within_no_level():
    assert first_within(lambda x: math.nan, 1e-6, 0.0, 1.0) == math.inf
    assert search_epsilon(lambda epsilon: math.nan, 1e-6) == math.inf
    found = first_within(lambda x: math.nan if x < 0.5 else 0.0, 1e-6, 0.0, 1.0)
    assert 0.5 <= found <= 0.5 * (1 + 1e-11)
