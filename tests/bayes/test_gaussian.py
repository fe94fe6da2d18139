"""Divergences between Gaussians against integrals."""

import math

import numpy as np
import pytest

from lastiterate.bayes.linear import log_part, renyi
from lastiterate.curves.gaussian import Gdp
from tests.bayes.gaussian_pairs import delta_between, epsilon_between, renyi_matrix

PAIRS = [
    (0.0, 1.0, 0.3, 1.0),
    (0.0, 1.0, 0.5, 1.7),
    (1.0, 2.0, 0.2, 1.1),
    (0.0, 1.0, 0.0, 2.5),
    (3.0, 0.4, -1.0, 0.1),
]


def densities(m1, v1, m2, v2):
    x = np.linspace(-60, 60, 1_200_001)
    return x, *(
        -((x - m) ** 2) / (2 * v) - math.log(2 * math.pi * v) / 2 for m, v in ((m1, v1), (m2, v2))
    )


@pytest.mark.parametrize("pair", PAIRS)
def test_renyi_is_the_integral(pair):
    m1, v1, m2, v2 = pair
    x, p, q = densities(*pair)
    for order in (1.2, 1.9, 3.0):
        found = renyi(order, m1, 1 / v1, m2, 1 / v2)
        if order / v1 - (order - 1) / v2 <= 0:
            assert found == math.inf
            continue
        exact = math.log(np.trapezoid(np.exp(order * p + (1 - order) * q), x)) / (order - 1)
        assert found == pytest.approx(exact, rel=1e-9)
        matrix = renyi_matrix(
            order, np.array([m1]), np.array([[1 / v1]]), np.array([m2]), np.array([[1 / v2]])
        )
        assert matrix == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("pair", PAIRS)
def test_delta_is_the_integral(pair):
    x, p, q = densities(*pair)
    for epsilon in (0.0, 0.2, 1.0, 4.0):
        exact = np.trapezoid(np.maximum(np.exp(p) - np.exp(epsilon + q), 0), x)
        assert delta_between(epsilon, *pair) == pytest.approx(exact, rel=1e-6, abs=1e-12)


def test_equal_variances_are_the_gaussian_curve():
    for mu in (0.1, 1.0, 4.0):
        for epsilon in (0.0, 0.5, 3.0):
            assert delta_between(epsilon, mu, 1.0, 0.0, 1.0) == pytest.approx(
                Gdp(mu).delta(epsilon), rel=1e-9
            )
        assert epsilon_between(1e-6, 0.0, 2.0, mu * math.sqrt(2), 2.0) == pytest.approx(
            Gdp(mu).epsilon(1e-6), rel=1e-7
        )
    assert epsilon_between(0.9, 0.0, 1.0, 0.1, 1.0) == 0


def test_matrices_in_a_rotated_frame():
    """Independent coordinates add up, and a rotation of both laws changes nothing."""
    rng = np.random.default_rng(0)
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    m1, m2 = rng.normal(size=3), rng.normal(size=3)
    a1, a2 = rng.uniform(1, 2, 3), rng.uniform(1, 2, 3)
    order = 1.8
    apart = sum(renyi(order, *each) for each in zip(m1, a1, m2, a2, strict=True))
    found = renyi_matrix(
        order, turn @ m1, turn @ np.diag(a1) @ turn.T, turn @ m2, turn @ np.diag(a2) @ turn.T
    )
    assert found == pytest.approx(apart, rel=1e-10)
    assert renyi_matrix(9.0, m1, np.eye(3), m2, 2 * np.eye(3)) == math.inf


def test_log_part_moves_as_its_docstring_says():
    t = np.linspace(-0.9, 0.45, 400)
    values = log_part(3.0, t)
    assert (
        (np.diff(values[t <= 0]) < 0).all()
        and (np.diff(values[t >= 0]) > 0).all()
        and abs(values).min() < 1e-5
    )
