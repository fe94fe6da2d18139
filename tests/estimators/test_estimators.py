"""scikit-learn's protocol, the budget, and the accuracy that the plan promises."""

import functools
import pickle
import warnings
from dataclasses import replace

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

import lastiterate as li
from lastiterate.curves.gaussian import Gdp
from lastiterate.data import encode, load_bundled, split
from lastiterate.errors import BudgetWarning, InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.planning import presets
from lastiterate.planning.planner import plan
from lastiterate.planning.task import Task, budget
from lastiterate.release import linear_plans
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.probability_calibration import private_calibration
from tiers import unless


@pytest.fixture
def quick(monkeypatch):
    """Plans and programs that cost little: the protocol fits 50 times, on 16 shapes, and looks at
    no plan."""
    monkeypatch.setattr(presets, "FULL_STEPS", (20, 40))
    monkeypatch.setattr(linear_plans, "calibrate", functools.cache(linear_plans.calibrate))
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update(
        "jax_disable_most_optimizations", True
    )  # a few steps take less than LLVM's passes
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize(
    "algorithm", unless(lambda name: name != "automatic", ["noisy-gd", "automatic"])
)
@pytest.mark.parametrize(
    "estimator",
    [
        DPLogisticRegression(epsilon=1e3, row_norm=1.0),
        DPHuberRidge(epsilon=1e3, row_norm=1.0, target_range=(-2.0, 2.0)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_scikit_learn_protocol(estimator, algorithm, quick):
    """All of scikit-learn's checks; none is expected to fail."""
    estimator = clone(estimator).set_params(algorithm=algorithm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = check_estimator(estimator, on_fail=None)
    failed = [
        (r["check_name"], str(r["exception"])[:200]) for r in results if r["status"] == "failed"
    ]
    assert len(results) > 40 and not failed, failed


def digits(seed):
    X, y = encode(*load_bundled("digits"))
    train, test = split(len(X), seed)
    return X[train], y[train], X[test], y[test]


def test_accuracy_on_digits_at_epsilon_1():
    scores = []
    for seed in range(10):
        X, y, X_test, y_test = digits(seed)
        model = DPLogisticRegression(
            epsilon=1.0, delta=1e-5, row_norm=8.0, classes=range(10), random_state=seed
        ).fit(X, y)
        scores.append(model.score(X_test, y_test))
        assert 0.99 < model.certificate_.epsilon(1e-5) <= 1.0
    assert np.mean(scores) >= 0.84, scores


def test_the_certificate_covers_the_run_and_its_preparation():
    X, y, X_test, _ = digits(0)
    model = DPLogisticRegression(epsilon=2.0, row_norm=8.0, classes=range(10)).fit(X, y)
    certificate = model.certificate_
    assert certificate.run == model.run_ and model.delta_ == 1e-5 and certificate.verify()
    assert certificate.best(1e-5).evidence >= li.Evidence.ENFORCED
    # without the preparation the same verdicts charge less: it is composed in
    sizes = li.StepSchedule(tuple(model.run_.step_sizes.tolist()))
    bare = li.account(
        replace(model.run_, preprocessing=(), step_size=sizes, probability_calibration=None)
    )
    assert bare.epsilon(1e-5) < certificate.epsilon(1e-5) * 0.99
    parts = (*model.run_.preprocessing, private_calibration(model.run_.probability_calibration))
    paid = [Gdp((1 + FLOAT_SLACK) / part.noise_multiplier) for part in parts if part is not None]
    whole = li.curves.compose(bare.best(1e-5).result.curve, *paid)
    assert len(paid) == 2 and whole.epsilon(1e-5) == pytest.approx(
        certificate.epsilon(1e-5), rel=1e-6
    )
    assert 1.98 < certificate.epsilon(1e-5) <= 2.0
    assert np.allclose(model.predict_proba(X_test).sum(1), 1)
    assert (pickle.loads(pickle.dumps(model)).predict(X_test) == model.predict(X_test)).all()
    assert not any("seed:" in text for text in certificate.caveats)


def test_caveats():
    X, y, *_ = digits(0)
    with pytest.warns(UserWarning, match="treated as public"):
        model = DPLogisticRegression(row_norm=8.0, random_state=1).fit(X, y)
    caveats = " ".join(model.certificate_.all_caveats())
    assert "taken from the data" in caveats and "seed" in caveats


def test_fits_are_random_and_seeds_repeat():
    X, y, X_test, _ = digits(0)
    one = DPLogisticRegression(row_norm=8.0, classes=range(10))
    assert (
        one.fit(X, y).decision_function(X_test) != clone(one).fit(X, y).decision_function(X_test)
    ).any()
    two = DPLogisticRegression(row_norm=8.0, classes=range(10), random_state=4)
    assert (
        two.fit(X, y).decision_function(X_test) == clone(two).fit(X, y).decision_function(X_test)
    ).all()


@pytest.mark.parametrize(
    "epsilon, algorithm, warned",
    [(0.01, "automatic", True), (1.0, "automatic", False), (0.01, "noisy-gd", False)],
)
def test_a_budget_that_buys_nothing_is_warned_of(epsilon, algorithm, warned):
    """The planner predicts it from public numbers, and the model is in truth no better than a
    constant."""
    X, y, X_test, y_test = digits(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = DPLogisticRegression(
            epsilon=epsilon, row_norm=8.0, classes=range(10), algorithm=algorithm
        ).fit(X, y)
    said = [str(one.message) for one in seen if one.category is BudgetWarning]
    assert [
        text.startswith("this budget lets hardly anything be learnt from 1438 records")
        for text in said
    ] == [True] * warned
    assert (model.score(X_test, y_test) < 0.3) == (epsilon < 0.1)


def test_regression_learns():
    X, y = encode(*load_bundled("diabetes"))
    train, test = split(len(X), 0)
    model = DPHuberRidge(epsilon=100.0, row_norm=np.sqrt(10), target_range=(-1.0, 1.0)).fit(
        X[train], y[train]
    )
    assert model.score(X[test], y[test]) > 0.3


@pytest.mark.parametrize(
    "change, word",
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"delta": "big"}, "delta"),
        ({"row_norm": 0.0}, "row_norm"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"classes": [0, 1]}, "classes"),
        ({"classes": [1]}, "classes"),
    ],
)
def test_bad_arguments(change, word):
    X, y, *_ = digits(0)
    with pytest.raises(InputError, match=word):
        DPLogisticRegression(**{"classes": range(10), "row_norm": 8.0} | change).fit(X, y)


TASKS = (Task(100, 5, 2), Task(50_000, 784, 10, row_norm=28.0), Task(1000, 3, 0))
BUDGETS = (0.1, 1.0, 10.0)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    "which, what",
    unless(lambda pair: pair[0] == pair[1], [(i, j) for i in range(3) for j in range(3)]),
)
def test_plans_meet_their_budget(adjacency, which, what):
    """Each budget and each task under each adjacency; every budget with every task is in the
    exhaustive tier."""
    epsilon, task = BUDGETS[which], TASKS[what]
    certificate = plan(task, epsilon=epsilon, delta=1e-6, adjacency=adjacency)
    assert epsilon * 0.999 < certificate.epsilon(1e-6) <= epsilon
    assert certificate.run.adjacency == adjacency and certificate.run.n == task.n
    assert Gdp(budget(epsilon, 1e-6)).epsilon(1e-6) <= epsilon * (1 + 1e-9)
