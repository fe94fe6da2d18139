"""A released model on disk: weights, what is needed to predict, the certificate; written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lastiterate.certificate import Certificate, content_hash
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
        run, delta = Run.from_dict(stored["run"]), float(stored["delta"])
        at_least = Evidence[stored["at_least"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
    problems = _compare(stored, run, delta, at_least)
    if stored.get("content_sha256") != content_hash(stored):
        problems.append("the content hash does not match: something in the certificate was changed")
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
        run, delta, at_least = Run.from_dict(stored["run"]), float(stored["delta"]), Evidence[stored["at_least"]]
    except (KeyError, TypeError, ValueError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
    problems = _compare(stored, run, delta, at_least)
    if problems:
        raise InputError("certificate", "does not hold", problems[0], "ask for the original")
    fresh = account(run, at_least=at_least)
    return replace(fresh, caveats=tuple(t for t in stored["caveats"] if t not in fresh.all_caveats()))


def _compare(stored: dict[str, Any], run: Run, delta: float, at_least: Evidence) -> list[str]:
    from lastiterate.accounting import account

    fresh = account(run, at_least=at_least).answer(delta)
    problems: list[str] = []
    for key in ("epsilon", "epsilon_replace_one", "epsilon_at_least"):
        if not _close(stored.get(key), fresh[key]):
            problems.append(f"{key} is {fresh[key]}, not {stored.get(key)}")
    for key in ("adjacency", "theorem", "evidence"):
        if stored.get(key) != fresh[key]:
            problems.append(f"{key} is {fresh[key]}, not {stored.get(key)}")
    was = {row["theorem"]: row for row in stored.get("verdicts", [])}
    for row in fresh["verdicts"]:
        old = was.get(row["theorem"], {})
        if old.get("applies") != row["applies"] or not _close(old.get("epsilon"), row["epsilon"]):
            problems.append(f"the verdict of {row['theorem']} is different")
    missing = [text for text in fresh["caveats"] if text not in stored.get("caveats", [])]
    return problems + [f"the caveat {text!r} is missing" for text in missing]


def _close(one: Any, two: Any) -> bool:
    if not isinstance(one, int | float) or not isinstance(two, int | float):
        return one is None and two is None
    return abs(one - two) <= 1e-9 * max(abs(one), abs(two))


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
