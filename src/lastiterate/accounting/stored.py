"""Certificates on disk: read back, derived again from their run, compared with what is written."""

# pyright: basic
# what JSON holds is checked here, not known
from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate import FORMAT, Certificate, account, content_hash
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

WEIGHTS, MODEL, CERTIFICATE = "weights.safetensors", "model.json", "certificate.json"


@dataclass(frozen=True)
class Checked:
    """Outcome of a verification: the problems found (none when it holds) and what was checked."""

    problems: tuple[str, ...]
    epsilon: float | None
    delta: float | None



def verify(path: Path) -> Checked:
    """Re-derive the facts and recompute everything from the run; compare with what is written, and with the weights.

    A folder is checked with its weights, a single certificate without. A certificate that was re-issued as a whole
    cannot be told from an honest one without a signature.
    """
    folder = path if path.is_dir() else None
    stored = read_json(path / CERTIFICATE if folder is not None else path)
    try:
        run, delta, at_least = _described(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
    problems = _compare(stored, run, delta, at_least)
    if folder is not None:
        for name, key in ((WEIGHTS, "weights_sha256"), (MODEL, "model_sha256")):
            file = folder / name
            if not file.is_file() or sha256(file.read_bytes()) != stored.get(key):
                problems.append(f"{name} is not the file that was certified")
    return Checked(tuple(problems), stored.get("epsilon"), delta)



def read_certificate(text: str) -> Certificate:
    """The certificate written in ``text``, derived again from its run; refused when what is written differs."""

    try:
        stored = json.loads(text)
        run, delta, at_least = _described(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
    problems = _compare(stored, run, delta, at_least)
    if problems:
        raise InputError("certificate", "does not hold", problems[0], "ask for the original")
    fresh = account(run, at_least=at_least)
    return replace(fresh, caveats=tuple(t for t in stored["caveats"] if t not in fresh.all_caveats()))



def _described(stored: dict[str, Any]) -> tuple[Run, float, Evidence]:
    delta = stored["delta"]
    if not isinstance(delta, float) or not 0 < delta < 1:
        raise ValueError(f"delta {delta!r}")
    return Run.from_dict(stored["run"]), delta, Evidence[stored["at_least"]]



DERIVED = ("epsilon", "epsilon_replace_one", "epsilon_at_least", "adjacency", "theorem", "evidence", "verdicts", "run")



OTHERS = {"delta", "caveats", "format", "library", "at_least", "weights_sha256", "model_sha256", "content_sha256"}



def _compare(stored: dict[str, Any], run: Run, delta: float, at_least: Evidence) -> list[str]:
    """Everything that follows from the run must be what is written, and nothing else may be written."""

    fresh = json.loads(json.dumps(account(run, at_least=at_least).answer(delta)))
    problems = [f"{key} is not what follows from the run" for key in DERIVED if not _same(stored.get(key), fresh[key])]
    problems += [f"unknown entry {key!r}" for key in sorted(set(stored) - set(DERIVED) - OTHERS)]
    caveats = stored.get("caveats")
    listed = caveats if isinstance(caveats, list) else []
    problems += [f"the caveat {text!r} is missing" for text in fresh["caveats"] if text not in listed]
    if stored.get("format") != FORMAT:
        problems.append(f"the format is {FORMAT}, not {stored.get('format')!r}")
    if stored.get("content_sha256") != content_hash(stored):
        problems.append("the content hash does not match: something in the certificate was changed")
    return problems



def _same(one: Any, two: Any) -> bool:
    """Equal, numbers up to 1e-9 (another machine may round differently); a bool or infinity equals no number."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, int | float) and isinstance(two, int | float):
        return math.isfinite(one) and math.isfinite(two) and abs(one - two) <= 1e-9 * max(abs(one), abs(two))
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(_same(x, y) for x, y in zip(one, two, strict=True))
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_same(one[key], two[key]) for key in one)
    return type(one) is type(two) and one == two



def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("certificate or model", "must be an existing file", str(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(path.name, "must be complete JSON", str(error), "the file is cut off or damaged") from None
    if not isinstance(found, dict):
        raise InputError(path.name, "must be a JSON object", type(found).__name__)
    return found



def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
