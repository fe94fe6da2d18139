"""Steps on sampled batches: their loss grids, compositions, rounding and divergences."""

import math
import sys

import mpmath as mp
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from lastiterate.curves import subsampling
from lastiterate.curves.gaussian import Gdp
from oracles import sampled


@pytest.mark.parametrize(
    ("z", "rate", "deviation", "largest"),
    [
        (0.5, 0.1, 0.1 * math.sqrt(math.e**4 - 1), 22 + math.log(0.1) - math.log(0.9)),
        (2.0, 0.01, 0.01 * math.sqrt(math.expm1(0.25)), 0.9927808115898041),
        (0.03, 0.3, 1 / 0.03, 888.0415910285017),
        (0.032, 0.01, 1 / 0.032, 796.1861301498654),
        (3.0, 1.0, 1 / 3, 2 * (10 / 3 + 1 / 18)),
        (0.02, 1.0, 50.0, 3500.0),
        (1e5, 1e-4, 1e-9, 1e-4 * 1e-4 + 1.00005e-4),
    ],
)
def test_how_far_losses_of_one_step_reach(z, rate, deviation, largest):
    """By hand where that is short, else as the code says; both stay numbers for little noise."""
    assert subsampling.spread(z, rate) == pytest.approx(deviation, rel=1e-9)
    assert subsampling.largest_loss(z, rate) == pytest.approx(
        largest, rel=1e-4 if z > 1e4 else 1e-8
    )


FOUR, FIVE = (((1.0, 1), (1.1, 1), (1.2, 1), (1.3, 1), (1.4, 5))[:count] for count in (4, 5))


DEVIATION = math.sqrt(math.expm1(1 / 4))
"""Of the likelihood ratio where noise is 2."""
SINGLE = math.log1p(0.1 * math.expm1(10.5)) - math.log(0.9) + 300 + 900
"""How far losses of a step with noise 1 and rate 0.1 and of a Gaussian mechanism of mu 30 reach."""


@pytest.mark.parametrize(
    ("levels", "rate", "mu", "fine", "coarse"),
    [
        (((2.0, 10),), 0.01, 0.0, 2e-4, 0.0013323508750694708),
        (((20.0, 500),), 0.5, 0.2, 2e-4, 0.006253908285268357),
        (((0.5, 3),), 0.5, 0.0, 0.0006713867187585127, 0.5),
        (((2.0, 10),), 0.003, 0.0, 0.003 * DEVIATION / 16, 0.003 * DEVIATION / 4),
        (FIVE, 0.1, 30.0, 1.25 * SINGLE / 2**15, 1.25 * SINGLE / 2**15),
        (2 * FOUR, 0.1, 30.0, 2 * SINGLE / 2**15, 2 * SINGLE / 2**15),
        (((2.0, 10),), 0.01, 5.0, 0.0023191156253536925, 0.0023191156253536925),
        (((100.0, 10**6),), 1e-4, 0.0, 1e-6, 1e-6),
        (FOUR, 0.1, 0.0, 0.0002533881597901499, 0.027423610117395494),
        (FIVE, 0.1, 0.3, 0.011888737326685304, 0.023777474653370607),
        (((0.05, 10**4),), 0.4, 0.0, 0.030898661169902697, 5.0),
        (((1.0, 10**8),), 0.4, 0.0, 0.08001649305329249, 0.13108324944320862),
        (((1.0, 10**6),), 0.3, 0.0, 0.006009720554030683, 0.09831243708240646),
        (((1e3, 10**8),), 1e-3, 30.0, 0.036621124589567726, 0.036621124589567726),
        (
            tuple((1e-3 * i, 1) for i in range(20, 28)),
            0.4,
            0.0,
            5.396612025166663,
            10.79322405033326,
        ),
    ],
)
def test_intervals_of_loss_grids(levels, rate, mu, fine, coarse):
    """Numbers of the code itself: the share of a deviation, or what the number of points allows."""
    for wanted, cheap in ((fine, False), (coarse, True)):
        found = subsampling.interval(levels, rate, mu, coarse=cheap)
        assert found == pytest.approx(wanted, rel=1e-9), (levels, cheap)


@pytest.mark.parametrize("rate", [1e-3, 0.3, 0.98])
def test_losses_of_a_record_that_is_drawn(rate):
    """log(1 + (e^loss - 1) / q), and minus infinity below log(1 - q), which no loss is."""
    lowest = math.log1p(-rate)
    losses = np.array(
        [lowest * 1.5, lowest * 1.01, lowest * 0.99, lowest / 2, 0.0, 1e-9, 1.0, 700.0]
    )
    found = subsampling._loss_when_drawn(losses, rate)
    assert (found[:2] == -math.inf).all()
    with mp.workdps(40):
        for loss, value in zip(losses[2:], found[2:], strict=True):
            wanted = mp.log(1 + mp.expm1(mp.mpf(float(loss))) / mp.mpf(rate))
            assert value == pytest.approx(float(wanted), rel=1e-9, abs=1e-12)


def test_a_step_of_all_records_has_one_order():
    """Without sampling both orders are alike: one distribution serves for both."""
    alike = subsampling._single(2.0, 1.0, 0.01)
    assert alike._pmf_remove is alike._pmf_add
    sampled = subsampling._single(2.0, 0.5, 0.01)
    assert sampled._pmf_remove is not sampled._pmf_add


@pytest.mark.parametrize("mu", [0.0, 0.7, 3.0])
def test_losses_of_all_steps_and_a_gaussian_mechanism(mu):
    """Without sampling all is one Gaussian mechanism, whose curve is known."""
    pld = subsampling.losses(((2.0, 3), (4.0, 8)), 1.0, mu, 1e-3)
    exact = Gdp(math.sqrt(3 / 4 + 8 / 16 + mu**2))
    epsilons = np.array([0.0, 0.5, 2.0, 6.0])
    for column in subsampling.profile(pld, epsilons).T:
        for epsilon, delta in zip(epsilons, column, strict=True):
            assert exact.delta(float(epsilon)) * (1 - 1e-9) - 1e-12 <= delta
            assert delta <= exact.delta(float(epsilon)) * (1 + 1e-3)


def test_profiles_have_the_order_of_removal_first():
    pld = subsampling.losses(((1.0, 3),), 0.2, 0.0, 1e-3)
    epsilons = np.array([0.1, 1.0])
    points = [subsampling.directions(pld, float(epsilon)) for epsilon in epsilons]
    assert all(removed > 1.05 * added for removed, added in points)
    np.testing.assert_allclose(subsampling.profile(pld, epsilons), points, rtol=1e-9)
    exact = sampled.one_step(epsilons, 0.2, 1.0)
    single = subsampling.losses(((1.0, 1),), 0.2, 0.0, 1e-3)
    np.testing.assert_allclose(subsampling.profile(single, epsilons).T, exact, 2e-3, 1e-12)


@pytest.mark.parametrize(("rate", "z", "grid"), [(0.4, 1.0, 0.01), (0.02, 0.7, 0.003)])
def test_one_step_s_grid_is_the_library_s(rate, z, grid):
    ours = subsampling._single(z, rate, grid)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=rate, value_discretization_interval=grid
    )
    for name in ("_pmf_remove", "_pmf_add"):
        one, two = (getattr(law, name).to_dense_pmf() for law in (ours, theirs))
        assert one._lower_loss == two._lower_loss and one.size == two.size


class Counted:
    """Counts compositions as a distribution would be composed, and how many calls that takes."""

    def __init__(self, count=1, calls=()):
        self.count, self.calls = count, calls

    def self_compose(self, count, tail=1e-15):
        return Counted(self.count * count, (*self.calls, count))

    def compose(self, other):
        return Counted(self.count + other.count, (*self.calls, *other.calls))


@pytest.mark.parametrize(
    ("count", "calls"),
    [
        (1, (1,)),
        (100, (100,)),
        (2**16, (2**16,)),
        (2**16 + 1, (64, 1024, 1)),
        (64 * 2000, (64, 2000)),
        (10**7 + 5, (64, 156250, 5)),
    ],
)
def test_repetitions_add_up(count, calls):
    found = subsampling._repeat(Counted(), count)
    assert found.count == count and found.calls == calls


@pytest.mark.parametrize("least", [1.0, 0.04, 7.0])
def test_levels_are_rounded_down_to_a_geometric_grid(least):
    levels = tuple((least * (1.0 + 0.1 * i), i + 1) for i in range(10))
    for most in (10, 11):
        assert subsampling.merge_levels(levels, most) == levels
    for most in (1, 2, 4, 9):
        merged = subsampling.merge_levels(levels, most)
        assert len(merged) <= most and sum(n for _, n in merged) == 55
        assert list(merged) == sorted(merged) and merged[0][0] == least
        for z, _ in levels:  # the next level below is at most a factor away
            below = max(floor for floor, _ in merged if floor <= z)
            assert z / below <= 1.9 ** (1 / most) * (1 + 1e-9)
        for z in (least, 1.15 * least, 1.45 * least, 1.85 * least):  # never more noise
            assert sum(n for floor, n in merged if floor > z) <= sum(n for y, n in levels if y > z)
    assert [z for z, _ in subsampling.merge_levels(levels, 4)] == pytest.approx(
        [least * 1.9 ** (i / 4) for i in range(4)]
    )
    assert [n for _, n in subsampling.merge_levels(levels, 4)] == [3, 7, 18, 27]
    silent = ((0.0, 1), (1.0, 2), (2.0, 3))
    assert subsampling.merge_levels(silent, 2) == silent


@pytest.mark.parametrize(
    ("levels", "rate", "grid"),
    [(((1.0, 1),), 0.1, 1e-3), (((1.0, 10**6), (3.0, 50)), 0.01, 1e-4), (((0.05, 30),), 0.5, 1e-5)],
)
def test_the_allowance_covers_every_step(levels, rate, grid):
    """Rounding of each step's masses, telescoped, and of the transforms, added up by hand."""
    steps = sum(n * (2.1e-13 + 4e-16 * subsampling.spread(z, rate) ** 2 / grid) for z, n in levels)
    found = subsampling.allowance(levels, rate, grid)
    assert found == pytest.approx(1e-10 * (2 * len(levels) + 1) + steps, rel=1e-9)


def test_divergences_of_one_step_are_never_negative_or_missing():
    """Orders whose series does not converge say nothing, which is infinity."""
    orders, values = subsampling.renyi(1.5, 0.1, (1.5, 2.0, 4.0, 7.5))
    assert orders == (1.5, 2.0, 4.0, 7.5)
    for order, value in zip(orders, values, strict=True):
        exact = sampled.renyi(order, 0.1, 1.5)
        assert exact * (1 - 1e-7) <= value <= exact * (1 + 1e-5 if order % 1 == 0 else 1.4)
    listed, values = subsampling.renyi(1e3, 1e-9)
    assert len(listed) > 50 and ((values >= 0) & (values < 1e-8)).all()


def test_whether_the_library_is_there(monkeypatch):
    assert subsampling.is_installed() is True
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert subsampling.is_installed() is False
    monkeypatch.delitem(sys.modules, "dp_accounting")
    for found, wanted in ((None, False), ("spec", True)):
        monkeypatch.setattr(subsampling, "find_spec", lambda _, found=found: found)
        subsampling._is_found.cache_clear()
        assert subsampling.is_installed() is wanted
    subsampling._is_found.cache_clear()
