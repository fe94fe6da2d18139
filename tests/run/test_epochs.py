"""Epochs in place of steps: the same run, with the same description in files."""

import copy
import pickle
from dataclasses import replace

import pytest

import lastiterate as li
from lastiterate.errors import InputError


def run(**given):
    return li.Run(**{"n": 600, "step_size": 0.5, "clip": 1.0, **given})


@pytest.mark.parametrize(
    "batching, epochs, steps",
    [
        (li.FullBatch(), 3, 3),
        (li.Cyclic(64), 3, 30),  # of 9.4 batches the last one is short
        (li.Permuted(60), 1.5, 15),
        (li.Reshuffled(60), 3, 30),
        (li.FixedSize(50), 3, 36),
        (li.BallsInBins(100), 3, 18),
        (li.RandomAllocation(60), 3, 30),
        (li.Poisson(0.1), 3, 30),
        (li.Poisson(256 / 60_000), 8, 1875),
    ],
    ids=str,
)
def test_epochs_are_steps_times_the_share_of_a_batch(batching, epochs, steps):
    named, counted = (
        run(batching=batching, **one) for one in ({"epochs": epochs}, {"steps": steps})
    )
    assert named == counted and hash(named) == hash(counted)
    assert named.to_json() == counted.to_json() and "epochs" not in named.to_dict()
    assert li.Run.from_json(named.to_json()) == pickle.loads(pickle.dumps(named)) == counted
    assert copy.deepcopy(named) == counted and replace(named, clip=2.0).steps == steps


@pytest.mark.parametrize(
    "given, said",
    [
        ({"epochs": 3, "steps": 30}, "epochs must be left out where steps = 30 is given, got 3"),
        ({"epochs": 3, "batching": li.Poisson(0.16)}, "make 18.75, got 3; write steps=19"),
        ({"epochs": 1.5}, "make 1.5, got 1.5; write steps=2"),
        ({"epochs": 0}, "make 0, got 0; write steps=1"),
        ({"epochs": -2}, "make -2, got -2; write steps=1"),
        ({"epochs": float("inf")}, "make inf, got inf"),
        ({"epochs": "3"}, "epochs must be a number"),
        ({"epochs": 3, "n": 0}, "n must be an integer"),
        ({"epochs": 3, "batching": 60}, "Run.batching must be one of"),
        ({}, "Run.steps must be given; write steps=..., or epochs=..."),
        ({"steps": 0}, "steps must be an integer between 1"),
    ],
    ids=str,
)
def test_epochs_that_name_no_steps_are_refused(given, said):
    with pytest.raises(InputError) as caught:
        run(**given)
    assert said in str(caught.value)


def test_files_have_steps_and_no_epochs():
    held = run(epochs=3).to_dict()
    with pytest.raises(InputError, match="unknown field, got 'epochs'"):
        li.Run.from_dict(held | {"epochs": 3})
    del held["steps"]
    with pytest.raises(InputError, match="misses the field 'steps'"):
        li.Run.from_dict(held)
