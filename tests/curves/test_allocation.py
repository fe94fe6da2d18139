"""Random allocation against quadrature, importance sampling, published numbers, and Poisson; both
orders."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from lastiterate.curves import allocation
from lastiterate.curves.allocation import (
    AllocationPld,
    Composed,
    compose_passes,
    on_losses,
    pass_ratio,
)
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.curve import Grouped
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.ratio_grid import RatioGrid
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.sampled_batches import Pld
from lastiterate.errors import InputError
from oracles.allocated import deltas


def curve_of(blocks, z, passes, **more):
    return AllocationPld(blocks, (z,), (passes,), **more)


CASES = [
    (AllocationPld(2, (1.0,), (1,)), [(1.0, 2, 2)]),
    (AllocationPld(3, (0.7,), (1,)), [(0.7, 3, 3)]),
    (AllocationPld(3, (2.5,), (1,)), [(2.5, 3, 3)]),
    (AllocationPld(2, (0.8,), (2,)), [(0.8, 2, 2)] * 2),
    (AllocationPld(2, (0.8, 2.0), (1, 1)), [(0.8, 2, 2), (2.0, 2, 2)]),
    (AllocationPld(3, (), (), 0.9, 1), [(0.9, 3, 1)]),
    (AllocationPld(3, (), (), 1.2, 2), [(1.2, 3, 2)]),
    (AllocationPld(2, (1.5,), (1,), 1.0, 1), [(1.5, 2, 2), (1.0, 2, 1)]),
]


@pytest.mark.parametrize("curve, passes", CASES)
def test_both_orders_lie_just_above_exact_quadrature(curve, passes):
    for epsilon in (0.0, 0.2, 0.7, 1.5):
        three = (
            deltas(epsilon, passes),
            curve.directions(epsilon),
            curve.coarser().directions(epsilon),
        )
        for exact, found, rough in zip(*three, strict=True):
            assert exact * (1 - 1e-9) - 1e-12 <= found <= exact * 1.003 + 1e-9, epsilon
            assert exact - 1e-12 <= rough <= exact * 1.05 + 1e-8


@pytest.mark.parametrize("z, passes", [(1.0, 1), (0.5, 3), (10.0, 100), (30.0, 1000)])
def test_one_block_is_the_gaussian_mechanism(z, passes):
    exact = Gdp(math.sqrt(passes) / z)
    laws = ((pass_ratio(1, z, 1), passes),)
    for epsilon in (0.0, 0.5, 2.0):
        for found in compose_passes(laws).deltas(epsilon, 0.0):
            assert exact.delta(epsilon) * (1 - 1e-9) <= found <= exact.delta(epsilon) * 1.003 + 1e-9
        assert curve_of(1, z, passes).delta(epsilon) <= exact.delta(epsilon) * (1 + 1e-9), (
            "known blocks bound it too"
        )


def log_ratio(x, b):
    """log of the mean of exp(b x - b^2/2) over the last axis."""
    return np.log(np.exp(b * x - b * b / 2).mean(-1))


def importance(epsilon, blocks, passes, z, size=100_000):
    """Estimates of both deltas, each with its standard error: half of the passes move the record's
    block three times as far (remove); every block moves a little the other way (add)."""
    rng, a, c = np.random.default_rng(5), 1 / z, 0.65 / z
    noise = rng.normal(size=(size, passes, blocks))
    place = rng.integers(blocks, size=(size, passes, 1))
    moved = np.where(rng.random((size, passes, 1)) < 0.5, a, 3 * a)
    x = noise.copy()
    np.put_along_axis(x, place, np.take_along_axis(x, place, -1) + moved, -1)
    loss = log_ratio(x, a)
    weight = np.exp((loss - np.logaddexp(loss, log_ratio(x, 3 * a)) + math.log(2)).sum(-1))
    removed = weight * np.maximum(-np.expm1(epsilon - loss.sum(-1)), 0.0)
    x = noise - c
    weight = np.exp((c * x + c * c / 2).sum((-1, -2)))
    added = weight * np.maximum(-np.expm1(epsilon + log_ratio(x, a).sum(-1)), 0.0)
    return [(terms.mean(), terms.std() / math.sqrt(size)) for terms in (removed, added)]


@pytest.mark.parametrize("epsilon, passes, z", [(1.0, 2, 1.4), (0.5, 3, 2.5)])
def test_twenty_blocks_by_importance_sampling(epsilon, passes, z):
    found = curve_of(20, z, passes).directions(epsilon)
    for upper, (mean, error) in zip(found, importance(epsilon, 20, passes, z), strict=True):
        assert 1e-6 < upper < 1e-4 and error < 0.1 * upper, "the draws decide"
        assert mean - 3.5 * error <= upper <= (mean + 3.5 * error) * 1.01


@pytest.mark.parametrize(
    "epsilon, blocks, passes, noise, poisson",
    [
        (1, 20, 50, 5.941, 5.989),
        (1, 20, 1000, 26.40, math.inf),
        (1, 200, 20, 1.368, 1.388),
        (3, 20, 5, 1.000, 1.079),
        (8, 20, 1, 0.464, 0.557),
        (8, 200, 50, 0.648, 0.655),
    ],
)
def test_noise_that_a_budget_needs(epsilon, blocks, passes, noise, poisson):
    """At delta = 1e-5: never above a prototype's numbers by more than 0.2 %, nor above those of
    Poisson batches."""

    def holds(z):
        return curve_of(blocks, z, passes).delta(epsilon) <= 1e-5

    assert holds(min(noise * 1.002, poisson * 1.001)) and not holds(0.98 * noise)


@pytest.mark.parametrize(
    "epsilon, blocks, passes, z", [(0.3, 50, 100, 18.39), (4.0, 10, 10, 1.3864)]
)
def test_less_noise_than_poisson_sampling(epsilon, blocks, passes, z):
    delta = 1e-6
    assert curve_of(blocks, z, passes).delta(epsilon) <= delta
    assert Pld(1 / blocks, (z / 1.001,), (blocks * passes,)).delta(epsilon) > delta


def test_two_independent_compositions_agree():
    """The transform of the composition against convolutions one by one, and a Gaussian mechanism
    against a mixture."""
    law, grid = pass_ratio(5, 1.0, 5), 0.01
    one = on_losses(law, grid)
    for order, masses, lost in ((0, one.p, one.infinite), (1, one.q[::-1], one.zero)):
        mass = np.convolve(np.convolve(masses, masses), masses)
        first = one.low if order == 0 else -(one.low + masses.size - 1)
        loss = grid * (3 * first + np.arange(mass.size))
        for epsilon in (0.0, 1.0, 3.0):
            exact = float((mass * np.maximum(-np.expm1(epsilon - loss), 0)).sum()) + 3 * lost
            assert (
                exact * (1 - 1e-4)
                <= compose_passes(((law, 3),)).deltas(epsilon, 0.0)[order]
                <= exact * (1 + 1e-3) + 1e-12
            )
    mu = 0.7
    for epsilon in (0.0, 0.4, 1.5):
        found = curve_of(5, 1.0, 1, mu=mu).directions(epsilon)
        both = zip(found, ((one.p, -one.logs), (one.q, one.logs)), strict=True)
        for delta, (masses, losses) in both:
            exact = sum(m * gaussian(epsilon + x, mu) for m, x in zip(masses, losses, strict=True))
            assert delta == pytest.approx(exact, rel=1e-3)


def gaussian(epsilon, mu):
    """delta of mu-GDP at any real epsilon."""
    if epsilon >= 0:
        return Gdp(mu).delta(epsilon)
    return -math.expm1(epsilon) + math.exp(epsilon) * Gdp(mu).delta(-epsilon)


def test_losses_round_with_their_means_and_in_both_orders():
    law = pass_ratio(5, 1.7, 5, 300)
    for grid in (0.01, 0.1):
        found = on_losses(law, grid)
        assert (found.p.sum(), found.q.sum()) == pytest.approx((1, 1), abs=1e-11)
        for epsilon in (0.0, 0.013, 0.4):
            remove = (
                float((law.mass * np.maximum(law.value - math.exp(epsilon), 0)).sum()) + law.lost
            )
            add = float((law.mass * np.maximum(1 - math.exp(epsilon) * law.value, 0)).sum())
            for exact, delta in zip((remove, add), found.deltas(epsilon), strict=True):
                assert exact * (1 - 1e-12) <= delta <= exact * (1 + 1000 * grid**2) + 1e-12


def test_every_allowance_counts():
    law = pass_ratio(5, 1.0, 5, 300)
    few, many = compose_passes(((law, 2),)), compose_passes(((law, 200),))
    assert (
        0 < 99 * few.mass_error < many.mass_error < 1e-6
        and 0 < 99 * few.loss_error < many.loss_error < 1e-6
    )
    assert many.mass_error > 200 * law.mass_error and many.loss_error > 200 * law.ratio_error
    exact = few.law.deltas(1.0)
    for more in (Composed(few.law, 1e-3, 0.0), Composed(few.law, 0.0, 1e-3)):
        assert all(
            found > plain * (1 + 9e-4)
            for found, plain in zip(more.deltas(1.0, 0.0), exact, strict=True)
        )
    assert Composed(few.law, 0.6, 0.0).deltas(1.0, 0.0) == (1.0, 1.0)
    lossy = replace(law, lost=1e-3, mass=np.append(0.0, law.mass[1:]) + 1e-3 * (law.value == 0))
    removed, added = compose_passes(((lossy, 3),)).deltas(30.0, 0.0)
    assert 3e-3 <= removed < 3.1e-3 and 3e-3 <= added < 3.1e-3


def test_more_noise_fewer_passes_and_more_blocks_are_more_private():
    def delta(blocks, z, passes, **more):
        return curve_of(blocks, z, passes, **more).delta(0.5)

    noises = [delta(20, z, 10) for z in (1.0, 1.5, 1.501, 3.0, 10.0)]
    assert noises == sorted(noises, reverse=True)
    assert delta(20, 2.0, 10) < delta(20, 2.0, 11) < delta(20, 2.0, 20) and delta(
        30, 2.0, 10
    ) < delta(20, 2.0, 10)
    assert delta(20, 2.0, 10) < delta(20, 2.0, 10, mu=0.05) < delta(20, 2.0, 10, mu=0.3)
    unfinished = [delta(20, 2.0, 10, last_multiplier=2.0, last_reached=r) for r in (1, 7, 19)]
    assert [delta(20, 2.0, 10), *unfinished, delta(20, 2.0, 11)] == sorted(
        [delta(20, 2.0, 10), *unfinished, delta(20, 2.0, 11)]
    )


def test_different_noises_between_passes():
    mixed = AllocationPld(20, (1.5, 3.0), (5, 20)).epsilon(1e-6)
    assert curve_of(20, 3.0, 25).epsilon(1e-6) < mixed < curve_of(20, 1.5, 25).epsilon(1e-6)
    many = AllocationPld(20, tuple(np.linspace(1.5, 3.0, 80).tolist()), (1,) * 80)
    few = AllocationPld(20, (1.5, 2.25, 3.0), (20, 40, 20)).epsilon(1e-6)
    assert 0.95 * few < many.epsilon(1e-6) < 1.05 * few and many.coarser().epsilon(
        1e-6
    ) > many.epsilon(1e-6)


@pytest.mark.parametrize(
    "blocks, z, passes, epsilon",
    [
        (10_000, 1.0, 1000, 1.837),
        (1, 1.0, 1, 4.887),
        (20, 1e3, 10**6, 0.946),
        (1000, 8.0, 20, 0.06243),
        (20, 1e5, 10, 1.2e-5),
        (1000, 0.3, 200, 262.1),
    ],
)
def test_extreme_values(blocks, z, passes, epsilon):
    found = curve_of(blocks, z, passes)
    assert found.epsilon(1e-6) <= epsilon * 1.001 and found.delta(found.epsilon(1e-6)) <= 1e-6
    assert found.epsilon(1e-6) > 0.97 * epsilon or z == 1e5


@pytest.mark.parametrize("z, passes", [(1e-3, 3), (0.0, 1), (1e9, 1), (5.0, 10**8)])
def test_beyond_the_numbers_blocks_count_as_known(z, passes):
    found = curve_of(20, z, passes)
    assert found.directions(1.0) == (found.known.delta(1.0),) * 2
    assert found.epsilon(1e-6) == found.known.epsilon(1e-6)
    assert replace(found, last_multiplier=0.0, last_reached=3).epsilon(1e-6) == math.inf


def test_composition_groups_and_renyi():
    curve = curve_of(20, 2.0, 10)
    both = compose(curve, Gdp(0.5))
    assert both == compose(Gdp(0.5), curve) and both.mu == pytest.approx(0.5)
    assert curve.epsilon(1e-5) < both.epsilon(1e-5) < curve.epsilon(5e-6) + Gdp(0.5).epsilon(5e-6)
    other = compose(curve, GdpMixture((0.5, 0.5), (0.1, 0.2)))
    assert isinstance(other, Rdp) and other.rdp(4.0) >= curve.rdp(4.0)
    assert Grouped(curve, 2) in curve.group(2).curves and curve.group(2).epsilon(
        1e-6
    ) > 2 * curve.epsilon(1e-6)
    # integer orders in closed form: E[Y^2] = 1 + (e^(1/z^2) - 1) / l, and the other order hardly
    # differs
    exact = 10 * math.log1p(math.expm1(0.25) / 20)
    assert exact <= curve.rdp(2.0) <= 1.01 * exact
    assert curve.rdp(2.0) < curve.rdp(3.0) <= curve.known.rdp(3.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("blocks, reached", [(2, 1), (3, 2), (3031, 2), (10**6, 1)])
@pytest.mark.parametrize("z", [0.04, 0.0401, 0.05, 0.1, 1e6])
def test_ratios_on_grids_without_digits_are_charged_as_known_blocks(blocks, reached, z, coarse):
    """One order of such a pass hardly varies, and the grid that follows it is too narrow to be counted on."""
    curve = AllocationPld(blocks, (), (), z, reached, coarse=coarse)
    for epsilon in (0.0, 1e-4, 1.0, 300.0):
        removed, added = curve.directions(epsilon)
        assert 0 <= max(removed, added) <= curve.known.delta(epsilon)
    assert 0 <= curve.epsilon(1e-6) <= curve.known.epsilon(1e-6)


def test_round_trips_and_refusals():
    for curve in (
        AllocationPld(20, (1.5, 3.0), (5, 20), 2.0, 7, mu=0.3),
        curve_of(20, 2.0, 10).group(2),
    ):
        again = curve_from_dict(json.loads(json.dumps(curve.to_dict())))
        assert again == curve and again.epsilon(1e-5) == curve.epsilon(1e-5)
    assert AllocationPld(20, (), (), mu=1.0).epsilon(1e-6) == Gdp(1.0 * (1 + 1e-12)).epsilon(1e-6)
    for bad in (
        dict(blocks=0),
        dict(counts=(0,)),
        dict(multipliers=(1.0, 2.0)),
        dict(mu=-1.0),
        dict(last_reached=20),
        dict(multipliers=(math.nan,)),
        dict(last_multiplier=-1.0),
    ):
        with pytest.raises(InputError):
            AllocationPld(**dict(blocks=20, multipliers=(1.0,), counts=(3,)) | bad)
    for bad in (0.0, 1.0):
        with pytest.raises(InputError):
            curve_of(20, 1.0, 3).epsilon(bad)
    with pytest.raises(InputError):
        curve_of(20, 1.0, 3).delta(-1.0)


def grids_of(curve, far):
    """(noise multiplier, blocks reached, nodes, passes) of every likelihood ratio that is used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation, "pass_ratio", lambda *asked, far: (*asked, far))
        found = curve._laws(far=far)
    assert all(law[0] == curve.blocks and law[4] == far for law, _ in found)
    return [(*law[1:4], count) for law, count in found]


def test_passes_and_the_grids_of_their_ratios():
    """Every kind of pass is counted once, also where it is taken fewer times than there are blocks;
    nodes and kinds are what the code said."""
    few = AllocationPld(5, (0.7, 1.0, 1.5), (2, 9, 5), 0.9, 3)
    kinds = [(0.7, 5, 2), (1.0, 5, 9), (1.5, 5, 5), (0.9, 3, 1)]
    assert list(few.passes) == kinds and few.blocks == 5
    more = AllocationPld(5, (0.7, 1.0, 1.5, 2.0), (2, 9, 5, 1), 0.9, 3)
    for curve, far, nodes in (
        (few, False, 1000),
        (few, True, 400),
        (few.coarser(), False, 300),
        (few.coarser(), True, 300),
        (more, False, 400),
        (AllocationPld(5, (), (), 0.9, 3), False, 1000),
    ):
        expected = [(z, reached, nodes, n) for z, reached, n in curve.passes]
        assert grids_of(curve, far) == expected
    noises = tuple(np.geomspace(1.0, 3.0, 200).tolist())
    many = AllocationPld(2, noises, (1,) * 200)
    for curve, far, levels in (
        (many, False, 64),
        (many, True, 8),
        (many.coarser(), False, 8),
        (many.coarser(), True, 8),
    ):
        found = grids_of(curve, far)
        assert len(found) == levels and sum(count for *_, count in found) == 200
        for threshold in noises:  # at least as many passes have no more noise than any
            least = sum(n for z, *_, n in found if z <= threshold * (1 + 1e-9))
            assert least >= sum(z <= threshold for z in noises)
    plain = AllocationPld(3, (1.0,), (2,))
    assert plain == AllocationPld(3, (1.0,), (2,), 0.0, 0) and plain.passes == ((1.0, 3, 2),)


def test_known_blocks_add_up_and_numbers_end_where_they_are_said_to():
    curve = AllocationPld(5, (0.7, 2.0), (2, 3), 0.5, 3, mu=0.6)
    exact = math.sqrt(2 / 0.49 + 3 / 4 + 4 + 0.36)
    assert exact <= curve.known.mu <= exact * (1 + 1e-11)
    assert AllocationPld(5, (0.0, 1.0), (1, 1)).known.mu == math.inf
    for z, numbers in ((0.0399, False), (0.04, True), (1e6, True), (1.01e6, False)):
        assert (curve_of(1, z, 1).law() is not None) == numbers
    assert AllocationPld(2, (0.01, 1.0), (1, 1)).law() is None, "one pass has no numbers"
    assert AllocationPld(2, (1.0,), (1,), 1e7, 1).law() is None
    assert AllocationPld(2, (), ()).law() is None
    for longest, numbers in ((11, True), (10, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(allocation, "LONGEST", longest)
            assert (AllocationPld(2, (1.0, 2.0), (4, 6), 1.0, 1).law() is not None) == numbers
    assert allocation.LONGEST == 10**7


@pytest.mark.parametrize(
    "curve, near, far",
    [
        (
            curve_of(2, 1.0, 1),
            (0.10604764742996525, 0.09780535942282541),
            (5.498850305055958e-11, 2.1146360049208678e-16),
        ),
        (
            AllocationPld(3, (0.7,), (4,), 1.2, 2, mu=0.3),
            (0.587930172871884, 0.5794650238742416),
            (0.02482522271110734, 0.008267788934655207),
        ),
        (
            AllocationPld(3, (0.7,), (4,), 1.2, 2, mu=0.3, coarse=True),
            (0.5881442668917993, 0.5796819992022907),
            (0.02485699436707258, 0.00827789705091713),
        ),
        (
            AllocationPld(20, (0.8, 1.3), (5, 7), coarse=True),
            (0.20317069149725558, 0.19193646805569747),
            (2.058190049579971e-06, 2.5625571863118634e-10),
        ),
        (
            AllocationPld(5, (), (), 0.5, 3),
            (0.20789988285154837, 0.027725505809452797),
            (0.0005840973374262162, None),
        ),
    ],
)
def test_deltas_are_what_they_were(curve, near, far):
    """At epsilon .7, and far away at 6: what the code said, so that no change passes unnoticed."""
    assert curve.law()[0].deltas(0.7, curve.mu) == pytest.approx(near, rel=1e-9)
    for found, expected in zip(curve.far_law().deltas(6.0, curve.mu), far, strict=True):
        assert expected is None or found == pytest.approx(expected, rel=1e-8, abs=0)


def loss_variances(law):
    """Of log(dP/dQ) under P and Q."""
    kept = law.value > 0
    losses, q = np.log(law.value[kept]), law.mass[kept]
    return [
        np.average((losses - np.average(losses, weights=w)) ** 2, weights=w)
        for w in (q * law.value[kept], q)
    ]


def test_one_grid_for_passes_of_two_kinds():
    """Its interval, and the sums of all errors; by the narrower of both orders."""
    laws = ((pass_ratio(5, 1.0, 5, 300), 3), (pass_ratio(5, 0.6, 2, 400), 7))
    parts, mass_error, loss_error = allocation._on_one_grid(laws, 10.0)
    variances = [sum(n * loss_variances(law)[order] for law, n in laws) / 10 for order in (0, 1)]
    assert max(variances) > 1.5 * min(variances)
    grid = math.sqrt(min(variances)) / 10
    assert [part.h for part, _ in parts] == pytest.approx([grid] * 2, rel=1e-9)
    assert [count for _, count in parts] == [3, 7]
    unit, farthest = 2.0**-53, [np.abs(part.logs).max() + grid for part, _ in parts]
    assert max(farthest) > 1.5 * min(farthest)
    masses = sum(
        n * (law.mass_error + law.ratio_error + 2 * law.value.size * unit) for law, n in laws
    )
    assert mass_error == pytest.approx(masses, rel=1e-9, abs=0)
    least = sum(n * (law.ratio_error + (8 + 2 * max(farthest)) * unit) for law, n in laws)
    last = max(abs(part.low) + part.q.size for part, _ in parts) * grid
    wanted = sum(n * (law.ratio_error + (8 + 2 * last) * unit) for law, n in laws)
    assert least <= loss_error and loss_error == pytest.approx(wanted, rel=1e-9, abs=0)


def grid_of(values, masses):
    return RatioGrid(np.array(values), np.array(masses), 0.0, 0.0, 0.0)


@pytest.mark.parametrize("values", [[0.1, 1.1], [0.9, 10.0]])
def test_one_grid_follows_the_narrower_order(values):
    """A ratio that is rare under P, and one that is rare under Q."""
    law = grid_of(values, [0.9, 0.1] if values[1] > 2 else [0.1, 0.9])
    (part, _), *_ = allocation._on_one_grid(((law, 2),), 10.0)[0]
    variances = loss_variances(law)
    assert (variances[0] < variances[1]) == (values[1] < 2)
    assert part.h == pytest.approx(math.sqrt(min(variances)) / 10, rel=1e-9)


@pytest.mark.parametrize(
    "wrong", [{"blocks": 0}, {"last_reached": 3}, {"last_reached": -1}, {"last_multiplier": -0.1}]
)
def test_passes_that_end_within_their_blocks(wrong):
    good = {"blocks": 3, "multipliers": (), "counts": (), "last_multiplier": 1.0}
    assert AllocationPld(**good, last_reached=2).passes == ((1.0, 2, 1),)
    with pytest.raises(InputError):
        AllocationPld(**good | wrong)


def test_far_grids_are_widened_until_the_widest_ratio_fits():
    wide = grid_of([0.0, 1e-100, 0.1, 1.0, 1e100], [0.25, 1e-20, 1e-20, 0.75, 1e-120])
    narrow = grid_of([1 - 1e-9, 1.0, 1 + 1e-9], [0.25, 0.5, 0.25])
    for laws in (((wide, 1), (narrow, 9)), ((narrow, 9), (wide, 1))):
        with pytest.raises(ValueError):
            allocation._on_one_grid(laws, 20.0)
        parts, *_ = allocation._on_one_grid(laws, 20.0, widen=True)
        for part, _ in parts:
            assert part.h == pytest.approx(math.log(1e200) / 2**20, rel=1e-8)


def test_ratios_are_rounded_to_the_two_nodes_around_them():
    law = replace(grid_of([0.0, 0.5, 1.2, 3.0], [0.1, 0.3, 0.4, 0.2]), lost=0.01)
    found, low, high = on_losses(law, 0.4), -2, 3
    q = np.zeros(high - low + 1)
    for value, mass in ((0.5, 0.3), (1.2, 0.4), (3.0, 0.2)):
        below = math.floor(math.log(value) / 0.4)
        left, right = math.exp(0.4 * below), math.exp(0.4 * (below + 1))
        q[below - low] += mass * (right - value) / (right - left)
        q[below + 1 - low] += mass * (value - left) / (right - left)
    assert (found.h, found.low, found.q.size) == (0.4, low, q.size)
    assert found.q == pytest.approx(q, rel=1e-12)
    assert found.p == pytest.approx(q * np.exp(0.4 * np.arange(low, high + 1)), rel=1e-12)
    assert (found.zero, found.infinite) == (0.1, 0.01)


def test_ratios_at_nodes_leave_no_negative_mass():
    """Some are rounded to just beyond the upper one of the nodes around them."""
    for grid in (0.01, 0.003):
        values = np.nextafter(np.exp(grid * np.arange(-4000, 4000, 7)), math.inf)
        found = on_losses(grid_of(values, np.full(values.size, 1 / values.size)), grid)
        assert found.q.min() >= 0 and found.q.sum() == pytest.approx(1, rel=1e-12)


def test_grids_that_are_too_fine_are_refused():
    near = grid_of([1.0, 1 + 5e-14], [0.5, 0.5])
    assert on_losses(near, 1.01e-13).q.size == 2
    wide = grid_of([0.0, math.exp(-20), 1.0, math.exp(44)], [0.25] * 4)
    assert on_losses(wide, 2.0**-14 * (1 + 1e-9)).q.size <= 2**20 + 2
    for law, grid in ((near, 0.99e-13), (wide, 2.0**-14 * (1 - 1e-6)), (wide, 1e-300)):
        with pytest.raises(ValueError, match="too many nodes"):
            on_losses(law, grid)


def test_deltas_with_errors_stay_probabilities():
    law = pass_ratio(1, 0.1, 1, 300)
    composed = compose_passes(((law, 1),))
    for error in (0.4, 0.499999):
        assert Composed(composed.law, error, 0.0).deltas(0.0, 0.0) == (1.0, 1.0)
    lone = compose_passes(((pass_ratio(1, 3.0, 1, 300), 1),)).law
    assert Composed(lone, 0.5, 0.0).deltas(0.0, 0.0) == (1.0, 1.0)
    plain = lone.deltas(0.0)
    for error in (0.25, 0.499999):
        wanted = [delta / (1 - error) for delta in plain]
        assert Composed(lone, error, 0.0).deltas(0.0, 0.0) == pytest.approx(wanted, rel=1e-12)
