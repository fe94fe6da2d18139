"""Sums of independent draws: never above the exact law, at any point, and close to it."""

import math

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis import witnesses
from lastiterate.analysis.witnesses import (
    GridDistribution,
    add,
    law_of_values,
    repeat_draw,
    scale_law,
    tree,
)
from lastiterate.theorems import witnesses as witnesses_of_theorems


def law_of(values, weights):
    return law_of_values(np.array(values, dtype=float), np.array(weights, dtype=float))


def exact_sum(draws):
    """Every value of a sum of independent draws ((values, weights) each) and its probability."""
    values, weights = np.array([0.0]), np.array([1.0])
    for more, chances in draws:
        values = np.add.outer(values, more).ravel()
        weights = np.multiply.outer(weights, chances).ravel()
    return values, weights


def below(law, values, weights, tolerance=2e-3):
    """No half line is likelier than in truth; the mean is lower by at most a small part of the
    range."""
    masses, places = law.points()
    assert math.fsum(masses) == pytest.approx(1, abs=1e-12) and law.rest < 1e-10
    assert law.least - 1e-9 <= values.min() and values.max() <= law.most + 1e-9
    slight = 1e-9 * max(abs(law.least), abs(law.most))  # to which mus are known
    for x in (*np.quantile(values, np.linspace(0, 1, 41)), *places[:: max(1, places.size // 50)]):
        assert masses[places > x + slight].sum() <= weights[values > x].sum() + 1e-12
    lost = (weights * values).sum() - (masses * places).sum()
    assert -1e-12 <= lost <= tolerance * np.ptp(values) + 1e-12


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9, 1.0, -0.4, -1.0])
@pytest.mark.parametrize(
    "values, weights",
    [
        ([0.0, 1.0], [0.7, 0.3]),
        ([1.0, 0.8, 0.5, 0.0], [0.25, 0.25, 0.25, 0.25]),
        ([-0.3, 1.0, 0.41], [0.2, 0.3, 0.5]),
        ([2.0], [1.0]),
    ],
)
def test_repeated_draws(factor, values, weights):
    values, weights = np.array(values), np.array(weights)
    for times in (1, 2, 3, 5, 6):
        found = repeat_draw(lambda sign: law_of_values(sign * values, weights), factor, times)
        below(found, *exact_sum([(factor**i * values, weights) for i in range(times)]))


@pytest.mark.parametrize(
    "times, rate", [(10, 0.3), (10_000, 0.01), (10**6, 0.5), (10**7, 1e-6), (10**9, 0.3)]
)
def test_many_equal_draws_are_binomial(times, rate):
    found = repeat_draw(lambda _: law_of([0, 1], [1 - rate, rate]), 1.0, times)
    masses, places = found.points()
    std = math.sqrt(times * rate * (1 - rate))
    assert places.size <= witnesses.MOST + 1 and found.rest < 1e-9 + 1e-14 * times
    for x in times * rate + std * np.linspace(-6, 6, 13):
        k = math.floor(x)
        assert masses[places > k].sum() <= binom.sf(k, times, rate) * (1 + 1e-9) + 1e-12
    mean = float((masses * places).sum())
    assert times * rate * (1 - 1e-5) - 2e-2 * std <= mean <= times * rate * (1 + 1e-9)
    if times <= 10_000:
        assert mean == pytest.approx(times * rate, rel=1e-9), "whole numbers of draws are exact"


def test_a_long_geometric_sum():
    """Moments of sum of c^i B_i: q / (1 - c), q (1 - q) / (1 - c^2)."""
    for q, c in ((0.01, 0.999), (0.3, 0.99), (0.5, 0.9)):
        masses, places = repeat_draw(lambda _, q=q: law_of([0, 1], [1 - q, q]), c, 50_000).points()
        mean = float((masses * places).sum())
        std = math.sqrt(float((masses * places**2).sum()) - mean**2)
        assert q / (1 - c) * (1 - 1e-2) <= mean <= q / (1 - c)
        assert std == pytest.approx(math.sqrt(q * (1 - q) / (1 - c**2)), rel=1e-2)


def test_trees_of_different_draws():
    rng = np.random.default_rng(0)
    draws = [(rng.uniform(-0.2, 1, 3), rng.dirichlet(np.ones(3))) for _ in range(7)]
    below(tree([law_of_values(*draw) for draw in draws]), *exact_sum(draws))
    assert tree([law_of_values(*draws[0])]) is not None


def test_long_lattices_are_coarsened(monkeypatch):
    monkeypatch.setattr(witnesses, "MOST", 64)
    draws = [(np.array([0.0, w]), np.array([0.5, 0.5])) for w in (1.0, 0.9, 0.77, 0.6, 0.31, 0.2)]
    found = tree([law_of_values(*draw) for draw in draws])
    assert found.masses.size <= 64
    below(found, *exact_sum(draws), tolerance=0.05)


def test_what_is_cut_off_is_kept_in_the_rest():
    law = GridDistribution(0.0, 1.0, np.array([1e-18, 0.5, 0.5, 1e-18]), 0.0, 0.0, 3.0)
    found = witnesses._drop_tails(law)
    assert found.low == 1.0 and found.masses.tolist() == [0.5, 0.5] and found.spacing == 1.0
    short = witnesses._sound(GridDistribution(1.0, 1.0, np.array([0.5, 0.25]), 0.0, -1.0, 3.0))
    assert short.rest == pytest.approx(0.25)
    masses, places = short.points()
    assert masses == pytest.approx([0.25, 0.5, 0.25]) and places.tolist() == [-1.0, 1.0, 2.0]
    total = add(short, short)
    assert total.least == -2 and total.most == 6 and total.rest == pytest.approx(1 - 0.75**2)
    point = law_of([2.0], [1.0])
    assert add(point, point).low == 4.0
    moved = add(point, short)
    assert (
        moved.low == 3.0
        and moved.least == 1.0
        and moved.most == 5.0
        and moved.rest == pytest.approx(0.25)
    )
    assert (
        scale_law(short, 0.5).least == -0.5
        and scale_law(short, 0.5).spacing == 0.5
        and scale_law(short, 0.5).low == 0.5
    )
    gone = scale_law(short, 1e-330)
    assert gone.masses.tolist() == [1.0] and gone.low == 0


def test_transforms_are_rounded_down():
    rng = np.random.default_rng(1)
    for size in (40, 500, 3000):
        one, two = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size + 7))
        exact = np.convolve(one.astype(np.longdouble), two.astype(np.longdouble))
        found = witnesses._convolve(one, two)
        assert (found <= exact).all() and found.sum() > 1 - 1e-11
    small = witnesses._convolve(one[:5], two)
    assert (small <= np.convolve(one[:5].astype(np.longdouble), two)).all()


# Sums over the steps of a run.

CHANCES = [(0.3,), (1.0,), (0.25,) * 4, (0.5, 0.3, 0.2), (0.5, 0.5)]


def draws_of_passes(shifts, chance, sign):
    """(values, weights) of every pass: one of its steps' shifts, or none in a pass cut short."""
    found = []
    for begin in range(0, len(shifts), len(chance)):
        part = sign * np.asarray(shifts[begin : begin + len(chance)])
        weights = np.array(chance[: part.size])
        missed = 1 - math.fsum(weights)
        none = ([0.0], [missed]) if missed > 1e-12 else ([], [])
        found.append((np.append(part, none[0]), np.append(weights, none[1])))
    return found


@pytest.mark.parametrize("scaled", [0.0, 0.3, 1.0, 1.4, 2.0, 2.3])
@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_constant_schedules(scaled, chance, sign):
    """Step t shifts by (1 - scaled)^(steps - 1 - t)."""
    for steps in (1, 2, 3, 5, 8):
        shifts = (1 - scaled) ** np.arange(steps - 1.0, -1, -1)
        found = witnesses_of_theorems._constant_sum(scaled, steps, chance, sign)
        below(found, *exact_sum(draws_of_passes(shifts, chance, sign)))


@pytest.mark.parametrize("chance", CHANCES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_sums_of_varying_schedules(chance, sign):
    rng = np.random.default_rng(5)
    for steps in (1, 2, 3, 5, 8):
        for low in (0.1, -0.7):
            shifts = rng.uniform(low, 1, steps)
            found = witnesses_of_theorems._sum_varying(shifts, np.array(chance), sign)
            below(found, *exact_sum(draws_of_passes(shifts, chance, sign)), tolerance=3e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_many_weights_fall_into_classes(monkeypatch, sign):
    """Each class counts with its least shift."""
    shifts = np.array([0.3, 1.0, 0.1, 0.8, -0.2])
    for classes, lowest in ((2, [-0.2] * 3 + [0.8] * 2), (5, sorted(shifts)), (3, None)):
        monkeypatch.setattr(witnesses_of_theorems, "CLASSES", classes)
        ordered = np.sort(sign * shifts)
        counted = (
            ordered
            if classes == 5
            else np.repeat(
                [part[0] for part in np.array_split(ordered, classes)],
                [len(part) for part in np.array_split(ordered, classes)],
            )
        )
        assert sign < 0 or lowest is None or counted.tolist() == lowest
        found = witnesses_of_theorems._sum_varying(shifts, np.array([0.3]), sign)
        draws = [(np.array([value, 0.0]), np.array([0.3, 0.7])) for value in counted]
        below(found, *exact_sum(draws), tolerance=3e-3)


def test_a_draw_that_may_miss():
    draw = witnesses_of_theorems._draw
    masses, places = draw(np.array([2.0]), np.array([0.25]), -1.0).points()
    assert dict(zip(places, masses, strict=True)) == {-2.0: 0.25, 0.0: 0.75}
    masses, places = draw(np.array([2.0, 1.0]), np.array([0.25, 0.75]), 1.0).points()
    assert {x: m for x, m in zip(places, masses, strict=True) if m} == {1.0: 0.75, 2.0: 0.25}


def test_a_tree_adds_every_draw_once():
    laws = [law_of([0.0, 1.0], [0.5, 0.5]) for _ in range(9)]
    for count in range(1, 10):
        masses, places = tree(laws[:count]).points()
        assert places.max() == count
        assert float((masses * places).sum()) == pytest.approx(count / 2, rel=1e-12)


def test_atoms_of_a_mixture_are_rounded_down(monkeypatch):
    """Neighbours count with the lowest of them; the rest is an atom of its own."""
    law = GridDistribution(1.0, 0.5, np.array([0.1, 0.2, 0.3, 0.25, 0.05]), 0.1, -2.0, 3.0)
    for most, weights, places in (
        (6, [0.1, 0.1, 0.2, 0.3, 0.25, 0.05], [-2.0, 1.0, 1.5, 2.0, 2.5, 3.0]),
        (5, [0.1, 0.3, 0.55, 0.05], [-2.0, 1.0, 2.0, 3.0]),
        (3, [0.1, 0.3, 0.55, 0.05], [-2.0, 1.0, 2.0, 3.0]),
        (2, [0.1, 0.6, 0.3], [-2.0, 1.0, 2.5]),
    ):
        monkeypatch.setattr(witnesses_of_theorems, "MOST_ATOMS", most)
        found = witnesses_of_theorems._pair(law, 2.0, 0.5)
        assert found.weights == pytest.approx(weights, rel=1e-12)
        assert found.mus == pytest.approx([2 * place for place in places], rel=1e-12)
        assert found.opposed == 0.5
    still = GridDistribution(-1.0, 1.0, np.array([0.2, 0.5, 0.3]), 0.0, -1.0, 1.0)
    monkeypatch.setattr(witnesses_of_theorems, "MOST_ATOMS", 10)
    mus = witnesses_of_theorems._pair(still, math.inf, 0.0).mus
    assert mus == (-math.inf, -math.inf, 0.0, math.inf), "no shift stays none without noise"


# Lattices.


def test_two_values_are_exact_and_more_are_rounded_down():
    two = law_of([3.0, -1.0], [0.2, 0.8])
    assert two.low == -1.0 and two.spacing == 4.0 and two.masses.tolist() == [0.8, 0.2]
    assert (two.least, two.most, two.rest, two.width) == (-1.0, 3.0, 0.0, 4.0)
    three = law_of([0.0, 0.5, 1.0], [0.2, 0.3, 0.5])
    assert three.masses.size == witnesses.MOST // 4 and three.width == pytest.approx(1.0)
    assert three.masses[0] == 0.2 and three.masses[-1] == 0.5
    (between,) = np.flatnonzero(three.masses[1:-1]) + 1
    place = between * three.spacing
    assert 0.5 - three.spacing < place <= 0.5 and three.masses[between] == 0.3
    # on a mark, or nearer to it than its own rounding: the mark before
    for slight in (0.0, 5e-10, -5e-10):
        near = law_of([0.0, (100 - slight) / 4095, 1.0], [0.2, 0.3, 0.5])
        assert np.flatnonzero(near.masses[1:-1]) + 1 == [99]
    one = law_of([2.0, 2.0], [0.5, 0.5])
    assert one.spacing == 0 and one.masses.tolist() == [1.0] and one.low == 2.0


def test_probabilities_add_up_to_one():
    masses, places = GridDistribution(0.0, 1.0, np.array([0.5, 0.2]), 0.1, -1.0, 2.0).points()
    assert masses == pytest.approx([1 / 8, 5 / 8, 2 / 8]) and places.tolist() == [-1.0, 0.0, 1.0]


def test_scaled_laws_stay_below():
    short = GridDistribution(1.0, 1.0, np.array([0.5, 0.25]), 0.25, -1.0, 3.0)
    half = scale_law(short, 0.5)
    assert (half.low, half.spacing, half.least, half.most, half.rest) == (0.5, 0.5, -0.5, 1.5, 0.25)
    gone = scale_law(short, 0.0)
    assert (gone.low, gone.spacing, gone.least, gone.most, gone.rest) == (0, 0, 0, 0, 0)
    point = scale_law(law_of([2.0], [1.0]), 0.5)
    assert (point.low, point.least, point.most) == (1.0, 1.0, 1.0)
    unsure = GridDistribution(1.0, 0.0, np.array([0.5]), 0.5, -1.0, 3.0)
    lower = scale_law(unsure, 2.0)
    assert (lower.low, lower.least, lower.most) == (-2.0, -2.0, 6.0)
    assert lower.masses.tolist() == [1.0]
    below_all = scale_law(GridDistribution(-1.0, 0.0, np.array([1.0]), 0.0, 2.0, -3.0), 2.0)
    assert (below_all.low, below_all.least, below_all.most) == (-2.0, -2.0, -2.0)


def test_tails_are_cut_where_they_are_small(monkeypatch):
    monkeypatch.setattr(witnesses, "CUT", 0.1)
    masses = np.array([0.05, 0.4, 0.45, 0.06, 0.03])
    found = witnesses._drop_tails(GridDistribution(1.0, 0.5, masses, 0.0, 0.0, 9.0))
    assert found.low == 1.5 and found.masses == pytest.approx([0.4, 0.54], rel=1e-14)
    masses = np.array([0.05, 0.4, 0.2, 0.25, 0.06, 0.03])
    found = witnesses._drop_tails(GridDistribution(1.0, 0.5, masses, 0.0, 0.0, 9.0))
    assert found.low == 1.5 and found.masses == pytest.approx([0.4, 0.2, 0.34], rel=1e-14)
    for masses, low, kept in (
        ([0.0, 0.0, 1.0], 1.5, [0.0, 1.0]),
        ([1.0, 0.0, 0.0], 1.0, [1.0, 0.0]),
        ([0.0, 1.0, 0.0, 0.0], 1.5, [1.0, 0.0]),
        ([0.2, 0.6, 0.2], 1.0, [0.2, 0.6, 0.2]),
    ):
        found = witnesses._drop_tails(GridDistribution(1.0, 0.5, np.array(masses), 0.0, 0.0, 9.0))
        assert found.low == low and found.masses.tolist() == kept


def test_sums_of_lattices_and_points():
    one = GridDistribution(1.0, 1.0, np.array([0.5, 0.25]), 0.25, -1.0, 3.0)
    two = GridDistribution(10.0, 1.0, np.array([0.75, 0.125]), 0.125, 9.0, 12.0)
    found = add(one, two)
    assert (found.low, found.spacing, found.least, found.most) == (11.0, 1.0, 8.0, 15.0)
    assert found.masses == pytest.approx([0.375, 0.25, 0.03125], rel=1e-12)
    assert found.rest == pytest.approx(1 - 0.75 * 0.875, rel=1e-12)
    point = GridDistribution(4.0, 0.0, np.array([0.5]), 0.5, 3.0, 7.0)
    for moved in (add(one, point), add(point, one)):
        assert (moved.low, moved.spacing, moved.least, moved.most) == (5.0, 1.0, 2.0, 10.0)
        assert moved.masses.tolist() == [0.25, 0.125] and moved.rest == pytest.approx(0.625)


def test_different_spacings_meet_on_one(monkeypatch):
    monkeypatch.setattr(witnesses, "MOST", 19)
    one, two = law_of([0.0, 3.0], [0.5, 0.5]), law_of([0.0, 5.0], [0.25, 0.75])
    found = add(one, two)
    assert found.spacing == pytest.approx(8.0 / 16) and found.masses.size <= 19
    below(found, *exact_sum([([0.0, 3.0], [0.5, 0.5]), ([0.0, 5.0], [0.25, 0.75])]), 0.15)
    long = GridDistribution(0.0, 1.0, np.full(12, 1 / 12), 0.0, 0.0, 11.0)
    coarse = add(long, long)
    assert coarse.spacing == pytest.approx(22 / 16) and coarse.masses.size <= 19
    values = [(np.arange(12.0), np.full(12, 1 / 12))] * 2
    below(coarse, *exact_sum(values), tolerance=0.15)
    fits = GridDistribution(0.0, 1.0, np.full(10, 0.1), 0.0, 0.0, 9.0)
    assert add(fits, fits).spacing == 1.0 and add(fits, fits).masses.size == 19
    longer = GridDistribution(0.0, 1.0, np.full(11, 1 / 11), 0.0, 0.0, 10.0)
    assert add(fits, longer).spacing == pytest.approx(19 / 16)


def test_a_coarser_lattice_is_rounded_down():
    law = GridDistribution(2.0, 1.0, np.array([0.1, 0.2, 0.3, 0.4]), 0.0, 2.0, 5.0)
    found = witnesses._coarser(law, 2.0)
    assert found.low == 2.0 and found.spacing == 2.0
    # a position on a mark may be rounded to the one before it, never up
    assert found.masses == pytest.approx([0.1 + 0.2 + 0.3, 0.4], rel=1e-12)
    assert witnesses._coarser(law, 1.0) is law


@pytest.mark.parametrize("factor", [-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0])
def test_powers_and_their_sums(factor):
    sign, rate = witnesses.log_with_sign(1 - factor)
    assert sign == (1 if factor > 0 else -1)
    counts = np.array([0, 1, 2, 5])
    with np.errstate(invalid="ignore"):
        powers = witnesses.power(sign, rate, counts)
        sums = witnesses.geometric(sign, rate, counts)
    assert powers == pytest.approx([factor**k for k in counts], rel=1e-14)
    assert sums == pytest.approx([sum(factor**j for j in range(k)) for k in counts], rel=1e-14)


# Gradients of the record, and curvature.


@pytest.mark.parametrize(
    ("facts", "adjacency", "ahead", "behind"),
    [
        ({"lipschitz": 2.0}, "zero-out", 2.0, 0.0),
        ({"lipschitz": 2.0}, "replace-one", 2.0, 2.0),
        ({"sensitivity": 1.5}, "zero-out", 1.5, 0.0),
        ({"sensitivity": 1.5}, "replace-one", 1.5, 0.0),
        ({"sensitivity": 1.5, "lipschitz": 1.0}, "replace-one", 1.0, 0.5),
        ({"sensitivity": 1.5, "lipschitz": 1.0}, "zero-out", 1.0, 0.0),
        ({"sensitivity": 0.5, "lipschitz": 1.0}, "zero-out", 0.5, 0.0),
        ({"sensitivity": 0.5, "lipschitz": 1.0}, "replace-one", 0.5, 0.0),
        ({"sensitivity": 0.0}, "replace-one", 0.0, 0.0),
    ],
)
def test_the_longest_gradients(facts, adjacency, ahead, behind):
    loss = li.KnownConstants(li.LossFacts(**facts))
    run = li.Run(n=4, steps=2, step_size=0.1, loss=loss, adjacency=adjacency)
    found = witnesses.largest_gradient(run)
    assert (found.ahead, found.behind) == (ahead, behind)
    assert found.opposed == (behind / ahead if ahead else 0.0)


def test_curvature_inside_and_outside_of_records():
    def curvature(loss):
        return witnesses.curvature(li.Run(n=4, steps=2, step_size=0.1, loss=loss))

    assert curvature(li.Logistic(ridge=0.3)) == (0.3, 0.0)
    assert curvature(li.KnownConstants(li.LossFacts(strong=0.5))) == (0.0, 0.5)
    assert curvature(li.KnownConstants()) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("batching", "unequal"),
    [
        (li.FullBatch(), False),
        (li.Cyclic(2), False),
        (li.Cyclic(3), True),
        (li.FixedSize(3), False),
        (li.BallsInBins(2), True),
        (li.Poisson(0.5), True),
    ],
)
def test_batches_that_differ_in_size(batching, unequal):
    run = li.Run(n=4, steps=2, step_size=0.1, batching=batching)
    assert witnesses.unequal_batches(run) == unequal
