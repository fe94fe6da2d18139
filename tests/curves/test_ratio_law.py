"""Likelihood ratios on geometric grids: rounding keeps means, whatever is averaged or coarsened."""

import math

import mpmath as mp
import numpy as np
import pytest
from scipy.special import ndtr

from lastiterate.curves import ratio_law
from lastiterate.curves.ratio_law import Ratio, average, certain, coarsen, lognormal, mix_ratios

EXACT = {"rtol": 1e-10, "atol": 1e-15}


def draw(seed, size, h, low, *, zero=0.0, infinite=0.0, cut=0.0):
    """A ratio with ``size`` drawn masses; under Q they sum to 1 - ``zero``, under P to 1 -
    ``infinite``."""
    drawn = np.random.default_rng(seed).uniform(0.2, 1.0, size)
    nodes = np.exp(h * (low + np.arange(size)))
    q = (1 - zero) * drawn / drawn.sum()
    return Ratio(h, low, q, (1 - infinite) * q * nodes / (q @ nodes), zero, infinite, cut)


def points(ratio):
    """Nodes and their masses under Q; under P the mass of each is as much times the node."""
    return np.exp(ratio.h * (ratio.low + np.arange(ratio.q.size)))


def proper(ratio):
    """The same with masses under P that are those under Q times the nodes."""
    return Ratio(ratio.h, ratio.low, ratio.q, ratio.q * points(ratio), 0.0, 0.0, ratio.cut)


def assert_rounded(law, values, masses):
    """``values`` lie on the nodes of ``law``, shared by the two around each with its mean kept: at
    every node E[(Y - node)_+] is as before, which determines the masses."""
    nodes = points(law)
    assert law.q.sum() == pytest.approx(masses.sum(), rel=1e-12)
    for node in nodes:
        exact = (masses * np.maximum(values - node, 0)).sum()
        found = (law.q * np.maximum(nodes - node, 0)).sum()
        assert found == pytest.approx(exact, rel=1e-9, abs=1e-14 * values.max())
    np.testing.assert_allclose(law.p, law.q * nodes, **EXACT)


# One distribution.


def test_losses_and_floors_of_a_ratio():
    law = Ratio(0.5, -1, np.array([0.5, 0.25, 0.2]), np.array([0.2, 0.2, 0.5]), 0.05, 0.1)
    np.testing.assert_array_equal(law.logs, [-0.5, 0.0, 0.5])
    assert law.floors == (0.1, 0.05) and law.cut == ratio_law.NEGLIGIBLE


@pytest.mark.parametrize("smaller", ["q", "p"])
def test_spread_is_the_smaller_standard_deviation(smaller):
    """Of masses that sum to 0.8, which are normalised."""
    wide, narrow = np.array([0.4, 0.0, 0.4]), np.array([0.1, 0.5, 0.2])
    q, p = (narrow, wide) if smaller == "q" else (wide, narrow)
    law = Ratio(0.5, 3, q, p, 0.2, 0.2)
    mean = np.average(law.logs, weights=narrow)
    variance = np.average((law.logs - mean) ** 2, weights=narrow)
    assert law.spread == pytest.approx(math.sqrt(variance), rel=1e-12) and law.spread < 0.5


def gaussian_delta(epsilon, mu):
    """delta of a mu-Gaussian mechanism at any real epsilon, in 40 digits."""
    with mp.workdps(40):
        epsilon = mp.mpf(epsilon)
        if mu == 0:
            return max(mp.mpf(0), 1 - mp.exp(epsilon))
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("epsilon", [-2.5, -0.4, 0.0, 0.3, 1.7])
def test_deltas_are_the_exact_sums_with_their_allowance(mu, epsilon):
    """1e-9 for rounding, and 1e-11 of epsilon: no less and little more."""
    law = draw(1, 6, 0.45, -3, zero=0.02, infinite=0.03)
    losses = [mp.mpf(float(loss)) for loss in law.logs]
    removed = law.infinite + sum(
        float(p) * gaussian_delta(epsilon - loss, mu) for p, loss in zip(law.p, losses, strict=True)
    )
    added = law.zero + sum(
        float(q) * gaussian_delta(epsilon + loss, mu) for q, loss in zip(law.q, losses, strict=True)
    )
    for exact, found in zip((removed, added), law.deltas(epsilon, mu), strict=True):
        assert 0.999e-9 < found / exact - 1 < 1.3e-9
    assert mu != 0 or law.deltas(epsilon) == law.deltas(epsilon, 0.0)


def test_no_delta_exceeds_one():
    law = Ratio(1.0, -1, np.array([0.5, 0.4]), np.array([0.3, 0.7]), 0.9, 0.8)
    assert law.deltas(-5.0) == (1.0, 1.0) and law.deltas(-5.0, 0.5) == (1.0, 1.0)


def test_nothing_is_learned_from_a_certain_ratio():
    for far, cut in ((False, ratio_law.NEGLIGIBLE), (True, ratio_law.FAR_NEGLIGIBLE)):
        law = certain(0.3, far=far)
        assert (law.h, law.low, law.q.tolist(), law.p.tolist()) == (0.3, 0, [1.0], [1.0])
        assert (law.zero, law.infinite, law.cut) == (0.0, 0.0, cut)
        assert max(law.deltas(0.0)) < 1e-10
    assert ratio_law.mean_of(0.0, 9, 0.3, far=True).cut == ratio_law.FAR_NEGLIGIBLE


# Normal losses.


def expected_excess(level, a):
    """E[(Y - level)_+], Y = exp(a Z - a^2 / 2)."""
    return ndtr(a / 2 - math.log(level) / a) - level * ndtr(-a / 2 - math.log(level) / a)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize(("a", "h"), [(1.0, 0.25), (0.3, 0.05), (3.0, 0.4), (1.0, 0.31)])
def test_one_normal_loss_is_rounded_to_the_nodes_around_it(a, h, far):
    law = lognormal(a, h, far=far)
    nodes = points(law)
    assert law.q.sum() == pytest.approx(1, abs=1e-13)
    assert law.p.sum() == pytest.approx(1, abs=1e-13)
    np.testing.assert_allclose(law.p, law.q * nodes, rtol=1e-11)
    for k in range(0, nodes.size, 3):
        found = (law.q * np.maximum(nodes - nodes[k], 0)).sum()
        exact = expected_excess(nodes[k], a)
        assert found == pytest.approx(exact, rel=1e-9, abs=3e-15)
    reach, lost = (13.5, 8e-42) if far else (9.5, 1.1e-21)
    assert law.low == math.floor(-(reach * a + a * a / 2) / h)
    assert law.low + law.q.size - 1 == math.ceil((reach * a + a * a / 2) / h)
    assert ndtr(-reach) < lost < 1.1 * ndtr(-reach), "what a normal has beyond, at one end"
    assert law.zero == law.infinite == 2 * lost


def test_far_grids_cut_less():
    assert (lognormal(1.0, 0.5).cut, lognormal(1.0, 0.5, far=True).cut) == (1e-20, 1e-40)


# Masses between nodes.


@pytest.mark.parametrize(
    ("first", "stride", "offset"), [(0, 1, 0.13), (-4, 2, 0.9), (3, 3, -0.77), (2, 1, 0.4)]
)
def test_masses_between_two_nodes_keep_their_mean(first, stride, offset):
    h = 0.2
    nodes = ratio_law._Nodes(h, -12, 25)
    q = np.array([0.5, 0.25, 0.15, 0.1])
    values = np.exp((first + stride * np.arange(4)) * h + offset)
    nodes.add(first, stride, offset, q, q * values)
    nodes.add(5, stride, offset, q[:0], q[:0])  # nothing
    law = nodes.law(0.0, 0.0, 0.0)
    assert (law.h, law.low, law.q.size) == (h, -12, 38)
    assert_rounded(law, values, q)


def test_an_offset_of_a_rounded_node_is_that_node():
    """3 * 0.1 / 0.1 is below 3 in doubles where 0.3 is written otherwise: no share is negative."""
    for offset in (0.3, 3 * 0.1, 0.1 + 0.2, math.nextafter(0.3, 0.0)):
        nodes = ratio_law._Nodes(0.1, 0, 6)
        nodes.add(0, 1, offset, np.ones(1), np.full(1, math.exp(0.3)))
        assert nodes.q.min() >= 0 and nodes.q[3] == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(
    ("q", "p", "kept"),
    [
        ([0.004, 0.004, 0.4, 0.59, 0.002], [0.001, 0.004, 0.3, 0.695, 0.0], slice(1, 4)),
        ([0.0, 0.3, 0.7, 0.0], [0.02, 0.3, 0.38, 0.3], slice(0, 4)),
        ([0.02, 0.3, 0.38, 0.3], [0.0, 0.3, 0.7, 0.0], slice(0, 4)),
        ([0.0, 0.0, 1.0, 0.0], [0.0, 0.005, 0.99, 0.005], slice(2, 3)),
        ([0.01, 0.5, 0.49, 0.0], [0.0, 0.49, 0.5, 0.01], slice(0, 4)),
        ([0.003] * 3 + [0.5, 0.482] + [0.003] * 3, [0.0] * 8, slice(3, 5)),
    ],
)
def test_ends_are_cut_where_both_orders_have_less_than_the_cut(q, p, kept):
    """And what they had counts in full, in both orders."""
    nodes = ratio_law._Nodes(0.5, -7, -7 + len(q) - 1)
    nodes.q, nodes.p = np.array(q), np.array(p)
    law = nodes.law(0.1, 0.2, 0.01)
    np.testing.assert_array_equal(law.q, q[kept])
    np.testing.assert_array_equal(law.p, p[kept])
    assert law.low == -7 + kept.start and law.h == 0.5 and law.cut == 0.01
    assert law.zero == pytest.approx(0.1 + 2 * 0.01) and law.zero >= 0.1 + sum(q) - law.q.sum()
    assert law.infinite == pytest.approx(0.2 + 2 * 0.01)
    assert law.infinite >= 0.2 + sum(p) - law.p.sum()


@pytest.mark.parametrize(("low", "size"), [(-5, 8), (-4, 8), (3, 7), (2, 7), (0, 1), (1, 1)])
def test_every_other_node_keeps_masses_and_means(low, size):
    law = proper(draw(5, size, 0.3, low, cut=0.0))
    wide = coarsen(Ratio(law.h, law.low, law.q, law.p, 0.01, 0.02, 0.0))
    assert wide.h == 0.6 and (wide.zero, wide.infinite, wide.cut) == (0.01, 0.02, 0.0)
    assert wide.low == low // 2 and wide.low + wide.q.size - 1 == (low + size) // 2 + 1
    assert_rounded(wide, points(law), law.q)
    assert coarsen(draw(5, size, 0.3, low, cut=1e-3)).zero == 2e-3


# Averages of two ratios.


@pytest.mark.parametrize(
    ("coarser", "low_one", "low_two", "share", "finer"),
    [
        (1, -3, -2, 0.5, 1),
        (1, -3, -2, 0.3, 2),
        (1, -20, 9, 0.9, 1),
        (1, 14, -9, 0.9, 3),
        (2, -3, 4, 0.5, 1),
        (2, 3, -8, 2 / 3, 2),
        (3, -2, -5, 0.25, 1),
        (4, 1, 1, 0.05, 1),
    ],
)
def test_averages_of_all_pairs_are_rounded_to_nodes(coarser, low_one, low_two, share, finer):
    h = 0.125
    one = proper(draw(2, 5, h * coarser, low_one))
    two = proper(draw(3, 7, h, low_two))
    found = average(one, two, share, finer)
    values = np.add.outer(share * points(one), (1 - share) * points(two)).ravel()
    assert_rounded(found, values, np.outer(one.q, two.q).ravel())
    assert found.h == h / finer and found.zero == found.infinite == 0
    top = max((low_one + 4) * coarser, low_two + 6) * finer + 2
    assert found.low == math.floor(math.log(values.min()) / found.h) - 1, "one below the least"
    assert found.low + found.q.size - 1 == top


@pytest.mark.parametrize("share", [0.5, 0.4])
@pytest.mark.parametrize("same", [False, True])
def test_averages_of_one_ratio_with_itself(share, same):
    """Where both are one object, and where they are equal, and where just one share is a half."""
    one, other = (proper(draw(4, 6, 0.25, -2)) for _ in range(2))
    two = one if same else other
    found = average(one, two, share)
    values = np.add.outer(share * points(one), (1 - share) * points(two)).ravel()
    assert_rounded(found, values, np.outer(one.q, two.q).ravel())


def test_averages_of_ratios_beyond_the_largest_double_apart():
    """e^900 and e^-900 and their halves: the larger one decides, in either order."""
    high = Ratio(1.0, 900, np.ones(1), np.ones(1), 0.0, 0.0, 0.0)
    low = Ratio(1.0, -900, np.ones(1), np.ones(1), 0.0, 0.0, 0.0)
    for one, two in ((high, low), (low, high)):
        found = average(one, two, 0.5)
        losses = found.logs[found.q > 0]
        np.testing.assert_array_equal(losses, [899.0, 900.0])  # e^900 / 2
        np.testing.assert_allclose(
            found.q[found.q > 0], [(1 - 0.5) / (1 - math.exp(-1)), 1 - 0.5 / (1 - math.exp(-1))]
        )


def test_a_mass_that_one_order_alone_has_is_kept():
    """Under P far out where Q underflows, and the other way round."""
    one = Ratio(1.0, -1, np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.6, 0.4]), 0.0, 0.0, 0.0)
    two = Ratio(1.0, 0, np.ones(1), np.ones(1), 0.0, 0.0, 0.0)
    found = average(one, two, 0.25)
    assert found.q.sum() == pytest.approx(1)
    # of (e^k + 3) / 4 with k = 1, P has a quarter of the 0.4, and three quarters of Q's 0
    above = found.logs > math.log((math.e + 3) / 4) - 1
    assert found.p[above].sum() > 0.1 * (1 - 1e-12)
    lone = Ratio(1.0, 1, np.zeros(1), np.ones(1), 0.0, 0.0, 0.0)
    value = 0.75 * math.e + 0.25
    found = average(two, lone, 0.25)
    assert found.q.sum() == 0
    # rounding divides P's mass in proportion to the nodes: it is the share 0.75 of its mass
    assert found.p.sum() == pytest.approx(0.75, rel=1e-12)
    place = math.log(value) - 0.0
    np.testing.assert_allclose(
        found.p[found.p > 0],
        [
            0.75 * (1 - math.expm1(place) / math.expm1(1)) * math.exp(-place),
            0.75 * math.expm1(place) / math.expm1(1) * math.exp(1 - place),
        ],
    )


def test_what_averages_lose_is_as_much_as_they_lack():
    """Under P all masses sum to 1 with what is lost; under Q to more, where both may be lost."""
    one = draw(6, 5, 0.25, -2, zero=0.125, infinite=0.0625)
    two = draw(7, 6, 0.25, 0, zero=0.25, infinite=0.5)
    for share in (0.5, 0.2):
        found = average(one, two, share)
        assert found.p.sum() + found.infinite == pytest.approx(1, rel=1e-12)
        assert found.q.sum() == pytest.approx(0.875 * 0.75, rel=1e-12)
        assert found.zero == 0.375 >= 1 - found.q.sum()


@pytest.mark.parametrize("cuts", [(1e-3, 1e-5), (1e-5, 1e-3)])
def test_averages_cut_what_the_looser_one_cuts(cuts):
    one, two = (draw(k, 5, 0.25, -2, cut=cut) for k, cut in enumerate(cuts))
    found = average(one, two, 0.5)
    assert found.cut == 1e-3 and found.zero == found.infinite == 2e-3


# Which grid, which shares.


def two_points(h, nodes):
    """A ratio on ``nodes`` + 1 nodes whose loss is either end: its standard deviation is half the
    width."""
    masses = np.zeros(nodes + 1)
    masses[0] = masses[-1] = 0.5
    return Ratio(h, 0, masses, masses, 0.0, 0.0)


# (step and intervals of each, share, resolution), and what is averaged: steps, share, finer
GRIDS = [
    ((1.0, 8), (1.0, 8), 0.5, 2, (1.0, 1.0, 0.5, 1)),  # wanted: 4 / sqrt(2) / 2 = 1.41
    ((1.0, 8), (1.0, 8), 0.5, 3, (1.0, 1.0, 0.5, 1)),  # .943: 1 is below 1.4 times as much
    ((1.0, 8), (1.0, 8), 0.5, 4, (1.0, 1.0, 0.5, 2)),  # .707
    ((1.0, 8), (1.0, 8), 0.125, 4, (1.0, 1.0, 0.125, 1)),  # .884
    ((1.0, 8), (1.0, 8), 0.875, 4, (1.0, 1.0, 0.875, 1)),
    ((1.0, 8), (1.0, 0), 0.5, 9, (1.0, 1.0, 0.5, 1)),  # a single node is not refined
    ((1.0, 8), (1.0, 1), 0.5, 9, (1.0, 1.0, 0.5, 2)),
    ((1.0, 8), (1.0, 14), 0.5, 90, (1.0, 1.0, 0.5, 2)),  # 15 nodes, of at most 30
    ((1.0, 8), (1.0, 15), 0.5, 90, (1.0, 1.0, 0.5, 1)),  # 16 nodes
    ((1.0, 8), (0.5, 0), 0.5, 1, (1.0, 1.0, 0.5, 1)),  # wanted 2
    ((1.0, 8), (0.25, 0), 0.5, 4, (1.0, 0.5, 0.5, 1)),  # wanted .5 is twice .25, and not twice .5
    ((1.0, 8), (0.25, 0), 0.5, 5, (1.0, 0.25, 0.5, 1)),  # .4
    ((0.25, 0), (1.0, 8), 0.5, 5, (1.0, 0.25, 0.5, 1)),  # in the other order, share as it was
    ((0.25, 0), (1.0, 8), 0.25, 7, (1.0, 0.25, 0.75, 1)),  # .43
    ((0.25, 0), (1.0, 8), 0.25, 6, (1.0, 0.5, 0.75, 1)),  # .75 * 4 / 6 = .5
    ((1.0, 14), (0.25, 4), 0.5, 400, (1.0, 0.25, 0.5, 2)),  # 15 nodes of 1: 60 of .25
    ((1.0, 15), (0.25, 4), 0.5, 400, (1.0, 0.5, 0.5, 2)),  # 64 of .25, of twice 30: coarser
    ((2.0, 15), (0.5, 4), 0.5, 400, (2.0, 1.0, 0.5, 2)),
    ((1.0, 31), (0.25, 4), 0.5, 400, (1.0, 1.0, 0.5, 2)),
]


@pytest.mark.parametrize(("one", "two", "share", "resolution", "expected"), GRIDS)
def test_grids_are_as_fine_as_the_average_needs(one, two, share, resolution, expected, monkeypatch):
    """A node for each standard deviation over ``resolution``, within ``MOST_NODES`` nodes."""
    monkeypatch.setattr(ratio_law, "MOST_NODES", 30)
    monkeypatch.setattr(
        ratio_law, "average", lambda one, two, share, finer: (one.h, two.h, share, finer)
    )
    assert mix_ratios(two_points(*one), two_points(*two), share, resolution) == expected


def test_the_larger_step_comes_first():
    """Ratios on steps of which the smaller is given first are averaged with their own shares."""
    one, two = proper(draw(8, 4, 0.25, 0)), proper(draw(9, 4, 0.5, 0))
    found = mix_ratios(one, two, 0.25, 1)
    values = np.add.outer(0.25 * points(one), 0.75 * points(two)).ravel()
    mass = np.outer(one.q, two.q).ravel()
    assert (found.q * points(found)).sum() == pytest.approx((mass * values).sum(), rel=1e-12)


def round_down(count, bits=12):
    """The leading ``bits`` binary digits of a number."""
    digits = bin(count)[2:]
    return int(digits[:bits].ljust(len(digits), "0"), 2)


@pytest.mark.parametrize("far", [False, True])
def test_shares_of_means_are_proportional_to_copies(far, monkeypatch):
    """Every average weighs its two means by how many copies each is of; in all as many as asked
    for, or fewer by less than one in 2,000: fewer are a spread of more."""
    seen = set()

    def mix(one, two, share, resolution):
        assert share == one / (one + two)
        seen.add(resolution)
        return one + two

    def single(a, h, *, far):
        assert (a, h) == (0.7, 0.1)
        return 1 if far == asked else math.nan

    monkeypatch.setattr(ratio_law, "mix_ratios", mix)
    monkeypatch.setattr(ratio_law, "lognormal", single)
    asked = far
    for count in (*range(1, 70), 4094, 4095, 4096, 4097, 4098, 8191, 8193, 12_345_678, 2**40 - 1):
        seen.clear()
        found = ratio_law.mean_of(0.7, count, 0.1, 50, far=far)
        assert found == round_down(count) and 0.9995 * count <= found <= count
        digits = len(bin(count)) - 2
        assert seen <= {round(50 * max(1.0, math.sqrt(digits / 6)))} and (count == 1 or seen)


@pytest.mark.parametrize(("a", "count"), [(1.0, 1), (1.0, 2), (0.5, 5), (1.0, 12), (0.2, 23)])
def test_means_of_copies_have_the_variance_of_independent_copies(a, count):
    """(e^(a^2) - 1) / count under Q; rounding adds at most a few thousandths."""
    law = ratio_law.mean_of(a, count, a / 32, 32)
    nodes = points(law)
    assert law.q.sum() == pytest.approx(1, abs=1e-12)
    assert (law.q @ nodes) == pytest.approx(1, abs=1e-12)
    variance, exact = law.q @ (nodes - 1) ** 2, math.expm1(a * a) / count
    assert exact <= variance <= 1.002 * exact
    # every average cuts 2e-20 from either order
    assert 2.2e-21 <= law.zero < 1e-17 and 2.2e-21 <= law.infinite < 1e-17


@pytest.mark.parametrize("epsilon", [0.05, 0.4, 1.0])
def test_a_mean_of_two_against_an_integral(epsilon):
    """delta in both orders of the mean of two ratios of N(1, 1) and N(0, 1): above, and near."""
    x = np.linspace(-9, 10, 1901)
    density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * (x[1] - x[0])
    ratio = np.exp(x - 0.5)
    removed = added = 0.0
    for sign, level in ((1, math.exp(epsilon)), (-1, math.exp(-epsilon))):
        # the second ratio's part in closed form: E[(Y_1 + Y_2 - 2 level)_+] given Y_1
        rest = 2 * level - ratio
        positive = rest > 0
        above = np.where(positive, 0.0, -rest + 1)
        logs = np.log(rest[positive])
        above[positive] = ndtr(0.5 - logs) - rest[positive] * ndtr(-0.5 - logs)
        excess = float(density @ above) / 2
        if sign > 0:
            removed = excess
        else:
            added = (excess - 1 + level) / level
    found = ratio_law.mean_of(1.0, 2, 1 / 64).deltas(epsilon)
    for exact, delta in zip((removed, added), found, strict=True):
        assert exact * (1 - 1e-7) <= delta <= exact * 1.002
