"""The law of the released parameters on quadratics, many runs each, against the exact Gaussian of
the recurrences.

Each comparison asks for z-scores of means and covariances below 6 and a Kolmogorov-Smirnov p-value
above 1e-7, as the tests of the JAX engine do; seeds are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from engine import reference
from engine.test_law import distance
from lastiterate.engine.random import keys_from_seed
from lastiterate.torch.module_training import prepare

MODELS = 4000
RNG = np.random.default_rng(42)
N = 7
X, Y = RNG.normal(size=(N, 2)) * 0.5, RNG.normal(size=N)
RUN = li.Run(
    n=N, steps=6, step_size=0.5, noise=li.GradientNoise(0.4), batching=li.Cyclic(3), clip=1e6
)
QUADRATIC = li.HuberRidge(row_norm=50.0, residual_clip=1e6, ridge=0.0, intercept=1.0)


def squares(out, y):
    return (out[0] - y) ** 2 / 2


def sample(run):
    module = torch.nn.Linear(2, 1, dtype=torch.float64)
    torch.nn.init.zeros_(module.weight), torch.nn.init.zeros_(module.bias)
    return prepare(run, module, squares, (X, Y)).many(keys_from_seed(17, MODELS))


def agrees(draws, run):
    z, p = distance(draws, *reference.quadratic_law(replace(run, loss=QUADRATIC, clip=None), X, Y))
    return z < 6 and p > 1e-7


CHANGES = {
    "blocks": {},
    "full batch, decaying steps": {
        "batching": li.FullBatch(),
        "step_size": li.InverseDecay(1.0, 0.5),
    },
    "a random start": {
        "start": li.GaussianStart(0.6),
        "noise": li.GradientNoise(tuple(np.linspace(0.9, 0.1, 6))),
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_law_on_quadratics(change):
    run = replace(RUN, **CHANGES[change])
    assert agrees(sample(run), run)


def test_what_is_wrong_shows(monkeypatch):
    assert not agrees(sample(replace(RUN, noise=li.GradientNoise(0.5))), RUN)
    assert not agrees(sample(replace(RUN, batching=li.Cyclic(4))), RUN)
    assert not agrees(sample(replace(RUN, clip=0.3)), RUN)
    assert not agrees(sample(replace(RUN, batching=li.Permuted(3))), RUN)
    assert not agrees(sample(replace(RUN, optimizer=li.HeavyBall(0.3))), RUN)


def test_many_runs_at_once_are_the_runs_one_by_one():
    keys = keys_from_seed(3, 3)
    for batching in (li.Poisson(0.4), li.Reshuffled(3)):
        run = replace(RUN, batching=batching, clip=0.3, noise=li.GradientNoise(0.1))
        prepared = prepare(run, torch.nn.Linear(2, 1), squares, (X, Y))
        one_by_one = np.stack([prepared.execute(key) for key in keys])
        np.testing.assert_allclose(prepared.many(keys), one_by_one, atol=1e-6)
