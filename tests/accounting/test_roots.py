"""The search for roots of falling functions that are costly to evaluate."""

import math

import pytest

from lastiterate.accounting.roots import falling_root

SHAPES = {
    "line": lambda x: 3 - 20 * x,
    "parabola": lambda x: 4 - (x + 2) ** 2 if x > -2 else 4 + x + 2,
    "flat, then steep": lambda x: min(14.0, 1 - 40 * x),
    "steep, then flat": lambda x: max(-30 * x, -2 - x / 10),
    "steps": lambda x: math.floor(10 - 50 * x) / 3 + 0.1,
}
ROOTS = {"line": 0.15, "parabola": 0.0, "flat, then steep": 0.025, "steep, then flat": 0.0, "steps": 0.2}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("start", [-3.0, 0.1, 2.0])
@pytest.mark.parametrize("slope", [5.0, 20.0, 100.0])
def test_roots_are_met_from_the_side_that_holds(shape, start, slope):
    asked = []

    def excess(x):
        asked.append(x)
        return SHAPES[shape](x)

    found = falling_root(excess, start, slope, tolerance=1e-3, tries=60, longest=1.0)
    assert found.at in asked and SHAPES[shape](found.at) <= 0
    assert ROOTS[shape] - 1e-12 <= found.at <= ROOTS[shape] + 1e-3
    assert len(asked) < 40 and found.slope > 0


def test_near_a_root_every_question_gains_digits():
    asked = []
    found = falling_root(lambda x: asked.append(x) or 5 * (math.exp(-x) - 0.3), 0.0, 2.0, tolerance=1e-9, tries=60,
                         longest=4.0)
    assert found.at == pytest.approx(-math.log(0.3), abs=1e-7) and len(asked) <= 10


def test_a_line_takes_three_evaluations_and_no_root_is_none():
    asked = []
    found = falling_root(lambda x: asked.append(x) or -20 * x, -0.1, 15.0, tolerance=1e-3, tries=9, longest=1.0)
    assert len(asked) <= 4 and found.slope == pytest.approx(20)
    assert falling_root(lambda x: 1.0, 0.0, 20.0, tolerance=1e-3, tries=9, longest=1.0) is None
