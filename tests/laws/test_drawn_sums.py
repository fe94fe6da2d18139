"""Sums of independent draws: never above the exact law, at any point, and close to it."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from lastiterate.analysis import witnesses
from lastiterate.analysis.witnesses import (
    GridDistribution,
    add,
    law_of_values,
    repeat_draw,
    scale_law,
    tree,
)


def law_of(values, weights):
    return law_of_values(np.array(values, dtype=float), np.array(weights, dtype=float))


def exact_sum(draws):
    """Every value of a sum of independent draws ((values, weights) each) and its probability."""
    values, weights = np.array([0.0]), np.array([1.0])
    for more, chances in draws:
        values = np.add.outer(values, more).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
    return values, weights


def below(law, values, weights, tolerance=2e-3):
    """No half line is likelier than in truth; the mean is lower by at most a small part of the
    range."""
    masses, places = law.points()
    assert math.fsum(masses) == pytest.approx(1, abs=1e-12) and law.rest < 1e-10
    assert law.least - 1e-9 <= values.min() and values.max() <= law.most + 1e-9
    slight = 1e-9 * max(abs(law.least), abs(law.most))  # to which mus are known
    for x in (*np.quantile(values, np.linspace(0, 1, 41)), *places[:: max(1, places.size // 50)]):
        assert masses[places > x + slight].sum() <= weights[values > x].sum() + 1e-12
    lost = (weights * values).sum() - (masses * places).sum()
    assert -1e-12 <= lost <= tolerance * np.ptp(values) + 1e-12


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 1.0, -0.4, -1.0])
@pytest.mark.parametrize(
    "values, weights",
    [
        ([0.0, 1.0], [0.7, 0.3]),
        ([1.0, 0.8, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]),
        ([-0.3, 1.0, 0.41], [0.2, 0.3, 0.5]),
        ([2.0], [1.0]),
    ],
)
def test_repeated_draws(factor, values, weights):
    values, weights = np.array(values), np.array(weights)
    for times in (1, 2, 3, 5, 6):
        found = repeat_draw(lambda sign: law_of_values(sign * values, weights), factor, times)
        below(found, *exact_sum([(factor**i * values, weights) for i in range(times)]))


@pytest.mark.parametrize(
    "times, rate", [(10, 0.3), (10_000, 0.01), (10**6, 0.5), (10**7, 1e-6), (10**9, 0.3)]
)
def test_many_equal_draws_are_binomial(times, rate):
    found = repeat_draw(lambda _: law_of([0, 1], [1 - rate, rate]), 1.0, times)
    masses, places = found.points()
    std = math.sqrt(times * rate * (1 - rate))
    assert places.size <= witnesses.MOST + 1 and found.rest < 1e-9 + 1e-14 * times
    for x in times * rate + std * np.linspace(-6, 6, 13):
        k = math.floor(x)
        assert masses[places > k].sum() <= binom.sf(k, times, rate) * (1 + 1e-9) + 1e-12
    mean = float((masses * places).sum())
    assert times * rate * (1 - 1e-5) - 2e-2 * std <= mean <= times * rate * (1 + 1e-9)
    if times <= 10_000:
        assert mean == pytest.approx(times * rate, rel=1e-9), "whole numbers of draws are exact"


def test_a_long_geometric_sum():
    """Moments of sum of c^i B_i: q / (1 - c), q (1 - q) / (1 - c^2)."""
    for q, c in ((0.01, 0.999), (0.3, 0.99), (0.5, 0.9)):
        masses, places = repeat_draw(lambda _, q=q: law_of([0, 1], [1 - q, q]), c, 50_000).points()
        mean = float((masses * places).sum())
        std = math.sqrt(float((masses * places**2).sum()) - mean**2)
        assert q / (1 - c) * (1 - 1e-2) <= mean <= q / (1 - c)
        assert std == pytest.approx(math.sqrt(q * (1 - q) / (1 - c**2)), rel=1e-2)


def test_trees_of_different_draws():
    rng = np.random.default_rng(0)
    draws = [(rng.uniform(-0.2, 1, 3), rng.dirichlet(np.ones(3))) for _ in range(7)]
    below(tree([law_of_values(*draw) for draw in draws]), *exact_sum(draws))
    assert tree([law_of_values(*draws[0])]) is not None


def test_long_lattices_are_coarsened(monkeypatch):
    monkeypatch.setattr(witnesses, "MOST", 64)
    draws = [(np.array([0.0, w]), np.array([0.5, 0.5])) for w in (1.0, 0.9, 0.77, 0.6, 0.31, 0.2)]
    found = tree([law_of_values(*draw) for draw in draws])
    assert found.masses.size <= 64
    below(found, *exact_sum(draws), tolerance=0.05)


def test_what_is_cut_off_is_kept_in_the_rest():
    law = GridDistribution(0.0, 1.0, np.array([1e-18, 0.5, 0.5, 1e-18]), 0.0, 0.0, 3.0)
    found = witnesses._drop_tails(law)
    assert found.low == 1.0 and found.masses.tolist() == [0.5, 0.5] and found.spacing == 1.0
    short = witnesses._sound(GridDistribution(1.0, 1.0, np.array([0.5, 0.25]), 0.0, -1.0, 3.0))
    assert short.rest == pytest.approx(0.25)
    masses, places = short.points()
    assert masses == pytest.approx([0.25, 0.5, 0.25]) and places.tolist() == [-1.0, 1.0, 2.0]
    total = add(short, short)
    assert total.least == -2 and total.most == 6 and total.rest == pytest.approx(1 - 0.75**2)
    point = law_of([2.0], [1.0])
    assert add(point, point).low == 4.0
    moved = add(point, short)
    assert (
        moved.low == 3.0
        and moved.least == 1.0
        and moved.most == 5.0
        and moved.rest == pytest.approx(0.25)
    )
    assert (
        scale_law(short, 0.5).least == -0.5
        and scale_law(short, 0.5).spacing == 0.5
        and scale_law(short, 0.5).low == 0.5
    )
    gone = scale_law(short, 1e-330)
    assert gone.masses.tolist() == [1.0] and gone.low == 0


def test_transforms_are_rounded_down():
    rng = np.random.default_rng(1)
    for size in (40, 500, 3000):
        one, two = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size + 7))
        exact = np.convolve(one.astype(np.longdouble), two.astype(np.longdouble))
        found = witnesses._convolve(one, two)
        assert (found <= exact).all() and found.sum() > 1 - 1e-11
    small = witnesses._convolve(one[:5], two)
    assert (small <= np.convolve(one[:5].astype(np.longdouble), two)).all()
