"""Every closed form of the table against its formula written down once more, on drawn runs and at
the edges."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.analysis import block_positions
from lastiterate.analysis.block_positions import merge_places, place_mus, place_weights
from lastiterate.analysis.shifts import best_restart, optimal_mu
from lastiterate.curves.gaussian import Gdp, GdpMixture
from lastiterate.curves.lower_bound import MixturePair
from lastiterate.testing.exact_distributions import exact_mu
from lastiterate.theorems import TABLE, witnesses
from lastiterate.theorems.theorem import Applies, Fails, match
from oracles.drawn import applied

UP = 1 + 2e-12


def run_of(steps=7, n=6, eta=0.3, noise=None, sensitivity=1.3, strong=0.0, smooth=1.0, **more):
    settings = dict(
        n=n,
        steps=steps,
        step_size=li.Constant(eta),
        noise=noise or li.GradientNoise(0.8),
        loss=li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=smooth, strong=strong)),
    )
    return li.Run(**settings | more)


def langevin_draws(count=40):
    rng = np.random.default_rng(3)
    for _ in range(count):
        m = float(rng.uniform(0.05, 1.5))
        yield dict(
            m=m,
            M=m * float(rng.uniform(1, 5)),
            K=int(rng.integers(1, 60)),
            n=int(rng.integers(1, 9)),
            S=float(rng.uniform(0.2, 3)),
            sigma=float(rng.uniform(0.2, 2)),
            share=float(rng.uniform(0.05, 0.95)),
        )


def langevin_run(d, *, squared=False, fixed=True, **facts):
    M = d["m"] if squared else d["M"]
    eta = d["share"] * (2 if squared else 1) / M
    loss = li.KnownConstants(li.LossFacts(sensitivity=d["S"], smooth=M, strong=d["m"], **facts))
    start = li.FixedStart() if fixed else li.GaussianStart(math.sqrt(2 * d["sigma"] ** 2 / d["m"]))
    noise = li.Langevin(d["sigma"])
    return run_of(d["K"], d["n"], eta, noise, start=start, loss=loss), eta


def test_langevin_family():
    """Chourasia, Ye and Shokri 2021: Theorem 1, 2, Corollaries 1 and 2, Theorem 3 and their
    baseline."""
    for d in langevin_draws():
        S, n, m, K, sigma = d["S"], d["n"], d["m"], d["K"], d["sigma"]
        ratio = S**2 / (sigma * n) ** 2
        run, eta = langevin_run(d, fixed=False)
        exact = {
            "composition-langevin": ratio * eta * K / 4,
            "langevin-linear": ratio * eta * K / 4,
            "langevin-strongly-convex": ratio / m * (1 - math.exp(-m * eta * K / 2)),
            "langevin-lsi": ratio / m * (1 - math.exp(-m * eta * K / 2)),
        }
        for name, slope in exact.items():
            for alpha in (1.5, 7.0):
                assert (
                    alpha * slope * (1 - 1e-13)
                    <= applied(name, run).rdp(alpha)
                    <= alpha * slope * (1 + 1e-11)
                ), name
        c = 0.7 * m / (2 * sigma**2)
        given, eta = langevin_run(d, log_sobolev=c)
        slope = S**2 / (2 * c * sigma**4 * n**2) * (1 - math.exp(-(sigma**2) * c * eta * K))
        assert applied("langevin-lsi", given).rdp(2.0) == pytest.approx(2 * slope, rel=1e-10)
        fixed, eta = langevin_run(d)
        lower = ratio / (4 * m) * (1 - math.exp(-eta * m * K))
        found = applied("langevin-lower-bound", fixed)
        assert isinstance(found, MixturePair) and found.mu == pytest.approx(
            math.sqrt(2 * lower), rel=1e-12
        )
        assert 0 < found.epsilon(1e-5) < Gdp(math.sqrt(2 * lower)).epsilon(1e-5), "rounded down"
        run, eta = langevin_run(d, squared=True)
        scaled = eta * m
        slope = ratio / ((2 - scaled) * m) * (1 - math.exp(-(2 - scaled) * scaled * K / 2))
        assert applied("langevin-squared-norm", run).rdp(3.0) == pytest.approx(3 * slope, rel=1e-10)
        std = sigma * math.sqrt(2 / eta)
        assert applied("langevin-squared-norm", replace(run, noise=li.GradientNoise(std))).rdp(
            3.0
        ) == pytest.approx(3 * slope, rel=1e-10), "the same temperature by another name"
        silent = replace(
            run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=m, strong=m))
        )
        assert applied("langevin-squared-norm", silent).rdp(3.0) == 0


@pytest.mark.parametrize(
    "batching", [li.FullBatch(), li.Cyclic(2), li.Permuted(2), li.Cyclic(4), li.FixedSize(2)]
)
def test_composition(batching):
    rng = np.random.default_rng(1)
    for steps in (1, 2, 3, 7, 8, 30):
        stds = rng.uniform(0.1, 2, steps)
        run = run_of(steps, noise=li.GradientNoise(tuple(map(float, stds))), batching=batching)
        unit = run.facts().sensitivity.value / {"FullBatch": 6}.get(
            type(batching).__name__, getattr(batching, "size", 6)
        )
        blocks = (
            {2: 3, 4: 2}.get(getattr(batching, "size", 0), 1)
            if not isinstance(batching, li.FixedSize)
            else 1
        )
        charge = max(
            sum((unit / stds[t]) ** 2 for t in range(place, steps, blocks))
            for place in range(min(blocks, steps))
        )
        found = applied("composition-gdp", run).mu
        assert math.sqrt(charge) <= found * (1 + 1e-14) and found <= math.sqrt(charge) * UP
        constant = replace(run, noise=li.GradientNoise(0.37))
        exact = math.sqrt(math.ceil(steps / blocks)) * unit / 0.37
        assert exact <= applied("composition-gdp", constant).mu * (1 + 1e-14)
        assert applied("composition-gdp", constant).mu <= exact * UP
        assert applied("composition-gdp", replace(run, noise=li.GradientNoise(0.0))).mu == math.inf
        if steps > 1:
            one_silent = replace(run, noise=li.GradientNoise((0.0, *map(float, stds[1:]))))
            assert applied("composition-gdp", one_silent).mu == math.inf
        for noise in (
            li.GradientNoise(0.0),
            li.GradientNoise(tuple([0.0] * steps)),
            li.GradientNoise(0.5),
        ):
            nothing = replace(
                run, loss=li.KnownConstants(li.LossFacts(sensitivity=0.0)), noise=noise
            )
            assert applied("composition-gdp", nothing).mu == 0


def pulls(run, place):
    unit = run.facts().sensitivity.value / run.divisor
    return np.where(np.arange(run.steps) % run.blocks == place, unit, 0.0)


def readings(run, strong):
    """Curvature at every step: public, or in the records, of which a short block has fewer."""
    share = np.where(np.arange(run.steps) % run.blocks == run.blocks - 1, run.shares[0], 1.0)
    return np.full(run.steps, strong), strong * share


def least_mu(run, strong, etas, stds, place, start=0.0):
    return min(
        exact_mu(bend, etas, stds, pulls(run, place), start) for bend in readings(run, strong)
    )


@pytest.mark.parametrize("strong", [0.0, 0.4])
@pytest.mark.parametrize("varied", [False, True])
@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(2), li.Cyclic(5)])
def test_quadratic_witness_is_the_recursion(strong, varied, batching):
    rng = np.random.default_rng(8)
    for steps in (1, 2, 3, 9):
        etas = rng.uniform(0.1, 0.9, steps) if varied else np.full(steps, 0.3)
        stds = rng.uniform(0.3, 2, steps) if varied else np.full(steps, 0.8)
        run = run_of(
            steps,
            strong=strong,
            batching=batching,
            step_size=li.StepSchedule(tuple(map(float, etas))) if varied else li.Constant(0.3),
            noise=li.GradientNoise(tuple(map(float, stds)) if varied else 0.8),
        )
        exact = max(least_mu(run, strong, etas, stds, place) for place in range(run.blocks))
        found = applied("quadratic-witness", run)
        assert found.mu == pytest.approx(exact, rel=1e-12)
        assert found.epsilon(1e-5) <= Gdp(exact).epsilon(1e-5), "rounded down"
        wide = replace(run, start=li.GaussianStart(0.7))
        exact = max(least_mu(run, strong, etas, stds, place, 0.7) for place in range(run.blocks))
        assert applied("quadratic-witness", wide).mu == pytest.approx(exact, rel=1e-12)
        silent = replace(run, noise=li.GradientNoise(0.0))
        assert applied("quadratic-witness", silent).mu == math.inf
        assert (
            applied("quadratic-witness", replace(silent, start=li.GaussianStart(0.7))).mu < math.inf
        )
        nothing = li.KnownConstants(li.LossFacts(sensitivity=0.0, smooth=1.0, strong=strong))
        assert applied("quadratic-witness", replace(silent, loss=nothing)).mu == 0
        if varied and steps > 1:
            partly = (0.0, *map(float, stds[1:]))
            assert (
                applied("quadratic-witness", replace(run, noise=li.GradientNoise(partly))).mu
                < math.inf
            )


@pytest.mark.parametrize("bend", [0.0, 1e-9, 0.3, 0.999, 1.0, 1.3, 1.999, 2.0, 2.3])
def test_quadratic_witness_of_constant_schedules(bend):
    """The closed form is the recursion, for any step times curvature, odd and even blocks, long
    runs as well."""
    for blocks, steps in ((1, 1), (1, 50), (2, 7), (3, 10), (3, 2), (4, 101)):
        run = run_of(
            steps,
            n=blocks,
            eta=bend if bend > 0 else 0.3,
            strong=min(bend, 1.0),
            batching=li.Permuted(1),
        )
        eta = run.first_step
        run = replace(
            run,
            start=li.GaussianStart(0.4),
            loss=li.KnownConstants(li.LossFacts(sensitivity=1.3, strong=bend / eta, smooth=3.0)),
        )
        exact = [
            exact_mu(bend / eta, [eta] * steps, [0.8] * steps, pulls(run, place), 0.4)
            for place in range(blocks)
        ]
        found = np.abs(witnesses.witness_mus(run))
        assert found == pytest.approx(exact, rel=1e-9), (blocks, steps)
    long = run_of(10**9, eta=0.3, strong=1e-9, batching=li.Permuted(2))
    c = math.log1p(-3e-10)
    least = 0.3 * 1.3 / 2 * math.exp(2 * c) * math.expm1(10**9 * c) / math.expm1(3 * c)
    variance = (0.3 * 0.8) ** 2 * math.expm1(2 * 10**9 * c) / math.expm1(2 * c)
    assert min(witnesses.witness_mus(long)) == pytest.approx(least / math.sqrt(variance), rel=1e-6)


def test_quadratic_witness_of_secret_places():
    for batching, weights in ((li.Permuted(4), (4 / 6, 2 / 6)), (li.Permuted(3), (0.5, 0.5))):
        run = run_of(5, strong=0.2, batching=batching)
        pair = applied("quadratic-witness", run)
        exact = [least_mu(run, 0.2, [0.3] * 5, [0.8] * 5, place) for place in range(2)]
        assert pair.weights == pytest.approx(weights) and pair.mus == pytest.approx(
            exact, rel=1e-12
        )
    bins = run_of(5, batching=li.BallsInBins(4), loss=li.Logistic(ridge=0.2, intercept=0.0))
    unit = np.where(np.arange(5) % 2 == 0, 1 / 4, 0.0)
    exact = [
        exact_mu(0.2, [0.3] * 5, [0.8] * 5, unit),
        exact_mu(0.2, [0.3] * 5, [0.8] * 5, 1 / 4 - unit),
    ]
    assert applied("quadratic-witness", bins).mus == pytest.approx(exact, rel=1e-12)
    assert applied("quadratic-witness", bins).weights == (0.5, 0.5)
    one_sign = run_of(2, strong=1.0, eta=1.5, n=3, batching=li.Permuted(3))
    assert max(applied("quadratic-witness", one_sign).mus) > 0
    both_ways = run_of(2, strong=1.0, eta=1.5, n=6, batching=li.Permuted(3))
    sides = applied("quadratic-witness", both_ways).bounds
    assert [sorted(np.sign(side.mus)) for side in sides] == [[-1, 1]] * 2 and sides[0].mus[
        0
    ] == -sides[1].mus[0]


def test_places_are_merged_to_the_safe_side():
    """Marks that do not depend on the run: no mu moves past another, none by more than 0.07 %;
    weights are sums."""
    rng = np.random.default_rng(3)
    mus = np.concatenate((np.exp(rng.uniform(-9, 3, 5000)), [0.0, 0.0, math.inf]))
    weights = np.full(mus.size, 1 / mus.size)
    weights[-4:] = rng.dirichlet(np.ones(4)) * weights[-4:].sum()
    for up in (True, False):
        total, found = merge_places(weights, mus, up=up)
        assert total.size == found.size <= 5000 and math.fsum(total) == pytest.approx(1, abs=1e-12)
        assert (
            total[found == 0] == pytest.approx(weights[mus == 0].sum())
            and total[np.isinf(found)] == weights[-1]
        )
        order, exact = np.argsort(found), np.argsort(mus)
        steps = np.searchsorted(np.cumsum(total[order]), np.cumsum(weights[exact]) - 1e-12)
        rounded, true = found[order][steps], mus[exact]
        inside = (true > 0) & np.isfinite(true)
        assert (rounded[~inside] == true[~inside]).all()
        ratio = rounded[inside] / true[inside]
        assert (
            ((ratio > 1) & (ratio < 1.0007)).all() if up else ((ratio > 0.9993) & (ratio < 1)).all()
        )
        larger = GdpMixture(*map(tuple, merge_places(weights, mus * 1.00001, up=up)))
        assert larger.delta(0.1) >= GdpMixture(tuple(total), tuple(found)).delta(0.1)
    few = weights[:4096], mus[:4096]
    assert merge_places(*few, up=True) == few, "few places are left as they are"
    silent = merge_places(np.full(5000, 1 / 5000), np.zeros(5000), up=True)
    assert silent[0] == pytest.approx([1.0]) and silent[1].tolist() == [0.0]


def test_groups_of_places_count_at_their_worst(monkeypatch):
    """Where following every place is too much work: never below any place's own mu; close on smooth
    schedules."""
    rng = np.random.default_rng(12)

    def both(run):
        place_mus.cache_clear()
        exact = place_mus(run)
        place_mus.cache_clear()
        with monkeypatch.context() as less:
            less.setattr(block_positions, "MOST_FOLLOWED", 0)
            less.setattr(block_positions, "FEWEST_GROUPS", 12)
            grouped = place_mus(run)
        place_mus.cache_clear()
        return exact, grouped

    for n, steps in ((40, 97), (40, 80), (40, 23), (25, 60)):
        wild = li.StepSchedule(tuple(map(float, rng.uniform(0.2, 2.3, steps))))
        run = run_of(steps, n=n, batching=li.Permuted(1), strong=0.2, step_size=wild)
        exact, grouped = both(run)
        assert (grouped >= exact * (1 - 1e-9)).all() and len(set(grouped.tolist())) <= 16
        smooth = replace(run, step_size=li.InverseDecay(0.5, 0.2))
        exact, grouped = both(smooth)
        assert (grouped >= exact * (1 - 1e-9)).all() and grouped.max() == pytest.approx(
            exact.max(), rel=0.05
        )
        assert grouped.mean() <= 1.3 * exact.mean()
        bounded = both(replace(smooth, domain=li.domains.Ball(0.01)))[1]
        assert (bounded <= grouped).all() and bounded.mean() < 0.9 * grouped.mean()
        covered = [
            p
            for first, last in block_positions._groups(min(n, steps), (steps - 1) % n + 1, 12)
            for p in range(first, last + 1)
        ]
        assert covered == list(range(min(n, steps)))
    assert block_positions._groups(5, 5, 12) == [(p, p) for p in range(5)]


def test_many_places_are_rounded_down():
    run = run_of(30_000, n=10_000, batching=li.Permuted(1), loss=li.Logistic(ridge=0.001))
    pair, exact = applied("quadratic-witness", run), witnesses.witness_mus(run)
    assert len(pair.mus) < 5000 and math.fsum(pair.weights) == pytest.approx(1, abs=1e-12)
    mean = float(np.dot(pair.weights, pair.mus))
    assert exact.mean() * (1 - 1e-3) < mean < exact.mean()
    alternating = run_of(
        30_000, n=10_000, eta=1.9, batching=li.Permuted(1), loss=li.Logistic(ridge=1.0)
    )
    assert applied("quadratic-witness", alternating).epsilon(1e-6) == 0, "no statement"


def test_quadratic_witness_of_what_is_known():
    """Without strong convexity the witness is linear, whatever the smoothness; clips that act let
    none be built."""
    flat = applied("quadratic-witness", run_of(strong=0.0))
    for facts in ({}, {"smooth": 1.0}, {"smooth": 1.0, "weak_convexity": 0.5}):
        run = run_of(loss=li.KnownConstants(li.LossFacts(sensitivity=1.3, **facts)))
        assert applied("quadratic-witness", run) == flat
    varied = run_of(
        loss=li.KnownConstants(li.LossFacts(sensitivity=1.3)), noise=li.GradientNoise((0.8,) * 7)
    )
    assert applied("quadratic-witness", varied).mu == pytest.approx(flat.mu, rel=1e-9)
    idle = run_of(loss=li.Logistic(ridge=0.1), clip=1.0)
    assert isinstance(match(TABLE["quadratic-witness"], idle), Applies)
    acting = run_of(loss=li.Softmax(classes=3, ridge=0.1), clip=0.1)
    assert applied("quadratic-witness", acting).epsilon(1e-5) > 0, (
        "linear data terms are never clipped"
    )
    curved = run_of(loss=li.KnownConstants(li.LossFacts(smooth=1.0, strong=0.5)), clip=0.1)
    assert isinstance(match(TABLE["quadratic-witness"], curved), Fails), "curved ones may be"


def test_ratios_outside_double_precision_say_nothing():
    ratios = witnesses._ratio([math.inf, math.nan, 1.0, -3.0], 4.0, noisy=True)
    assert ratios.tolist() == [0.0, 0.0, 0.5, -1.5]


def test_quadratic_witness_of_long_runs(monkeypatch):
    run = run_of(40, strong=0.3, noise=li.GradientNoise((0.8,) * 40))
    monkeypatch.setattr(witnesses, "LONGEST_QUADRATIC", 40)
    assert applied("quadratic-witness", run).mu > 0
    monkeypatch.setattr(witnesses, "LONGEST_QUADRATIC", 39)
    assert applied("quadratic-witness", run).mu == 0, "no statement"
    assert applied("quadratic-witness", run_of(10**9)).mu > 0, "linear losses have a closed form"
    alternating = run_of(40, strong=1.0, eta=1.5)
    assert applied("quadratic-witness", alternating).mu == 0
    monkeypatch.setattr(witnesses, "LONGEST_QUADRATIC", 3000)
    assert applied("quadratic-witness", alternating).mu > 0
    overflows = run_of(3000, eta=1.9e4, strong=1.0, smooth=1.0)
    assert applied("quadratic-witness", overflows).mu == 0, "outside double precision: no statement"


@pytest.mark.parametrize("diameter", [math.inf, 0.3])
def test_places_of_any_schedule(diameter):
    rng = np.random.default_rng(5)
    domain = li.domains.Everywhere() if math.isinf(diameter) else li.domains.Ball(diameter / 2)
    for steps in (1, 2, 6, 11):
        etas, stds = rng.uniform(0.1, 2.4, steps), rng.uniform(0.3, 2, steps)
        run = run_of(
            steps,
            strong=0.2,
            batching=li.Cyclic(2),
            domain=domain,
            step_size=li.StepSchedule(tuple(map(float, etas))),
            noise=li.GradientNoise(tuple(map(float, stds))),
        )
        c = np.maximum(np.abs(1 - 0.2 * etas), np.abs(1 - etas))
        found = place_mus(run)
        for place in range(3):
            s, v = etas * pulls(run, place), (etas * stds) ** 2
            exact = optimal_mu(c, s, v)
            exact = exact if math.isinf(diameter) else min(exact, best_restart(c, s, v, diameter))
            assert found[place] == (pytest.approx(exact, rel=1e-12) if place < steps else 0), (
                steps,
                place,
            )
        constant = run_of(steps, strong=0.2, batching=li.Cyclic(2), domain=domain, eta=0.4)
        arrays = np.full(steps, 0.92), np.full(steps, (0.4 * 0.8) ** 2)
        for place in range(3):
            s = 0.4 * pulls(constant, place)
            exact = optimal_mu(arrays[0], s, arrays[1])
            exact = (
                exact
                if math.isinf(diameter)
                else min(exact, best_restart(arrays[0], s, arrays[1], diameter))
            )
            assert place_mus(constant)[place] == (
                pytest.approx(exact, rel=1e-9) if place < steps else 0
            )
        silent = place_mus(replace(constant, noise=li.GradientNoise(0.0)))
        assert (silent[: min(3, steps)] == math.inf).all() and (silent[steps:] == 0).all()


def test_weights_of_places():
    assert place_weights(li.Permuted(4), 6) == pytest.approx([4 / 6, 2 / 6])
    assert place_weights(li.BallsInBins(4), 6) == pytest.approx([0.5, 0.5])
    assert place_weights(li.Reshuffled(3), 10) == pytest.approx([0.3, 0.3, 0.3, 0.1])
    assert place_weights(li.Permuted(3), 9) == pytest.approx([1 / 3] * 3)
    assert place_weights(li.Permuted(1), 1) == pytest.approx([1.0])
    assert li.Cyclic(4).place_probabilities(6) is None, "a public place has no probability"
    permuted = applied("shifted-interpolation-permuted", run_of(batching=li.Permuted(4)))
    assert permuted.weights == pytest.approx([4 / 6, 2 / 6])
    assert permuted.mus == pytest.approx(place_mus(run_of(batching=li.Permuted(4))))
    cyclic = applied("shifted-interpolation", run_of(batching=li.Cyclic(4)))
    assert cyclic.mu == max(permuted.mus) > min(permuted.mus)
