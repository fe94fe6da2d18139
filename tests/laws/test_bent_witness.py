"""Losses whose other records oppose one and bend: against runs followed step by step, and against
closed laws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.figures import bent_witness, slack, witnesses
from lastiterate.curves.gaussian import Gdp, delta_of_draw

BLOCKS = bent_witness.BLOCKS


def places(rng, batches, runs, passes):
    """Whether the record is in the batch of a step; shape (steps, runs)."""
    if batches == "fixed size":
        return rng.random((passes * BLOCKS, runs)) < 1 / BLOCKS
    drawn = rng.integers(BLOCKS, size=(1 if batches == "permuted" else passes, runs)).repeat(
        passes if batches == "permuted" else 1, axis=0
    )
    return (np.arange(BLOCKS)[None, :, None] == drawn[:, None, :]).reshape(passes * BLOCKS, runs)


def followed(rng, batches, a, slope, bend, b, z, gradient, start, passes, runs=10_000):
    """theta of runs whose batches hold b records of gradients -1 that rise beyond ``bend``, or the
    one of ``gradient``.

    One unit is what a gradient of 1 moves. Distances from the bend are returned.
    """
    theta = np.full(runs, start)
    for mine in places(rng, batches, runs, passes):
        others = np.minimum(-1 + np.maximum(theta - bend, 0) * slope / b, 1)
        theta = (
            (1 - a) * theta
            - np.where(mine, (b - 1) * others + gradient, b * others)
            + rng.normal(0, z, runs)
        )
    return theta - bend


@pytest.mark.parametrize("batches", slack.EXCHANGED)
@pytest.mark.parametrize("a", [0.3, 0.0])
def test_the_laws_are_those_of_runs(batches, a):
    rng, b, z, slope = np.random.default_rng(5), 40 if a else 120, 0.8, 0.8 * (1 - a)
    passes = bent_witness.FORGOTTEN if a else 2
    if a:
        window = 2.0
        bend = (b - (a + slope) * window) / a
        laws, width, start = (
            bent_witness.with_ridge(batches, a, slope, window, b, z),
            z / 10,
            bend + window,
        )
    else:
        window, steps = 4.0, passes * BLOCKS
        bend, start = 0.0, window - (steps - 1) * b + 1.5 * passes
        laws, width = bent_witness.without_ridge(batches, slope, window, b, z, passes), z / 5
    for gradient, law in zip((1.0, 0.0), laws, strict=True):
        seen = followed(rng, batches, a, slope, bend, b, z, gradient, start, passes)
        if a:
            grid = window + np.arange(-30 * z - 20, 30 * z + 20, z / 10)
        else:  # what is not curved drifts by b in the last step
            spread = z * np.sqrt(steps - 1)
            grid, seen = bent_witness.drifting(window, spread, passes, z), seen - b
        shares = np.searchsorted(np.sort(seen), grid + width / 2) / seen.size
        assert np.abs(np.cumsum(law) * width - shares).max() < 2 / np.sqrt(
            seen.size
        )  # 5 in 10,000 (DKW)


@pytest.mark.parametrize("batches", slack.EXCHANGED)
def test_without_a_bend_they_are_those_of_linear_losses(batches):
    p, q = bent_witness.with_ridge(batches, 0.1 / 0.35, 0.0, 0.0, 500, 2.0)
    assert slack.epsilon_of(p, q, 0.2) == pytest.approx(
        slack.against(batches, 0.1, 2.0, 50), rel=1e-3
    )


@pytest.mark.parametrize("batches", slack.EXCHANGED)
def test_what_forgets_everything_shows_one_batch_of_a_fixed_size(batches):
    p, q = bent_witness.with_ridge(batches, 0.1 / 0.35, 1 - 0.1 / 0.35, 14.0, 10**9, 2.0)
    epsilon = slack.epsilon_of(
        bent_witness.finer(p), bent_witness.finer(q), 0.2 / bent_witness.FINER
    )
    assert float(delta_of_draw(np.array([epsilon]), 1 / BLOCKS, 0.5)[0]) == pytest.approx(
        slack.DELTA, rel=1e-3
    )
    assert epsilon == pytest.approx(0.745, abs=1e-3)


def test_opposed_records_that_are_always_drawn_are_a_gaussian_mechanism():
    weights = 0.9 ** np.arange(30.0)[::-1] / 8
    assert slack.opposed("fixed size", weights, 1.0) == pytest.approx(
        Gdp(weights.sum()).epsilon(slack.DELTA), rel=1e-4
    )
    one = slack.opposed("fixed size", np.full(1, 1 / 1.5), 0.01)
    assert float(delta_of_draw(np.array([one]), 0.01, 1 / 1.5)[0]) == pytest.approx(
        slack.DELTA, rel=1e-4
    )


def test_what_long_training_on_subsets_leaks_at_least():
    """10,000 records, batches of 100, noise multiplier 1.5, ridge .0385, step 1: the figure of
    restarted-fixed-size."""
    kept = (1 - 0.0385) ** np.arange(700.0)[::-1]  # what is older adds and hides nothing
    leaked = slack.opposed("fixed size", kept / (1.5 * math.sqrt((kept**2).sum())), 0.01)
    assert 0.256 < leaked < 0.257


def test_two_phases_count_draws_before_and_after_the_step_that_contracts():
    chances, sums = witnesses.draws("permuted", 0.5, 25, 3)  # of 60 steps the last 25 count whole
    assert list(sums) == [2.0] * 15 + [2.5] * 5 and chances.sum() == pytest.approx(1)
    assert list(witnesses.draws("reshuffled", 0.5, 25, 3)[1]) == [2.0] * 15 + [2.5] * 5
    chances, sums = witnesses.draws("fixed size", 0.5, 25, 3)
    assert chances @ sums == pytest.approx((0.5 * 35 + 25) / BLOCKS)
    for batches in ("reshuffled", "fixed size"):
        flat = (
            witnesses.curved(batches, 0.0, 2.0, 5)
            if batches == "reshuffled"
            else slack.against(batches, 0, 2.0, 5)
        )
        assert witnesses.two_phases(batches, 1.0, 7, 2.0, 5) == pytest.approx(flat, rel=1e-3)
