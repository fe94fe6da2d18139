"""Draws that later steps hide: every choice of intervals lies above the exact law, and it is used."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

import lastiterate as li
from lastiterate.analysis import delayed_shifts
from lastiterate.analysis.delayed_shifts import (
    draw_interval_counts,
    draw_intervals,
    kinds,
    mean_over_draws,
)
from lastiterate.analysis.restarted_sampling import last_steps
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import BestOf, WithFailure
from lastiterate.curves.delayed_shifts import (
    AllocatedShifts,
    DelayedShifts,
    hidden,
    interval_ends,
    mixture_profile,
    shift_law,
)
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.sampled_batches import Pld
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from laws.test_restarted import EPSILONS, draws, law, runs
from laws.test_restarted_fixed_size import drawn, exact
from oracles.drawn import applied
from tiers import size

NAME = "delayed-shifts-poisson"


def test_every_choice_of_intervals_lies_above_the_exact_law():
    rng, near = np.random.default_rng(7), 0.0
    for _ in range(size(25, 1000, "DELAYED")):
        run, c = runs(rng, li.Poisson(float(rng.uniform(0.05, 0.7))), int(rng.integers(1, 9)))
        c = c * float(rng.choice([1.0, 1.0, 1.3]))
        truth, rate = law(run, list(draws(run)), c), run.batching.rate
        found = draw_intervals(replace(last_steps(run, rate, 0.0, 1), c=c), rate)
        for curve in rng.permutation(np.array(found, dtype=object))[:3]:
            for epsilon, true in zip(EPSILONS, truth, strict=True):
                ours = curve.delta(epsilon)
                assert ours >= true * (1 - 1e-4) - 1e-9, (run, curve, epsilon)
                near = max(near, true / ours if true > 1e-3 else 0.0)
    assert near > 0.9


def orders(p, q, cell, epsilon):
    return [np.maximum(a - math.exp(epsilon) * b, 0).sum() * cell for a, b in ((p, q), (q, p))]


def test_shifts_that_the_past_chooses_are_no_worse_than_aligned_ones():
    """Two steps, some secret ways; at the second step every way's shift is a function of what the
    first one showed."""
    rng, near = np.random.default_rng(3), 0.0
    axis = np.linspace(-8, 9, 341)
    cell, first = (axis[1] - axis[0]) ** 2, axis[:, None]
    q = np.multiply.outer(norm.pdf(axis), norm.pdf(axis))
    for trial in range(size(30, 1000, "ALIGNED")):
        count = int(rng.integers(2, 5))
        chances, most = (
            rng.dirichlet(np.ones(count)),
            rng.uniform(0, 2, (count, 2)) * rng.integers(0, 2, (count, 2)),
        )
        p = aligned = 0.0
        for chance, (one, two) in zip(chances, most, strict=True):
            sign, turn = rng.choice([-1.0, 1.0]), rng.uniform(-2, 2)
            shift = two * (
                np.where(axis > turn, sign, -sign) if trial % 2 else np.tanh(sign * (axis - turn))
            )
            p = p + chance * norm.pdf(first - one * (1.0 if trial % 3 else sign)) * norm.pdf(
                axis - shift[:, None]
            )
            aligned = aligned + chance * norm.pdf(first - one) * norm.pdf(axis - two)
        for epsilon in EPSILONS:
            for true, worst in zip(
                orders(p, q, cell, epsilon), orders(aligned, q, cell, epsilon), strict=True
            ):
                assert true <= worst * (1 + 1e-3) + 1e-6, (chances, most, epsilon)
                near = max(near, true / worst if worst > 1e-2 else 0.0)
    assert near > 0.8


def test_the_pair_of_an_interval():
    """Its curve on nodes is at least the exact one, and hardly more, in both orders."""
    x = np.linspace(-12, 17, 20_001)
    for weights, rate in (
        ([0.7] * 6, 0.05),
        ([1.2, 0.8, 0.3, 0.1], 0.3),
        ([2.5], 0.01),
        ([0.3] * 3, 1.0),
    ):
        ways = [
            (math.prod(rate if b else 1 - rate for b in taken), np.dot(weights, taken))
            for taken in itertools.product((0, 1), repeat=len(weights))
        ]
        p = sum(chance * norm.pdf(x - shift) for chance, shift in ways if chance)
        found = mixture_profile(*shift_law(np.array(weights), rate)).on_nodes(1e-3)
        assert found.q.sum() + found.zero == pytest.approx(1, abs=1e-6)
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            for true, ours in zip(
                orders(p, norm.pdf(x), x[1] - x[0], epsilon), found.deltas(epsilon), strict=True
            ):
                assert true * (1 - 1e-6) - 1e-9 <= ours <= true * 1.02 + 1e-6


def test_laws_of_shifts_are_rounded_up():
    rng = np.random.default_rng(6)
    for _ in range(20):
        weights = rng.uniform(rng.choice([0.01, 0.8]), 1, int(rng.integers(1, 10)))
        kind = rng.integers(
            4
        )  # any, all equal, or places of the lattice: nothing is rounded but by what merges them
        whole = np.append(rng.integers(200, 256, 8), 256) / 256
        weights = weights if kind < 2 else np.full(5, 0.37) if kind == 2 else whole
        rate = float(rng.uniform(0.02, 1))
        chances, values, lost = shift_law(weights, rate)
        assert 1 - 1e-12 <= chances.sum() + lost <= 1 + 1e-9 and lost < 1e-12
        attained = (
            rng.integers(0, 2, (5, weights.size)) @ weights * (1 - 1e-9)
        )  # just below what some draws add
        for level in (*rng.uniform(0, weights.sum(), 3), *attained[attained > 0]):
            true = sum(
                math.prod(rate if b else 1 - rate for b in taken)
                for taken in itertools.product((0, 1), repeat=weights.size)
                if np.dot(weights, taken) > level
            )
            assert chances[values > level].sum() + lost >= true * (1 - 1e-12)
        assert (chances * values).sum() <= rate * weights.sum() * 1.05


def test_what_is_cut_from_a_law_of_shifts_is_counted():
    """At a hundredth instead of 1e-20, where it can be seen."""
    for weights in (np.full(40, 0.3), np.linspace(0.1, 1, 25)):
        chances, _, lost = shift_law(weights, 0.2, tail=0.01)
        assert 0.01 <= lost <= 0.01 + 1e-12 and 0.001 < 1 - chances.sum() <= lost
    without, counted = (
        mixture_profile(np.array([0.7, 0.3]), np.array([0.0, 1.2]), lost) for lost in (0.0, 0.05)
    )
    for name in ("removed", "added"):
        assert getattr(counted, name) == pytest.approx(getattr(without, name) + 0.05, abs=1e-12)


def test_intervals_and_what_hides_them():
    assert interval_ends(10, 2.0, 3) == [0, 1, 4, 7, 9, 10] and interval_ends(3, 1.0, 1) == [
        0,
        1,
        2,
        3,
    ]
    assert interval_ends(1, 2.0, 5) == [0, 1]
    curve = DelayedShifts(
        0.2, (3, 2), (0.5, 2.0), (1.0, 0.3), (0.7, 0.4), 2.0, 2, 5.0
    )  # ends 0, 2, 4, 5
    certain, pairs = hidden(curve)
    assert certain == pytest.approx(5 * 0.25 / (0.7 * math.sqrt(1.25)), rel=1e-6)
    assert hidden(replace(curve, before=0.05))[0] == pytest.approx(certain / 100, rel=1e-9)
    assert hidden(replace(curve, before=0.0))[0] == 0
    noise, last = math.sqrt((0.7 * 2) ** 2 + 0.4**2), 0.4
    wanted = [
        [0.5 * 0.5 * 2 / noise, 1 * 0.5 * 2 / noise],
        [1 * 2 * 2 / last, 0.3 * 2 / last, 0.3 / last],
    ]
    assert [list(w) for w, _ in pairs] == [pytest.approx(one, rel=1e-6) for one in wanted]
    assert hidden(DelayedShifts(0.2, (2,), (0.5,), (1.0,), (2.0,), 1.0, 1, 3.0))[
        0
    ] == pytest.approx(0.75, rel=1e-6)
    assert hidden(DelayedShifts(0.2, (3,), (1.0,), (0.0,), (1.0,), 1.0, 1)) == (0.0, ())
    (single,) = hidden(DelayedShifts(0.2, (1,), (1.0,), (1.0,), (2.0,), 1.0, 1))[1]
    assert list(single[0]) == pytest.approx([0.5]) and single[1] == 1
    assert (
        hidden(DelayedShifts(0.2, (1,), (1.0,), (1.0,), (2.0,), 1.0, 1, before=0.1))[0] == math.inf
    )


def test_one_step_is_sampled():
    for rate, z in ((0.05, 1.0), (0.3, 2.0)):
        ours, theirs = (
            DelayedShifts(rate, (1,), (1.0,), (1.0,), (z,), 1.0, 1),
            Pld(rate, (z,), (1,)),
        )
        for epsilon in (0.1, 0.5, 1.0):
            assert ours.delta(epsilon) == pytest.approx(theirs.delta(epsilon), rel=2e-3)


def test_the_curve():
    curve = DelayedShifts(0.05, (100,), (1.0,), (1.0,), (2.0,), 1.2, 4)
    epsilon = curve.epsilon(1e-5)
    assert curve.delta(epsilon) <= 1e-5 < curve.delta(epsilon * (1 - 1e-6))
    assert curve_from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    together = compose(Gdp(0.1), curve)
    assert isinstance(together, DelayedShifts) and epsilon < together.epsilon(1e-5) < 1.5 * epsilon
    assert epsilon <= curve.coarser().epsilon(1e-5) <= epsilon * 1.05
    assert Pld(0.05, (2.0,), (100,)).rdp(8.0) / 2 < curve.rdp(8.0) <= curve.known.rdp(8.0) * 1.001
    assert curve.group(2).epsilon(1e-4) > epsilon
    assert replace(curve, stds=(0.0,)).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    "kind, draws", [(DelayedShifts, {"rate": 1.0}), (AllocatedShifts, {"blocks": 1})]
)
def test_what_steps_can_be(kind, draws):
    zeros = draws | dict.fromkeys(("factors", "shifts", "stds"), (0.0, 1.0))
    good = zeros | {"counts": (1, 2), "growth": 1.0, "widest": 1}
    assert kind(**good).before == 0
    short = [{name: good[name][:1]} for name in ("counts", "factors", "shifts", "stds")]
    below = [
        {name: (1.0, wrong)} for name in ("factors", "shifts", "stds") for wrong in (-0.1, math.nan)
    ]
    other = [
        {"before": -1.0},
        {"counts": (0, 2)},
        {"growth": 0.9},
        {"widest": 0},
        {next(iter(draws)): 0},
    ]
    for wrong in (*short, *below, *other, *([{"rate": 1.1}] if "rate" in draws else [])):
        with pytest.raises(li.InputError):
            kind(**good | wrong)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shift, numbers", [(27.9, True), (28.1, False), (60.0, False)])
def test_where_likelihood_ratios_overflow_draws_count_as_known(shift, numbers):
    curve = DelayedShifts(0.1, (1,), (1.0,), (shift,), (1.0,), 1.2, 1)
    assert (curve.law() is not None) == numbers
    for first, before in ((shift, 0.0), (1.0, shift)):  # one draw of four, or a distance before
        one = DelayedShifts(0.1, (1, 3), (1.0, 1.0), (first, 1.0), (1.0, 1.0), 1.0, 1, before)
        assert (one.law() is not None) == numbers and (
            numbers or one.delta(1.0) == one.known.delta(1.0)
        )
    assert curve.delta(1.0) == pytest.approx(0.1 if numbers else 1.0, rel=1e-6)


@pytest.mark.filterwarnings("error")
def test_shifts_whose_sum_is_beyond_double_precision_count_as_known():
    one = DelayedShifts(0.1, (40,), (1.0,), (1e308,), (1.0,), 1.2, 40)
    assert one.law() is None and one.known.mu == math.inf and one.delta(1.0) == 1.0
    assert delayed_shifts._approximate(one) == math.inf


BASE = li.Run(
    n=10_000,
    steps=400,
    step_size=1 / 0.35,
    noise=li.NoiseMultiplier(2.0),
    batching=li.Poisson(0.05),
    loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.1),
)


def curve(run, name=NAME):
    return applied(name, run)


def test_what_it_buys():
    contracting, flat = (
        BASE,
        replace(
            BASE,
            step_size=4.0,
            loss=li.Logistic(row_norm=1.0, intercept=0.0),
            steps=4000,
            noise=li.NoiseMultiplier(0.8),
        ),
    )
    assert curve(contracting).epsilon(1e-5) < 0.75 * curve(
        contracting, "restarted-poisson-pld"
    ).epsilon(1e-5)
    found = curve(flat).epsilon(1e-5)
    assert found < 0.65 * curve(flat, "poisson-pld").epsilon(1e-5)
    assert found < 1.05 * match(TABLE["linear-witness"], flat).bound.epsilon(1e-5), (
        "nobody can say much less"
    )
    small = replace(flat, domain=li.domains.Ball(0.05))
    assert curve(small).epsilon(1e-5) < found / 2, "a small domain forgets"


def test_steps_of_many_kinds_count_with_the_worst():
    steps = tuple(float(x) for x in np.linspace(2.0, 2.8, 400))
    varied = curve(replace(BASE, step_size=steps)).epsilon(1e-5)
    assert curve(replace(BASE, step_size=2.0)).epsilon(1e-5) < varied * 1.5 and varied < 0.6
    rng = np.random.default_rng(2)
    for count, places in ((30, 5), (400, 63), (400, 64), (400, 300)):
        constants = np.ones((3, count))
        for place in rng.permutation(np.arange(1, count))[
            :places
        ]:  # one of them changes there, the others do not
            constants[int(rng.integers(3)), place:] *= rng.uniform(0.5, 2)
        counts, *found = kinds(*constants)
        ends = np.cumsum(counts)
        assert ends[-1] == count and len(counts) == min(places + 1, 64)
        for ours, true, worst in zip(found, constants, (max, max, min), strict=True):
            assert ours == tuple(
                worst(true[end - size : end]) for size, end in zip(counts, ends, strict=True)
            )


@pytest.mark.parametrize("blocks", [None, 5])
def test_intervals_begin_with_the_diameter_or_the_distance_before(blocks):
    bounded = replace(
        BASE,
        n=20,
        steps=37,
        step_size=tuple(np.linspace(2, 2.8, 37)),
        domain=li.domains.Ball(0.05),
        batching=li.RandomAllocation(4) if blocks else li.Poisson(0.05),
    )
    steps = replace(last_steps(bounded, 0.05, 0.0, blocks or 1), before=0.03)
    found = delayed_shifts.block_intervals(steps, blocks) if blocks else draw_intervals(steps, 0.05)
    lengths = {sum(one.counts) for one in found}
    assert lengths == ({7, 12, 22, 37} if blocks else {2, 3, 4, 5, 7, 9, 12, 16, 21, 28, 37})
    for one in found:
        length = sum(one.counts)
        assert one.before == (0.03 if length == 37 else 0.1) and (
            one.widest < length or one.widest == 1
        )
        for ours, true in (
            (one.factors, steps.c),
            (one.shifts, steps.s),
            (one.stds, np.sqrt(steps.v)),
        ):
            assert list(np.repeat(ours, one.counts)) == list(true[37 - length :])
    tried = {(one.widest, one.growth) for one in found if sum(one.counts) == 37}
    widest, growths = ((2, 3, 4, 5), (1.3, 1.6, 2.0)) if blocks else ((2, 4, 8, 16, 32), (1.2, 1.6))
    assert tried == {*itertools.product(widest, growths), *(() if blocks else ((1, 1.2),))}
    everywhere = replace(steps, diameter=math.inf)
    assert {
        sum(one.counts)
        for one in (
            delayed_shifts.block_intervals(everywhere, blocks)
            if blocks
            else draw_intervals(everywhere, 0.05)
        )
    } == {37}


@pytest.mark.parametrize(
    "name, batching, every",
    [(NAME, li.Poisson(0.05), 1), ("delayed-shifts-allocated", li.RandomAllocation(500), 20)],
)
def test_unusual_batches_are_paid_for(name, batching, every, monkeypatch):
    run = replace(BASE, batching=batching, step_size=4.3)
    flat = replace(run, step_size=0.1, loss=li.Logistic(row_norm=1.0, intercept=0.0))

    def of(*failures, run=run):
        monkeypatch.setattr(delayed_shifts, "FAILURES", failures)
        return curve(run, name)

    for failure in (0.0, 1e-9, 0.01):
        found = of(failure)
        assert not failure or (found.failure == failure and found.delta(20.0) >= failure)
        assert (found.curve if failure else found).factors == (
            last_steps(run, 0.05, failure, every).c[0],
        )
    both = of(1e-9, 1e-6)  # the second costs less by a few percent
    assert isinstance(both, BestOf) and [one.failure for one in both.curves] == [1e-9, 1e-6]
    assert of(1e-6, 1e-9).failure == 1e-6 == of(0.0, 1e-6).failure, "what costs more is left out"
    assert not isinstance(of(0.0, 1e-6, run=flat), WithFailure | BestOf), (
        "where failures buy nothing"
    )
    assert of(0.0, run=replace(run, steps=4100)) == Gdp(math.inf)
    silent = replace(
        run,
        loss=li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0)),
        noise=li.GradientNoise(1.0),
    )
    assert of(0.0, run=silent) == of(0.0, run=replace(silent, steps=4100)) == Gdp(0.0)


def test_sizes_order_choices_as_epsilons_do():
    few, many = (
        DelayedShifts(0.05, (4000,), (1.0,), (1.0,), (0.8,), 1.2, widest) for widest in (1, 64)
    )
    assert draw_interval_counts(many) < draw_interval_counts(few) and many.epsilon(
        1e-5
    ) < few.epsilon(1e-5)


FIXED = "delayed-shifts-fixed-size"


def test_published_draws_lie_above_the_exact_law_of_curved_losses():
    rng, near = np.random.default_rng(5), 0.0
    for _ in range(size(20, 1000, "PUBLISHED")):
        run, targets, other = drawn(rng)
        found = curve(run, FIXED)
        for epsilon, orders_of in zip(
            (0.0, 0.2, 0.7, 1.5), exact(run, targets, other), strict=True
        ):
            assert max(orders_of) <= found.delta(epsilon) * (1 + 1e-3) + 1e-5, (
                run,
                targets,
                other,
                epsilon,
            )
            near = max(
                near, max(orders_of) / found.delta(epsilon) if max(orders_of) > 1e-3 else 0.0
            )
    assert near > 0.5


@pytest.mark.parametrize("places, most", [(2**13, 1.01), (16, 3.0)])
def test_the_mean_over_draws_is_exact_for_few_steps(places, most, monkeypatch):
    """All ways of the draws: steps of three kinds, and eight that are alike."""
    rate, shifts, stds = 0.3, (1.0, 0.5, 2.0), (2.0, 1.5, 1.2)
    plan = DelayedShifts(rate, (1, 1, 1), (0.9, 1.1, 0.8), shifts, stds, 1.0, 1)
    alike = DelayedShifts(
        rate, (8,), (1.0,), (1.0,), (2.0,), 1.0, 1
    )  # six intervals, and the last two steps

    def mu(b):
        if len(b) == 8:
            return math.hypot(*(one / 2 for one in b[:6]), (b[6] + b[7]) / 2)
        return math.hypot(1.1 * b[0] / 1.5, (0.8 * 0.5 * b[1] + 2.0 * b[2]) / 1.2)

    monkeypatch.setattr(delayed_shifts, "PLACES", places)
    for one, steps in ((plan, 3), (alike, 8)):
        found = mean_over_draws.__wrapped__(one)  # no law of other places
        for epsilon in (0.0, 0.4, 1.0):
            true = 0.0
            for b in itertools.product((0, 1), repeat=steps):
                chance = math.prod(rate if one else 1 - rate for one in b)
                true += chance * (Gdp(mu(b)).delta(epsilon) if mu(b) else 0.0)
            assert true <= found.delta(epsilon) <= true * most


def test_published_draws_cost_less_where_noise_is_little():
    flat = li.Run(
        n=10_000,
        steps=4000,
        step_size=4.0,
        noise=li.NoiseMultiplier(0.8),
        batching=li.FixedSize(500),
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    ours, sampled = (curve(flat, name).epsilon(1e-5) for name in (FIXED, "restarted-fixed-size"))
    assert match(TABLE["linear-witness"], flat).bound.epsilon(1e-5) < ours < sampled / 4
    assert curve(replace(flat, steps=4100), FIXED).epsilon(1e-5) > ours
    assert curve(replace(flat, noise=li.NoiseMultiplier(0.0)), FIXED).epsilon(1e-5) == math.inf


def test_published_draws_are_averaged_over_the_best_intervals():
    """As if every choice were evaluated at the noise of the run; batches of two, one of which may
    be the record."""
    loss = li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.5, strong=0.5))
    for domain, z in (
        (li.domains.Everywhere(), 1.0),
        (li.domains.Ball(0.4), 3.0),
        (li.domains.Everywhere(), 0.4),
    ):
        run = li.Run(
            n=6,
            steps=9,
            step_size=(1.2,) * 5 + (1.0,) * 4,
            noise=li.GradientNoise(z / 2),
            loss=loss,
            batching=li.FixedSize(2),
            domain=domain,
        )
        found = draw_intervals(last_steps(run, 1 / 3, 0.0, 1, (0.5, 1.0)), 1 / 3)
        ours, each = curve(run, FIXED), [mean_over_draws.__wrapped__(one) for one in found]
        for epsilon in (0.0, 0.3, 1.0):
            least = min(one.delta(epsilon) for one in each)
            assert least * (1 - 1e-3) <= ours.delta(epsilon) <= least * 1.03
    for z in (1e8, 1e-3):  # nothing is left to average
        extreme = replace(run, noise=li.GradientNoise(z))
        known = [
            one.known.mu
            for one in draw_intervals(last_steps(extreme, 1 / 3, 0.0, 1, (0.5, 1.0)), 1 / 3)
        ]
        ours = curve(extreme, FIXED)
        assert isinstance(ours, Gdp) and min(known) * (1 - 1e-9) <= ours.mu <= max(known) * (
            1 + 1e-6
        )
    silent = replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.5)))
    assert (
        curve(silent, FIXED) == curve(replace(silent, steps=5000, step_size=1.0), FIXED) == Gdp(0.0)
    )
    assert curve(replace(run, steps=5000, step_size=1.0), FIXED) == Gdp(math.inf)


def test_without_a_draw_the_distance_before_is_left():
    apart = DelayedShifts(0.3, (3,), (1.0,), (1.0,), (2.0,), 1.0, 1, before=5.0)
    found = mean_over_draws(apart)
    assert found.weights[0] == pytest.approx(0.7**3) and found.mus[0] == pytest.approx(2.5)
    drawn_once = next(
        mu for chance, mu in zip(found.weights[1:], found.mus[1:], strict=True) if chance > 0
    )
    assert drawn_once == pytest.approx(math.hypot(2.5, 0.5), rel=0.01)


def test_rare_draws_fit_on_the_lattice():
    rare = li.Run(
        n=100_000,
        steps=1000,
        step_size=4.0,
        noise=li.NoiseMultiplier(0.8),
        batching=li.FixedSize(100),
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    assert curve(rare, FIXED).epsilon(1e-5) < 0.7 * curve(rare, "restarted-fixed-size").epsilon(
        1e-5
    )
    for rate, count in ((0.001, 1), (0.001, 1000), (0.3, 20)):
        chances, values = np.array([1 - rate, rate]), np.array([0.0, 3.0])
        exact = 9 * binom.isf(delayed_shifts.BEYOND, count, rate)
        assert (
            exact
            <= delayed_shifts._reach([(chances, values, 0.0, count)])
            <= max(1.2 * exact, exact + 20)
        )


def test_a_search_for_noise_computes_the_law_of_published_draws_once():
    run = li.Run(
        n=1000,
        steps=40,
        step_size=2.0,
        noise=li.NoiseMultiplier(0.9),
        batching=li.FixedSize(50),
        loss=li.Logistic(row_norm=1.0, ridge=0.02),
    )
    first = curve(run, FIXED)
    before = mean_over_draws.cache_info().misses
    for z in (0.7, 3.0, 1 / 3):
        found = curve(replace(run, noise=li.NoiseMultiplier(z)), FIXED)
        for one, other in zip(first.curves, found.curves, strict=True):
            assert np.allclose(
                np.array(other.mus[:-1]) * z, np.array(one.mus[:-1]) * 0.9, rtol=1e-8, atol=0
            )
    assert mean_over_draws.cache_info().misses == before


def test_coarse_curves_lie_above_and_not_far():
    for widest in (1, 8, 64):
        plan = DelayedShifts(0.05, (100,), (0.97,), (1.0,), (1.3,), 1.2, widest)
        for epsilon in (0.1, 0.5, 1.0):
            assert (
                plan.delta(epsilon) * (1 - 1e-6)
                <= plan.coarser().delta(epsilon)
                <= 1.05 * plan.delta(epsilon)
            )


@pytest.mark.parametrize(
    "change",
    [
        {"release": "all"},
        {"optimizer": li.HeavyBall(0.5)},
        {"prox": li.penalties.L2Squared(0.1)},
        {"batching": li.FixedSize(500)},
    ],
)
def test_what_the_proof_does_not_cover(change):
    assert isinstance(match(TABLE[NAME], replace(BASE, **change)), Fails)
