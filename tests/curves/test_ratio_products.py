"""Products of likelihood ratios by transforms: windows, rounding and masses against sums of all
cases."""

import math

import numpy as np
import pytest
from scipy.special import logsumexp

from lastiterate.curves import ratio_law
from lastiterate.curves.ratio_law import UNIT, Ratio, compose_ratios, product
from oracles.ratios import convolve, ratio

RNG = np.random.default_rng(11)
BASE = RNG.normal(size=9) + 1j * RNG.normal(size=9)


# Transforms and windows.


@pytest.mark.parametrize("count", [0, 1, 2, 3, 6, 13])
def test_powers(count):
    np.testing.assert_allclose(ratio_law._power(BASE, count), BASE**count, rtol=1e-12)


@pytest.mark.parametrize(
    ("lowest_point", "lowest"),
    [(0, -40), (3, -6), (13, -6), (40, -6), (-2, -6), (-6, -6), (-9, -6), (-9, -40), (-60, -40)],
)
def test_least_of_a_function_that_falls_and_rises(lowest_point, lowest):
    found = ratio_law._least(lambda at: abs(at - lowest_point) + 0.5, lowest)
    assert found == min(abs(at - lowest_point) + 0.5 for at in range(lowest, 14))


def test_a_flat_function_is_followed_to_where_it_falls():
    assert ratio_law._least(lambda at: 1.0 if at < 4 else -at, -6) == -13
    assert ratio_law._least(lambda at: 1.0 if at > -4 else at, -6) == -6


def window(parts, h, lowest):
    """The same as ``_window``: of all rates, Chernoff's bound at a mass of 1e-18, at either end."""
    laws = [(masses, (first + np.arange(masses.size)) * h, n) for first, masses, n in parts]
    variance = sum(n * float(masses @ losses**2) for masses, losses, n in laws)
    rates = [2.0 ** (half / 2) / math.sqrt(variance + h * h) for half in range(lowest, 14)]
    ends = []
    for sign in (1, -1):
        moments = [sum(n * logsumexp(sign * t * x, b=m) for m, x, n in laws) for t in rates]
        ends.append(min((m + 18 * math.log(10)) / t for m, t in zip(moments, rates, strict=True)))
    low = sum(n * first for first, _, n in parts)
    high = low + sum(n * (masses.size - 1) for _, masses, n in parts)
    return max(low, math.floor(-ends[1] / h) - 1), min(high, math.ceil(ends[0] / h) + 1)


GEOMETRIC = 0.5 ** np.arange(1.0, 60.0)
TENT = np.exp(-np.abs(np.arange(-40.0, 41.0)) / 2) / 4.08
WINDOWS = [
    [(-20, TENT, 1)],
    [(-70, TENT, 4)],
    [(-3, GEOMETRIC, 3)],
    [(-56, GEOMETRIC[::-1], 5)],
    [(4, GEOMETRIC, 2), (-45, TENT, 3)],
    [(0, np.array([1 - 1e-9, *(1e-9 * GEOMETRIC)]), 2)],  # rare losses: small rates
    [(-90, np.array([1.0]), 3), (10, np.array([0.5, 0.5]), 400)],
    [(-2, np.full(5, 0.2), 1)],  # all of it
]


@pytest.mark.parametrize("lowest", [ratio_law.LOWEST, ratio_law.USUAL])
@pytest.mark.parametrize("parts", WINDOWS)
def test_windows_are_those_of_the_best_rate(parts, lowest):
    h = 0.5
    low, high = ratio_law._window(parts, h, lowest)
    assert (low, high) == window(parts, h, lowest)
    if sum(count for *_, count in parts) < 10:
        masses, first = convolve(parts)
        assert masses[: max(0, low - first)].sum() <= ratio_law.CUT
        assert masses[high + 1 - first :].sum() <= ratio_law.CUT


def test_a_window_has_at_least_two_nodes():
    assert ratio_law._window([(5, np.ones(1), 3)], 0.5) == (15, 16)
    assert ratio_law._window([(-5, np.ones(1), 1)], 0.5) == (-5, -4)


def test_windows_of_losses_whose_exponentials_are_no_doubles():
    """Losses up to 3,000, almost never: what underflows is bounded, and nothing overflows."""
    masses = np.zeros(3001)
    masses[0], masses[-1] = 1.0, 1e-10
    assert ratio_law._window([(0, masses, 1)], 1.0) == (0, 3000)
    assert ratio_law._window([(-3000, masses[::-1], 1)], 1.0) == (-3000, 0)
    masses[-1] = 0.0
    low, high = ratio_law._window([(0, masses, 1)], 1.0)
    assert low == 0 and 0 < high < 3000


ROUNDING = [([1], 8), ([3], 16), ([2, 5], 64)]


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e-15])
@pytest.mark.parametrize(("counts", "size"), ROUNDING)
def test_bound_on_rounding_is_its_formula(counts, size, scale, rare):
    """r = 8 u log2(size) for every coefficient, r + 4 u relative for every factor of a power."""
    drawn = np.random.default_rng(size).dirichlet(np.ones(size), len(counts))
    transforms = [scale * np.fft.rfft(masses) for masses in drawn]
    total = np.prod([t**c for t, c in zip(transforms, counts, strict=True)], axis=0)
    one = 8 * UNIT * math.log2(size)
    expected = 0.0
    for k in range(total.size):
        sizes = [abs(t[k]) + one for t in transforms]
        whole = math.prod(s**c for s, c in zip(sizes, counts, strict=True))
        wrong = sum(c * (one + 4 * UNIT) * whole / s for s, c in zip(sizes, counts, strict=True))
        expected += 2 * wrong / max(k, 1)
    moduli = [abs(c) for c in total]
    norm = math.sqrt(2 * sum(m * m for m in moduli)) if rare else 2 * sum(moduli)
    found = ratio_law._bound_rounding(transforms, counts, total, size, rare=rare)
    assert found == pytest.approx(expected + one * norm, rel=1e-12, abs=0)


CONVOLVED = [
    [(3, 2, -1, 1)],
    [(3, 2, 5, 2)],  # 3 nodes of 4
    [(3, 3, -2, 2)],  # 5 of 8
    [(3, 5, -9, 2)],  # 9 of 16
    [(3, 8, 0, 1)],  # 8 of 8
    [(3, 9, 2, 1)],
    [(3, 4, -7, 3), (4, 2, 30, 2), (5, 3, -4, 1)],
    [(3, 1, -3, 2), (4, 6, -1, 5)],
]


@pytest.mark.parametrize("rare", [False, True])
@pytest.mark.parametrize("shapes", CONVOLVED)
def test_masses_of_sums_of_losses(shapes, rare):
    """Of few losses, which no window cuts."""
    parts = [(low, ratio(k, size, low).q, count) for k, size, low, count in shapes]
    exact, first = convolve(parts)
    found, low, lost = ratio_law._convolve(parts, 0.25, rare=rare)
    assert (found.size, low) == (exact.size, first) and found.min() >= 0
    np.testing.assert_allclose(found, exact, atol=1e-15)
    size = 2 ** math.ceil(math.log2(exact.size))
    transforms = [
        np.fft.rfft(np.roll(np.append(masses, np.zeros(size - masses.size)), first % size))
        for first, masses, _ in parts
    ]
    counts = [count for *_, count in parts]
    total = np.prod([t**c for t, c in zip(transforms, counts, strict=True)], axis=0)
    rounding = ratio_law._bound_rounding(transforms, counts, total, size, rare=rare)
    assert lost == pytest.approx(2e-18 + rounding, rel=1e-9, abs=0) and rounding > 1e-15


@pytest.mark.parametrize("rare", [False, True])
def test_sums_are_cut_where_a_window_ends(rare):
    """Where losses are rare, among more rates."""
    masses = np.array([1 - 1e-9, *(1e-9 * GEOMETRIC)])
    low, high = ratio_law._window([(-3, masses, 4)], 0.5, -40 if rare else -6)
    found, first, lost = ratio_law._convolve([(-3, masses, 4)], 0.5, rare=rare)
    assert (first, first + found.size - 1) == (low, high) and found.size < 4 * masses.size - 3
    exact, _ = convolve([(-3, masses, 4)])
    assert np.abs(found - exact[: found.size]).max() < lost < 1e-12


def test_both_ends_of_a_window_are_lost(monkeypatch):
    monkeypatch.setattr(ratio_law, "_bound_rounding", lambda *_, **__: 0.0)
    assert ratio_law._convolve([(0, np.full(8, 0.125), 1)], 0.5)[2] == 2 * 1e-18


def test_sums_of_too_many_nodes_are_refused(monkeypatch):
    assert ratio_law.LARGEST == 2**21, "two million coefficients take a tenth of a second"
    monkeypatch.setattr(ratio_law, "LARGEST", 8)
    assert ratio_law._convolve([(0, np.full(8, 0.125), 1)], 0.5)[0].size == 8
    with pytest.raises(ValueError, match="too many nodes"):
        ratio_law._convolve([(0, np.full(9, 1 / 9), 1)], 0.5)


# Products.


def test_products_have_the_masses_of_both_orders():
    """Each order in a window of its own, in one grid; what factors lose counts once for each copy."""
    one = ratio(1, 5, -2, zero=0.01, infinite=0.02)
    two = ratio(2, 4, 3, zero=0.03, infinite=0.005)
    law = product(((one, 2), (two, 3)))
    for found, masses in ((law.p, ("p")), (law.q, ("q"))):
        exact, low = convolve(
            [(part.low, getattr(part, masses), n) for part, n in ((one, 2), (two, 3))]
        )
        assert low == law.low
        np.testing.assert_allclose(found[: exact.size], exact, atol=1e-14)
        assert not found[exact.size :].any()
    assert law.h == 0.25
    assert law.zero == pytest.approx(2 * 0.01 + 3 * 0.03, rel=1e-12)
    assert law.zero > 2 * 0.01 + 3 * 0.03, "and what rounding may have hidden"
    assert law.infinite == pytest.approx(2 * 0.02 + 3 * 0.005, rel=1e-12)
    assert law.infinite > 2 * 0.02 + 3 * 0.005


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("turned", ["", "losses", "orders"])
def test_products_whose_orders_end_elsewhere(seed, turned):
    """Losses that fall so fast that windows end before them, lower under Q than under P."""
    law = ratio(seed, 120, -5, 0.25, tail=0.02)
    if turned == "orders":
        law = Ratio(0.25, -5, law.p, law.q, 0.0, 0.0)
    elif turned:
        law = Ratio(0.25, 6 - 120, law.p[::-1], law.q[::-1], 0.0, 0.0)
    found = product(((law, 3),))
    windows = [ratio_law._window([(law.low, m, 3)], 0.25, -6) for m in (law.p, law.q)]
    assert windows[0] != windows[1]
    assert found.low == min(low for low, _ in windows)
    assert found.low + found.q.size - 1 == max(high for _, high in windows)
    for masses, part in ((found.p, law.p), (found.q, law.q)):
        exact, first = convolve([(law.low, part, 3)])
        np.testing.assert_allclose(masses, exact[found.low - first :][: masses.size], atol=1e-14)


def test_a_single_ratio_is_its_own_product_up_to_steps():
    law = ratio(5, 60, -30, 0.02)
    assert 10 < law.spread / law.h < 20
    assert compose_ratios(((law, 1),), 8.0) is law
    assert compose_ratios(((law, 2),), 8.0).q.size == 2 * 60 - 1
    assert compose_ratios(((law, 1), (ratio(6, 2, 0, 0.02), 1)), 8.0).q.size == 61


@pytest.mark.parametrize(
    ("share", "doubled"), [(1.01, 1), (0.99, 2), (0.55, 2), (0.45, 4), (0.28, 4), (0.22, 8)]
)
def test_products_have_as_many_nodes_as_asked_for(share, doubled):
    """Coarsened while there are more than four times as many for each standard deviation."""
    law = ratio(5, 60, -30, 0.02)
    resolution = share * law.spread / (4 * law.h)
    found = compose_ratios(((law, 1),), resolution)
    assert found.h == doubled * 0.02
    assert (found.q @ np.exp(found.logs)) == pytest.approx(law.q @ np.exp(law.logs), rel=1e-12)
