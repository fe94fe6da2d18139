"""The curve of a perturbed minimiser, D + max(0, mu^2/2 + mu M) composed with Gaussian mechanisms,
against sums over the normals that M is made of."""

import math
from functools import lru_cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr, owens_t

from lastiterate.curves import perturbed_minimum
from lastiterate.curves.curve import Exchanged, Grouped
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.perturbed_minimum import PerturbedObjective
from lastiterate.errors import InputError


def exact_gaussian_delta(epsilon, mu):
    """delta of a mu-Gaussian mechanism at any real epsilon: E[(1 - e^(epsilon - X))_+]."""
    if mu == 0:
        return -np.expm1(np.minimum(epsilon, 0.0))
    a = mu / 2 - epsilon / mu
    return ndtr(a) - np.exp(epsilon + log_ndtr(a - mu))


@lru_cache
def distribution(others):
    """M = (g + h) / sqrt 2, h the largest of ``others`` normals, g one more: values and weights."""
    g, h = np.linspace(-8, 8, 501), np.linspace(-8, 9, 501)
    density = others * np.exp(-(h**2) / 2 + (others - 1) * log_ndtr(h)) / math.sqrt(2 * math.pi)
    weights = np.exp(-(g**2) / 2)[:, None] / math.sqrt(2 * math.pi) * density[None, :]
    weights *= (g[1] - g[0]) * (h[1] - h[0])
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    return (g[:, None] + h[None, :]) / math.sqrt(2), weights


def exact_delta(epsilon, mu, others, shift, gaussian):
    largest, weights = distribution(others)
    losses = shift + np.maximum(0.0, mu**2 / 2 + mu * largest)
    return float((weights * exact_gaussian_delta(epsilon - losses, gaussian)).sum())


CASES = [
    (0.0, 1, 0.3, 0.0),
    (0.0, 2, 0.3, 0.7),
    (0.5, 1, 0.0, 0.0),
    (0.5, 1, 0.2, 0.4),
    (0.5, 2, 0.2, 1e-5),
    (1.0, 9, 0.05, 0.2),
    (3.0, 9, 0.0, 0.5),
    (3.0, 1, 1.0, 2.0),
]


@pytest.mark.parametrize(("mu", "others", "shift", "gaussian"), CASES)
def test_it_lies_just_above_the_mean_over_normals(mu, others, shift, gaussian):
    """A cell is 0.0025 standard deviations wide."""
    for epsilon in (0.0, 0.2, 0.31, 1.0, 4.0):
        exact = exact_delta(epsilon, mu, others, shift, gaussian)
        found = PerturbedObjective(mu, others, shift, gaussian).delta(epsilon)
        assert exact * (1 - 1e-4) - 1e-9 <= found <= exact * (1 + 0.02) + 1e-9, epsilon
        assert found - exact <= 0.002 * mu + 1e-9


@pytest.mark.parametrize(("mu", "shift", "gaussian"), [(0.5, 0.2, 0.4), (2.0, 0.0, 1e-3)])
@pytest.mark.parametrize("epsilon", [0.1, 6.0])
def test_two_classes_in_twenty_digits(mu, shift, gaussian, epsilon):
    """Not below the integral, which has no error of its own here, even where delta is small."""
    with mpmath.workdps(20):

        def each(x):
            left = epsilon - shift - max(mpmath.mpf(0), mpmath.mpf(mu) ** 2 / 2 + mu * x)
            a = mpmath.mpf(gaussian) / 2 - left / gaussian
            delta = mpmath.ncdf(a) - mpmath.exp(left) * mpmath.ncdf(a - gaussian)
            return mpmath.npdf(x) * delta

        bend, turn = -mu / 2, (epsilon - shift) / mu - mu / 2
        width = gaussian / mu
        points = sorted({-15, bend, turn - 9 * width, turn, turn + 9 * width, turn + 14})
        exact = mpmath.quad(each, [p for p in points if p >= bend], maxdegree=7)
        exact += mpmath.ncdf(bend) * each(mpmath.mpf(bend)) / mpmath.npdf(bend)
        found = PerturbedObjective(mu, 1, shift, gaussian).delta(epsilon)
        assert exact <= found <= exact * 1.02


def test_the_largest_normal_has_the_tail_of_its_distribution():
    """One and two normals in closed form; more by integrals, and far out, where no two are."""
    x = np.linspace(perturbed_minimum.LOW, perturbed_minimum.HIGH, perturbed_minimum.CELLS)
    assert (x[0], x[-1], x.size) == (-9.0, 11.5, 8192)
    one = perturbed_minimum._survival(1)
    assert (one >= ndtr(-x)).all() and one == pytest.approx(ndtr(-x), rel=1e-11, abs=0)
    assert one.max() == 1.0
    # P[M1 <= x, M2 <= x] of correlation 1/2, by Owen's function
    both, two = ndtr(x) - 2 * owens_t(x, math.sqrt(1 / 3)), perturbed_minimum._survival(2)
    near = np.abs(x) < 4
    assert (two[near] >= (1 - both[near]) * (1 - 1e-12)).all()
    assert two[near] == pytest.approx(1 - both[near], rel=1e-8, abs=1e-12)
    for others, found in ((2, two), (9, perturbed_minimum._survival(9))):
        assert (np.diff(found) <= 0).all() and found[:500] == pytest.approx(1.0)
        assert found.max() <= 1.0 and found[0] == 1.0
        assert found[-1] == pytest.approx(others * ndtr(-11.5), rel=1e-8, abs=0)
        for place in (3000, 4096, 6000):

            def part(y, others=others, at=x[place]):
                tail = -np.expm1(others * log_ndtr(math.sqrt(2) * at - y))
                return math.exp(-y * y / 2) / math.sqrt(2 * math.pi) * tail

            ends = (-12, -3, 0, 3, 6, 16)
            tail = sum(quad(part, a, b, epsabs=0, epsrel=1e-12)[0] for a, b in pairwise(ends))
            assert tail * (1 + 1e-11) <= found[place] <= tail * (1 + 1e-8), (others, place)


@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0])
def test_gaussian_deltas_at_negative_epsilons(mu):
    """delta(-e) = 1 - e^-e (1 - delta(e)), by the formula for any real epsilon, never below it."""
    epsilon = np.linspace(-6, 6, 121)
    found = perturbed_minimum._gaussian_delta(epsilon, mu)
    exact = exact_gaussian_delta(epsilon, mu)
    assert (found >= exact - 1e-16).all()
    assert found == pytest.approx(exact, rel=1e-9, abs=1e-14)
    none = perturbed_minimum._gaussian_delta(epsilon, 0.0)
    assert none == pytest.approx(-np.expm1(np.minimum(epsilon, 0.0)), rel=1e-9, abs=1e-14)
    assert perturbed_minimum._gaussian_delta(np.array([-800.0]), mu) == 1.0


def test_nothing_to_hide_and_nothing_that_hides():
    """Without noise every delta is 1; without a record it is 0; D alone is a pure epsilon."""
    for parts in ((math.inf, 1, 0.0), (1.0, 1, math.inf), (1.0, 1, 0.0, math.inf)):
        assert PerturbedObjective(*parts).delta(3.0) == 1.0
    assert PerturbedObjective(1e5, 2, 0.0).delta(1.0) == pytest.approx(1.0)
    silent = PerturbedObjective(0.0, 1, 0.0)
    assert silent.delta(0.0) <= 1e-30, "the mass beyond the cells"
    pure = PerturbedObjective(0.0, 1, 0.4)
    assert pure.delta(0.4 * (1 + 1e-9)) <= 1e-30 and pure.delta(0.1) == pytest.approx(
        -math.expm1(-0.3)
    )


def test_an_epsilon_far_out_counts_the_mass_beyond_the_cells_in_full():
    """P[M > 11.5] is counted even where no loss in the cells is as large."""
    curve = PerturbedObjective(1.0, 1, 0.0)
    assert curve.delta(60.0) == pytest.approx(ndtr(-11.5), rel=1e-9, abs=0)
    assert curve.delta(11.998) == pytest.approx(ndtr(-11.5), rel=5e-4, abs=0), "the last is 12"
    assert PerturbedObjective(1.0, 9, 0.0).delta(60.0) == pytest.approx(
        9 * ndtr(-11.5), rel=1e-6, abs=0
    )


FAILING = [(0.5, 1, 0.1, 0.0, 1e-12), (1.0, 2, 0.0, 0.3, 1e-6), (0.2, 1, 0.0, 0.1, 0.01)]


@pytest.mark.parametrize("parts", FAILING)
def test_a_failure_counts_for_either_neighbour(parts):
    """failure (1 + e^epsilon) on top, and never more than at a smaller epsilon."""
    curve, sure = PerturbedObjective(*parts), PerturbedObjective(*parts[:4])
    grid = np.concatenate((np.linspace(0, 30, 61), [100.0, 600.0, 700.0, 749.0, 2000.0]))
    sums = [
        min(1.0, sure.delta(e) + min(1.0, parts[4] * (1 + math.exp(min(e, 700.0))))) for e in grid
    ]
    assert [curve.sum_at(e) for e in grid] == pytest.approx(sums, rel=1e-9, abs=0)
    found = np.array([curve.delta(e) for e in grid])
    assert (np.diff(found) <= 0).all()
    assert min(sums) * 0.98 <= found[-1] <= min(sums) * (1 + 1e-6)
    before = grid < grid[int(np.argmin(sums))] - 0.6
    assert found[before] == pytest.approx(np.array(sums)[before], rel=1e-9, abs=0)
    lowest = perturbed_minimum._lowest(curve)
    assert lowest == pytest.approx(grid[int(np.argmin(sums))], abs=0.51)
    assert found[-1] == curve.sum_at(lowest) and found[-1] >= parts[4] * (1 + math.exp(lowest))
    assert curve.delta(curve.epsilon(2 * found[-1])) <= 2 * found[-1]
    assert curve.epsilon(0.9 * found[-1]) == math.inf


def test_certain_failure_is_no_guarantee():
    rare = PerturbedObjective(0.1, 1, 0.0, failure=1e-9)
    assert rare._failure_delta(2.0) == pytest.approx(1e-9 * (1 + math.exp(2)), rel=1e-9, abs=0)
    assert rare._failure_delta(700.0) == rare._failure_delta(1e6) == 1.0, "a probability"
    assert PerturbedObjective(0.1, 1, 0.0, failure=1.0).delta(5.0) == 1.0
    assert PerturbedObjective(0.1, 1, 0.0, failure=0.5).delta(0.0) == 1.0
    assert PerturbedObjective(0.1, 1, 0.0, failure=0.25).delta(0.0) == pytest.approx(
        0.5 + PerturbedObjective(0.1, 1, 0.0).delta(0.0)
    )


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ((-1.0, 1, 0.0), "mu"),
        ((1.0, 1, -0.1), "shift"),
        ((1.0, 1, 0.0, -0.1), "gaussian"),
        ((1.0, 0, 0.0), "others"),
        ((1.0, 1, 0.0, 0.0, -0.1), "failure must be a probability"),
        ((1.0, 1, 0.0, 0.0, 1.1), "failure must be a probability"),
    ],
)
def test_numbers_out_of_range_are_refused(parts, word):
    with pytest.raises(InputError, match=word):
        PerturbedObjective(*parts)


def test_what_is_composed_groups_and_exchanges():
    curve = PerturbedObjective(0.5, 2, 0.1, 0.3)
    both = curve.with_gaussian(0.4)
    assert both.gaussian == pytest.approx(0.5, rel=1e-11) and both.gaussian >= 0.5
    assert (both.mu, both.others, both.shift) == (0.5, 2, 0.1)
    assert curve.rdp(2.0) == math.inf
    assert curve.group(3) == Grouped(curve, 3) and curve.replace_one_curve() == Exchanged(curve)
    assert curve.delta(curve.epsilon(1e-6)) <= 1e-6 < curve.delta(curve.epsilon(1e-6) * (1 - 1e-7))
    with pytest.raises(InputError, match="epsilon"):
        curve.delta(-0.1)
    with pytest.raises(InputError, match="delta"):
        curve.epsilon(0.0)


def test_one_normal_is_nearly_a_gaussian_mechanism():
    """The maximum with 0 matters at negative losses alone, which no delta at epsilon >= 0 sees."""
    for epsilon in (0.0, 0.5, 2.0):
        found = PerturbedObjective(1.0, 1, 0.0).delta(epsilon)
        assert Gdp(1.0).delta(epsilon) <= found <= Gdp(1.0).delta(epsilon) * 1.005
