"""Rounding keeps masses and means, and every law dominates the exact one in convex order."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from lastiterate.curves import ratio_grid
from lastiterate.curves.ratio_grid import first_nodes, lognormal, mean_of_copies, mean_of_two


def call(level, a):
    """E[(Y - level)_+], Y = exp(a x - a^2/2)."""
    return ndtr(a / 2 - math.log(level) / a) - level * ndtr(-a / 2 - math.log(level) / a)


def tail(law, level):
    return float((law.mass * np.maximum(law.value - level, 0)).sum()) + law.lost


@pytest.mark.parametrize("a", [1e-3, 0.2, 1.0, 5.0])
def test_one_normal_dominates_and_is_near(a):
    law = lognormal(a, first_nodes(a, 1, 500))
    for level in np.exp(a * np.array([-3.0, -1.0, 0.0, 1.0, 3.0]) - a * a / 2):
        exact = call(level, a)
        assert exact * (1 - 1e-11) <= tail(law, level) <= exact * 1.005
        assert 0 < law.mass_error < 1e-9 and 0 < law.ratio_error < 1e-9


@pytest.mark.parametrize(
    "a, count", [(0.17, 20), (0.5, 10_000), (3.3, 1000), (10.0, 20), (1e-4, 7), (1.0, 4097)]
)
def test_masses_and_means_are_kept(a, count):
    law = mean_of_copies(a, count, 200)
    assert law.mass.min() >= 0 and np.all(np.diff(law.value) > 0) and law.value[0] == 0
    assert law.mass.sum() == pytest.approx(1, abs=1e-11)
    assert (law.mass * law.value).sum() + law.lost == pytest.approx(1, abs=1e-11)
    assert law.lost < 1e-12 and law.mass[0] < 1e-12, "grids reach as far as it matters"
    if a * a < 5:
        assert law.variances()[1] < 1.03 * math.expm1(a * a) / count


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("weight", [0.5, 2 / 3])
def test_the_mean_of_two_dominates_all_pairs(weight, same):
    one, two = (lognormal(a, first_nodes(a, 3, 60)) for a in (0.8, 0.8))
    two = one if same else two
    found = mean_of_two(one, two, weight, 1.0, 90)
    at = np.add.outer(weight * one.value, (1 - weight) * two.value).ravel()
    mass = np.outer(one.mass, two.mass).ravel()
    lost = weight * one.lost + (1 - weight) * two.lost
    for log_level in np.linspace(-6, 6, 97):
        exact = float((mass * np.maximum(at - math.exp(log_level), 0)).sum()) + lost
        assert exact * (1 - 1e-12) <= tail(found, math.exp(log_level))
        assert tail(found, math.exp(log_level)) <= exact * 1.02 or log_level > 1
    assert found.mass_error > one.mass_error + two.mass_error


def test_what_lies_above_a_grid_is_lost(monkeypatch):
    short = lognormal(1.0, np.linspace(-2.0, 1.0, 40))
    monkeypatch.setattr(ratio_grid, "nodes_of_mean", lambda *_: np.linspace(-3.0, 0.5, 50))
    for law, above in ((short, 1.0), (mean_of_two(short, short, 0.5, 1.0, 50), 0.5)):
        assert law.mass.sum() == pytest.approx(1, abs=1e-12)
        assert (law.mass * law.value).sum() + law.lost == pytest.approx(1, abs=1e-5)
        assert law.value[-1] == pytest.approx(math.exp(above)) and law.lost > 0.05
    assert short.lost > call(math.exp(1.0), 1.0) and tail(short, 1.0) > call(1.0, 1.0)


def test_a_share_of_a_ratio():
    law = mean_of_copies(1.0, 3, 300)
    part = law.mix(0.25)
    assert (part.mass * part.value).sum() + part.lost == pytest.approx(1, abs=1e-12)
    assert part.value[0] == 0.75 and part.lost == law.lost / 4


def test_the_last_bits_of_a_law_do_not_place_its_nodes(monkeypatch):
    """What another processor's logarithms and exponentials may differ by moves no bound by 1e-9,
    which is what certificates are compared up to; without rounded numbers it was 5e-7."""
    first_cells, drawn = ratio_grid._cells, np.random.default_rng(0)

    def moved(*given):
        mass, wrong = first_cells(*given)
        return mass * (1 + 2.0**-52 * drawn.integers(-2, 3, mass.size)), wrong

    def tails():
        law = mean_of_copies(1 / 1.1, 100, 600)
        return np.array([tail(law, level) for level in (1.05, 1.2, 1.6)])

    exact = tails()
    monkeypatch.setattr(ratio_grid, "_cells", moved)
    for _ in range(6):
        np.testing.assert_allclose(tails(), exact, rtol=1e-10)


@pytest.mark.parametrize("a, count", [(1e-5, 10**5), (1e-6, 10**4), (1e-6, 1000), (1e-5, 10**6)])
def test_ratios_that_are_all_near_1_have_nodes_between_them(a, count):
    law = mean_of_copies(a, count, 300)
    assert law.variances()[1] < 1.05 * a * a / count and law.lost < 1e-20
