"""Deltas from 1e-9 down to 1e-30, where rounding and what grids leave out would hide them."""

import math
from dataclasses import replace
from itertools import pairwise

import mpmath as mp
import numpy as np
import pytest

from lastiterate.curves import dominating_pair, ratio_law
from lastiterate.curves.allocation import AllocationPld, SecretBins, likelihood_ratio
from lastiterate.curves.curve import BestOf, Grouped
from lastiterate.curves.delayed_shifts import AllocatedShifts, DelayedShifts
from lastiterate.curves.gaussian import Gdp, delta_of_draw
from lastiterate.curves.ratio_law import Ratio, Tilted, chernoff, product, tilt_product
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld, one_step

SAMPLED = [
    Pld(0.1, (1.0,), (100,)),
    FixedSizeSteps(0.01, (1.0,), (1000,)),
    FixedSizeSteps(0.1, (2.0,), (10_000,)),
    FixedSizeSteps(0.01, (1.0,), (1000,), replaced=True),
    AllocationPld(50, (1.0,), (10,)),
    AllocationPld(20, (2.0,), (100,), 2.0, 7),
    SecretBins((3.0, 0.5), (20, 5)),
    DelayedShifts(0.02, (200,), (0.999,), (1.0,), (1.0,), 1.2, 30),
    AllocatedShifts(20, (105,), (0.99,), (1.0,), (1.0,), 1.2, 20),
]
GAUSSIAN = [
    FixedSizeSteps(1.0, (20.0,), (900,), replaced=True),
    AllocationPld(1, (20.0,), (900,)),
    SecretBins((1.5,), (1,)),
    Pld(1.0, (20.0,), (900,)),
    DelayedShifts(1.0, (1,), (1.0,), (1.5,), (1.0,), 1.2, 30),
    AllocatedShifts(1, (1,), (1.0,), (1.5,), (1.0,), 1.2, 30),
]


def name(value):
    return type(value).__name__


@pytest.mark.parametrize("curve", SAMPLED, ids=name)
def test_epsilon_rises_smoothly(curve):
    """Epsilon grows by less than a half from one delta to the next, also where looser bounds take
    over."""
    deltas = [10.0**-k for k in (5, 6, 7, 8, 9, 9.5, 10, 11, 12, 14, 16, 18, 20, 23, 26, 30)]
    epsilons = [curve.epsilon(delta) for delta in deltas]
    assert all(one <= two * (1 + 1e-9) for one, two in pairwise(epsilons))
    assert max(two / one for one, two in pairwise(epsilons)) < 1.45, "epsilon jumps nowhere"
    for delta, epsilon in zip(deltas, epsilons, strict=True):
        assert curve.delta(epsilon) <= delta and curve.delta(0.5 * epsilon) > delta
    assert epsilons[-1] < 0.95 * curve.known.epsilon(1e-30)


@pytest.mark.parametrize("curve", GAUSSIAN, ids=name)
def test_never_below_a_gaussian_mechanism(curve, monkeypatch):
    """Batches of all records are a 1.5-Gaussian mechanism; without what is known of it, epsilon is
    near and above."""
    monkeypatch.setattr(type(curve), "known", property(lambda _: Gdp(math.inf)))
    dominating_pair._epsilon.cache_clear()
    exact = Gdp(1.5)
    for delta in (1e-5, 1e-9, 1e-12, 1e-20, 1e-30):
        assert (
            exact.epsilon(delta) * (1 - 1e-9) <= curve.epsilon(delta) <= 1.06 * exact.epsilon(delta)
        )
    for epsilon in np.linspace(5, 20, 12):
        assert (
            exact.delta(epsilon) * (1 - 1e-9) <= curve.delta(epsilon) <= 50 * exact.delta(epsilon)
        )
    dominating_pair._epsilon.cache_clear()


def test_single_steps_against_60_digits():
    """One sampled step, record removed and added, by the exact curves of the two-point mixture."""
    q, z = 0.05, 1.0
    with mp.workdps(60):
        for curve in (FixedSizeSteps(q, (z,), (1,), replaced=True), Pld(q, (z,), (1,))):
            for epsilon in (2.0, 5.0, 7.0, 9.0):
                scaled = mp.log1p(mp.expm1(mp.mpf(epsilon)) / q)
                exact = q * (
                    mp.ncdf(0.5 / z - z * scaled) - mp.exp(scaled) * mp.ncdf(-0.5 / z - z * scaled)
                )
                found = curve.delta(epsilon)
                assert exact <= found and (exact < 1e-30 or found <= 40 * exact + 1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 0.7, 2.0, 4.0])
def test_rare_draws_of_little_noise_against_60_digits(epsilon):
    """Losses of 10^5 standard deviations: a step is seldom drawn, and then told at once."""
    q, z = 2.659e-5, 0.5222
    with mp.workdps(60):
        scaled = mp.log1p(mp.expm1(mp.mpf(epsilon)) / q)
        exact = q * (
            mp.ncdf(0.5 / z - z * scaled) - mp.exp(scaled) * mp.ncdf(-0.5 / z - z * scaled)
        )
        assert exact <= Pld(q, (z,), (1,)).delta(epsilon) <= 1.01 * exact


def heavy_tailed(size=4000):
    """Masses of losses .01 k that are mostly 0 and fall like a normal tail."""
    masses = 1e-9 * np.exp(-((np.arange(size) * 0.01) ** 2) / 8)
    masses[0] = 1 - masses[1:].sum()
    return masses


@pytest.mark.parametrize("copies", [2, 5])
def test_a_window_leaves_out_no_more_than_it_says(copies):
    masses = heavy_tailed()
    exact = np.ones(1)
    for _ in range(copies):
        exact = np.convolve(exact, masses)
    low, high = ratio_law._window([(0, masses, copies)], 0.01)
    assert exact[high + 1 :].sum() <= ratio_law.CUT and low == 0
    assert high < 0.5 * copies * (masses.size - 1), "rates far below the standard deviation's"
    assert exact[int(0.5 * high) :].sum() > ratio_law.CUT


@pytest.mark.parametrize("copies", [1, 2, 6])
def test_transforms_lose_no_more_than_is_counted(copies):
    """In a sum of any of the masses, against sums of positive products in long doubles."""
    masses = heavy_tailed(1000).astype(np.longdouble)
    exact = np.ones(1, dtype=np.longdouble)
    for _ in range(copies):
        exact = np.convolve(exact, masses)
    found, low, lost = ratio_law._convolve([(0, masses.astype(float), copies)], 0.01, rare=True)
    wrong = found - exact[low : low + found.size]
    assert 0 < max(-wrong[wrong < 0].sum(), wrong[wrong > 0].sum()) <= lost < 1e-11
    flat = np.ones(2**15 + 1, dtype=complex)  # coefficients of certainty: the worst for a sum
    wrong = 8 * 16 * ratio_law.UNIT
    forward = 2 * wrong * (1 + 1 / np.arange(1, flat.size)).sum() / flat.size
    assert ratio_law._bound_rounding([flat], [1], flat, 2**16, rare=True) >= 2**8 * wrong + forward


@pytest.mark.parametrize("rare", [False, True])
def test_rounding_of_coefficients_far_below_one_is_bounded(rare):
    """Masses spread over the circle have small coefficients, whose errors are not: the worst signs
    add up to a delta."""
    size = 2**16
    transform = np.zeros(size // 2 + 1, dtype=complex)
    transform[0] = 1.0
    wrong = 8 * ratio_law.UNIT * math.log2(size)
    indicator = np.fft.rfft(np.arange(size) < size // 3) / size
    worst = wrong * 2 * np.abs(indicator[1:]).sum()
    assert ratio_law._bound_rounding([transform], [1], transform, size, rare=rare) >= worst


def test_moments_bound_the_exact_product():
    """Against the product itself where rounding hides nothing, in both orders, also with a Gaussian
    mechanism."""
    parts = ((one_step(0.1, 1.0, False, 0.01), 30), (one_step(0.1, 2.0, False, 0.01), 50))
    law, far = product(parts), chernoff(parts)
    for mu in (0.0, 0.7):
        for epsilon in np.linspace(0.0, 8.0, 17):
            for sums, moments in zip(
                law.deltas(float(epsilon), mu), far.deltas(float(epsilon), mu), strict=True
            ):
                if sums > 1e-9:
                    assert sums * (1 - 1e-3) <= moments <= 40 * sums


def test_tilted_sums_are_the_exact_product():
    """Where rounding hides nothing, in both orders, also with a Gaussian mechanism: never below,
    and a hundredth above at most."""
    parts = ((one_step(0.1, 1.0, False, 0.01), 30), (one_step(0.1, 2.0, False, 0.01), 50))
    law, far = product(parts), tilt_product(parts)
    seen = 0
    for mu in (0.0, 0.7):
        for epsilon in np.linspace(0.0, 8.0, 33):
            for sums, tilted in zip(
                law.deltas(float(epsilon), mu), far.deltas(float(epsilon), mu), strict=True
            ):
                if 1e-9 < sums < 1e-2:
                    seen += 1
                    assert sums - 2 * max(law.floors) <= tilted <= sums * 1.0001
    assert seen > 40


@pytest.mark.parametrize("mu", [0.0, 0.8])
def test_tilted_sums_of_gaussian_steps(mu):
    """50 steps of losses N(.02, .04) and a Gaussian mechanism: deltas down to 1e-40, in both
    orders, above the exact ones by what the grid adds to the variance; alone as well."""
    far = FixedSizeSteps(1.0, (5.0,), (50,), replaced=True).far_law()
    assert isinstance(far, Tilted)
    exact = Gdp(math.hypot(math.sqrt(2), mu))
    for epsilon in (4.0, 8.0, 16.0, 32.0):
        sure = exact.delta(epsilon)
        if sure < 1e-40:  # what the factors lose counts in full
            continue
        most = sure * math.exp(1e-3 * (1 + epsilon**2 / exact.mu**2))
        for order, delta in enumerate(far.deltas(epsilon, mu)):
            assert sure * (1 - 1e-9) <= delta <= most
            assert sure * (1 - 1e-9) <= far._sum_finite(order, epsilon, mu) <= most


@pytest.mark.parametrize(
    ("rate", "z", "steps", "delta", "most"),
    [
        (1e-4, 2.0, 50_000, 1e-9, 0.0592),  # far below 1: by divergences .256
        (1e-5, 2.0, 500_000, 1e-9, 0.0179),  # .252
        (1e-6, 1.0, 1_000_000, 1e-10, 0.007),  # .721; one draw may cost more than all the others
        (0.01, 1.0, 1_000, 1e-12, 3.92),  # 4.354
        (0.001, 0.8, 10_000, 1e-20, 5.66),  # 6.093
    ],
)
def test_many_steps_of_small_rates(rate, z, steps, delta, most):
    """dp-accounting's plain sums hide these deltas; the linear loss itself costs half as much."""
    curve = Pld(rate, (z,), (steps,))
    assert curve.delta(curve.epsilon(delta)) <= delta
    assert curve.epsilon(delta) <= most
    expected = max(1, round(rate * steps))  # draws that a record has, all in batches of their own
    fewer = Pld(rate, (z,), (max(1, steps // 4),))
    assert steps == 1_000_000 or fewer.epsilon(delta) <= curve.epsilon(delta)  # 10 s
    assert curve.epsilon(delta) <= Gdp(math.sqrt(expected * 8 + 40) / z).epsilon(delta)


def test_moments_of_gaussian_steps():
    """Steps of all records, each with losses N(1/2 z^2, 1/z^2): moments e^{t (1 + t) / (2 z^2)}."""
    steps, z = 30, 2.0
    far = FixedSizeSteps(1.0, (z,), (steps,), replaced=True).far_law()
    assert isinstance(far, Tilted)
    far = far.moments
    t = far.rates
    factor = t * np.log(t) - (1 + t) * np.log1p(t)
    for logs in (far.removed, far.added):
        moments = (logs - factor) / (t * (1 + t) * steps / (2 * z * z))
        assert (moments >= 1 - 1e-9).all() and (moments <= 1.02).all()


def test_what_is_lost_counts_in_full():
    half = Ratio(1.0, 0, np.array([0.25]), np.array([0.5]), 0.75, 0.5)
    removed, added = chernoff(((half, 1),)).deltas(50.0)
    assert removed >= 0.5 and added >= 0.75
    certain = Ratio(1.0, 0, np.ones(1), np.zeros(1), 0.0, 1.0)
    assert chernoff(((half, 1), (replace(certain, p=np.full(1, 1e-300)), 2))).deltas(5.0)[0] == 1.0


def test_what_tilted_sums_lose_counts_in_full():
    """What the factors lose, and what is trimmed of them: 1e-19 of two copies beyond all else."""
    half = Ratio(1.0, 0, np.array([0.25, 0.1]), np.array([0.3, 0.2]), 0.65, 0.5)
    far = tilt_product(((half, 1),))
    assert isinstance(far, Tilted)
    assert far._sum_finite(0, 0.5, 0.0) < 0.5
    for epsilon in (0.5, 3.0):
        removed, added = far.deltas(epsilon)
        assert removed >= 0.5 and added >= 0.65
    p = np.array([0.1, 0.9 - 1e-19, 1e-19])
    rare = tilt_product(((Ratio(1.0, -1, p[::-1], p, 0.0, 0.0), 2),))
    assert isinstance(rare, Tilted) and rare.trimmed is not None
    for epsilon in (2.5, 20.0):
        removed, added = rare.trimmed.deltas(epsilon)
        assert removed >= 1e-19 and added >= 1e-19


def test_far_grids_reach_further():
    near, far = likelihood_ratio((1.0,), (6,)), likelihood_ratio((1.0,), (6,), far=True)
    assert max(far.floors) < 1e-38 < 1e-21 < min(near.floors)
    for epsilon in (0.5, 2.0, 4.0):
        assert far.deltas(epsilon) == pytest.approx(near.deltas(epsilon), rel=1e-3)


def test_losses_of_little_noise_are_numbers():
    """Noise of a tenth: likelihood ratios up to e^470."""
    losses = np.linspace(0.0, 470.0, 200)
    deltas = delta_of_draw(losses, 0.5, 10.0)
    assert np.isfinite(deltas).all() and (np.diff(deltas) <= 1e-15).all()
    assert FixedSizeSteps(0.5, (0.1,), (1,)).epsilon(1e-30) < Gdp(20.0).epsilon(1e-30)


def test_usual_deltas_need_no_far_law(monkeypatch):
    """What is asked for at delta 1e-6 is computed as before: the far law is not even made."""

    def refuse(_curve):
        raise AssertionError("far law")

    for kind in (FixedSizeSteps, AllocationPld, SecretBins):
        monkeypatch.setattr(kind, "far_law", refuse)
    for curve in (
        FixedSizeSteps(0.013, (1.1,), (300,)),
        AllocationPld(13, (1.3,), (4,)),
        SecretBins((1.3,), (7,)),
    ):
        assert 0 < curve.epsilon(1e-6) < curve.known.epsilon(1e-6)


def test_runs_without_numbers_have_those_of_known_batches():
    """Noise of a hundredth of a gradient has no distribution on a grid."""
    curve = Pld(0.5, (1e-3,), (10,))
    assert curve.delta(1e7) < 1e-200 and curve.epsilon(1e-6) <= curve.known.epsilon(1e-6) * (
        1 + 1e-6
    )


def test_groups_of_sampled_steps_have_no_floor():
    """The allowance for rounding times e^epsilon was all that a group's delta consisted of."""
    for curve in (FixedSizeSteps(0.01, (1.0,), (1000,)), Pld(0.1, (1.0,), (100,))):
        grouped = curve.group(2)
        assert isinstance(grouped, BestOf) and Grouped(curve, 2) in grouped.curves
        assert Grouped(curve, 2).epsilon(1e-6) < 10 * curve.epsilon(1e-6)
    joined = replace(FixedSizeSteps(0.01, (1.0,), (1000,)), mu=0.5)
    assert joined.epsilon(1e-20) > FixedSizeSteps(0.01, (1.0,), (1000,)).epsilon(1e-20)
