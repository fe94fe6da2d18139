"""Augmentations of what a module takes, under keys of the record's own: the mean over copies is
clipped."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import nn

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.engine.random import ORDER, stream
from lastiterate.engine.record_loss import keys_of_batch
from lastiterate.engine.streaming.buffers import Arrays
from lastiterate.errors import InputError
from lastiterate.torch.module_training import fit_in_pieces, fit_module, prepare
from lastiterate.torch.randomness import RecordKey, keys_to_words
from lastiterate.torch.released_module import exactly

N, CLIP = 20, 0.7
X = np.random.default_rng(0).normal(size=(N, 1, 5, 5)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(
    n=N,
    steps=4,
    step_size=0.5,
    noise=li.GradientNoise(0.01),
    clip=CLIP,
    batching=li.RandomAllocation(5),
    augmentation=li.RecordAugmentation("shaken", 3),
)


def shaken(key: RecordKey, x: torch.Tensor) -> torch.Tensor:
    flip, noise = key.split()
    return torch.where(flip.uniform() < 0.5, x.flip(-1), x) + 0.3 * noise.normal(*x.shape)


def violent(key: RecordKey, x: torch.Tensor) -> torch.Tensor:
    drawn = key.uniform() - 0.5
    return x * drawn.sign() * torch.exp(100 * drawn.abs())


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3))


def entropy(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(out, target)


def flat(state: dict[str, torch.Tensor]) -> np.ndarray:
    return np.concatenate(
        [tensor.double().numpy().reshape(len(tensor), -1) for tensor in state.values()], axis=1
    )


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("copies", [1, 3])
def test_the_mean_over_copies_is_clipped_and_then_added(copies: int, exact: bool):
    run = replace(RUN, augmentation=li.RecordAugmentation("shaken", copies))
    module = net()
    prepared = prepare(run, module, entropy, (X, Y), augment=shaken)
    key = key_from_seed(3)
    summed = exactly(prepared, key)[0] if exact else prepared
    keys = np.random.default_rng(1).integers(0, 2**32, (N, 2), dtype=np.uint32)
    constants = summed.summed.parameters.copy_constants(summed.summed.dtype)
    found = summed.total(prepared.initial, constants, torch.arange(N), None, keys)
    total = np.zeros(prepared.initial.size)
    for x, y, word in zip(
        torch.from_numpy(X), torch.from_numpy(Y), keys_to_words(keys), strict=True
    ):
        module.zero_grad()
        for copy in range(copies):
            form = shaken(RecordKey(word).fold_in(copy).fold_in(0), x)
            (entropy(module(form[None])[0], y) / copies).backward()
        mean = torch.cat([part.grad.reshape(-1) for part in module.parameters()]).double().numpy()  # type: ignore[union-attr]
        total += mean * min(1, CLIP / np.linalg.norm(mean))
        assert np.linalg.norm(mean) > CLIP
    np.testing.assert_allclose(found, total, atol=1e-4)


@pytest.mark.parametrize("exact", [False, True])
def test_one_record_moves_no_sum_by_more_than_the_clip_whatever_is_drawn(exact: bool):
    run = replace(RUN, release="all", steps=16, noise=li.GradientNoise(1e-3))
    without = X.copy()
    without[3] = 0
    module = nn.Sequential(nn.Flatten(), nn.Linear(25, 1, bias=False))
    one, other = (
        flat(parameters.restore_precision(theta))
        for parameters, theta in (
            fit_module(
                run,
                module,
                lambda out, _: out.sum(),
                (rows, Y),
                key_from_seed(1),
                augment=violent,
                executed_as=exactly if exact else None,
            )
            for rows in (X, without)
        )
    )
    moved = np.diff(one - other, axis=0, prepend=0) * run.divisor / 0.5
    norms = np.linalg.norm(moved, axis=1)
    assert 0.9 * CLIP < norms.max() <= CLIP * (1 + 1e-5)
    assert len({tuple(np.round(step, 4) + 0) for step in moved[norms > 0.1]}) > 1, (
        "draws of two steps differ"
    )


@pytest.mark.parametrize("batching", [li.Cyclic(6), li.RandomAllocation(5)], ids=str)
def test_what_a_record_draws_follows_from_its_number_and_not_from_its_place(batching: Any):
    run = replace(RUN, batching=batching)
    found = fit_module(run, net(), entropy, (X, Y), key_from_seed(1), augment=shaken)[1]
    apart = fit_module(run, net(), entropy, (X, Y), key_from_seed(1), augment=shaken, microbatch=2)[
        1
    ]
    np.testing.assert_allclose(found, apart, atol=1e-6)
    pieces = fit_in_pieces(run, net(), entropy, Arrays((X, Y)), key_from_seed(1), augment=shaken)[1]
    np.testing.assert_array_equal(found, pieces)


@pytest.mark.parametrize("microbatch", [None, 3])
def test_dropout_drops_by_the_record_and_the_step(microbatch: int | None):
    run = replace(
        RUN,
        batching=li.FullBatch(),
        step_size=1.0,
        noise=li.GradientNoise(1e-9),
        clip=1e3,
        release="all",
        augmentation=li.RecordAugmentation("dropout", 1),
    )
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(N, 1, bias=False))
    data = (np.eye(N, dtype=np.float32), Y)
    theta = fit_module(
        run, module, lambda out, _: out.sum(), data, key_from_seed(1), microbatch=microbatch
    )[1]
    kept = (
        -np.diff(theta, axis=0) * N
    )  # record i moves entry i alone, twice as far where it is kept
    with jax.enable_x64(True):
        keys = [
            keys_of_batch(stream(key_from_seed(1), ORDER), np.arange(N), k)
            for k in range(1, run.steps)
        ]
    wanted = [
        [
            2.0 * float(RecordKey(word).fold_in(0).fold_in(1).fold_in(1).uniform(1, N)[0, i] >= 0.5)
            for i, word in enumerate(keys_to_words(each))
        ]
        for each in keys
    ]
    np.testing.assert_allclose(kept, wanted, atol=1e-4)
    assert len({tuple(row) for row in wanted}) == len(wanted) and 0.3 < np.mean(wanted) < 1.7


def test_train_gives_keys_to_dropout_that_is_switched_on_and_says_so():
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Dropout(0.3), nn.Linear(18, 3)
    )
    run = replace(RUN, augmentation=None)
    model = li.train(run, (X, Y), model=module, loss=entropy, augment=shaken, copies=2)
    assert model.certificate.run.augmentation == li.RecordAugmentation("shaken and dropout", 2)  # type: ignore[union-attr]
    np.testing.assert_array_equal(model.predict(X), model.predict(X))
    assert (
        li.train(run, (X, Y), model=module.eval(), loss=entropy).certificate.run.augmentation
        is None
    )
    with pytest.raises(InputError, match="AlphaDropout"):
        li.train(
            run,
            (X, Y),
            model=nn.Sequential(nn.AlphaDropout(0.5), nn.Flatten(), nn.Linear(25, 3)),
            loss=entropy,
        )


def test_a_table_of_embeddings_adds_up_what_several_copies_look_up():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 3))
    words = np.random.default_rng(0).integers(0, 4, (N, 3))

    def turned(key: RecordKey, x: torch.Tensor) -> torch.Tensor:
        return (x + key.integers(0, 4)) % 4

    prepared = prepare(replace(RUN, clip=0.2), module, entropy, (words, Y), augment=turned)
    with jax.enable_x64(True):
        keys = keys_of_batch(stream(key_from_seed(1), ORDER), np.arange(N), 0)
    constants = prepared.summed.parameters.copy_constants(prepared.summed.dtype)
    quick = prepared.total(prepared.initial, constants, torch.arange(N), None, keys)
    slow = replace(prepared, summed=replace(prepared.summed, layers=())).total(
        prepared.initial, constants, torch.arange(N), None, keys
    )
    assert prepared.summed.layers and np.abs(slow).max() > 0.1
    np.testing.assert_allclose(quick, slow, atol=1e-5)


def test_numbers_of_a_key_are_uniform_and_those_of_other_keys_are_others():
    keys = [RecordKey(torch.tensor(word)) for word in (0, 1, 2**62, -1)]
    every = torch.stack([each.fold_in(step).uniform(4000) for each in keys for step in range(3)])
    assert every.min() >= 0 and every.max() < 1 and len(every.unique()) > 0.99 * every.numel()
    assert abs(float(every.mean()) - 0.5) < 0.005 and abs(float(every.var()) - 1 / 12) < 0.002
    assert float(torch.corrcoef(every).fill_diagonal_(0).abs().max()) < 0.07
    normal = keys[0].normal(40000)
    assert (
        abs(float(normal.mean())) < 0.02
        and abs(float(normal.std()) - 1) < 0.02
        and bool(normal.isfinite().all())
    )
    counts = torch.bincount(keys[1].integers(2, 5, 30000), minlength=5)
    assert counts[:2].sum() == 0 and int(counts[2:].min()) > 9700
    many = torch.func.vmap(lambda word: RecordKey(word).uniform(3))(
        torch.stack([each.word for each in keys])
    )
    assert all(torch.equal(row, each.uniform(3)) for row, each in zip(many, keys, strict=True))


HELD = torch.from_numpy(X)
REFUSED = {
    "generator": (lambda key, x: x + torch.randn_like(x), "draws from the generator"),
    "records": (lambda key, x: HELD[key.integers(0, N)], "one entry for every record"),
    "average": (lambda key, x: x - HELD.mean(0), "one entry for every record"),
    "if": (lambda key, x: x if float(x.sum()) > 0 else -x, "vmap"),
    "form": (lambda key, x: (x, x), "form"),
    "shape": (
        lambda key, x: x.reshape(-1)[:5],
        "^augment must give a record that the model and the loss take",
    ),
    "arguments": (lambda x: x, "key and one record"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_augmentation_that_may_look_at_other_records_is_refused(name: str):
    augment, said = REFUSED[name]
    with pytest.raises(InputError, match=said) as caught:
        li.train(RUN, (X, Y), model=net(), loss=entropy, augment=augment)
    assert "\n" not in str(caught.value)


def test_train_says_what_is_drawn_and_a_checkpoint_knows_it():
    plain = replace(RUN, augmentation=None)
    model = li.train(plain, (X, Y), model=net(), loss=entropy, augment=shaken, copies=3)
    assert model.certificate.run.augmentation == RUN.augmentation  # type: ignore[union-attr]
    once = replace(
        RUN, augmentation=li.RecordAugmentation("shaken", 1)
    )  # one copy: each is traced for itself
    first, other, again = (
        prepare(once, net(), entropy, (X, Y), augment=one).identity
        for one in (shaken, violent, shaken)
    )
    assert first == again != other
    with pytest.raises(InputError, match="augmentation"):
        li.torch.trainer(RUN, net(), entropy)(X, Y, np.asarray(key_from_seed(1))[None])


def test_shapes_of_drawn_numbers_may_be_a_tuple():
    key = RecordKey(torch.tensor(7))
    assert torch.equal(key.normal((2, 3)), key.normal(2, 3))
    assert torch.equal(key.uniform(torch.ones(2, 3).shape), key.uniform(2, 3))
    assert torch.equal(key.integers(0, 9, (4,)), key.integers(0, 9, 4))
