"""Batches that are drawn: in single precision no record's gradient depends on what else is in the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.engine.gaussian_noise import seeded_key
from lastiterate.torch.contributions import Stored
from lastiterate.torch.gradient_sums import as_theta, full_precision
from lastiterate.torch.grid_sums import exactly
from lastiterate.torch.module_training import prepare
from lastiterate.torch.record_positions import Places

N = 40
RNG = np.random.default_rng(3)
X, Y = RNG.normal(size=(N, 1, 9, 9)).astype(np.float32), RNG.integers(0, 3, N)
RUN = li.Run(n=N, steps=3, step_size=0.3, noise=li.GradientNoise(0.1), clip=0.4, batching=li.Poisson(0.3))
LOSS = torch.nn.functional.cross_entropy


def network():
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.GroupNorm(2, 4), torch.nn.Tanh(),
                               torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 20), torch.nn.Tanh(),
                               torch.nn.Linear(20, 3))


def batch_sum(prepared, numbers):
    """What ``execute`` makes of one batch, (size,) float64."""
    summed, device = prepared.summed, torch.device("cpu")
    trained = summed.parameters.tensors(as_theta(prepared.initial, device), summed.dtype)
    total = torch.zeros(prepared.initial.size, dtype=torch.float64)
    with full_precision(device):
        for part, used in prepared._cut(torch.tensor(list(numbers))):
            found = prepared._chunk(trained, summed.parameters.fixed(summed.dtype), part, used)
            total += torch.cat([found[name] for name in summed.parameters.names])
    return total


@pytest.mark.parametrize("batching", [li.Poisson(0.3), li.FixedSize(12), li.RandomAllocation(12)], ids=str)
def test_a_record_adds_itself_and_moves_no_other(batching):
    """To the last bits of double precision, though gradients are single precision: 1e-8 would be its own rounding."""
    prepared = prepare(replace(RUN, batching=batching), network(), LOSS, (X, Y), microbatch=17)
    assert prepared.places is not None and prepared.most == 17 and prepared.summed.dtype == torch.float32
    alone = batch_sum(prepared, [0])
    assert 0.3 < float(alone.norm()) <= 0.4
    for others in ([1, 2, 5], list(range(1, 18)), list(range(1, 40))):
        moved = batch_sum(prepared, [0, *others]) - batch_sum(prepared, others)
        assert float((moved - alone).abs().max()) < 1e-14


@pytest.mark.parametrize("exact", [False, True])
def test_what_fills_up_a_chunk_adds_nothing(exact):
    """Beside a record without a finite gradient too, and on exact sums."""
    prepared, good = prepare(RUN, network(), LOSS, (X, Y)), np.flatnonzero(Y < 2)[:3].tolist()
    spoilt = replace(prepared.summed, loss=lambda out, y: LOSS(out, y) * torch.where(y == 2, torch.inf, 1.0))
    prepared = replace(prepared, summed=spoilt)
    prepared = exactly(prepared, seeded_key(0))[0] if exact else prepared
    expected = batch_sum(prepared, good)
    assert 0.3 < float(expected.norm()) <= 1.2
    torch.testing.assert_close(batch_sum(prepared, [*good, *np.flatnonzero(Y == 2)[:2]]), expected, atol=1e-14, rtol=0)


def test_where_places_show_everything_is_double_precision(monkeypatch):
    given = network(), LOSS, (X, Y)
    whole = prepare(RUN, *given)
    single = batch_sum(whole, range(20))
    assert whole.most == 32, "no more records at once than a batch is likely to hold"
    monkeypatch.setattr(Places, "holds", lambda places, size: False)
    prepared = prepare(RUN, *given)
    assert prepared.summed.dtype == torch.float64 and prepared.places is None
    torch.testing.assert_close(batch_sum(prepared, range(20)), single, atol=1e-5, rtol=1e-5)


def test_sizes_that_round_otherwise_are_found():
    """A last bit that depends on the place, on the size, or on the neighbour makes no function of a record."""
    bit = 1 + 2.0**-23

    def rounding(own, records):
        (rows,) = records
        return {"w": Stored(rows * torch.where(own(rows), bit, 1.0)[:, None])}

    def holds(own, sizes=(32,)):
        places = Places(lambda records: rounding(own, records), (torch.randn(2, 5),), 32)
        return [places.holds(size) for size in sizes]

    assert holds(lambda rows: torch.zeros(len(rows), dtype=torch.bool), (32, 16)) == [True, True]
    assert holds(lambda rows: torch.arange(len(rows)) == 31, (32, 16)) == [False, True]
    assert holds(lambda rows: torch.full((len(rows),), len(rows) < 32), (32, 16)) == [True, False]
    first = torch.randn(2, 5)
    beside = Places(lambda records: rounding(lambda rows: rows[:, 0] == rows[0, 0], records), (first,), 4)
    nothing = Places(lambda records: {"w": Stored(records[0] / 0)}, (first,), 4)
    assert not beside.holds(4) and not nothing.holds(4)
    uneven = Places(lambda records: rounding(lambda rows: torch.full((len(rows),), len(rows) == 16), records),
                    (first,), 32)
    assert uneven.holds(32) and list(uneven.cut(40)) == [(32, 32), (32, 8)]
    assert list(Places(lambda records: {}, (first,), 32).cut(70)) == [(32, 32), (32, 32), (16, 6)]
