"""The row of random allocation: what it hands to its curve, and what the curve must lie above."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import find_theorem
from lastiterate.theorems.theorem import Applies, match

RUN = li.Run(
    n=1000,
    steps=60,
    step_size=0.5,
    noise=li.NoiseMultiplier(2.0),
    batching=li.RandomAllocation(100),
    loss=li.KnownConstants(li.LossFacts(lipschitz=3.0)),
)


def curve(run):
    found = match(find_theorem("random-allocation-pld"), run)
    assert isinstance(found, Applies)
    return found.curve


def test_passes_and_multipliers():
    assert curve(RUN) == AllocationPld(10, (2.0,), (6,))
    assert curve(replace(RUN, steps=64)) == AllocationPld(10, (2.0,), (6,), 2.0, 4)
    assert curve(replace(RUN, steps=4)) == AllocationPld(10, (), (), 2.0, 4)
    assert curve(replace(RUN, batching=li.RandomAllocation(300))) == AllocationPld(4, (2.0,), (15,))
    same = [
        replace(RUN, release="all"),
        replace(RUN, optimizer=li.HeavyBall(0.9)),
        replace(RUN, optimizer=li.Adam()),
        replace(RUN, step_size=7.0),
        replace(RUN, adjacency="add-remove"),
    ]
    assert all(curve(run) == curve(RUN) for run in same)
    nothing = li.KnownConstants(li.LossFacts(sensitivity=0.0, lipschitz=3.0))
    assert curve(replace(RUN, loss=nothing)) == Gdp(0.0)


def test_schedules_count_with_the_least_noise_of_a_pass():
    stds = np.full((6, 10), 0.06)
    stds[2, 5], stds[4] = 0.03, 0.09
    found = curve(replace(RUN, noise=li.GradientNoise(tuple(stds.ravel()))))
    assert found.multipliers == pytest.approx((1.0, 2.0, 3.0)) and found.counts == (1, 4, 1)
    unfinished = curve(
        replace(
            RUN, steps=23, noise=li.GradientNoise((*stds.ravel()[:20].tolist(), 0.06, 0.03, 0.06))
        )
    )
    assert unfinished.last_multiplier == pytest.approx(1.0) and unfinished.last_reached == 3
    assert curve(replace(RUN, noise=li.NoiseMultiplier(0.0))).epsilon(1e-5) == math.inf


def one_pass(a, epsilon, first):
    """Exact delta of one pass over two blocks, both orders, by quadrature over the plane."""
    x = np.linspace(-9, 9 + a, 1801)
    q = np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    ratio = np.exp(a * x - a * a / 2)
    mean = (ratio[:, None] + ratio[None, :]) / 2
    weight = q[:, None] * q[None, :] * (x[1] - x[0]) ** 2
    gain = mean - math.exp(epsilon) if first else 1 - math.exp(epsilon) * mean
    return float((weight * np.maximum(gain, 0)).sum())


@pytest.mark.parametrize("multiplier", [0.7, 2.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.5])
def test_one_pass_over_two_blocks_is_exact(multiplier, epsilon):
    run = replace(
        RUN, batching=li.RandomAllocation(500), steps=2, noise=li.NoiseMultiplier(multiplier)
    )
    exact = max(one_pass(1 / multiplier, epsilon, first) for first in (True, False))
    assert exact * (1 - 1e-5) <= curve(run).delta(epsilon) <= exact * 1.003 + 1e-9


def test_the_best_theorem_and_what_it_costs():
    """Fewer blocks or more passes cost more; composition charges the batches as if they were known."""
    enforced = replace(RUN, loss=li.KnownConstants(), clip=1.0)
    certificate = li.account(enforced)
    best = certificate.best(1e-5)
    assert best.theorem.name == "random-allocation-pld"
    known = certificate.verdict("composition-gdp").result.curve
    assert certificate.epsilon(1e-5) < known.epsilon(1e-5) / 3
    deltas = [
        li.account(replace(enforced, **change)).delta(1.0)
        for change in ({}, {"steps": 120}, {"batching": li.RandomAllocation(500), "steps": 12})
    ]
    assert deltas[0] < deltas[1] and deltas[0] < deltas[2]
    assert "which records each batch holds must stay secret" in certificate.all_caveats()


def test_calibration_needs_no_more_noise_than_poisson():
    found = li.calibrate(
        replace(RUN, noise=None, loss=li.KnownConstants(), clip=1.0), epsilon=1.0, delta=1e-5
    )
    poisson = li.calibrate(
        replace(RUN, noise=None, loss=li.KnownConstants(), clip=1.0, batching=li.Poisson(0.1)),
        epsilon=1.0,
        delta=1e-5,
    )
    assert found.epsilon(1e-5) <= 1.0 and found.run.noise.z <= poisson.run.noise.z * 1.001
