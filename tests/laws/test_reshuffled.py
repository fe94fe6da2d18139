"""A fresh permutation in every pass: against exact mixtures over all places, and against every
place's own optimum."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis.block_positions import (
    _add,
    constant_atoms,
    groups,
    shifts_of_schedule,
    tail_groups,
)
from lastiterate.analysis.shifts import best_restart, optimal_mu
from lastiterate.curves.composition import compose
from lastiterate.curves.curve import BestOf
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Fails, match
from oracles.drawn import applied
from oracles.gaussian import chain_delta, hidden_place_delta

NAME = "shifted-interpolation-reshuffled"
ASSUMED = li.Evidence.ASSUMED


def run_of(blocks=4, steps=12, size=2, n=None, strong=0.0, sensitivity=1.0, **more):
    settings = dict(
        n=blocks * size if n is None else n,
        steps=steps,
        step_size=li.Constant(0.5),
        noise=li.GradientNoise(0.7),
        batching=li.Reshuffled(size),
        loss=li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=1.0, strong=strong)),
    )
    return li.Run(**settings | more)


def curve_of(run):
    return applied(NAME, run)


def all_places(weights, steps):
    """Probability and 0-based steps of the meetings, for every choice of a place per pass."""
    blocks = len(weights)
    for places in product(range(blocks), repeat=-(-steps // blocks)):
        met = [number * blocks + place for number, place in enumerate(places)]
        yield math.prod(weights[place] for place in places), [step for step in met if step < steps]


def draw(rng):
    blocks = int(rng.integers(1, 5))
    steps = int(rng.integers(1, 4 * blocks + 1))
    size = int(rng.integers(1, 4))
    n = blocks * size - (int(rng.integers(0, size)) if blocks > 1 else 0)
    etas = (
        rng.uniform(0.1, 1.9, steps)
        if rng.random() < 0.5
        else np.full(steps, rng.uniform(0.1, 1.9))
    )
    stds = rng.uniform(0.2, 2, steps) if rng.random() < 0.5 else np.full(steps, rng.uniform(0.2, 2))
    same = len(set(etas)) == 1
    return run_of(
        blocks,
        steps,
        size,
        n,
        strong=float(rng.choice([0.0, 0.4, 1.0])),
        step_size=li.Constant(float(etas[0])) if same else li.StepSchedule(tuple(map(float, etas))),
        noise=li.GradientNoise(float(stds[0]) if len(set(stds)) == 1 else tuple(map(float, stds))),
    )


def weights_of(run):
    size = run.batching.size
    return [min(size, run.n - block * size) / run.n for block in range(run.blocks)]


def test_bound_lies_above_the_exact_mixture_on_quadratics():
    rng = np.random.default_rng(3)
    near = []
    for _ in range(120):
        run = draw(rng)
        if run.blocks ** -(-run.steps // run.blocks) > 32:
            continue
        h = (
            run.loss.facts().strong.value
            if rng.random() < 0.5
            else float(rng.uniform(run.loss.facts().strong.value, 1))
        )
        eta = run.step_sizes
        std = run.noise_stds
        held = (
            np.array(weights_of(run)) * run.n / run.batching.size
        )  # a short block has less curvature
        curvature = h * held[np.arange(run.steps) % run.blocks]
        later = np.concatenate((np.cumprod((1 - eta * curvature)[::-1])[::-1][1:], [1.0]))
        scale = math.sqrt(((eta * std * later) ** 2).sum())
        unit = run.facts().sensitivity.value / run.divisor
        choices = list(all_places(weights_of(run), run.steps))
        shifts = [sum((eta * later)[step] for step in met) * unit / scale for _, met in choices]
        curve = curve_of(run)
        for epsilon in (0.0, 0.5, 2.0):
            exact = hidden_place_delta(epsilon, [w for w, _ in choices], shifts)
            ours = curve.delta(epsilon)
            assert ours >= exact - 2e-8, run  # the oracle's grid is good to 2e-8
            if exact > 1e-6:
                near.append(ours / exact)
    assert min(near) < 1.01


def true_mixture(c, s, v, weights, diameter=math.inf):
    """Every choice of places with its own optimal allocation."""
    found = []
    for weight, met in all_places(weights, len(c)):
        shifts = np.zeros(len(c))
        shifts[met] = s[met]
        mu = optimal_mu(c, shifts, v)
        found.append(
            (weight, mu if math.isinf(diameter) else min(mu, best_restart(c, shifts, v, diameter)))
        )
    w, mus = zip(*found, strict=True)
    return GdpMixture(tuple(np.array(w) / sum(w)), mus)


def test_groups_lie_above_every_places_own_allocation_and_near_it():
    rng = np.random.default_rng(1)
    ratios = []
    for _ in range(250):
        blocks = int(rng.integers(1, 5))
        T = int(rng.integers(1, 4 * blocks + 1))
        c, s, v = (
            float(rng.choice([1.0, 0.9, 0.5, 1.05, 1.5, 0.0])),
            rng.uniform(0.1, 2),
            rng.uniform(0.1, 2),
        )
        weights = rng.dirichlet(np.ones(blocks))
        arrays = np.full(T, c), np.full(T, s), np.full(T, v)
        true = true_mixture(*arrays, weights)
        found = constant_atoms(c, s, v, T, weights)
        assert found[0].sum() == pytest.approx(1, abs=1e-12)
        ours = GdpMixture(*map(tuple, found))
        few = [
            (w, optimal_mu(arrays[0], shifts, arrays[2]))
            for w, shifts in shifts_of_schedule(*arrays[:2], weights, 16)
        ]
        coarse = GdpMixture(*map(tuple, zip(*few, strict=True)))
        for epsilon in (0.0, 0.5, 2.0):
            exact = true.delta(epsilon)
            assert ours.delta(epsilon) >= exact * (1 - 1e-12), (c, blocks, T)
            assert coarse.delta(epsilon) >= exact * (1 - 1e-12), (c, blocks, T)
            if c > 0:
                ratios.append(ours.delta(epsilon) / exact if exact > 1e-9 else 1.0)
    assert np.median(ratios) < 1.001 and max(ratios) < 1.5


def test_any_schedule_lies_above_every_places_own_allocation():
    """Expanding and contracting steps, noise-free ones among them, with and without a domain."""
    rng = np.random.default_rng(2)
    for _ in range(120):
        blocks = int(rng.integers(2, 5))
        T = int(rng.integers(1, 3 * blocks + 1))
        c, s, v = rng.uniform(0.3, 1.5, T), rng.uniform(0.1, 2, T), rng.uniform(0.2, 2, T)
        v[:-1] *= rng.random(T - 1) < 0.9
        weights = rng.dirichlet(np.ones(blocks))
        for diameter in (math.inf, float(rng.uniform(0.1, 2))):
            true = true_mixture(c, s, v, weights, diameter)
            found = []
            for weight, shifts in shifts_of_schedule(c, s, weights, int(rng.integers(1, 40))):
                mu = optimal_mu(c, shifts, v)
                mu = mu if math.isinf(diameter) else min(mu, best_restart(c, shifts, v, diameter))
                found.append((weight, mu))
            ours = GdpMixture(*map(tuple, zip(*found, strict=True)))
            for epsilon in (0.0, 1.0):
                assert ours.delta(epsilon) >= true.delta(epsilon) * (1 - 1e-9)


def test_a_domain_only_helps_whatever_the_schedule():
    stds = tuple(float(x) for x in np.linspace(0.5, 1.0, 40))
    run = run_of(steps=40, noise=li.GradientNoise(stds))
    free = curve_of(run).epsilon(1e-5)
    bounds = [
        curve_of(replace(run, domain=li.domains.Ball(radius))).epsilon(1e-5)
        for radius in (0.05, 0.3, 100.0)
    ]
    assert bounds[0] < bounds[1] <= bounds[2] and bounds[0] < 0.9 * free
    assert bounds[2] == pytest.approx(free, rel=1e-9), "a wide domain changes nothing"


@pytest.mark.parametrize("seed", range(4))
def test_projected_chains(seed):
    """Nonconvex maps on an interval, two passes of two blocks: the mean of the exact deltas of the
    four choices."""
    rng = np.random.default_rng(seed)
    half, eta, m, L = (
        float(rng.uniform(0.2, 1)),
        float(rng.uniform(0.3, 1.0)),
        0.3,
        float(rng.uniform(0.3, 1)),
    )
    v = 0.2 * eta

    def plain(x):
        return x - eta * (0.65 * np.sin(x) + 0.35 * x)

    def pulled(x):
        return plain(x) - eta * L

    loss = li.KnownConstants(li.LossFacts(sensitivity=2 * L, smooth=1.0, weak_convexity=m))
    std = math.sqrt(v) / eta
    ball, noise = li.domains.Ball(half), li.GradientNoise(std)
    run = run_of(2, 4, 2, loss=loss, domain=ball, step_size=li.Constant(eta), noise=noise)
    curve = curve_of(run)
    assert isinstance(curve, BestOf)
    for epsilon in (0.0, 0.5, 2.0):
        exact = [
            chain_delta(
                epsilon,
                [(plain, pulled if step in met else plain, v) for step in range(4)],
                -half,
                half,
                cells=801,
            )
            for _, met in all_places([0.5, 0.5], 4)
        ]
        assert curve.delta(epsilon) >= np.mean(exact) - 3e-4, "the grid is good to 3e-4"
        assert curve.delta(epsilon) <= curve_of(replace(run, domain=li.domains.Everywhere())).delta(
            epsilon
        )
    assert Gdp(0.0).epsilon(1e-5) < curve.epsilon(1e-5) < math.inf


def test_close_to_one_permutation_and_better_with_a_ridge():
    for blocks, passes, strong, most in (
        (20, 5, 0.0, 1.001),
        (20, 50, 0.0, 1.01),
        (200, 50, 0.0, 1.002),
        (20, 50, 0.02, 1.0),
    ):
        run = run_of(blocks, blocks * passes, 10, strong=strong)
        fresh = curve_of(run).epsilon(1e-6)
        once = match(
            TABLE["shifted-interpolation-permuted"], replace(run, batching=li.Permuted(10))
        ).curve.epsilon(1e-6)
        worst = match(
            TABLE["shifted-interpolation"], replace(run, batching=li.Cyclic(10))
        ).curve.epsilon(1e-6)
        assert fresh <= once * most and fresh < 0.95 * worst


def test_groups_cover_every_place_once():
    rng = np.random.default_rng(0)
    for blocks, reached, most in (
        (7, 7, 7),
        (7, 3, 64),
        (1000, 1000, 64),
        (1000, 1, 64),
        (1000, 777, 4),
        (1, 1, 1),
    ):
        weights = rng.dirichlet(np.ones(blocks))
        for towards_end in (True, False):
            found = groups(weights, reached, most, towards_end=towards_end)
            met = [group for group in found if group.last >= 0]
            assert [place for group in met for place in range(group.first, group.last + 1)] == list(
                range(reached)
            )
            assert len(met) <= most and len(found) == len(met) + (reached < blocks)
            for group in met:
                assert group.weight == pytest.approx(weights[group.first : group.last + 1].sum())
            assert math.fsum(group.weight for group in found) == pytest.approx(1, abs=1e-12)
    sizes = [len(part) for part in tail_groups(np.full(1000, 1e-3), 5000)]
    assert sizes[0] == 2 and sizes[1] == 8 and 32 < sizes[2] <= 64, (
        "the last passes get the finest groups"
    )


def test_composition_charges_the_worst_place_of_every_pass():
    stds = (0.5, 1.0, 2.0, 1.0, 0.4, 3.0, 0.7, 9.0)
    run = run_of(3, 8, noise=li.GradientNoise(stds), release="all")
    found = match(TABLE["composition-gdp"], run).curve.mu
    worst = max(
        sum((0.5 / stds[step]) ** 2 for step in met) for _, met in all_places([1 / 3] * 3, 8)
    )
    assert found == pytest.approx(math.sqrt(worst), rel=1e-9)
    assert found > match(TABLE["composition-gdp"], replace(run, batching=li.Cyclic(2))).curve.mu
    assert isinstance(match(TABLE[NAME], run), Fails), "an order that is seen is not averaged over"
    constant = replace(run, noise=li.GradientNoise(0.5))
    assert match(TABLE["composition-gdp"], constant).curve.mu == pytest.approx(
        math.sqrt(3), rel=1e-9
    )


def test_what_the_description_says():
    run = run_of()
    assert run.divisor == 2 and run.blocks == 4 and li.Run.from_json(run.to_json()) == run
    found = li.account(run, min_evidence=ASSUMED)
    assert found.best(1e-5).theorem.name == NAME
    assert "every pass's permutation of the records must stay secret" in found.all_caveats()
    assert isinstance(match(TABLE["quadratic-witness"], run), Fails), (
        "its place is not the same in every pass"
    )
    silent = replace(run, noise=li.GradientNoise(0.0))
    assert curve_of(silent).epsilon(1e-5) == math.inf
    assert curve_of(run_of(sensitivity=0.0)).epsilon(1e-5) == 0
    assert curve_of(run_of(4, 3, noise=li.GradientNoise(0.0))).delta(1.0) == pytest.approx(0.75), (
        "one place is not met"
    )
    paid = compose(curve_of(run), Gdp(0.3))
    assert isinstance(paid, GdpMixture) and paid.epsilon(1e-5) > curve_of(run).epsilon(1e-5)


LONG = [
    (5_000, 10**7, 0.0, 0.5),
    (1, 10**9, 0.1, 0.5),
    (10**6, 10**6, 0.0, 0.5),
    (10**6, 5, 0.5, 0.5),
]


@pytest.mark.parametrize(
    "blocks, steps, strong, step", [*LONG, (7, 10**6, 0.0, 2.1), (3, 100, 1.0, 1.0)]
)
def test_long_runs_and_many_blocks(blocks, steps, strong, step):
    run = run_of(blocks, steps, 1, strong=strong, step_size=li.Constant(step))
    fresh, worst = (
        curve_of(run),
        match(TABLE["shifted-interpolation"], replace(run, batching=li.Cyclic(1))).curve,
    )
    if step < 2:
        assert fresh.epsilon(1e-6) <= worst.epsilon(1e-6) * (1 + 1e-9)
    assert fresh.epsilon(1e-6) > 0 or steps < blocks


@pytest.mark.parametrize("c", [0.8, 1.0, 1.02, 1.3])
def test_early_passes_in_closed_form(c):
    """30 passes of 3 blocks: groups of the last ones, and all earlier passes met at their end, step
    by step."""
    weights, arrays = np.full(3, 1 / 3), (np.full(90, c), np.full(90, 0.4), np.full(90, 0.7))
    found = constant_atoms(c, 0.4, 0.7, 90, weights)
    exact = [
        (w, optimal_mu(arrays[0], shifts, arrays[2]))
        for w, shifts in shifts_of_schedule(*arrays[:2], weights, 1024)
    ]
    assert found[0].size == 729 and found[0] == pytest.approx([w for w, _ in exact])
    assert found[1] == pytest.approx([mu for _, mu in exact], rel=1e-9)


def test_constant_maps_forget_all_but_the_last_step():
    weights = np.array([0.5, 0.3, 0.2])
    for steps, last in ((7, 0.5), (8, 0.3), (9, 0.2), (1, 0.5)):
        found, mus = constant_atoms(0.0, 0.4, 0.25, steps, weights)
        assert (
            found == pytest.approx([last, 1 - last])
            and mus[0] == pytest.approx(0.8)
            and mus[1] == 0
        )


def test_logarithms_far_apart():
    for one, two in ((-800.0, 0.0), (0.0, -800.0), (900.0, 20.0), (1.0, 1.0), (-2.0, 0.5)):
        assert _add(one, two) == pytest.approx(np.logaddexp(one, two), rel=1e-15)


def test_long_runs_in_a_bounded_domain():
    """Restarts are looked for in the last 4,096 steps and what completes a pass."""
    runs = [run_of(3, steps, 1, domain=li.domains.Ball(0.1)) for steps in (9_000, 30_000, 9_001)]
    bounded = [curve_of(run).epsilon(1e-6) for run in runs]
    assert (
        bounded[0]
        == bounded[1]
        < 0.5 * curve_of(replace(runs[0], domain=li.domains.Everywhere())).epsilon(1e-6)
    )
    assert bounded[0] < bounded[2] < 1.5 * bounded[0], "the last two meetings may be neighbours"
    restarted = curve_of(runs[0]).curves[1]
    window = 9_000 - (9_000 - 4_096) // 3 * 3
    c, s, v = np.ones(window), np.full(window, 0.5), np.full(window, 0.35**2)
    exact = [
        best_restart(c, shifts, v, 0.2)
        for _, shifts in shifts_of_schedule(c, s, np.full(3, 1 / 3), 16)
    ]
    assert restarted.mus == pytest.approx(exact, rel=1e-9)
    many = run_of(10_000, 10_000, 1, domain=li.domains.Ball(0.1))
    assert isinstance(curve_of(many), GdpMixture), "a pass longer than the window: no restart"
    silent = curve_of(replace(runs[0], noise=li.GradientNoise(0.0)))
    assert silent.epsilon(1e-6) == math.inf


def test_only_the_short_block_has_less_curvature():
    """21 records in blocks of 10: following the blocks one by one lies between all curved and all
    flat ones."""
    run = run_of(steps=30, n=21, size=10, strong=0.9)
    found = curve_of(run)
    assert isinstance(found, BestOf) and len(found.curves) == 2
    curved, flat = (
        GdpMixture(*map(tuple, constant_atoms(c, 0.05, 0.35**2, 30, np.array([10, 10, 1]) / 21)))
        for c in (0.55, 0.955)
    )
    assert curved.epsilon(1e-5) < found.epsilon(1e-5) < flat.epsilon(1e-5)
    assert found.curves[0].epsilon(1e-5) == pytest.approx(flat.epsilon(1e-5), rel=1e-12), (
        "as near as searches end"
    )
    assert found.curves[1].epsilon(1e-5) < 0.95 * found.curves[0].epsilon(1e-5)
    listed = replace(run, step_size=li.StepSchedule((0.5,) * 30))
    assert curve_of(listed).epsilon(1e-5) == pytest.approx(found.curves[1].epsilon(1e-5), rel=1e-12)
    silent = curve_of(replace(run, noise=li.GradientNoise(0.0)))
    assert silent.epsilon(1e-5) == math.inf


def test_a_map_that_expands_beyond_all_bounds_gives_infinite_mus_and_no_others():
    """One early pass has no gap that would pay for itself, however large its cost: 0 times infinity
    is 0 here."""
    for steps in (500, 659, 668, 1670):
        weights, mus = constant_atoms(15.67, 6.7e-4, 0.04, steps, np.full(167, 1 / 167))
        assert (
            not np.isnan(mus).any() and (mus > 0).all() and math.fsum(weights) == pytest.approx(1.0)
        )
