"""Sampled batches after a restart: every restart lies above the exact law of the last iterate, and
is used."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.analysis import restarted_sampling
from lastiterate.analysis.restarted_sampling import (
    allocation_passes,
    candidates,
    distances_of_draws,
    distances_of_passes,
    last_steps,
    poisson_steps,
)
from lastiterate.analysis.secret_blocks import usual_counts
from lastiterate.analysis.shifts import optimal_mu
from lastiterate.analysis.step_map import step_map
from lastiterate.curves.curve import BestOf
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from oracles.allocated import exact_delta
from oracles.drawn import applied
from tiers import size as tier

ALLOCATED, POISSON = "restarted-allocation-pld", "restarted-poisson-pld"
EPSILONS = (0.0, 0.3, 1.0, 2.5)


def curve(run, name):
    return applied(name, run)


def law(run, weights_of_places, c):
    """delta of both orders for steps theta -> c theta, one coordinate, all contributions of one
    sign."""
    s, v = (
        run.step_sizes * run.facts().sensitivity.value / run.divisor,
        (run.step_sizes * run.noise_stds) ** 2,
    )
    later = np.append(np.cumprod(c[::-1])[::-1][1:], 1.0)
    std = math.sqrt((v * later**2).sum())
    sums = ((float((s * later * taken).sum()), chance) for chance, taken in weights_of_places)
    means, chances = zip(*sums, strict=True)
    x = np.linspace(-10 * std, max(means) + 10 * std, 4001)
    p = sum(
        chance * np.exp(-((x - m) ** 2) / (2 * std**2))
        for chance, m in zip(chances, means, strict=True)
    )
    q, width = np.exp(-(x**2) / (2 * std**2)), (x[1] - x[0]) / math.sqrt(2 * math.pi) / std
    return [
        width
        * max(np.maximum(p - math.exp(e) * q, 0).sum(), np.maximum(q - math.exp(e) * p, 0).sum())
        for e in EPSILONS
    ]


def allocations(run):
    """Every way that a record can be placed in its passes, with its probability."""
    passes = -(-run.steps // run.blocks)
    for places in itertools.product(range(run.blocks), repeat=passes):
        taken = np.zeros(passes * run.blocks)
        taken[np.arange(passes) * run.blocks + np.array(places)] = 1
        yield run.blocks**-passes, taken[: run.steps]


def draws(run):
    q = run.batching.rate
    for taken in itertools.product((0, 1), repeat=run.steps):
        yield math.prod(q if one else 1 - q for one in taken), np.array(taken)


def runs(rng, batching, steps):
    """Ridge alone, so that the map is known exactly, and noise or steps that change."""
    ridge = float(rng.uniform(0.1, 0.9))
    eta, std = np.exp(rng.uniform(-1, 0, steps)), np.exp(rng.uniform(-1, 1, steps))
    if rng.random() < 0.5:
        eta, std = np.full(steps, eta[0]), np.full(steps, std[0])
    facts = li.LossFacts(sensitivity=1.0, smooth=ridge, strong=ridge)
    run = li.Run(
        n=6,
        steps=steps,
        step_size=tuple(eta),
        noise=li.GradientNoise(1.0),
        batching=batching,
        loss=li.KnownConstants(facts),
    )
    return replace(run, noise=li.GradientNoise(float(std[0]))), 1 - eta * ridge


@pytest.mark.parametrize("seed", range(12))
def test_every_restart_of_allocated_passes_lies_above_the_exact_law(seed):
    rng = np.random.default_rng(seed)
    blocks = int(rng.choice([1, 2, 3]))
    run, c = runs(
        rng, li.RandomAllocation(6 // blocks), int(rng.integers(2 * blocks, 4 * blocks + 1))
    )
    exact = law(run, list(allocations(run)), c)
    steps = last_steps(run, 1 / blocks, 0.0, blocks)
    assert np.all(steps.c >= c - 1e-12)
    found = candidates(
        replace(steps, c=c), 1 / blocks, run.steps, blocks, distances_of_passes(blocks), 0.0
    )
    assert found
    for one in rng.permutation(np.array(found, dtype=object))[: tier(12, 25, "RESTARTS")]:
        bound = allocation_passes(run, one.first, one.share, one.mu)
        for epsilon, true in zip(EPSILONS, exact, strict=True):
            assert bound.delta(epsilon) >= true * (1 - 1e-4) - 1e-9, (run, one, epsilon)


@pytest.mark.parametrize("seed", range(6))
def test_every_restart_of_poisson_steps_lies_above_the_exact_law(seed):
    pytest.importorskip("dp_accounting")
    rng = np.random.default_rng(seed)
    run, c = runs(rng, li.Poisson(float(rng.uniform(0.05, 0.6))), int(rng.integers(2, 9)))
    exact = law(run, list(draws(run)), c)
    steps = replace(last_steps(run, run.batching.rate, 0.0, 1), c=c)
    for failure in (0.0, 1e-3):
        found = candidates(
            steps, run.batching.rate, run.steps, 1, distances_of_draws(run.batching.rate), failure
        )
        for one in rng.permutation(np.array(found, dtype=object))[:4]:
            bound = poisson_steps(run, one.first, one.share, one.mu)
            for epsilon, true in zip(EPSILONS, exact, strict=True):
                assert bound.delta(epsilon) + failure >= true * (1 - 1e-4) - 1e-9, (
                    run,
                    one,
                    epsilon,
                )


def test_the_row_lies_above_exact_laws_of_everybody_s_draws():
    """Blocks of random sizes: records of one curvature but a linear one, that is removed."""
    rng, near = np.random.default_rng(18), 0.0
    for _ in range(tier(25, 1000, "RESTARTED")):
        n, blocks = int(rng.integers(2, 7)), int(rng.integers(2, 4))
        size = -(-n // blocks)
        passes = int(rng.integers(1, 4))
        run = li.Run(
            n=n,
            steps=passes * -(-n // size),
            step_size=float(rng.uniform(0.1, 1.5)),
            batching=li.RandomAllocation(size),
            noise=li.GradientNoise(float(rng.uniform(0.3, 2))),
            loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=1.0, strong=0.0)),
        )
        if math.comb(n + run.blocks - 2, run.blocks - 1) ** passes > 300:
            continue
        curvature = float(rng.choice([0.0, 1.0, rng.uniform(0, 1)]))
        found = curve(run, ALLOCATED)
        for epsilon, true in zip(EPSILONS, exact_delta(run, curvature, EPSILONS), strict=True):
            assert found.delta(epsilon) >= true * (1 - 1e-3) - 1e-7, (run, curvature)
            near = max(near, true / found.delta(epsilon) if true > 1e-3 else 0.0)
    assert near > 0.9


def test_shifts_cost_what_the_optimal_allocation_says():
    """The cost of the shifts; how far the runs are apart without them; how much of the distance one
    of them closes."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        run, c = runs(rng, li.RandomAllocation(3), 8)
        c = c * float(rng.choice([1.0, 1.0, 3.0]))
        steps = replace(last_steps(run, 0.5, 0.0, 2), c=c)
        distances = np.exp(distances_of_passes(2)(steps, 0.0, np.arange(0, 9, 2)))
        longer = replace(steps, z=steps.z / 3)
        tried = candidates(steps, 0.5, 8, 2, distances_of_passes(2), 0.0)
        twice = candidates(
            steps, 0.5, 11, 2, distances_of_passes(2), 0.0, lambda apart, closed: 3.0
        )
        assert [(one.first + 3, one.share, one.mu) for one in tried] == [
            (x.first, x.share, x.mu) for x in twice
        ]
        assert {one.first for one in tried} == {2, 4, 6} and len(tried) == 3 * len(
            restarted_sampling.SHARES
        )
        for one, faint in zip(tried, twice, strict=True):
            first, z = one.first, distances[one.first // 2]
            best = optimal_mu(c[first:], np.zeros(8 - first), steps.v[first:] * (1 - one.share), z)
            assert best <= one.mu <= best * (1 + 1e-8)
            reached = z * np.append(1.0, np.cumprod(c[first:]))
            later = np.append(np.cumprod(c[first:][::-1])[::-1][1:], 1.0)
            spent = reached[-1] * steps.v[first:] * later / (steps.v[first:] * later**2).sum()
            for ours, true in (
                (one.apart, reached[:-1].max()),
                (one.closed, (spent / c[first:]).max()),
            ):
                assert true <= ours <= true * (1 + 1e-8)
            for ours, at in ((one, steps), (faint, longer)):
                about = 0.25 * np.expm1(1 / (ours.share * at.z[first:] ** 2)).sum() + ours.mu**2
                assert ours.size == pytest.approx(about, rel=1e-8)


def test_restarts_without_a_cost_are_left_out():
    """A distance without shifts over what a step forgets entirely would be 0/0; a distance beside
    no noise stays."""
    run, c = runs(np.random.default_rng(3), li.RandomAllocation(3), 8)
    steps = replace(last_steps(run, 0.5, 0.0, 2), c=c)
    for name, kept in (("c", set()), ("v", {2, 4})):
        changed = replace(steps, **{name: np.where(np.arange(8) < 6, getattr(steps, name), 0.0)})
        found = candidates(changed, 0.5, 8, 2, distances_of_passes(2), 0.0)
        assert {one.first for one in found} == kept
        assert all(
            math.isfinite(x) for one in found for x in (one.mu, one.apart, one.closed, one.size)
        )


def test_distances_of_passes_are_the_worst_places():
    rng = np.random.default_rng(4)
    for blocks in (1, 2, 3):
        run, c = runs(rng, li.RandomAllocation(6 // blocks), 3 * blocks)
        steps = replace(last_steps(run, 1 / blocks, 0.0, blocks), c=c)
        found = np.exp(distances_of_passes(blocks)(steps, 0.0, np.arange(4) * blocks)) * (1 + 1e-12)
        for number in range(1, 4):
            later = np.append(np.cumprod(c[: number * blocks][::-1])[::-1][1:], 1.0)
            worst = max(
                (steps.s[: number * blocks] * later * taken[: number * blocks]).sum()
                for _, taken in allocations(run)
            )
            assert found[number] == pytest.approx(worst, rel=1e-9) and found[number] >= worst
        near = distances_of_passes(blocks)(
            replace(steps, before=0.2, diameter=0.2), 0.0, np.arange(4) * blocks
        )
        assert np.all(near <= math.log(0.2)) and near[0] == math.log(0.2)


@pytest.mark.parametrize("failure", [0.3, 1e-2, 1e-5])
def test_distances_of_draws_fail_as_seldom_as_stated(failure, monkeypatch):
    rng = np.random.default_rng(5)
    below = 0
    for _ in range(tier(12, 20, "DISTANCES")):
        run, c = runs(rng, li.Poisson(float(rng.uniform(0.02, 0.5))), 12)
        steps = replace(
            last_steps(run, run.batching.rate, 0.0, 1), c=c, before=float(rng.uniform(0, 1))
        )
        (bound,) = np.exp(distances_of_draws(run.batching.rate)(steps, failure, np.array([10])))
        later = np.append(np.cumprod(c[:10][::-1])[::-1][1:], 1.0)
        start = steps.before * np.prod(c[:10])
        sums = [
            (chance, start + float((steps.s[:10] * later * taken[:10]).sum()))
            for chance, taken in draws(replace(run, steps=10, step_size=run.step_sizes[:10]))
        ]
        assert sum(chance for chance, z in sums if z > bound) <= failure
        below += bound < max(z for _, z in sums)
        for records, followed in (
            (1, 10),
            (2, 10),
            (3, 4),
        ):  # Chernoff's bound itself, at its best exponent
            monkeypatch.setattr(restarted_sampling, "DRAWN", followed)
            (ours,) = np.exp(
                distances_of_draws(run.batching.rate, records)(steps, failure, np.array([10]))
            )
            (sure,) = np.exp(
                distances_of_draws(run.batching.rate, records)(steps, 0.0, np.array([10]))
            )
            each, certain = (
                (steps.s[:10] * later)[::-1],
                start + (steps.s[:10] * later)[: 10 - followed].sum(),
            )

            def chernoff(log, each=each[:followed], records=records, rate=run.batching.rate):
                theta = math.exp(log)
                return (
                    records * np.log1p(rate * np.expm1(theta * each)).sum() - math.log(failure)
                ) / theta

            best = min(chernoff(log) for log in np.linspace(-4, 6, 2001) - math.log(each.max()))
            best = min(best, records * each[:followed].sum()) + records * certain
            assert best * (1 - 1e-3) <= ours <= best * 1.01
            assert sure == pytest.approx(records * (each[:followed].sum() + certain), rel=1e-8)
            monkeypatch.undo()
    assert below > 3, "draws count"


BASE = li.Run(
    n=10_000,
    steps=1000,
    step_size=1.0,
    noise=li.NoiseMultiplier(2.0),
    batching=li.RandomAllocation(500),
    loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.1),
)


@pytest.mark.parametrize(
    ("name", "batching", "sampled"),
    [
        (ALLOCATED, li.RandomAllocation(500), "random-allocation-pld"),
        (POISSON, li.Poisson(0.05), "poisson-pld"),
    ],
)
def test_contraction_and_sampling_help_together(name, batching, sampled):
    run = replace(BASE, batching=batching)
    both, every_step = curve(run, name).epsilon(1e-5), curve(run, sampled).epsilon(1e-5)
    permuted = curve(
        replace(run, batching=li.Permuted(500)), "shifted-interpolation-permuted"
    ).epsilon(1e-5)
    assert both < every_step / 4 and both < permuted / 2
    longer = curve(replace(run, steps=4000), name).epsilon(1e-5)
    assert longer == pytest.approx(both, rel=0.02), "what contracts forgets"
    flat = replace(run, loss=li.Logistic(row_norm=1.0, intercept=0.0))
    assert curve(flat, name).epsilon(1e-5) <= curve(flat, sampled).epsilon(1e-5)
    small = curve(replace(flat, steps=20_000, domain=li.domains.Ball(0.05)), name).epsilon(1e-5)
    assert small < curve(replace(flat, steps=20_000), sampled).epsilon(1e-5) / 2, (
        "a small domain forgets, too"
    )


def test_steps_beyond_those_followed_are_bounded(monkeypatch):
    whole = curve(BASE, ALLOCATED).epsilon(1e-5)
    monkeypatch.setattr(restarted_sampling, "LONGEST", 200)
    assert whole <= curve(BASE, ALLOCATED).epsilon(1e-5) <= whole * 1.01
    flat = replace(BASE, loss=li.Logistic(row_norm=1.0, intercept=0.0))
    assert not isinstance(curve(flat, ALLOCATED), BestOf), (
        "nothing is known about the distance then"
    )


def test_the_distance_before_the_steps_that_are_followed(monkeypatch):
    """Of a run that took the longest step with the worst map for ever; whole passes are left out."""
    monkeypatch.setattr(restarted_sampling, "LONGEST", 5)
    run, c = runs(np.random.default_rng(1), li.RandomAllocation(2), 11)
    assert not run.constant
    for every, skipped in ((1, 6), (3, 6), (4, 4), (7, 0)):
        steps = last_steps(run, 0.0, 0.0, every, (1.0, 1.0))
        limit = (
            run.step_sizes[:6].max() / run.divisor / (1 - c[:6].max())
            if skipped == 6
            else (run.step_sizes[:4].max() / run.divisor / (1 - c[:4].max()) if skipped else 0.0)
        )
        assert (
            steps.before == pytest.approx(limit, rel=1e-8)
            and steps.before >= limit
            and steps.c.size == 11 - skipped
        )
        assert list(steps.s) == list(run.step_sizes[skipped:] / run.divisor)
    near = replace(run, domain=li.domains.Ball(0.001))
    assert last_steps(near, 0.0, 0.0, 1, (1.0, 1.0)).before == 0.002
    growing = replace(run, step_size=30.0)
    assert last_steps(growing, 0.0, 0.0, 1, (1.0, 1.0)).before == math.inf


def test_unusual_blocks_are_paid_for(monkeypatch):
    step = BASE.first_step
    bent = replace(
        BASE,
        noise=li.GradientNoise(1.0),
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.0, smooth=0.35, strong=0.2)),
    )
    for failure, run in (
        (0.0, BASE),
        (1e-9, BASE),
        (1e-9, replace(BASE, step_size=7.0)),
        (1e-9, bent),
    ):
        fewest, most = usual_counts(9999, 0.05, failure, 1000)
        worst = step_map(run, (fewest / 500, most / 500)).lipschitz(run.first_step)
        assert np.all(last_steps(run, 0.05, failure, 20).c == worst) and (
            failure > 0 or worst > 1 - 0.1 * step
        )
        assert most == 9999 or binom.sf(most, 9999, 0.05) * 1000 <= failure
    asked = []

    def noted(function, place):
        return lambda *given: asked.append(given[place]) or function(*given)

    monkeypatch.setattr(restarted_sampling, "last_steps", noted(last_steps, 2))
    monkeypatch.setattr(restarted_sampling, "candidates", noted(candidates, 5))
    monkeypatch.setattr(restarted_sampling, "FAILURES", (0.01,))
    sampled, found = curve(BASE, ALLOCATED).curves
    assert asked == [0.005, 0.005], "loads have a half, distances the other one"
    assert found.failure == 0.01 and found.delta(20.0) >= 0.01 and sampled.delta(20.0) < 1e-6


@pytest.mark.parametrize(
    "name, batching", [(ALLOCATED, li.RandomAllocation(2)), (POISSON, li.Poisson(0.5))]
)
def test_what_grows_beyond_floating_point_is_not_forgotten(name, batching):
    """The first steps decide the last iterate, and a record takes part in one of them with
    probability 1/2 or more."""
    unit = 1.009765625e-18 / 2
    run = li.Run(
        n=4,
        steps=29,
        step_size=1e-3,
        noise=li.GradientNoise((0.3 * unit,) * 2 + (20 * unit,) * 27),
        batching=batching,
        loss=li.HuberRidge(row_norm=1e-9, residual_clip=1e-9, ridge=1e9, intercept=0.0),
    )
    assert curve(run, name).delta(1.0) > 0.4


@pytest.mark.parametrize(
    "name, batching", [(ALLOCATED, li.RandomAllocation(2)), (POISSON, li.Poisson(0.5))]
)
def test_what_shrinks_below_floating_point_and_grew_before_is_not_forgotten(name, batching):
    """Factors of 1e6, 60 times, then of .01, 170 times: from the end the product underflows before
    it grows to 1e20."""
    unit = 1.009765625e-18 / 2
    run = li.Run(
        n=4,
        steps=231,
        step_size=(1e6,) * 61 + (0.99,) * 170,
        batching=batching,
        noise=li.GradientNoise((0.2 * unit,) + (20 * unit,) * 230),
        loss=li.HuberRidge(row_norm=1e-9, residual_clip=1e-9, ridge=1.0, intercept=0.0),
    )
    assert curve(run, name).delta(1.0) > 0.48


def test_what_cancels_is_not_forgotten():
    """1 - 3 (1/3) is 0 in floating point and 5.6e-17 in truth: enough to see a step that was 1e18
    long."""
    unit = 1.009765625e-9 / 2
    run = li.Run(
        n=4,
        steps=2,
        step_size=(1e18, 3.0),
        noise=li.GradientNoise((0.05 * unit, 3 * unit)),
        batching=li.Poisson(0.5),
        loss=li.HuberRidge(row_norm=1e-9, ridge=1 / 3, intercept=0.0),
    )
    assert curve(run, POISSON).delta(1.0) > 0.497
    assert step_map(run).lipschitz(3.0) >= abs(1 - 3 * Fraction(1 / 3)) > 0


def test_nothing_to_hide_and_nothing_that_hides():
    assert curve(replace(BASE, noise=li.GradientNoise(0.0)), ALLOCATED).delta(5.0) == 1.0
    silent = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0, strong=1.0))
    assert (
        curve(replace(BASE, loss=silent, noise=li.GradientNoise(1.0)), ALLOCATED).delta(0.0) == 0.0
    )


@pytest.mark.parametrize(
    "change",
    [
        {"adjacency": "add-remove"},
        {"release": "all"},
        {"optimizer": li.HeavyBall(0.5)},
        {"prox": li.penalties.L2Squared(0.1)},
    ],
)
def test_what_the_proof_does_not_cover(change):
    assert isinstance(match(TABLE[ALLOCATED], replace(BASE, **change)), Fails)
    assert isinstance(
        match(TABLE[POISSON], replace(BASE, batching=li.Poisson(0.05), **change)), Fails
    )
