"""A released model on disk: weights, what is needed to predict, the certificate; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastiterate.certificate import FORMAT, Certificate, content_hash
from lastiterate.errors import InputError
from lastiterate.evidence import Evidence
from lastiterate.run import Run

WEIGHTS, MODEL, CERTIFICATE = "weights.safetensors", "model.json", "certificate.json"


@dataclass(frozen=True)
class Checked:
    """Outcome of a verification: the problems found (none when it holds) and what was checked."""

    problems: tuple[str, ...]
    epsilon: float | None
    delta: float | None


def save(folder: Path, weights: bytes, model: dict[str, Any], certificate: Certificate, delta: float) -> None:
    """Write a model folder; it appears complete or not at all, and never replaces another one."""
    if folder.exists():
        raise InputError("--out", "must not exist yet", str(folder), "choose another folder, or remove this one")
    text = json.dumps(model, indent=2).encode()
    body = certificate.to_dict(delta, weights_sha256=_sha(weights)) | {"model_sha256": _sha(text)}
    body["content_sha256"] = content_hash(body)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (draft / WEIGHTS).write_bytes(weights)
        (draft / MODEL).write_bytes(text)
        (draft / CERTIFICATE).write_text(json.dumps(body, indent=2))
        draft.chmod(0o755)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def load(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The model description and the weights of a folder."""
    if not folder.is_dir():
        raise InputError("model", "must be a folder that train wrote", str(folder))
    for name in (WEIGHTS, MODEL):
        if not (folder / name).is_file():
            raise InputError("model", f"misses the file {name}", str(folder), "train again")
    return _json(folder / MODEL), (folder / WEIGHTS).read_bytes()


def verify(path: Path) -> Checked:
    """Re-derive the facts and recompute everything from the run; compare with what is written, and with the weights.

    A folder is checked with its weights, a single certificate without. A certificate that was re-issued as a whole
    cannot be told from an honest one without a signature.
    """
    folder = path if path.is_dir() else None
    stored = _json(path / CERTIFICATE if folder is not None else path)
    try:
        run, delta, at_least = _described(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
    problems = _compare(stored, run, delta, at_least)
    if folder is not None:
        for name, key in ((WEIGHTS, "weights_sha256"), (MODEL, "model_sha256")):
            file = folder / name
            if not file.is_file() or _sha(file.read_bytes()) != stored.get(key):
                problems.append(f"{name} is not the file that was certified")
    return Checked(tuple(problems), stored.get("epsilon"), delta)


def certificate_from_text(text: str) -> Certificate:
    """The certificate written in ``text``, derived again from its run; refused when what is written differs."""
    from lastiterate.accounting import account

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
    from lastiterate.accounting import account

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


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("certificate or model", "must be an existing file", str(path)) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(path.name, "must be complete JSON", str(error), "the file is cut off or damaged") from None
    if not isinstance(found, dict):
        raise InputError(path.name, "must be a JSON object", type(found).__name__)
    return found


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
