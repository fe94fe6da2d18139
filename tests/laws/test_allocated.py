"""Blocks drawn anew in every pass, the last iterate: exact laws over everybody's draws, usual loads
of all passes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis.secret_blocks import mean_over_fresh_blocks, usual_loads
from lastiterate.curves.curve import WithFailure
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from oracles.allocated import exact_delta
from oracles.drawn import applied

NAME, EPSILONS = "shifted-interpolation-allocated", (0.0, 0.5)


def curve(run, name=NAME):
    return applied(name, run)


def test_exact_laws_of_all_draws():
    rng, near, crowded = np.random.default_rng(17), 0.0, 0
    for _ in range(70):
        n = int(rng.integers(2, 8))
        size, steps = int(rng.integers(1, n + 1)), int(rng.integers(1, 6))
        run = li.Run(
            n=n,
            steps=steps,
            step_size=float(rng.uniform(0.1, 2.0)),
            batching=li.RandomAllocation(size),
            noise=li.GradientNoise(float(rng.uniform(0.3, 2))),
            loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0)),
        )
        passes = -(-steps // run.blocks)
        if run.blocks > 3 or math.comb(n + run.blocks - 2, run.blocks - 1) ** passes > 200:
            continue  # too many ways to share blocks
        curvature = float(rng.choice([0.0, 1.0, rng.uniform(0, 1)]))
        found = curve(run)
        for epsilon, true in zip(EPSILONS, exact_delta(run, curvature, EPSILONS), strict=True):
            assert found.delta(epsilon) >= true * (1 - 1e-3) - 1e-7, (run, curvature)
            near = max(near, true / found.delta(epsilon) if true > 1e-3 else 0.0)
        failed = mean_over_fresh_blocks(run, (0.95,))
        most = usual_loads(n - 1, run.blocks, 0.95, passes)[1]
        if most == n - 1:
            continue
        assert isinstance(failed, WithFailure)
        crowded += 1
        for epsilon, true in zip(
            EPSILONS, exact_delta(run, curvature, EPSILONS, most), strict=True
        ):
            assert failed.curve.delta(epsilon) >= true * (1 - 1e-3) - 1e-7, (run, curvature)
    assert near > 0.98 and crowded > 3


def test_the_loads_of_all_passes_are_usual():
    for others, blocks, passes in ((9999, 20, 50), (999, 10, 7)):
        fewest, most = usual_loads(others, blocks, 1e-9, passes)
        chance = binom.sf(most, others, 1 / blocks) + binom.cdf(fewest - 1, others, 1 / blocks)
        assert passes * blocks * chance <= 1e-9
        one = usual_loads(others, blocks, 1e-9)
        assert fewest < one[0] and one[1] < most


def test_it_is_as_good_as_reshuffled_blocks_where_steps_are_short():
    run = li.Run(
        n=10_000,
        steps=1000,
        step_size=2.0,
        noise=li.NoiseMultiplier(4.0),
        batching=li.RandomAllocation(500),
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    shuffled = curve(
        replace(run, batching=li.Reshuffled(500)), "shifted-interpolation-reshuffled"
    ).epsilon(1e-6)
    assert curve(run).epsilon(1e-6) == pytest.approx(shuffled, rel=1e-4)
    assert curve(run).epsilon(1e-6) < curve(run, "composition-gdp").epsilon(1e-6) / 2
    longer = replace(run, step_size=7.9)
    assert curve(longer).epsilon(1e-6) > shuffled * 1.01, "full blocks expand near 2/smooth"
    assert isinstance(match(TABLE[NAME], replace(run, adjacency="add-remove")), Fails)
    swap = curve(replace(run, adjacency="replace-one")).epsilon(1e-6)
    assert curve(run).epsilon(1e-6) < swap


def test_schedules():
    base = dict(
        n=600,
        steps=40,
        batching=li.RandomAllocation(60),
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    constant = li.Run(step_size=1.0, noise=li.GradientNoise(0.05), **base)
    listed = replace(constant, step_size=(1.0,) * 40)
    assert (
        curve(constant).epsilon(1e-5)
        <= curve(listed).epsilon(1e-5)
        <= 1.3 * curve(constant).epsilon(1e-5)
    )
