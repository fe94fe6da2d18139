"""Descriptions from strangers: one sentence for every text that is not exactly one run."""

import json
from collections import Counter

import pytest

import lastiterate as li
from lastiterate import InputError
from lastiterate.run.domains import AffineBall
from oracles.description_fuzz import outcome, texts
from oracles.descriptions import BASE, PARTS, RUNS, holding

ABSTRACT = holding(PARTS[li.KnownConstants]).to_dict()
AFFINE = holding(PARTS[AffineBall]).to_dict()


def changed(data, path, value):
    data = json.loads(json.dumps(data))
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return data


@pytest.mark.parametrize(
    "data, path, value, said",
    [
        (
            ABSTRACT,
            ("loss", "constants"),
            None,
            "KnownConstants.constants must be one of LossFacts, got 'NoneType'",
        ),
        (
            ABSTRACT,
            ("loss", "constants"),
            3,
            "KnownConstants.constants must be one of LossFacts, got 'int'",
        ),
        (
            ABSTRACT,
            ("loss", "constants"),
            {"type": "Logistic"},
            "KnownConstants.constants must be .* got 'Logistic'",
        ),
        (ABSTRACT, ("loss", "constants", "smooth"), [1.0], "LossFacts.smooth must be a number"),
        (
            ABSTRACT,
            ("loss", "constants", "smooth"),
            True,
            "LossFacts.smooth must be a number, got True",
        ),
        (
            ABSTRACT,
            ("loss", "constants", "smooth", "evidence"),
            "PROVED",
            "unknown field, got 'evidence'",
        ),
        (ABSTRACT, ("loss", "constants", "smooth", "why"), 3, "Fact.why must be text"),
        (ABSTRACT, ("n",), True, "Run.n must be an integer, got True"),
        (ABSTRACT, ("n",), 10.0, "Run.n must be an integer, got 10.0"),
        (ABSTRACT, ("clip",), "1", "Run.clip must be a number, got '1'"),
        (ABSTRACT, ("clip",), False, "Run.clip must be a number, got False"),
        (
            ABSTRACT,
            ("step_size",),
            {"type": "Constant", "value": True},
            "Constant.value must be a number",
        ),
        (ABSTRACT, ("release",), ["last"], "Run.release must be one of last, all"),
        (
            ABSTRACT,
            ("prelude",),
            {"type": "PrivateMean", "noise_multiplier": 1.0, "row_norm": 1.0},
            "must be a list",
        ),
        (
            ABSTRACT,
            ("prelude",),
            [{"type": "PrivateMean", "noise_multiplier": 1.0, "row_norm": 1.0}] * 101,
            "preprocessing must have at most 100 parts, got 101",
        ),
        (
            ABSTRACT,
            ("counts",),
            [{"type": "NoisyCount", "noise_multiplier": 1.0, "records": 20}] * 101,
            "counts must have at most 100 parts, got 101",
        ),
        (
            ABSTRACT,
            ("prelude",),
            [None],
            "Run.preprocessing must be one of PrivateMean, .* got 'NoneType'",
        ),
        (
            AFFINE,
            ("domain", "normals"),
            [["1", "0"]],
            "AffineBall.normals must be a number, got '1'",
        ),
        (
            AFFINE,
            ("domain", "normals"),
            ["10"],
            "AffineBall.normals must be a list or tuple of numbers, got 'str'",
        ),
        (AFFINE, ("domain", "offsets"), [[0.0]], "AffineBall.offsets must be a number"),
        (AFFINE, ("domain", "dimension"), 3, "unknown field, got 'dimension'"),
    ],
)
def test_fields_of_other_types_are_refused(data, path, value, said):
    with pytest.raises(InputError, match=said):
        li.Run.from_json(json.dumps(changed(data, path, value)))


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"type": "Run", "n": 1, "n": 2}', "every key once"),
        (BASE.to_json().replace('"value": 0.1', '"value": NaN'), "finite"),
        (BASE.to_json().replace('"value": 0.1', '"value": -Infinity'), "finite"),
        (BASE.to_json().replace('"value": 0.1', '"value": 1e999'), "finite"),
        (
            BASE.to_json().replace('"value": 0.1', '"value": ' + "1" * 400),
            "integers of at most",
        ),
        (BASE.to_json().replace('"n": 100', '"n": ' + "1" * 400), "integers of at most"),
        (BASE.to_json().replace('"n": 100', '"n": ' + "[" * 10_000 + "]" * 10_000), "deeper"),
        (BASE.to_json()[:-2], "JSON"),
        ("", "JSON"),
        ("3", "type"),
        ("null", "type"),
        ("[]", "type"),
        ('"Run"', "type"),
        ('{"type": "Constant", "value": 1}', "type"),
    ],
)
def test_texts_that_are_not_one_run_are_refused(text, said):
    with pytest.raises(InputError, match=said) as refused:
        li.Run.from_json(text)
    assert len(str(refused.value)) < 1000 and "\n" not in str(refused.value)


def test_objects_nested_without_end_are_refused_as_well():
    nested = []
    for _ in range(10_000):
        nested = [nested]
    with pytest.raises(InputError, match="deeper"):
        li.Run.from_dict(BASE.to_dict() | {"prelude": nested})


def test_mutated_descriptions_are_refused_or_runs():
    """A law in small: 2,000 texts here, as many as wanted by ``python tools/fuzz_runs.py``."""
    found = Counter(
        outcome(text, account=index % 100 == 0) for index, text in enumerate(texts(2000, seed=12))
    )
    assert found["refused"] > 800 and found["accepted"] > 200, (
        "both happen, or the mutations say nothing"
    )
    assert all(outcome(json.dumps(run.to_dict())) == "accepted" for run in RUNS)
