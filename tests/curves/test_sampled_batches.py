"""Privacy losses of Poisson-sampled steps and pairs of batches of a fixed size, against the exact
curves of single steps."""

import math
from dataclasses import replace

import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import quad

from lastiterate.curves import sampled_batches, subsampling
from lastiterate.curves.curve import BestOf, Exchanged, Grouped
from lastiterate.curves.gaussian import Gdp, delta_of_draw
from lastiterate.curves.renyi import SampledRenyi
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld, one_step
from lastiterate.errors import InputError
from oracles import sampled

EPSILONS = (0.0, 0.05, 0.4, 1.5, 3.0)


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("rate, z", [(0.2, 1.0), (0.01, 0.7), (0.9, 2.0), (0.5, 0.4)])
def test_one_sampled_step_is_its_pair_in_both_orders(rate, z, coarse):
    curve = Pld(rate, (z,), (1,), coarse=coarse)
    for epsilon in EPSILONS:
        exact = [float(order) for order in sampled.one_step(epsilon, rate, z)]
        for true, ours in zip(exact, curve.directions(epsilon), strict=True):
            assert (
                true * (1 - 1e-9)
                <= ours
                <= true * (1.15 if coarse else 1.002) + (1e-4 if coarse else 1e-9)
            )


@pytest.mark.parametrize("rate, one, two", [(0.3, 1.0, 2.0), (0.05, 0.8, 0.9)])
def test_two_sampled_steps_of_different_noise(rate, one, two):
    curve = Pld(rate, (one, two), (1, 1))
    for epsilon in (0.05, 1.5):
        exact = sampled.two_steps(epsilon, rate, one, two)
        assert exact * (1 - 1e-6) <= curve.delta(epsilon) <= exact * 1.01 + 1e-8


@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("mu", [0.3, 0.7, 2.0])
def test_steps_of_all_records_and_a_gaussian_mechanism(mu, coarse):
    """Without sampling all is one Gaussian mechanism."""
    exact, curve = Gdp(math.hypot(1.0, mu)), Pld(1.0, (2.0,), (4,), mu=mu, coarse=coarse)
    assert curve.known.mu == pytest.approx(exact.mu)
    for epsilon in EPSILONS:
        for ours in curve.directions(epsilon):
            true = exact.delta(epsilon)
            assert true * (1 - 1e-9) <= ours <= true * (1.1 if coarse else 1.001) + 1e-9
    for delta in (1e-3, 1e-6):
        true = exact.epsilon(delta)
        assert true * (1 - 1e-9) <= curve.epsilon(delta) <= true * 1.01


@pytest.mark.parametrize("rate, z, mu", [(0.2, 1.0, 0.0), (0.01, 2.0, 0.0), (1.0, 2.0, 0.6)])
def test_small_deltas_of_one_step_have_no_floor(rate, z, mu):
    """Down to 1e-40, which rounding would hide, in both orders, also with a Gaussian mechanism."""
    curve = Pld(rate, (z,), (1,), mu=mu)
    law = sampled_batches._far_law(replace(curve, mu=0.0))
    for epsilon in (0.1, 1.0, 2.0, 5.0):
        with mp.workdps(60):
            e, q, m = mp.mpf(epsilon), mp.mpf(rate), 1 / mp.mpf(z)
            if rate == 1:
                e, q, m = e, mp.mpf(1), mp.sqrt(m**2 + mp.mpf(mu) ** 2)
            inner = mp.log1p(mp.expm1(e) / q)
            true = q * (mp.ncdf(m / 2 - inner / m) - mp.exp(inner) * mp.ncdf(-m / 2 - inner / m))
        removed, added = law.deltas(epsilon, mu)
        assert true <= removed <= true * 1.1 + 1e-40
        if rate == 1:
            assert true <= added <= true * 1.1 + 1e-40
        else:
            assert float(sampled.one_step(epsilon, rate, z)[1]) <= added * (1 + 1e-9) + 1e-15
        assert true <= curve.directions(epsilon)[0] <= true * 1.1 + 1e-40


@pytest.mark.parametrize(
    "curve, epsilons",
    [
        (
            Pld(0.05, (2.0,), (100,), coarse=True),
            (1.278774621679076, 2.143329916238116, 5.272287800067244),
        ),
        (Pld(0.05, (2.0,), (100,)), (1.2735873800872406, 2.1430423878318883, 5.256781716733605)),
    ],
)
def test_epsilons_are_as_they_were(curve, epsilons):
    """Numbers of the code itself, on either side of what rounding hides, so that no change passes
    unnoticed."""
    for delta, epsilon in zip((1e-6, 1e-12, 1e-40), epsilons, strict=True):
        assert curve.epsilon(delta) == pytest.approx(epsilon, rel=1e-7)
        assert curve.delta(curve.epsilon(delta)) <= delta < curve.delta(epsilon * (1 - 1e-4))


@pytest.mark.parametrize(
    "z, mu, count, known",
    [
        (0.011, 0.0, 1, True),
        (0.0099, 0.0, 1, False),
        (1.0, 99.9, 1, True),
        (1.0, 100.1, 1, False),
        (1.0, 0.0, 10**7, True),
        (1.0, 0.0, 10**7 + 1, False),
        (0.0099, 101.0, 10**8, False),
    ],
)
def test_where_there_is_a_distribution(monkeypatch, z, mu, count, known):
    """Noise below a hundredth, a Gaussian mechanism of as little, or 10^7 steps have none."""
    monkeypatch.setattr(subsampling, "losses", lambda *_: "distribution")
    found, rounding = Pld(0.1, (z, 2.0), (count - 1, 1) if count > 1 else (1, 1), mu=mu)._losses()
    assert (found == "distribution") == known and (rounding < 1e-3) == known


@pytest.mark.parametrize("coarse, most", [(False, 64), (True, 8)])
def test_how_many_noises_are_distinguished(monkeypatch, coarse, most):
    """Noises are rounded down to a few, and to a billionth less than they are."""
    seen = []
    monkeypatch.setattr(subsampling, "losses", lambda levels, *_: seen.append(levels))
    for count in (most, most + 1):
        Pld(0.1, tuple(1.0 + 0.01 * i for i in range(count)), (3,) * count, coarse=coarse)._losses()
    assert len(seen[0]) == most and len(seen[1]) < most + 1
    assert seen[0][1] == (pytest.approx(1.01, rel=1e-8), 3) and seen[0][1][0] < 1.01
    assert sum(n for _, n in seen[1]) == 3 * (most + 1)


CASES = [
    # of plain sums in both orders; both with their allowance of 1e-6, near which tilted sums count
    ((0.3, 0.1), (0.3 + 1e-6, 0.1 + 1e-6)),
    ((1.5, 0.1), (1.0, 0.1 + 1e-6)),
    ((math.nan, 0.1), (1.0, 0.1 + 1e-6)),
    ((-0.5, 0.3), (1.0, 0.3 + 1e-6)),
    ((1.4e-4, 1.3e-4), (1.41e-4, 1.31e-4)),
    ((1.4e-4, 5e-5), (1.41e-4, 2e-7)),
    ((5e-5, 1.4e-4), (1e-7, 1.41e-4)),
    ((5e-5, 5e-5), (1e-7, 2e-7)),
    ((0.0, -1e-7), (1e-7, 2e-7)),
    ((-9.5e-7, 5e-5), (5e-8, 2e-7)),
    ((0.0, 0.5), (1e-7, 0.5 + 1e-6)),
]


@pytest.mark.parametrize("plain, wanted", CASES)
def test_plain_sums_have_their_allowance_and_tilted_ones_count_near_it(monkeypatch, plain, wanted):
    """Not a number, or a negative one, is no statement: 1."""
    monkeypatch.setattr(Pld, "_losses", lambda self: ("distribution", 1e-6))
    monkeypatch.setattr(Pld, "_small_deltas", lambda self, epsilon: (1e-7, 2e-7))
    monkeypatch.setattr(subsampling, "directions", lambda pld, epsilon: plain)
    monkeypatch.setattr(subsampling, "profile", lambda pld, epsilons: np.array([plain] * 2))
    curve = Pld(0.1, (1.0,), (1,))
    assert curve.directions(0.5) == pytest.approx(wanted, rel=1e-6)
    assert curve.profile(np.array([0.5, 0.6])) == pytest.approx(np.array([wanted] * 2), rel=1e-6)


def test_small_deltas_are_the_least_of_three_bounds(monkeypatch):
    """Of known batches, of divergences and of tilted sums, which are asked for with the Gaussian
    mechanism."""

    class Law:
        def deltas(self, epsilon, mu):
            return epsilon * 1e-30 * mu, 0.9

    curve = Pld(0.1, (1.0,), (1,), mu=0.7)
    far = curve.far.delta(2.0)
    assert 0 < far < 0.9 and far == min(curve.renyi().delta(2.0), curve.known.delta(2.0))
    monkeypatch.setattr(sampled_batches, "_far_law", lambda alone: Law() if alone.mu == 0 else None)
    assert curve._small_deltas(2.0) == (pytest.approx(1.4e-30, rel=1e-9), far)
    monkeypatch.setattr(sampled_batches, "_far_law", lambda alone: None)
    assert curve._small_deltas(2.0) == (far, far)
    assert curve._small_deltas(0.0) == (curve.far.delta(0.0),) * 2


def test_logarithms_below_every_double(monkeypatch):
    """Where both deltas are smaller than 1e-300 those of the divergences count, where they are
    less."""
    curve, epsilons = Pld(0.1, (1.0,), (1,)), np.array([40.0, 40.0, 40.0, 1e-3])
    rows = [[1e-302, 1e-5], [1e-5, 1e-6], [1e-303, 1e-302], [1e-303, 1e-302]]
    monkeypatch.setattr(Pld, "profile", lambda self, epsilons: np.array(rows))
    far = curve.far.log_profile(epsilons)[:, 0]
    assert far[0] < math.log(1e-305) and far[3] > math.log(1e-5)
    plain = np.log(np.array(rows))
    wanted = [[far[0]] * 2, plain[1], [far[2]] * 2, plain[3]]
    assert curve.log_profile(epsilons) == pytest.approx(np.array(wanted), rel=1e-9)


class Distribution:
    """An epsilon of ten times the delta, which cannot be found for small ones."""

    def get_epsilon_for_delta(self, delta):
        assert delta > 0
        if delta < 1e-3:
            raise OverflowError
        return 10 * delta


def test_guesses_are_the_library_s_with_less_delta(monkeypatch):
    curve = Pld(0.1, (1.0,), (1,))
    monkeypatch.setattr(Pld, "_losses", lambda self: (Distribution(), 0.05))
    assert curve.guess(0.25) == pytest.approx(2.0, rel=1e-8)
    for delta in (0.05, 0.03, 0.0505):
        assert curve.guess(delta) == math.inf
    monkeypatch.setattr(Pld, "_losses", lambda self: (None, 1.0))
    assert curve.guess(0.25) == math.inf and curve.near_floor(0.9)
    monkeypatch.setattr(Pld, "_losses", lambda self: (Distribution(), 1e-6))
    assert [curve.near_floor(delta) for delta in (0.9e-4, 1.1e-4, 1.9e-4)] == [True, False, False]


@pytest.mark.parametrize("guess", [0.01, math.inf, 50.0])
def test_an_epsilon_is_never_a_guess_that_was_not_confirmed(monkeypatch, guess):
    """Too small a guess, or none, and the curve itself is searched; a larger one is taken."""
    curve = Pld(0.1, (1.0,), (7,), mu=1e-5 + min(guess, 60.0) * 1e-9)
    monkeypatch.setattr(Pld, "guess", lambda self, delta: guess)
    monkeypatch.setattr(Pld, "near_floor", lambda self, delta: False)
    found = curve.epsilon(1e-5)
    assert curve.delta(found) <= 1e-5
    assert found == 50.0 if guess == 50.0 else curve.delta(found * (1 - 1e-6)) > 1e-5


def test_an_epsilon_near_the_floor_is_that_of_the_best_bound(monkeypatch):
    curve = Pld(0.02, (1.5,), (30,), mu=0.1)
    assert curve.near_floor(1e-13)
    found = curve.epsilon(1e-13)
    assert curve.delta(found) <= 1e-13 < curve.delta(found * (1 - 1e-5))
    assert found < curve.far.epsilon(1e-13)
    monkeypatch.setattr(sampled_batches, "_far_law", lambda alone: None)
    other = replace(curve, mu=0.1001)
    assert other.epsilon(1e-13) == pytest.approx(other.far.epsilon(1e-13), rel=1e-6)


def test_noises_without_tilted_sums():
    """All noises have to be within a distribution's range, and a grid must hold their ratios."""
    assert sampled_batches._far_law(Pld(0.1, (0.03, 1.0), (1, 1))) is None
    assert sampled_batches._far_law(Pld(0.1, (1.0, 2e6), (1, 1))) is None
    assert sampled_batches._far_law(Pld(0.1, (0.5, 1.0), (1, 1))) is not None


@pytest.mark.parametrize("coarse, most, nodes", [(False, 64, 2000), (True, 8, 400)])
def test_how_finely_tilted_sums_distinguish(monkeypatch, coarse, most, nodes):
    seen = []
    monkeypatch.setattr(sampled_batches, "_step_ratio", lambda z, q, size: (z, q, size))
    monkeypatch.setattr(sampled_batches.allocation, "compose_far", seen.append)
    for count in (most, most + 1):
        multipliers = tuple(1.0 + 0.01 * i for i in range(count))
        sampled_batches._far_law(Pld(0.1, multipliers, (2,) * count, coarse=coarse))
    assert len(seen[0]) == most and len(seen[1]) < most + 1
    assert seen[0][1] == ((1.01, 0.1, nodes), 2)
    assert sum(n for _, n in seen[1]) == 2 * (most + 1)


@pytest.mark.parametrize("alpha", [1.05, 1.5, 2.0, 2.5, 4.5, 8.0])
def test_divergences_of_sampled_steps_are_their_pairs(alpha):
    """At the order, or at the next integer where the library's series does not converge there."""
    for rate, z in ((0.1, 1.0), (0.5, 0.7), (0.01, 2.0)):
        exact = sampled.renyi(alpha, rate, z)
        above = sampled.renyi(float(math.floor(alpha) + 1), rate, z)
        found = Pld(rate, (z, 2 * z), (3, 2)).rdp(alpha)
        other = [sampled.renyi(order, rate, 2 * z) for order in (alpha, math.floor(alpha) + 1.0)]
        assert 3 * exact + 2 * other[0] <= found * (1 + 1e-6)
        assert found <= (3 * above + 2 * other[1]) * (1 + 1e-6)
    assert Pld(0.1, (1.0,), (1,)).rdp(1.5) == pytest.approx(sampled.renyi(2.0, 0.1, 1.0), rel=1e-5)
    assert Pld(0.1, (0.0, 1.0), (1, 1)).rdp(alpha) == math.inf
    for mu in (0.5, 3.0):
        joint = Pld(0.1, (1.0,), (2,), mu=mu).rdp(alpha) - Pld(0.1, (1.0,), (2,)).rdp(alpha)
        assert joint == pytest.approx(alpha * mu**2 / 2, rel=1e-9)


def test_forms_of_a_sampled_curve():
    curve = Pld(0.1, (1.0, 2.0), (3, 4), mu=0.7)
    alone = replace(curve, mu=0.0)
    assert alone.renyi() == SampledRenyi(0.1, (1.0, 2.0), (3, 4))
    assert alone.renyi(coarse=True) == SampledRenyi(0.1, (1.0, 2.0), (3, 4), True)
    for order in (2.0, 8.0):
        wanted = alone.renyi().rdp(order) + order * 0.49 / 2
        assert curve.renyi().rdp(order) == pytest.approx(wanted, rel=1e-9)
    assert curve.coarser() == replace(curve, coarse=True)
    assert curve.coarser().coarser() == curve.renyi(coarse=True)
    assert alone.replace_one_curve() == BestOf((Exchanged(alone), alone.renyi().group(2)))
    assert alone.group(3) == BestOf((Grouped(alone, 3), alone.renyi().group(3)))
    for bad in (
        (0.0, (1.0,), (1,)),
        (1.5, (1.0,), (1,)),
        (0.5, (1.0,), (0,)),
        (0.5, (-1.0,), (1,)),
    ):
        for kind in (Pld, FixedSizeSteps):
            with pytest.raises(InputError):
                kind(*bad)


# Batches of a fixed size.


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("rate, z", [(0.2, 1.0), (0.03, 2.5), (0.9, 0.5)])
def test_the_pair_of_one_step_has_both_orders_curves(rate, z, replaced):
    """Above the exact curves, and little above, on grids that are fine and coarse."""
    for parts, most in ((25, 1.05), (12, 1.2)):
        h = rate * math.sqrt(math.expm1(z**-2)) / parts
        law = one_step(rate, z, replaced, h)
        assert law.p == pytest.approx(law.q * np.exp(law.logs), rel=1e-9, abs=1e-250)
        assert law.q.sum() + law.zero == pytest.approx(1.0, abs=1e-9)
        assert law.p.sum() + law.infinite == pytest.approx(1.0, abs=1e-9)
        for epsilon in (0.0, 3.7 * h, 25 * h, 100 * h):
            inner = math.log1p(math.expm1(epsilon) / rate)
            added = rate * Gdp(1 / z).delta(inner)
            removed = (
                added if replaced else float(delta_of_draw(np.array([epsilon]), rate, 1 / z)[0])
            )
            for true, ours in zip((removed, added), law.deltas(epsilon), strict=True):
                if true > 1e-9 * rate:
                    assert true * (1 - 1e-9) - 1e-14 <= ours <= true * most


@pytest.mark.parametrize("alpha", [1.3, 2.0, 6.0])
@pytest.mark.parametrize("rate, z", [(0.2, 1.5), (0.05, 4.0), (0.5, 0.4), (1.0, 3.0)])
def test_divergences_of_batches_of_a_fixed_size(rate, z, alpha):
    """Exchanges have those of Poisson steps, which removals exceed; steps add up, and so does a
    Gaussian mechanism; known batches have more."""
    exact = alpha / z**2 / 2 if rate == 1 else sampled.renyi(alpha, rate, z)
    exchanged = FixedSizeSteps(rate, (z,), (1,), True).rdp(alpha)
    assert exact * (1 - 1e-9) <= exchanged <= alpha / z**2 / 2 * (1 + 1e-9)
    assert exchanged <= exact * 1.4 or z < 1
    removed = FixedSizeSteps(rate, (z,), (1,)).rdp(alpha)
    assert exchanged <= removed * (1 + 1e-9)
    for replaced, one in ((True, exchanged), (False, removed)):
        many = FixedSizeSteps(rate, (z, 2 * z), (7, 3), replaced, mu=0.5)
        other = FixedSizeSteps(rate, (2 * z,), (1,), replaced).rdp(alpha)
        wanted = min(many.known.rdp(alpha), 7 * one + 3 * other + alpha / 8)
        assert many.rdp(alpha) == pytest.approx(wanted, rel=1e-9)
    loud = FixedSizeSteps(rate, (0.05, z), (1, 1))
    assert loud.rdp(alpha) == loud.known.rdp(alpha)


def test_noises_without_amplification(monkeypatch):
    """One noise below a tenth, or all above a million, and there is no pair; 50 nodes, or 12."""
    seen = []
    monkeypatch.setattr(sampled_batches, "compose_ratios", lambda parts, size: seen.append(size))
    for multipliers in ((0.05, 1.0), (2e6, 3e6), (0.05,)):
        assert FixedSizeSteps(0.1, multipliers, (1,) * len(multipliers)).law() is None
    for coarse in (False, True):
        curve = FixedSizeSteps(0.1, (0.5, 2e6), (1, 1), coarse=coarse)
        assert curve.law() == (None, 0.0)
    assert seen == [50, 12]


@pytest.mark.parametrize(
    "rate, z, fewer, more",
    [
        (1e-6, 0.8, 10**6, 2 * 10**6),  # draws so rare that their window is found far out
        (1e-6, 3.0, 9 * 10**6, 11 * 10**6),  # and more steps than a fine grid has nodes for
    ],
)
def test_fewer_steps_cost_less_however_many_they_are(rate, z, fewer, more):
    few, many = (FixedSizeSteps(rate, (z,), (count,)) for count in (fewer, more))
    assert few.law() is not None and many.law() is not None
    assert few.epsilon(1e-6) < many.epsilon(1e-6) < 2


def test_very_many_steps_are_nearly_gaussian():
    """The variance of one ratio Y is 2 int_1^inf f(g) (1 + 1/g^3) dg, f(g) = E[(Y - g)_+] in both
    orders."""
    rate, z, steps = 1e-5, 3.0, 10**7

    def integrand(loss):
        g = 1 + rate * math.expm1(loss)
        f = rate * Gdp(1 / z).delta(loss)
        return 2 * f * (1 + g**-3) * rate * math.exp(loss)

    limit = Gdp(math.sqrt(steps * quad(integrand, 0, 12, epsabs=0, epsrel=1e-8)[0]))
    found = FixedSizeSteps(rate, (z,), (steps,), replaced=True)
    assert found.law() is not None
    for epsilon in (0.0, limit.mu, 2 * limit.mu):
        assert 0.999 < found.delta(epsilon) / limit.delta(epsilon) < 1.02
