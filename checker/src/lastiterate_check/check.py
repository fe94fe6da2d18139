"""Check a certificate: what it states against curves that are computed here."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastiterate_check.balls import Curve
from lastiterate_check.run import BadInput, NotCovered
from lastiterate_check.subjects import CHEAP, by_any, curve_of
from lastiterate_check.theorems import Fails

LONGEST, DEEPEST = 64 * 2**20, 40
"""Bytes of a file, and levels of lists and objects in each other."""
CLOSE = 1 + 1e-3
"""What is stated holds where it is at least the bound that is computed here, over this."""
HOLDS, REFUTED, NOT_COVERED = "holds", "refuted", "not covered"


@dataclass
class Report:
    """The steps of the argument, a line each, and the verdict."""

    lines: list[str] = field(default_factory=list)
    verdict: str = HOLDS
    own: dict[str, float] = field(default_factory=dict)

    def say(self, verdict: str, words: str) -> None:
        """Add a checked statement; the verdict is that of the worst one."""
        self.lines.append(f"{verdict}: {words}")
        rank = [HOLDS, NOT_COVERED, REFUTED]
        self.verdict = max(self.verdict, verdict, key=rank.index)


def read(path: Path) -> Any:
    """Strict JSON from a file: bounded in size and depth before it is parsed, no key twice, finite numbers only."""
    try:
        if path.stat().st_size > LONGEST:
            raise BadInput(f"{path.name}: is larger than {LONGEST} bytes")
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read as text ({type(error).__name__})") from None
    return parse(text, path.name)


def parse(text: str, name: str) -> Any:
    """``read`` of a text."""
    depth = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark.group(), 0)
        if depth > DEEPEST:
            raise BadInput(f"{name}: is nested deeper than {DEEPEST} levels")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        if len(set(keys)) < len(keys):
            raise BadInput(f"{name}: has a key twice")
        return dict(pairs)

    def finite(word: str) -> float:
        value = float(word)
        if not math.isfinite(value):
            raise BadInput(f"{name}: has a number beyond the range of floats")
        return value

    def refuse(word: str) -> float:
        raise BadInput(f"{name}: has {word}, which is no number")

    try:
        return json.loads(text, object_pairs_hook=once, parse_float=finite, parse_constant=refuse)
    except ValueError:
        raise BadInput(f"{name}: is no JSON") from None


def sha256(path: Path) -> str:
    """The hash of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def canonical_hash(stored: dict[str, Any]) -> str:
    """The hash of a certificate's canonical JSON without its own hash."""
    body = {key: value for key, value in stored.items() if key != "content_sha256"}
    return hashlib.sha256(
        json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def check_folder(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The certificate of a released model, its files looked at: hashes of the manifest, and what depends on them."""
    lines = []
    manifest = folder / "manifest.json"
    if manifest.exists():
        hashes = read(manifest).get("sha256")
        if not isinstance(hashes, dict):
            raise BadInput("manifest.json: must hold sha256, an object")
        for name, stated in hashes.items():
            if not isinstance(name, str) or Path(name).name != name:
                raise BadInput("manifest.json: must name files of its own folder")
            if not (folder / name).is_file() or sha256(folder / name) != stated:
                raise BadInput(
                    f"{name}: is not the file that the manifest names; ask for the original"
                )
        lines.append(f"manifest: {len(hashes)} files have the hashes that it states")
    stored = read(folder / "certificate.json")
    for entry, name in (("weights_sha256", "weights.safetensors"), ("model_sha256", "model.json")):
        stated = stored.get(entry) if isinstance(stored, dict) else None
        if stated is not None and (
            not (folder / name).is_file() or sha256(folder / name) != stated
        ):
            raise BadInput(
                f"{name}: is not the file that the certificate names; ask for the original"
            )
    if (folder / "model.json").is_file() and isinstance(stored, dict) and "run" in stored:
        described = read(folder / "model.json").get("run")
        if described is not None and described != stored["run"]:
            raise BadInput("model.json: describes another run than the certificate")
    return stored, lines


def check(stored: Any, delta: float | None = None) -> Report:
    """Check what a certificate states; at ``delta`` too, where one is given."""
    report = Report()
    if not isinstance(stored, dict):
        raise BadInput("certificate: must be a JSON object")
    stated_delta, epsilon = stored.get("delta"), stored.get("epsilon")
    if (
        isinstance(stated_delta, bool)
        or not isinstance(stated_delta, float)
        or not 0 < stated_delta < 1
    ):
        raise BadInput("delta: must be a number in (0, 1)")
    if "content_sha256" in stored and canonical_hash(stored) != stored["content_sha256"]:
        raise BadInput("content_sha256: is not the hash of this certificate; ask for the original")
    if epsilon is None:
        report.say(HOLDS, "nothing is stated: epsilon is null")
        return report
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, (int, float))
        or not 0 <= epsilon < math.inf
    ):
        raise BadInput("epsilon: must be a number of at least 0, or null")
    described = next((stored[x] for x in ("run", "exact_run") if x in stored), None)
    own_adjacency = (
        described.get("adjacency", "zero-out")
        if isinstance(described, dict)
        else stored.get("adjacency")
    )
    if own_adjacency != stored.get("adjacency"):
        raise BadInput("adjacency: must be that of the run")
    try:
        curve = curve_of(stored, None, report.lines)
    except (Fails, NotCovered, NotImplementedError) as error:
        prefix = (
            "the theorem that is named does not speak of this run: it needs "
            if isinstance(error, Fails)
            else ""
        )
        report.say(NOT_COVERED, f"{prefix}{error}")
        return report
    compare(report, curve, float(epsilon), stated_delta, "epsilon")
    others(report, stored, curve, stated_delta)
    if delta is not None:
        report.own[f"epsilon at {delta:g}"] = curve.epsilon(delta)
        report.lines.append(
            f"epsilon at delta {delta:g}: {curve.epsilon(delta):.6g}, computed here"
        )
    return report


def compare(report: Report, curve: Curve, stated: float, delta: float, what: str) -> bool:
    """Compare one stated epsilon with the curve."""
    own = curve.epsilon(delta)
    report.own[what if what == "epsilon" else f"{what} at {delta:g}"] = own
    words = f"{what} {stated:.6g} at delta {delta:g}; computed here: {own:.6g}"
    holds = own <= stated * CLOSE or curve.delta(stated * CLOSE) <= delta
    report.say(
        HOLDS if holds else NOT_COVERED, words if holds else f"{words}, which is larger: not shown"
    )
    return holds


def others(report: Report, stored: dict[str, Any], curve: Curve, delta: float) -> None:
    """What is stated beside epsilon: at other deltas, and for an exchanged record. Any theorem may be behind these."""
    stated = stored.get("stated") or {}
    numbers = [(g.get("delta"), g.get("epsilon"), None) for g in stated.get("guarantees", [])]
    if stored.get("epsilon_replace_one") is not None and stored.get("adjacency") != "forgotten":
        numbers.append((delta, stored["epsilon_replace_one"], "replace-one"))
    for at, epsilon, adjacency in numbers:
        if epsilon is None:
            continue
        what = "epsilon" if adjacency is None else "epsilon under replace-one"
        if (
            not isinstance(at, float)
            or isinstance(epsilon, bool)
            or not isinstance(epsilon, (int, float))
        ):
            raise BadInput("stated: must hold numbers where numbers belong")
        if adjacency is None and curve.delta(epsilon * CLOSE) <= at:
            report.say(HOLDS, f"{what} {epsilon:.6g} at delta {at:g}")
            continue
        found = any(other.delta(epsilon * CLOSE) <= at for other in alternatives(stored, adjacency))
        report.say(
            HOLDS if found else NOT_COVERED,
            f"{what} {epsilon:.6g} at delta {at:g}"
            + ("" if found else ": no theorem that is known here shows it"),
        )


def alternatives(stored: dict[str, Any], adjacency: str | None):
    """Curves of a certificate's subject by the theorem that it names first, then by any other."""
    try:
        yield curve_of(stored, adjacency, [])
    except (Fails, NotCovered, NotImplementedError):
        pass
    if "run" in stored:
        for _, curve in by_any(stored["run"], adjacency, stored.get("at_least", "ENFORCED"), CHEAP):
            yield curve
