"""The numbers that decide: against balls, closed forms, quadrature and enumeration."""

import itertools
import math

import numpy as np
import pytest
from flint import arb
from scipy.special import ndtr

from lastiterate_check.curves import (
    Exchanged,
    Gaussian,
    Grouped,
    Renyi,
    gaussian_delta,
    normal_tail,
    up,
)
from lastiterate_check.losses import Losses, between, mixture, sampled
from lastiterate_check.restarts import drawn_subset
from lastiterate_check.sampling import bins, pass_of_blocks
from lastiterate_check.shifts import push, total


def test_normal_probabilities_are_good_to_what_is_allowed():
    for x in np.concatenate((-np.geomspace(1e-6, 30, 400), np.geomspace(1e-6, 8, 200))):
        exact = normal_tail(-arb(float(x)))
        assert abs(float(ndtr(x)) - exact) < 3e-13 * exact


def test_probabilities_of_cells_do_not_cancel():
    low = np.linspace(-11, 11, 300)
    for a, p in zip(low, between(low, low + 1e-4), strict=True):
        exact = normal_tail(arb(float(a))) - normal_tail(arb(float(a + 1e-4)))
        assert abs(float(p) - exact) < 1e-9 * exact


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 6.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-9, 1e-15])
def test_composed_gaussian_steps_are_one_gaussian_step(mu, delta):
    exact = Gaussian(mu).epsilon(delta)
    found = Losses([(sampled(1.0, 5 / mu), 25)]).epsilon(delta)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 3e-4)


def test_a_sampled_step_is_its_closed_form():
    q, m = 0.03, 1.25
    step = Losses([(sampled(q, 1 / m), 1)])
    for epsilon in (0.05, 0.5, 1.5):
        x = (math.log((math.exp(epsilon) - 1 + q) / q)) / m + m / 2
        exact = q * ndtr(m - x) + (1 - q) * ndtr(-x) - math.exp(epsilon) * ndtr(-x)
        assert exact <= step.orders(epsilon)[0] <= exact * (1 + 1e-3)
    assert step.orders(0.031)[1] < 1e-9  # the other order is bounded by -log(1 - q)


def ratio_of_two_blocks(a, b):
    x = np.linspace(-9, 9, 1501)
    w = np.exp(-x * x / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    y = (np.exp(a * x - a * a / 2)[:, None] + np.exp(b * x - b * b / 2)) / 2
    return y, np.outer(w, w)


@pytest.mark.parametrize("a", [0.15, 0.8, 1.6])
def test_two_secret_blocks_are_their_quadrature(a):
    y, w = ratio_of_two_blocks(a, a)
    for epsilon in (0.1, 0.6):
        removed = float((w * np.maximum(y - math.exp(epsilon), 0)).sum())
        added = float((w * np.maximum(1 - math.exp(epsilon) * y, 0)).sum())
        one, two = Losses([(pass_of_blocks(2, a), 1)]).orders(epsilon)
        assert removed * (1 - 1e-4) <= one <= removed * (1 + 2e-3) + 1e-9
        assert added * (1 - 1e-4) <= two <= added * (1 + 2e-3) + 1e-9


def test_bins_of_two_noises_are_their_quadrature():
    y, w = ratio_of_two_blocks(0.5, 1.0)
    exact = float((w * np.maximum(y - math.exp(0.4), 0)).sum())
    found = Losses([(bins(((0.5, 1), (1.0, 1)), 2), 1)]).orders(0.4)[0]
    assert exact * (1 - 1e-4) <= found <= exact * (1 + 2e-3)


def test_values_that_others_computed():
    assert Losses([(bins(((1.0, 40),), 40), 1)]).epsilon(1e-5) == pytest.approx(1.1104, rel=1e-3)
    assert Losses([(bins(((2.0, 40),), 40), 1)]).epsilon(1e-5) == pytest.approx(6.3100, rel=1e-3)
    assert Losses([(bins(((0.5, 100),), 100), 1)]).epsilon(1e-5) == pytest.approx(0.1732, rel=1e-3)
    assert Losses([(sampled(0.01, 1.0), 10000)]).epsilon(1e-5) == pytest.approx(6.188, rel=1e-3)


def test_a_subset_of_fixed_size_is_what_the_proof_note_says():
    q, z = 0.2, 1.5
    m = 1 / z
    for replaced in (False, True):
        step = Losses([(drawn_subset(q, z, replaced), 1)])
        for epsilon in (0.1, 0.4):
            inner = math.log(1 + (math.exp(epsilon) - 1) / q)
            added = q * float(gaussian_delta(m, inner).mid())
            assert step.orders(epsilon)[1] == pytest.approx(added, rel=2e-3)
        x = np.linspace(-12, 14, 400001)
        p, r, s = (np.exp(-((x - c) ** 2) / 2) / math.sqrt(2 * math.pi) for c in (2 * m, m, 0))
        high, low = (
            (q * p + (1 - q) * s, q * r + (1 - q) * s) if not replaced else (q * r + (1 - q) * s, s)
        )
        exact = float(np.maximum(high - math.exp(0.4) * low, 0).sum() * (x[1] - x[0]))
        assert step.orders(0.4)[0] == pytest.approx(exact, rel=2e-3)


def test_a_mixture_of_shifts_is_its_closed_form():
    weights, shifts = np.array([0.7, 0.2, 0.1]), np.array([0.0, 0.6, 1.4])
    x = np.linspace(-12, 14, 400001)
    base = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    y = sum(w * np.exp(m * x - m * m / 2) for w, m in zip(weights, shifts, strict=True))
    exact = float((base * np.maximum(y - math.exp(0.3), 0)).sum() * (x[1] - x[0]))
    assert Losses([(mixture(weights, shifts), 1)]).orders(0.3)[0] == pytest.approx(exact, rel=1e-3)


def best_by_search(c, s, v):
    """mu^2 by trying which stretches are pooled: the least over cuts that keep distances >= 0."""
    steps, best = len(c), math.inf
    after = [math.prod(c[t + 1 :]) for t in range(steps)]
    for cuts in itertools.product((False, True), repeat=steps - 1):
        ends = [t for t in range(steps - 1) if cuts[t]] + [steps - 1]
        begin, cost, feasible, done, due = 0, 0.0, True, 0.0, 0.0
        for end in ends:
            shift = sum(s[t] * after[t] for t in range(begin, end + 1))
            noise = sum(v[t] * after[t] ** 2 for t in range(begin, end + 1))
            cost += shift**2 / noise
            for t in range(begin, end + 1):
                due += s[t] * after[t]
                done += shift / noise * v[t] * after[t] ** 2
                feasible &= done <= due * (1 + 1e-12)
            begin = end + 1
        best = min(best, cost) if feasible else best
    return best


def test_pooling_finds_the_best_cut():
    rng = np.random.default_rng(3)
    for _ in range(60):
        c, s, v = rng.uniform(0.4, 1.5, 7), rng.uniform(0.1, 2, 7), rng.uniform(0.2, 2, 7)
        pools = None
        for row in zip(s, v, c, strict=True):
            pools = push(pools, tuple(map(float, row)))
        assert total(pools) == pytest.approx(best_by_search(c, s, v), rel=1e-9)


def test_full_batches_are_the_closed_form_of_bok_su_and_altschuler():
    c, t = 0.98, 400
    pools = None
    for _ in range(t):
        pools = push(pools, (1.0, 1.0, c))
    exact = (1 - c**t) / (1 + c**t) * (1 + c) / (1 - c)
    assert total(pools) == pytest.approx(exact, rel=1e-10)


def test_groups_and_exchanges_of_a_gaussian_lie_above_its_own():
    one = Gaussian(0.5)
    assert Grouped(one, 2).epsilon(1e-6) > Gaussian(1.0).epsilon(1e-6)
    assert Exchanged(one).epsilon(1e-6) > Gaussian(1.0).epsilon(1e-6) * (1 - 1e-9)
    assert Exchanged(one).epsilon(1e-6) < Grouped(one, 2).epsilon(1e-6)
    assert Renyi(0.125).epsilon(1e-6) > one.epsilon(1e-6)


@pytest.mark.parametrize("slope", [1e-6, 1e-2, 0.3])
def test_bounds_of_renyi_divergences_lie_above_pairs_that_have_them(slope):
    """Gaussians of that slope, and two coins, for which Pinsker's inequality is tight."""
    for epsilon in (0.0, slope, 0.1, 1.0):
        gaussian = up(gaussian_delta(math.sqrt(2 * slope), epsilon))
        assert Renyi(slope).delta(epsilon) >= gaussian
    gap = math.sqrt(slope)  # the total variation of coins of chance (1 +- gap) / 2
    high, low = (1 + gap) / 2, (1 - gap) / 2
    table = {
        order: math.log(high**order * low ** (1 - order) + low**order * high ** (1 - order))
        / (order - 1)
        for order in (1.001, 2.0, 8.0)
    }
    bound = Renyi(table=table).delta(0.0)
    assert gap <= bound <= 1.01 * math.sqrt(table[1.001] / 2)
