"""Mutations of valid JSON: what a careless or hostile writer of run descriptions could hand over."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

RAW = "raw text \u2603 "
"""Marks strings whose rest is put into the text as it stands: what no writer of JSON would produce.
"""
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**53 + 1,
    10**18,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    1e-320,
    1e-40,
    1e-9,
    0.5,
    1e9,
    1e30,
    1e300,
    -1.5,
    "",
    "1.0",
    "zero-out",
    "nan",
    "\ud800",
    [],
    [[]],
    {},
    [1, 2, 3],
    ["1.0"],
    [None],
    [[1.0], [2.0, 3.0]],
    {"type": "Run"},
    {"type": "Fact", "value": 1.0},
    {"type": "Constant", "value": 0.1},
    {"type": "LossFacts"},
    {"type": "Logistic"},
    {"type": "Abstract"},
    {"type": "object"},
    {"type": ["Constant"]},
    {"type": None},
    {"value": 1.0},
    RAW + "NaN",
    RAW + "Infinity",
    RAW + "-Infinity",
    RAW + "1e999",
    RAW + "0x10",
    RAW + "01",
    RAW + "1" * 400,
    RAW + "1" * 5000,
    RAW + "[" * 10_000 + "]" * 10_000,
    RAW + '{"type": "Constant", "value": 0.1, "value": 5.0}',
    RAW + '{"a":' * 10_000 + "1" + "}" * 10_000,
    RAW + "",
)
KEYS = ("evidence", "type", "value", "n", "std", "", "__class__", "surprise")


def mutated(text: str, rng: random.Random) -> str:
    """One to three mutations of the JSON text of a run."""
    data = json.loads(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _changed(data, rng)
    found = _raw(json.dumps(data))
    return _scratched(found, rng) if rng.random() < 0.1 else found


def _changed(data: Any, rng: random.Random) -> Any:
    places = list(_places(data))
    if not places:
        return deepcopy(rng.choice(VALUES))
    holder, key = rng.choice(places)
    kind = rng.randrange(10)
    if kind < 4:
        holder[key] = deepcopy(rng.choice(VALUES))
    elif kind > 7:
        numbers = [(where, at) for where, at in places if type(where[at]) in (int, float)]
        where, at = rng.choice(numbers or places)
        where[at] = rng.choice((rng.randrange(1, 120), 10 ** rng.uniform(-31, 31), rng.random()))
    elif kind == 4:
        other, there = rng.choice(places)
        holder[key], other[there] = other[there], holder[key]
        data = json.loads(json.dumps(data)) if _finite(data) else None
    elif kind == 5 and isinstance(holder, dict):
        holder[rng.choice(KEYS)] = deepcopy(rng.choice(VALUES))
    elif kind == 6:
        del holder[key]
    else:
        holder[key] = [holder[key]] * rng.choice((1, 2, 3))
    return data


def _finite(data: Any) -> bool:
    """Whether an exchange of two places has not put something inside of itself."""
    try:
        json.dumps(data)
    except ValueError:
        return False
    return True


def _places(data: Any) -> Any:
    """(list or object, index or key) of everything inside of ``data``."""
    for key, value in (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    ):
        yield data, key
        yield from _places(value)


def _raw(text: str) -> str:
    """The text with marked strings replaced by what they hold."""
    mark = json.dumps(RAW)[:-1]
    while (first := text.find(mark)) >= 0:
        rest, length = json.JSONDecoder().raw_decode(text[first:])
        text = text[:first] + rest[len(RAW) :] + text[first + length :]
    return text


def _scratched(text: str, rng: random.Random) -> str:
    """Cut off, or with one character lost, doubled or exchanged."""
    at = rng.randrange(len(text) + 1)
    kept = text[at + rng.randrange(2) :]
    return rng.choice(
        (text[:at], text[:at] + kept, text[:at] + rng.choice('{}[],:"0x\\\x00') + kept)
    )
