"""A module trained by a run is what the JAX engine trains by it on the same key: records, noise,
clips, steps."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine.network import fit_network
from lastiterate.engine.random import key_from_seed
from lastiterate.torch import Grouped
from lastiterate.torch.module_training import fit_module, prepare

RNG = np.random.default_rng(1)
N, D = 23, 4
X = RNG.normal(size=(N, D)).astype(np.float32)
Y = RNG.integers(0, 3, N)
RUN = li.Run(n=N, steps=7, step_size=0.3, noise=li.GradientNoise(0.2), clip=0.4)


def network():
    return torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def theirs(params, x, y):
    w, b, v, c = params
    return -jax.nn.log_softmax(v @ jnp.tanh(w @ x + b) + c)[y]


CHANGES = {
    "poisson": {"batching": li.Poisson(0.3)},
    "fresh subsets, no clip": {
        "batching": li.FixedSize(6),
        "clip": None,
        "loss": li.KnownConstants(li.LossFacts(lipschitz=5.0)),
    },
    "bins, averaged": {"batching": li.BallsInBins(6), "method": li.TailAverage(0.5)},
    "allocated, adam": {"batching": li.RandomAllocation(6), "optimizer": li.Adam(0.8, 0.99, 1e-3)},
    "permuted, nesterov, a ball, a penalty": {
        "batching": li.Permuted(7),
        "prox": li.penalties.NuclearNorm(0.1),
        "optimizer": li.Nesterov(),
        "domain": li.domains.Ball(0.4),
    },
    "reshuffled, heavy ball, all iterates": {
        "batching": li.Reshuffled(7),
        "optimizer": li.HeavyBall(0.5),
        "release": "all",
    },
    "blocks, correlated noise": {"noise": li.Correlated(1.0, 5), "batching": li.Cyclic(7)},
    "full batch, averaged, adam without the noise": {
        "method": li.ExponentialAverage(0.7),
        "optimizer": li.Adam(0.8, 0.99, 1e-3, noise_floor=0.1),
    },
    "smooth, so double precision": {
        "loss": li.KnownConstants(li.LossFacts(smooth=9.0)),
        "batching": li.Cyclic(7),
        "step_size": li.InverseDecay(1.0, 0.5),
    },
}
"""Every batching, update rule, average and precision: parts of a run that do not know of one
another share a case."""


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_the_same_iterates_as_the_other_engine(change):
    run, module, key = replace(RUN, **CHANGES[change]), network(), key_from_seed(4)
    first = [tensor.detach().numpy() for tensor in module.parameters()]
    parameters, theta = fit_module(run, module, torch.nn.functional.cross_entropy, (X, Y), key)
    expected = fit_network(run, theirs, first, (X, Y), key)
    count = run.steps if run.release == "all" else 1
    expected = np.concatenate([np.asarray(each).reshape(count, -1) for each in expected], axis=1)
    assert parameters.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    np.testing.assert_allclose(theta.reshape(count, -1), expected, atol=2e-6)
    assert (
        np.abs(
            theta.reshape(count, -1)[-1] - np.concatenate([each.ravel() for each in first])
        ).max()
        > 0.1
    )


@pytest.mark.parametrize(
    "change", ["poisson", "blocks, correlated noise", "permuted, nesterov, a ball, a penalty"]
)
def test_microbatches_change_nothing_but_memory(change):
    run, module, key = replace(RUN, **CHANGES[change]), network(), key_from_seed(5)
    whole, parts = (
        fit_module(run, module, torch.nn.functional.cross_entropy, (X, Y), key, microbatch=size)[1]
        for size in (None, 2)
    )
    np.testing.assert_allclose(whole, parts, atol=1e-6)


def test_the_given_module_is_not_changed_and_a_copy_is_released():
    module = network()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = li.train(RUN, (X, Y), model=module, loss=torch.nn.CrossEntropyLoss(), seed=3)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert not torch.equal(model.module[0].weight, module[0].weight)
    module.load_state_dict(model.state_dict())
    assert torch.equal(model.module[0].weight, module[0].weight)
    np.testing.assert_allclose(
        model.predict(X), module(torch.from_numpy(X)).detach().numpy(), atol=1e-6
    )


def twice():
    part = torch.nn.Linear(3, 3)
    return torch.nn.Sequential(torch.nn.Linear(D, 3), part, torch.nn.Tanh(), part)


def tied():
    module = torch.nn.Sequential(
        *(torch.nn.Linear(*sizes, bias=False) for sizes in ((D, 5), (5, D), (D, 5), (5, 3)))
    )
    module[2].weight = module[0].weight
    return module


@pytest.mark.parametrize("make", [twice, tied])
def test_what_a_module_holds_twice_is_trained_once_and_put_back(make):
    module, loss = make(), torch.nn.functional.cross_entropy
    slopes = torch.autograd.grad(
        loss(module(torch.from_numpy(X)), torch.from_numpy(Y)), list(module.parameters())
    )
    before = [tensor.detach().clone() for tensor in module.parameters()]
    run = replace(RUN, steps=1, noise=li.GradientNoise(0.0), clip=1e6)
    parameters, theta = fit_module(run, module, loss, (X, Y))
    assert len(parameters.names) == len(before)
    for found, first, slope in zip(
        parameters.restore_precision(theta).values(), before, slopes, strict=True
    ):
        torch.testing.assert_close((first - found) / run.first_step, slope, atol=1e-5, rtol=1e-4)
    assert all(torch.equal(*pair) for pair in zip(module.parameters(), before, strict=True))
    model = li.train(RUN, (X, Y), model=module, loss=loss, seed=3)
    assert all(torch.equal(own, model.state[name]) for name, own in model.module.named_parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        lambda: [(x, int(y)) for x, y in zip(X, Y, strict=True)],
        lambda: (torch.from_numpy(X), torch.from_numpy(Y)),
        lambda: (X.astype(np.float64), Y.astype(np.int32)),
    ],
    ids=["TensorDataset", "Dataset", "tensors", "other precisions"],
)
def test_a_data_set_may_be_a_dataset_tensors_or_arrays(make):
    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, i):
            return given[i]

    given = make()
    data = Items() if isinstance(given, list) else given
    loss = torch.nn.functional.cross_entropy
    module = network()
    found = fit_module(RUN, module, loss, data, key_from_seed(1))[1]
    np.testing.assert_array_equal(found, fit_module(RUN, module, loss, (X, Y), key_from_seed(1))[1])


def test_automatic_casts_around_a_fit_change_nothing():
    given = dict(model=network(), loss=torch.nn.functional.cross_entropy, seed=3)
    quiet = li.train(RUN, (X, Y), **given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = li.train(RUN, (X, Y), **given)
    assert all(torch.equal(quiet.state[name], cast.state[name]) for name in quiet.state)


def test_frozen_parameters_stay_and_take_no_part():
    module = network()
    module[0].weight.requires_grad_(False)
    model = li.train(RUN, (X, Y), model=module, loss=torch.nn.functional.cross_entropy, seed=3)
    assert list(model.state) == ["0.bias", "2.weight", "2.bias"]
    assert torch.equal(model.module[0].weight, module[0].weight)


def test_groups_learn_at_their_own_speeds():
    """A speed c is a step size c times as long: exactly, where nothing is clipped and there is no
    noise."""
    run = replace(RUN, clip=1e6, noise=li.GradientNoise(0.0), steps=1, step_size=0.1)
    module, loss, key = network(), torch.nn.functional.cross_entropy, key_from_seed(2)
    moved = {}
    for name, speeds in {
        "plain": {"": 1.0},
        "groups": {"0": 4.0, "0.bias": 0.0, "2": 0.25},
    }.items():
        grouped = Grouped(module, speeds)
        parameters, theta = fit_module(run, grouped, loss, (X, Y), key)
        before = dict(module.named_parameters())
        moved[name] = {
            at: (tensor - before[at]).detach()
            for at, tensor in parameters.restore_precision(theta).items()
        }
    assert set(moved["groups"]) == {"0.weight", "2.weight", "2.bias"}
    for at, speed in {"0.weight": 4.0, "2.weight": 0.25, "2.bias": 0.25}.items():
        torch.testing.assert_close(
            moved["groups"][at], speed * moved["plain"][at], atol=1e-6, rtol=1e-4
        )


def test_clips_speak_of_what_is_trained_in_groups():
    """A group of speed c is trained as w / sqrt(c): there one record's gradient has norm at most
    the clip."""
    module = network()
    run = replace(
        RUN,
        n=1,
        clip=0.01,
        batching=li.FullBatch(),
        noise=li.GradientNoise(0.0),
        steps=1,
        step_size=1.0,
    )
    for speeds in (
        {"": 1.0},
        {"": 100.0},
        {"0": 25.0, "2": 0.04},
        {"0.bias": 9.0, "2.weight": 1e-4},
    ):
        _, theta = fit_module(
            run,
            Grouped(module, speeds),
            torch.nn.functional.cross_entropy,
            (X[:1], Y[:1]),
            key_from_seed(2),
        )
        first = prepare(
            run, Grouped(module, speeds), torch.nn.functional.cross_entropy, (X[:1], Y[:1])
        ).initial
        assert 0.0099 < np.linalg.norm(theta - first) <= 0.01
