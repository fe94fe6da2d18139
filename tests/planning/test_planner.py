"""The planner: predictions are exact on their reference problem, plans keep the budget, the best is
chosen."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest

import lastiterate as li
from lastiterate.accounting.explain import composition_epsilon, explain_gain
from lastiterate.accounting.noise_calibration import calibrate
from lastiterate.errors import InputError
from lastiterate.planning.families import FAMILIES, allocation, block_count
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import ENOUGH, NOTICED, WORTH, Plan, best_of, consider, plan
from lastiterate.planning.predicted_risk import (
    Reference,
    filter_response,
    output_perturbation,
    predict_risk,
    risk_of_ignorance,
)
from lastiterate.planning.task import Task, budget
from lastiterate.run.preprocessing import CosineFeatures, PrivateTargetMean, SquareRoots

LOSS = li.Logistic(row_norm=1.0, ridge=0.01)
FALLING = li.StepSchedule(tuple(2.0 - k / 10 for k in range(12)))
RUNS = {
    "constant": {"step_size": li.Constant(1.5)},
    "too long a step": {"step_size": li.Constant(9.0)},
    "falling": {"step_size": FALLING},
    "heavy ball": {"step_size": FALLING, "optimizer": li.HeavyBall(0.8)},
    "heavy ball, constant": {"step_size": li.Constant(1.5), "optimizer": li.HeavyBall(0.6)},
    "nesterov": {"step_size": FALLING, "optimizer": li.Nesterov()},
    "varying noise": {
        "step_size": FALLING,
        "noise": li.GradientNoise(tuple(0.1 + k / 50 for k in range(12))),
    },
}


def simulate(run: li.Run, curvature: float, pull: float, noises: np.ndarray) -> np.ndarray:
    """The last iterates of a one-dimensional quadratic, step by step; noises (T, chains)."""
    theta = velocity = before = np.zeros(noises.shape[1])
    for k in range(run.steps):
        point = (
            theta + k / (k + 3) * (theta - before)
            if isinstance(run.optimizer, li.Nesterov)
            else theta
        )
        gradient = (curvature + LOSS.ridge) * point - pull + run.noise_stds[k] * noises[k]
        if isinstance(run.optimizer, li.HeavyBall):
            gradient = velocity = run.optimizer.beta * velocity + gradient
        before, theta = theta, point - run.step_sizes[k] * gradient
    return theta


@pytest.mark.parametrize("name", RUNS)
def test_the_response_to_every_step_is_exact(name: str) -> None:
    run = li.Run(
        **({"n": 10, "steps": 12, "noise": li.GradientNoise(0.3), "loss": LOSS} | RUNS[name])
    )
    curvatures = np.array([0.0, 0.03, 0.2])
    pull, noise = filter_response(run, curvatures, LOSS.ridge)
    for i, curvature in enumerate(curvatures):
        alone = simulate(run, curvature, 1.0, np.zeros((12, 1)))[0]
        assert pull[i] == pytest.approx(alone, rel=1e-9)
        each = simulate(run, curvature, 0.0, np.eye(12))  # chain k is hit at step k alone
        assert noise[i] == pytest.approx((each**2).sum(), rel=1e-9)


def test_a_step_without_any_curvature_adds_up() -> None:
    run = li.Run(n=10, steps=7, step_size=li.Constant(0.5), noise=li.GradientNoise(2.0), loss=LOSS)
    pull, noise = filter_response(run, np.array([0.0]), 0.0)
    assert pull[0] == pytest.approx(3.5)
    assert noise[0] == pytest.approx(7.0)


def test_the_reference_problem_has_its_totals() -> None:
    problem = Reference.of(features=500, classes=10, row_norm=2.0)
    assert problem.count.sum() == 500
    assert (np.diff(problem.eigenvalue) < 0).all()
    assert problem.excess(np.ones_like(problem.target), np.zeros_like(problem.target)) == 0
    assert problem.outputs == 10
    assert Reference.of(3, 2, 1.0).curvature == 0.25


def test_noise_on_the_minimiser_matters_less_with_more_records() -> None:
    problem = Reference.of(50, 2, 1.0)
    risks = [output_perturbation(problem, 4.0, n) for n in (100, 1000, 10_000)]
    assert risks[0] > risks[1] > risks[2] > 0


TASKS = [
    Task(400, 10, 2),
    Task(1400, 64, 10, 8.0),
    Task(45_000, 512, 10, 24.0),
    Task(300, 8, 0, 3.0),
]


# records are exchanged in the same way whatever the size: one task of classes, one of a regression
@pytest.mark.parametrize(
    ("task", "adjacency"),
    [*((task, "zero-out") for task in TASKS), (TASKS[0], "replace-one"), (TASKS[3], "replace-one")],
    ids=str,
)
def test_every_plan_keeps_the_budget_and_the_best_is_chosen(task: Task, adjacency: str) -> None:
    choice = consider(task, epsilon=1.0, delta=1e-5, adjacency=adjacency)
    names = {"accelerated", "plain", "permuted", "whitened"}
    names |= {"allocation", "correlated"} if adjacency == "zero-out" else set()
    names |= {"objective"} if adjacency == "zero-out" and task.classes else set()
    assert {p.name for p in choice.plans} == names
    for found in choice.plans:
        assert 0.99 < found.certificate.epsilon(1e-5) <= 1.0
        assert found.certificate.run.adjacency == adjacency
        assert found.seconds == task.seconds(found.certificate.run)
        assert [type(part) for part in found.certificate.run.preprocessing] == prepared(
            found.name, task
        )
    least = min(choice.plans, key=lambda p: p.weighed)
    near = [
        p
        for p in choice.plans
        if p.weighed <= ENOUGH * least.weighed and p.seconds <= least.seconds - NOTICED
    ]
    assert choice.best is (min(near, key=lambda p: p.seconds) if near else least)
    assert plan(task, epsilon=1.0, delta=1e-5, adjacency=adjacency) == choice.best.certificate


def test_time_decides_where_somebody_notices() -> None:
    """Of risks within two percent the lower is taken on a small table, and the quicker where it
    saves seconds."""
    small = consider(TASKS[1], epsilon=1.0, delta=1e-5)
    risks = {p.name: p.weighed for p in small.plans}
    assert small.best.name == "allocation" and risks["correlated"] < ENOUGH * risks["allocation"]
    large = consider(Task(600_000, 784, 10), epsilon=0.3, delta=1e-8)
    seconds, risks = (
        {p.name: getattr(p, key) for p in large.plans} for key in ("seconds", "weighed")
    )
    assert (
        large.best.name == "correlated"
        and risks["allocation"] < risks["correlated"] < ENOUGH * risks["allocation"]
    )
    assert seconds["correlated"] < seconds["allocation"] - NOTICED


def test_little_noise_needs_no_secret_batches() -> None:
    """At large budgets a drawn batch hides little, and noise that cancels adds less to the sum."""
    best = consider(TASKS[2], epsilon=8.0, delta=1e-5).best
    assert best.name == "correlated" and type(best.certificate.run.batching) is li.Permuted
    assert (
        type(consider(TASKS[2], epsilon=8.0, delta=1e-5, stream=True).best.certificate.run.batching)
        is li.Cyclic
    )


def prepared(name: str, task: Task) -> list[type]:
    if name not in ("allocation", "correlated", "whitened", "objective"):
        return [li.PrivateMean]
    return [*([] if task.classes else [PrivateTargetMean]), li.PrivateMean, li.PrivateCovariance]


def test_no_mean_is_released_where_it_would_be_noise() -> None:
    """The length of its noise is at most half the norm of rows: with 113 records just less, with
    111 just more."""
    for n, mean in ((113, True), (111, False)):
        asked = PlanRequest(Task(n, 5, 2, 7.0), 0.5, 1e-5, "zero-out", 20.0)
        noise = 1.01 / (asked.mu * math.sqrt(0.08)) * math.sqrt(5) / n
        assert abs(noise - 0.5) < 0.01 and (noise <= 0.5) == mean
        assert asked.loss.row_norm == 0.25 * 7.0
        for name in ("accelerated", "plain", "permuted"):
            for run in islice(FAMILIES[name].runs(asked), 1):
                assert [type(part) for part in run.preprocessing] == mean * [li.PrivateMean]
                epsilon = calibrate(run, epsilon=0.5, delta=1e-5).epsilon(1e-5)
                assert 0.495 < epsilon <= 0.5
                if name in (
                    "accelerated",
                    "plain",
                ):  # all of the budget goes to the steps, and no more
                    assert 0.49 < li.account(run).epsilon(1e-5) <= 0.5


def test_hidden_and_secret_plans_would_cost_more_by_composition() -> None:
    named = {p.name: p for p in consider(TASKS[2], epsilon=1.0, delta=1e-5).plans}
    assert named["permuted"].certificate.best(1e-5).theorem.name == "shifted-interpolation-permuted"
    assert composition_epsilon(named["permuted"].certificate, 1e-5) > 2
    assert composition_epsilon(named["accelerated"].certificate, 1e-5) <= 1.0
    sentences = {name: explain_gain(plan.certificate, 1e-5) for name, plan in named.items()}
    assert sentences["accelerated"].startswith(
        "composition charges epsilon 1: every step counts in full"
    )
    assert (
        "because the order of the records and the iterates before the last one stay secret"
        in sentences["permuted"]
    )
    hidden = calibrate(
        li.Run(n=500, steps=400, step_size=0.5, loss=replace(LOSS, ridge=0.05)),
        epsilon=1.0,
        delta=1e-5,
    )
    assert composition_epsilon(hidden, 1e-5) > 1.1
    assert "; because the iterates before the last one stay secret, it is" in explain_gain(
        hidden, 1e-5
    )
    charge = composition_epsilon(named["allocation"].certificate, 1e-5)
    assert charge > 3 and f"{charge:.2f}" in sentences["allocation"]
    assert (
        "because the blocks, drawn again in every epoch, stay secret, it is"
        in sentences["allocation"]
    )


def test_more_than_fifty_passes_must_be_worth_it() -> None:
    found = {p.name: p for p in consider(TASKS[1], epsilon=8.0, delta=1e-5).plans}
    few, many = found["allocation"], found["whitened"]
    assert few.certificate.run.steps <= 50 * few.certificate.run.blocks and few.weighed == few.risk
    assert many.certificate.run.steps > 50 and many.weighed == WORTH * many.risk + 0.002
    adult = consider(Task(29_305, 104, 2, 3.5), epsilon=8.0, delta=1e-5)
    assert adult.best.name in ("allocation", "correlated"), "next to nothing is at stake"
    assert adult.best.risk > min(plan.risk for plan in adult.plans if plan.name == "whitened")


def test_a_plan_that_is_passed_over_for_its_passes_is_told() -> None:
    """With the prediction that it would have needed: just below it comes first, just above not."""
    choice = consider(TASKS[1], epsilon=1.0, delta=1e-5)
    first = next(plan for plan in choice.plans if plan.weighed == plan.risk)
    many = next(plan for plan in choice.plans if plan.weighed > plan.risk)

    def about(risk: float) -> str:
        other = replace(many, risk=risk)
        order = sorted((first, other), key=lambda plan: plan.weighed)
        return replace(choice, plans=tuple(order)).about_passes

    said = about(0.99 * first.risk)
    needed = float(said.rsplit(" ", 1)[1])
    assert "more than 50 passes" in said and needed < 0.99 * first.risk
    assert about(1.001 * needed).startswith("a plan of more than 50 passes")
    assert about(0.999 * needed) == about(1.01 * first.risk) == ""


@pytest.mark.parametrize(
    ("n", "blocks"), [(99, 1), (300, 6), (500, 10), (1437, 10), (2400, 16), (54_000, 20)]
)
def test_blocks_hold_enough_records(n: int, blocks: int) -> None:
    assert block_count(n) == blocks
    if n <= 300:  # one block, and more than one
        names = {p.name for p in consider(Task(n, 10, 2), epsilon=1.0, delta=1e-6).plans}
        assert ("allocation" in names) == (blocks > 1)


def test_whitened_plans_are_described_in_full() -> None:
    run = next(
        p for p in consider(TASKS[2], epsilon=1.0, delta=1e-5).plans if p.name == "allocation"
    ).certificate.run
    assert isinstance(run.step_size, li.StableSteps) and run.batching == li.RandomAllocation(2250)
    assert (
        isinstance(run.preprocessing[0], li.PrivateMean) and run.preprocessing[0].row_norm == 24.0
    )
    assert run.clip == pytest.approx(0.1 * math.sqrt(2 * 1.04)) and run.loss.row_norm == 1.0
    mu, sizes = budget(1.0, 1e-5), run.step_sizes
    paid = sum(
        (part.sensitivity("zero-out") / part.noise_multiplier) ** 2 for part in run.preprocessing
    )
    assert paid == pytest.approx(0.12 * mu**2, rel=0.03)
    travelled = (sizes / (1 - 0.9)).sum()
    assert travelled == pytest.approx(3.7 * 45_000 * mu / (math.sqrt(10) * 0.1), rel=0.01)
    assert sizes[-1] / sizes[0] == pytest.approx(0.1, abs=0.01)


def test_whitening_in_the_reference_problem() -> None:
    plain = Reference.of(60, 2, 1.0)
    half, released = plain.with_whitening(0.0, 1e-12, 0.5)
    assert half.eigenvalue == pytest.approx(np.full(len(half.count), 1 / 60)), "flat"
    assert released[:-1].min() == pytest.approx(1.0) and released.size == 61
    assert (half.eigenvalue * half.target**2 / half.width**2) == pytest.approx(
        plain.eigenvalue * plain.target**2
    ), "logits are those of the same teacher"
    drowned, released = plain.with_whitening(0.0, 1e6, 0.5)
    assert drowned.eigenvalue == pytest.approx(
        plain.eigenvalue / (plain.count * plain.eigenvalue).sum(), rel=1e-4
    )
    assert released == pytest.approx(np.ones(61), rel=1e-4)
    moved, _ = plain.with_whitening(3.0, 1e6, 0.5)
    assert (moved.count * moved.eigenvalue).sum() == pytest.approx(0.25, rel=1e-4), (
        "the rest is the mean's noise"
    )


def test_a_regression_with_little_noise_keeps_the_norms_of_its_rows() -> None:
    assert consider(Task(2000, 40, 0, 3.0), epsilon=0.5, delta=1e-6).best.name == "allocation"
    found = consider(Task(30_000, 10, 0, 3.0), epsilon=8.0, delta=1e-6).best.name
    assert found not in ("allocation", "correlated", "whitened")


def test_cosine_features_are_a_public_choice() -> None:
    task = Task(3000, 16, 3, 4.0, feature_map="fourier")
    assert task.columns == 16 + 1024 and task.parameters == 3 * 1041
    found = consider(task, epsilon=1.0, delta=1e-6).plans
    names = {p.name for p in found}
    assert names == {"allocation", "correlated", "whitened", "objective"}, (
        "the others would leave them out"
    )
    for each in found:
        parts = each.certificate.run.preprocessing
        assert [type(part) for part in parts] == [
            li.PrivateMean,
            CosineFeatures,
            li.PrivateCovariance,
        ]
        assert parts[1].seed == 0 and parts[1].weight == 0.3 and parts[2].power == 0.25
        assert 0.99 < each.certificate.epsilon(1e-6) <= 1.0


def test_roots_of_features_are_a_public_choice() -> None:
    task = Task(3000, 16, 3, 4.0, feature_map="sqrt")
    for found in consider(task, epsilon=1.0, delta=1e-6).plans:
        parts = found.certificate.run.preprocessing
        assert isinstance(parts[0], SquareRoots) and isinstance(parts[1], li.PrivateMean)
        assert parts[1].row_norm == 4.0, "sqrt(sqrt(16) 4)"
    rows = np.random.default_rng(0).normal(size=(100, 16))
    rows *= 4 / np.linalg.norm(rows, axis=1)[:, None]
    assert np.linalg.norm(np.sqrt(np.abs(rows)), axis=1).max() <= task.mapped_norm
    assert np.linalg.norm(np.sqrt(np.ones(16))) == task.mapped_norm, "attained"
    with pytest.raises(InputError, match="features must be one of plain, sqrt, fourier"):
        Task(3000, 16, 3, feature_map=cast("Any", "log"))


@pytest.mark.parametrize("classes", [2, 3])
def test_records_that_count_less_are_predicted_to_teach_less(classes: int) -> None:
    few, half = (
        Task(3000, 16, classes, class_weights=(weight,) * (classes - 1) + (1.0,))
        for weight in (0.1, 0.5)
    )
    for found in consider(Task(3000, 16, classes), epsilon=1.0, delta=1e-6).plans:
        run = found.certificate.run
        assert (
            predict_risk(few, run)
            > predict_risk(half, run)
            > predict_risk(Task(3000, 16, classes), run)
        ), found.name


def test_less_privacy_is_predicted_to_cost_less() -> None:
    risks = [
        consider(TASKS[1], epsilon=epsilon, delta=1e-5).best.risk for epsilon in (0.3, 1.0, 8.0)
    ]
    assert risks[0] > risks[1] > risks[2]


@pytest.mark.parametrize(("classes", "features"), [(10, 64), (0, 10)])
def test_what_is_learnt_is_a_part_of_what_weights_of_zero_miss(classes: int, features: int) -> None:
    task = Task(800, features, classes, math.sqrt(features))
    asked = PlanRequest(task, 1.0, 1e-5, "zero-out", 60.0)
    still = replace(asked.empty, step_size=li.Constant(1e-12), noise=li.NoiseMultiplier(1e-12))
    assert predict_risk(task, still) == pytest.approx(risk_of_ignorance(classes), rel=2e-3), (
        "but for groups"
    )
    nothing, most = (consider(task, epsilon=epsilon, delta=1e-5).learnt for epsilon in (1e-4, 8.0))
    assert abs(nothing) < 0.01 and 0.9 < most < 1.0, (nothing, most)


def test_few_features_pay_noise_for_rows_of_many_norms() -> None:
    """Rows that are clipped to a quarter of their norm lose .1 of R^2 with one feature, and .01
    with 24."""

    @cache
    def chosen(n: int, d: int, classes: int) -> Any:
        return consider(Task(n, d, classes, math.sqrt(d)), epsilon=1.0, delta=1e-5)

    def norm_of(n: int, d: int, classes: int, name: str) -> float:
        (plan,) = (plan for plan in chosen(n, d, classes).plans if plan.name == name)
        return plan.certificate.run.loss.row_norm

    norms = [norm_of(n, d, 0, "accelerated") / d**0.5 for n, d in ((4000, 1), (4000, 4), (1000, 4))]
    assert norms == pytest.approx([1.0, 1.0, 0.5]), norms
    # whitened rows: from three times their root mean square to one norm for all
    shapes = (8000, 3), (2000, 12), (300, 24)
    for classes, asked in ((0, shapes), (2, shapes[::2])):
        norms = [norm_of(n, d, classes, "allocation") for n, d in asked]
        assert norms == sorted(norms, reverse=True) and norms[0] == 3 and norms[-1] == 1, norms
    few = chosen(300, 24, 0).best
    assert few.name == "allocation" and few.certificate.run.preprocessing[-1].row_norm is None
    part = consider(
        Task(8000, 12, 0, 2.0), epsilon=1.0, delta=1e-5
    ).best.certificate.run.preprocessing[-1]
    assert isinstance(part, li.PrivateCovariance) and part.row_norm == 0.25 * 3 * 2.0
    classes = [chosen(4000, d, 2).best for d in (2, 60)]
    assert classes[0].certificate.run.loss.row_norm == pytest.approx(0.5 * math.sqrt(2))
    assert classes[1].name == "allocation", classes[1].name


def test_data_larger_than_memory_have_a_plan_in_public_order_and_longer_passes() -> None:
    task = Task(5_000_000, 100, 2)
    choice = consider(task, epsilon=1.0, delta=1e-8, stream=True, time_budget=60)
    assert all(plan.seconds <= 60 for plan in choice.plans)
    (found,) = (plan for plan in choice.plans if plan.name == "cyclic")
    run = found.certificate.run
    assert isinstance(run.batching, li.Cyclic) and run.blocks >= 64 and run.optimizer is None
    assert run.steps % run.blocks == 0 and found.certificate.epsilon(1e-8) <= 1.0
    assert found.seconds > 5 * task.seconds(run), "what is read from a disk takes longer"
    assert "cyclic" not in {plan.name for plan in consider(task, epsilon=1.0, delta=1e-8).plans}


def test_long_runs_are_weighed_against_fewer_passes() -> None:
    """Of a family's runs within two percent of the lowest risk the quickest is taken, where a fit
    takes seconds."""
    task = Task(60_000, 784, 10, 28.0)
    found = {
        epsilon: best_of(
            PlanRequest(task, epsilon, 1e-5, "zero-out", 60.0), "allocation", allocation
        )
        for epsilon in (1.0, 8.0)
    }
    runs = {epsilon: cast(Plan, best).certificate.run for epsilon, best in found.items()}
    passes = {epsilon: run.steps // run.blocks for epsilon, run in runs.items()}
    assert passes == {1.0: 20, 8.0: 50}, "error outweighs noise at large budgets"
    small = consider(TASKS[1], epsilon=1.0, delta=1e-5).best.certificate.run
    assert small.steps == 50 * small.blocks, "nobody would notice"


def test_the_time_budget_is_kept() -> None:
    short = consider(TASKS[2], epsilon=1.0, delta=1e-5, time_budget=1.2)
    assert all(p.seconds <= 1.2 for p in short.plans)
    assert short.best.risk > consider(TASKS[2], epsilon=1.0, delta=1e-5).best.risk
    with pytest.raises(InputError, match="too short for any plan"):
        consider(TASKS[2], epsilon=1.0, delta=1e-5, time_budget=1e-6)
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="time_budget"):
            consider(TASKS[0], epsilon=1.0, delta=1e-5, time_budget=bad)


def test_the_budget_in_mu_is_the_largest() -> None:
    from lastiterate.curves.gaussian import Gdp

    mu = budget(1.0, 1e-5)
    assert Gdp(mu).delta(1.0) <= 1e-5 < Gdp(mu * (1 + 1e-6)).delta(1.0)


def test_a_prediction_needs_no_data_and_follows_the_noise() -> None:
    task = TASKS[1]
    run = plan(task, epsilon=1.0, delta=1e-5).run
    assert predict_risk(
        task, replace(run, noise=li.NoiseMultiplier(2 * run.noise.z))
    ) > predict_risk(task, run)
