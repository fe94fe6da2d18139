"""A run whose stated noise keeps a smaller epsilon than the budget is executed with less: every way
to train says so before it charges."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate.errors import BudgetWarning
from lastiterate.estimators import DPLogisticRegression
from lastiterate.jax import private

N = 200
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)
LINEAR = li.Run(n=N, steps=4, step_size=0.5, loss=li.Logistic(row_norm=2.0, ridge=0.1))
NETWORK = li.Run(n=N, steps=4, step_size=0.5, clip=1.0)
FIRST = np.zeros((2, 3), np.float32)


def loss(params, x, y):
    import jax

    return -jax.nn.log_softmax(params @ x)[y]


def train_linear(run, epsilon):
    return li.train(run, (X, Y), epsilon=epsilon, delta=1e-5).run


def train_exactly(run, epsilon):
    return li.train(run, (X, Y), epsilon=epsilon, delta=1e-5, secure_noise=True).run


def train_network(run, epsilon):
    return li.train(run, (X, Y), model=FIRST, loss=loss, epsilon=epsilon, delta=1e-5).run


def loop_over_network(run, epsilon):
    pair = private(run, loss, epsilon=epsilon, delta=1e-5)
    return pair.init(FIRST, (X, Y)).run


def train_module(run, epsilon):
    torch = pytest.importorskip("torch")
    given = {"model": torch.nn.Linear(3, 2), "loss": torch.nn.functional.cross_entropy}
    return li.train(run, (X, Y), **given, epsilon=epsilon, delta=1e-5).run


def loop_over_module(run, epsilon):
    torch = pytest.importorskip("torch")
    from lastiterate.torch import make_private

    given = {"module": torch.nn.Linear(3, 2), "loss": torch.nn.functional.cross_entropy}
    return make_private(run, data=(X, Y), **given, epsilon=epsilon, delta=1e-5).run


def fit(run, epsilon):
    given = {"epsilon": epsilon, "delta": 1e-5, "classes": [0, 1], "row_norm": 2.0}
    return DPLogisticRegression(run=run, **given).fit(X, Y).run_


WAYS = [
    (train_linear, LINEAR),
    (train_exactly, LINEAR),
    (fit, LINEAR),
    (train_network, NETWORK),
    (loop_over_network, NETWORK),
    (train_module, NETWORK),
    (loop_over_module, NETWORK),
]


@pytest.mark.parametrize(("way", "run"), WAYS, ids=lambda one: getattr(one, "__name__", ""))
def test_less_noise_than_stated_is_warned_of_and_the_remedies_are_quiet(way, run):
    stated = replace(run, noise=li.NoiseMultiplier(60.0))
    with pytest.warns(BudgetWarning, match="noise: the run states noise multiplier 60") as said:
        executed = way(stated, 3.0)
    text = next(str(one.message) for one in said if one.category is BudgetWarning)
    assert executed.noise.z < 60 and f"with noise multiplier {executed.noise.z:.4g}:" in text
    smaller = float(re.search(r"ask for epsilon = (\S+)", text)[1])
    assert 0 < smaller < 3 and re.search(rf"keeps epsilon {smaller} ", text)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BudgetWarning)
        assert way(stated, smaller).noise.z == pytest.approx(60.0, rel=0.01)
        assert way(run, 3.0).noise.z == pytest.approx(executed.noise.z, rel=1e-5)
        assert way(replace(run, noise=li.NoiseMultiplier(0.1)), 3.0).noise.z > 0.1


def test_the_warning_comes_before_the_charge(tmp_path):
    from lastiterate.ledger import GaussianFilter, Ledger

    ledger = Ledger(tmp_path / "ledger")
    ledger.add("people", unit="record", adjacency="zero-out", filter=GaussianFilter(9.0, 1e-5))
    head = ledger.head()
    with warnings.catch_warnings(), pytest.raises(BudgetWarning, match="noise: the run states"):
        warnings.simplefilter("error", BudgetWarning)
        li.train(
            replace(LINEAR, noise=li.NoiseMultiplier(60.0)),
            (X, Y),
            epsilon=3.0,
            delta=1e-5,
            ledger=ledger,
            dataset="people",
        )
    assert ledger.head() == head
