"""The named algorithms are the published ones, and every one of them can be certified and executed."""

from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.estimators import DPHuberRidge, DPLogisticRegression
from lastiterate.planning.presets import ALGORITHMS, described
from lastiterate.planning.task import Task

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 5))
Y = (X[:, 0] > 0).astype(int)
BATCHES = {
    "noisy-gd": li.FullBatch,
    "dp-sgld": li.FixedSize,
    "cyclic-dp-sgd": li.Cyclic,
    "permuted-sgd": li.Permuted,
    "bins-sgd": li.BallsInBins,
    "poisson-dp-sgd": li.Poisson,
}


@pytest.mark.parametrize("classes", [0, 2, 3])
@pytest.mark.parametrize("name", ALGORITHMS[1:])
def test_every_algorithm_is_certified_at_its_budget(name, classes):
    run = described(Task(200, 5, classes, 2.0), name)
    assert isinstance(run.batching, BATCHES[name]) and run.n == 200 and run.loss.row_norm == 2.0
    assert isinstance(run.noise, li.Langevin) == (name in ("noisy-gd", "dp-sgld"))
    assert (run.clip is not None) == (name in ("cyclic-dp-sgd", "poisson-dp-sgd"))
    assert (run.loss.ridge > 0) == (name in ("noisy-gd", "dp-sgld"))
    certificate = li.calibrate(run, epsilon=2.0, delta=1e-5)
    assert certificate.epsilon(1e-5) <= 2.0
    assert certificate.epsilon(1e-5) == pytest.approx(2.0, rel=1e-2)


def test_dp_sgld_takes_the_steps_of_the_paper():
    run = described(Task(200, 5, 2, 2.0), "dp-sgld")
    beta, strong = run.loss.facts().fact("smooth"), run.loss.facts().fact("strong")
    assert run.step_sizes[30] == pytest.approx(1 / (2 * beta + strong * 30 / 2))


def test_batches_and_penalties_can_be_chosen():
    run = described(Task(200, 5, 2), "cyclic-dp-sgd", batching=li.Permuted(50), prox=li.penalties.L1(0.1))
    assert run.batching == li.Permuted(50) and run.steps == 80 and run.prox == li.penalties.L1(0.1)
    assert described(Task(200, 5, 2), "dp-sgld", batching=li.FullBatch()).steps == 200
    with pytest.raises(InputError, match="algorithm must be one of"):
        described(Task(200, 5, 2), "adam")


@pytest.mark.parametrize("name", ALGORITHMS[1:])
def test_estimators_execute_a_described_run(name):
    run = described(Task(200, 5, 2, 2.0), name)
    model = DPLogisticRegression(epsilon=20.0, delta=1e-5, row_norm=2.0, classes=[0, 1], run=run, random_state=1)
    model.fit(X, Y)
    assert model.choice_ is None and model.certificate_.epsilon(1e-5) <= 20.0
    assert type(model.run_.batching) is type(run.batching) and model.run_.steps == run.steps
    assert model.run_.first_noise != run.first_noise, "calibrated"
    assert model.score(X, Y) > 0.8 or name == "dp-sgld"


@pytest.mark.parametrize(
    "change, word",
    [
        ({"run": described(Task(100, 5, 2), "noisy-gd")}, "n = 200"),
        ({"run": described(Task(200, 5, 3), "noisy-gd")}, "a loss of 2 classes and 1 outputs, got .Softmax"),
        ({"run": described(Task(200, 5, 2), "noisy-gd"), "adjacency": "replace-one"}, "must be the run's"),
        ({"run": replace(described(Task(200, 5, 2), "noisy-gd"), release="all")}, "must be 'last' where a model"),
    ],
)
def test_runs_of_other_data_are_refused(change, word):
    with pytest.raises(InputError, match=word):
        DPLogisticRegression(epsilon=1.0, delta=1e-5, classes=[0, 1], **change).fit(X, Y)
    with pytest.raises(InputError, match="a loss of no classes"):
        run = described(Task(200, 5, 2), "noisy-gd")
        DPHuberRidge(epsilon=1.0, delta=1e-5, target_range=(-1, 1), run=run).fit(X, X[:, 0])


def test_a_cap_takes_the_place_of_clipping():
    for name in ALGORITHMS[1:]:
        run, plain = (described(Task(200, 5, 3, 2.0), name, cap=cap) for cap in (0.1, None))
        assert run.loss.cap == 0.1 and run.clip is None and run.batching == plain.batching
        assert run.facts().fact("lipschitz") < plain.facts().fact("lipschitz")
        assert run.first_step > plain.first_step, "less smoothness, longer steps"
    with pytest.raises(InputError, match="cap is for classes"):
        described(Task(200, 5, 0, 2.0), "permuted-sgd", cap=0.1)
