"""A gradient follows from a record and the parameters: modules and losses that keep or draw
anything are refused."""

import functools
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch.nn import functional

import lastiterate as li
from lastiterate.torch.loss_checks import PythonState
from lastiterate.torch.module_training import prepare

X, Y = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32), np.arange(6) % 3
RUN = li.Run(n=6, steps=2, step_size=0.3, noise=li.GradientNoise(0.2), clip=1.0)


class Keeping(torch.nn.Module):
    def __init__(self, keep, **held):
        super().__init__()
        self.own, self.keep = torch.nn.Linear(4, 3), keep
        vars(self).update(held)

    def forward(self, x):
        self.keep(self, x)
        return self.own(x)


def counts(own, x):
    own.calls += 1


class Slotted:
    __slots__ = ("last",)

    def __init__(self):
        self.last = []


class Listed(list):
    last = 0

    def __init__(self):
        super().__init__()
        self.last = 1


WAYS = {
    "a counter": (Keeping(counts, calls=0), r"model\.calls"),
    "an answer": (
        Keeping(lambda own, x: setattr(own, "last", x.detach().clone()), last=None),
        r"model\.last",
    ),
    "a list": (Keeping(lambda own, x: own.seen.append(1), seen=[]), r"model\.seen\.length"),
    "a table of sizes": (
        Keeping(lambda own, x: own.seen.update({len(own.seen): 1}), seen={}),
        r"model\.seen\.length",
    ),
    "numbers of numpy": (
        Keeping(lambda own, x: own.total.__iadd__(1), total=np.zeros(2)),
        r"model\.total",
    ),
    "a generator": (
        Keeping(lambda own, x: own.rng.random(), rng=np.random.default_rng(0)),
        r"model\.rng",
    ),
    "one of torch": (
        Keeping(lambda own, x: torch.rand(1, generator=own.rng), rng=torch.Generator()),
        r"model\.rng",
    ),
    "one of Python": (
        Keeping(lambda own, x: own.rng.random(), rng=random.Random(0)),
        r"model\.rng",
    ),
    "Python's own": (Keeping(lambda own, x: random.random()), "random"),
    "numpy's own": (Keeping(lambda own, x: np.random.rand()), r"numpy\.random"),
    "the last few": (
        Keeping(lambda own, x: own.seen.append(own.seen[-1] + 1), seen=deque([5], 1)),
        r"model\.seen\[0\]",
    ),
    "a closure": (
        Keeping((lambda seen: lambda own, x: seen.append(1))([])),
        r"model\.keep\.seen\.length",
    ),
    "a set of as many": (
        Keeping(lambda own, x: own.seen.add(own.seen.pop() + 1), seen={5}),
        r"model\.seen",
    ),
    "a slot": (
        Keeping(
            lambda own, x: setattr(own.box, "last", len(own.box.last) * [0] + [1]), box=Slotted()
        ),
        r"model\.box\.last",
    ),
    "a list's attribute": (
        Keeping(lambda own, x: setattr(own.seen, "last", own.seen.last + 1), seen=Listed()),
        r"model\.seen\.last",
    ),
    "a part of it": (
        torch.nn.Sequential(Keeping(counts, calls=0)),
        r"model\._modules\['0'\]\.calls",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_module_that_keeps_something_is_refused(way):
    module, place = WAYS[way]
    with pytest.raises(
        li.InputError, match=f"must keep nothing of a forward pass, .* got .{place}"
    ):
        prepare(RUN, module, functional.cross_entropy, (X, Y))


class Remembering:
    def __init__(self):
        self.last = 0.0

    def __call__(self, out, y):
        self.last = out.detach().sum()
        return functional.cross_entropy(out, y)


def scaled(seen, out, y):
    seen[0] += 1
    return functional.cross_entropy(out, y)


SEEN = []


def keeping(out, y, *, seen=SEEN):
    seen.append(1)
    return functional.cross_entropy(out, y)


@pytest.mark.parametrize(
    "loss, place",
    [
        (Remembering(), r"loss\.last"),
        (keeping, r"loss\.__kwdefaults__\['seen'\]"),
        (functools.partial(scaled, [0]), r"loss\.args"),
    ],
)
def test_so_is_a_loss(loss, place):
    with pytest.raises(
        li.InputError, match=f"must keep nothing of a forward pass, .* got .{place}"
    ):
        prepare(RUN, torch.nn.Linear(4, 3), loss, (X, Y))


def test_what_is_made_at_the_first_call_is_kept():
    def once(own, x):
        if own.table is None:
            own.table = torch.arange(4.0)

    assert prepare(RUN, Keeping(once, table=None), functional.cross_entropy, (X, Y)).most > 1


def test_what_refers_to_itself_is_looked_at_once():
    ring, shared = [], {"a": deque([1])}
    ring += [ring, shared, shared]
    state = PythonState({"it": ring})
    state.check()
    shared["b"] = 2
    with pytest.raises(li.InputError, match="length"):
        state.check()
