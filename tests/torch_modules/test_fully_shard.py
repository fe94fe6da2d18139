"""Modules that ``fully_shard`` cut: the release of the plain module, whose weights are on the device
one layer at a time; what is added is never longer than the clip."""

import copy
import ctypes
import json
import os
import socket
import subprocess
import sys
import weakref
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn import functional

import lastiterate as li
from lastiterate.engine import key_from_seed
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger
from lastiterate.release.training_request import Processes
from lastiterate.torch import (
    Grouped,
    make_private,
    module_requirements,
    module_training,
    private_version,
)
from lastiterate.torch.module_training import fit_in_pieces, fit_module, prepare
from lastiterate.torch.parameter_contributions import Products, Stored
from lastiterate.torch.parameters import HostWeights
from lastiterate.torch.processes import check_sharded, copy_to_host, join_processes
from lastiterate.torch.record_gradients import CLIP_SHRINK, full_precision, to_theta

pytestmark = pytest.mark.filterwarnings("ignore::lastiterate.errors.RepeatedFitWarning")
N, RNG, CPU = 40, np.random.default_rng(0), torch.device("cpu")
LOSS = functional.cross_entropy
RUN = li.Run(
    n=N, steps=3, step_size=0.5, noise=li.GradientNoise(0.01), batching=li.Cyclic(10), clip=0.5
)


@pytest.fixture(scope="module", autouse=True)
def job():
    """A job of one process, in which modules are cut as in one of many."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.value, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + functional.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h))
        return x + self.down(functional.gelu(self.up(x)))


class Language(nn.Module):
    """A transformer whose table of words is that of its outputs, too."""

    def __init__(self, words=11, width=6):
        super().__init__()
        self.words, self.kinds = nn.Embedding(words, width), nn.Embedding(7, width, padding_idx=2)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.out = nn.Linear(width, words, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        h = self.words(x) + self.kinds(x % 7)
        for block in self.blocks:
            h = block(h)
        return self.out(h.mean(1))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, padding="same", groups=2)
        self.back = nn.ConvTranspose2d(4, 3, 2, stride=2, output_padding=1, bias=False)
        self.norm, self.last = nn.GroupNorm(1, 3), nn.Linear(3, 3)

    def forward(self, x):
        h = self.norm(torch.tanh(self.back(torch.tanh(self.first(x)))))
        return self.last(h.flatten(2).mean(2))


class Adapted(nn.Module):
    """A frozen layer with a trained one of low rank, whose input is the record itself."""

    def __init__(self):
        super().__init__()
        self.base, self.down, self.up = nn.Linear(4, 5), nn.Linear(4, 1), nn.Linear(1, 5)
        self.base.requires_grad_(False)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.base(x) + self.up(self.down(x))))


def make(kind, *given):
    torch.manual_seed(0)
    return kind(*given)


def network(*parts):
    return make(
        lambda: nn.Sequential(nn.Linear(4, 5), *parts, nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3))
    )


def cut(module, parts=(), size=1):
    """``module``, to which ``fully_shard`` is applied, part by part."""
    mesh = init_device_mesh("cpu", (size,))
    for part in parts:
        fully_shard(part, mesh=mesh)
    return fully_shard(module, mesh=mesh)


WORDS = RNG.integers(0, 11, (N, 5)), RNG.integers(0, 11, N)
PIXELS = RNG.normal(size=(N, 2, 5, 4)).astype(np.float32), RNG.integers(0, 3, N)
ROWS = RNG.normal(size=(N, 4)).astype(np.float32), RNG.integers(0, 3, N)
SEQUENCES = RNG.normal(size=(N, 6, 4)).astype(np.float32), RNG.integers(0, 3, N)
DRAWN = replace(
    RUN, augmentation=li.RecordAugmentation("shift and dropout", 2), batching=li.Poisson(0.3)
)


class OfSequences(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside = network()

    def forward(self, x):
        return self.inside(x).mean(1)


LARGEST = 4 * 3 * 6 * 6
"""Bytes of the largest weight in a block of ``Language``."""
CASES = {
    "a transformer": (RUN, lambda: make(Language), WORDS, {}),
    "a transformer, batches drawn": (
        replace(RUN, batching=li.Poisson(0.3)),
        lambda: make(Language),
        WORDS,
        {},
    ),
    "convolutions": (RUN, lambda: make(Images), PIXELS, {}),
    "layers on vectors": (RUN, network, ROWS, {}),
    "a frozen layer": (RUN, lambda: make(Adapted), ROWS, {}),
    "no clip": (
        replace(RUN, clip=None, loss=li.KnownConstants(li.LossFacts(lipschitz=1.0))),
        lambda: make(OfSequences),
        SEQUENCES,
        {},
    ),
    "drawn copies of vectors": (
        DRAWN,
        lambda: network(nn.Dropout(0.5)),
        ROWS,
        {"augment": lambda key, x: x + 0.5 * key.normal(4)},
    ),
    "drawn copies of sequences": (
        DRAWN,
        lambda: make(OfSequences),
        SEQUENCES,
        {"augment": lambda key, x: x + 0.5 * key.normal(6, 4)},
    ),
    "drawn copies of images": (
        DRAWN,
        lambda: make(Images),
        PIXELS,
        {"augment": lambda key, x: x + 0.5 * key.normal(2, 5, 4)},
    ),
    "classes of other weights": (
        replace(RUN, loss=li.KnownConstants(class_weights=(0.2, 1.0, 0.5))),
        lambda: make(OfSequences),
        SEQUENCES,
        {},
    ),
}


class Copied:
    """What is copied to the device: how often, and the most bytes of it that are there at once."""

    def __init__(self):
        self.names, self.live, self.most = [], {}, 0

    def fetch(self, weights, name):
        held = FETCH(weights, name)
        plain = held
        while torch._C._functorch.is_functorch_wrapped_tensor(plain):
            plain = torch._C._functorch.get_unwrapped(plain)
        storage, number = plain.untyped_storage(), len(self.names)
        self.names.append(name)
        self.live[number] = storage.nbytes()
        self.most = max(self.most, sum(self.live.values()))
        weakref.finalize(storage, self.live.pop, number)
        return held


FETCH = HostWeights.fetch


@pytest.fixture
def copied(monkeypatch):
    count = Copied()
    monkeypatch.setattr(HostWeights, "fetch", lambda weights, name: count.fetch(weights, name))
    return count


def on_layers():
    processes = Processes()
    processes.layer_device = CPU
    return processes


@pytest.mark.parametrize("case", CASES)
def test_the_release_is_that_of_the_plain_module(case, copied):
    run, build, data, more = CASES[case]
    plain = fit_module(run, build(), LOSS, data, key_from_seed(3), **more)[1]
    assert not copied.names
    processes, copy_of = join_processes(cut(build()))
    assert processes.layer_device == CPU
    found = fit_module(run, copy_of, LOSS, data, key_from_seed(3), processes=processes, **more)[1]
    np.testing.assert_allclose(found, plain, rtol=0, atol=2e-6)
    other = fit_module(run, build(), LOSS, data, key_from_seed(4), **more)[1]
    assert np.abs(other - plain).max() > 1e-3
    weights = {
        name: 4 * each.numel()
        for name, each in build().named_parameters()
        if each.dim() > 1 and "words" not in name
    }
    assert set(copied.names) == set(weights) and copied.most == max(weights.values())
    assert not copied.live


# The norm that clips, and the term that is added.


def noisy_products(again=1.0):
    """Two records whose products cancel, and a product that differs at the second time."""
    left = torch.tensor([[[[1.0], [1.0]]], [[[3.0], [4.0]]]])
    right = torch.tensor([[[[1e4], [-1e4 + 0.01]]], [[[1.0], [0.0]]]])
    calls = Counter()

    def multiply(one, other):
        product = one.transpose(1, 2) @ other
        calls[float(one[0, 1, 0])] += 1
        return product if calls[float(one[0, 1, 0])] == 1 else product + again

    return Products(left, right, multiply)


def test_a_second_product_that_is_longer_is_scaled_down_to_the_first_norm():
    """The first record's is .0098, the second time 1.0098: the clip of the first would let it pass."""
    for wide in (False, True):
        products = noisy_products()
        squares = products.squares()
        first = squares.sqrt()
        assert first[0] < 0.011 and first[1] == pytest.approx(3.0)
        scale = torch.tensor([1.0, 0.0], dtype=torch.float64)
        total = products.total(scale, 2, wide=wide)
        assert float(total) == pytest.approx(float(first[0]), rel=1e-5)
        assert float(total) <= float(first[0]) * (1 + 2.0**-20)
        assert total.dtype == (torch.float64 if wide else torch.float32)


@pytest.mark.parametrize("again", [np.inf, -np.inf, np.nan])
def test_a_second_product_that_is_not_finite_adds_nothing(again):
    products = noisy_products(again)
    products.squares()
    total = products.total(torch.ones(2, dtype=torch.float64), 2, wide=False)
    assert float(total) == 0


def test_a_shorter_second_product_stays_as_it_is():
    products = noisy_products(-1.0)
    products.squares()
    total = products.total(torch.tensor([0.0, 0.5], dtype=torch.float64), 2, wide=False)
    assert float(total) == 0.5 * (3.0 - 1.0)


def test_a_scale_that_rounding_could_double_adds_nothing():
    """.6 of the least number of single precision would round up to that."""
    values = iter([0.6 * 2.0**-109, 2.0**40])
    products = Products(
        torch.ones(1, 1, 1, 1),
        torch.ones(1, 1, 1, 1),
        lambda one, other: one * torch.tensor(next(values)),
    )
    products.squares()
    assert float(products.total(torch.ones(1, dtype=torch.float64), 1, wide=False)) == 0


@pytest.mark.parametrize("counted", [3, torch.tensor([True, False, True])])
@pytest.mark.parametrize("wide", [False, True])
def test_factors_add_what_stored_gradients_add(counted, wide):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(4, 2, 5, k, generator=generator) for k in (3, 6))
    products = Products(left, right, lambda one, other: one.transpose(1, 2) @ other)
    stored = Stored((left.transpose(2, 3) @ right).sum(1).flatten(1))
    scale = torch.tensor([0.5, 1.0, 2.0**-130, 1.0], dtype=torch.float64)
    wanted = stored.total(scale * (scale > 2.0**-126), counted, wide=wide)
    found = products.total(scale, counted, wide=wide)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert found.dtype == wanted.dtype and torch.equal(
        products.each().nan_to_num(), stored.each().nan_to_num()
    )
    torch.testing.assert_close(products.squares(), stored.squares(), equal_nan=True)
    assert not products.total(scale, 0, wide=wide).any()


def test_copies_of_a_record_are_added_before_the_norm():
    left, right = torch.ones(4, 1, 2, 1), torch.tensor([1.0, -1.0, 2.0, 2.0])[:, None, None, None]
    products = Products(
        left, right.expand(4, 1, 2, 1), lambda one, other: one.transpose(1, 2) @ other
    ).merge_copies(2)
    assert products.squares().tolist() == pytest.approx([0.0, 64.0])


def summed_on_layers(run, build, data, microbatch=None):
    module = copy_to_host(cut(build()))
    return prepare(run, module, LOSS, data, microbatch, device=CPU), module


@pytest.mark.parametrize("build, data", [(lambda: make(Language), WORDS), (network, ROWS)])
def test_a_record_is_clipped_over_all_layers(build, data):
    """Of one record the sum has the norm of the clip; without a clip it is the gradient."""
    for clip in (0.05, 0.5):
        prepared, _ = summed_on_layers(replace(RUN, clip=clip), build, data)
        summed = prepared.summed
        assert len(summed.layers) > 2 and summed.host.names
        point, constants = prepared.initial, summed.parameters.copy_constants(summed.dtype)
        with full_precision(CPU), torch.no_grad():
            for number in range(4):
                total = prepared.total(point, constants, torch.tensor([number]))
                norm = float(np.linalg.norm(total))
                assert clip * (CLIP_SHRINK - 1e-5) <= norm <= clip
                assert not summed.host._placed.keys() & set(summed.parameters.names)


def test_sums_of_several_chunks_and_of_none_are_those_of_one():
    whole, small = (summed_on_layers(RUN, lambda: make(Language), WORDS, m)[0] for m in (40, 7))
    with full_precision(CPU), torch.no_grad():
        one, several = (
            each.total(each.initial, each.summed.parameters.copy_constants(torch.float32), numbers)
            for each, numbers in ((whole, torch.arange(N)), (small, torch.arange(N)))
        )
        none = whole.total(
            whole.initial, whole.summed.parameters.copy_constants(torch.float32), torch.arange(0)
        )
    np.testing.assert_allclose(one, several, rtol=0, atol=2e-6)
    assert not none.any()


def test_a_chunk_holds_what_layers_answer_and_no_gradient_by_their_weights(monkeypatch):
    """Of one record: 6 places of 5, 5 and 3 outputs, and the gradients by as many biases."""
    monkeypatch.setattr(module_training, "MEMORY", 1000)
    prepared, _ = summed_on_layers(RUN, lambda: make(OfSequences), SEQUENCES)
    assert prepared.most == 1000 // (6 * (5 + 5 + 3) + 5 + 5 + 3)


@pytest.mark.parametrize("case", ["drawn copies of vectors", "drawn copies of images"])
def test_no_gradient_by_a_weight_is_stored_for_several_records(case):
    run, build, data, more = CASES[case]
    prepared = prepare(run, copy_to_host(cut(build())), LOSS, data, device=CPU, **more)
    summed, records = prepared.summed, tuple(torch.as_tensor(part[:3]) for part in data)
    trained = summed.parameters.tensors(to_theta(prepared.initial, CPU), summed.dtype)
    with full_precision(CPU), torch.no_grad():
        found = summed.contributions(trained, {}, (*records, torch.arange(3)))
    kinds = {name: type(each) for name, each in found.items() if name.endswith("weight")}
    assert {kind for name, kind in kinds.items() if "norm" not in name} == {Products}


def test_records_that_come_in_pieces_are_summed_in_layers(tmp_path, copied):
    source = li.data.Generated(
        N, lambda first, many: (WORDS[0][first : first + many], WORDS[1][first : first + many])
    )
    plain = fit_in_pieces(RUN, make(Language), LOSS, source, key_from_seed(3), folder=tmp_path)[1]
    assert not copied.names
    module, key = copy_to_host(cut(make(Language))), key_from_seed(3)
    more = {"folder": tmp_path, "processes": on_layers()}
    found = fit_in_pieces(RUN, module, LOSS, source, key, **more)[1]
    np.testing.assert_allclose(found, plain, rtol=0, atol=2e-6)
    assert copied.names and copied.most == LARGEST


# What is copied, and what is refused.


def test_the_copy_is_the_plain_module_and_the_given_one_stays_as_it_is():
    plain, seen = make(Language), []
    plain.blocks[0].up.weight.requires_grad_(False)
    plain.register_buffer("steps", torch.tensor([3]))
    plain.blocks[1].register_forward_hook(lambda part, given, answer: seen.append(type(part)))
    module = copy.deepcopy(plain)
    cut(module, module.blocks)
    x = torch.tensor(WORDS[0][:2])
    module(x).sum().backward()  # so that hooks for states are there, and the root is whole
    grads = {name: each.grad for name, each in module.named_parameters()}
    before = [dict(vars(part)) for part in module.modules()]
    numbers = {name: id(each) for name, each in module.named_parameters()}
    copied = copy_to_host(module)
    assert [type(part) for part in copied.modules()] == [type(part) for part in plain.modules()]
    for part, wanted in zip(copied.modules(), plain.modules(), strict=True):
        assert vars(part).keys() == vars(wanted).keys()
        for name, each in vars(wanted).items():
            if "_hooks" in name:
                assert len(vars(part)[name]) == len(each), name
    for (name, one), (other, wanted) in zip(
        copied.named_parameters(), plain.named_parameters(), strict=True
    ):
        assert name == other and type(one) is nn.Parameter and torch.equal(one, wanted)
        assert one.requires_grad == wanted.requires_grad and one.grad is None
    assert copied.out.weight is copied.words.weight and torch.equal(copied.steps, plain.steps)
    seen.clear()
    torch.testing.assert_close(copied(x), plain(x))
    assert seen == [Block, Block]
    with torch.no_grad():
        copied.blocks[0].down.weight.zero_(), copied.steps.zero_()
    # the given one
    assert isinstance(module, FSDPModule) and [vars(part) for part in module.modules()] == before
    assert {name: id(each) for name, each in module.named_parameters()} == numbers
    for name, each in module.named_parameters():
        assert each.grad is grads[name]
    assert int(module.steps) == 3
    assert all(isinstance(each, DTensor) for each in module.blocks.parameters())
    torch.testing.assert_close(module(x), plain(x))


def shard_together(module):
    """Parts in one group, as tied weights need them, and a method of its own."""
    mesh = init_device_mesh("cpu", (1,))
    fully_shard([module.words, module.out], mesh=mesh)
    fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(module, "forward")
    return module


def shard_by_columns(module):
    """Along the last axis of every parameter, and offloaded."""
    fully_shard(
        module,
        mesh=init_device_mesh("cpu", (1,)),
        shard_placement_fn=lambda tensor: Shard(tensor.dim() - 1),
        offload_policy=CPUOffloadPolicy(pin_memory=False),
        reshard_after_forward=False,
    )
    return module


def shard_but_one(module):
    mesh, kept = init_device_mesh("cpu", (1,)), {module.blocks[0].up.weight}
    return fully_shard(module, mesh=mesh, ignored_params=kept)


@pytest.mark.parametrize("shard", [shard_together, shard_by_columns, shard_but_one])
@pytest.mark.parametrize("called", [False, True], ids=["new", "called"])
def test_every_way_to_cut_has_one_copy(shard, called):
    x, plain, module = torch.tensor(WORDS[0][:3]), make(Language), shard(make(Language))
    if called:
        module(x)
    copied = copy_to_host(module)
    assert check_sharded(module) == CPU and "forward" not in vars(copied)
    assert copied.state_dict().keys() == plain.state_dict().keys()
    assert copied.out.weight is copied.words.weight
    torch.testing.assert_close(copied(x), plain(x))
    copied.load_state_dict(plain.state_dict())
    assert not any(isinstance(each, DTensor) for each in copied.parameters())


class Own(nn.Linear):
    def __deepcopy__(self, held):
        return Own(4, 3)


def cut_badly(how):
    module = network()
    mesh = init_device_mesh("cpu", (1,))
    match how:
        case "a mesh of two axes":
            axes = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
            return fully_shard(module, mesh=axes)
        case "a policy that casts":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
            return fully_shard(module, mesh=mesh, mp_policy=policy)
        case "a way of its own to be copied":
            module[2] = fully_shard(Own(5, 5), mesh=mesh)
            return module
        case "hooks on gradients":
            module = cut(module)
            module[0].weight.register_hook(lambda slope: 2 * slope)
            return module
        case _:
            with torch.device("meta"):
                return cut(nn.Linear(4, 3))


def test_a_mesh_is_looked_at_where_parameters_are_whole_for_a_moment():
    """As those of the root are after a call."""
    module = cut_badly("a mesh of two axes")
    module(torch.ones(2, 4))
    assert not any(isinstance(each, DTensor) for each in module.parameters())
    with pytest.raises(InputError, match=r"sharded over all 1 processes"):
        check_sharded(module)


def test_a_tensor_that_something_else_cut_is_refused():
    module = network()
    cut(module[0])
    axes = init_device_mesh("cpu", (1, 1), mesh_dim_names=("one", "two"))
    spread = distribute_tensor(module[2].weight.detach(), axes, [Replicate(), Shard(0)])
    module[2].weight = nn.Parameter(spread)
    with pytest.raises(InputError, match=r"sharded over all 1 processes.*'2.weight'"):
        li.train(RUN, ROWS, model=module, loss=LOSS, delta=1e-4)


@pytest.mark.parametrize(
    "how, said",
    [
        (
            "a mesh of two axes",
            r"sharded over all 1 processes.*mesh=init_device_mesh\('cpu', \(1,\)\)",
        ),
        ("a policy that casts", r"without a policy that casts.*leave mp_policy out"),
        ("a way of its own to be copied", r"copied as torch copies.*before fully_shard"),
        ("hooks on gradients", r"no hooks on gradients.*'0.weight'.*remove"),
        ("no numbers", r"parameters with numbers in them.*to_empty"),
    ],
)
def test_what_cannot_be_put_together_is_refused(how, said):
    with pytest.raises(InputError, match=said):
        li.train(RUN, ROWS, model=cut_badly(how), loss=LOSS, delta=1e-4)


def test_what_changes_modules_takes_none_that_is_cut():
    with pytest.raises(InputError, match=r"torch.distributed has spread this one"):
        private_version(cut(network()))


def test_exact_sums_and_a_loop_are_refused():
    with pytest.raises(InputError, match=r"secure_noise must be False.*fully_shard"):
        li.train(RUN, ROWS, model=cut(network()), loss=LOSS, delta=1e-4, secure_noise=True)
    with pytest.raises(InputError, match=r"module must not be sharded.*lastiterate.train"):
        make_private(RUN, module=cut(network()), data=ROWS, loss=LOSS, delta=1e-4)


CALLS = Counter()


class Writer(Adapted):
    """A module that adds to a frozen number, past torch, when all that is looked at is over."""

    def forward(self, x):
        CALLS["forward"] += 1
        if CALLS["forward"] > 90:
            ctypes.c_float.from_address(self.base.bias.data_ptr()).value += 1.0
        return super().forward(x)


def test_a_forward_pass_that_writes_to_numbers_on_the_device_releases_nothing():
    run = replace(RUN, steps=60)
    with pytest.raises(InputError, match=r"must change in its trained parameters alone"):
        li.train(run, ROWS, model=cut(make(Writer)), loss=LOSS, delta=1e-4)
    assert CALLS["forward"] > 90


def test_a_module_that_computes_otherwise_on_layers_is_whole_on_the_device(monkeypatch):
    """A second derivative by a layer's weight is none that its outputs have."""

    class Slope(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = network()

        def forward(self, x):
            by_input = torch.func.grad(lambda own: self.inside(own).square().sum())(x)
            return self.inside[-1](nn.functional.pad(by_input, (0, 1)))

    plain = fit_module(RUN, make(Slope), LOSS, ROWS, key_from_seed(3))[1]
    module = copy_to_host(cut(make(Slope)))
    with pytest.warns(UserWarning, match="all weights are on the device at once"):
        found = fit_module(RUN, module, LOSS, ROWS, key_from_seed(3), processes=on_layers())[1]
    np.testing.assert_allclose(found, plain, rtol=0, atol=2e-6)
    monkeypatch.setattr(module_requirements, "_is_right", lambda *given: False)
    with pytest.raises(InputError, match=r"compute the same on cpu.*before fully_shard"):
        fit_module(RUN, module, LOSS, ROWS, key_from_seed(3), processes=on_layers())


# ``train``.


ASKED = {"loss": LOSS, "epsilon": 8.0, "delta": 1e-4, "seed": 3}
TRAINED = replace(RUN, noise=None)


def test_train_releases_the_plain_module_and_charges_once(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    plain = li.train(TRAINED, WORDS, model=make(Language), **ASKED)
    module = make(Language)
    cut(module, module.blocks)
    found = li.train(TRAINED, WORDS, model=module, ledger=ledger, out=tmp_path / "model", **ASKED)
    assert found.certificate.to_dict(1e-4) == plain.certificate.to_dict(1e-4)
    assert [each.state for each in ledger.total("d").releases] == ["released"]
    assert type(found.module) is Language
    again = li.load(tmp_path / "model", like=make(Language))
    for name, tensor in plain.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=0, atol=2e-6)
        assert torch.equal(again.state[name], found.state[name])
    make(Language).load_state_dict(found.state_dict())
    np.testing.assert_allclose(again.predict(WORDS[0][:3]), plain.predict(WORDS[0][:3]), atol=1e-5)
    for name, tensor in module.named_parameters():
        assert torch.equal(tensor.full_tensor(), dict(make(Language).named_parameters())[name])


def test_groups_of_parameters_keep_their_speeds():
    speeds = {"0": 4.0, "3": 1.0}
    plain = li.train(TRAINED, ROWS, model=Grouped(network(), speeds), **ASKED)
    found = li.train(TRAINED, ROWS, model=Grouped(cut(network()), speeds), **ASKED)
    assert sorted(found.state) == ["0.bias", "0.weight", "3.bias", "3.weight"]
    for name, tensor in plain.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=0, atol=2e-6)


def test_a_checkpoint_resumes(tmp_path):
    key = tmp_path / "key"
    key.write_text("ab" * 32), key.chmod(0o600)
    kept = {"checkpoint": tmp_path / "state", "checkpoint_key": key, "checkpoint_every": 0}
    plain = li.train(TRAINED, WORDS, model=make(Language), **ASKED)

    def stop(done, steps, seconds):
        if done == 2:
            raise KeyError

    with pytest.raises(KeyError):
        li.train(TRAINED, WORDS, model=cut(make(Language)), progress=stop, **ASKED, **kept)
    begun = []
    found = li.train(
        TRAINED,
        WORDS,
        model=cut(make(Language)),
        progress=lambda done, *_: begun.append(done),
        **ASKED,
        **kept,
    )
    assert begun == [3]
    for name, tensor in plain.state.items():
        torch.testing.assert_close(found.state[name], tensor, rtol=0, atol=2e-6)


# A job of real processes.

PROCESSES = 2
SCRIPT = r"""
import json, os, sys

sys.path[:0] = [os.environ["TESTS"]]
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import lastiterate as li
from torch_modules.test_fully_shard import ASKED, Language, TRAINED, WORDS, cut, make

torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank, said = distributed.get_rank(), {}

def train(module, **more):
    return li.train(TRAINED, WORDS, model=module, **ASKED, **more)

module = make(Language)
cut(module, module.blocks, 2)
local = {name: each.to_local().clone() for name, each in module.named_parameters()}
model = train(module, out="model", ledger="ledger")
said["state"] = {name: tensor.tolist() for name, tensor in model.state.items()}
said["kept"] = all(torch.equal(each.to_local(), local[name]) for name, each in module.named_parameters())

def refuse(name, module):
    try:
        train(module)
    except li.InputError as error:
        said[name] = str(error)

own = init_device_mesh("cpu", (2, 1), mesh_dim_names=("one", "two"))["two"]
refuse("own mesh", fully_shard(make(Language), mesh=own))
refuse("other shapes", cut(make(Language, 11 + rank), (), 2))
refuse("cut here, whole there", [cut(make(Language), (), 2), make(Language)][rank])
with open(f"{rank}.json", "w") as file:
    json.dump(said, file)
"""


def test_processes_that_hold_parts_release_the_plain_model_together(tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    ledger.add("d", unit="record", adjacency="zero-out", filter=GaussianFilter(900.0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    told |= {"TESTS": str(Path(__file__).parents[1])}
    every = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, **told, "RANK": str(rank)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    errors = [process.communicate(timeout=300)[1] for process in every]
    assert not any(process.returncode for process in every), errors
    said = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    plain = li.train(TRAINED, WORDS, model=make(Language), **ASKED)
    stored = li.load(tmp_path / "model", like=make(Language))
    for name, tensor in plain.state.items():
        assert said[0]["state"][name] == said[1]["state"][name] == stored.state[name].tolist()
        torch.testing.assert_close(stored.state[name], tensor, rtol=0, atol=2e-6)
    assert stored.certificate.epsilon(1e-4) == plain.certificate.epsilon(1e-4)
    assert [each.state for each in ledger.total("d").releases] == ["released"]
    for each in said:
        assert each["kept"]
        assert "sharded over all 2 processes" in each["own mesh"] and "(2,)" in each["own mesh"]
        assert "must be the same in every process" in each["other shapes"]
        assert "must be the same in every process" in each["cut here, whole there"]
