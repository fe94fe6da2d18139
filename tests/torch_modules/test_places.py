"""Batches that are drawn: in single precision no record's gradient depends on what else is in the
batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine.random import key_from_seed
from lastiterate.torch import vectorisation_checks
from lastiterate.torch.module_training import prepare
from lastiterate.torch.parameter_contributions import Stored
from lastiterate.torch.record_gradients import full_precision, to_theta
from lastiterate.torch.released_module import exactly
from lastiterate.torch.vectorisation_checks import ChunkSizes

N = 40
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(N, 1, 9, 9)).astype(np.float32), RNG.integers(0, 3, N)
RUN = li.Run(
    n=N, steps=3, step_size=0.3, noise=li.GradientNoise(0.1), clip=0.4, batching=li.Poisson(0.3)
)
LOSS = torch.nn.functional.cross_entropy


def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.GroupNorm(2, 4),
        torch.nn.Tanh(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(36, 20),
        torch.nn.Tanh(),
        torch.nn.Linear(20, 3),
    )


def batch_sum(prepared, numbers):
    """What ``execute`` makes of one batch, (size,) float64."""
    summed, device = prepared.summed, torch.device("cpu")
    trained = summed.parameters.tensors(to_theta(prepared.initial, device), summed.dtype)
    total = torch.zeros(prepared.initial.size, dtype=torch.float64)
    with full_precision(device):
        for part, used in prepared._split(torch.tensor(list(numbers))):
            found = dict(
                prepared._chunk(trained, summed.parameters.copy_constants(summed.dtype), part, used)
            )
            total += torch.cat([found[name] for name in summed.parameters.names])
    return total


@pytest.mark.parametrize(
    "batching", [li.Poisson(0.3), li.FixedSize(12), li.RandomAllocation(12)], ids=str
)
def test_a_record_adds_itself_and_moves_no_other(batching):
    """To the last bits of double precision, though gradients are single precision: 1e-8 would be
    its own rounding."""
    prepared = prepare(replace(RUN, batching=batching), network(), LOSS, (X, Y), microbatch=17)
    assert (
        prepared.places is not None
        and prepared.most == 17
        and prepared.summed.dtype == torch.float32
    )
    alone = batch_sum(prepared, [0])
    assert 0.3 < float(alone.norm()) <= 0.4
    for others in ([1, 2, 5], list(range(1, 18)), list(range(1, 40))):
        moved = batch_sum(prepared, [0, *others]) - batch_sum(prepared, others)
        assert float((moved - alone).abs().max()) < 1e-14


@pytest.mark.parametrize("exact", [False, True])
def test_what_fills_up_a_chunk_adds_nothing(exact):
    """Beside a record without a finite gradient too, and on exact sums."""
    prepared, good = prepare(RUN, network(), LOSS, (X, Y)), np.flatnonzero(Y < 2)[:3].tolist()
    spoilt = replace(
        prepared.summed, loss=lambda out, y: LOSS(out, y) * torch.where(y == 2, torch.inf, 1.0)
    )
    prepared = replace(prepared, summed=spoilt)
    prepared = exactly(prepared, key_from_seed(0))[0] if exact else prepared
    expected = batch_sum(prepared, good)
    assert 0.3 < float(expected.norm()) <= 1.2
    torch.testing.assert_close(
        batch_sum(prepared, [*good, *np.flatnonzero(Y == 2)[:2]]), expected, atol=1e-14, rtol=0
    )


def test_where_places_show_everything_records_come_one_by_one(monkeypatch):
    given = network(), LOSS, (X, Y)
    whole = prepare(RUN, *given)
    single = batch_sum(whole, range(20))
    assert whole.most == 32, "no more records at once than a batch is likely to hold"
    monkeypatch.setattr(ChunkSizes, "holds", lambda places, size: False)
    prepared = prepare(RUN, *given)
    assert prepared.most == 1 and list(prepared.places.split(3)) == [(1, 1)] * 3
    torch.testing.assert_close(batch_sum(prepared, range(20)), single, atol=1e-5, rtol=1e-5)


class Tied(torch.nn.Module):
    """Units at 0 but for rounding, which turns whole gradients on and off."""

    def __init__(self, words=None):
        super().__init__()
        self.words = (
            None if words is None else torch.nn.Embedding.from_pretrained(words, freeze=False)
        )
        self.inner, self.outer = (
            torch.nn.Linear(63, 4, bias=False),
            torch.nn.Linear(4, 1, bias=False),
        )
        with torch.no_grad():
            self.inner.weight[:] = torch.tensor(WEIGHTS)

    def forward(self, x):
        if self.words is not None:
            kept = (x != 0).unsqueeze(-1).to(self.words.weight)
            x = (self.words(x) * kept).sum(1) / kept.sum(1).clamp(min=1)
        return self.outer(torch.relu(self.inner(x)))


WEIGHTS = np.random.default_rng(0).normal(size=(4, 63)) / 8
AT_ZERO = np.random.default_rng(1).normal(size=(40, 63))
for _ in range(3):
    AT_ZERO -= AT_ZERO @ WEIGHTS.T @ np.linalg.pinv(WEIGHTS).T


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
@pytest.mark.parametrize("words", [False, True], ids=["rows", "masked words"])
@pytest.mark.parametrize("exact", [False, True], ids=["plain", "exact sums"])
def test_rounding_at_ties_moves_nobody_else(words, precision, exact):
    """In double precision too, and where integers that are all 0 would be masked."""
    module = Tied(torch.tensor(AT_ZERO).float() if words else None).to(precision)
    rows = (
        np.zeros((N, 3), np.int64)
        if words
        else AT_ZERO.astype(np.float32 if precision == torch.float32 else float)
    )
    if words:
        rows[:, 0] = np.arange(N)
    prepared = prepare(RUN, module, lambda out, y: 3000 * out.squeeze(), (rows, np.zeros(N)))
    prepared = exactly(prepared, key_from_seed(0))[0] if exact else prepared
    for record in range(3):
        alone = batch_sum(prepared, [record])
        for others in ([5], [7, 8, 9], list(range(10, 40))):
            moved = batch_sum(prepared, [record, *others]) - batch_sum(prepared, others)
            assert float((moved - alone).abs().max()) < 1e-12


HIDDEN = replace(RUN, loss=li.KnownConstants(li.LossFacts(smooth=9.0)))


@pytest.mark.parametrize("run", [RUN, HIDDEN], ids=["charged", "hidden state"])
@pytest.mark.parametrize("words", [False, True], ids=["rows", "masked words"])
def test_chunks_of_the_chosen_size_give_a_record_one_gradient(words, run):
    """To the bit, at every place; a run with a hidden state is double precision from the beginning."""
    module = Tied(torch.tensor(AT_ZERO) if words else None)
    rows = np.pad(np.arange(N)[:, None], ((0, 0), (0, 2))) if words else AT_ZERO
    prepared = prepare(
        run, module, lambda out, y: out.squeeze(), (rows, np.zeros(N)), microbatch=16
    )
    summed = prepared.summed
    assert prepared.places is not None and summed.exact == (run is HIDDEN)
    trained = summed.parameters.tensors(
        to_theta(prepared.initial, torch.device("cpu")), summed.dtype
    )
    for record in range(8):
        copies = (torch.tensor(rows[[record] * prepared.most]), torch.zeros(prepared.most))
        with full_precision(torch.device("cpu")):
            found = summed.contributions(
                trained, summed.parameters.copy_constants(summed.dtype), copies
            )
        for each in found.values():
            assert torch.equal(each.each(), each.each()[:1].expand_as(each.each()))


def test_sizes_that_round_otherwise_are_found():
    """A last bit that depends on the place, on the size, or on the neighbour makes no function of a
    record."""
    bit = 1 + 2.0**-23

    def rounding(own, records):
        (rows,) = records
        return {"w": Stored(rows * torch.where(own(rows), bit, 1.0)[:, None])}

    def holds(own, sizes=(32,)):
        places = ChunkSizes([(lambda records: rounding(own, records), (torch.randn(2, 5),))], 32)
        return [places.holds(size) for size in sizes]

    assert holds(lambda rows: torch.zeros(len(rows), dtype=torch.bool), (32, 16)) == [True, True]
    assert holds(lambda rows: torch.arange(len(rows)) == 31, (32, 16)) == [False, True]
    assert holds(lambda rows: torch.full((len(rows),), len(rows) < 32), (32, 16)) == [True, False]
    first = torch.randn(2, 5)
    beside = ChunkSizes(
        [(lambda records: rounding(lambda rows: rows[:, 0] == rows[0, 0], records), (first,))], 4
    )
    nothing = ChunkSizes([(lambda records: {"w": Stored(records[0] / 0)}, (first,))], 4)
    assert not beside.holds(4) and not nothing.holds(4)
    uneven = ChunkSizes(
        [
            (
                lambda records: rounding(
                    lambda rows: torch.full((len(rows),), len(rows) == 16), records
                ),
                (first,),
            )
        ],
        32,
    )
    assert uneven.holds(32) and list(uneven.split(40)) == [(32, 32), (32, 8)]
    silent = ChunkSizes(
        [(lambda records: {"w": Stored(records[0]), "mask": Stored(0 * records[0])}, (first,))], 4
    )
    assert not silent.holds(4), (
        "a gradient that is 0 for all made-up records says nothing of others"
    )


def test_a_size_is_tried_once_empty_places_have_cost_as_much(monkeypatch):
    """All sums are the same with any of them, so that it is a matter of time."""
    tried = list[int]()

    def places(overhead):
        monkeypatch.setattr(vectorisation_checks, "OVERHEAD", overhead)
        tried.clear()
        return ChunkSizes(
            [
                (
                    lambda records: tried.append(len(records[0])) or {"w": Stored(records[0])},
                    (torch.randn(2, 5),),
                )
            ],
            32,
        ).within(32)

    given = places(0)
    assert [list(given.split(70)) for _ in range(3)] == [
        [(32, 32), (32, 32), (size, 6)] for size in (32, 16, 16)
    ]
    assert tried == [32] * 2 + [16] * 2, "two turns of the one trial; 16 places were empty twice"
    given = places(2**20)
    assert all(list(given.split(6)) == [(32, 6)] for _ in range(100)) and tried == [32] * 2


@pytest.mark.parametrize("spoilt", [False, True], ids=["all count", "one does not"])
def test_sums_do_not_depend_on_empty_places(spoilt):
    """To the bit: so a run that goes on from a checkpoint may try its sizes anew."""
    module = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(81, 20), torch.nn.Linear(20, 3)
    )
    summed, cpu = prepare(RUN, module, LOSS, (X, Y)).summed, torch.device("cpu")
    if spoilt:
        summed = replace(
            summed, loss=lambda out, y: LOSS(out, y) * torch.where(y == Y[3], torch.inf, 1.0)
        )
    named = summed.parameters.tensors(to_theta(summed.parameters.vector(module), cpu), summed.dtype)
    with full_precision(cpu):
        small, large = (
            summed.sums(named, {}, (torch.tensor(X[at]), torch.tensor(Y[at])), None, 11)
            for at in ([*range(11), *[0] * more] for more in (5, 21))
        )
    assert any(part.any() for part in small.values())
    assert all(torch.equal(part, large[name]) for name, part in small.items())
