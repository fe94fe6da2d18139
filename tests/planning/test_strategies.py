"""What correlated noise leaves of itself at the end: published strategies, the planner's, and the
executed filter."""

import math
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from benchmarks.peers.strategy_noise import at_the_end, on_the_way, seasonal
from lastiterate.analysis.shifts import shift_in_draws
from lastiterate.curves.gaussian import Gdp
from lastiterate.planning.families import make_correlated_run
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import consider
from lastiterate.planning.predicted_risk import filter_response
from lastiterate.planning.presets import describe_algorithm
from lastiterate.planning.task import POWERS, Task
from lastiterate.run.facts import FLOAT_SLACK
from oracles.cancelling import added

# blocks, passes: independent, band l, band 2l, each (at the end, root mean square on the way)
TABLE = {
    (20, 20): ((89.4, 63.3), (26.4, 19.4), (24.9, 19.0)),
    (20, 50): ((223.6, 158.2), (64.4, 46.3), (59.6, 43.6)),
    (100, 3): ((30.0, 21.2), (5.7, 4.8), (5.8, 5.2)),
    (100, 10): ((100.0, 70.7), (15.7, 12.1), (15.0, 12.3)),
    (1000, 1): ((31.6, 22.4), (3.3, 3.1), (3.3, 3.1)),
}


@pytest.mark.parametrize("shape", TABLE, ids=str)
def test_the_square_root_reproduces_the_table_of_the_proof_note(shape):
    blocks, passes = shape
    for band, (end, way) in zip((1, blocks, 2 * blocks), TABLE[shape], strict=True):
        noise = li.Correlated(1.0, band)
        assert at_the_end(noise, blocks, np.ones(blocks * passes)) == pytest.approx(end, abs=0.06)
        assert on_the_way(noise, blocks, blocks * passes) == pytest.approx(way, abs=0.06)
        assert at_the_end(noise, blocks, np.ones(blocks * passes)) >= passes, "nobody can do better"


@pytest.mark.parametrize(
    ("blocks", "passes", "most"), [(20, 20, 1.2), (20, 50, 1.12), (100, 3, 1.86), (100, 10, 1.45)]
)
def test_one_power_does_as_well_as_a_free_band(blocks, passes, most):
    """Relative to one release of the sum; a free band of that length gains less than 0.5 % more."""
    found = min(
        at_the_end(li.Correlated(1.0, blocks, power), blocks, np.ones(blocks * passes))
        for power in POWERS
    )
    assert 1.0 <= found / passes <= most


@pytest.mark.parametrize(
    ("blocks", "passes", "powers", "end", "way"),
    [(20, 20, (0.57, 0.39), 22.89, 17.53), (100, 3, (0.5, 0.22), 5.35, 4.80)],
)
def test_a_second_power_takes_back_what_a_record_s_columns_share(blocks, passes, powers, end, way):
    """Relative to one release of the sum 1.14 and 1.78; some numbers are negative, so that every
    sign counts."""
    noise = seasonal(*powers, blocks, 3)
    assert at_the_end(noise, blocks, np.ones(blocks * passes)) == pytest.approx(end, abs=0.01)
    assert on_the_way(noise, blocks, blocks * passes) == pytest.approx(way, abs=0.01)
    assert min(noise.entries) < 0 and noise.spread < 2
    run = li.Run(
        n=1000 * blocks,
        steps=blocks * passes,
        step_size=0.1,
        noise=noise,
        clip=1.0,
        loss=li.Logistic(),
        batching=li.Cyclic(1000),
    )
    mu = shift_in_draws(noise, blocks, run.steps) * (1 + FLOAT_SLACK)
    assert li.account(run).epsilon(1e-5) == pytest.approx(Gdp(mu).epsilon(1e-5), rel=1e-6)


def test_one_array_is_enough_for_most_of_it():
    """lambda-CGD, (1 - decay x) of the draws: 1.28 of the limit at 20 x 20, where independent noise
    has 4.47."""
    assert at_the_end(li.Correlated(1.0, 1, decay=0.91), 20, np.ones(400)) == pytest.approx(
        25.64, abs=0.01
    )


def test_what_reaches_the_last_iterate_is_the_executed_filter():
    """Against the noise of every step as a dense matrix of the draws, for each update rule and
    falling steps."""
    curvature = np.array([0.0, 0.3, 1.0])
    for update in (None, li.HeavyBall(0.8), li.Nesterov()):
        for noise in (
            li.Correlated(2.0, 4),
            li.Correlated(2.0, (1.0, 0.5, -0.2)),
            li.Correlated(2.0, 2, decay=0.7),
        ):
            run = li.Run(
                n=60,
                steps=15,
                step_size=tuple(np.linspace(0.6, 0.1, 15).tolist()),
                noise=noise,
                clip=1.0,
                batching=li.Cyclic(10),
                optimizer=update,
            )
            mean, variance = filter_response(run, curvature, 0.05)
            responses = np.array([variance_of_step(run, k, curvature) for k in range(15)])
            expected = ((added(noise, 15).T @ responses) ** 2).sum(0) * run.first_noise**2
            assert variance == pytest.approx(expected, rel=1e-9)
            assert mean == pytest.approx(responses.sum(0), rel=1e-9)


def variance_of_step(run, k, curvature):
    """What unit noise at step k does to the last iterate, by following the rule with nothing else
    in it."""
    theta = np.zeros_like(curvature)
    memory, rule = run.rule.init(theta), run.rule
    for t, step in enumerate(run.step_sizes):
        point = rule.point(theta, memory, t)
        gradient = (curvature + 0.05) * point - (t == k)
        direction, memory = rule.update(gradient, memory, theta, t)
        theta = point - step * direction
    return theta


def test_the_planner_takes_the_best_of_the_strategies():
    asked = PlanRequest(Task(50_000, 128, 10), 1.0, 1e-5, "zero-out", 60.0)
    run = make_correlated_run(asked, li.Cyclic(2500), 20)
    risks = {
        power: asked.risk(
            replace(run, noise=replace(run.noise, power=power, z=run.noise.z * scale(power, run)))
        )
        for power in POWERS
    }
    assert run.noise.power == min(risks, key=risks.get) and run.noise.band == 20
    assert asked.risk(run) < asked.risk(
        replace(run, noise=li.NoiseMultiplier(math.sqrt(20) / (asked.mu * 0.94)))
    )
    assert li.calibrate(run, epsilon=1.0, delta=1e-5).run.noise.z == pytest.approx(
        run.noise.z, rel=0.02
    )


def scale(power, run):
    from lastiterate.analysis.shifts import shift_in_draws

    return shift_in_draws(replace(run.noise, power=power), 20, 400) / shift_in_draws(
        run.noise, 20, 400
    )


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_named_algorithm_keeps_its_budget(adjacency):
    asked = PlanRequest(Task(5000, 20, 3), 1.0, 1e-5, adjacency, 60.0)
    for batching in (None, li.FullBatch(), li.Permuted(250), li.BallsInBins(250)):
        run = describe_algorithm(asked, "correlated-sgd", batching=batching)
        certificate = li.calibrate(run, epsilon=1.0, delta=1e-5)
        assert (
            certificate.best(1e-5).theorem.name == "correlated-gdp"
            and certificate.epsilon(1e-5) <= 1.0
        )
        assert certificate.run.noise.z == pytest.approx(run.noise.z, rel=0.03)
    with pytest.raises(li.InputError, match="keep a record in its place"):
        describe_algorithm(asked, "correlated-sgd", batching=li.Poisson(0.1))
    with pytest.raises(li.InputError, match="integer number of grid steps"):
        describe_algorithm(asked, "correlated-sgd", charged=True)


def test_streams_may_take_noise_back():
    found = consider(
        Task(10**6, 100, 10, streamed=True), epsilon=1.0, delta=1e-6, stream=True, time_budget=600.0
    )
    plans = {plan.name: plan for plan in found.plans}
    assert type(plans["correlated"].certificate.run.batching) is li.Cyclic
    assert plans["correlated"].risk < plans["cyclic"].risk


def test_short_streams_take_few_passes_over_many_blocks():
    """Where the time allows no ten passes: nothing has to be gathered, and three passes in a public
    order are left."""
    found = consider(
        Task(4 * 10**6, 256, 2, streamed=True),
        epsilon=1.0,
        delta=1e-7,
        stream=True,
        time_budget=55.0,
    )
    plans = {plan.name: plan for plan in found.plans}
    run = plans["correlated"].certificate.run
    assert (run.blocks, run.steps) in ((50, 250), (100, 300)) and plans[
        "correlated"
    ].seconds <= 55.0
    assert plans["correlated"].risk == min(plan.risk for plan in found.plans)
