"""Whether mutated certificates and model folders are refused in a sentence, or say what follows
from their run."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import lastiterate as li
from lastiterate.accounting.certificate_json import content_hash
from lastiterate.release.folder import CERTIFICATE, MODEL, sha256
from oracles.json_mutations import mutated

LONGEST_SENTENCE = 5000
SHORT = 1000
"""Steps up to which a mutated certificate is derived again: longer runs take longer, and show no
more."""


def forge(text: str, **hashes: str) -> str:
    """A certificate whose content hash fits: what somebody who edits one would write. Other texts
    as they are."""
    try:
        body = json.loads(text)
        body.update(hashes)
        return json.dumps(body | {"content_sha256": content_hash(body)})
    except (ValueError, AttributeError, TypeError, RecursionError, UnicodeError):
        return text


def certificate_outcome(text: str, path: Path) -> str:
    """ "refused", "does not hold" or "holds"; what holds is read back, and says what its run or
    problem says."""
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    try:
        found = li.verify(path)
    except li.InputError as error:
        check_sentence(error)
        return "refused"
    if not found.holds:
        return "does not hold"
    body = json.loads(text)
    if "problem" in body:
        fresh = li.read_certificate(text)
    else:
        fresh = li.account(
            li.Run.from_dict(body["run"]), min_evidence=li.Evidence[body["at_least"]]
        )
    assert abs(fresh.epsilon(found.delta) - found.epsilon) <= 1e-9 * found.epsilon, (
        "it says what its run says"
    )
    assert set(fresh.all_caveats()) <= set(body["caveats"]), "no caveat is missing"
    return "holds"


def folder_outcome(source: Path, rng: random.Random, place: Path) -> str:
    """Mutate model.json, with hashes that fit: "refused", or "loaded" with the run that the
    certificate is about."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    text = mutated((source / MODEL).read_text(), rng).encode("utf-8", errors="surrogatepass")
    (place / MODEL).write_bytes(text)
    (place / CERTIFICATE).write_text(
        forge((source / CERTIFICATE).read_text(), model_sha256=sha256(text))
    )
    body = json.loads((source / CERTIFICATE).read_text())
    try:
        model = li.load(place)
    except li.InputError as error:
        check_sentence(error)
        return "refused"
    described = model.problem.to_dict() if "problem" in body else model.run.to_dict()  # type: ignore[attr-defined]
    assert json.loads(json.dumps(described)) == body.get("run", body.get("problem")), (
        "it is what was certified"
    )
    return "loaded"


def short(text: str) -> bool:
    """Whether accounting for a text takes no time."""
    try:
        steps = json.loads(text)["run"]["steps"]
        return not isinstance(steps, int) or steps <= SHORT
    except (ValueError, KeyError, TypeError, RecursionError):
        return True


def check_sentence(error: li.InputError) -> None:
    said = str(error)
    assert len(said) < LONGEST_SENTENCE and "\n" not in said and said.endswith("."), said
    said.encode("utf-8")
