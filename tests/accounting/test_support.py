"""Executed noise ends 36 standard deviations from 0: what that costs, against the exact law of what
is executed."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import ncx2

import lastiterate as li
from lastiterate.accounting.certificate import REACH, SHARE, delta_beyond_support, lost_by_one

ONE = li.Run(
    n=100, steps=1, step_size=1.0, noise=li.NoiseMultiplier(1.0), loss=li.Logistic(row_norm=1.0)
)


def leaves(moved, reach):
    """A pair of normals of radius at most ``reach``, moved, is of a larger one: exactly, in one
    direction at least."""
    return ncx2.sf(reach**2, 2, moved**2) - math.exp(-(reach**2) / 2)


@pytest.mark.parametrize(
    ("moved", "reach"),
    [
        (0.01, 10.0),
        (0.5, 10.0),
        (2.0, 10.0),
        (4.0, 10.0),
        (6.0, 10.0),
        (8.0, 10.0),
        (20.0, REACH),
        (30.0, REACH),
    ],
)
def test_a_moved_pair_leaves_the_support_no_more_often_than_is_counted(moved, reach):
    assert leaves(moved, reach) <= lost_by_one(moved, reach)
    assert moved < 2 or lost_by_one(moved, reach) < 400 * leaves(moved, reach)


@pytest.mark.parametrize("reach", [10.0, REACH])
def test_many_moved_pairs_lose_no_more_than_one(reach):
    rng = np.random.default_rng(0)
    for _ in range(400):
        moved, pairs = (
            float(rng.choice([rng.uniform(0.01, 0.5), rng.uniform(0.3, reach - 1)])),
            rng.integers(2, 2000),
        )
        each = moved * np.sqrt(rng.dirichlet(np.full(pairs, rng.choice([0.01, 0.1, 1.0]))))
        end = math.exp(-(reach**2) / 2)
        lost = (np.exp(-((reach - each) ** 2) / 2) - end).sum()
        counted = 4.5 * reach * moved * math.sqrt(pairs) * end + math.exp(
            -((reach - moved) ** 2) / 2
        )
        assert lost <= counted <= lost_by_one(moved, reach)


@pytest.mark.parametrize("mu", [1.0, 3.0, 5.0, 7.0])
def test_one_number_whose_noise_ends(mu):
    """N(0, 1) without what lies beyond 10, moved by mu: the exact delta, where the ideal one is
    smaller too."""
    end = 10.0
    kept = 1 - 2 * ndtr(-end)
    x = np.linspace(mu - end, mu + end, 400_001)
    p = np.exp(-((x - mu) ** 2) / 2) / math.sqrt(2 * math.pi) / kept
    q = np.where(np.abs(x) <= end, np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi) / kept, 0.0)
    for epsilon in (0.5, 8.0, 40.0):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) * (x[1] - x[0])
        ideal = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        assert exact <= (ideal + lost_by_one(mu, end)) / kept * (1 + 1e-4) + 1e-12
        if (mu, epsilon) == (5.0, 40.0):
            assert exact > 20 * ideal, "longer draws than there are would be needed"


def test_usual_runs_lose_nothing():
    for z, steps in ((0.05, 1), (0.1, 10_000), (0.5, 100), (2.0, 10_000)):
        assert (
            delta_beyond_support(
                li.account(replace(ONE, noise=li.NoiseMultiplier(z), steps=steps)), 1e-6
            )
            < 1e-10
        )
    assert (
        delta_beyond_support(li.account(replace(ONE, noise=li.NoiseMultiplier(0.03))), 1e-6) > 1e-6
    )


def test_rows_of_a_unit_move_a_preparation_together():
    """A sum over three rows moves three times as far as over one: 33 / 3 = 11 standard deviations."""
    for rows, z, lost in ((1, 1 / 11, False), (3, 1.0, False), (3, 1 / 11, True)):
        run = replace(
            ONE,
            noise=li.NoiseMultiplier(50.0),
            loss=li.Logistic(cap=0.1),
            step_size=li.RelativeToSmooth(0.9),
            preprocessing=(li.TopEigenvalue(z),),
            rows_per_unit=rows,
        )
        assert (delta_beyond_support(li.account(run), 1e-6) > 1e-8) is lost


@pytest.mark.parametrize(
    "change",
    [
        {"noise": li.NoiseMultiplier(0.03)},
        {"preprocessing": (li.PrivateMean(0.03, 1.0),)},
        {"steps": 2, "noise": li.GradientNoise((0.0, 0.0003)), "step_size": 1.0},
    ],
)
def test_a_release_that_needs_longer_draws_says_so(change):
    rows, labels = np.ones((100, 3)) / 2, np.arange(100) % 2
    run = replace(ONE, **change)
    model = li.train(run, (rows, labels), delta=1e-5, seed=0)
    assert any("end at 36 standard deviations" in text for text in model.certificate.all_caveats())
    usual = li.train(ONE, (rows, labels), delta=1e-5, seed=0)
    assert not any("standard deviations" in text for text in usual.certificate.all_caveats())
    assert li.account(run).epsilon(1e-5) > 400, "the ideal mechanism has its epsilon"
    assert SHARE <= 0.01
