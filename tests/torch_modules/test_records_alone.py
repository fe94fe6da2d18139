"""A module whose vectorised gradients mix records is refused, whichever way it does, before a
ledger is charged."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional

import lastiterate as li
from lastiterate.torch.layers import NoOwnRules
from lastiterate.torch.module_training import prepare
from support import refuse_unpaid

N = 6
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % 3
RUN = li.Run(n=N, steps=2, step_size=0.3, noise=li.GradientNoise(0.2), clip=1.0)


class Same(torch.autograd.Function):
    """What it is given, with the derivative of that."""

    generate_vmap_rule = False

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope


class Mixed(Same):
    @staticmethod
    def vmap(info, dims, x):
        return (100 * x.sum(dims[0], keepdim=True)).expand(x.shape).clone(), dims[0]


class Honest(Same):
    """Whoever trusts this rule has to trust all others."""

    @staticmethod
    def vmap(info, dims, x):
        return x.clone(), dims[0]


class Generated(Same):
    generate_vmap_rule = True


class Within(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.own, self.function = torch.nn.Linear(4, 3), function

    def forward(self, x):
        return self.own(self.function(x))


@torch.library.custom_op("lastiterate_tests::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@same.register_vmap
def _(info, dims, x):
    return (100 * x.sum(dims[0], keepdim=True)).expand(x.shape).clone(), dims[0]


WAYS = {
    "of the records": Within(Mixed.apply),
    "of records without a derivative": Within(lambda x: Mixed.apply(x.detach())),
    "honest": Within(Honest.apply),
    "registered": Within(lambda x: same(x.detach())),
}


def refused(said, tmp_path, model, loss=functional.cross_entropy, **more):
    with refuse_unpaid(tmp_path, said) as charged:
        li.train(RUN, (X, Y), model=model, loss=loss, **charged, **more)


@pytest.mark.parametrize("more", [{}, {"secure_noise": True}], ids=["plain", "exact"])
@pytest.mark.parametrize("way", WAYS)
def test_functions_with_a_rule_of_their_own_are_refused(way, more, tmp_path):
    refused("says itself what it is for many", tmp_path, WAYS[way], **more)


def test_a_loss_with_a_rule_of_its_own_is_refused(tmp_path):
    refused(
        "says itself",
        tmp_path,
        torch.nn.Linear(4, 3),
        lambda out, y: functional.cross_entropy(Mixed.apply(out), y),
    )


def test_functions_without_one_are_taken():
    found = li.train(
        RUN, (X, Y), model=Within(Generated.apply), loss=functional.cross_entropy, seed=0
    )
    plain = li.train(
        RUN,
        (X, Y),
        model=torch.nn.Sequential(found.module.own),
        loss=functional.cross_entropy,
        seed=0,
    )
    assert found.run == plain.run


class Peeking(torch.nn.Module):
    """Looks at the numbers behind a batched tensor, which no rule of torch sees."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.own, self.weight = torch.nn.Linear(4, 3), weight

    def forward(self, x):
        batched, size = x, x.mean(1, keepdim=True)
        while torch._C._functorch.is_functorch_wrapped_tensor(batched):
            batched = torch._C._functorch.get_unwrapped(batched)
            size = batched.mean()
        return self.own(x) * (1 + self.weight * size)


class Short(torch.nn.Module):
    """Of half precision, whose rounding would hide a little of what is mixed."""

    def __init__(self, weight=0.03):
        super().__init__()
        self.inner = Peeking(weight)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.inner(x).float()


def test_what_no_name_gives_away_shows_in_the_gradients(tmp_path):
    refused("depends on those that it is vectorised with", tmp_path, Peeking())


def test_what_rounding_could_hide_shows_in_the_bits(tmp_path):
    refused("depends on those that it is vectorised with", tmp_path, Short())


@pytest.mark.parametrize(
    "module", [Peeking(1e-6), Short(1e-4)], ids=["single precision", "bfloat16"]
)
def test_loud_records_show_what_little_is_mixed(module):
    with pytest.raises(li.InputError, match="depends on those that it is vectorised with"):
        prepare(RUN, module, functional.cross_entropy, (X, Y))


@pytest.mark.parametrize("way", ["of the records", "of records without a derivative"])
def test_made_up_records_show_it_where_functions_are_not_looked_at(way, monkeypatch):
    monkeypatch.setattr(
        NoOwnRules,
        "__torch_function__",
        lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {})),
    )
    with pytest.raises(li.InputError, match="depends on those that it is vectorised with"):
        prepare(RUN, WAYS[way], functional.cross_entropy, (X, Y))


def test_integers_vary_among_made_up_records(monkeypatch):
    """A table that mixes what it has looked up is caught, though made-up integers were all 0 once."""
    monkeypatch.setattr(
        NoOwnRules,
        "__torch_function__",
        lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {})),
    )

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.own = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.own(Centred.apply(self.table(x).mean(1)))

    class Centred(Same):
        @staticmethod
        def vmap(info, dims, x):
            return x + 1.5 * (x - x.mean(dims[0], keepdim=True)), dims[0]

    with pytest.raises(li.InputError, match="depends on those that it is vectorised with"):
        prepare(RUN, Words(), functional.cross_entropy, (np.zeros((N, 2), np.int64), Y))


def test_one_module_for_several_devices_is_refused_by_name(tmp_path):
    refused("give the module inside", tmp_path, torch.nn.DataParallel(torch.nn.Linear(4, 3)))
