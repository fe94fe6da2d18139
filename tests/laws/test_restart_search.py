"""Restarts of sampled batches: the steps that are followed, which choices are kept, and the noise
of their tails."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis import restarted_sampling
from lastiterate.analysis.restarted_sampling import (
    LastSteps,
    Restart,
    add_nothing,
    allocation_passes,
    by_itself,
    candidates,
    distances_of_draws,
    distances_of_passes,
    instead_of_another,
    last_steps,
    levels,
    poisson_steps,
    search_restarts,
    search_subset_restarts,
    shift_growth,
)
from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.curve import BestOf, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld

FIELDS = {
    "n": 12,
    "steps": 11,
    "step_size": 0.5,
    "noise": li.GradientNoise(0.6),
    "batching": li.RandomAllocation(3),
    "loss": li.KnownConstants(li.LossFacts(sensitivity=2.0, smooth=1.0, strong=0.2)),
}
SILENT = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0))
NOISES = (0.6, 1.2, 0.9, 0.6, 2.0, 1.0, 0.7, 0.8, 0.9, 0.5, 0.4)


def run_of(**fields):
    return li.Run(**FIELDS | fields)


def search(sizes, maps=None, every=4, sampled=9.0):
    """The curve where the best restarts for the first failures have these sizes, and the failures
    asked for."""
    failures, asked = restarted_sampling.FAILURES[: len(sizes)], []
    maps = maps or range(len(sizes))

    def steps(run, chance, failure, every, shares):
        place = failures.index(2 * failure)
        assert (chance, shares) == (1.0, (0.5, 1.0)) and every in (1, 4)
        asked.append(failure)
        z = np.array([math.sqrt(1 / math.log1p(sampled))])
        return SimpleNamespace(c=np.full(1, maps[place]), z=z, place=place)

    def choices(steps, chance, total, every, distances, failure, lengthened, seen):
        assert (chance, total, distances) == (1.0, 11, "distances")
        assert (lengthened, seen) == ("lengthened", by_itself)
        asked.append(failure)
        size = sizes[steps.place]
        if size is None:
            return []
        return [Restart(size + more, 1, 0.5, size + more) for more in (1.0, 0.0, 2.0)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarted_sampling, "last_steps", steps)
        patch.setattr(restarted_sampling, "candidates", choices)
        patch.setattr(restarted_sampling, "FAILURES", failures)
        found = search_restarts(
            run_of(),
            chance=1.0,
            every=every,
            distances="distances",
            curve=lambda run, at: Gdp(100.0 + at.first if at.size == math.inf else at.mu),
            shares=(0.5, 1.0),
            lengthened="lengthened",
        )
    return found, asked


def test_restarts_that_cost_less_are_kept():
    """Composition of all steps comes first; every further restart costs a thousandth less than the
    best one before, and half of its failure is that of the loads."""
    assert restarted_sampling.FAILURES == (0.0, 1e-20, 1e-12, 1e-9, 1e-7)
    whole = Gdp(100.0)
    assert search([None]) == (whole, [0.0, 0.0])
    assert search([8.0])[0] == BestOf((whole, Gdp(8.0)))
    assert search([8.992])[0] == search([9.5])[0] == whole
    assert search([8.99])[0] == BestOf((whole, Gdp(8.99)))
    found, asked = search([8.0, None, 7.993, 7.9, 3.0])
    assert found == BestOf(
        (whole, Gdp(8.0), WithFailure(Gdp(7.9), 1e-9), WithFailure(Gdp(3.0), 1e-7))
    )
    assert asked == [half / 2 for half in restarted_sampling.FAILURES for _ in range(2)]
    assert search([8.0, 5.0], maps=[1, 1])[0] == BestOf((whole, Gdp(8.0)))
    assert search([8.0, 5.0], maps=[1, 1], every=1)[0] == BestOf(
        (whole, Gdp(8.0), WithFailure(Gdp(5.0), 1e-20))
    )


def test_a_record_that_adds_nothing_needs_no_search():
    seen = []
    found = search_restarts(
        run_of(),
        chance=1.0,
        every=1,
        distances=distances_of_draws(0.5),
        curve=lambda run, at: seen.append(at) or Gdp(0.0),
    )
    assert found == Gdp(0.0) and seen == [Restart(math.inf, 0, 1.0, 0.0, 0.0, 0.0)]
    assert (seen[0].apart, seen[0].closed) == (0.0, 0.0)


def test_the_last_steps_and_the_loads_that_they_rely_on(monkeypatch):
    run = run_of(step_size=tuple(np.linspace(0.3, 0.5, 11)), noise=li.GradientNoise(NOISES))
    eta, std = np.linspace(0.3, 0.5, 11), np.array(NOISES)
    for longest, every, skipped in ((11, 4, 0), (10, 1, 1), (9, 4, 0), (6, 4, 4), (2, 4, 8)):
        monkeypatch.setattr(restarted_sampling, "LONGEST", longest)
        steps = last_steps(run, 0.25, 0.0, every, (1.0, 1.0))
        kept = slice(skipped, None)
        assert steps.c == pytest.approx(np.maximum(1 - 0.2 * eta, eta - 1)[kept])
        assert steps.s == pytest.approx((eta * 2 / 3)[kept])
        assert steps.v == pytest.approx(((eta * std) ** 2)[kept])
        assert steps.z == pytest.approx((std * 3 / 2)[kept])
        assert steps.diameter == math.inf
        far = eta[:skipped].max() * (2 / 3) / (0.2 * eta[:skipped].min()) if skipped else 0.0
        assert far <= steps.before <= far * (1 + 1e-6)
    monkeypatch.setattr(restarted_sampling, "LONGEST", 9)
    assert last_steps(run_of(domain=li.domains.Ball(0.7)), 0.0, 0.0, 1, (1.0, 1.0)).before == 1.4
    steep = run_of(step_size=10.0)
    assert last_steps(steep, 0.0, 0.0, 1, (1.0, 1.0)).before == math.inf
    asked = []
    monkeypatch.setattr(
        restarted_sampling, "usual_counts", lambda *one: asked.append(one) or (2, 5)
    )
    monkeypatch.setattr(
        restarted_sampling,
        "find_known_map",
        lambda run, shares: asked.append(shares) or SimpleNamespace(lipschitz_each=np.ones_like),
    )
    for every, draws in ((1, 11), (4, 12), (11, 11), (3, 12)):
        asked.clear()
        last_steps(run, 0.25, 0.01, every)
        assert asked == [(11, 0.25, 0.01, draws), (2 / 3, 5 / 3)]
    asked.clear()
    last_steps(run, 0.25, 0.01, 4, (0.1, 0.9))
    assert asked == [(0.1, 0.9)]


def steps_of(c, s, v, z, before=0.0, diameter=math.inf):
    return LastSteps(*(np.array(x, dtype=float) for x in (c, s, v, z)), before, diameter)


def test_one_restart_in_closed_form():
    """Two steps, the second of which hides the first: the costs of its share, the distance and
    how much one shift closes."""
    steps = steps_of([0.5, 0.8], [3.0, 1.0], [1.0, 4.0], [7.0, 2.0])
    found = candidates(steps, 0.3, 2, 1, distances_of_draws(0.3), 0.0)
    assert [(one.first, one.share) for one in found] == [
        (1, share) for share in restarted_sampling.SHARES
    ]
    for one in found:
        cost = (3 * 0.8) ** 2 / 4 / (1 - one.share)
        assert one.mu == pytest.approx(math.sqrt(cost), rel=1e-8) and one.mu**2 >= cost
        assert one.apart == pytest.approx(3.0, rel=1e-8) and one.apart >= 3
        assert one.closed == pytest.approx(3.0, rel=1e-8) and one.closed >= 3
        sampled = 0.09 * math.expm1(1 / (one.share * 4))
        assert one.size == pytest.approx(sampled + cost, rel=1e-8)
    twice = candidates(
        steps, 0.3, 5, 1, distances_of_draws(0.3), 0.0, lambda apart, closed: 2.0, lambda z: z
    )
    for one, first in zip(twice, found, strict=True):
        assert (one.first, one.mu) == (4, first.mu)
        assert one.size == pytest.approx(0.09 * one.share * 1.0 + one.mu**2, rel=1e-8)
    assert candidates(steps_of([1], [1], [1], [1]), 0.3, 1, 1, distances_of_draws(0.3), 0.0) == []
    assert min(restarted_sampling.SHARES) == 0.5 and max(restarted_sampling.SHARES) == 0.999


def test_restarts_lie_where_passes_begin():
    count = 11
    steps = steps_of(*([0.9] * count, [1.0] * count, [1.0] * count, [2.0] * count))
    for every, expected in ((1, {*range(1, 11)}), (4, {4, 8}), (3, {3, 6, 9}), (11, set())):
        found = candidates(steps, 0.3, count, every, distances_of_passes(every), 0.0)
        assert {one.first for one in found} == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(restarted_sampling, "RESTARTS", 3)
        found = candidates(steps, 0.3, count, 1, distances_of_passes(1), 0.0)
        assert {one.first for one in found} == {1, 8, 10}


def test_what_costs_next_to_nothing_costs_the_least_number():
    """A distance that is forgotten to below what a double holds."""
    steps = steps_of([1.0, *[1e-30] * 8], [1.0] * 9, [1.0] * 9, [2.0] * 9, diameter=1.0)
    found = candidates(steps, 0.3, 9, 1, distances_of_draws(0.3), 0.0)
    for one in found:
        exact = 1e-60 ** (9 - one.first) / (1 - one.share)
        if exact > 1e-300:
            assert one.mu**2 == pytest.approx(exact, rel=1e-4)
        else:
            assert one.mu**2 == pytest.approx(math.exp(-700) / (1 - one.share), rel=1e-6)
    assert {one.first for one in found} == {*range(1, 9)}


def test_rounding_is_bounded_by_all_that_is_summed():
    """2^-48 for every step of the largest finite sum, and of the largest logarithms of shifts and
    noise."""
    steps = steps_of(
        [0.0, 1e-9, 1e5, 1e3], [1e-30, 0.0, 1.0, 2.0], [1e20, 0.0, 1.0, 0.5], [1.0] * 4
    )
    later = np.log([1.0, 0.1, 1e8, 1e3])[1:]
    found = restarted_sampling._bound_rounding(np.append([-math.inf, *later], 0.0), steps)
    sizes = 1 + math.log(1e8) + math.log(1e30) + math.log(1e20)
    assert found - 1e-9 == pytest.approx(2.0**-48 * 20 * sizes, rel=1e-4, abs=0)


def test_distances_in_closed_form():
    steps = steps_of([0.5, 0.8, 2.0], [3.0, 1.0, 5.0], [1.0] * 3, [1.0] * 3, before=10.0)
    draws = np.exp(distances_of_draws(0.3)(steps, 0.0, np.array([1, 2, 3])))
    assert draws == pytest.approx([8.0, 7.4, 19.8], rel=1e-8) and (draws >= [8.0, 7.4, 19.8]).all()
    twice = distances_of_draws(0.3, 2)(steps, 0.0, np.array([2]))
    assert math.exp(twice[0]) == pytest.approx(14.8, rel=1e-8)
    near = steps_of([0.5, 0.8, 2.0], [3.0, 1.0, 5.0], [1.0] * 3, [1.0] * 3, 10.0, 7.5)
    found = np.exp(distances_of_draws(0.3)(near, 0.0, np.array([1, 2, 3])))
    assert found == pytest.approx([7.5, 7.4, 7.5], rel=1e-8)
    nothing = steps_of([0.5], [0.0], [1.0], [1.0])
    assert list(distances_of_draws(0.3)(nothing, 0.1, np.array([0, 1]))) == [-math.inf] * 2
    passes = distances_of_passes(3)(steps, 0.0, np.array([0, 3]))
    assert np.exp(passes) == pytest.approx([10.0, 8.0 + 5.0], rel=1e-12)  # .5 * .8 * 2 * 10
    each = distances_of_passes(1)(near, 0.0, np.array([0, 1, 2, 3]))
    assert np.exp(each) == pytest.approx([7.5, 6.75, 6.4, 7.5], rel=1e-12)
    ends = distances_of_passes(2)(steps, 0.0, np.array([0, 2]))  # the third step is of no pass
    assert np.exp(ends) == pytest.approx([10.0, 4.0 + 2.4], rel=1e-12)


def test_noise_multipliers_of_tails():
    """In units of what the record adds: divisor over sensitivity, here 3/2, and a share of the
    variance."""
    run, varied = run_of(), run_of(noise=li.GradientNoise(NOISES))
    assert levels(run) == ((pytest.approx(0.9), 11),)
    assert levels(run, 4, 0.25) == ((pytest.approx(0.45), 7),)
    assert levels(run_of(loss=SILENT)) is None
    found = levels(varied, 2, 0.25)
    counts = dict.fromkeys(sorted(NOISES[2:]), 0)
    for noise in NOISES[2:]:
        counts[noise] += 1
    assert [z for z, _ in found] == pytest.approx([0.75 * noise for noise in counts])
    assert [count for _, count in found] == list(counts.values())
    assert levels(varied)[0] == (pytest.approx(0.6), 1)
    assert sum(count for _, count in levels(varied)) == 11


def assert_alike(found, expected):
    """The same kind of curve, and all numbers of it to rounding."""
    assert type(found) is type(expected)
    for name in expected.__dataclass_fields__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_curves_of_poisson_steps():
    run = run_of(batching=li.Poisson(0.25))
    assert_alike(poisson_steps(run), Pld(0.25, (0.9,), (11,), mu=0.0))
    assert_alike(poisson_steps(run, 4, 0.25, 0.7), Pld(0.25, (0.45,), (7,), mu=0.7))
    silent = run_of(batching=li.Poisson(0.25), loss=SILENT)
    assert poisson_steps(silent) == Gdp(0.0) and poisson_steps(silent, 4, 0.25, 0.7) == Gdp(0.7)


def test_curves_of_passes_with_the_least_noise_of_each():
    plain, silent = run_of(), run_of(loss=SILENT)
    varied, even = (
        run_of(steps=steps, noise=li.GradientNoise(NOISES[:steps])) for steps in (11, 8)
    )
    for found, passes in (
        (allocation_passes(plain), ((0.9,), (2,), 0.9, 3)),
        (allocation_passes(plain, 8), ((), (), 0.9, 3)),
        (allocation_passes(run_of(steps=8)), ((0.9,), (2,), 0.0, 0)),
        (allocation_passes(varied), ((0.9, 1.05), (1, 1), 0.6, 3)),
        (allocation_passes(even), ((0.9, 1.05), (1, 1), 0.0, 0)),
    ):
        assert_alike(found, AllocationPld(4, *passes))
    for run, passes in (
        (plain, ((0.45,), (1,), 0.45, 3)),
        (varied, ((0.525,), (1,), 0.3, 3)),
    ):
        found = allocation_passes(run, 4, 0.25, 0.7)
        assert_alike(found, AllocationPld(4, *passes, mu=0.7))
    assert allocation_passes(silent) == Gdp(0.0) and allocation_passes(silent, mu=0.7) == Gdp(0.7)


@pytest.mark.parametrize("adjacency, replaced", [("zero-out", False), ("replace-one", True)])
def test_how_much_more_a_record_adds_to_shifts(adjacency, replaced):
    """M = 1.6 of one record's gradient over S = 2, times what a shift closes, or twice that and the
    distance."""
    loss = li.KnownConstants(li.LossFacts(sensitivity=2.0, smooth=1.0, weak_convexity=1.6))
    run = run_of(batching=li.FixedSize(3), adjacency=adjacency, loss=loss)
    factor = shift_growth(run)
    for apart, closed in ((0.0, 0.0), (0.5, 0.0), (0.5, 0.3), (0.0, 0.3)):
        exact = 1 + (1.6 * (apart + closed) if replaced else 0.8 * closed)
        assert exact <= factor(apart, closed) <= exact * (1 + 1e-11)
    for other in ({"weak_convexity": 0.1}, {"strong": 2.5}):  # then M is the largest curvature
        bowl = li.KnownConstants(li.LossFacts(sensitivity=2.0, smooth=2.6, **other))
        steep = shift_growth(run_of(batching=li.FixedSize(3), adjacency=adjacency, loss=bowl))
        assert steep(0.0, 1.0) == pytest.approx(1 + (2.6 if replaced else 1.3), rel=1e-9)
    silent = run_of(batching=li.FixedSize(3), adjacency=adjacency, loss=SILENT)
    assert shift_growth(silent) is add_nothing and add_nothing(3.0, 4.0) == 1.0
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            restarted_sampling, "search_restarts", lambda run, **given: asked.append(given)
        )
        patch.setattr(restarted_sampling, "distances_of_draws", lambda *given: given)
        search_subset_restarts(run)
        search_subset_restarts(silent)
    (given, still), at = asked, Restart(1.0, 4, 0.25, 0.7, 0.5, 0.3)
    assert (given["chance"], given["every"], given["distances"]) == (0.25, 1, (0.25,))
    assert given["shares"] == (2 / 3, 1.0)
    assert given["seen"] is (by_itself if replaced else instead_of_another)
    assert given["lengthened"](0.5, 0.3) == factor(0.5, 0.3)
    found = given["curve"](run, at)
    z = 0.45 / factor(0.5, 0.3)
    assert_alike(found, FixedSizeSteps(0.25, (z,), (7,), replaced, mu=0.7))
    assert still["curve"](silent, at) == Gdp(0.7)


@pytest.mark.parametrize("z", [0.7, 1.0, 3.0])
def test_chi_squared_distances_of_what_is_seen(z):
    """E[Y^2] - 1 of N(1/z) to N(0); E[(Y_2 - Y_1)^2] of the ratios of N(2/z) and N(1/z)."""
    e = math.exp(1 / z**2)
    square = np.array([z**2])
    assert by_itself(square)[0] == pytest.approx(e - 1, rel=1e-12)
    assert instead_of_another(square)[0] == pytest.approx(e**4 - 2 * e**2 + e, rel=1e-12)
