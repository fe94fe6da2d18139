"""The named algorithms draw the batches that they are named after, and every one can be certified
and executed."""

import functools
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError, TimeWarning
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.presets import ALGORITHMS, INEXACT, describe_algorithm
from lastiterate.planning.task import Task, automatic_delta
from lastiterate.release.linear_plans import plan_run
from lastiterate.release.training_request import Algorithm, Budget, TrainingRequest
from lastiterate.report.charts import chart_steps
from lastiterate.run.facts import FLOAT_SLACK
from tiers import unless

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5))
Y = (X[:, 0] > 0).astype(int)
BATCHES = {
    "noisy-gd": (li.FullBatch, "composition-gdp"),
    "dp-sgld": (li.FixedSize, "fixed-size-amplified"),
    "cyclic-dp-sgd": (li.Cyclic, "shifted-interpolation"),
    "permuted-sgd": (li.Permuted, "shifted-interpolation-permuted"),
    "bins-sgd": (li.BallsInBins, "balls-in-bins-pld"),
    "allocation-sgd": (li.RandomAllocation, "random-allocation-pld"),
    "poisson-dp-sgd": (li.Poisson, "poisson-pld"),
    "output-perturbation": (li.FullBatch, "shifted-interpolation"),
    "noisy-sgd": (li.FixedSize, "fixed-size-amplified"),
    "dp-svrg": (li.Poisson, "variance-reduction"),
}


def asked(n=200, classes=2, epsilon=2.0, adjacency="zero-out"):
    return PlanRequest(Task(n, 5, classes, 2.0), epsilon, 1e-5, adjacency, 60.0)


def run_for(name, n=200, classes=2, **more):
    return describe_algorithm(asked(n, classes), name, **more)


@functools.cache
def fitted(name):
    """The described run, as an estimator calibrates and executes it; fewer records where steps are
    as many as n^2."""
    n = 40 if name == "noisy-sgd" else 200
    model = DPLogisticRegression(
        epsilon=20.0, delta=1e-5, row_norm=2.0, classes=[0, 1], run=run_for(name, n), random_state=1
    )
    return model.fit(X[:n], Y[:n])


@pytest.mark.parametrize(
    "name, classes",
    unless(
        lambda case: case[0] != "noisy-sgd" or case[1] == 2,
        [(name, classes) for name in BATCHES for classes in (0, 2, 3)],
    ),
)
def test_every_algorithm_is_certified_by_a_row_about_its_own_batches(name, classes):
    run = run_for(name, classes=classes)
    batching, theorem = BATCHES[name]
    assert type(run.batching) is batching and run.n == 200
    if classes == 2 and name == "noisy-sgd":  # whose calibration takes seconds: the estimator's own
        certificate, budget = fitted(name).certificate_, 20.0
    else:
        certificate, budget = li.calibrate(run, epsilon=2.0, delta=1e-5), 2.0
    assert (
        certificate.epsilon(1e-5) == pytest.approx(budget, rel=1e-2)
        and certificate.epsilon(1e-5) <= budget
    )
    best = certificate.best(1e-5).theorem.name
    of_last = {
        "fixed-size-amplified": ("restarted-fixed-size", "delayed-shifts-fixed-size"),
        "poisson-pld": ("delayed-shifts-poisson",),
        "random-allocation-pld": ("delayed-shifts-allocated",),
    }
    assert best in (theorem, *of_last.get(theorem, ())) or name == "noisy-gd"
    assert batching is li.FullBatch or run.n / run.divisor >= 10


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_steps_of_one_record_fall_at_any_budget(epsilon):
    """A ridge for the noise of the minimiser alone shrinks with the budget, until the steps never
    fall."""
    task = Task(60_000, 784, 10, 28.0)
    run = describe_algorithm(PlanRequest(task, epsilon, 1e-5, "zero-out", 60.0), "noisy-sgd")
    sizes = run.step_sizes
    assert run.steps == 40_000 and sizes[-1] < 0.02 * sizes[0]


@pytest.mark.parametrize("n", [500, 100_000])
def test_large_batches_pay_for_their_smoothness(n):
    for name in ("noisy-gd", "permuted-sgd", "cyclic-dp-sgd"):
        run = run_for(name, n)
        paid = isinstance(run.preprocessing[-1], li.TopEigenvalue)
        assert paid == (run.divisor >= 250) and paid == isinstance(
            run.step_size, li.RelativeToSmooth
        )
        assert run.loss.cap == 0.1 and run.clip is None and run.optimizer is None
        assert (
            run.first_step <= 1.9 / run.loss.facts().fact("smooth")
            if not paid
            else run.step_size.relative <= 1.9
        )


def test_batches_penalties_and_rows_can_be_chosen():
    run = run_for("cyclic-dp-sgd", batching=li.Permuted(50), prox=li.penalties.L1(0.1))
    assert run.batching == li.Permuted(50) and run.steps >= 80 and run.prox == li.penalties.L1(0.1)
    assert run_for("dp-sgld", batching=li.Poisson(0.25)).steps == 80
    for name in set(BATCHES) - set(INEXACT):
        charged = run_for(name, charged=True)
        assert not any(isinstance(part, li.TopEigenvalue) for part in charged.preprocessing)
        assert charged.clip is not None and isinstance(
            charged.step_size, li.run.step_sizes.StableSteps
        )
    for name in INEXACT:
        with pytest.raises(InputError, match=f"must not be {name} with secure_noise"):
            run_for(name, charged=True)
    with pytest.raises(InputError, match="algorithm must be one of"):
        run_for("adam")


def test_a_named_algorithm_that_takes_longer_than_it_may_says_so():
    task, one_by_one = Task(600, 8, 2), Algorithm("correlated-sgd", li.Cyclic(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asked = TrainingRequest(data=None, budget=Budget(1.0), algorithm=one_by_one)
        found, hurried = plan_run(asked, task), replace(asked, budget=Budget(1.0, time_budget=0.1))
        again = replace(hurried, algorithm=Algorithm(run=found.certificate.run))
        assert plan_run(again, task).certificate.run.steps == 12_000
        with pytest.raises(
            TimeWarning,
            match=r"correlated-sgd makes 12000 steps here, .* and time_budget is 0\.1 s",
        ):
            plan_run(hurried, task)


def test_what_replaces_a_record_moves_more():
    one, two = (
        describe_algorithm(asked(adjacency=a), "permuted-sgd").preprocessing
        for a in ("zero-out", "replace-one")
    )
    assert two[0].noise_multiplier == 2 * one[0].noise_multiplier
    assert two[1].noise_multiplier == pytest.approx(2**0.5 * one[1].noise_multiplier)


@pytest.mark.parametrize("name", BATCHES)
def test_estimators_execute_a_described_run(name):
    model = fitted(name)
    run = model.run
    assert model.choice_ is None and model.certificate_.epsilon(1e-5) <= 20.0
    assert type(model.run_.batching) is type(run.batching) and model.run_.steps == run.steps
    assert model.run_.noise != run.noise, "calibrated"
    assert model.score(X, Y) > 0.75


@pytest.mark.parametrize(
    "change, word",
    [
        ({"run": run_for("noisy-gd", 100)}, "n = 200"),
        (
            {"run": run_for("noisy-gd", classes=3)},
            "a loss of 2 classes and 1 outputs, got .Softmax",
        ),
        ({"run": run_for("noisy-gd"), "adjacency": "replace-one"}, "must be the run's"),
        ({"run": replace(run_for("noisy-gd"), release="all")}, "must be 'last' where a model"),
    ],
)
def test_runs_of_other_data_are_refused(change, word):
    with pytest.raises(InputError, match=word):
        DPLogisticRegression(epsilon=1.0, delta=1e-5, classes=[0, 1], **change).fit(X, Y)
    with pytest.raises(InputError, match="a loss of no classes"):
        DPHuberRidge(epsilon=1.0, delta=1e-5, target_range=(-1, 1), run=run_for("noisy-gd")).fit(
            X, X[:, 0]
        )


def test_an_objective_is_perturbed_for_classes_and_zero_out_alone():
    run = run_for("objective-perturbation")
    certificate = li.calibrate(run, epsilon=2.0, delta=1e-5)
    assert certificate.best(1e-5).theorem.name == "objective-perturbation"
    assert run.noise.z == pytest.approx(certificate.run.noise.z, rel=0.03), (
        "near what calibration finds"
    )
    model = DPLogisticRegression(
        epsilon=8.0, delta=1e-5, row_norm=2.0, classes=[0, 1], run=certificate.run, random_state=1
    ).fit(X, Y)
    assert model.certificate_.epsilon(1e-5) <= 8.0 and model.score(X, Y) > 0.75
    assert run_for("objective-perturbation", cap=0.3).loss.cap == 0.3
    for more, word in (
        ({"batching": li.Cyclic(10)}, "batch"),
        ({"prox": li.penalties.L1(0.1)}, "prox"),
        ({"charged": True}, "with secure_noise"),
        ({"classes": 0}, "algorithm must not be objective-perturbation for a regression"),
    ):
        with pytest.raises(InputError, match=word):
            run_for("objective-perturbation", **more)
    with pytest.raises(InputError, match="adjacency must be zero-out"):
        describe_algorithm(asked(adjacency="replace-one"), "objective-perturbation")
    with pytest.raises(InputError, match="rows_per_unit must be 1"):
        describe_algorithm(
            PlanRequest(Task(200, 5, 2, rows_per_unit=2), 2.0, 1e-5, "zero-out", 60.0),
            "objective-perturbation",
        )
    for epsilon in (1e-4, 1e3):
        with pytest.raises(InputError, match=r"epsilon is too small for .* or above 50"):
            describe_algorithm(asked(epsilon=epsilon), "objective-perturbation")


def test_a_cap_takes_the_place_of_clipping():
    for name in ALGORITHMS[1:]:
        run = run_for(name, classes=3, cap=0.05)
        assert run.loss.cap == 0.05 and run.clip is None
        assert run.facts().fact("lipschitz") < run_for(name, classes=3, cap=0.2).facts().fact(
            "lipschitz"
        )
    with pytest.raises(InputError, match="cap is for classes"):
        run_for("permuted-sgd", classes=0, cap=0.1)


def test_output_perturbation_costs_what_its_last_noise_hides():
    """mu = (L / n) (1 - (1 - eta ridge)^T) / (eta ridge std): the steps that are executed, equal to
    the exact law."""
    for adjacency, moved in (("zero-out", 1), ("replace-one", 2)):
        run = replace(
            describe_algorithm(asked(classes=0, adjacency=adjacency), "output-perturbation"),
            preprocessing=(),
        )
        eta, ridge, lipschitz = run.first_step, run.loss.ridge, run.loss.facts().fact("lipschitz")
        assert not run.noise_stds[:-1].any() and run.noise_stds[-1] == 1 and ridge > 0
        shift = moved * lipschitz / run.n * (1 - (1 - eta * ridge) ** run.steps) / (eta * ridge)
        found = {verdict.theorem.name: verdict.bound for verdict in li.account(run).verdicts}
        assert found["shifted-interpolation"].mu == pytest.approx(
            shift * (1 + FLOAT_SLACK), rel=1e-6
        )
        assert found["quadratic-witness"].mu == pytest.approx(shift, rel=1e-6), (
            "some loss of the class leaks this much"
        )
        assert eta * shift < moved * lipschitz / (run.n * ridge), (
            "Chaudhuri et al.: sensitivity / (n ridge)"
        )
        assert found["composition-gdp"] is None or math.isinf(found["composition-gdp"].mu)


def test_output_perturbation_under_attack():
    run = replace(
        describe_algorithm(asked(60, 0), "output-perturbation"),
        preprocessing=(),
        steps=100,
        noise=li.GradientNoise((0.0,) * 99 + (0.2,)),
    )
    report = li.audit.audit(run, attack="projection", trials=1000, seed=1, batch_models=500)
    assert 0 < report.lower <= report.upper and not report.refuted
    assert report.lower > 1.4, "the attack sees it: noise on the last step alone"
    lines = chart_steps(li.account(run), 1e-5)
    assert all(line.steps[-1] == 100 and np.isfinite(line.epsilons).all() for line in lines)


def test_output_perturbation_refuses_noise_at_every_step():
    with pytest.raises(InputError, match="all but one have no noise"):
        run_for("output-perturbation", charged=True)


@pytest.mark.parametrize("name", ["noisy-gd", "cyclic-dp-sgd", "permuted-sgd"])
@pytest.mark.parametrize("n, rows", [(2 * 10**7, 1), (10**9, 1), (10**5, 5)])
def test_small_deltas_cover_the_failure_of_a_measured_smoothness(name, n, rows):
    """It takes so small a part of delta that the noise is nearly that of a failure of 1e-15."""
    delta, task = automatic_delta(n), Task(n, 5, 2, 1.0, rows_per_unit=rows)
    run = describe_algorithm(PlanRequest(task, 8.0, delta, "zero-out", 1e9), name)
    *parts, last = run.preprocessing
    unit = sum(math.exp(8.0 / rows * record) for record in range(rows))
    assert last.failure == pytest.approx(min(1e-8, delta / 1000 / unit))
    rarely = replace(run, preprocessing=(*parts, replace(last, failure=1e-15)))
    found, least = (
        li.calibrate(each, epsilon=8.0, delta=delta).run.noise.z for each in (run, rarely)
    )
    assert found <= 1.1 * least


def test_no_smoothness_is_measured_where_delta_covers_no_failure():
    task = Task(10**6, 5, 2, 1.0)
    run = describe_algorithm(PlanRequest(task, 1.0, 1e-14, "zero-out", 1e9), "cyclic-dp-sgd")
    assert not any(part.failure for part in run.preprocessing)
    assert li.calibrate(run, epsilon=1.0, delta=1e-14).epsilon(1e-14) <= 1


def test_objective_perturbation_says_which_number_is_out_of_its_range():
    def describe(n, epsilon):
        request = PlanRequest(Task(n, 5, 2, 1.0), epsilon, 1e-9, "zero-out", 60.0)
        return describe_algorithm(request, "objective-perturbation")

    with pytest.raises(InputError, match="n is too large for objective-perturbation"):
        describe(2 * 10**7, 1.0)
    for n, epsilon in ((2 * 10**7, 60.0), (100, 1e-3)):
        with pytest.raises(InputError, match="epsilon is too small"):
            describe(n, epsilon)
    assert describe(10**6, 1.0).steps > 1
