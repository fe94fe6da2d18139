"""The least certified multiple of the noise: bisection's own answer, with few questions, and never one that was not
seen to be certified."""

import math

import pytest

from lastiterate.accounting.least_factor import NEARLY, bisected, excess_of, least_factor

FALLING = {
    "Gaussian": lambda f: 3.0 - 2 * math.log(f),
    "curved": lambda f: 20 / (1 + f) - 1.3,
    "needs little": lambda f: -1 - math.log(f) if f > 1e-7 else 5.0,
    "a jump": lambda f: 1.0 if f < 17.3 else -2.0,
    "flat, then steep": lambda f: 14.0 if f < 900 else 7 - math.log(f / 1000),
}


@pytest.mark.parametrize("shape", FALLING)
def test_it_is_the_factor_that_bisection_finds_in_fewer_questions(shape):
    asked, plain = [], []
    found = least_factor(lambda f: asked.append(f) or FALLING[shape](f))
    assert found == bisected(lambda f: plain.append(f) or FALLING[shape](f) <= 0)
    assert FALLING[shape](found) <= 0 < FALLING[shape](found / NEARLY) and found in asked
    assert len(asked) < 1.3 * len(plain) if "jump" in shape or "flat" in shape else len(asked) < 0.75 * len(plain)


def test_a_bound_that_grows_with_the_noise_is_asked_about_everywhere():
    """A jump back, where what was seen on the way would call 100 certified."""
    def excess(f):
        return -1.0 if 2.0 < f < 3.0 or f > 500 else 1.0

    found = least_factor(excess)
    assert excess(found) <= 0 < excess(found / NEARLY)


def test_what_no_noise_reaches_is_none():
    asked = []
    assert least_factor(lambda f: asked.append(f) or 0.5) is None
    assert len(asked) <= 40 and max(asked) <= 1.01 * 4.0**40


@pytest.mark.parametrize("delta", [1e-5, 1e-300, 0.4])
def test_the_sign_of_an_excess_is_exact(delta):
    assert excess_of(delta, delta) <= 0 < excess_of(math.nextafter(delta, 1), delta)
    assert excess_of(0.0, delta) <= 0 < excess_of(1.0, delta)
