"""Products of likelihood ratios for small deltas: moments and tilted sums against sums of all
cases."""

import math

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves import ratio_law
from lastiterate.curves.ratio_law import (
    RATES,
    UNIT,
    Chernoff,
    Ratio,
    Tilted,
    chernoff,
    tilt_product,
)
from oracles.ratios import convolve, parts_under, rare_loss, ratio

# Bounds by moments.


def test_deltas_by_moments_are_the_least_over_rates():
    rates = np.array([0.25, 1.0, 4.0])
    far = Chernoff(rates, np.array([-0.3, -0.9, 4.0]), np.array([-0.1, 1.5, -6.0]), 0.01, 0.02)
    for mu in (0.0, 0.6, 1.5):
        for epsilon in (-0.5, 0.0, 0.4, 3.0):
            logs = [t * (1 + t) * mu**2 / 2 - t * epsilon for t in rates]
            removed = min(math.exp(x + y) for x, y in zip(far.removed, logs, strict=True))
            added = min(math.exp(x + y) for x, y in zip(far.added, logs, strict=True))
            expected = min(1.0, 0.01 + removed), min(1.0, 0.02 + added)
            assert far.deltas(epsilon, mu) == pytest.approx(expected, rel=1e-9)
            assert mu != 0 or far.deltas(epsilon) == far.deltas(epsilon, 0.0)
    for epsilon in (1e5, 1e99, 1e100, 1e300, math.inf):
        assert far.deltas(epsilon) == pytest.approx((0.01, 0.02), rel=1e-9)
    assert far.deltas(-50.0) == (1.0, 1.0)


def exact_moments(far, parts, sign, at):
    """log c + the logarithms of all moments of finite losses at one rate, in 50 digits."""
    t = mp.mpf(float(far.rates[at]))
    total = t * mp.log(t) - (1 + t) * mp.log(1 + t)
    for law, count in parts:
        masses = law.p if sign > 0 else law.q
        steps = range(law.low, law.low + law.q.size)
        terms = (
            mp.mpf(float(m)) * mp.exp(sign * t * k * law.h)
            for k, m in zip(steps, masses, strict=True)
        )
        total += count * mp.log(sum(terms))
    return total


MOMENTS = [
    ((ratio(1, 6, -2), 1),),
    ((ratio(1, 6, -2, zero=0.01, infinite=0.02), 3), (ratio(2, 9, -7, 0.125, zero=0.03), 2)),
    ((ratio(3, 40, -1, tail=0.6), 5),),  # losses of many standard deviations
    ((ratio(3, 40, -38, tail=1e-9), 1), (ratio(4, 60, -1, tail=0.9), 2)),
]


@pytest.mark.parametrize("parts", MOMENTS)
def test_moments_against_50_digits(parts):
    """Above, by no more than the allowance for rounding."""
    far = chernoff(parts)
    with mp.workdps(50):
        for at in range(0, far.rates.size, 9):
            for sign, logs in ((1, far.removed), (-1, far.added)):
                exact = exact_moments(far, parts, sign, at)
                assert exact <= logs[at] <= exact + 1e-11 * (1 + abs(exact))
    assert far.infinite == pytest.approx(sum(n * law.infinite for law, n in parts), rel=1e-11)
    assert far.zero == pytest.approx(sum(n * law.zero for law, n in parts), rel=1e-11)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("far_loss", [1e3, 1e6])
def test_moments_of_large_exponents_have_their_allowance(far_loss, turned):
    """Exponents are rounded by 2^-52 of themselves: twice that is added, and no more than a few."""
    h = far_loss
    one, masses = np.array([1.0, 1e-9]), np.array([1 - 1e-9, 1e-9])
    law = (
        Ratio(h, -1, masses[::-1], one[::-1], 0.0, 0.0)
        if turned
        else Ratio(h, 0, masses, masses, 0.0, 0.0)
    )
    parts = ((law, 3),)
    far = chernoff(parts)
    sign, logs = (-1, far.added) if turned else (1, far.removed)
    seen = 0
    with mp.workdps(50):
        for at in range(far.rates.size):
            t = float(far.rates[at])
            allowed = 3 * 4 * UNIT * t * far_loss
            if allowed < 1e-10:
                continue
            seen += 1
            above = logs[at] - exact_moments(far, parts, sign, at)
            assert 0.4 * allowed <= above <= 2.5 * allowed
    assert seen > 4


@pytest.mark.parametrize("parts", MOMENTS)
def test_rates_are_those_of_the_standard_deviation(parts):
    """From .005 to 50 over it; where losses are many times as large, down to one over them."""
    far = chernoff(parts)
    deviation = math.sqrt(sum(n * law.spread**2 for law, n in parts))
    largest = max(float(np.abs(law.logs[(law.p > 0) | (law.q > 0)]).max()) for law, _ in parts)
    np.testing.assert_allclose(far.rates[-64:], RATES / deviation, rtol=1e-12)
    ratio_of_ends = 0.005 * largest / deviation
    more = math.ceil(16 * math.log10(ratio_of_ends)) if ratio_of_ends > 1 else 0
    assert far.rates.size == 64 + more
    if more:
        assert far.rates[0] == pytest.approx(1 / largest, rel=1e-9)
        np.testing.assert_allclose(
            np.diff(np.log(far.rates[: more + 1])), math.log(ratio_of_ends) / more
        )


@pytest.mark.parametrize(
    ("largest", "chance", "more"),
    [(100, 1e-4, 0), (100, 2e-5, 1), (100, 1e-5, 4), (100, 1e-6, 12), (400, 1e-8, 28)],
)
def test_rates_reach_down_to_the_largest_loss(largest, chance, more):
    """.005 / sqrt(chance) times that of the smallest rate: 16 for each power of ten."""
    far = chernoff(((rare_loss(largest, chance), 1), (rare_loss(1, 1e-18), 1)))
    above = 0.005 / math.sqrt(chance * (1 - chance))
    assert far.rates.size - 64 == more == max(0, math.ceil(16 * math.log10(above)))
    first = far.rates[0] * largest * 0.5
    assert first == pytest.approx(1 if more else above, rel=1e-9)


def test_small_losses_need_no_further_rates():
    assert chernoff(((ratio(1, 5, -2, 1e-4), 3),)).rates.size == 64


def test_nodes_without_mass_have_no_part_in_the_rates():
    law = rare_loss(100, 1e-6)
    wider = Ratio(0.5, -200, *(np.pad(m, (200, 300)) for m in (law.q, law.p)), 0.0, 0.0)
    np.testing.assert_array_equal(chernoff(((wider, 2),)).rates, chernoff(((law, 2),)).rates)


@pytest.mark.parametrize("order", ["q", "p"])
def test_without_finite_losses_all_is_lost(order):
    none, all_of_it = np.zeros(2), np.array([0.5, 0.5])
    q, p = (none, all_of_it) if order == "q" else (all_of_it, none)
    empty = Ratio(0.25, 0, q, p, 1.0, 1.0)
    with np.errstate(invalid="ignore"):
        for parts in (((empty, 1),), ((ratio(1, 3, 0), 1), (empty, 1))):
            for far in (chernoff(parts), tilt_product(parts)):
                assert isinstance(far, Chernoff) and (far.infinite, far.zero) == (1.0, 1.0)
                assert far.rates.size == far.removed.size == far.added.size == 1
                assert far.deltas(3.0) == (1.0, 1.0)


# Tilted sums.


def gaussian_delta(epsilons, mu):
    """delta of a mu-Gaussian mechanism at any real epsilon; for mu = 0 that of no mechanism."""
    if mu == 0:
        return np.array([max(0.0, -math.expm1(epsilon)) for epsilon in epsilons])
    values = []
    with mp.workdps(30):
        for epsilon in map(mp.mpf, map(float, epsilons)):
            below = mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
            values.append(float(mp.ncdf(mu / 2 - epsilon / mu) - below))
    return np.array(values)


def finite_part(parts, order, epsilon, mu):
    """The part of delta that comes of finite losses, by the sum of all cases."""
    masses, first = convolve(parts_under(parts, order))
    losses = (first + np.arange(masses.size)) * parts[0][0].h
    return float(masses @ gaussian_delta(epsilon - losses, mu))


PARTS = [
    ((ratio(1, 6, -2, zero=0.01, infinite=0.02), 2), (ratio(2, 9, -4), 3)),
    ((ratio(3, 25, -10, 0.5, tail=0.02), 2),),
    ((ratio(4, 5, 2), 1),),
]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("parts", PARTS)
def test_tilted_masses_of_both_orders(parts, order):
    """p_k e^{t l_k} / M of every factor, convolved; under Q of the losses negated."""
    law = tilt_product(parts)
    assert isinstance(law, Tilted)
    for rate in (0, 30, 50):
        log_scale, off, losses, masses, lost = ratio_law._tilt(law, order, rate)
        tilt = float(law.moments.rates[rate])
        tilted, logs, allowed = [], [], 0.0
        for first, part, count in parts_under(parts, order):
            values = (first + np.arange(part.size)) * parts[0][0].h
            moment = float(part @ np.exp(tilt * values))
            tilted.append((first, part * np.exp(tilt * values) / moment, count))
            logs.append(count * math.log(moment))
            size = max(abs(float(value)) for value in values)
            allowed += count * (1e-12 + 8 * UNIT * (abs(math.log(moment)) + tilt * size))
        exact, first = convolve(tilted)
        low = round(float(losses[0]) / parts[0][0].h)
        np.testing.assert_allclose(np.diff(losses), parts[0][0].h, rtol=1e-12)
        np.testing.assert_allclose(masses, exact[low - first :][: masses.size], atol=1e-12)
        assert log_scale == pytest.approx(sum(logs), rel=1e-11, abs=1e-12)
        assert off == pytest.approx(allowed, rel=1e-9, abs=0) and 0 < lost < 1e-11


@pytest.mark.parametrize("rare", [False, True])
def test_rare_losses_have_the_wider_search_for_windows(rare, monkeypatch):
    asked = []

    def transform(parts, h, *, rare):
        asked.append(rare)
        raise OverflowError

    monkeypatch.setattr(ratio_law, "_convolve", transform)
    law = tilt_product(((rare_loss(100, 1e-6 if rare else 1e-4), 1),))
    assert ratio_law._tilt(law, 0, 3) is None and asked == [rare]


@pytest.mark.parametrize("mu", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("parts", PARTS)
def test_tilted_sums_against_all_cases(parts, order, mu):
    """By 1e-9 above, for rounding, wherever a rate has something to gain."""
    law = tilt_product(parts)
    assert isinstance(law, Tilted)
    seen = 0
    for epsilon in (-1.0, 0.0, 0.3, 1.0, 2.0, 3.5, 6.0):
        exact, found = finite_part(parts, order, epsilon, mu), law._sum_finite(order, epsilon, mu)
        if found < 1:
            seen += 1
            assert exact * (1 + 0.99e-9) <= found <= exact * (1 + 1.2e-9) + 1e-16
    assert seen > 2 and law._sum_finite(order, -20.0, mu) == 1.0


def test_what_a_tilted_sum_lacks_counts_as_the_largest_weight(monkeypatch):
    """A share of the bound by moments at that rate."""
    parts = PARTS[0]
    law = tilt_product(parts)
    assert isinstance(law, Tilted)
    for order, logs in enumerate((law.moments.removed, law.moments.added)):
        for epsilon, mu in ((0.5, 0.0), (2.0, 0.0), (2.0, 0.5)):
            gauss = law.moments.rates * (1 + law.moments.rates) * mu**2 / 2
            most = math.exp((logs + gauss - law.moments.rates * epsilon).min())
            exact = finite_part(parts, order, epsilon, mu)
            with monkeypatch.context() as patch:
                patch.setattr(ratio_law, "_bound_rounding", lambda *_, **__: 0.125)
                ratio_law._tilt.cache_clear()
                found = law._sum_finite(order, epsilon, mu)
            ratio_law._tilt.cache_clear()
            assert found == pytest.approx(exact + most / 8, rel=2e-9)


def test_no_weight_exceeds_the_bound_by_moments(monkeypatch):
    """Whatever rounding makes of masses and weights."""
    law = tilt_product(PARTS[0])
    far = 200.0, 0.25, np.array([0.1, 5.0]), np.array([0.25, 0.5]), 0.0
    monkeypatch.setattr(ratio_law, "_tilt", lambda *_: far)
    rates, logs = law.moments.rates, law.moments.removed
    most = math.exp((logs - rates * 3.0).min())
    assert law._sum_finite(0, 3.0, 0.0) == pytest.approx(0.5 * most * math.exp(0.25), rel=1e-8)


@pytest.mark.parametrize("least", [0, 3, 4, 19])
def test_rates_are_tried_downwards_until_the_nodes_suffice(least, monkeypatch):
    """Every fourth from the best one down to 0; where none serves, nothing is gained."""
    rates = np.linspace(0.1, 2.0, 20)
    logs = 0.01 * (np.arange(20) - least) ** 2 - 9.0
    law = Tilted(PARTS[0], Chernoff(rates, logs, logs, 0.0, 0.0))
    asked = []
    monkeypatch.setattr(ratio_law, "_tilt", lambda _law, _order, rate: asked.append(rate))
    assert law._sum_finite(0, 0.0, 0.0) == 1.0
    assert asked == list(range(least, -1, -4))


@pytest.mark.parametrize(
    ("log", "tried"), [(0.4, False), (0.0, False), (-1e-3, True), (-699.0, True), (-702.0, False)]
)
def test_rates_without_anything_to_gain_are_not_tried(log, tried, monkeypatch):
    law = Tilted(PARTS[0], Chernoff(np.ones(1), np.full(1, log), np.full(1, log), 0.0, 0.0))
    asked = []
    monkeypatch.setattr(ratio_law, "_tilt", lambda _law, _order, rate: asked.append(rate))
    assert law._sum_finite(1, 0.0, 0.0) == 1.0 and (asked == [0]) == tried


def test_deltas_are_the_least_of_all_bounds(monkeypatch):
    """Moments, sums of finite losses with what is lost, and the same of the trimmed factors."""
    flat = Chernoff(np.ones(1), np.full(1, -1.0), np.full(1, -2.0), 0.01, 0.02)
    near = Chernoff(np.ones(1), np.full(1, -4.0), np.full(1, -0.5), 0.03, 0.04)
    asked = []

    def sums(law, order, epsilon, mu):
        asked.append((order, epsilon, mu))
        return finite[law is trimmed][order]

    monkeypatch.setattr(Tilted, "_sum_finite", sums)
    trimmed = Tilted(PARTS[0], near)
    both = Tilted(PARTS[0], flat, trimmed)
    # by moments at epsilon 0: e^-1 + .01 and e^-2 + .02; of the trimmed ones e^-4 + .03, e^-.5 + .04
    for of_all, of_trimmed, expected in (
        ((0.5, 0.5), (0.5, 0.5), (math.exp(-4) + 0.03, math.exp(-2) + 0.02)),
        ((0.001, 0.003), (0.5, 0.5), (0.011, 0.023)),
        ((0.5, 0.003), (0.002, 0.5), (0.032, 0.023)),
        ((0.5, 0.5), (0.002, 0.001), (0.032, 0.041)),
    ):
        finite = {False: of_all, True: of_trimmed}
        assert both.deltas(0.0) == pytest.approx(expected, rel=1e-9)
    finite = {False: (0.5, 0.5), True: (0.0, 0.0)}
    alone = Tilted(PARTS[0], flat).deltas(0.0)
    assert alone == pytest.approx((math.exp(-1) + 0.01, math.exp(-2) + 0.02), rel=1e-9)
    asked.clear()
    both.deltas(2.0, 0.75)
    both.deltas(3.0)
    both.deltas(1e300)
    assert {order for order, *_ in asked} == {0, 1}
    epsilons = [epsilon for _, epsilon, _ in asked]
    assert epsilons == pytest.approx([2.0] * 4 + [3.0] * 4 + [1e100] * 4, rel=1e-10)
    assert all(e < x for e, x in zip(epsilons, [2.0] * 4 + [3.0] * 4 + [1e100] * 4, strict=True))
    assert [mu for *_, mu in asked] == [0.75] * 4 + [0.0] * 8


def test_products_on_different_grids_are_bounded_by_moments():
    one, two, three = ratio(1, 5, -2), ratio(2, 5, -2), ratio(3, 5, -2, 0.125)
    assert isinstance(tilt_product(((one, 1), (two, 2))), Tilted)
    for parts in (((one, 1), (two, 1), (three, 1)), ((three, 1), (one, 2)), ((one, 1), (three, 2))):
        assert isinstance(tilt_product(parts), Chernoff)


@pytest.mark.parametrize("count", [1, 4])
def test_trimmed_losses_are_lost(count):
    """As much of either end as has 1e-18 in all copies; the rest is as it was."""
    p = np.array([0.5, 0.25, 0.25, 8e-19, 1.5e-19, 0.5e-19])
    q = np.array([0.25e-18, 0.5e-18, 0.5e-18, 0.25, 0.25, 0.5])
    law = Ratio(0.5, -2, q, p, 1e-18, 2e-18)
    trimmed = ratio_law._trim(law, count)
    p_cut, q_cut = (3, 2) if count == 1 else (4, 1)
    np.testing.assert_array_equal(trimmed.p, [*p[:p_cut], *[0.0] * (6 - p_cut)])
    np.testing.assert_array_equal(trimmed.q, [*[0.0] * q_cut, *q[q_cut:]])
    assert trimmed.infinite == pytest.approx(2e-18 + p[p_cut:].sum(), rel=1e-12, abs=0)
    assert trimmed.zero == pytest.approx(1e-18 + q[:q_cut].sum(), rel=1e-12, abs=0)
    assert (trimmed.h, trimmed.low) == (0.5, -2)
