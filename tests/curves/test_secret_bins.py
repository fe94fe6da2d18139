"""Secret bins against exact quadrature, published values and a dense simulation; both directions,
any strengths."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr

from lastiterate.curves import allocation, ratio_law
from lastiterate.curves.allocation import BIN_FINE_LEVELS, SecretBins, likelihood_ratio, merge_bins
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError


def gaussian(epsilon, mu):
    """delta of mu-GDP."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))


def exact(epsilon, strengths):
    """Both deltas of two or three bins: quadrature over all but the last, whose part is in closed
    form."""
    nodes = np.linspace(
        -10, 10, 801
    )  # the trapezoid rule is exact to rounding for a smooth integrand
    weights = np.exp(-nodes * nodes / 2) * (nodes[1] - nodes[0]) / math.sqrt(2 * math.pi)
    first = np.exp(strengths[0] * nodes - strengths[0] ** 2 / 2)
    if len(strengths) == 3:
        second = np.exp(strengths[1] * nodes - strengths[1] ** 2 / 2)
        first, weights = (
            np.add.outer(first, second).ravel(),
            np.multiply.outer(weights, weights).ravel(),
        )
    found = []
    for level in (epsilon, -epsilon):
        left, a = len(strengths) * math.exp(level) - first, strengths[-1]
        safe = np.where(left > 0, left, 1.0)
        z = (np.log(safe) + a * a / 2) / a
        put = np.where(left > 0, left * ndtr(z) - ndtr(z - a), 0.0)  # E[(left - Y)_+]
        found.append(float((weights * put).sum()) / len(strengths))
    return found[0] + 1 - math.exp(epsilon), math.exp(epsilon) * found[1]


@pytest.mark.parametrize(
    "strengths", [(1.0, 1.0), (0.6, 1.4), (2.0, 0.3), (0.8, 0.8, 0.8), (0.5, 0.9, 1.3)]
)
def test_both_directions_lie_just_above_exact_quadrature(strengths):
    law = likelihood_ratio(strengths, (1,) * len(strengths))
    coarse = likelihood_ratio(strengths, (1,) * len(strengths), True)
    for epsilon in (0.0, 0.3, 1.0, 1.7):
        three = law.deltas(epsilon), coarse.deltas(epsilon), exact(epsilon, strengths)
        for ours, rough, true in zip(*three, strict=True):
            assert true * (1 - 1e-9) - 1e-12 <= ours <= true * 1.01 + 1e-9, (strengths, epsilon)
            assert ours <= rough * (1 + 1e-9) and rough <= true * 1.1 + 1e-8


def test_one_bin_hides_nothing():
    for a in (1e-3, 0.7, 3.0, 20.0):
        law = likelihood_ratio((a,), (1,))
        for epsilon in np.array([0.0, 0.5, 2.0]) * a:
            for ours in law.deltas(float(epsilon)):
                assert gaussian(epsilon, a) <= ours <= gaussian(epsilon, a) * 1.01


@pytest.mark.parametrize(
    "a, count, published", [(1.0, 40, 1.110), (2.0, 40, 6.310), (0.5, 100, 0.1732)]
)
def test_published_values(a, count, published):
    """Computed once by direct sums, at delta = 1e-5."""
    law = likelihood_ratio((a,), (count,))
    assert max(law.deltas(published * 1.001)) <= 1e-5 <= max(law.deltas(published * 0.999))


def test_many_bins_lie_above_a_simulation():
    """2^18 draws under P, where the loss is the logarithm of the mean: an unbiased estimate of
    delta_{P||Q}."""
    rng = np.random.default_rng(4)
    strengths = np.repeat([0.0, 0.7, 1.1], [3, 5, 4])
    z = rng.normal(size=(2**18, strengths.size))
    place = rng.integers(strengths.size, size=z.shape[0])
    z[np.arange(z.shape[0]), place] += strengths[place]
    losses = np.log(np.exp(strengths * z - strengths**2 / 2).mean(1))
    law = likelihood_ratio((0.0, 0.7, 1.1), (3, 5, 4))
    for epsilon in (0.2, 0.8):
        each = -np.expm1(np.minimum(epsilon - losses, 0.0))
        error = 4 * each.std() / math.sqrt(each.size)
        assert each.mean() - error <= law.deltas(epsilon)[0] <= each.mean() + error


def test_a_gaussian_mechanism_on_top():
    """Composed with mu it is the mean over bins of two Gaussian mechanisms' ratios: exact for one
    bin."""
    law = likelihood_ratio((0.8,), (1,))
    for epsilon in (0.0, 1.0, 3.0):
        for ours in law.deltas(epsilon, 0.6):
            assert gaussian(epsilon, 1.0) <= ours <= gaussian(epsilon, 1.0) * 1.001
    many = likelihood_ratio((1.0,), (40,))
    assert max(many.deltas(1.0, 1e-9)) == pytest.approx(max(many.deltas(1.0)), rel=1e-6)
    assert max(many.deltas(1.0, 0.3)) > 2 * max(many.deltas(1.0))


def test_means_are_preserved_and_nothing_is_lost():
    """Masses under P are the nodes times those under Q, both sum to 1, also where Q underflows."""
    for strengths, counts in (((1.0,), (37,)), ((0.05,), (5000,)), ((0.5, 0.51, 2.0), (10, 3, 1))):
        law = likelihood_ratio(strengths, counts)
        assert law.q.sum() + law.zero == pytest.approx(1, abs=1e-10)
        assert law.p.sum() + law.infinite == pytest.approx(1, abs=1e-10)
        assert law.p == pytest.approx(law.q * np.exp(law.logs), rel=1e-9)
    large = likelihood_ratio((60.0,), (3,))
    assert large.p.sum() == pytest.approx(1, abs=1e-10)
    # 60-GDP at a third of the chance: delta(epsilon) = delta_mu(epsilon + log 3) up to the other
    # bins
    epsilon = 2000.0
    assert large.deltas(epsilon)[0] == pytest.approx(
        float(gaussian(epsilon + math.log(3), 60.0)), rel=0.02
    )
    assert large.deltas(epsilon)[0] >= gaussian(epsilon + math.log(3), 60.0)


def test_strengths_are_only_rounded_up():
    rng = np.random.default_rng(8)
    for _ in range(50):
        strengths, counts = rng.uniform(0, 2, 30) ** 3, rng.integers(1, 5, 30)
        bins = tuple((float(a), int(n)) for a, n in zip(strengths, counts, strict=True))
        levels = merge_bins((*bins, (0.0, 7)), BIN_FINE_LEVELS)
        assert (
            len(levels) <= BIN_FINE_LEVELS + 1
            and sum(n for _, n in levels) == sum(n for _, n in bins) + 7
        )
        assert levels[0] == (0.0, 7) and max(levels)[0] == max(bins)[0]
        for threshold in rng.uniform(0, 2, 20):  # at least as many bins exceed any strength
            assert sum(n for a, n in levels if a >= threshold) >= sum(
                n for a, n in bins if a >= threshold
            )


def test_counts_are_only_rounded_down():
    """Fewer bins hide less; the binary expansion of any count gives the same as equal shares."""
    h = 1.0 / ratio_law.FINE
    deltas = [max(ratio_law.mean_of(1.0, count, h).deltas(0.5)) for count in (4, 5, 6, 7, 8)]
    assert all(one > two for one, two in pairwise(deltas))
    many = [ratio_law.mean_of(0.1, count, 0.1 / 64).deltas(0.01) for count in (4096, 4097)]
    assert many[0] == many[1]


def test_coarser_grids_are_spreads():
    law = ratio_law.mean_of(1.0, 8, 1 / 64)
    wide = ratio_law.coarsen(law)
    assert wide.h == 2 * law.h and abs(wide.q.size - law.q.size / 2) <= 4
    for epsilon in (0.0, 0.5, 2.0):
        for one, two in zip(law.deltas(epsilon), wide.deltas(epsilon), strict=True):
            assert one * (1 - 1e-12) <= two <= one * 1.01


def test_the_curve():
    curve = SecretBins((0.9, 1.0), (30, 10))
    epsilon = curve.epsilon(1e-5)
    assert curve.delta(epsilon) <= 1e-5 < curve.delta(epsilon * (1 - 1e-6))
    assert curve.coarser().epsilon(1e-5) > epsilon and curve.coarser().coarser() == curve.coarser()
    assert (
        curve.delta(1.0) == max(curve.directions(1.0))
        and curve.directions(1.0)[0] > curve.directions(1.0)[1]
    )
    assert curve_from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    assert SecretBins((0.0,), (3,)).epsilon(1e-5) <= 1e-9
    assert SecretBins((100.0,), (30,)).epsilon(1e-5) == pytest.approx(Gdp(100.0).epsilon(1e-5))
    assert SecretBins((math.inf,), (30,)).epsilon(1e-5) == math.inf
    for bad in (((1.0,), ()), ((1.0,), (0,)), ((-1.0,), (2,))):
        with pytest.raises(InputError):
            SecretBins(*bad)


def test_composition_with_gaussians():
    curve = SecretBins((1.0,), (40,))
    together = compose(curve, Gdp(0.3), Gdp(0.4))
    assert isinstance(together, SecretBins) and together.mu == pytest.approx(0.5)
    assert compose(Gdp(0.5), curve).epsilon(1e-5) == pytest.approx(together.epsilon(1e-5), rel=1e-9)
    assert (
        curve.epsilon(1e-5) + 0.1 < together.epsilon(1e-5) < Gdp(math.hypot(1.0, 0.5)).epsilon(1e-5)
    )
    alone = SecretBins((1.0,), (1,), mu=0.75)
    assert Gdp(1.25).epsilon(1e-5) <= alone.epsilon(1e-5) <= Gdp(1.25).epsilon(1e-5) * 1.0001


def exact_renyi(order, strengths):
    """Both directions of two bins: quadrature of moments of the ratio."""
    z = np.linspace(-14, 14, 561)  # the trapezoid rule is exact to rounding for a smooth integrand
    w = np.exp(-z * z / 2) * (z[1] - z[0]) / math.sqrt(2 * math.pi)
    one, two = (np.exp(a * z - a * a / 2) for a in strengths)
    ratio, mass = np.add.outer(one, two) / 2, np.multiply.outer(w, w)
    return [
        math.log(float((mass * ratio**power).sum())) / (order - 1) for power in (order, 1 - order)
    ]


def test_renyi_divergences_lie_just_above_quadrature():
    for strengths in ((0.8, 0.8), (0.3, 1.1)):
        curve = SecretBins(strengths, (1, 1))
        for order in (1.1, 2.0, 5.0, 12.0):
            true = max(exact_renyi(order, strengths))
            assert true <= curve.rdp(order)
            assert curve.rdp(order) <= (
                true * 1.02 + 1e-6 if order < 6 else Gdp(max(strengths)).rdp(order)
            )
        assert curve.rdp(300.0) <= 300 * max(strengths) ** 2 / 2 * (1 + 1e-9)
    assert SecretBins((1.0,), (100,)).rdp(2.0) == pytest.approx(
        math.log(1 + (math.e - 1) / 100), rel=0.02
    )


def test_groups_hold_for_two_records():
    """Two records in bins of their own, both removed: the exact pair of three bins by sampling,
    below the bound."""
    rng = np.random.default_rng(3)
    a, bins, trials = 0.7, 3, 400_000
    z = rng.normal(size=(trials, bins))
    for _ in range(2):
        z[np.arange(trials), rng.integers(bins, size=trials)] += a
    pairs = [(i, j) for i in range(bins) for j in range(bins)]
    shifts = np.array([[(i == k) + (j == k) for k in range(bins)] for i, j in pairs]) * a
    losses = np.log(np.mean([np.exp(z @ shift - shift @ shift / 2) for shift in shifts], axis=0))
    curve = SecretBins((a,), (bins,)).group(2)
    for epsilon in (0.5, 1.5):
        assert -np.expm1(np.minimum(epsilon - losses, 0.0)).mean() * 0.98 <= curve.delta(epsilon)


def test_known_bins_and_where_numbers_end():
    curve = SecretBins((0.3, 1.2, 0.0), (2, 1, 4), mu=0.5)
    assert 1.3 <= curve.known.mu <= 1.3 * (1 + 1e-11)
    for strength, numbers in ((64.0, True), (64.1, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(allocation, "likelihood_ratio", lambda *_: "a distribution")
            found = SecretBins((1.0, strength), (3, 1)).law()
        assert found == (("a distribution", 0.0) if numbers else None)


@pytest.mark.parametrize(
    "bins, most, levels",
    [
        (((0.0, 7), (1e-9, 1), (0.5, 2), (1.0, 3)), 3, ((0.0, 7), (1 / 32, 1), (0.5, 2), (1.0, 3))),
        (((0.5, 2), (1e-9, 1), (0.25, 3)), 4, ((1 / 64, 1), (0.25, 3), (0.5, 2))),
        (((1e-5, 1), (1e-8, 4), (0.0, 2), (0.0, 3)), 4, ((0.0, 5), (1e-6, 4), (1e-5, 1))),
        (((1e-7, 3),), 4, ((1e-6, 3),)),
        (((0.0, 3),), 4, ((0.0, 3),)),
        (((1.0, 1), (1.0, 4), (0.5, 1)), 2, ((0.5, 1), (1.0, 5))),
        (
            ((1.0, 1), (1.25, 2), (1.5, 3), (1.75, 4), (1.76, 5), (2.0, 6), (3.0, 7)),
            4,
            ((1.5, 6), (2.0, 15), (3.0, 7)),
        ),
        (((1.0, 1), (1.1, 2), (1.4, 3), (1.6, 4), (2.5, 5)), 3, ((1.5, 6), (2.0, 4), (2.5, 5))),
    ],
)
def test_strengths_are_rounded_up_to_the_next_level(bins, most, levels):
    """To a 32nd of the largest, to 1e-6, and where there are too many to equal distances."""
    found = merge_bins(bins, most)
    assert [count for _, count in found] == [count for _, count in levels]
    assert [a for a, _ in found] == pytest.approx([a for a, _ in levels], rel=1e-12)


@pytest.mark.parametrize(
    "coarse, resolution, strengths, expected",
    [
        (False, 64, (2.0, 0.0, 0.7), [(0.0, 5, 1), (0.7, 1, 0.25), (2.0, 3, 1)]),
        (True, 20, (2.0, 0.5, 1.0), [(0.5, 5, 0.25), (1.0, 1, 0.5), (2.0, 3, 1)]),
    ],
)
def test_levels_are_averaged_on_grids_that_contain_each_other(
    coarse, resolution, strengths, expected
):
    """Powers of two below the strongest one's grid; with the share of the bins before."""
    asked, shares = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation, "mean_of", lambda *one, far: asked.append(one) or len(asked))
        patch.setattr(allocation, "mix_ratios", lambda *one: shares.append(one) or -len(shares))
        assert likelihood_ratio.__wrapped__(strengths, (3, 5, 1), coarse) == -2
    wanted = [(a, n, 2.0 / resolution * part, resolution) for a, n, part in expected]
    assert asked == [pytest.approx(one, rel=1e-12) for one in wanted]
    assert shares == [(1, 2, 5 / 6, resolution), (-1, 3, 6 / 9, resolution)]


def test_as_many_levels_as_are_distinguished():
    strengths = tuple(np.linspace(0.5, 1.5, 40).tolist())
    for coarse, most in ((False, 12), (True, 4)):
        asked = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                allocation, "mean_of", lambda a, *_, far, asked=asked: asked.append(a) or 1
            )
            patch.setattr(allocation, "mix_ratios", lambda *_: 1)
            likelihood_ratio.__wrapped__(strengths, (1,) * 40, coarse)
        assert len(asked) == most


@pytest.mark.parametrize(
    "strengths, counts, epsilon, near, far",
    [
        ((0.8,), (7,), 0.5, (0.0265588603734, 0.0234198233173), 2.27475948332e-09),
        (
            (0.1, 0.0, 1.0),
            (4, 3, 2),
            0.5,
            (0.0101319044915, 0.00199591731336),
            1.13976868514e-07,
        ),
        ((40.0, 3.0), (2, 5), 700.0, (0.283593748862, None), None),
    ],
)
def test_deltas_are_what_they_were(strengths, counts, epsilon, near, far):
    """Of coarse curves, and far away at six times epsilon: what the code said, so that no change
    passes unnoticed."""
    curve = SecretBins(strengths, counts, coarse=True)
    for found, expected in zip(curve.law()[0].deltas(epsilon, 0.2), near, strict=True):
        assert expected is None or found == pytest.approx(expected, rel=1e-9)
    assert far is None or curve.far_law().deltas(6 * epsilon, 0.2)[0] == pytest.approx(
        far, rel=1e-8, abs=0
    )
