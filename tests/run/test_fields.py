"""What a description stores: built-in numbers and tuples, of the types that its annotations say."""

from dataclasses import fields, replace

import numpy as np
import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.run.domains import AffineBall
from oracles.descriptions import BASE, PARTS, RUNS

NUMBERS = (np.float64(0.5), np.float32(0.5), np.float16(0.5), 0.5)


def leaves(value):
    if isinstance(value, tuple):
        for entry in value:
            yield from leaves(entry)
    elif hasattr(value, "__dataclass_fields__"):
        for item in fields(value):
            yield from leaves(getattr(value, item.name))
    else:
        yield value


@pytest.mark.parametrize("value", NUMBERS, ids=lambda value: type(value).__name__)
def test_numbers_of_numpy_are_stored_as_built_in_ones(value):
    run = li.Run(
        n=np.int64(10),
        steps=np.int32(2),
        step_size=value,
        noise=li.GradientNoise(value),
        clip=value,
        batching=li.Cyclic(np.int16(5)),
        loss=li.KnownConstants(li.LossFacts(smooth=value, strong=0)),
    )
    for leaf in leaves(run):
        assert type(leaf) in (int, float, str, type(None), li.Evidence), leaf
    assert (
        run.step_size == li.Constant(0.5)
        and run.noise.std == 0.5
        and type(run.loss.constants.smooth) is li.Fact
    )
    assert li.Run.from_json(run.to_json()) == run


def test_a_number_or_several_are_step_sizes():
    assert replace(BASE, step_size=1).step_size == li.Constant(1.0)
    for given in ((0.1, 0.2, 0.3), [0.1, 0.2, 0.3], np.array([0.1, 0.2, 0.3])):
        assert replace(BASE, step_size=given).step_size == li.StepSchedule((0.1, 0.2, 0.3))
    for bad in (True, "0.1", {0.1}, ("0.1", 1, 1), (0.1, True, 0.2), np.ones((3, 1)), None, 1j):
        with pytest.raises(InputError, match="step_size"):
            replace(BASE, step_size=bad)
    with pytest.raises(InputError, match="one value for each of 3 steps, got 2"):
        replace(BASE, step_size=(0.1, 0.2))


@pytest.mark.parametrize("part", PARTS.values(), ids=lambda part: type(part).__name__)
def test_every_field_of_every_description_refuses_other_types(part):
    for item in fields(part):
        for bad in (object(), True, np.bool_(True), {"value": 1.0}, b"1", 1j, [object()]):
            with pytest.raises(InputError, match=rf"{type(part).__name__}\.{item.name}"):
                replace(part, **{item.name: bad})


@pytest.mark.parametrize("name", [item.name for item in fields(li.Run)])
def test_every_field_of_a_run_refuses_other_types(name):
    for bad in (object(), True, {"value": 1.0}, b"1", 1j, [object()]):
        with pytest.raises(InputError, match=name):
            replace(BASE, **{name: bad})


def test_numbers_without_end_are_refused_in_a_short_sentence():
    for part, name in (
        (li.Constant(0.1), "value"),
        (li.Cyclic(3), "size"),
        (li.LossFacts(), "smooth"),
    ):
        for value in (10**400, 10**5000):
            with pytest.raises(InputError) as refused:
                replace(part, **{name: value})
            assert len(str(refused.value)) < 400


def test_tables_of_numbers_may_be_arrays():
    assert AffineBall(2.0, np.array([[1.0, 0.5]]), np.array([0.25])) == PARTS[AffineBall]
    with pytest.raises(InputError, match="normals"):
        AffineBall(2.0, (("1", "0.5"),), (0.25,))


@pytest.mark.parametrize(
    "run",
    RUNS,
    ids=lambda run: "-".join(
        type(part).__name__
        for part in (run.step_size, run.noise, run.batching, run.domain, run.loss)
    ),
)
def test_json_gives_every_description_back(run):
    assert li.Run.from_json(run.to_json()) == run
