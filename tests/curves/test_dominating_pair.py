"""Curves of a dominating pair: which of its bounds counts, with a distribution that is known."""

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from lastiterate.curves import dominating_pair
from lastiterate.curves.curve import UP, BestOf, Exchanged, Grouped
from lastiterate.curves.dominating_pair import DominatingPair
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import renyi_divergence
from lastiterate.errors import InputError


@dataclass(frozen=True)
class Gaussians:
    """Deltas of two Gaussian mechanisms, one for each order, and more that counts in full."""

    mus: tuple[float, float]
    floors: tuple[float, float] = (0.0, 0.0)

    def deltas(self, epsilon, mu):
        one, two = (
            min(1.0, Gdp(math.hypot(own, mu)).delta(epsilon) + floor)
            for own, floor in zip(self.mus, self.floors, strict=True)
        )
        return one, two


@dataclass(frozen=True)
class Pair(DominatingPair):
    """A mechanism that is a Gaussian one of ``strength`` if its draws were known."""

    strength: float
    near: Gaussians | None
    far: Gaussians = field(default=Gaussians((math.inf, math.inf)))
    certain: float = 0.0

    @property
    def known(self):
        return Gdp(math.hypot(self.strength, self.mu))

    def law(self):
        assert self.mu == 0, "the distribution is that without the Gaussian mechanism"
        return None if self.near is None else (self.near, self.certain)

    def far_law(self):
        assert self.mu == 0 and self.near is not None
        return self.far


EPSILONS = [0.0, 0.4, 1.5, 4.0]


@pytest.mark.parametrize("mu", [0.0, 0.8])
@pytest.mark.parametrize("certain", [0.0, 0.6])
@pytest.mark.parametrize("mus", [(0.5, 0.7), (0.7, 0.5), (0.5, 3.0), (3.0, 0.5), (3.0, 4.0)])
def test_each_order_has_the_smaller_bound(mus, certain, mu):
    """Of the distribution with all Gaussian mechanisms, and of draws that are known."""
    curve = Pair(1.0, Gaussians(mus), certain=certain, mu=mu)
    for epsilon in EPSILONS:
        expected = [
            Gdp(min(math.hypot(own, certain, mu), math.hypot(1.0, mu))).delta(epsilon)
            for own in mus
        ]
        assert curve.directions(epsilon) == pytest.approx(expected, rel=1e-8)
        assert curve.delta(epsilon) == max(curve.directions(epsilon))
    rows = [curve.directions(epsilon) for epsilon in EPSILONS]
    np.testing.assert_allclose(curve.profile(np.array(EPSILONS)), rows, rtol=1e-12)
    for delta in (1e-3, 1e-9):
        worst = min(max(math.hypot(own, certain, mu) for own in mus), math.hypot(1.0, mu))
        assert curve.epsilon(delta) == pytest.approx(Gdp(worst).epsilon(delta), rel=1e-7)
        assert curve.delta(curve.epsilon(delta)) <= delta


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_without_a_distribution_draws_count_as_known(mu):
    curve, known = Pair(1.0, None, mu=mu), Gdp(math.hypot(1.0, mu))
    for epsilon in EPSILONS:
        assert curve.directions(epsilon) == (known.delta(epsilon),) * 2
    np.testing.assert_array_equal(
        curve.profile(np.array(EPSILONS)), known.profile(np.array(EPSILONS))
    )
    assert curve.epsilon(1e-6) == known.epsilon(1e-6)


def test_logarithms_reach_below_doubles():
    """The Gaussian curve's where masses underflow; the distribution's where it is smaller."""
    curve = Pair(2.0, Gaussians((0.5, 0.6)))
    epsilons = np.array([1.0, 8.0, 120.0])
    logs = curve.log_profile(epsilons)
    with np.errstate(divide="ignore"):
        own = np.log(np.maximum(curve.profile(epsilons), 1e-305))
    np.testing.assert_allclose(logs[:2], own[:2], rtol=1e-9)
    np.testing.assert_allclose(logs[2], curve.known.log_profile(epsilons)[2], rtol=1e-12)
    assert logs[2].max() < -745


FLOORS = (2.0**-20, 2.0**-30)


@dataclass(frozen=True)
class Given:
    """The same deltas everywhere."""

    both: tuple[float, float]
    floors: tuple[float, float] = (0.0, 0.0)

    def deltas(self, epsilon, mu):
        return self.both


@pytest.mark.parametrize(
    ("near", "far", "expected"),
    [
        # in floors: at more than ten the far distribution is not asked
        ((10.1, 10.1), None, (10.1, 10.1)),
        ((19.0, 3e5), None, (19.0, 3e5)),
        # at most ten floors of the first, or of the second, or of both
        ((10.0, 10.1), (0.02, 1.0), (0.02, 10.1)),
        ((10.1, 10.0), (0.02, 1.0), (10.1, 1.0)),
        ((9.0, 9.0), (0.02, 1e-3), (0.02, 1e-3)),
        ((1.0, 1.0), (0.02, 1e-3), (0.02, 1e-3)),
        # a far distribution that is looser
        ((9.0, 9.0), (20.0, 10.0), (9.0, 9.0)),
        ((9.0, 10.1), (20.0, 1.0), (9.0, 10.1)),
        ((10.1, 9.0), (2.0, 10.0), (10.1, 9.0)),
    ],
)
def test_near_its_floor_each_order_has_the_far_bound(near, far, expected, monkeypatch):
    near, far, expected = (
        tuple(f * floor for f, floor in zip(of or (math.nan,) * 2, FLOORS, strict=True))
        for of in (near, far, expected)
    )
    curve = Pair(50.0, Given(near, FLOORS), Given(far))
    if math.isnan(far[0]):
        monkeypatch.setattr(Pair, "far_law", property(lambda _: pytest.fail("is not near")))
    assert curve.directions(1.0) == expected
    assert curve.profile(np.array([1.0, 2.0])).tolist() == [list(expected)] * 2


@pytest.mark.parametrize("floors", [(1e-6, 1e-10), (1e-10, 1e-6)])
@pytest.mark.parametrize("delta", [2e-5, 9.9e-6, 2e-6, 1e-8, 1e-12])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_epsilons_near_the_larger_floor_are_those_of_the_far_bound(delta, floors, mu):
    curve = Pair(9.0, Gaussians((0.5, 0.6), floors), Gaussians((0.51, 0.61)), mu=mu)
    found = curve.epsilon(delta)
    assert curve.delta(found) <= delta < curve.delta(found * (1 - 1e-6))
    exact = Gdp(math.hypot(0.6, mu)).epsilon(delta)
    far = Gdp(math.hypot(0.61, mu)).epsilon(delta)
    assert exact <= found <= 1.04 * far
    if delta <= 1e-8:  # a distribution with its floors has none
        assert found == pytest.approx(far, rel=1e-6) or found < far


def test_above_all_floors_epsilon_needs_no_far_bound(monkeypatch):
    monkeypatch.setattr(Pair, "far_law", lambda _: pytest.fail("is not near"))
    curve = Pair(9.0, Gaussians((0.5, 0.6), (1e-6, 1e-7)))
    expected = Gdp(0.6).epsilon(1.01e-5 - 1e-7)
    assert curve.epsilon(1.01e-5) == pytest.approx(expected, rel=0.02)


def test_known_draws_bound_epsilon_near_a_floor():
    curve = Pair(0.4, Gaussians((0.5, 0.6), FLOORS), Gaussians((0.5, 0.6)))
    for delta in (1e-3, 1e-7, 1e-12):
        assert curve.epsilon(delta) == pytest.approx(Gdp(0.4).epsilon(delta), rel=1e-8)


def test_gaussian_mechanisms_join_in_squares():
    curve = Pair(1.0, Gaussians((0.5, 0.6)), mu=0.3).with_gaussian(0.4)
    assert curve.mu == 0.5 * UP and curve.strength == 1.0
    assert Pair(1.0, None).mu == 0.0
    with pytest.raises(InputError, match="mu"):
        Pair(1.0, None, mu=-0.1)


def test_divergences_groups_and_exchanges_also_use_known_draws():
    curve = Pair(1.0, Gaussians((0.6, 0.6)), mu=0.3)
    known = Gdp(math.hypot(1.0, 0.3))
    assert curve.rdp(3.0) == renyi_divergence(curve, 3.0, known.mu)
    assert 3.0 * math.hypot(0.6, 0.3) ** 2 / 2 <= curve.rdp(3.0) < 3.0 * known.mu**2 / 2
    assert curve.group(3) == BestOf((Grouped(curve, 3), known.group(3)))
    assert curve.replace_one_curve() == BestOf((Exchanged(curve), known.replace_one_curve()))
    assert curve.coarser().coarse and not curve.coarse


@pytest.fixture(autouse=True)
def empty_caches():
    for cached in (dominating_pair._law, dominating_pair._far_law, dominating_pair._epsilon):
        cached.cache_clear()
