"""Secret blocks that later steps hide: every choice of intervals lies above the exact law, and it
is used."""

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.delayed_shifts import block_interval_counts, block_intervals
from lastiterate.analysis.restarted_sampling import last_steps
from lastiterate.curves import delayed_shifts
from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.delayed_shifts import AllocatedShifts, hidden_passes, interval_ends
from lastiterate.curves.gaussian import Gdp
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from laws.test_restarted import EPSILONS, allocations, law, runs
from oracles.drawn import applied
from tiers import size

NAME = "delayed-shifts-allocated"


def test_every_choice_of_intervals_lies_above_the_exact_law():
    rng, near = np.random.default_rng(9), 0.0
    for _ in range(size(50, 1000, "DELAYED_BLOCKS")):
        blocks = int(rng.choice([1, 2, 3]))
        run, c = runs(rng, li.RandomAllocation(6 // blocks), int(rng.integers(1, 3 * blocks + 2)))
        c = c * float(rng.choice([1.0, 1.0, 1.3]))
        truth = law(run, list(allocations(run)), c)
        found = block_intervals(replace(last_steps(run, 1 / blocks, 0.0, blocks), c=c), blocks)
        for curve in rng.permutation(np.array(found, dtype=object))[:4]:
            for epsilon, true in zip(EPSILONS, truth, strict=True):
                ours = curve.delta(epsilon)
                assert ours >= true * (1 - 1e-4) - 1e-9, (run, curve, epsilon)
                near = max(near, true / ours if true > 1e-3 else 0.0)
    assert near > 0.9


def test_shifts_that_no_later_step_hides_have_a_rank_too():
    """NumPy's quantiles of infinite numbers are no numbers, and it warns."""
    run = li.Run(
        n=1200,
        steps=480,
        step_size=0.2,
        clip=1.0,
        noise=li.NoiseMultiplier(15.0),
        loss=li.Logistic(ridge=0.01),
        batching=li.RandomAllocation(5),
    )
    steps = last_steps(run, 1 / run.blocks, 0.0, run.blocks)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ranks = [block_interval_counts(curve) for curve in block_intervals(steps, run.blocks)]
    assert np.isfinite(ranks).all()


def test_intervals_and_what_hides_them():
    assert interval_ends(8, 2.0, 2, 3) == [0, 1, 3, 4, 6, 7, 8] and interval_ends(6, 2.0, 3, 3) == [
        0,
        3,
        5,
        6,
    ]
    curve = AllocatedShifts(
        2, (3, 1), (0.5, 2.0), (1.0, 0.3), (0.7, 0.4), 2.0, 2, 5.0
    )  # ends 0, 2, 3, 4
    certain, passes = hidden_passes(curve)
    assert certain == pytest.approx(5 * 0.25 / (0.7 * math.sqrt(1.25)), rel=1e-6)
    assert hidden_passes(replace(curve, before=0.05))[0] == pytest.approx(certain / 100, rel=1e-9)
    assert hidden_passes(replace(curve, before=0.0))[0] == 0
    (first, second), last = passes, 0.4
    assert first[1] == second[1] == 1 and [share for share, _ in (*first[0], *second[0])] == [
        1.0,
        1.0,
    ]
    assert list(first[0][0][1]) == pytest.approx([0.5 * 0.5 / 0.7, 0.5 / 0.7], rel=1e-6)
    assert list(second[0][0][1]) == pytest.approx([2.0 / last, 0.3 / last], rel=1e-6)
    apart = AllocatedShifts(2, (1,), (1.0,), (1.0,), (1.0,), 1.0, 1, before=0.1)
    assert hidden_passes(apart)[0] == math.inf, "the only step has its own draw to hide"
    lonely = AllocatedShifts(2, (3,), (1.0,), (1.0,), (1.0,), 1.0, 1)
    assert hidden_passes(lonely)[0] == math.inf == lonely.epsilon(1e-5), (
        "the last step begins a pass"
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "shift, before, numbers",
    [(19.9, 0.0, True), (20.1, 0.0, False), (1.0, 19.9, True), (1.0, 20.1, False)],
)
def test_where_one_interval_is_seen_draws_count_as_known(shift, before, numbers):
    stds = math.sqrt(1 / 2), math.sqrt(1 / 2)
    curve = AllocatedShifts(
        5, (1, 4), (1.0, 1.0), (shift, 1.0), stds, 2.0, 2, before
    )  # ends 0, 2, 4, 5
    assert (curve.law() is not None) == numbers
    assert numbers or curve.delta(1.0) == curve.known.delta(1.0)
    assert curve.known.mu == pytest.approx(math.hypot(before, max(shift, math.sqrt(2))), rel=1e-6)


def test_more_passes_than_are_followed_count_as_known(monkeypatch):
    curve = AllocatedShifts(2, (6,), (1.0,), (1.0,), (3.0,), 1.0, 1)
    assert curve.law() is not None
    monkeypatch.setattr(delayed_shifts, "LONGEST", 2)
    assert curve.law() is None


@pytest.mark.parametrize("reach", [1.0, 9.5])
def test_masses_of_a_mean_of_ratios(reach, monkeypatch):
    """Both laws have mass 1, what lies beyond the grid included; the mean of the ratio's square is
    exact."""
    monkeypatch.setattr(delayed_shifts, "GRID_REACH", reach)
    for shifts in (np.array([0.5, 1.3]), np.array([0.2]), np.array([2.0, 0.01, 1.0])):
        found = delayed_shifts.mixture_grid(shifts)
        assert found.mass.sum() == pytest.approx(1, abs=1e-12) and found.mass.min() >= 0
        assert 1 - 1e-9 <= found.mass @ found.value + found.lost <= 1 + 2e-6
        square = np.exp(np.multiply.outer(shifts, shifts)).mean()
        assert reach < 9 or square <= found.mass @ found.value**2 <= square * 1.01


def test_one_step_of_a_pass_is_sampled():
    ours = AllocatedShifts(20, (1,), (1.0,), (1.0,), (1.5,), 1.0, 1)
    theirs = AllocationPld(20, (), (), 1.5, 1)
    for epsilon in (0.05, 0.3, 1.0):
        assert ours.delta(epsilon) == pytest.approx(theirs.delta(epsilon), rel=5e-3)


def test_the_curve():
    curve = AllocatedShifts(20, (100,), (1.0,), (1.0,), (0.8,), 1.6, 10)
    epsilon = curve.epsilon(1e-5)
    assert curve.delta(epsilon) <= 1e-5 < curve.delta(epsilon * (1 - 1e-6))
    assert curve_from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    together = compose(Gdp(0.1), curve)
    assert (
        isinstance(together, AllocatedShifts) and epsilon < together.epsilon(1e-5) < 1.5 * epsilon
    )
    assert epsilon <= curve.coarser().epsilon(1e-5) <= epsilon * 1.05
    assert curve.rdp(8.0) <= curve.known.rdp(8.0) * 1.001 and curve.group(2).epsilon(1e-4) > epsilon
    assert replace(curve, stds=(0.0,)).epsilon(1e-5) == math.inf


BASE = li.Run(
    n=10_000,
    steps=200,
    step_size=1 / 0.35,
    noise=li.NoiseMultiplier(2.0),
    batching=li.RandomAllocation(500),
    loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.1),
)


def curve(run, name=NAME):
    return applied(name, run)


def test_what_it_buys():
    assert curve(BASE).epsilon(1e-5) < 0.75 * curve(BASE, "restarted-allocation-pld").epsilon(1e-5)
    flat = replace(
        BASE,
        step_size=4.0,
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
        steps=100,
        noise=li.NoiseMultiplier(0.8),
    )
    found = curve(flat).epsilon(1e-5)
    assert found < 0.8 * min(
        curve(flat, name).epsilon(1e-5)
        for name in ("random-allocation-pld", "shifted-interpolation-allocated")
    )
    small = replace(flat, domain=li.domains.Ball(0.005))
    assert curve(small).epsilon(1e-5) < found


@pytest.mark.parametrize(
    "change",
    [
        {"release": "all"},
        {"optimizer": li.HeavyBall(0.5)},
        {"prox": li.penalties.L2Squared(0.1)},
        {"batching": li.Reshuffled(500)},
    ],
)
def test_what_the_proof_does_not_cover(change):
    assert isinstance(match(TABLE[NAME], replace(BASE, **change)), Fails)
