"""Shifts that later noise hides: their distributions, intervals and ratios against independent
sums."""

import math
from collections import Counter
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom, norm

from lastiterate.curves import delayed_shifts
from lastiterate.curves.delayed_shifts import (
    AllocatedShifts,
    DelayedShifts,
    carry_over,
    hidden,
    hidden_passes,
    interval_ends,
    mixture_grid,
    mixture_profile,
    pass_law,
    shift_law,
)


def gaussian(epsilon, mu):
    """delta of mu-GDP at any real epsilon."""
    return norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def test_shifts_on_the_lattice_have_their_exact_distribution():
    places = (256, 128, 128, 100, 1)
    expected: Counter[int] = Counter()
    for taken in product((0, 1), repeat=len(places)):
        expected[int(np.dot(places, taken))] += math.prod(0.3 if one else 0.7 for one in taken)
    chances, values, lost = shift_law(np.array(places) / 128, 0.3)
    assert values == pytest.approx(np.array(sorted(expected)) / 128, rel=1e-10)
    assert (values >= np.array(sorted(expected)) / 128).all()
    assert chances == pytest.approx([expected[place] for place in sorted(expected)], rel=1e-12)
    assert lost == pytest.approx(5 * 2.0**-50, rel=1e-4) and lost > 5 * 2.0**-50
    assert shift_law(np.array([0.5, 0.25]), 1.0)[:2] == (
        pytest.approx([1.0]),
        pytest.approx([0.75]),
    )


@pytest.mark.parametrize("atoms, width", [(5, 9), (41, 1), (40, 2), (20, 3)])
def test_alike_shifts_are_binomial_and_merged_upwards(atoms, width):
    """No draw at all is an atom alone; every other group has the largest of its values."""
    chances, values, lost = shift_law(np.full(40, 0.37), 0.2, atoms, 1e-300)
    ends = [0, *range(width, 41, width)]
    ends += [] if ends[-1] == 40 else [40]
    begins = [0, *(end + 1 for end in ends[:-1])]
    exact = binom.pmf(np.arange(41), 40, 0.2)
    assert chances == pytest.approx(
        [exact[a : b + 1].sum() for a, b in zip(begins, ends, strict=True)], rel=1e-11
    )
    assert values == pytest.approx(0.37 * np.array(ends), rel=1e-10) and values[0] == 0
    assert lost == pytest.approx(40 * 2.0**-50)


@pytest.mark.parametrize("weights", [np.full(40, 0.3), np.linspace(0.2, 1, 60)])
@pytest.mark.parametrize("tail", [1e-2, 1e-4])
def test_at_most_the_tail_is_cut(weights, tail):
    chances, values, lost = shift_law(weights, 0.2, tail=tail)
    assert tail < lost < tail * 1.001 and 1e-3 * tail < 1 - chances.sum() <= tail
    assert chances.min() > 0 and values[-1] < weights.sum()


def test_shifts_are_rounded_up_to_a_lattice_that_is_fine_enough():
    for weights, unit in (
        (np.array([1.0, 0.5, 0.2]), 1 / 256),
        (np.append(np.full(300, 0.9), 1.0), 271 / 20_000),
        (np.full(4, 0.7), 0.7),
        (np.array([0.7, 0.7 * (1 - 1e-11)]), 0.7 / 256),
    ):
        chances, values, _ = shift_law(weights, 0.3)
        steps = values / unit
        assert steps == pytest.approx(np.round(steps), abs=1e-6) and (chances > 0).all()
        mean, exact = chances @ values, 0.3 * weights.sum()
        assert exact * (1 - 1e-6) <= mean <= exact + 0.3 * unit * weights.size


@pytest.mark.parametrize("shift", [0.4, 1.7])
def test_the_profile_of_one_shift_is_gaussian(shift):
    found = mixture_profile(np.ones(1), np.array([shift]), 0.0)
    logs = np.log(found.ratios)
    assert logs[0] == pytest.approx(-shift * 9.7 - shift**2 / 2) and logs.size == 1200
    for ours, exact in (
        (found.removed, gaussian(logs, shift)),
        (found.added, gaussian(-logs, shift)),
    ):
        assert (ours >= exact * (1 - 1e-9) - 1e-15).all()
        assert ours == pytest.approx(exact, rel=1e-9, abs=1e-10)
    assert found.variance == pytest.approx(shift**2, rel=1e-3)
    assert found.largest == pytest.approx(shift * 9.7 + shift**2 / 2)


def test_the_profile_of_several_shifts():
    """Against sums over a grid; the ends of its points, and what errors of chances cost."""
    chances, shifts, lost = np.array([0.5, 0.3, 0.15]), np.array([0.0, 0.8, 2.5]), 0.05
    found = mixture_profile(chances, shifts, lost, 30, 4.0)
    x = np.linspace(-4, 6.5, 30)
    ratios = np.exp(shifts * x[:, None] - shifts**2 / 2) @ chances
    assert found.ratios == pytest.approx(ratios, rel=1e-12)
    assert found.largest == pytest.approx(np.abs(np.log(ratios)).max(), rel=1e-12)
    dense = np.linspace(-12, 14, 40_001)
    p, q = norm.pdf(dense[:, None] - shifts) @ chances, norm.pdf(dense)
    width = dense[1] - dense[0]
    for place, ratio in enumerate(ratios):
        removed, added = np.maximum(p - ratio * q, 0), np.maximum(q - p / ratio, 0)
        assert found.removed[place] == pytest.approx(removed.sum() * width + lost, abs=1e-6)
        assert found.added[place] == pytest.approx(added.sum() * width + lost, abs=1e-6)
    wrong = mixture_profile(chances, shifts, lost, 30, 4.0, 1e-3)
    ahead = norm.sf(x[:, None] - shifts) @ chances
    assert wrong.removed - found.removed == pytest.approx(4e-3 * ahead, rel=1e-6, abs=1e-12)
    assert wrong.added - found.added == pytest.approx(4e-3 * norm.cdf(x), rel=1e-6, abs=1e-12)
    nothing = mixture_profile(np.ones(1), np.array([1e-3]), 0.2)
    assert nothing.removed.min() >= 0.2 <= nothing.added.min()


@pytest.mark.parametrize("h, lost", [(0.01, 0.0), (0.3, 0.0), (0.01, 0.01), (0.3, 0.01)])
def test_nodes_keep_the_chords_of_both_orders(h, lost):
    """At the ratio of a node delta is that of the profile, between two points of it that of their
    chord; masses add up, but that what is lost may count twice."""
    profile = mixture_profile(np.array([0.6, 0.4]), np.array([0.0, 1.3]), lost, 60, 5.0)
    law = profile.on_nodes(h)
    ratios = np.exp(h * (law.low + np.arange(law.q.size)))
    assert law.q.size == 2 * -law.low + 1 and -law.low >= profile.largest / h
    assert law.p == pytest.approx(law.q * ratios, rel=1e-9) and min(law.q.min(), law.p.min()) >= 0
    for total in (law.p.sum() + law.infinite, law.q.sum() + law.zero):
        assert 1 - 1e-12 <= total <= 1 + lost + 1e-11
    removed = np.interp(ratios, profile.ratios, profile.removed)
    added = np.interp(ratios, 1 / profile.ratios[::-1], profile.added[::-1])
    for place in range(-law.low, law.q.size, 1 if h > 0.1 else 20):
        g = ratios[place]
        both = (
            (law.infinite + np.maximum(law.p - g * law.q, 0).sum(), removed[place]),
            (law.zero + np.maximum(law.q - g * law.p, 0).sum(), added[place]),
        )
        least = min(removed[place], added[place])
        for ours, chord in both:
            assert ours == pytest.approx(chord if g > 1 else least, abs=1e-12)


@pytest.mark.parametrize("shifts, reach", [([0.5, 1.3, 0.1], 1.5), ([0.9], 0.7), ([0.3, 2.0], 9.5)])
def test_ratios_of_a_mean_keep_their_means_at_all_nodes(shifts, reach):
    """E[(Y - g)_+] is exact where g is a node, but for what is lost above the last one, and an
    allowance of a millionth of that."""
    shifts = np.array(shifts)
    found = mixture_grid(shifts, reach)
    x = np.linspace(-reach, reach + shifts.max(), 700)
    ratios = np.exp(shifts * x[:, None] - shifts**2 / 2).mean(axis=1)
    assert found.value == pytest.approx([0.0, *ratios], rel=1e-12) and found.mass.min() >= 0
    assert found.mass.sum() == pytest.approx(1, abs=1e-13)
    ahead = norm.sf(x[:, None] - shifts).mean(axis=1)
    exact = ahead - ratios * norm.sf(x)
    lost = found.lost - 1e-6 * ahead[-1]
    assert lost == pytest.approx(exact[-1], rel=1e-6, abs=1e-20)
    places = range(0, 700, 50)
    above = np.maximum(found.value - ratios[list(places), None], 0) @ found.mass + lost
    assert above == pytest.approx(exact[list(places)], rel=1e-9, abs=1e-13)
    assert (found.mass_error, found.ratio_error) == (1e-10, 1e-10)


def test_masses_far_out_are_differences_of_the_nearer_tails():
    x = np.array([-9.0, -8.0, -7.9, -0.1, 0.0, 0.2, 7.9, 8.0, 9.0])
    found = delayed_shifts._cells(x)
    z = np.array([7.9, 8.0, 9.0])
    tails = norm.sf(z)
    assert found[-1] == pytest.approx(tails[-1], rel=1e-12) == found[0]
    assert found[7:9] == pytest.approx(-np.diff(tails), rel=1e-11)
    assert found[1:3][::-1] == pytest.approx(-np.diff(tails), rel=1e-11)
    assert found[4:6] == pytest.approx(norm.cdf([0.0, 0.2]) - norm.cdf([-0.1, 0.0]), rel=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(
    "steps, growth, widest, blocks, ends",
    [
        (10, 1.3, 4, None, [0, 3, 5, 7, 8, 9, 10]),
        (20, 2.0, 3, None, [0, 2, 5, 8, 11, 14, 17, 19, 20]),
        (20, 1.9, 100, None, [0, 9, 15, 18, 19, 20]),
        (1, 5.0, 7, None, [0, 1]),
        (2, 5.0, 7, None, [0, 1, 2]),
        (8, 2.0, 2, 3, [0, 1, 3, 4, 6, 7, 8]),
        (9, 1.0, 1, 3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (9, 4.0, 4, 4, [0, 4, 8, 9]),
        (11, 3.0, 9, 4, [0, 4, 8, 10, 11]),
    ],
)
def test_intervals_grow_from_the_last_step(steps, growth, widest, blocks, ends):
    assert interval_ends(steps, growth, widest, blocks) == ends


def forward(c, s, std, hides, source):
    """What the steps in ``source`` add, each by itself, over the noise of those in ``hides``, at
    the end of the last."""
    end = max(*hides, *source) + 1
    noise = sum((std[t] * math.prod(c[t + 1 : end])) ** 2 for t in hides)
    return [s[t] * math.prod(c[t + 1 : end]) / math.sqrt(noise) for t in source]


def random_steps(seed, counts):
    rng = np.random.default_rng(seed)
    c, s, std = (tuple(rng.uniform(low, 2, len(counts)).tolist()) for low in (0.3, 0.0, 0.5))
    return counts, c, s, std


STEPS = [
    (random_steps(1, (3, 1, 4, 2)), 1.5, 3),
    (random_steps(2, (1,) * 11), 2.0, 100),
    (random_steps(3, (9,)), 1.0, 2),
    (random_steps(4, (1, 1)), 1.0, 1),
    (random_steps(5, (1,)), 1.0, 1),
    (random_steps(6, (12,)), 1.0, 1),
]


@pytest.mark.parametrize("steps, growth, widest", STEPS)
@pytest.mark.parametrize("before", [0.0, 0.7])
def test_weights_of_intervals(steps, growth, widest, before):
    """Against sums in order: what an interval adds, over the noise of the next one; the last step
    hides its own draw too; alike intervals are counted together."""
    curve = DelayedShifts(0.2, *steps, growth, widest, before)
    c, s, std = (np.repeat(x, steps[0]).tolist() for x in steps[1:])
    ends = interval_ends(len(c), growth, widest)
    certain, pairs = hidden(curve)
    expected = []
    for number in range(max(1, len(ends) - 2)):
        last = number + 2 >= len(ends) - 1
        begin = ends[number] if len(ends) > 2 else 0
        middle = ends[number + 1] if len(ends) > 2 else 0
        end = ends[number + 2] if len(ends) > 2 else 1
        source = range(begin, end if last else middle)
        expected.append(forward(c, s, std, range(middle, end), source))
    found = [list(weights) for weights, count in pairs for _ in range(count)]
    assert sorted(map(sorted, found)) == [
        pytest.approx(sorted(one), rel=1e-8) for one in sorted(map(sorted, expected))
    ]
    assert all(sum(one) > 0 for one in found)
    assert len(pairs) == len({tuple(np.round(one, 9)) for one in expected})
    if before == 0:
        assert certain == 0
    elif len(ends) == 2:
        assert certain == math.inf, "a single step hides its own draw"
    else:
        first = range(ends[1])
        exact = (
            before
            * math.prod(c[: ends[1]])
            / math.sqrt(sum((std[t] * math.prod(c[t + 1 : ends[1]])) ** 2 for t in first))
        )
        assert exact <= certain <= exact * (1 + 1e-8)
    mu = math.hypot(certain, 0.3, *(sum(one) for one in expected))
    assert replace(curve, mu=0.3).known.mu == pytest.approx(mu, rel=1e-8)


def test_faint_intervals_count_as_certain():
    """Those that add less than 1e-4, each as often as it is there."""
    curve = DelayedShifts(0.2, (6, 1), (1.0, 1.0), (0.99e-4, 3e-4), (1.0, 1.0), 1.0, 1)
    certain, pairs = hidden(curve)
    assert certain == pytest.approx(math.sqrt(5) * 0.99e-4, rel=1e-8)
    ((weights, count),) = pairs
    assert list(weights) == pytest.approx([0.99e-4, 3e-4], rel=1e-8) and count == 1
    none = DelayedShifts(0.2, (3,), (1.0,), (0.0,), (1.0,), 1.0, 1)
    assert none.before == AllocatedShifts(2, *kinds_of_steps(none), 1.0, 1).before == 0
    assert hidden(none) == (0.0, ()) and none.law() is None and none.delta(0.5) == 0


def kinds_of_steps(curve):
    return curve.counts, curve.factors, curve.shifts, curve.stds


def test_shifts_are_carried_over_and_what_is_infinite_stays():
    c, s, std = np.log([0.5, 2.0, 1.5]), np.log([1.0, 3.0]), np.log([9.0, 0.7, 0.4])
    noise = math.hypot(0.7 * 1.5, 0.4)
    found = carry_over(c, s, std, 1)
    exact = np.array([3.0 / noise, 4.5 / noise])
    assert (exact < found).all() and found == pytest.approx(exact, rel=1e-8)
    (early,) = carry_over(c, np.log([0.3]), std, 1, earlier=True)
    assert early == pytest.approx(0.3 * 1.5 / noise, rel=1e-8)
    nothing = np.full(3, -math.inf)
    assert list(carry_over(c, s, nothing, 1)) == [math.inf] * 2
    assert list(carry_over(c, nothing[:2], std, 1)) == [0.0] * 2
    assert list(carry_over(c, nothing[:2], nothing, 1)) == [0.0] * 2
    forgotten = np.array([0.0, -math.inf, 0.0])  # the first shift is forgotten, the second is not
    assert list(carry_over(forgotten, s, std, 2)) == pytest.approx([0.0, 3.0 / 0.4], rel=1e-8)


def test_long_sums_of_large_logarithms_are_raised_by_more():
    """By 2^-48 of the largest partial sum for every step, where rounding is 2^-53 of it."""
    rng = np.random.default_rng(6)
    for count, size in ((1000, 200.0), (20, 30_000.0), (300, 1e-3)):
        c, std = size * rng.choice([-1.0, 0.999, 1.0], count), np.full(count, 0.3)
        later = [math.fsum(c[place + 1 :]) for place in range(count)]
        s = 0.1 - np.array(later)
        found = np.log(carry_over(c, s, std, count - 1))
        exact = [math.fsum((*c[place + 1 :], s[place], -0.3)) for place in range(count)]
        largest = max(abs(math.fsum(c[place:])) for place in range(count))
        allowance = 1e-10 + 2.0**-48 * (count + 16) * (1 + largest)
        raised = found - exact
        assert 0.9 * allowance < raised.min() and raised.max() < 1.1 * allowance


@pytest.mark.parametrize("steps, growth, widest", STEPS)
@pytest.mark.parametrize("before", [0.0, 0.7])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5])
def test_parts_of_passes(steps, growth, widest, before, blocks):
    """The same for secret blocks: shares and shifts of the intervals of every pass."""
    curve = AllocatedShifts(blocks, *steps, growth, widest, before)
    c, s, std = (np.repeat(x, steps[0]).tolist() for x in steps[1:])
    ends, total = interval_ends(len(c), growth, widest, blocks), len(c)
    certain, passes = hidden_passes(curve)
    if (total - 1) % blocks == 0 and (total > 1 or before > 0):
        assert (certain, passes) == (math.inf, ()) and curve.law() is None
        return
    expected = [[] for _ in range(math.ceil(total / blocks))]
    for number in range(max(1, len(ends) - 2)):
        begin, middle, end = ends[number : number + 3] if len(ends) > 2 else (0, 0, 1)
        source = range(begin, end if end == total else middle)
        shifts = np.maximum(forward(c, s, std, range(middle, end), source), 1e-4)
        expected[begin // blocks].append((len(source) / blocks, shifts.tolist()))
    found = [parts for parts, count in passes for _ in range(count)]
    assert len(found) == len(expected)
    left = list(expected)
    for parts in found:
        alike = [
            one
            for one in left
            if len(one) == len(parts)
            and all(
                share == pytest.approx(other) and list(shift) == pytest.approx(values, rel=1e-7)
                for (share, shift), (other, values) in zip(parts, one, strict=True)
            )
        ]
        assert alike
        left.remove(alike[0])
    if before == 0:
        assert certain == 0
    else:
        first = range(ends[1])
        exact = (
            before
            * math.prod(c[: ends[1]])
            / math.sqrt(sum((std[t] * math.prod(c[t + 1 : ends[1]])) ** 2 for t in first))
        )
        assert exact <= certain <= exact * (1 + 1e-8)
    most = [max(max(values) for _, values in parts) for parts in expected]
    known = replace(curve, mu=0.3).known.mu
    assert known == pytest.approx(math.hypot(certain, 0.3, *most), rel=1e-8)


@pytest.mark.parametrize(
    "steps, blocks, before, numbers",
    [
        (1, 2, 0.0, True),
        (1, 1, 0.0, True),
        (1, 2, 0.5, False),
        (2, 1, 0.0, False),
        (2, 2, 0.5, True),
        (2, 3, 0.0, True),
        (3, 2, 0.0, False),
        (4, 2, 0.0, True),
        (4, 3, 0.0, False),
        (5, 3, 0.5, True),
        (6, 3, 0.5, True),
    ],
)
def test_a_last_step_that_begins_a_pass_hides_two(steps, blocks, before, numbers):
    curve = AllocatedShifts(blocks, (steps,), (1.0,), (1.0,), (2.0,), 1.0, 1, before)
    certain, passes = hidden_passes(curve)
    assert math.isfinite(certain) == numbers == (passes != ())


def test_one_pass_is_a_mean_of_its_intervals():
    """With the first two moments of the mean of independent parts and a constant, 1."""
    for parts in (
        ((1.0, [0.4, 0.9]),),
        ((0.5, [1.1]), (0.25, [0.3, 0.7, 0.2])),
        ((0.25, [0.8]), (0.5, [0.5]), (0.25, [1.2, 0.1])),
        ((0.2, [0.1]), (0.1, [0.9]), (0.3, [0.6])),
    ):
        parts = tuple((share, np.array(shifts)) for share, shifts in parts)
        excess = sum(
            share**2 * np.expm1(np.multiply.outer(shifts, shifts)).mean() for share, shifts in parts
        )
        for far in (False, True):
            law = pass_law(parts, 300, far=far)
            assert law.mass.sum() == pytest.approx(1, abs=1e-9)
            assert law.mass @ law.value + law.lost == pytest.approx(1, abs=1e-6)
            found = law.mass @ law.value**2 - (law.mass @ law.value) ** 2
            assert excess * (1 - 1e-6) <= found <= excess * 1.02
            assert law.trimmed == (1e-40 if far else 1e-19)
        held = sum(share for share, _ in parts)
        assert law.value[0] == pytest.approx(1 - held, abs=1e-12)


def fake_law(curve):
    """What ``curve`` composes: the calls for its parts, in a curve that computes nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_shifts, "mixture_profile", lambda *law: law)
        patch.setattr(
            delayed_shifts, "_on_nodes", lambda profiles, resolution: (resolution, profiles)
        )
        patch.setattr(
            delayed_shifts, "compose_ratios", lambda parts, resolution: (resolution, parts)
        )
        patch.setattr(delayed_shifts, "pass_law", lambda *law: law)
        patch.setattr(
            delayed_shifts.allocation, "compose_passes", lambda laws, share: (share, laws)
        )
        return curve.law()


@pytest.mark.parametrize(
    "shift, before, numbers",
    [
        (27.99, 0.0, True),
        (28.01, 0.0, False),
        (1.0, 27.99, True),
        (1.0, 28.01, False),
        (0.0, 1.0, False),
    ],
)
def test_numbers_of_draws_end_where_ratios_overflow(shift, before, numbers):
    """One of three kinds of intervals is enough; at most 1500 shifts and 1200 points, or 500 and
    600 on coarse curves."""
    more = 1.0 if shift else 0.0
    curve = DelayedShifts(
        0.1, (1, 1, 3), (1.0,) * 3, (more, shift, more), (1.0,) * 3, 1.0, 1, before
    )
    found = fake_law(curve)
    assert (found is not None) == numbers
    if found is not None:
        (resolution, (finer, profiles)), certain = found
        assert resolution == finer == 50 and certain == pytest.approx(before, rel=1e-8)
        assert sum(count for _, count in profiles) == 4 and {law[3] for law, _ in profiles} == {
            1200
        }
        (resolution, (finer, profiles)), _ = fake_law(curve.coarser())
        assert resolution == finer == 12 and {law[3] for law, _ in profiles} == {600}


@pytest.mark.parametrize(
    "shift, before, numbers",
    [(19.99, 0.0, True), (20.01, 0.0, False), (1.0, 19.99, True), (1.0, 20.01, False)],
)
def test_numbers_of_blocks_end_where_ratios_overflow(shift, before, numbers):
    """One block of one interval of two is enough."""
    stds = (math.sqrt(0.5),) * 2
    curve = AllocatedShifts(5, (1, 4), (1.0, 1.0), (shift, 1.0), stds, 2.0, 2, before)
    found = fake_law(curve)
    assert (found is not None) == numbers
    assert curve.known.mu == pytest.approx(math.hypot(before, max(shift, math.sqrt(2))), rel=1e-8)
    if found is not None:
        (share, (((parts, nodes), count),)), certain = found
        assert (share, nodes, count) == (50, 600, 1) and certain == pytest.approx(before, rel=1e-8)
        assert sum(part for part, _ in parts) == pytest.approx(1)
        (share, (((_, nodes), _),)), _ = fake_law(curve.coarser())
        assert (share, nodes) == (20, 250)
    for longest in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(delayed_shifts, "LONGEST", longest)
            many = AllocatedShifts(2, (4,), (1.0,), (1.0,), (3.0,), 1.0, 1)
            assert (fake_law(many) is not None) == (longest == 2)


@pytest.mark.parametrize("weight", [0.5, 20.0, 26.0, 27.99])
@pytest.mark.parametrize("draws", [1, 3])
def test_far_ratios_stay_within_double_precision(weight, draws):
    """They reach 13.5 standard deviations beyond the sum of all shifts, or to a ratio of e^690."""
    curve = DelayedShifts(0.1, (draws,), (1.0,), (weight / draws,), (1.0,), 2.0, 2)
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delayed_shifts, "tilt_product", lambda parts: parts)
        patch.setattr(
            delayed_shifts,
            "mixture_profile",
            lambda *given: asked.append(given) or mixture_profile(*given),
        )
        patch.setattr(
            delayed_shifts, "_on_nodes", lambda profiles, resolution: (resolution, profiles)
        )
        resolution, ((profile, count),) = curve.far_law()
    reach = min(13.5, (690 - weight**2 / 2) / weight)
    assert (resolution, count, profile.ratios.size) == (12, 1, 600)
    assert np.isfinite(profile.ratios).all() and profile.largest <= 690 * (1 + 1e-6)
    shifts, chances = weight * np.arange(draws + 1) / draws, binom.pmf(range(draws + 1), draws, 0.1)
    x = np.linspace(-reach, reach + weight, 600)
    top = np.logaddexp.reduce(np.log(chances) + shifts * (x[-1] - shifts / 2))
    assert math.log(profile.ratios[-1]) == pytest.approx(top, rel=1e-6)
    assert 1e-40 <= profile.removed[-1] <= 1.001 * chances[-1] * norm.sf(reach) + 1.1e-40
    ((*_, lost, points, _, wrong),) = asked
    assert (lost, points, wrong) == (1e-40, 600, draws * 2.0**-50)


@pytest.mark.parametrize(
    "variances, largest, resolution, h",
    [((1.0, 4.0), (9.0, 5.0), 10, math.sqrt(13 / 4) / 10), ((1e-16, 1e-16), (1e-6, 1e-6), 10, 1e-7)]
    + [((1e-10, 1e-10), ends, 10, 900 / 2**18) for ends in ((900.0, 1.0), (1.0, 900.0))],
)
def test_one_grid_for_pairs_of_all_intervals(variances, largest, resolution, h):
    """By the mean variance of a pair, at most 2^18 nodes on either side, and no finer than 1e-7."""
    profiles = [
        (SimpleNamespace(variance=v, largest=top, on_nodes=lambda h: h), n)
        for v, top, n in zip(variances, largest, (1, 3), strict=True)
    ]
    found = delayed_shifts._on_nodes(profiles, resolution)
    assert found == ((pytest.approx(h), 1), (pytest.approx(h), 3))


VALUES = [
    (
        DelayedShifts(0.05, (30,), (0.95,), (1.0,), (2.0,), 1.3, 4),
        2.6244933812479436,
        (0.00244076669854, 0.00189456582225),
        None,
    ),
    (
        DelayedShifts(
            0.2, (5, 4, 6), (0.9, 1.1, 1.0), (1.0, 0.5, 2.0), (1.5, 2.0, 1.2), 1.6, 3, 0.4
        ),
        5.567944757441665,
        (0.321920060028, 0.219838207443),
        0.00550593682621,
    ),
    (
        AllocatedShifts(4, (11,), (0.95,), (1.0,), (1.3,), 1.6, 3),
        1.2883180173951643,
        (0.199569801277, 0.185366517771),
        5.79210696454e-13,
    ),
    (
        AllocatedShifts(5, (6, 8), (0.9, 1.1), (1.0, 0.5), (1.5, 2.0), 1.3, 4, 0.4),
        0.6953027983958271,
        (0.0249199412213, 0.0231379150806),
        None,
    ),
]


@pytest.mark.parametrize("curve, known, near, far", VALUES)
def test_deltas_are_what_they_were(curve, known, near, far):
    """At epsilon .5, and far away at 8, with a Gaussian mechanism: what the code said, so that no
    change passes unnoticed."""
    law, _ = curve.law()
    assert law.deltas(0.5, 0.2) == pytest.approx(near, rel=1e-8)
    if far is not None:
        assert curve.far_law().deltas(8.0, 0.2)[0] == pytest.approx(far, rel=1e-7, abs=0)
    mu = 0.0 if curve.before == 0 else 0.1
    assert replace(curve, mu=mu).known.mu == pytest.approx(known, rel=1e-9)
