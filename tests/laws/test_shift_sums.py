"""Allocated shifts by brute force: restarts, positions, groups of positions, weakly convex steps."""

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis import block_positions, shifts
from lastiterate.analysis.block_positions import (
    Group,
    block_constants,
    constant_atoms,
    groups,
    latest_shift,
    merge_places,
    place_mus,
    shifts_of_schedule,
    tail_groups,
)
from lastiterate.analysis.shifts import (
    best_restart,
    constant_mus,
    cyclic_mu,
    log_square,
    longest_weakly_convex_step,
    optimal_mu,
    pool,
    search,
    shift_in_draws,
    unit_shift,
)
from lastiterate.analysis.step_map import StepMap
from oracles.cancelling import matrix

UP = 1 + 1e-11


def mu_of(c, s, v, start=0.0):
    """The optimal mu, as the greatest slope sums allow: over every way to cut the steps into pools.

    mu^2 = min over allocations; by duality it is the largest sum of dS^2 / dX over pools whose
    slopes increase, and any cut into pools gives no more."""
    c, s, v = list(c), list(s), list(v)
    if start:
        s[0] += c[0] * start
    later = [math.prod(c[t + 1 :]) for t in range(len(c))]
    dS, dX = (
        [a * r for a, r in zip(s, later, strict=True)],
        [b * r * r for b, r in zip(v, later, strict=True)],
    )
    best = 0.0
    for cuts in product((False, True), repeat=len(c) - 1):
        edges = [0, *(t + 1 for t, cut in enumerate(cuts) if cut), len(c)]
        pools = [(sum(dS[a:b]), sum(dX[a:b])) for a, b in pairwise(edges)]
        if any(x == 0 < shift for shift, x in pools):
            continue
        pools = [(shift, x) for shift, x in pools if x > 0]
        slopes = [shift / x for shift, x in pools]
        if slopes == sorted(slopes) and hull_below(dS, dX, edges):
            best = max(best, sum(shift**2 / x for shift, x in pools))
    return math.sqrt(best)


def hull_below(dS, dX, edges):
    """Whether the corners of these pools lie below every point: they are the convex minorant."""
    S, X = np.concatenate(([0], np.cumsum(dS))), np.concatenate(([0], np.cumsum(dX)))
    return all(S[t] >= np.interp(X[t], X[edges], S[edges]) - 1e-12 for t in range(S.size))


def draw(rng, steps, c_low=0.4, c_high=1.5):
    c = rng.uniform(c_low, c_high, steps)
    s = rng.uniform(0.1, 2, steps) * (rng.random(steps) < 0.6)
    return c, s, rng.uniform(0.2, 2, steps)


# One run.


def test_the_optimum_is_that_of_the_best_pools():
    rng = np.random.default_rng(1)
    for _ in range(60):
        c, s, v = draw(rng, int(rng.integers(1, 7)))
        start = float(rng.choice([0.0, 0.3, 1.7]))
        exact = mu_of(c, s, v, start)
        assert exact <= optimal_mu(c, s, v, start) * (1 + 1e-12) + 1e-300
        assert optimal_mu(c, s, v, start) <= exact * UP


@pytest.mark.parametrize(
    ("c", "s", "v", "start", "mu"),
    [
        ([1.0], [3.0], [4.0], 0.0, 1.5),
        ([1.0], [0.0], [4.0], 0.0, 0.0),
        ([1.0], [0.0], [4.0], 3.0, 1.5),
        ([0.5], [0.0], [4.0], 3.0, 0.75),
        ([0.5], [1.0], [4.0], 2.0, 1.0),
        ([0.0], [3.0], [4.0], 9.0, 1.5),
        ([1.0, 0.0], [9.0, 3.0], [1.0, 4.0], 9.0, 1.5),
        ([0.0, 1.0], [3.0, 0.0], [4.0, 5.0], 9.0, 1.0),
        ([0.0, 0.0, 1.0], [9.0, 3.0, 0.0], [1.0, 4.0, 5.0], 9.0, 1.0),
        ([1.0, 1.0], [3.0, 0.0], [4.0, 5.0], 0.0, 1.0),
        ([1.0, 1.0], [0.0, 3.0], [5.0, 4.0], 0.0, 1.5),
        ([1.0, 1.0], [0.5, 0.0], [0.0, 4.0], 0.0, 0.25),
        ([1.0, 1.0], [0.5, 0.0], [0.04, 0.0], 0.0, 2.5),
        ([1.0, 1.0, 1.0], [0.5, 0.0, 0.0], [0.04, 0.0, 0.0], 0.0, 2.5),
        ([1.0, 1.0], [0.5, 0.1], [0.04, 0.0], 0.0, math.inf),
        ([1.0, 1.0, 1.0], [0.5, 0.0, 0.1], [0.04, 0.0, 0.0], 0.0, math.inf),
        ([1.0, 1.0, 1.0], [0.5, 0.1, 0.0], [0.04, 0.0, 0.0], 0.0, math.inf),
        ([1.0, 1.0], [0.5, 0.5], [0.0, 0.0], 0.0, math.inf),
        ([1.0, 1.0], [0.0, 0.0], [0.0, 0.0], 0.0, 0.0),
        ([1.0, 1.0], [1.0, 1.0], [math.inf, 1.0], 0.0, math.inf),
        ([math.inf, math.inf], [1.0, 1.0], [1.0, 1.0], 0.0, math.inf),
    ],
)
def test_optimal_shifts_of_short_runs(c, s, v, start, mu):
    assert optimal_mu(c, s, v, start) == pytest.approx(mu, rel=1e-12)


def test_pools_of_equal_slopes_are_one():
    for slopes, sizes in (([1, 1], 1), ([2, 1], 1), ([1, 2], 2), ([1, 3, 2], 2), ([3, 1, 2], 1)):
        found = pool(np.log(np.array(slopes, float)), np.zeros(len(slopes)))
        assert found[0].size == found[1].size == sizes
        assert np.exp(found[0]).sum() == pytest.approx(sum(slopes))
        assert np.exp(found[1]).sum() == pytest.approx(len(slopes))


@pytest.mark.parametrize("c_range", [(0.4, 1.0), (0.9, 1.4), (1.01, 1.5)])
@pytest.mark.parametrize("everything", [0, 2**15])
def test_no_restart_is_better_than_the_one_that_is_found(monkeypatch, c_range, everything):
    """Short runs, every restart by hand; with steps that contract and steps that expand."""
    monkeypatch.setattr(shifts, "ALL", everything)
    rng = np.random.default_rng(7)
    for _ in range(60):
        steps = int(rng.integers(1, 8))
        c, s, v = draw(rng, steps, *c_range)
        s[int(rng.integers(steps))] += 0.2
        v *= np.exp(rng.uniform(-2, 2, steps))
        diameter = float(rng.uniform(0.05, 1))
        exact = min(optimal_mu(c[w:], s[w:], v[w:], diameter) for w in range(steps))
        assert best_restart(c, s, v, diameter) == pytest.approx(exact, rel=1e-12)


def test_restarts_behind_the_records_steps_are_all():
    """Where no step expands; elsewhere the others are looked at as well."""
    c, v = np.array([1.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 1e-3, 1.0])
    s = np.array([1.0, 0.0, 0.0, 0.0])
    best = min(optimal_mu(c[4 - w :], s[4 - w :], v[4 - w :], 0.1) for w in (3, 4))
    assert best_restart(c, s, v, 0.1) == pytest.approx(best, rel=1e-12)
    wide = np.array([1.0, 9.0, 1.0, 1.0])
    late = min(optimal_mu(wide[w:], s[w:], v[w:], 0.1) for w in range(4))
    behind = min(optimal_mu(wide[w:], s[w:], v[w:], 0.1) for w in (0, 1))
    assert late < 0.5 * behind
    assert best_restart(wide, s, v, 0.1) == pytest.approx(late, rel=1e-12)
    several = np.array([1.0, 9.0, 0.5, 1.0])
    late = min(optimal_mu(several[w:], s[w:], v[w:], 0.1) for w in range(4))
    assert best_restart(several, s, v, 0.1) == pytest.approx(late, rel=1e-12)


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 24, 200, 3000])
def test_a_search_asks_within_its_range_and_finds_the_least(longest):
    for best in sorted({1, min(2, longest), longest // 2 or 1, max(1, longest - 1), longest}):
        asked = set()

        def cost(w, best=best, asked=asked):
            asked.add(w)
            return abs(math.log(w / best))

        assert search(cost, longest) == 0
        assert {1, longest} <= asked <= set(range(1, longest + 1)) and len(asked) <= 60


# Every position of a constant schedule.


@pytest.mark.parametrize("c", [0.0, 0.6, 0.999, 1.0, 1.0001, 1.4])
@pytest.mark.parametrize(("steps", "blocks"), [(1, 1), (12, 1), (7, 2), (3, 5), (9, 4), (12, 3)])
@pytest.mark.parametrize("diameter", [math.inf, 0.2, 4.0])
def test_positions_of_constant_schedules(c, steps, blocks, diameter):
    for s, v in ((0.7, 0.3), (1.5, 2.0), (0.03, 0.3), (0.0, 0.3)):
        found = constant_mus(c, s, v, steps, blocks, diameter)
        assert found.shape == (blocks,)
        for place in range(blocks):
            met = np.where(np.arange(steps) % blocks == place, s, 0.0)
            arrays = np.full(steps, c), met, np.full(steps, v)
            exact = optimal_mu(*arrays)
            if place >= steps:
                exact = 0.0
            elif diameter < math.inf:
                exact = min(exact, best_restart(*arrays, diameter))
            assert found[place] == pytest.approx(exact, rel=1e-10, abs=1e-300)


def test_positions_without_noise():
    assert constant_mus(0.9, 0.5, 0.0, 2, 3).tolist() == [math.inf, math.inf, 0.0]
    assert constant_mus(0.9, 0.0, 0.0, 2, 3).tolist() == [0.0] * 3


@pytest.mark.parametrize("c", [0.5, 1.0, 1.3])
def test_many_positions_restart_before_the_last_step(monkeypatch, c):
    monkeypatch.setattr(shifts, "MOST_PLACES", 2)
    for s, v, diameter in ((0.4, 0.3, 0.05), (0.4, 2.5, 0.05)):
        found = constant_mus(c, s, v, 50, 3, diameter)
        last = (c * diameter + s) / math.sqrt(v)
        free = constant_mus(c, s, v, 50, 3)
        assert found == pytest.approx(np.minimum(last, free), rel=1e-11)


# Groups of positions.

WEIGHTS = np.array([0.1, 0.4, 0.2, 0.3])


def test_the_latest_shift_covers_every_earlier_one():
    c, s = np.array([9.0, 0.5, 2.0, 3.0]), np.array([1.0, 2.0, 0.1, 5.0])
    assert latest_shift(c, s, 0, 0) == 1.0
    assert latest_shift(c, s, 0, 1) == 2.0
    assert latest_shift(c, s, 0, 2) == 4.0
    assert latest_shift(c, s, 2, 2) == 0.1
    assert latest_shift(c, s, 1, 3) == 12.0
    rng = np.random.default_rng(2)
    for _ in range(20):
        c, s = rng.uniform(0.3, 1.6, 6), rng.uniform(0.1, 2, 6)
        exact = max(s[w] * math.prod(c[w + 1 : 5]) for w in range(1, 5))
        assert latest_shift(c, s, 1, 4) == pytest.approx(exact, rel=1e-14)


@pytest.mark.parametrize("towards_end", [True, False])
def test_groups_hold_every_position_and_its_weight(towards_end):
    every = groups(WEIGHTS, 4, 4, towards_end=towards_end)
    assert every == [Group(w, k, k) for k, w in enumerate(WEIGHTS)]
    assert groups(WEIGHTS, 2, 9, towards_end=towards_end) == [
        Group(0.1, 0, 0),
        Group(0.4, 1, 1),
        Group(0.5, 0, -1),
    ]
    assert groups(WEIGHTS, 4, 1, towards_end=towards_end) == [Group(1.0, 0, 3)]
    assert groups(WEIGHTS, 3, 1, towards_end=towards_end) == [
        Group(math.fsum(WEIGHTS[:3]), 0, 2),
        Group(0.3, 0, -1),
    ]


def test_groups_are_finest_towards_the_end():
    flat = np.full(64, 1 / 64)
    cuts = [group.first for group in groups(flat, 64, 4, towards_end=False)]
    assert cuts == [0, 16, 32, 48]
    lengths = [g.last - g.first + 1 for g in groups(flat, 64, 4, towards_end=True)]
    # distances from the end: 65^(k / 4) - 1 = 1.84, 7.06, 21.9, 64
    assert lengths == [42, 15, 5, 2]


@pytest.mark.parametrize(
    ("blocks", "steps", "atoms", "lengths"),
    [
        (4, 12, 1024, [4, 4, 4]),
        (4, 11, 1024, [4, 4, 4]),
        (4, 10, 1024, [4, 4, 3]),
        (4, 12, 16, [4, 4]),
        (4, 12, 12, [3, 4]),
        (4, 12, 7, [4]),
        (4, 12, 3, [3]),
        (4, 2, 1024, [3]),
        (1, 5, 1024, [1]),
        (10, 40, 1024, [3, 4, 8, 10]),
        (10, 60, 10**9, [4, 4, 4, 4, 8, 10]),
        (1000, 5000, 1024, [2, 8, 52]),
    ],
)
def test_how_many_groups_the_last_passes_get(blocks, steps, atoms, lengths):
    found = tail_groups(np.full(blocks, 1 / blocks), steps, atoms)
    assert [len(part) for part in found] == lengths
    for part in found:
        assert math.fsum(group.weight for group in part) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("atoms", [1, 4, 16, 1024])
@pytest.mark.parametrize("steps", [3, 8, 11, 14])
def test_shifts_of_every_choice_of_groups(atoms, steps):
    """Early passes at their very end, the last ones at the end of a group."""
    rng = np.random.default_rng(3)
    c, s = rng.uniform(0.3, 1.6, steps), rng.uniform(0.1, 2, steps)
    tail = tail_groups(WEIGHTS, steps, atoms)
    early = -(-steps // 4) - len(tail)
    found = list(shifts_of_schedule(c, s, WEIGHTS, atoms))
    for (weight, shift), choice in zip(found, product(*tail), strict=True):
        exact = np.zeros(steps)
        for number in range(early):
            exact[4 * number + 3] = latest_shift(c, s, 4 * number, 4 * number + 3)
        for number, group in enumerate(choice, early):
            if group.last >= 0:
                first, last = 4 * number + group.first, 4 * number + group.last
                exact[last] = latest_shift(c, s, first, last)
        assert shift == pytest.approx(exact, rel=1e-14)
        assert weight == pytest.approx(math.prod(group.weight for group in choice), rel=1e-14)


@pytest.mark.parametrize("c", [0.0, 0.5, 0.97, 1.0, 1.03, 1.6])
@pytest.mark.parametrize("steps", [1, 3, 4, 9, 12, 30, 41])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_atoms_of_constant_schedules(monkeypatch, c, steps, blocks):
    """The same as of any schedule, group by group; with few groups, so that passes are early."""
    monkeypatch.setattr(block_positions.tail_groups, "__defaults__", (20,))
    weights = np.array([1.0]) if blocks == 1 else np.linspace(1, 2, blocks) / (1.5 * blocks)
    for s, v in ((0.7, 0.3), (1.5, 2.0)):
        arrays = np.full(steps, c), np.full(steps, s), np.full(steps, v)
        found = constant_atoms(c, s, v, steps, weights)
        pairs = [
            (weight, optimal_mu(arrays[0], shift, arrays[2]))
            for weight, shift in shifts_of_schedule(*arrays[:2], weights, 20)
        ]
        if c == 0:  # only the last step counts
            place = (steps - 1) % blocks
            assert found[0] == pytest.approx([weights[place], 1 - weights[place]], abs=1e-15)
            assert found[1] == pytest.approx([s / math.sqrt(v), 0.0], rel=1e-11)
            continue
        assert found[0] == pytest.approx([weight for weight, _ in pairs], rel=1e-12)
        assert found[1] == pytest.approx([mu for _, mu in pairs], rel=1e-10, abs=1e-300)


def test_merged_positions_keep_every_weight():
    """The weight of the last, shorter block too, and of positions without a shift."""
    mus = np.concatenate((np.full(3000, 0.3), np.full(1500, 0.7), [0.0, 0.7, math.inf]))
    weights = np.full(mus.size, 1 / mus.size)
    weights[-3:] = (weights[0] / 2, weights[0] / 4, 9 * weights[0] / 4)
    for up in (True, False):
        total, found = merge_places(weights, mus, up=up)
        assert found[0] == 0.0 and found[1] == math.inf and found.size == 4
        exact = [weights[-3], weights[-1], 3000 * weights[0], 1500 * weights[0] + weights[-2]]
        assert total == pytest.approx(exact, rel=1e-12)
        ratio = found[2:] / [0.3, 0.7]
        assert (ratio > 1).all() == up and abs(ratio - 1).max() < 7e-4


def test_many_positions_fall_into_groups(monkeypatch):
    """Each group at its worst position; finer before the end of the run and of its passes."""
    assert block_positions._groups(5, 3, 5) == [(k, k) for k in range(5)]
    found = block_positions._groups(90, 40, 30)
    assert found[0][0] == 0 and found[-1][1] == 89
    assert all(b[0] == a[1] + 1 for a, b in pairwise(found))
    # as they were cut before: multiples of 9, and 91^(k / 10) - 1 before 40 and before the end
    assert [last for _, last in found[:13]] == [3, 8, 16, 17, 25, 26, 30, 32, 34, 35, 36, 38, 39]
    assert [last for _, last in found[13:]] == [44, 53, 62, 66, 71, 75, 80, 84, 86, 88, 89]
    assert [last for _, last in block_positions._groups(13, 13, 12)] == [2, 5, 6, 9, 11, 12]
    for end in range(1, 21):  # no group lies on both sides of where the run ends
        assert end - 1 in [last for _, last in block_positions._groups(20, end, 12)]
    monkeypatch.setattr(block_positions, "MOST_FOLLOWED", 0)
    monkeypatch.setattr(block_positions, "FEWEST_GROUPS", 6)
    rng = np.random.default_rng(4)
    steps, blocks = 40, 17
    c, s, v = rng.uniform(0.5, 1.3, steps), rng.uniform(0.1, 1, steps), rng.uniform(0.2, 1, steps)
    for diameter in (math.inf, 0.3):
        mus = block_positions._each_place(c, s, v, blocks, diameter)
        for first, last in block_positions._groups(blocks, (steps - 1) % blocks + 1, 6):
            shift = np.zeros(steps)
            for begin in range(0, steps - first, blocks):
                at = min(begin + last, steps - 1)
                shift[at] = latest_shift(c, s, begin + first, at)
            exact = optimal_mu(c, shift, v)
            exact = (
                exact if diameter == math.inf else min(exact, best_restart(c, shift, v, diameter))
            )
            assert mus[first : last + 1] == pytest.approx(exact, rel=1e-12)


def test_weights_of_every_level_are_added():
    """Of blocks that are alike by their number, of all others one by one."""
    for weights in ([0.1, 0.3, 0.3, 0.3], [0.3, 0.3, 0.3, 0.1], [0.25] * 4):
        level = np.array([0, 1, 1, 3])
        found = block_positions._sums(level, np.array(weights))
        exact = [weights[0], weights[1] + weights[2], 0.0, weights[3]]
        assert found == pytest.approx(exact, rel=1e-15)


# Positions of a run.


def maps(run, lowest, highest, weight):
    """The Lipschitz constants of every step, with a proximal term of this weight."""
    eta = run.step_sizes
    return np.maximum(abs(1 - eta * lowest), abs(1 - eta * highest)) / (1 + eta * weight)


def positions(run, c, weight):
    """The least of all allocations and restarts, position by position."""
    scale = run.step_sizes / (1 + run.step_sizes * weight)
    unit, diameter = run.facts().fact("sensitivity") / run.divisor, run.domain.diameter()
    found = []
    for place in range(run.blocks):
        s = np.where(np.arange(run.steps) % run.blocks == place, scale * unit, 0.0)
        arrays = c, s, (scale * run.noise_stds) ** 2
        mu = optimal_mu(*arrays)
        found.append(mu if math.isinf(diameter) else min(mu, best_restart(*arrays, diameter)))
    return found


@pytest.mark.parametrize("step", [0.5, 1.5, "listed"])
@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("radius", [math.inf, 0.05])
def test_positions_of_blocks_of_two_sizes(step, weight, radius):
    """Four of six records, then two, with half of the curvature."""
    run = li.Run(
        n=6,
        steps=9,
        step_size=np.linspace(0.3, 1.4, 9).tolist() if step == "listed" else step,
        noise=li.GradientNoise(0.8),
        batching=li.Permuted(4),
        prox=li.penalties.L2Squared(weight) if weight else None,
        domain=li.domains.Ball(radius) if radius < math.inf else li.domains.Everywhere(),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.3, smooth=1.0, strong=0.4)),
    )
    full, short = maps(run, 0.4, 1.0, weight), maps(run, 0.2, 1.0, weight)
    by_block = np.where(np.arange(9) % 2 == 0, full, short)
    exact = positions(run, by_block, weight)
    assert place_mus(run) == pytest.approx(exact, rel=1e-10)
    assert (place_mus(run) <= np.array(positions(run, short, weight)) * UP).all()
    assert block_constants(run) == pytest.approx(by_block, rel=1e-12)
    crowded = place_mus(run, (0.5, 1.5))
    exact = positions(run, maps(run, 0.2, 1.5, weight), weight)
    assert crowded == pytest.approx(exact, rel=1e-10)


def test_positions_without_a_shift_or_noise():
    for sensitivity, noise, mu in ((0.0, 0.0, 0.0), (0.0, 0.8, 0.0), (4.0, 0.0, math.inf)):
        loss = li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=1.0, strong=0.0))
        run = li.Run(n=2, steps=2, step_size=0.5, noise=li.GradientNoise(noise), loss=loss)
        assert place_mus(run).tolist() == [mu]
    one = replace(run, noise=li.GradientNoise(0.8))  # a shift of exactly 1
    assert place_mus(one) == pytest.approx([math.sqrt(2) * 2 / 0.8], rel=1e-11)


# Correlated noise, weakly convex steps.


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("steps", "blocks"), [(1, 1), (7, 1), (7, 2), (8, 3), (3, 5), (9, 4)])
def test_shifts_of_correlated_draws(signed, steps, blocks):
    """max over positions of the sum of |<C_a, C_b>| over the record's steps a and b."""
    entries = (1.0, -0.6, 0.3, -0.2) if signed else (1.0, 0.5, 0.375, 0.2)
    for band in (entries, entries[:2], (1.0,)):
        noise = li.Correlated(1.0, band)
        gram = np.abs(matrix(noise, steps).T @ matrix(noise, steps))
        exact = max(gram[j::blocks, j::blocks].sum() for j in range(min(blocks, steps)))
        assert shift_in_draws(noise, blocks, steps) == pytest.approx(math.sqrt(exact), rel=1e-12)


@pytest.mark.parametrize(
    ("ridge", "lowest", "highest", "clipped", "inverse"),
    [
        (0.0, -1.0, 3.0, False, 4.0),
        (0.5, -1.0, 3.0, False, 4.0),
        (2.0, -1.0, 3.0, False, 5.0),
        (0.25, -1.0, -0.5, False, 0.75),
        (0.0, 0.2, 0.2, False, 0.2),
        (0.0, 0.0, 0.0, False, 0.0),
        (0.0, -1.0, 3.0, True, 8.0),
        (0.5, -1.0, 3.0, True, 8.5),
        (0.5, 0.2, 3.0, True, 6.5),
        (0.5, -1.0, -0.2, True, 2.5),
        (0.5, 0.0, 0.0, True, 0.5),
        (0.0, -0.1, 0.1, True, 0.4),
        (0.0, 0.0, 0.0, True, 0.0),
    ],
)
def test_the_longest_weakly_convex_step(ridge, lowest, highest, clipped, inverse):
    """1 / (M + m), twice as much where clips can act, and the ridge outside them."""
    found = longest_weakly_convex_step(StepMap(ridge, lowest, highest, clipped, ()))
    assert found == (pytest.approx(1 / inverse, rel=1e-14) if inverse else math.inf)


@pytest.mark.parametrize(
    ("ridge", "lowest", "highest", "clipped", "step", "square"),
    [
        (0.0, -1.0, 3.0, False, 0.2, 1 + 0.4 * (1 + 1 / 8)),
        (0.5, -1.0, 3.0, False, 0.2, 1 + 0.2 * (1 + 0.5 / 8)),
        (0.5, -1.0, -0.8, False, 0.2, 1 + 0.2 * (1 + 0.5 / 1.0)),
        (2.0, -1.0, 3.0, False, 0.1, 1.0),
        (0.0, 0.3, 3.0, False, 0.1, 1.0),
        (0.0, -1.0, 3.0, True, 0.1, 2 * (1 + 0.2 * (1 + 1 / 8))),
        (0.5, -1.0, 3.0, True, 0.1, 2 * 0.95**2 * (1 + 0.2 / 0.95 * (1 + 1 / 8))),
        (0.5, 0.3, 3.0, True, 0.1, 2 * 0.95**2),
        (0.5, -1.0, -0.3, True, 0.1, 2 * 0.95**2 * (1 + 0.2 / 0.95 * 1.5)),
        (4.0, 0.0, 0.0, True, 0.1, 1.0),
        (4.0, 0.0, 0.0, True, 0.25, 1.0),
        (4.0, 0.0, 0.0, True, 0.5, 1.0),
    ],
)
def test_squared_constants_of_weakly_convex_steps(ridge, lowest, highest, clipped, step, square):
    """1 + 2 step m (1 + m / (2 (M + m))), twice that times (1 - step ridge)^2 with clips; at least
    1."""
    found = log_square(StepMap(ridge, lowest, highest, clipped, ()), step)
    assert found == pytest.approx(math.log(square), rel=1e-13, abs=1e-15)


@pytest.mark.parametrize("square", [1.0, 1.2, 3.0])
@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9])
@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_blocks_in_order_of_expanding_steps(square, steps, blocks):
    run = li.Run(
        n=4,
        steps=steps,
        step_size=0.3,
        noise=li.GradientNoise(0.8),
        batching=li.Cyclic(4 // blocks),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.3)),
    )
    unit = 1.3 / (4 // blocks) / 0.8
    spread = square ** (blocks - 1) / sum(square**k for k in range(blocks))
    exact = unit * math.sqrt((-(-steps // blocks) - 1) * spread + 1)
    assert cyclic_mu(run, math.log(square)) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize(
    ("sensitivity", "noise", "shift"),
    [(1.3, 0.8, 1.625), (0.0, 0.8, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (3.0, 2.0, 1.5)],
)
def test_a_shift_in_units_of_the_noise(sensitivity, noise, shift):
    loss = li.KnownConstants(li.LossFacts(sensitivity=sensitivity))
    run = li.Run(n=1, steps=1, step_size=0.3, noise=li.GradientNoise(noise), loss=loss)
    assert unit_shift(run) == pytest.approx(shift, rel=1e-14)
