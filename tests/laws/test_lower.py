"""No lower bound above the exact law of an explicit loss of the class, and none above an upper
bound."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.gaussian import Gdp
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.testing.exact_distributions import deltas, exact_mu, law
from lastiterate.theorems import TABLE
from lastiterate.theorems.theorem import Applies, Fails, match
from tiers import size

LOWER = [theorem for theorem in TABLE.values() if theorem.kind == "lower"]
ASSUMED = li.Evidence.ASSUMED
EPSILONS = (0.0, 0.4, 1.5, 4.0)
DELTAS = (0.05, 1e-4)
BETWEEN = size(10, 1, "BETWEEN")
"""Every how many runs are certified too, which takes a hundred times as long as their exact law."""


def lowers(run):
    for theorem in LOWER:
        found = match(theorem, run)
        if isinstance(found, Applies):
            yield theorem.name, found.bound


def flat(run, ahead, behind, ridge, record=-1):
    """Linear records, 0 but one; the ridge is the trainer's. Laws with the record and of the
    neighbour."""
    return curved(run, ahead, behind, 0.0, record, ridge)


def curved(run, ahead, behind, strong, record=-1, ridge=0.0):
    """Records of curvature ``strong`` each: only the centre of one differs."""
    worlds = []
    for slope in (ahead, behind):
        slopes = [0.0] * run.n
        slopes[record] = slope
        worlds.append(law(run, slopes, [strong] * run.n, ridge))
    return worlds


SIZES = {
    "FullBatch": lambda rng: (int(rng.integers(1, 5)), None),
    "Cyclic": lambda rng: (int(rng.integers(2, 7)), int(rng.integers(1, 4))),
    "Permuted": lambda rng: (int(rng.integers(2, 6)), int(rng.integers(1, 4))),
    "BallsInBins": lambda rng: (int(rng.integers(2, 5)), int(rng.integers(1, 3))),
    "Reshuffled": lambda rng: (int(rng.integers(2, 4)), int(rng.integers(1, 3))),
    "RandomAllocation": lambda rng: (int(rng.integers(2, 4)), int(rng.integers(1, 3))),
    "FixedSize": lambda rng: (int(rng.integers(2, 5)), int(rng.integers(1, 3))),
    "Poisson": lambda rng: (int(rng.integers(1, 3)), float(rng.uniform(0.1, 0.9))),
}
LENGTHS = {"Reshuffled": 6, "RandomAllocation": 6, "FixedSize": 4, "Poisson": 4}


def draw(rng, kind):
    """A small run with any schedule, noise, start and adjacency; its loss comes later."""
    n, size = SIZES[kind](rng)
    steps = int(rng.integers(1, LENGTHS.get(kind, 9)))
    batching = (
        li.FullBatch()
        if size is None
        else getattr(li, kind)(min(size, n) if kind != "Poisson" else size)
    )
    etas = rng.uniform(0.05, 1.9, steps)
    stds = rng.uniform(0.3, 2.0, steps)
    varied = rng.random() < 0.5
    adjacency = str(rng.choice(["zero-out", "replace-one"]))
    return li.Run(
        n=n,
        steps=steps,
        step_size=li.StepSchedule(tuple(map(float, etas)))
        if varied
        else li.Constant(float(etas[0])),
        noise=li.GradientNoise(tuple(map(float, stds)) if varied else float(stds[0])),
        batching=batching,
        start=li.GaussianStart(float(rng.uniform(0.1, 2)))
        if rng.random() < 0.3
        else li.FixedStart(),
        adjacency="add-remove" if kind == "Poisson" and rng.random() < 0.3 else adjacency,
    )


def below(run, worlds, met, near, certified=True):
    """Every lower row of the run against the exact law (of the worst record), and against every
    upper row where it is ``certified``."""
    bounds = dict(lowers(run))
    found = {
        (name, delta): bound.epsilon(delta) for name, bound in bounds.items() for delta in DELTAS
    }
    exact = np.max([deltas((*EPSILONS, *found.values()), *pair) for pair in worlds], axis=0)
    for name, bound in bounds.items():
        met[name] += 1
        for epsilon, true in zip(EPSILONS, exact[: len(EPSILONS)], strict=True):
            shown = bound.delta(epsilon)
            assert shown <= true + 1e-7, (name, run, epsilon)
            near[name] += shown > 0.98 * true and true > 1e-4
    uppers = li.account(run, min_evidence=ASSUMED) if found and certified else None
    above = {delta: uppers.epsilon(delta) if uppers else math.inf for delta in DELTAS}
    for (at, epsilon), true in zip(found.items(), exact[len(EPSILONS) :], strict=True):
        assert true >= at[1] * (1 - 1e-6) - 1e-7 or epsilon == 0, (at, run)
        assert epsilon <= above[at[1]], (at, run)


def everyone(run):
    """The records whose places differ: with secret batches one stands for all."""
    return range(run.n) if isinstance(run.batching, li.Cyclic) else [0]


@pytest.mark.parametrize("kind", SIZES)
def test_linear_records_and_a_ridge(kind):
    rng, met, near = np.random.default_rng(31), Counter(), Counter()
    for number in range(50 if kind in LENGTHS else 80):
        run = draw(rng, kind)
        ridge = float(rng.choice([0.0, rng.uniform(0.01, 1.0)]))
        run = replace(run, loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=ridge))
        if rng.random() < 0.3:
            run = replace(run, clip=float(rng.uniform(0.3, 1.2)))
        pull = min(1.0, run.clip or 1.0)
        behind = -pull if run.adjacency == "replace-one" else 0.0
        worlds = [flat(run, pull, behind, ridge, record) for record in everyone(run)]
        below(run, worlds, met, near, number % BETWEEN == 1 % BETWEEN)
    assert sum(met.values()) >= 40 and sum(near.values()) > 20, (met, near)


def assert_linear_response_below(rng, runs):
    """Runs of linear records and a ridge, by the code of the rules that the trainer executes."""
    met, near, drawn = Counter(), Counter(), 0
    for drawn, run in enumerate(runs, 1):
        ridge = float(rng.choice([0.0, rng.uniform(0.01, 1.0)]))
        run = replace(run, loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=ridge))
        behind = -1.0 if run.adjacency == "replace-one" else 0.0
        worlds = [flat(run, 1.0, behind, ridge, record) for record in everyone(run)]
        below(run, worlds, met, near, drawn % BETWEEN == 1 % BETWEEN)
    name = "linear-response-witness"
    assert met[name] == drawn and near[name] > drawn / 2, (met, near)


@pytest.mark.parametrize("kind", SIZES)
def test_momentum_on_linear_records_and_a_ridge(kind):
    rng = np.random.default_rng(41)
    rules = (
        li.HeavyBall(float(rng.uniform(0, 0.95))) if rng.random() < 0.6 else li.Nesterov()
        for _ in range(40)
    )
    assert_linear_response_below(rng, (replace(draw(rng, kind), optimizer=each) for each in rules))


@pytest.mark.parametrize("kind", ["FullBatch", "Cyclic", "Permuted", "BallsInBins"])
def test_noise_that_later_steps_take_back(kind):
    """With and without momentum; the law draws the noise as it is described."""
    rng = np.random.default_rng(42)

    def draw_correlated(number):
        noise = li.Correlated(
            float(rng.uniform(0.5, 4)),
            band=int(rng.integers(1, 5)),
            power=float(rng.choice([0.5, 0.3])),
            decay=float(rng.choice([0.0, 0.9])),
        )
        rule = [None, li.HeavyBall(0.8), li.Nesterov()][number % 3]
        loss = li.Logistic(row_norm=1.0, intercept=0.0)  # what the noise is a multiple of
        return replace(draw(rng, kind), loss=loss, noise=noise, optimizer=rule)

    assert_linear_response_below(rng, map(draw_correlated, range(30)))


def grid_delta(epsilon, weights, mus, of_mean, opposed):
    """The hockey-stick of the pair in two coordinates, by sums over a grid; both orders."""
    x, y = np.arange(-9, 12, 0.02), np.arange(-7, 8, 0.02)

    def density(sign):
        along = np.exp(-((x[:, None] - sign * np.array(mus)) ** 2) / 2) @ np.array(weights)
        return np.outer(along, np.exp(-((y - sign * of_mean) ** 2) / 2)) / (2 * np.pi)

    one, two = density(1.0), density(-opposed)
    return max(
        float(np.maximum(p - math.exp(epsilon) * q, 0).sum()) * 0.02**2
        for p, q in ((one, two), (two, one))
    )


@pytest.mark.parametrize("rule", [None, li.HeavyBall(0.8)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize("batching", [li.FullBatch(), li.Permuted(5), li.RandomAllocation(5)])
def test_steps_behind_a_noisy_mean(adjacency, batching, rule):
    """The mean is a second coordinate: never above its exact pair, near it, and above the steps
    alone."""
    run = li.Run(
        n=20,
        steps=16,
        step_size=0.5,
        noise=li.NoiseMultiplier(6.0),
        batching=batching,
        adjacency=adjacency,
        optimizer=rule,
        loss=li.Logistic(row_norm=1.0, intercept=0.0),
    )
    prepared = replace(run, preprocessing=(li.PrivateMean(noise_multiplier=2.5, row_norm=1.0),))
    ((_, alone),), found = lowers(run), dict(lowers(prepared))["linear-response-witness"]
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        true = grid_delta(epsilon, alone.weights, alone.mus, 0.4, alone.opposed)
        assert alone.delta(epsilon) < 0.95 * found.delta(epsilon)
        assert 0.9 * true < found.delta(epsilon) <= true + 1e-6
    assert found.epsilon(1e-4) <= li.account(prepared).epsilon(1e-4)


def test_noisy_means_of_rows_and_targets_are_two_releases():
    run = li.Run(n=20, steps=16, step_size=0.5, noise=li.NoiseMultiplier(6.0), loss=li.HuberRidge())
    means = (li.PrivateTargetMean(noise_multiplier=4.0), li.PrivateMean(3.0, row_norm=1.0))
    name = "linear-response-witness"
    ((_, alone),), found = lowers(run), dict(lowers(replace(run, preprocessing=means)))[name]
    assert found.mu == pytest.approx(math.sqrt(alone.mu**2 + 1 / 16 + 1 / 9), rel=1e-12)
    assert found.epsilon(1e-4) <= li.account(replace(run, preprocessing=means)).epsilon(1e-4)
    for parts in (
        (*means, li.PrivateMean(3.0, row_norm=1.0)),
        (*means, li.PrivateCovariance(noise_multiplier=5.0)),
    ):
        assert match(TABLE[name], replace(run, preprocessing=parts)).bound == found
    between = (means[0], li.PrivateCovariance(noise_multiplier=5.0), means[1])
    counted = match(TABLE[name], replace(run, preprocessing=between)).bound
    assert counted == match(TABLE[name], replace(run, preprocessing=means[:1])).bound
    behind = replace(run, preprocessing=(li.PrivateCovariance(noise_multiplier=5.0), *means))
    assert isinstance(match(TABLE[name], behind), Fails)
    assert match(TABLE["quadratic-witness"], behind).bound == alone


def test_a_measured_scale_of_the_steps_changes_nothing():
    """Without a ridge: step sizes that a measurement scales, and a public factor of the weights."""
    values = tuple(np.linspace(1.0, 0.1, 40).tolist())
    run = li.Run(
        n=40,
        steps=40,
        step_size=li.StepSchedule(values),
        noise=li.NoiseMultiplier(5.0),
        batching=li.RandomAllocation(10),
        optimizer=li.HeavyBall(0.9),
        clip=0.1,
        loss=li.Logistic(row_norm=1.0),
    )
    found = match(TABLE["linear-response-witness"], run).bound
    scaled = replace(run, step_size=li.StepSchedule(tuple(0.01 * v for v in values)))
    other = match(TABLE["linear-response-witness"], scaled).bound
    np.testing.assert_allclose(other.mus, found.mus, rtol=1e-9)
    measured = replace(
        run,
        preprocessing=(li.PrivateCovariance(noise_multiplier=5.0),),
        step_size=li.StableSteps(values),
        probability_calibration=li.AssumedSlope(0.5),
    )
    assert match(TABLE["linear-response-witness"], measured).bound == found
    bent = replace(measured, loss=li.Logistic(row_norm=1.0, ridge=0.01))
    assert match(TABLE["linear-response-witness"], bent).bound.epsilon(1e-5) == 0
    paid = replace(measured, probability_calibration=li.Calibration(noise_multiplier=9.0))
    assert isinstance(match(TABLE["linear-response-witness"], paid), Fails)


@pytest.mark.parametrize("rule", [None, li.HeavyBall(0.9)])
def test_no_lower_bound_where_a_measurement_hides_the_ridge_or_the_weights(rule):
    """Steps relative to a measured smoothness: with a ridge every loss of the class contracts, and
    linear losses without one leak .477 and more, which is no bound for this class."""
    run = li.Run(
        n=1000,
        steps=50,
        step_size=li.RelativeToSmooth(1.9),
        noise=li.NoiseMultiplier(50.0),
        loss=li.Logistic(row_norm=1.0),
        preprocessing=(li.TopEigenvalue(30.0),),
        optimizer=rule,
    )
    assert li.account(run).lower(1e-5) > 0.4
    ridged = replace(run, loss=li.Logistic(row_norm=1.0, ridge=0.1))
    assert li.account(ridged).lower(1e-5) == 0
    # smooth is at most 1/4 (1 + intercept^2) + ridge, and every step contracts by so much
    smooth = ridged.loss.facts().fact("smooth")
    exact = exact_mu(1.9 * 0.1 / smooth, [1.0] * 50, [50.0 / 1000] * 50, [1 / 1000] * 50)
    assert Gdp(exact).epsilon(1e-5) < 0.3
    calibrated = replace(run, probability_calibration=li.Calibration(noise_multiplier=9.0))
    assert li.account(calibrated).lower(1e-5) == 0


@pytest.mark.parametrize("kind", [kind for kind in SIZES if kind != "Poisson"])
def test_curvature_in_the_records(kind):
    """smooth = strong: these are the only losses of the class; in short blocks and bins their steps
    differ."""
    rng, met, near = np.random.default_rng(32), Counter(), Counter()
    for number in range(50 if kind in LENGTHS else 80):
        strong, sensitivity = float(rng.uniform(0.05, 1.0)), float(rng.uniform(0.5, 3))
        facts = li.LossFacts(sensitivity=sensitivity, smooth=strong, strong=strong)
        run = replace(draw(rng, kind), adjacency="replace-one", loss=li.KnownConstants(facts))
        if rng.random() < 0.4:
            run = replace(run, optimizer=li.HeavyBall(0.7))
        worlds = [curved(run, sensitivity, 0.0, strong, record) for record in everyone(run)]
        below(run, worlds, met, near, number % BETWEEN == 1 % BETWEEN)
    assert sum(met.values()) > 10 or kind in ("BallsInBins", "RandomAllocation"), met


def test_a_short_block_with_curvature_in_the_records():
    """Smooth = strong = 1 leaves one loss; the recursion with 1 - step strong at every step is not
    its law."""
    facts = li.LossFacts(sensitivity=2.0, smooth=1.0, strong=1.0)
    run = li.Run(
        n=3,
        steps=8,
        step_size=li.Constant(1.9),
        noise=li.GradientNoise(1.0),
        batching=li.Cyclic(2),
        adjacency="replace-one",
        loss=li.KnownConstants(facts),
    )
    share = np.where(np.arange(8) % 2 == 0, 1.0, 0.5)
    met = [np.where(np.arange(8) % 2 == place, 1.0, 0.0) for place in (0, 1)]
    exact = Gdp(max(exact_mu(share, [1.9] * 8, [1.0] * 8, pull) for pull in met)).epsilon(1e-5)
    false = Gdp(max(exact_mu(1.0, [1.9] * 8, [1.0] * 8, pull) for pull in met)).epsilon(1e-5)
    found = li.account(run, min_evidence=ASSUMED).lower(1e-5)
    assert exact == pytest.approx(4.149, abs=2e-3) and false == pytest.approx(6.758, abs=2e-3)
    assert exact * (1 - 1e-6) < found <= exact, "and the right law is reached"
    ridged = replace(
        run, loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=1.0), step_size=li.Constant(1.5)
    )
    assert li.account(ridged).lower(1e-5) > 0, "a ridge is outside the records"


def test_bins_with_curvature_in_the_records():
    """Who else is in a record's bin decides how much it curves: claimed .357 at epsilon 1/2, true
    at most .281."""
    facts = li.LossFacts(sensitivity=1.0, smooth=1.0, strong=1.0)
    run = li.Run(
        n=2,
        steps=4,
        step_size=li.Constant(0.7),
        noise=li.GradientNoise(1.0),
        batching=li.BallsInBins(1),
        adjacency="replace-one",
        loss=li.KnownConstants(facts),
    )
    refused = match(TABLE["quadratic-witness"], run)
    assert isinstance(refused, Fails) and "curvature in the records" in refused.reasons[0]
    assert li.account(run, min_evidence=ASSUMED).lower(1e-3) <= 0
    ridge = replace(run, loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=1.0))
    assert isinstance(match(TABLE["quadratic-witness"], ridge), Applies)


@pytest.mark.parametrize("name", ["quadratic-witness", "langevin-lower-bound", "linear-witness"])
def test_no_float_allowance_in_a_lower_bound(name):
    """The allowance for floating-point sums belongs to upper bounds; no loss of the class attains
    it."""
    run = li.Run(
        n=10,
        steps=30,
        step_size=li.Constant(0.1),
        noise=li.Langevin(0.5),
        batching=li.FixedSize(10) if name == "linear-witness" else li.FullBatch(),
        loss=li.Logistic(
            row_norm=1.0, intercept=0.0, ridge=0.0 if name == "linear-witness" else 0.2
        ),
    )
    assert run.facts().fact("sensitivity") >= 1 + FLOAT_SLACK
    bend, std = run.loss.ridge, run.first_noise
    exact = exact_mu(bend, [0.1] * 30, [std] * 30, [1 / 10] * 30)
    found = match(TABLE[name], run).bound
    assert found.epsilon(1e-5) <= Gdp(exact).epsilon(1e-5) * (1 + 1e-9)
    assert found.delta(0.5) <= Gdp(exact).delta(0.5) and found.delta(0.5) > 0
    if name != "langevin-lower-bound":
        assert found.epsilon(1e-5) == pytest.approx(Gdp(exact).epsilon(1e-5), rel=1e-6)


def test_a_replaced_record_shifts_the_other_way():
    """Under replace-one the neighbour has a place of its own: mixtures of +mu and -mu, not of 2 mu
    and 0."""
    run = li.Run(
        n=40,
        steps=40,
        step_size=li.Constant(0.5),
        noise=li.GradientNoise(0.3),
        batching=li.Permuted(1),
        adjacency="replace-one",
        loss=li.Logistic(row_norm=1.0, intercept=0.0, ridge=0.2),
    )
    found = match(TABLE["quadratic-witness"], run).bound
    assert found.opposed == 1 and li.Run.from_json(run.to_json()) == run
    given = li.KnownConstants(li.LossFacts(sensitivity=1.5, lipschitz=1.0, smooth=1.0, strong=0.0))
    assert match(TABLE["quadratic-witness"], replace(run, loss=given)).bound.opposed == 0.5
    only = li.KnownConstants(li.LossFacts(sensitivity=1.5, smooth=1.0, strong=0.0))
    assert match(TABLE["quadratic-witness"], replace(run, loss=only)).bound.opposed == 0
    mus, weights = np.array(found.mus), np.array(found.weights)
    std = 1.0
    worlds = [[(w, sign * m, std) for w, m in zip(weights, mus, strict=True)] for sign in (1, -1)]
    epsilon = found.epsilon(1e-4)
    assert deltas([epsilon], *worlds)[0] == pytest.approx(1e-4, rel=1e-3)
    wrong = deltas(
        [epsilon], [(w, 2 * m, std) for w, m in zip(weights, mus, strict=True)], [(1.0, 0.0, std)]
    )[0]
    assert wrong > 1.05e-4, (
        "a record that is only known to lie 2 L from its neighbour would be told apart too well"
    )
    assert math.isfinite(epsilon)
