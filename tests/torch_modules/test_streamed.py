"""Modules on records that come in pieces: the model of a run in memory, its checkpoints and its
refusals."""

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.checkpoint import Checkpoint, Key
from lastiterate.errors import InputError
from lastiterate.torch.module_training import fit_in_pieces, fit_module
from lastiterate.torch.released_module import exactly
from tiers import unless

N, RNG = 61, np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 4)).astype(np.float32), RNG.integers(0, 3, N)
LOSS = torch.nn.functional.cross_entropy
BATCHINGS = [
    li.FullBatch(),
    li.Cyclic(15),
    li.Permuted(15),
    li.Reshuffled(15),
    li.RandomAllocation(15),
    li.BallsInBins(15),
]


@pytest.fixture
def module():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Shares and buckets of a few records."""
    monkeypatch.setattr("lastiterate.engine.streaming.execution.AT_ONCE", 170)
    monkeypatch.setattr("lastiterate.engine.streaming.sorting.BUCKET", 300)


def made(first, count):
    return X[first : first + count], Y[first : first + count]


def run_of(batching, **more):
    steps = 3 if batching == li.FullBatch() else 9
    given = dict(
        n=N, steps=steps, step_size=0.3, noise=li.GradientNoise(0.01), batching=batching, clip=1.0
    )
    return li.Run(**given | more)


@pytest.mark.parametrize(
    "noise, batching",
    unless(
        lambda case: (
            isinstance(case[0], li.GradientNoise)
            or case[1] in (li.Cyclic(15), li.RandomAllocation(15))
        ),
        [
            (each, batching)
            for each in (li.GradientNoise(0.01), li.Correlated(0.1, 4))
            for batching in BATCHINGS
        ],
    ),
    ids=str,
)
def test_the_model_is_the_one_of_a_run_in_memory(batching, noise, module, tmp_path):
    """A single record elsewhere moves it by far more than rounding."""
    source, run = li.data.Generated(N, made), run_of(batching, noise=noise)
    held = fit_module(run, module, LOSS, (X, Y), key_from_seed(3), microbatch=8)[1]
    found = fit_in_pieces(
        run, module, LOSS, source, key_from_seed(3), microbatch=8, folder=tmp_path
    )[1]
    np.testing.assert_allclose(found, held, rtol=0, atol=2e-6)
    other = li.data.Generated(
        N, lambda first, count: (np.roll(X, 1, 0)[first : first + count], made(first, count)[1])
    )
    assert np.abs(fit_in_pieces(run, module, LOSS, other, key_from_seed(3))[1] - held).max() > 1e-4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batching", BATCHINGS, ids=str)
def test_exact_sums_have_the_bits_of_memory(batching, tmp_path):
    """Whatever share a record comes in; wide enough that matrix products of several sizes differ."""
    torch.manual_seed(0)
    wide = torch.nn.Sequential(torch.nn.Linear(4, 65), torch.nn.Tanh(), torch.nn.Linear(65, 3))
    source, run = li.data.Generated(N, made), run_of(batching)
    given = dict(key=key_from_seed(3), executed_as=exactly)
    held = fit_module(run, wide, LOSS, (X, Y), **given)[1]
    assert np.abs(held - fit_module(run, wide, LOSS, (X, Y), key_from_seed(3))[1]).max() > 1e-5
    for microbatch in (None, 8):
        found = fit_in_pieces(
            run, wide, LOSS, source, **given, microbatch=microbatch, folder=tmp_path
        )[1]
        assert found.tobytes() == held.tobytes()


def test_exact_sums_of_random_draws_have_the_bits_of_memory(module):
    run = run_of(li.Permuted(15), augmentation=li.RecordAugmentation("shift and dropout", 2))
    dropping = torch.nn.Sequential(torch.nn.Dropout(0.3), module)
    given = dict(
        key=key_from_seed(3), executed_as=exactly, augment=lambda key, x: x + 0.5 * key.normal(4)
    )
    held = fit_module(run, dropping, LOSS, (X, Y), **given)[1]
    found = fit_in_pieces(run, dropping, LOSS, li.data.Generated(N, made), **given)[1]
    assert found.tobytes() == held.tobytes()


def test_exact_noise_trains_sources(module, tmp_path, interrupted, kept):
    run = run_of(li.Cyclic(15), noise=li.NoiseMultiplier(8.0))
    given = dict(model=module, loss=LOSS, seed=1, delta=1e-5, secure_noise=True)
    whole = li.train(run, (X, Y), **given)
    with interrupted(4) as progress:
        li.train(run, li.data.Generated(N, made), progress=progress, **given, **kept)
    found = li.train(run, li.data.Generated(N, made), **given, **kept)
    assert all(torch.equal(found.state[name], whole.state[name]) for name in whole.state)
    assert found.certificate.to_json(1e-5) == whole.certificate.to_json(1e-5)
    found.save(tmp_path / "model")
    assert li.load(tmp_path / "model", like=module).form == "exact-torch"
    assert li.verify(tmp_path / "model").holds


def test_a_resumed_run_releases_the_same_bits(module, tmp_path, interrupted):
    run, source, path = run_of(li.RandomAllocation(15)), li.data.Generated(N, made), tmp_path / "c"
    whole = fit_in_pieces(run, module, LOSS, source, key_from_seed(5))[1]

    def kept():
        return Checkpoint(path, Key(bytes(32)), 0.0)

    with interrupted(6) as progress:
        fit_in_pieces(
            run, module, LOSS, source, key_from_seed(5), progress=progress, checkpoint=kept()
        )
    found = fit_in_pieces(run, module, LOSS, source, key_from_seed(5), checkpoint=kept())[1]
    np.testing.assert_array_equal(found, whole)


def test_train_takes_sources_and_refuses_what_they_cannot(module, tmp_path):
    source = li.data.Generated(N, made)
    found = li.train(
        run_of(li.Cyclic(15)), source, model=module, loss=LOSS, seed=1, delta=1e-5, scratch=tmp_path
    )
    assert found.predict(X).shape == (N, 3)

    def refused(match, run=None, data=source, **more):
        with pytest.raises(InputError, match=match):
            li.train(
                run_of(li.Cyclic(15)) if run is None else run,
                data,
                model=module,
                loss=LOSS,
                delta=1e-5,
                **more,
            )

    refused("needs random access", run_of(li.Poisson(0.2)))
    refused("must be 'last'", run_of(li.Cyclic(15), release="all"))
    refused("devices must be 1 for torch models", devices=2)
    refused("n = 61 records", data=li.data.Generated(60, made))
    refused(
        "finite numbers",
        data=li.data.Generated(
            N, lambda first, count: (made(first, count)[0] * np.inf, made(first, count)[1])
        ),
    )

    changed = li.data.Generated(N, made)
    object.__setattr__(
        changed, "check", lambda: (_ for _ in ()).throw(InputError("data file", "changed"))
    )
    refused("changed", data=changed)
