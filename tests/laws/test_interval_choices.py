"""Which intervals of later steps are followed, and the mean over published draws: against
enumeration."""

import itertools
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis import delayed_shifts, restarted_sampling
from lastiterate.analysis.delayed_shifts import (
    best_of_failures,
    block_interval_counts,
    block_intervals,
    choose_least,
    draw_interval_counts,
    draw_intervals,
    kinds,
    mean_over_draws,
)
from lastiterate.analysis.restarted_sampling import LastSteps
from lastiterate.curves.curve import BestOf, WithFailure
from lastiterate.curves.delayed_shifts import AllocatedShifts, DelayedShifts
from lastiterate.curves.gaussian import Gdp

RUN = li.Run(
    n=20,
    steps=8,
    step_size=1.0,
    noise=li.GradientNoise(1.0),
    batching=li.Poisson(0.2),
    loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0)),
)


def changed(**fields):
    return li.Run(**{name: getattr(RUN, name) for name in RUN.__dataclass_fields__} | fields)


def tried(sizes, maps=None):
    """The curve for failures whose best choices have these sizes, and the failures asked for."""
    failures = delayed_shifts.FAILURES[: len(sizes)]
    asked = []

    def steps(run, chance, failure, every):
        assert run is RUN and (chance, every) == (0.3, 4)
        asked.append(failure)
        place = failures.index(failure)
        return SimpleNamespace(c=np.full(2, float((maps or range(9))[place])), place=place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_shifts, "last_steps", steps)
        patch.setattr(delayed_shifts, "FAILURES", failures)
        found = best_of_failures(
            RUN, 0.3, 4, lambda steps: (sizes[steps.place], Gdp(float(sizes[steps.place])))
        )
    return found, asked


def test_failures_that_buy_something_are_kept():
    """Each is compared with the best before it; the best ones, within a factor of four, are
    returned."""
    assert delayed_shifts.FAILURES == (0.0, 1e-20, 1e-12, 1e-9, 1e-7, 1e-6)
    one, asked = tried([3.0])
    assert one == Gdp(3.0) and asked == [0.0]
    assert tried([3.0, 2.9985])[0] == Gdp(3.0), "it gains less than a thousandth"
    assert tried([3.0, 4.0, 2.9])[0] == BestOf((Gdp(3.0), WithFailure(Gdp(2.9), 1e-12)))
    assert tried([9.0, 8.0, 2.0, 3.0, 1.9])[0] == BestOf(
        (WithFailure(Gdp(2.0), 1e-12), WithFailure(Gdp(1.9), 1e-7))
    )
    assert tried([8.0, 2.0])[0] == BestOf((Gdp(8.0), WithFailure(Gdp(2.0), 1e-20)))
    assert tried([8.01, 2.0])[0] == WithFailure(Gdp(2.0), 1e-20)
    alike, asked = tried([3.0, 1.0, 2.0], maps=[1, 1, 2])
    assert alike == BestOf((Gdp(3.0), WithFailure(Gdp(2.0), 1e-12))) and len(asked) == 3


@pytest.mark.parametrize(
    "search, batching",
    [
        (delayed_shifts.search_draw_intervals, li.Poisson(0.2)),
        (delayed_shifts.search_block_intervals, li.RandomAllocation(5)),
        (delayed_shifts.search_averages, li.FixedSize(4)),
    ],
)
def test_long_runs_and_records_that_add_nothing(search, batching, monkeypatch):
    silent = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0))
    monkeypatch.setattr(delayed_shifts, "LONGEST", 8)
    assert search(changed(batching=batching, steps=9)) == Gdp(math.inf)
    assert search(changed(batching=batching, steps=9, loss=silent)) == Gdp(0.0)
    assert search(changed(batching=batching, loss=silent)) == Gdp(0.0)
    assert 0 < search(changed(batching=batching)).delta(1.0) < 1


def test_chances_and_passes_of_each_batching(monkeypatch):
    asked = []
    monkeypatch.setattr(delayed_shifts, "best_of_failures", lambda *given: asked.append(given))
    delayed_shifts.search_draw_intervals(changed(batching=li.Poisson(0.3)))
    delayed_shifts.search_block_intervals(changed(batching=li.RandomAllocation(5)))
    assert [given[1:3] for given in asked] == [(0.3, 1), (1 / 4, 4)]


def last_steps(count, before=0.0, diameter=math.inf):
    grow = np.linspace(1.0, 1.5, count)
    return LastSteps(0.9 * grow, grow, grow**2, 1 / grow, before, diameter)


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10])
def test_intervals_from_every_start(count):
    """From the first step with the distance before it; in a bounded domain from later steps with
    the diameter."""
    for diameter, later in ((math.inf, False), (7.0, True)):
        steps = last_steps(count, 0.3, diameter)
        for found, blocks in (
            (draw_intervals(steps, 0.2), None),
            (block_intervals(steps, 3), 3),
        ):
            lengths = {sum(one.counts) for one in found}
            assert max(lengths) == count and min(lengths) >= 1
            if blocks is None:
                rest = {*np.geomspace(2, max(2, count), 12).astype(int).tolist()}
                rest = {length for length in rest if length < count} if later else set()
            else:
                rest = {count % 3 + 3 * k for k in (1, 2) if 3 * k < count // 3 * 3}
                rest = rest if later else set()
            assert lengths == {count} | rest
            for one in found:
                length = sum(one.counts)
                assert one.before == (0.3 if length == count else 7.0)
                factors = np.repeat(one.factors, one.counts)
                assert factors == pytest.approx(steps.c[count - length :])
                assert one.widest < length or one.widest in (1, blocks, 2)
            of_all = {one.widest for one in found if sum(one.counts) == count}
            assert of_all == (
                {x for x in (1, 2, 4, 8) if x == 1 or x < count} if blocks is None else {2, 3}
            )


def test_steps_that_are_alike_are_one_kind():
    c = np.array([1.0, 1, 2, 2, 2, 2])
    s = np.array([3.0, 3, 3, 4, 4, 4])
    std = np.array([5.0, 5, 5, 5, 5, 6])
    assert kinds(c, s, std) == ((2, 1, 2, 1), (1, 2, 2, 2), (3, 3, 4, 4), (5, 5, 5, 6))
    assert kinds(c[:1], s[:1], std[:1]) == ((1,), (1,), (3,), (5,))
    rng = np.random.default_rng(4)
    many = rng.uniform(1, 2, (3, 200))  # more than are distinguished count with the worst of each
    counts, *worst = kinds(*many)
    assert len(counts) == 64 and sum(counts) == 200 and {*counts} == {3, 4}
    ends = np.cumsum((0, *counts))
    for ours, each, best in zip(worst, many, (np.maximum, np.maximum, np.minimum), strict=True):
        assert list(ours) == list(best.reduceat(each, ends[:-1]))


def test_the_order_of_choices():
    """About the squared mu: sums over pairs of draws, all of which are alike here."""
    assert choose_least(["long", "a", "word"], len) == (1, "a")
    curve = DelayedShifts(0.2, (7,), (1.0,), (0.8,), (2.0,), 1.0, 1)
    pair = math.log1p(0.04 * math.expm1(0.16))
    assert draw_interval_counts(curve) == pytest.approx(5 * pair + 4 * pair, rel=1e-8)
    before = DelayedShifts(0.2, (7,), (1.0,), (0.8,), (2.0,), 1.0, 1, 3.0)
    assert draw_interval_counts(before) == pytest.approx(1.5**2 + 9 * pair, rel=1e-8)
    blocks = AllocatedShifts(3, (6,), (1.0,), (0.8,), (2.0,), 1.0, 1)
    each = math.expm1(0.16) / 9
    exact = math.log1p(3 * each) + math.log1p(each + 4 * each)
    assert block_interval_counts(blocks) == pytest.approx(exact, rel=1e-8)
    silent = DelayedShifts(0.2, (3,), (1.0,), (0.8,), (0.0,), 1.0, 1, 3.0)
    assert draw_interval_counts(silent) >= 1e18
    assert block_interval_counts(
        AllocatedShifts(3, (6,), (1.0,), (0.8,), (0.0,), 1.0, 1)
    ) > block_interval_counts(blocks)
    rounded = delayed_shifts._approximate(before)
    mean, spread = 0.08, 0.2 * 0.8 * 0.16
    last, twice = 2 * mean, 2 * spread
    total = 2.25 + 5 * (mean**2 + spread) + last**2 + twice
    variance = 5 * (4 * mean**2 * spread + 2 * spread**2) + 4 * last**2 * twice + 2 * twice**2
    assert rounded == pytest.approx(total + 3 * math.sqrt(variance), rel=1e-8)


def squared_mus(curve, rate, steps):
    """Probabilities of mu^2 over all draws: intervals of one step with noise 2, the last of two."""
    found: Counter[float] = Counter()
    for drawn in itertools.product((0, 1), repeat=steps):
        chance = math.prod(rate if one else 1 - rate for one in drawn)
        *first, one, two = drawn
        found[round((sum(first) + (one + two) ** 2) / 4 + curve.before**2 / 4, 9)] += chance
    return found


@pytest.mark.parametrize("places", [7, 40, 2**13])
@pytest.mark.parametrize("atoms", [3, 10, 400])
@pytest.mark.parametrize("rate, before", [(0.3, 0.0), (0.02, 0.0), (0.3, 3.0), (1.0, 0.5)])
def test_squared_mus_are_rounded_up(rate, before, places, atoms, monkeypatch):
    """The mixture has at least the probability of the draws above every level; without a draw it
    is exact."""
    monkeypatch.setattr(delayed_shifts, "PLACES", places)
    monkeypatch.setattr(delayed_shifts, "ATOMS", atoms)
    curve = DelayedShifts(rate, (7,), (1.0,), (1.0,), (2.0,), 1.0, 1, before)
    exact = squared_mus(curve, rate, 7)
    found = mean_over_draws.__wrapped__(curve)
    mus, weights = np.array(found.mus), np.array(found.weights)
    assert weights.sum() == pytest.approx(1, abs=1e-12) and (weights >= 0).all()
    for level in exact:
        above = sum(chance for size, chance in exact.items() if size >= level)
        ours = weights[mus**2 >= level * (1 - 1e-9) - 1e-12].sum()
        assert ours >= above * (1 - 1e-9), level
    if rate < 1:
        assert weights[0] == pytest.approx((1 - rate) ** 7, rel=1e-6)
        assert mus[0] == pytest.approx(before / 2, rel=1e-8)
    largest = math.hypot(math.sqrt(5) / 2, 1.0, before / 2)
    assert mus[-1] == pytest.approx(max(largest, mus[-2]), rel=1e-8)
    if places > 100 and atoms == 400:
        mean = sum(size * chance for size, chance in exact.items())
        assert mean * (1 - 1e-9) <= weights @ mus**2 <= mean * 1.01 + 0.002
    assert weights[-1] < 1e-9 if places > 100 else True


@pytest.mark.parametrize("tail", [1e-2, 1e-3])
def test_what_is_cut_counts_as_drawn_at_every_step(tail, monkeypatch):
    monkeypatch.setattr(delayed_shifts, "TAIL", tail)
    curve = DelayedShifts(0.1, (7,), (1.0,), (1.0,), (2.0,), 1.0, 1)
    found, exact = mean_over_draws.__wrapped__(curve), squared_mus(curve, 0.1, 7)
    mus, weights = np.array(found.mus), np.array(found.weights)
    assert tail / 10 < weights[-1] < 30 * tail and weights.sum() == pytest.approx(1, abs=1e-12)
    for level in exact:
        above = sum(chance for size, chance in exact.items() if size >= level)
        assert weights[mus**2 >= level * (1 - 1e-9) - 1e-12].sum() >= above * (1 - 1e-9), level


def test_sums_of_draws_are_convolutions():
    one = np.array([0.6, 0.0, 0.3, 0.1])
    for count in range(1, 9):
        expected = np.ones(1)
        for _ in range(count):
            expected = np.convolve(expected, one)
        start = np.array([0.5, 0.5])
        total, lost = delayed_shifts._add_draws(start, one, count)
        assert total == pytest.approx(np.convolve(start, expected), rel=1e-12, abs=1e-17)
        assert lost == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_shifts, "TAIL", 1e-3)
        for count in (1, 2, 3, 7):
            total, lost = delayed_shifts._add_draws(start, one, count)
            assert 1 - total.sum() <= lost * (1 + 1e-12) and 0 <= lost < 0.03
        law, cut = delayed_shifts._drop_tail(np.array([0.5, 0.4985, 0.001, 0.0004, 0.0001]))
        assert list(law) == [0.5, 0.4985, 0.001] and cut == pytest.approx(0.0005)
        assert delayed_shifts._drop_tail(np.array([1e-4, 1e-5]))[0].size == 1


@pytest.mark.parametrize("rate, count", [(0.001, 1), (0.01, 300), (0.3, 40), (0.9, 3)])
def test_the_lattice_reaches_as_far_as_draws_do(rate, count):
    """Chernoff's bound at its best exponent, for a probability of 1e-12."""
    laws = [(np.array([1 - rate, rate]), np.array([0.0, 3.0]), 0.0, count)]
    found = delayed_shifts._reach(laws)
    assert found >= 9 * min(count, binom.isf(1e-12, count, rate))
    exponents = np.geomspace(1e-4, 1e4, 4001) / 9
    moments = np.logaddexp(math.log1p(-rate), math.log(rate) + 9 * exponents)
    best = ((count * moments + math.log(1e12)) / exponents).min()
    assert best * (1 - 1e-9) <= found <= best * 1.02
    both = delayed_shifts._reach([*laws, *laws])
    assert found < both < 2 * found
    assert delayed_shifts._reach([(np.ones(1), np.zeros(1), 0.0, 3)]) == 0


@pytest.mark.parametrize("noise", [1.0, 1e-3, 1e9, 0.0])
def test_averages_of_published_draws(noise):
    """Three steps that double distances: mu^2 is 4 B_1 + (2 B_2 + B_3)^2 over that of the noise.
    Where noise is very large or very small it is as if all draws were known."""
    run = changed(batching=li.FixedSize(4), noise=li.GradientNoise(noise / 4), steps=3)
    found = delayed_shifts.search_averages(run)
    if noise == 1.0:
        for one in found.curves:
            mus, weights = np.array(one.mus), np.array(one.weights)
            assert mus[-1] == pytest.approx(math.sqrt(13), rel=1e-4)
            assert 1.96 <= weights @ mus**2 <= 1.97
    else:
        assert isinstance(found, Gdp)
        exact = math.sqrt(13) / noise if noise else math.inf
        assert found.mu == pytest.approx(exact, rel=1e-6) and found.mu >= exact


def test_known_draws_are_those_of_the_best_intervals(monkeypatch):
    """By the order of choices at a noise of 16; loads are those of the batch without one record."""
    loss = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.3))
    asked = []

    def spy(*given):
        asked.append(given[1:])
        return restarted_sampling.last_steps(*given)

    monkeypatch.setattr(delayed_shifts, "last_steps", spy)
    near, far = (
        changed(batching=li.FixedSize(4), steps=7, noise=li.GradientNoise(noise / 4), loss=loss)
        for noise in (16.0, 16e8)
    )
    found = delayed_shifts.search_averages(far)
    assert asked == [(0.2, 0.0, 1, (0.75, 1.0))]
    choices = draw_intervals(spy(near, *asked[0]), 0.2)
    costs = [delayed_shifts._approximate(one) for one in choices]
    best, *others = np.argsort(costs, kind="stable")
    assert min(costs[other] for other in others) > costs[best]
    assert found.mu == pytest.approx(choices[best].known.mu * 1e-8, rel=1e-8, abs=0)
