"""Secret bins: exact laws of quadratics with crowded bins, adaptive processes by quadrature,
strengths of schedules."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis.secret_blocks import mean_over_bins, usual_loads
from lastiterate.curves.allocation import SecretBins
from lastiterate.curves.curve import WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.domains import Ball
from lastiterate.theorems.sampling import strengths
from oracles.drawn import applied

EPSILONS = (0.0, 0.4, 1.5)


def law(factors, pulls, spreads):
    """Mean and variance of theta <- factor theta + pull + spread N(0, 1)."""
    mean = variance = 0.0
    for factor, pull, spread in zip(factors, pulls, spreads, strict=True):
        mean, variance = factor * mean + pull, factor**2 * variance + spread**2
    return mean, variance


def exact_delta(run, curvature, epsilons, most=math.inf):
    """Records of one curvature but a linear one, that is removed; the others' bins are seen, its
    own is not.

    What comes from others of which at most ``most`` share a bin.
    """
    blocks, eta, std = run.blocks, run.first_step, run.first_noise
    block, unit = np.arange(run.steps) % blocks, run.facts().sensitivity.value / run.divisor
    counts = Counter(
        tuple(np.bincount(bins, minlength=blocks)) if bins else (0,) * blocks
        for bins in itertools.product(range(blocks), repeat=run.n - 1)
    )
    total = np.zeros(len(epsilons))
    for held, times in counts.items():
        if max(held) > most:
            continue
        factor = 1 - eta * curvature * np.array(held)[block] / run.divisor
        _, variance = law(factor, np.zeros(run.steps), np.full(run.steps, eta * std))
        pairs = []
        for place in range(blocks):
            met = block == place
            pairs.append(law(factor, met * eta * unit, np.full(run.steps, eta * std)))
        reach = 12 * math.sqrt(max(variance, *(v for _, v in pairs)))
        x = np.linspace(
            min(0, *(m for m, _ in pairs)) - reach, max(0, *(m for m, _ in pairs)) + reach, 4001
        )
        p = np.mean([np.exp(-((x - m) ** 2) / (2 * v)) / math.sqrt(v) for m, v in pairs], axis=0)
        q = np.exp(-(x**2) / (2 * variance)) / math.sqrt(variance)
        width = (x[1] - x[0]) / math.sqrt(2 * math.pi)
        total += (
            times
            / blocks ** (run.n - 1)
            * np.array(
                [
                    max(
                        np.maximum(p - math.exp(e) * q, 0).sum(),
                        np.maximum(q - math.exp(e) * p, 0).sum(),
                    )
                    * width
                    for e in epsilons
                ]
            )
        )
    return total


def test_the_last_iterate_with_crowded_bins():
    """Steps up to where a full bin would expand, and beyond."""
    rng, near, crowded = np.random.default_rng(31), 0.0, 0
    for _ in range(120):
        n = int(rng.integers(2, 8))
        size = int(rng.integers(1, n + 1))
        eta, curvature = float(rng.uniform(0.1, 2.0)), float(rng.choice([1.0, rng.uniform(0, 1)]))
        run = li.Run(
            n=n,
            steps=int(rng.integers(1, 9)),
            step_size=li.Constant(eta),
            batching=li.BallsInBins(size),
            noise=li.GradientNoise(float(rng.uniform(0.3, 2))),
            loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0)),
        )
        if run.blocks > 3:
            continue
        found = applied("shifted-interpolation-bins", run)
        for epsilon, true in zip(EPSILONS, exact_delta(run, curvature, EPSILONS), strict=True):
            assert found.delta(epsilon) >= true * (1 - 1e-4) - 1e-9, (run, curvature)
            near = max(near, true / found.delta(epsilon) if true > 1e-4 else 0.0)
        failed = mean_over_bins(run, (0.4,))
        if not isinstance(failed, WithFailure) or failed.curve == found:
            continue
        crowded += 1
        usual = exact_delta(run, curvature, EPSILONS, usual_loads(n - 1, run.blocks, 0.4)[1])
        for epsilon, true in zip(EPSILONS, usual, strict=True):
            assert failed.curve.delta(epsilon) >= true * (1 - 1e-4) - 1e-9, (run, curvature)
            assert failed.delta(epsilon) == pytest.approx(
                min(1.0, failed.curve.delta(epsilon) + 0.4)
            )
    assert near > 0.95 and crowded > 10


def test_loads_are_exact_binomial_tails():
    for others, bins, failure in (
        (99, 10, 1e-6),
        (9999, 20, 1e-12),
        (5, 3, 1e-3),
        (10**6, 100, 1e-20),
        (40, 2, 0.2),
    ):
        fewest, most = usual_loads(others, bins, failure)
        assert (
            bins * (binom.sf(most, others, 1 / bins) + binom.cdf(fewest - 1, others, 1 / bins))
            <= failure
        )
        assert most == others or bins * binom.sf(most - 1, others, 1 / bins) > failure / 2 * (
            1 - 1e-5
        )
        assert fewest == 0 or bins * binom.cdf(fewest, others, 1 / bins) > failure / 2 * (1 - 1e-5)
    fewest, most = usual_loads(9999, 20, 1e-12)
    assert 300 < fewest < 400 and 600 < most < 700, "500 on average, standard deviation 22"
    assert usual_loads(7, 3, 0.0) == (0, 7) and usual_loads(0, 3, 0.1) == (0, 0)


def test_usual_loads_make_bins_as_good_as_blocks():
    """20 bins of about 500: at 1.5/smooth the mean over bins is that of a permutation, at
    1.99/smooth it is not."""
    flat = li.Logistic(row_norm=1.0, intercept=0.0)
    for relative, close in ((1.5, True), (1.99, False)):
        run = li.Run(
            n=10_000,
            steps=100,
            step_size=li.Constant(relative * 4),
            noise=li.GradientNoise(0.004),
            batching=li.BallsInBins(500),
            loss=flat,
        )
        bins = applied("shifted-interpolation-bins", run).epsilon(1e-6)
        blocks = applied(
            "shifted-interpolation-permuted", replace(run, batching=li.Permuted(500))
        ).epsilon(1e-6)
        assert (bins <= blocks * (1 + 1e-4)) == close
        assert bins < applied("composition-gdp", run).epsilon(1e-6)


def test_replace_one_counts_the_record_itself():
    run = li.Run(
        n=2,
        steps=3,
        step_size=li.Constant(1.4),
        noise=li.GradientNoise(1.0),
        batching=li.BallsInBins(1),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0, smooth=1.0, strong=0.0)),
    )
    # alone with the other record nothing expands; together with its replacement a bin may hold two:
    # 1 - 1.4 * 2
    one, two = (
        applied("shifted-interpolation-bins", replace(run, adjacency=a)).delta(0.5)
        for a in ("zero-out", "replace-one")
    )
    flat = replace(run, step_size=li.Constant(0.5))
    mild = [
        applied("shifted-interpolation-bins", replace(flat, adjacency=a)).delta(0.5)
        for a in ("zero-out", "replace-one")
    ]
    assert two / one > mild[1] / mild[0] * 1.01


def test_adaptive_gradients_lie_below_the_pair():
    """Three steps of two bins, all released: gradients of norm at most 1 that follow the past, by
    quadrature."""
    rng = np.random.default_rng(12)
    axis = np.linspace(-9, 9, 121)
    y1, y2, y3 = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    bell = lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    cell, best = (axis[1] - axis[0]) ** 3, 0.0
    run = li.Run(
        n=2,
        steps=3,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(1 / 1.1),
        batching=li.BallsInBins(1),
        release="all",
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0)),
    )
    found = applied("balls-in-bins-pld", run)
    for trial in range(6):
        a, b, c = rng.normal(size=3) * 2
        g1 = 1.1
        g2 = 1.1 * (np.tanh(a * y1) if trial else 1.0)
        g3 = 1.1 * (np.sin(b * y1 + c * y2) if trial else 1.0)
        q = bell(y1) * bell(y2) * bell(y3)
        p = (bell(y1 - g1) * bell(y2) * bell(y3 - g3) + bell(y1) * bell(y2 - g2) * bell(y3)) / 2
        for epsilon in (0.0, 0.7, 1.5):
            one, two = (
                np.maximum(p - math.exp(epsilon) * q, 0),
                np.maximum(q - math.exp(epsilon) * p, 0),
            )
            for true, ours in zip(
                (one.sum() * cell, two.sum() * cell), found.directions(epsilon), strict=True
            ):
                assert true <= ours * (1 + 2e-3) + 1e-6
                best = max(best, true / ours)
    assert best > 0.99, "attained by constant gradients"


def test_strengths_follow_the_schedule():
    loss = li.KnownConstants(li.LossFacts(sensitivity=2.0))
    base = dict(n=40, step_size=li.Constant(1.0), batching=li.BallsInBins(10), loss=loss)
    constant = li.Run(steps=10, noise=li.GradientNoise(0.5), **base)
    assert strengths(constant) == (
        pytest.approx((math.sqrt(2) * 0.4, 2)),
        pytest.approx((math.sqrt(3) * 0.4, 2)),
    )
    listed = replace(constant, noise=li.GradientNoise((0.5,) * 10))
    assert np.array(strengths(listed)) == pytest.approx(np.array(strengths(constant)))
    varied = replace(constant, noise=li.GradientNoise((0.5, 0.5, 0.5, 0.25, *([1.0] * 6))))
    want = (
        (1 / 0.25 + 1, 1),
        (1 / 0.25 + 2, 2),
        (1 / 0.0625 + 1, 1),
    )  # noise over divisor and sensitivity: 5 std
    assert np.array(strengths(varied)) == pytest.approx(
        np.array([(math.sqrt(k) * 0.2, v) for k, v in want])
    )
    first = li.Run(steps=3, noise=li.GradientNoise(0.5), **base)
    assert strengths(first) == (pytest.approx((0.0, 1)), pytest.approx((0.4, 3)))
    free = replace(constant, noise=li.GradientNoise(0.0))
    assert applied("balls-in-bins-pld", free).epsilon(1e-5) == math.inf
    nothing = replace(constant, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0)))
    assert applied("balls-in-bins-pld", nothing) == Gdp(0.0)


def test_the_pair_is_monotone():
    run = li.Run(
        n=60,
        steps=10,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(0.2),
        batching=li.BallsInBins(10),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0)),
    )
    now = applied("balls-in-bins-pld", run).delta(0.7)
    more = (
        replace(run, steps=11),
        replace(run, noise=li.GradientNoise(0.19)),
        replace(run, n=50),
        replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=1.05))),
    )
    assert all(applied("balls-in-bins-pld", other).delta(0.7) > now for other in more)
    assert now < applied("composition-gdp", run).delta(0.7)
    same = (
        replace(run, release="all"),
        replace(run, optimizer=li.HeavyBall(0.9)),
        replace(run, domain=Ball(1.0)),
    )
    assert all(
        applied("balls-in-bins-pld", other) == applied("balls-in-bins-pld", run) for other in same
    )
    assert isinstance(applied("balls-in-bins-pld", run), SecretBins)


def test_published_cases():
    """Logistic losses, noise at which a permutation has epsilon 1 at delta 1e-6 (20 bins, 5 passes;
    100 and 100)."""
    for blocks, passes, n, most in ((20, 5, 10_000, 0.602), (100, 100, 100_000, 1.0001)):
        run = li.Run(
            n=n,
            steps=blocks * passes,
            step_size=li.Constant(2.0),
            noise=li.GradientNoise(1.0),
            batching=li.Permuted(n // blocks),
            loss=li.Logistic(),
        )
        noise = li.calibrate(run, epsilon=1.0, delta=1e-6).run.noise
        found = li.account(replace(run, noise=noise, batching=li.BallsInBins(n // blocks)))
        assert found.epsilon(1e-6) <= most
