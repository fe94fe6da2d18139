"""Modules with batch normalisation become ones that can be trained, and it is said what was
changed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.torch import private_version
from lastiterate.torch.module_requirements import check_parts

X = np.random.default_rng(0).normal(size=(12, 3, 6, 6)).astype(np.float32)
Y = np.arange(12) % 2


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
        nn.BatchNorm1d(10),
        nn.Linear(10, 2),
    )


def test_what_is_changed_is_said_and_can_be_trained():
    module = net()
    torch.nn.init.normal_(module[1].weight)
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(InputError, match="batch normalisation mixes"):
        check_parts(module)
    found = private_version(module)
    assert found.changed == (
        "1: BatchNorm2d is GroupNorm(16, 64)",
        "3: Dropout is switched off",
        "6: BatchNorm1d is GroupNorm(1, 10)",
    )
    assert (
        torch.equal(found.module[1].weight, module[1].weight)
        and module[1].training
        and module[3].training
    )
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    run = li.Run(
        n=12, steps=3, step_size=0.1, noise=li.GradientNoise(0.1), clip=1.0, batching=li.Cyclic(6)
    )
    model = li.train(run, (X, Y), model=found.module, loss=nn.functional.cross_entropy, seed=1)
    assert set(model.state) == {name for name, _ in module.named_parameters()}


def test_numbers_of_one_channel_are_not_normalised_to_nothing():
    found = private_version(nn.Sequential(nn.BatchNorm1d(32))).module
    assert float(found(torch.randn(4, 32)).detach().abs().mean()) > 0.5


def test_parts_that_are_shared_stay_shared_and_others_stay_as_they_are():
    part = nn.BatchNorm2d(8)
    found = private_version(
        nn.ModuleDict(
            {
                "a": part,
                "b": nn.Sequential(part, nn.InstanceNorm2d(8, track_running_stats=True)),
                "c": nn.Linear(2, 2),
            }
        )
    )
    assert found.module["a"] is found.module["b"][0] and isinstance(found.module["a"], nn.GroupNorm)
    assert found.changed == (
        "a: BatchNorm2d is GroupNorm(2, 8)",
        "b.1: InstanceNorm2d collects no statistics",
    )
    check_parts(found.module)
    assert private_version(nn.Linear(2, 2)).changed == ()
    assert isinstance(private_version(nn.BatchNorm2d(8)).module, nn.GroupNorm)
    inside = private_version(nn.DataParallel(nn.Linear(2, 2)))
    assert type(inside.module) is nn.Linear and inside.changed == (
        "DataParallel: the module inside of it",
    )
    with pytest.raises(InputError, match=r"must be a torch\.nn\.Module, got 'type'"):
        private_version(nn.Linear)
    with pytest.raises(InputError, match="seen a batch"):
        private_version(nn.LazyBatchNorm1d())


class Attending(nn.Module):
    """Attention of torch's function, with the dropout of a part or of a number."""

    def __init__(self, kept):
        super().__init__()
        self.map, self.kept = nn.Linear(6, 2), kept
        self.attention_dropout, self.other = 0.1, nn.Dropout(0.1)

    def forward(self, x):
        held = x.flatten(1, 2)
        p = self.attention_dropout if self.kept else self.other.p
        p = p if self.training else 0.0
        held = nn.functional.scaled_dot_product_attention(held, held, held, dropout_p=p)
        return self.map(held.mean(1))


@pytest.mark.parametrize("kept", [False, True])
def test_dropout_inside_of_attention_is_switched_off_and_said(kept):
    run = li.Run(n=12, steps=1, step_size=0.1, noise=li.GradientNoise(0.1), clip=1.0)
    module = Attending(kept)
    with pytest.raises(InputError, match=r"draw no random numbers.*private_version\(module\)"):
        li.train(run, (X, Y), model=module, loss=nn.functional.cross_entropy)
    found = private_version(module)
    assert found.changed == (
        "the module: Attending has attention_dropout=0.0",
        "other: Dropout is switched off",
    )
    li.train(run, (X, Y), model=found.module, loss=nn.functional.cross_entropy)
    assert module.attention_dropout == module.other.p == 0.1 and module.training


def test_dropout_of_torchs_attention_is_switched_off_and_said():
    attention = nn.MultiheadAttention(8, 2, dropout=0.1)
    changed = "MultiheadAttention has dropout=0.0"
    assert private_version(attention).changed == (f"the module: {changed}",)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.1, batch_first=True)
    module = nn.Sequential(nn.Flatten(1, 2), layer, nn.Flatten(), nn.Linear(108, 2))
    found = private_version(module)
    assert found.changed[0] == f"1.self_attn: {changed}" and len(found.changed) == 4
    run = li.Run(n=12, steps=1, step_size=0.1, noise=li.GradientNoise(0.1), clip=1.0)
    li.train(run, (X, Y), model=found.module, loss=nn.functional.cross_entropy)
    assert private_version(attention.eval()).changed == ()
