"""Whether mutated descriptions are refused in a sentence, or are runs; for a test and
``tools/fuzz_runs.py``."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import lastiterate as li
from oracles.descriptions import RUNS
from oracles.json_mutations import mutated

LONGEST_SENTENCE = 1500
SHORT = 1000
"""Steps up to which an accepted run is accounted as well."""


def texts(count: int, seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    valid = [json.dumps(run.to_dict()) for run in RUNS]
    for _ in range(count):
        yield mutated(rng.choice(valid), rng)


def outcome(text: str, *, account: bool = False) -> str:
    """ "refused" or "accepted"; anything else that happens is an error of the reader.

    What is accepted must be written and read back as the same run; with ``account`` it must have
    verdicts, or be refused in a sentence.
    """
    try:
        run = li.Run.from_json(text)
    except li.InputError as error:
        _check_sentence(error)
        return "refused"
    assert type(run) is li.Run and li.Run.from_json(run.to_json()) == run, (
        "what is read is what is written"
    )
    try:
        run.facts()
        if account and run.steps <= SHORT and run.noise is not None:
            li.account(run, min_evidence=li.Evidence.ASSUMED).epsilon(1e-5)
    except li.InputError as error:
        _check_sentence(error)
    return "accepted"


def _check_sentence(error: li.InputError) -> None:
    said = str(error)
    assert len(said) < LONGEST_SENTENCE and "\n" not in said and said.endswith("."), said
