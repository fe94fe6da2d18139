"""Chunks of one form are repeated from a trace: the bits are those of the code, which is asked
where it must be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lastiterate as li
from lastiterate.engine.random import key_from_seed
from lastiterate.torch import module_training, recorded_operations
from lastiterate.torch.recorded_operations import RecordedComputation

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(40, 6)).astype(np.float32), rng.integers(0, 3, 40)
RUN = li.Run(
    n=40, steps=12, step_size=0.5, clip=0.3, batching=li.Cyclic(10), noise=li.GradientNoise(0.01)
)


class Switched(nn.Module):
    """Code that decides by a number."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(6, 3)
        self.register_buffer("switch", torch.tensor(0.02))

    def forward(self, x):
        return self.map(x) * (2 if self.switch.item() > 0 else 1)


class Looked(nn.Module):
    """Entries looked up by their numbers, as masks of transformers are."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x):
        return self.map(x[torch.arange(len(x))[:, None], torch.tensor([4, 0, 2])])


def modules():
    torch.manual_seed(0)
    yield "dense", nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), RUN
    yield (
        "dropout",
        nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        replace(RUN, augmentation=li.RecordAugmentation("dropout")),
    )
    yield (
        "convolution",
        nn.Sequential(
            nn.Unflatten(1, (1, 6)),
            nn.Conv1d(1, 4, 3),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        replace(RUN, batching=li.Poisson(0.25)),
    )
    yield "lookups by integers", Looked(), RUN
    yield "code that looks at numbers", Switched(), RUN


@pytest.mark.parametrize("name, module, run", list(modules()), ids=[name for name, *_ in modules()])
def test_a_run_that_repeats_releases_the_same_bits(name, module, run, monkeypatch):
    made = list[RecordedComputation]()
    monkeypatch.setattr(
        module_training,
        "RecordedComputation",
        lambda steps: made.append(RecordedComputation(steps)) or made[-1],
    )
    prepared = module_training.prepare(run, module, cross_entropy, (X, Y))
    monkeypatch.setattr(recorded_operations, "OFTEN", 100)
    plain = prepared.execute(key_from_seed(1))
    monkeypatch.setattr(recorded_operations, "OFTEN", 1)
    assert np.array_equal(prepared.execute(key_from_seed(1)), plain)
    first, second = ([known is not None for known in one._known.values()] for one in made)
    assert first == [] and second and all(second) == (name != "code that looks at numbers")


def test_a_trace_that_gives_other_bits_is_not_used():
    """Python that changes from call to call is nothing that could be repeated."""
    calls = list[int]()

    def counting(trained, constants, records):
        calls.append(1)
        return {"found": trained["w"] * len(calls) + records[0]}

    given = {"w": torch.ones(3)}, {}, (torch.zeros(3),)
    assert recorded_operations.trace_operations(counting, *given) is None
    assert (
        recorded_operations.trace_operations(
            lambda own, held, records: {"found": own["w"] + records[0]}, *given
        )
        is not None
    )


def traced_alone(function):
    """What a trace gives at other numbers than those it was made with, or None."""
    found = recorded_operations.trace_operations(
        lambda own, held, records: function(own["w"], records[0]),
        {"w": torch.ones(3)},
        {},
        (torch.zeros(3),),
    )
    return (
        None
        if found is None
        else [part.tolist() for part in found[0](torch.full((3,), 2.0), torch.ones(3))]
    )


def test_what_python_could_decide_by_is_not_traced():
    """Numbers that leave the tensors, shapes that follow from them, and numbers that become
    constants of the trace."""
    assert traced_alone(lambda w, x: w if (w > 0).all() else x) is None
    assert traced_alone(lambda w, x: w * float(w.sum())) is None
    assert traced_alone(lambda w, x: w if torch.equal(w, torch.full((3,), 2.0)) else x) is None
    assert traced_alone(lambda w, x: w[torch.nonzero(w)].sum()) is None
    assert traced_alone(lambda w, x: w[w > 0].sum()) is None
    assert traced_alone(lambda w, x: w * torch.tensor(w.tolist())) is None
    assert traced_alone(lambda w, x: w + torch.from_numpy(x.numpy().copy())) is None
    assert traced_alone(lambda w, x: w + torch.from_numpy(w.numpy().copy())) is None


def test_a_trace_repeats_what_is_written_in_place_and_what_has_several_results():
    def function(w, x):
        held = w.clone()
        held[1:].mul_(3).add_(x[1:])
        largest, at = held.max(0)
        return [
            held.view(3, 1),
            largest,
            at,
            torch.ones(2),
            *torch.linalg.qr(torch.outer(held, held) + torch.eye(3)),
        ]

    assert traced_alone(function) == [
        part.tolist() for part in function(torch.full((3,), 2.0), torch.ones(3))
    ]


@pytest.mark.parametrize("steps, traced", [(0, 12), (20, 12), (400, 1), (30, 1)])
def test_a_form_is_traced_when_enough_repetitions_are_expected(steps, traced, monkeypatch):
    """Of a long run at once; of a short one, or where nothing is known of the run, when it came
    often; and once."""
    tried, calls = list[int](), list[int]()
    monkeypatch.setattr(
        recorded_operations, "trace_operations", lambda *_: tried.append(len(calls))
    )
    again = RecordedComputation(steps)
    for k in range(60):
        calls.append(k)
        again(lambda own, held, records: own, torch.ones(3), {}, (torch.zeros(2),))
    assert tried == [traced]


def test_a_form_that_comes_seldom_is_not_traced(monkeypatch):
    tried = list[int]()
    monkeypatch.setattr(
        recorded_operations, "trace_operations", lambda *given: tried.append(len(given[-1][0]))
    )
    again = RecordedComputation(400)
    for k in range(400):
        again(
            lambda own, held, records: own,
            torch.ones(3),
            {},
            (torch.zeros(3 if k % 50 == 40 else 2),),
        )
    assert tried == [2]
