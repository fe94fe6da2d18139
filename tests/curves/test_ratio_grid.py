"""Rounding keeps masses and means, and every law dominates the exact one in convex order."""

import math
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from lastiterate.curves import ratio_grid
from lastiterate.curves.ratio_grid import (
    UNIT,
    RatioGrid,
    _cells,
    first_nodes,
    lognormal,
    mean_of_copies,
    mean_of_two,
)


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


@pytest.mark.parametrize("a", [0.05, 0.6, 2.0])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 12, 13, 21, 64])
def test_means_of_copies_have_the_variance_of_a_mean(a, count):
    """A spread that keeps the mean adds to E[Y^2] = 1 + (e^(a^2) - 1) / count, and little."""
    law = mean_of_copies(a, count, 200)
    exact = math.expm1(a * a) / count
    found = float((law.mass * (law.value - 1) ** 2).sum())
    assert exact * (1 - 1e-9) <= found <= exact * 1.08


@pytest.mark.parametrize("a, size", [(0.3, 80), (0.8, 80), (0.8, 300)])
@pytest.mark.parametrize("count", [2, 3])
def test_means_of_copies_dominate_the_exact_ones(a, count, size):
    """E[(mean - level)_+]: the last of the copies in closed form, the others by trapezoids."""
    points = np.linspace(-10.0, 10.0, 301)
    weights = np.exp(-(points**2) / 2) / np.exp(-(points**2) / 2).sum()
    totals, chances = np.zeros(1), np.ones(1)
    for _ in range(count - 1):
        totals = np.add.outer(totals, np.exp(a * points - a * a / 2)).ravel()
        chances = np.outer(chances, weights).ravel()
    law = mean_of_copies(a, count, size)
    for level in (0.7, 1.0, 1.3, 2.0, 3.0):
        needed = count * level - totals
        away = np.log(np.maximum(needed, 1e-300)) / a
        last = np.where(needed > 0, ndtr(a / 2 - away) - needed * ndtr(-a / 2 - away), 1 - needed)
        exact = float((chances * last).sum()) / count
        assert exact * (1 - 1e-9) <= tail(law, level) <= exact * 1.05 + 2e-6


def lay_out(one, two, weight, grid):
    """Masses of all pairs, moved to the two neighbours on a grid with their means, one by one."""
    masses, lost = np.zeros(grid.size), weight * one.lost + (1 - weight) * two.lost
    for x, p in zip(one.value, one.mass, strict=True):
        for y, q in zip(two.value, two.mass, strict=True):
            at = weight * x + (1 - weight) * y
            if at >= grid[-1]:
                masses[-1] += p * q
                lost += p * q * (at - grid[-1])
                continue
            cell = max(index for index in range(grid.size) if grid[index] <= at)
            share = (at - grid[cell]) / (grid[cell + 1] - grid[cell])
            masses[cell] += p * q * (1 - share)
            masses[cell + 1] += p * q * share
    return masses, lost


def drawn_law(size, seed, lost, errors=(1e-12, 2e-12), trimmed=1e-19):
    """Masses on 0 and ``size`` ratios around 1, with a mean of 1 together with ``lost``."""
    draw = np.random.default_rng(seed)
    value = np.append(0.0, np.sort(draw.uniform(0.2, 3.0, size)))
    mass = np.append(0.05, draw.uniform(0.1, 1.0, size))
    mass = mass / mass.sum()
    value *= (1 - lost) / (mass * value).sum()
    return RatioGrid(value, mass, lost, *errors, trimmed)


@pytest.mark.parametrize("weight", [0.5, 0.25, 0.8, 1.0])
@pytest.mark.parametrize("sizes", [(20, 20), (15, 40), (37, 9), (52, 20)])
@pytest.mark.parametrize("ends", [(-3.0, 2.0), (-0.5, 0.2)])
def test_the_mean_of_two_moves_every_pair_to_its_neighbours(monkeypatch, weight, sizes, ends):
    one = drawn_law(sizes[0], 1, 0.02)
    two = one if sizes == (20, 20) else drawn_law(sizes[1], 2, 0.003, (3e-12, 1e-12), 1e-12)
    nodes, asked = np.linspace(*ends, 23), []
    monkeypatch.setattr(ratio_grid, "nodes_of_mean", lambda *given: asked.append(given) or nodes)
    found = mean_of_two(one, two, weight, 7.0, 23)
    grid = np.append(0.0, np.exp(nodes))
    np.testing.assert_allclose(found.value, grid, rtol=1e-12)
    masses, lost = lay_out(one, two, weight, grid)
    np.testing.assert_allclose(found.mass, masses, rtol=1e-9, atol=1e-15)
    assert lost * (1 - 1e-12) <= found.lost <= lost * (1 + 2e-6)
    assert asked == [(one, two, weight, 7.0, 23, max(one.trimmed, two.trimmed))]
    assert found.trimmed == max(one.trimmed, two.trimmed)


@pytest.mark.parametrize("sizes", [(20, 20), (15, 40), (160, 9)])
def test_errors_of_a_mean_add_up(sizes):
    """Errors of masses of both, and a unit for every product that is added; what the code said of
    how many those are. Errors of ratios do not grow by means."""
    one, two = drawn_law(sizes[0], 1, 0.0), drawn_law(sizes[1], 2, 0.0, (3e-14, 1e-12))
    for first, second in ((one, two), (two, one)):
        found = mean_of_two(first, second, 0.5, 1.0, 30)
        terms = 16 * second.value.size + first.value.size / 8 + 16
        assert found.mass_error == pytest.approx(1e-12 + 3e-14 + terms * UNIT, rel=1e-9, abs=0)
        assert found.ratio_error == pytest.approx(2e-12 + 8 * UNIT, rel=1e-9, abs=0)


@pytest.mark.parametrize("a", [0.05, 0.9, 3.0])
@pytest.mark.parametrize("ends", [(-6.0, 6.0), (-1.0, 2.0), (1.0, 3.0), (-4.0, -2.0)])
def test_cells_of_a_normal_variable_are_as_exact_as_they_say(a, ends):
    at = np.linspace(*ends, 9)
    for shift in (0.0, a):
        found, wrong = _cells(at - shift, at, a, 1e-19)
        with mp.workdps(40):
            below = [mp.ncdf(float(x)) for x in at - shift]
            above = [mp.ncdf(-float(x)) for x in at - shift]
            exact = [below[0], *(y - x for x, y in pairwise(below)), above[-1]]
            errors = [abs(mp.mpf(float(x)) / y - 1) for x, y in zip(found, exact, strict=True)]
        assert max(errors[1:-1]) <= wrong < 1e-10 and max(errors) < 1e-12


@pytest.mark.parametrize(
    "z, shift, a, trimmed, wrong",
    [
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), 0.0, 0.5, 1e-19, 1.21698618872e-13),
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), 0.5, 0.5, 1e-19, 1.09408835293e-13),
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), 0.0, 3.0, 1e-19, 1.14296026483e-13),
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), -0.8, 0.25, 1e-19, 1.52379342724e-13),
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), 0.0, 0.5, 120000, 3.09926436787e-14),
        ((-3.0, -1.75, -0.25, 0.5, 0.6, 2.0, 4.5), 0.0, 0.5, 300000, 2.52834982108e-14),
        ((-0.5, 0.4, 0.5, 1.0), 0.0, 0.5, 1e-19, 4.24584991442e-14),
        ((-0.5, 0.4, 0.5, 1.0), 0.2, 2.5, 1e-19, 2.62975009857e-14),
        ((-4.0, -3.0, -1.0, -0.9), 0.0, 0.5, 1e-19, 1.0004692218e-13),
        ((-4.0, -3.0, -1.0, -0.9), -0.5, 0.5, 100000, 5.04196773665e-14),
    ],
)
def test_the_error_of_a_cell(z, shift, a, trimmed, wrong):
    """That of the tails at its ends, against its mass, in the cells that are not trimmed: what the
    code said."""
    z = np.array(z)
    assert _cells(z - shift, z, a, trimmed)[1] == pytest.approx(wrong, rel=1e-9, abs=0)
    assert _cells(z - shift, z, a, 1e6)[1] == 0


@pytest.mark.parametrize("a", [0.1, 0.7, 2.5])
@pytest.mark.parametrize("ends", [(-2.0, 2.0), (-1.0, 0.5), (-0.3, 3.0)])
def test_masses_of_one_normal_keep_mass_and_mean_in_every_cell(a, ends):
    """Between two nodes, below the first and above the last, in 40 digits."""
    nodes = np.linspace(*ends, 8) * a
    law = lognormal(a, nodes, 1e-12)
    value = [mp.mpf(0), *(mp.exp(float(node)) for node in nodes)]
    with mp.workdps(40):
        cuts = [-mp.inf, *(mp.mpf(float(node)) / a + mp.mpf(a) / 2 for node in nodes), mp.inf]
        q = [mp.ncdf(y) - mp.ncdf(x) for x, y in pairwise(cuts)]
        p = [mp.ncdf(y - a) - mp.ncdf(x - a) for x, y in pairwise(cuts)]
        masses = [mp.mpf(0)] * 9
        for cell in range(8):
            up = (p[cell] - q[cell] * value[cell]) / (value[cell + 1] - value[cell])
            masses[cell] += q[cell] - up
            masses[cell + 1] += up
        masses[8] += q[8]
        lost = p[8] - q[8] * value[8]
    np.testing.assert_allclose(law.value, [float(x) for x in value], rtol=1e-12)
    np.testing.assert_allclose(law.mass, [float(x) for x in masses], rtol=1e-9, atol=1e-15)
    assert lost <= law.lost <= lost + mp.mpf("1.1e-6") * p[8]
    assert law.trimmed == 1e-12
    first, second = (
        _cells(nodes / a + a / 2 - by, nodes / a + a / 2, a, 1e-12)[1] for by in (0, a)
    )
    assert law.mass_error == pytest.approx(first + 4 * UNIT, rel=1e-6, abs=0)
    assert law.ratio_error == pytest.approx(first + second + 8 * UNIT, rel=1e-6, abs=0)


def test_a_grid_may_reach_beyond_all_mass():
    """Nothing lies above the last node: little is lost, and no mass is negative."""
    law = lognormal(0.3, np.linspace(-20.0, 20.0, 300))
    assert 0 <= law.lost < 1e-300 and law.mass.min() >= 0
    assert law.mass.sum() == pytest.approx(1) and (law.mass * law.value).sum() == pytest.approx(1)


def test_variances_of_losses_in_both_orders():
    value, mass = np.array([0.0, 0.5, 0.8, 1.25, 2.0]), np.array([0.1, 0.2, 0.1, 0.35, 0.25])
    found = RatioGrid(value, mass, 0.1, 0.0, 0.0).variances()
    kept, losses = mass[1:], np.log(value[1:])
    for variance, weights in zip(found, (kept * value[1:], kept), strict=True):
        mean = np.average(losses, weights=weights)
        expected = np.average((losses - mean) ** 2, weights=weights)
        assert variance == pytest.approx(expected, rel=1e-12, abs=0)
    for a in (0.2, 1.0):
        assert lognormal(a, first_nodes(a, 1, 4000)).variances() == pytest.approx(
            (a * a, a * a), rel=1e-3
        )


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_a_share_of_a_law_moves_ratios_towards_one(share):
    law = drawn_law(12, 5, 0.04, (1e-12, 3e-15), 1e-7)
    part = law.mix(share)
    np.testing.assert_allclose(part.value, 1 + share * (law.value - 1), rtol=1e-12)
    assert part.lost == share * law.lost and part.mass is law.mass and part.trimmed == 1e-7
    assert part.mass_error == law.mass_error
    assert part.ratio_error == pytest.approx(3e-15 + 4 * UNIT, rel=1e-9, abs=0)
