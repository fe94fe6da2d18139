"""Batches of a fixed size drawn afresh: exact mixtures over all subsets, both orders, one step and
two."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.composition import compose, curve_from_dict
from lastiterate.curves.gaussian import Gdp, delta_of_draw
from lastiterate.curves.ratio_law import Ratio, product
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld, _hull_slopes, one_step
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, match
from tiers import size as tier

EPSILONS = (0.0, 0.05, 0.3, 1.0)


def sums(gradients, size):
    """Means of the released sum, one for each subset."""
    return np.array([sum(chosen) for chosen in itertools.combinations(gradients, size)])


def density(means, std, grid):
    bells = [np.exp(-((grid - m) ** 2) / (2 * std * std)) for m in means]
    return np.mean(bells, axis=0) / (std * math.sqrt(2 * math.pi))


def orders(p, q, width, epsilon):
    return [np.maximum(a - math.exp(epsilon) * b, 0).sum() * width for a, b in ((p, q), (q, p))]


@pytest.mark.parametrize("replaced", [False, True])
def test_one_and_two_steps_lie_below_the_pair(replaced):
    """Gradients in [-1, 1]; the last record is removed or replaced; the same batch law twice, both
    sums released."""
    rng, near = np.random.default_rng(21), 0.0
    for trial in range(tier(50, 1000, "SUBSETS")):
        n = int(rng.integers(2, 7))
        size, std = int(rng.integers(1, n)), float(rng.uniform(0.5, 4))
        others = rng.uniform(-1, 1, n - 1) if trial % 3 else np.full(n - 1, -1.0)
        unit = 2.0 if replaced else 1.0
        one, two = sums([*others, 1.0], size), sums([*others, -1.0 if replaced else 0.0], size)
        grid = np.linspace(-size - 9 * std, size + 9 * std, 501)
        p, q = density(one, std, grid), density(two, std, grid)
        width = grid[1] - grid[0]
        single = FixedSizeSteps(size / n, (std / unit,), (1,), replaced)
        double = replace(single, counts=(2,))
        pairs = [
            (single, p, q, width),
            (double, np.multiply.outer(p, p), np.multiply.outer(q, q), width**2),
        ]
        for curve, first, second, cell in pairs:
            for epsilon in EPSILONS:
                for true, ours in zip(
                    orders(first, second, cell, epsilon), curve.directions(epsilon), strict=True
                ):
                    assert true <= ours * (1 + 1e-3) + 1e-6, (trial, n, size, std, epsilon)
                    near = max(near, true / ours if true > 1e-3 else 0.0)
    assert near > 0.95


THREE = ((0.05, 1.0), (0.3, 2.5), (0.5, 0.6))


def test_the_worst_three_laws_are_attained():
    """With the record N(2), a set without it N(0), the record's place empty N(1), mixed by q: the
    bound of one step."""
    grid = np.linspace(-20, 30, 20001)
    for q, z in THREE:
        first, empty, second = (density([m], z, grid) for m in (2.0, 0.0, 1.0))
        curve = FixedSizeSteps(q, (z,), (1,))
        for epsilon in (0.0, 0.02, 0.1, 0.5, 1.0, 2.0):
            true = orders(
                q * first + (1 - q) * empty,
                q * second + (1 - q) * empty,
                grid[1] - grid[0],
                epsilon,
            )
            removed, added = curve.directions(epsilon)
            assert true[0] <= removed * (1 + 1e-6) + 1e-10 and true[1] <= added * (1 + 1e-6) + 1e-10
            assert removed <= true[0] * 1.01 + 1e-9
            (closed,) = delta_of_draw(np.array([epsilon]), q, 1 / z)
            assert closed == pytest.approx(true[0], rel=1e-4, abs=1e-8)


def test_rounding_never_lowers_the_curve_of_the_three_laws():
    import mpmath as mp

    def tail(x):
        return mp.erfc(x / mp.sqrt(2)) / 2

    rng = np.random.default_rng(4)
    with mp.workdps(60):
        for _ in range(300):
            q, mu = float(np.exp(rng.uniform(-14, 0))), float(np.exp(rng.uniform(-14, 2.3)))
            e = float(rng.choice([0.0, np.exp(rng.uniform(-25, 3))])) * float(
                rng.choice([1.0, min(1.0, mu)])
            )
            grown, others = (
                mp.exp(mp.mpf(e)),
                mp.expm1(mp.mpf(e)) * (1 - mp.mpf(q)) / q * mp.exp(-(mp.mpf(mu) ** 2)),
            )
            x = mp.log((grown + mp.sqrt(grown**2 + 4 * others)) / 2) / mu - mp.mpf(mu) / 2
            true = q * (tail(x) - grown * tail(x + mu)) - mp.expm1(mp.mpf(e)) * (
                1 - mp.mpf(q)
            ) * tail(x + 2 * mu)
            (ours,) = delta_of_draw(np.array([e]), q, mu)
            assert true < 1e-300 or true <= ours <= true * (1 + mp.mpf("1e-6")) + q * mp.mpf(
                "1e-13"
            )


def test_three_laws_anywhere_in_the_plane():
    rng = np.random.default_rng(12)
    axis = np.linspace(-9, 9, 181)
    plane, cell = np.stack(np.meshgrid(axis, axis), axis=-1), (axis[1] - axis[0]) ** 2

    def law(mean):
        return np.exp(-((plane - mean) ** 2).sum(-1) / 2) / (2 * math.pi)

    for q, z in THREE:
        for _ in range(6):
            turns = rng.uniform(0, 2 * math.pi, 2) if rng.random() < 0.7 else np.zeros(2)
            own, other = (
                length * np.array([np.cos(t), np.sin(t)]) / z
                for length, t in zip(rng.choice([1.0, rng.random()], 2), turns, strict=True)
            )
            p, none = (
                q * law(own + other) + (1 - q) * law(0 * own),
                q * law(other) + (1 - q) * law(0 * own),
            )
            for epsilon in EPSILONS:
                pairs = zip(
                    orders(p, none, cell, epsilon),
                    FixedSizeSteps(q, (z,), (1,)).directions(epsilon),
                    strict=True,
                )
                assert all(true <= ours * (1 + 1e-3) + 1e-7 for true, ours in pairs), (
                    q,
                    z,
                    own,
                    other,
                )


def test_nobody_can_say_much_less_where_all_iterates_are_released():
    """Every other record pulls against the record: the steps' exact pairs, composed; nothing is
    rounded up here."""
    for q, z, steps, most in (
        (0.05, 2.0, 100, 1.05),
        (0.05, 0.8, 100, 1.03),
        (0.01, 1.5, 1000, 1.04),
    ):
        grid, h = np.linspace(-12, 12 + 2 / z, 200_001), q * math.sqrt(math.expm1(z**-2)) / 100
        width, (first, empty, second) = (
            grid[1] - grid[0],
            (density([m / z], 1.0, grid) for m in (2.0, 0.0, 1.0)),
        )
        p, none = (q * one + (1 - q) * empty for one in (first, second))
        node = np.round(np.log(p / none) / h).astype(int)
        low = int(node.min())
        masses = (np.bincount(node - low, law) * width for law in (none, p))
        found = product(((Ratio(h, low, *masses, 0.0, 0.0), steps),))
        epsilon = FixedSizeSteps(q, (z,), (steps,)).epsilon(1e-5)
        assert found.deltas(epsilon)[0] < 1e-5 < found.deltas(epsilon / most)[0]


def test_an_exchange_is_exact_for_its_worst_case():
    """q N(1/z) + (1 - q) N(0) against N(0) has the curve at epsilon >= 0 (remove order), and so has
    one step's pair."""
    grid = np.linspace(-15, 20, 60001)
    for q, z in ((0.05, 1.0), (0.2, 0.7)):
        p, none = (density([m], 1.0, grid) for m in (1 / z, 0.0))
        curve = FixedSizeSteps(q, (z,), (1,), True)
        for epsilon in (0.0, 0.1, 0.7):
            true = orders(q * p + (1 - q) * none, none, grid[1] - grid[0], epsilon)[0]
            assert true * (1 - 1e-6) <= curve.delta(epsilon) <= true * 1.01


def test_masses_of_a_step():
    cases = (
        (0.05, 1.0, False, 2e-3),
        (0.05, 1.0, True, 2e-3),
        (1e-3, 3.0, False, 1e-5),
        (0.9, 0.3, False, 0.1),
    )
    for q, z, replaced, h in cases:
        law = one_step(q, z, replaced, h)
        assert law.q.sum() + law.zero == pytest.approx(1, abs=1e-9)
        assert law.p.sum() + law.infinite == pytest.approx(1, abs=1e-9)
        assert law.p == pytest.approx(law.q * np.exp(law.logs), rel=1e-9, abs=1e-250)


def test_products_of_gaussian_pairs():
    """A batch of all records is no sampling: T steps are sqrt(T)/z-Gaussian-DP, replace-one."""
    for z, steps in ((3.0, 5), (20.0, 400)):
        curve, exact = FixedSizeSteps(1.0, (z,), (steps,), True), Gdp(math.sqrt(steps) / z)
        h = 1 / z / 50
        law = product(((one_step(1.0, z, True, h), steps),))
        for epsilon in (0.2, 1.0, 2.0):
            for ours in law.deltas(epsilon):
                assert exact.delta(epsilon) <= ours <= exact.delta(epsilon) * 1.01
        assert curve.epsilon(1e-6) == pytest.approx(exact.epsilon(1e-6), rel=1e-9), (
            "in full it is exact"
        )


def test_different_noises_and_grids():
    both = FixedSizeSteps(0.05, (1.5, 2.0), (40, 60))
    least, most = FixedSizeSteps(0.05, (2.0,), (100,)), FixedSizeSteps(0.05, (1.5,), (100,))
    assert least.epsilon(1e-6) < both.epsilon(1e-6) < most.epsilon(1e-6)
    for curve in (both, replace(both, replaced=True)):
        assert curve.epsilon(1e-6) <= curve.coarser().epsilon(1e-6) <= curve.epsilon(1e-6) * 1.02
    split = FixedSizeSteps(0.05, (1.5, 1.5), (40, 60))
    assert split.epsilon(1e-6) == pytest.approx(most.epsilon(1e-6), rel=1e-6)


def test_the_curve():
    curve = FixedSizeSteps(0.05, (4.0,), (100,))
    epsilon = curve.epsilon(1e-6)
    assert curve.delta(epsilon) <= 1e-6 < curve.delta(epsilon * (1 - 1e-6))
    assert curve_from_dict(json.loads(json.dumps(curve.to_dict()))) == curve
    together = compose(curve, Gdp(0.1))
    assert isinstance(together, FixedSizeSteps) and epsilon < together.epsilon(1e-6) < 1.5 * epsilon
    # it costs more than Poisson batches, and less than if each removal were an exchange
    poisson = Pld(0.05, (4.0,), (100,)).epsilon(1e-6)
    assert poisson < epsilon < FixedSizeSteps(0.05, (2.0,), (100,), True).epsilon(1e-6)
    assert curve.rdp(8.0) < curve.known.rdp(8.0) / 5
    assert FixedSizeSteps(0.05, (0.05,), (3,)).epsilon(1e-6) == pytest.approx(
        Gdp(math.sqrt(3) / 0.05).epsilon(1e-6)
    )
    assert FixedSizeSteps(0.05, (0.0,), (3,)).epsilon(1e-6) == math.inf
    assert FixedSizeSteps(0.05, (1.0, 0.0), (3, 1)).known == Gdp(math.inf)
    one_is_loud = FixedSizeSteps(0.05, (0.05, 1.0), (3, 1))
    assert one_is_loud.epsilon(1e-6) == pytest.approx(Gdp(math.sqrt(1201)).epsilon(1e-6), rel=1e-6)
    assert one_is_loud.rdp(2.0) == one_is_loud.known.rdp(2.0)


def test_the_row():
    run = li.Run(
        n=10_000,
        steps=100,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(4.0 / 500),
        batching=li.FixedSize(500),
        release="all",
        optimizer=li.HeavyBall(0.9),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0)),
    )
    for adjacency, z, replaced in (("zero-out", 4.0, False), ("replace-one", 2.0, True)):
        found = match(TABLE["fixed-size-amplified"], replace(run, adjacency=adjacency))
        assert isinstance(found, Applies)
        assert found.curve.multipliers == pytest.approx((z,)) and found.curve.replaced == replaced
        assert found.curve.rate == 0.05 and found.curve.counts == (100,)
    varied = replace(run, noise=li.GradientNoise((4.0 / 500,) * 60 + (2.0 / 500,) * 40))
    of_two = match(TABLE["fixed-size-amplified"], varied).curve
    assert of_two.counts == (40, 60) and of_two.multipliers == pytest.approx((2.0, 4.0))
    nothing = replace(run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0)))
    assert match(TABLE["fixed-size-amplified"], nothing).curve == Gdp(0.0)


def test_published_cases():
    """Logistic losses, noise at which a permutation has epsilon 1 at delta 1e-6 (20 batches, 5
    passes; 100 and 100)."""
    for blocks, passes, n, most in ((20, 5, 10_000, 0.749), (100, 100, 100_000, 1.140)):
        run = li.Run(
            n=n,
            steps=blocks * passes,
            step_size=li.Constant(2.0),
            noise=li.GradientNoise(1.0),
            batching=li.Permuted(n // blocks),
            loss=li.Logistic(),
        )
        noise = li.calibrate(run, epsilon=1.0, delta=1e-6).run.noise
        found = li.account(replace(run, noise=noise, batching=li.FixedSize(n // blocks)))
        assert found.epsilon(1e-6) <= most and found.best(1e-6).theorem.name in (
            "fixed-size-amplified",
            "restarted-fixed-size",
        )


def test_the_bound_is_monotone():
    run = li.Run(
        n=1000,
        steps=20,
        step_size=li.Constant(1.0),
        noise=li.GradientNoise(0.03),
        batching=li.FixedSize(50),
        loss=li.KnownConstants(li.LossFacts(lipschitz=1.0)),
    )

    def delta(changed):
        return match(TABLE["fixed-size-amplified"], changed).curve.delta(0.5)

    more = (
        replace(run, steps=21),
        replace(run, noise=li.GradientNoise(0.029)),
        replace(run, n=950),
        replace(run, loss=li.KnownConstants(li.LossFacts(lipschitz=1.03))),
    )
    assert all(delta(changed) > delta(run) for changed in more)


def test_renyi_divergences_of_steps():
    """Above those of Poisson steps, whose remove order a fixed size has too where all others'
    gradients are 0."""
    from oracles.sampled import renyi

    for q, z in ((0.05, 4.0), (0.2, 1.5)):
        for order in (1.5, 4.0, 16.0):
            found = FixedSizeSteps(q, (z,), (1,)).rdp(order)
            assert renyi(order, q, z) <= found <= FixedSizeSteps(q, (z / 2,), (1,), True).rdp(order)
            assert renyi(order, q, z / 2) <= FixedSizeSteps(q, (z / 2,), (1,), True).rdp(order) * (
                1 + 1e-6
            )
            assert FixedSizeSteps(q, (z,), (7,), mu=0.5).rdp(order) == pytest.approx(
                min(7 * found + order / 8, FixedSizeSteps(q, (z,), (7,), mu=0.5).known.rdp(order)),
                rel=1e-6,
            )


def test_hulls_of_random_points():
    """The largest convex function below the points, by brute force over all chords."""
    rng = np.random.default_rng(6)
    for _ in range(40):
        x = np.sort(rng.uniform(0, 5, 9))
        y = (rng.uniform(0, 1, 9), rng.uniform(0, 1, 9), (x - 2) ** 2, -((x - 2) ** 2))[
            int(rng.integers(4))
        ]
        found = y[0] + np.concatenate(([0.0], np.cumsum(_hull_slopes(x, y) * np.diff(x))))
        for k in range(9):
            chords = [
                y[i] + (y[j] - y[i]) * (x[k] - x[i]) / (x[j] - x[i])
                for i in range(k)
                for j in range(k + 1, 9)
            ]
            assert found[k] == pytest.approx(min([y[k], *chords]))


def test_known_batches_and_both_orders():
    curve = FixedSizeSteps(0.05, (2.0, 4.0), (3, 20), mu=0.7)
    assert curve.known.mu == pytest.approx(math.sqrt(3 / 4 + 20 / 16 + 0.49))
    removed, added = replace(curve, mu=0.0).directions(0.3)
    assert removed > 1.05 * added and replace(curve, mu=0.0).delta(0.3) == removed
    both = replace(curve, mu=0.0, replaced=True).directions(0.3)
    assert both[0] == pytest.approx(both[1], rel=1e-6)
