"""Lower bounds from their own recursions, run step by step: responses, variances, positions, edges.

A number that is too large would be a false claim about every analysis of the class.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.curves.lower_bound import Largest, MixturePair
from lastiterate.testing.exact_distributions import exact_mu
from lastiterate.theorems import TABLE, witnesses
from lastiterate.theorems.theorem import match
from oracles.cancelling import added

N, STEPS = 6, 5
LISTED = (0.3, 0.6, 0.2, 0.5, 0.4)
STDS = (0.8, 0.5, 1.1, 0.9, 0.7)


def run_of(facts=None, **changes):
    settings = dict(
        n=N,
        steps=STEPS,
        step_size=0.3,
        noise=li.GradientNoise(0.8),
        loss=li.KnownConstants(li.LossFacts(**(facts or {"sensitivity": 1.3}))),
    )
    return li.Run(**settings | changes)


def bound(name, run):
    return match(TABLE[name], run).bound


SCHEDULES = {
    "constant": {},
    "steps": {"step_size": LISTED},
    "noise": {"noise": li.GradientNoise(STDS)},
    "both": {"step_size": LISTED, "noise": li.GradientNoise(STDS)},
}
STARTS = [li.FixedStart(), li.GaussianStart(0.4), li.GaussianStart(1.7)]


# Langevin dynamics.


@pytest.mark.parametrize(
    ("facts", "adjacency", "apart"),
    [
        ({"sensitivity": 1.3}, "zero-out", 1.3),
        ({"lipschitz": 0.9}, "zero-out", 0.9),
        ({"lipschitz": 0.9}, "replace-one", 1.8),
        ({"lipschitz": 0.9, "sensitivity": 1.2}, "replace-one", 1.2),
    ],
)
def test_langevin_lower_bound(facts, adjacency, apart):
    for steps, strong in ((1, 0.7), (9, 0.7), (4, 0.2)):
        constants = li.KnownConstants(li.LossFacts(smooth=1.0, strong=strong, **facts))
        run = run_of(loss=constants, steps=steps, noise=li.Langevin(0.6), adjacency=adjacency)
        squared = (apart / (0.6 * N)) ** 2
        slope = squared / (4 * strong) * (1 - math.exp(-strong * 0.3 * steps))
        assert bound("langevin-lower-bound", run).mu == pytest.approx(
            math.sqrt(2 * slope), rel=1e-12
        )


# Plain steps, positions that are kept.


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("bend", [0.0, 0.4, 3.0, 5.0])
@pytest.mark.parametrize("size", [6, 3, 2, 1])
def test_quadratic_losses_by_recursion(schedule, start, bend, size):
    facts = {"sensitivity": 1.3, "smooth": 6.0, "strong": bend}
    run = run_of(facts, batching=li.Permuted(size), start=start, **SCHEDULES[schedule])
    found = witnesses.witness_mus(run)
    for place in range(run.blocks):
        pull = np.where(np.arange(STEPS) % run.blocks == place, 1.3 / size, 0.0)
        exact = exact_mu(bend, run.step_sizes, run.noise_stds, pull, start.std)
        assert abs(found[place]) == pytest.approx(exact, rel=1e-11, abs=1e-15)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("batching", [li.Cyclic(4), li.Permuted(4)])
def test_curvature_in_the_records_of_a_short_block(schedule, batching):
    """Six records in blocks of four and two: the smaller mu of both readings."""
    for bend in (0.5, 1.0, 1.5):
        facts = {"sensitivity": 1.3, "smooth": 4.0, "strong": bend}
        run = run_of(facts, batching=batching, **SCHEDULES[schedule])
        found = witnesses.witness_mus(run)
        for place in (0, 1):
            pull = np.where(np.arange(STEPS) % 2 == place, 1.3 / 4, 0.0)
            shares = np.where(np.arange(STEPS) % 2 == 0, 1.0, 0.5)
            exact = min(
                exact_mu(curve, run.step_sizes, run.noise_stds, pull)
                for curve in (bend, bend * shares)
            )
            assert abs(found[place]) == pytest.approx(exact, rel=1e-11)


@pytest.mark.parametrize("batching", [li.Cyclic(4), li.Permuted(4)])
def test_no_statement_where_positions_shift_to_either_side(batching):
    """Which reading is harder to see depends on the other positions, if they are secret."""
    facts = {"sensitivity": 1.3, "smooth": 4.0, "strong": 4.0}
    for step, same in ((0.2, True), (0.3, False)):  # factors of .2 and .6, and of -.2 and .4
        run = run_of(facts, steps=2, batching=batching, step_size=step)
        exact = [
            min(
                exact_mu(curve, [step] * 2, [0.8] * 2, pull)
                for curve in (4.0, np.array([4.0, 2.0]))
            )
            for pull in ([1.3 / 4, 0.0], [0.0, 1.3 / 4])
        ]
        silent = batching == li.Permuted(4) and not same
        found = witnesses.witness_mus(run)
        assert found == pytest.approx([0.0, 0.0] if silent else exact, rel=1e-11)
        assert (bound("quadratic-witness", run).delta(0.0) == 0) == silent


def test_ratios_without_noise_or_beyond_double_precision():
    ratio = witnesses._ratio
    assert ratio([0.0, 0.5, -2.0], 0.0, noisy=False).tolist() == [0.0, math.inf, math.inf]
    assert ratio([0.0, 0.5], 0.0, noisy=True).tolist() == [0.0, 0.0]
    assert ratio([0.0, 0.5], math.inf, noisy=True).tolist() == [0.0, 0.0]
    assert ratio([0.0, 0.5, 3.0], 0.25, noisy=True).tolist() == [0.0, 1.0, 6.0]
    assert ratio([math.inf, -math.inf, math.nan], 0.25, noisy=True).tolist() == [0.0] * 3


@pytest.mark.parametrize("schedule", ["constant", "both"])
def test_a_quiet_run_is_seen_and_a_random_start_hides(schedule):
    quiet = li.GradientNoise(0.0 if schedule == "constant" else (0.0,) * STEPS)
    changes = SCHEDULES[schedule] | {"noise": quiet}
    run = run_of(batching=li.Cyclic(3), **changes)
    assert bound("quadratic-witness", run).mu == math.inf
    partly = run_of(batching=li.Cyclic(3), steps=2, noise=li.GradientNoise((0.0, 0.7)))
    exact = exact_mu(0.0, [0.3] * 2, [0.0, 0.7], [1.3 / 3, 0.0])
    assert bound("quadratic-witness", partly).mu == pytest.approx(exact, rel=1e-12)
    for std in (0.5, 1.0, 2.0):
        hidden = replace(run, start=li.GaussianStart(std))
        pull = np.where(np.arange(STEPS) % 2 == 0, 1.3 / 3, 0.0)
        other = 1.3 / 3 - pull
        exact = max(
            exact_mu(0.0, run.step_sizes, [0.0] * STEPS, each, std) for each in (pull, other)
        )
        assert bound("quadratic-witness", hidden).mu == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_long_runs_that_are_not_followed(monkeypatch, limit):
    """No statement, unless steps contract without a change of sign."""
    monkeypatch.setattr(witnesses, "LONGEST_QUADRATIC", limit)
    for step, stated in ((0.3, True), (0.249, True), (0.25, limit >= STEPS), (0.9, limit >= STEPS)):
        facts = {"sensitivity": 1.3, "smooth": 4.0, "strong": 1.0 if step == 0.3 else 4.0}
        run = run_of(facts, step_size=step)
        assert (bound("quadratic-witness", run).mu > 0) == stated
        listed = replace(run, noise=li.GradientNoise(STDS))
        assert (bound("quadratic-witness", listed).mu > 0) == (limit >= STEPS)


def test_pairs_of_positions():
    public, secret = run_of(batching=li.Cyclic(3)), run_of(batching=li.Permuted(4))
    pair = witnesses._bound_positions
    assert pair(public, np.array([0.3, -0.7])) == MixturePair((1.0,), (0.7,))
    assert pair(secret, np.array([0.3, 0.7])) == MixturePair((4 / 6, 2 / 6), (0.3, 0.7))
    assert pair(secret, np.array([0.0, 0.7])) == MixturePair((4 / 6, 2 / 6), (0.0, 0.7))
    assert pair(secret, np.array([-0.3, -0.7])) == MixturePair((4 / 6, 2 / 6), (0.3, 0.7))
    assert pair(secret, np.zeros(2)) == MixturePair.of_one(0.0)
    both = pair(secret, np.array([0.3, -0.7]))
    weights = (4 / 6, 2 / 6)
    assert both == Largest((MixturePair(weights, (0.3, -0.7)), MixturePair(weights, (-0.3, 0.7))))
    given = li.KnownConstants(li.LossFacts(lipschitz=2.0))
    opposed = replace(public, adjacency="replace-one", loss=given)
    assert pair(opposed, np.array([0.3, 0.7])) == MixturePair((1.0,), (0.7,), 1.0)


def test_many_positions_on_either_side_say_nothing(monkeypatch):
    secret, pair = run_of(batching=li.Permuted(2)), witnesses._bound_positions
    mus = np.array([0.3, -0.7, 0.2])
    for most in (3, 2):
        monkeypatch.setattr(witnesses, "MOST_MERGED", most)
        assert isinstance(pair(secret, mus), Largest) == (most == 3)
        assert pair(secret, np.abs(mus)) == MixturePair((1 / 3,) * 3, (0.3, 0.7, 0.2))
    assert pair(secret, mus) == MixturePair.of_one(0.0)


# Draws.


@pytest.mark.parametrize(
    ("batching", "expected"),
    [
        (li.Poisson(0.3), [0.3]),
        (li.FixedSize(2), [1 / 3]),
        (li.Reshuffled(4), [4 / 6, 2 / 6]),
        (li.RandomAllocation(2), [1 / 3] * 3),
    ],
)
def test_chances_of_a_record(batching, expected):
    assert witnesses.chances(run_of(batching=batching)) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("bend", [0.0, 0.4, 3.0])
def test_the_spread_of_the_last_iterate(schedule, start, bend):
    run = run_of(start=start, **SCHEDULES[schedule])
    later, variance = witnesses._spread(run, bend)
    factors, exact = [1.0], start.std**2
    for eta, std in zip(run.step_sizes, run.noise_stds, strict=True):
        exact = (1 - eta * bend) ** 2 * exact + (eta * std) ** 2
    for eta in run.step_sizes[:0:-1]:
        factors.append(factors[-1] * (1 - eta * bend))
    assert variance == pytest.approx(exact, rel=1e-13)
    assert (later is None) == (schedule == "constant")
    if later is not None:
        assert later == pytest.approx(factors[::-1], rel=1e-13)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ridge", [0.0, 0.4, 3.0, 5.0])
@pytest.mark.parametrize("batching", [li.Poisson(0.5), li.FixedSize(2), li.RandomAllocation(3)])
def test_the_mean_shift_of_drawn_records(schedule, ridge, batching):
    """The mixture's mean is the shift of every step, each by its chance, over the deviation."""
    loss = li.Logistic(intercept=0.0, ridge=ridge)
    run = run_of(loss=loss, batching=batching, **SCHEDULES[schedule])
    chance = {"Poisson": 0.5, "FixedSize": 1 / 3}.get(type(batching).__name__, 0.5)
    pull = np.full(STEPS, chance / run.divisor)
    mean, variance = 0.0, 0.0
    for eta, std, each in zip(run.step_sizes, run.noise_stds, pull, strict=True):
        mean = (1 - eta * ridge) * mean + eta * each
        variance = (1 - eta * ridge) ** 2 * variance + (eta * std) ** 2
    if isinstance(batching, li.RandomAllocation):  # a pass that is cut short: half of it
        assert run.blocks == 2
    found = bound("linear-witness", run)
    sides = found.bounds if isinstance(found, Largest) else (found,)
    assert len(sides) == (2 if ridge * max(run.step_sizes[1:]) > 1 else 1)
    for sign, side in zip((1, -1), sides, strict=False):
        middle = float(np.dot(side.weights, side.mus))
        exact = sign * mean / math.sqrt(variance)
        assert exact - 2e-3 < middle <= exact + 1e-12


@pytest.mark.parametrize("limit", [4, 5])
def test_sums_that_are_too_long_say_nothing(monkeypatch, limit):
    monkeypatch.setattr(witnesses, "LONGEST", limit)
    for ridge, schedule, stated in (
        (0.0, "constant", True),
        (3.0, "constant", True),
        (10 / 3, "constant", limit == 5),
        (4.0, "constant", limit == 5),
        (0.0, "both", limit == 5),
    ):
        loss = li.Logistic(intercept=0.0, ridge=ridge)
        run = run_of(loss=loss, batching=li.Poisson(0.5), **SCHEDULES[schedule])
        assert (bound("linear-witness", run).delta(0.0) > 0) == stated


@pytest.mark.filterwarnings("error")
def test_a_map_to_one_point_is_accounted_without_a_warning():
    loss = li.Logistic(intercept=0.0, ridge=2.0)
    run = run_of(loss=loss, batching=li.Poisson(0.5), step_size=0.5)
    assert bound("linear-witness", run).delta(0.0) > 0


def test_sums_beyond_double_precision_say_nothing():
    run = run_of(loss=li.Logistic(ridge=1e9), batching=li.Poisson(0.5), step_size=1e9, steps=30)
    assert bound("linear-witness", run).delta(0.0) == 0


def test_draws_without_noise_or_gradient():
    silent = run_of(batching=li.Poisson(0.5), noise=li.GradientNoise(0.0))
    assert bound("linear-witness", silent).delta(50.0) == pytest.approx(1 - 0.5**STEPS, rel=1e-6)
    nothing = run_of({"sensitivity": 0.0}, batching=li.Poisson(0.5), noise=li.GradientNoise(0.0))
    assert bound("linear-witness", nothing) == MixturePair.of_one(0.0)
    weak = run_of({"sensitivity": 1e-3}, batching=li.Poisson(0.5))
    assert 0 < bound("linear-witness", weak).delta(0.0) < 1e-3


# Linear update rules.


def run_rule(run, bend, gradients, start=0.0):
    """The last iterate of the rule, written down once more."""
    theta = last = start
    velocity, rule = 0.0, run.optimizer
    for k, (eta, gradient) in enumerate(zip(run.step_sizes, gradients, strict=True)):
        if isinstance(rule, li.Nesterov):
            point = theta + k / (k + 3) * (theta - last)
            theta, last = point - eta * (gradient + bend * point), theta
        else:
            beta = rule.beta if rule is not None else 0.0
            velocity = beta * velocity + gradient + bend * theta
            theta = theta - eta * velocity
    return theta


RULES = [None, li.HeavyBall(0.9), li.HeavyBall(0.3), li.Nesterov()]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("schedule", ["constant", "steps"])
@pytest.mark.parametrize("bend", [0.0, 0.4, 3.0])
def test_responses_to_one_gradient(rule, schedule, bend):
    run = run_of(optimizer=rule, **SCHEDULES[schedule])
    responses, of_start = witnesses._responses(run, bend)
    exact = [-run_rule(run, bend, np.eye(STEPS)[k]) for k in range(STEPS)]
    assert responses == pytest.approx(exact, rel=1e-12)
    assert of_start == pytest.approx(run_rule(run, bend, np.zeros(STEPS), 1.0), rel=1e-12)


@pytest.mark.parametrize(
    "noise",
    [
        li.GradientNoise(0.8),
        li.GradientNoise(STDS),
        li.Correlated(0.8, (1.0, 0.5, 0.3)),
        li.Correlated(0.8, 2, decay=0.5),
    ],
)
def test_variance_of_a_sum_of_noise(noise):
    run = run_of({"sensitivity": 1.3, "lipschitz": 2.0}, noise=noise)
    responses = np.array([0.3, -0.2, 0.5, 0.1, 0.9])
    exact = ((responses * run.noise_stds) @ added(noise, STEPS)) ** 2
    assert witnesses._response_variance(run, responses) == pytest.approx(exact.sum(), rel=1e-12)


@pytest.mark.parametrize("rule", RULES[1:])
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("ridge", [0.0, 0.4])
@pytest.mark.parametrize("batching", [li.FullBatch(), li.Cyclic(3), li.Permuted(3)])
def test_momentum_by_recursion(rule, start, ridge, batching):
    loss = li.Logistic(intercept=0.0, ridge=ridge)
    run = run_of(loss=loss, optimizer=rule, start=start, batching=batching)
    unit = np.array([-run_rule(run, ridge, np.eye(STEPS)[k]) for k in range(STEPS)])
    variance = ((0.8 * unit) ** 2).sum()
    variance += (start.std * run_rule(run, ridge, np.zeros(STEPS), 1.0)) ** 2
    exact = [
        unit[place :: run.blocks].sum() / run.divisor / math.sqrt(variance)
        for place in range(run.blocks)
    ]
    found = bound("linear-response-witness", run)
    if isinstance(batching, li.Permuted):
        assert found.mus == pytest.approx(exact, rel=1e-11)
    else:
        assert found.mu == pytest.approx(max(exact), rel=1e-11)


@pytest.mark.parametrize("batching", [li.Poisson(0.5), li.FixedSize(2)])
def test_momentum_of_drawn_records(batching):
    run = run_of(optimizer=li.HeavyBall(0.9), batching=batching)
    unit = np.array([-run_rule(run, 0.0, np.eye(STEPS)[k]) for k in range(STEPS)])
    mean = unit.sum() * run.sampling_rate * 1.3 / run.divisor
    found = bound("linear-response-witness", run)
    middle = float(np.dot(found.weights, found.mus))
    exact = mean / math.sqrt(((0.8 * unit) ** 2).sum())
    assert exact - 1e-3 < middle <= exact + 1e-12
    turning = run_of(optimizer=li.HeavyBall(0.9), batching=batching, loss=li.Logistic(ridge=3.0))
    assert isinstance(bound("linear-response-witness", turning), Largest)


def test_where_responses_say_nothing(monkeypatch):
    """Curvature in clipped records or unequal batches, long runs, and no noise."""

    def says(run):
        return bound("linear-response-witness", run).delta(0.0) > 0

    curved = li.KnownConstants(li.LossFacts(sensitivity=1.3, smooth=1.0, strong=0.5))
    momentum = run_of(loss=curved, optimizer=li.HeavyBall(0.5))
    unit = np.array([run_rule(momentum, 0.5, np.eye(STEPS)[k]) for k in range(STEPS)])
    exact = 1.3 / N * abs(unit.sum()) / math.sqrt(((0.8 * unit) ** 2).sum())
    assert bound("linear-response-witness", momentum).mu == pytest.approx(exact, rel=1e-11)
    assert says(replace(momentum, batching=li.Cyclic(3)))
    assert not says(replace(momentum, batching=li.Cyclic(4)))
    flat = run_of(optimizer=li.HeavyBall(0.5))
    assert says(replace(flat, batching=li.Cyclic(4))) and says(replace(flat, clip=1.0))
    assert not says(replace(flat, noise=li.GradientNoise(0.0)))
    zero = run_of({"sensitivity": 0.0}, optimizer=li.HeavyBall(0.5))
    assert not says(zero) and not says(replace(zero, noise=li.GradientNoise(0.0)))
    for limit in (4, 5):
        monkeypatch.setattr(witnesses, "LONGEST", limit)
        assert says(flat) == (limit == 5)


def test_long_recursions_of_correlated_noise_say_nothing(monkeypatch):
    facts = {"sensitivity": 1.3, "lipschitz": 2.0}
    run = run_of(facts, noise=li.Correlated(0.8, (1.0, 0.5, 0.3)))
    for most in (15, 14):
        monkeypatch.setattr(witnesses, "MOST_PRODUCTS", most)
        found = witnesses._response_variance(run, np.ones(STEPS))
        assert (found < math.inf) == (most == 15)
        assert (bound("linear-response-witness", run).delta(0.0) > 0) == (most == 15)


# Noisy means before the steps.


def with_means(bound_of_steps, *means):
    run = run_of(loss=li.HuberRidge(), noise=li.NoiseMultiplier(2.0), preprocessing=means)
    return witnesses._with_noisy_means(run, bound_of_steps)


ROWS, TARGETS = li.PrivateMean(2.5, 1.0), li.PrivateTargetMean(4.0)


@pytest.mark.parametrize(
    ("means", "length"),
    [
        ((ROWS,), 1 / 2.5),
        ((TARGETS,), 1 / 4.0),
        ((TARGETS, ROWS), math.hypot(1 / 4.0, 1 / 2.5)),
    ],
)
def test_means_are_a_second_coordinate(means, length):
    """Atoms (mu_j, mean) seen along the direction of (mean of the mus, mean)."""
    pair = MixturePair((0.25, 0.75), (0.2, 0.8), 0.5)
    middle = 0.25 * 0.2 + 0.75 * 0.8
    whole = math.hypot(middle, length)
    exact = [(mu * middle + length**2) / whole for mu in pair.mus]
    found = with_means(pair, *means)
    assert found.mus == pytest.approx(exact, rel=1e-13)
    assert (found.weights, found.opposed) == (pair.weights, 0.5)
    several = with_means(Largest((pair, MixturePair.of_one(0.7))), *means)
    assert several.bounds[0] == found
    assert several.bounds[1].mus == pytest.approx([math.hypot(0.7, length)], rel=1e-13)


@pytest.mark.parametrize(
    "pair",
    [
        MixturePair.of_one(0.0),
        MixturePair.of_one(math.inf),
        MixturePair((0.5, 0.5), (-0.8, 0.2)),
        MixturePair((0.5, 0.5), (-0.2, 0.2)),
        MixturePair((0.5, 0.5), (-math.inf, math.inf)),
    ],
)
def test_means_turn_no_other_pairs(pair):
    assert with_means(pair, ROWS) == pair


def test_steps_without_means_stay():
    pair = MixturePair.of_one(0.7)
    assert with_means(pair) == pair and with_means(pair, li.UnitRows()) == pair
    assert with_means(pair, li.UnitRows(), ROWS) == pair, "what comes first may shorten a row"
