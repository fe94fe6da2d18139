"""The law of the released parameters on quadratics, many runs each, against the exact Gaussian of
the recurrences.

Each comparison asks for z-scores of means and covariances below 6 and a Kolmogorov-Smirnov p-value
above 1e-7, as the tests of the JAX engine do; seeds are fixed.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

import lastiterate as li
from engine import reference
from engine.test_law import distance
from lastiterate.engine import external_gradients
from lastiterate.engine.random import key_from_seed, keys_from_seed
from lastiterate.torch.audited_modules import StandInModule
from lastiterate.torch.module_training import PreparedModule, fit_module, prepare
from lastiterate.torch.record_gradients import PerRecord
from torch_modules.test_processes import Threads, fit_together

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


# Several processes. One run trains many copies of the quadratic at once, each with noise of its
# own: all are draws of one exact distribution, given the batches that they share.

COPIES = 1500


def sample_together(count, run, monkeypatch):
    """``COPIES`` draws of the parameters that ``count`` processes release, and the batches of one
    process with their key."""
    batches, total = [], PreparedModule.total

    def look(self, point, constants, numbers, *more):
        batches.append(numbers.tolist())
        return total(self, point, constants, numbers, *more)

    module = torch.nn.Linear(2, COPIES, dtype=torch.float64)
    torch.nn.init.zeros_(module.weight), torch.nn.init.zeros_(module.bias)

    def loss(out, y):
        return ((out - y) ** 2).sum() / 2

    with monkeypatch.context() as patched:
        patched.setattr(PreparedModule, "total", look)
        fit_module(run, module, loss, (X, Y), key_from_seed(3))
    theta = fit_together(count, run, module, loss, (X, Y))
    weights, biases = theta[: 2 * COPIES].reshape(COPIES, 2), theta[2 * COPIES :]
    return np.column_stack((weights, biases)), batches


TOGETHER = {
    **CHANGES,
    "poisson": {"batching": li.Poisson(0.4)},
    "allocation": {"batching": li.RandomAllocation(3)},
    "correlated noise": {"noise": li.Correlated(0.4 * 3 / 1e6, 3)},
}


@pytest.mark.parametrize("number, change", [*enumerate(TOGETHER)], ids=TOGETHER)
def test_law_on_several_processes(number, change, monkeypatch):
    run = replace(RUN, **TOGETHER[change])
    draws, batches = sample_together((2, 4)[number % 2], run, monkeypatch)
    z, p = distance(draws, *reference.quadratic_law(replace(run, loss=QUADRATIC), X, Y, batches))
    assert z < 6 and p > 1e-7


# Gradients that are the records, most of them longer than the clip: what is released is a Gaussian
# around a sum that is known. Its parameters are in two tensors.

HALF, CLIP, STD, STEPS = 1000, 1.0, 0.005, 6
RECORDS = RNG.normal(size=(8, 2 * HALF)) * np.geomspace(0.3, 4, 8)[:, None] / np.sqrt(2 * HALF)
CLIPPED = RECORDS * np.minimum(1, CLIP / np.linalg.norm(RECORDS, axis=1))[:, None]
SUMMED = replace(
    RUN, n=8, steps=STEPS, clip=CLIP, batching=li.Cyclic(4), noise=li.GradientNoise(STD)
)


def released_sums_agree(count):
    """Whether what ``count`` processes release has its exact distribution; False too where they
    notice that they do not agree."""
    module = StandInModule({"a": (HALF,), "b": (HALF,)})
    data = RECORDS.astype(np.float32), np.zeros(8, np.float32)
    try:
        theta = fit_together(count, SUMMED, module, lambda out, _: out.sum(), data)
    except li.InputError:
        return False
    rest = (theta - STEPS / 2 * 0.5 * CLIPPED.sum(0) / 4) / (0.5 * STD * np.sqrt(STEPS))
    along = rest @ (CLIPPED / np.linalg.norm(CLIPPED, axis=1)[:, None]).T
    spread = [np.abs((part**2).mean() - 1) * np.sqrt(part.size / 2) for part in np.split(rest, 2)]
    return max(np.abs(along).max(), *spread) < 6 and kstest(rest, norm.cdf).pvalue > 1e-7


@pytest.mark.parametrize("count", [1, 2, 4])
def test_law_of_clipped_sums(count):
    assert released_sums_agree(count)


def add_noise_in_each(patch):
    add, none = Threads.add, external_gradients.external_noise
    draws = np.random.default_rng(5)
    patch(external_gradients, "external_noise", lambda *given: (0.0, none(*given)[1]))
    patch(
        Threads,
        "add",
        lambda self, point, own: add(self, point, own + 4 * STD * draws.normal(size=own.size)),
    )


def add_noise_to_one_shard(patch):
    noise = external_gradients.external_noise

    def shard(*given):
        drawn, state = noise(*given)
        return drawn * (np.arange(2 * HALF) < HALF), state

    patch(external_gradients, "external_noise", shard)


def add_noise_in_one_process(patch):
    noise, calls = external_gradients.external_noise, []
    patch(
        external_gradients,
        "external_noise",
        lambda *given: (noise(*given)[0] * (len(calls) % 2), calls.append(0) or noise(*given)[1]),
    )


def clip_sums_of_processes(patch):
    add = Threads.add
    patch(
        Threads,
        "add",
        lambda self, point, own: add(self, point, own * min(1, CLIP / np.linalg.norm(own))),
    )


def clip_by_the_norm_of_one_shard(patch):
    measure = PerRecord._measure_gradients

    def of_shard(self, *given):
        gradients, _ = measure(self, *given)
        return gradients, gradients["a"].values.double().flatten(1).square().sum(1)

    patch(PerRecord, "_measure_gradients", of_shard)


def divide_by_the_part_of_a_process(patch):
    add = Threads.add
    patch(Threads, "add", lambda self, point, own: self.count * add(self, point, own))


def read_a_record_twice(patch):
    total = PreparedModule.total

    def again(self, point, constants, numbers, *more):
        if self.processes.rank == 1:
            numbers = torch.cat([numbers, torch.tensor([0])])
        return total(self, point, constants, numbers, *more)

    patch(PreparedModule, "total", again)


@pytest.mark.parametrize(
    "mutate",
    [
        add_noise_in_each,
        add_noise_to_one_shard,
        add_noise_in_one_process,
        clip_sums_of_processes,
        clip_by_the_norm_of_one_shard,
        divide_by_the_part_of_a_process,
        read_a_record_twice,
    ],
    ids=lambda mutate: mutate.__name__,
)
def test_what_is_wrong_on_processes_shows(mutate, monkeypatch):
    mutate(monkeypatch.setattr)
    assert not released_sums_agree(2)
