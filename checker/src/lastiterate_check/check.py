"""Check a certificate: what it states against curves that are computed here."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import sqlite3
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from lastiterate_check.balls import Best, Curve
from lastiterate_check.others import shown_by_linear_losses
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
    """Strict JSON from a file: bounded in size and depth before it is parsed, no key twice,
    finite numbers only."""
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


KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "number": (int, float),
    "integer": int,
    "boolean": bool,
    "null": type(None),
}


def misfit(value: Any, schema: dict[str, Any], where: str) -> str | None:
    """Where a value does not fit a JSON Schema: the keywords that the four schemas use."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = any(isinstance(value, KINDS[kind]) for kind in kinds)
    if kinds and (not fits or (isinstance(value, bool) and "boolean" not in kinds)):
        return f"{where}: must be {' or '.join(kinds)}"
    if "const" in schema and value != schema["const"]:
        return f"{where}: must be {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where}: must be one of {schema['enum']}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        return f"{where}: must match {schema['pattern']}"
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if (low is not None and not value > low) or (high is not None and not value < high):
        return f"{where}: must lie within {low} and {high}"
    for key, wanted in (("oneOf", 1), ("anyOf", None)):
        if key in schema:
            count = sum(misfit(value, option, where) is None for option in schema[key])
            if count == 0 or (wanted and count != wanted):
                return f"{where}: must be of one of {len(schema[key])} forms, and is of {count}"
    if isinstance(value, dict):
        missing = [name for name in schema.get("required", []) if name not in value]
        if missing:
            return f"{where}: misses {missing[0]}"
        known, others_ = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, entry in value.items():
            inner = known.get(name, others_)
            if inner is False:
                return f"{where}: has an unknown field, {name}"
            found = misfit(entry, inner, f"{where}.{name}") if isinstance(inner, dict) else None
            if found:
                return found
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for place, entry in enumerate(value):
            inner = first[place] if place < len(first) else schema.get("items")
            found = misfit(entry, inner, f"{where}[{place}]") if inner else None
            if found:
                return found
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf):
            return f"{where}: has {len(value)} entries"
    return None


def fit(value: Any, name: str) -> None:
    """Refuse what does not fit the schema of that name."""
    schema = Path(__file__).parent / "schemas" / f"{name}.schema.json"
    found = misfit(value, json.loads(schema.read_text(encoding="utf-8")), name)
    if found:
        raise BadInput(found)


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
    """The certificate of a released model, its files looked at: hashes of the manifest, and what
    depends on them."""
    lines = []
    manifest = folder / "manifest.json"
    if manifest.exists():
        listed = read(manifest)
        fit(listed, "manifest")
        hashes = listed["sha256"]
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
        model = read(folder / "model.json")
        fit(model, "model")
        described = model.get("run")
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
    if stored.get("format") == 3 and "caveats" in stored:  # a whole one, not an extract of it
        fit(stored, "certificate")
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
    if "run" in stored:
        try:
            shown = shown_by_linear_losses(stored["run"], float(epsilon))
        except NotCovered:
            shown = 0.0
        if shown > stated_delta * (1 + 1e-9):
            words = f"linear losses of the class show delta {shown:.6g} at epsilon {epsilon:.6g}"
            report.say(REFUTED, f"{words}, above {stated_delta:g}: docs/theorems/linear-witness")
            return report
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
    whole = composed(stored) if curve.delta(epsilon * CLOSE) > stated_delta else None
    if whole is not None and whole.delta(epsilon * CLOSE) <= stated_delta:
        report.lines.append("  every step charged in full is the smaller bound: composition-gdp")
        curve = Best([curve, whole])
    compare(report, curve, float(epsilon), stated_delta, "epsilon")
    others(report, stored, curve, stated_delta)
    if delta is not None:
        report.own[f"epsilon at {delta:g}"] = curve.epsilon(delta)
        report.lines.append(
            f"epsilon at delta {delta:g}: {curve.epsilon(delta):.6g}, computed here"
        )
    return report


FULLY = ("random-allocation-pld", "balls-in-bins-pld", "fixed-size-amplified")
"""Theorems whose bound is never above that of all steps charged in full."""


def composed(stored: dict[str, Any]) -> Curve | None:
    """A second bound, which every theorem about noisy steps implies: all steps charged in full."""
    if stored.get("theorem") not in FULLY:
        return None
    found = by_any(stored["run"], None, stored.get("at_least", "ENFORCED"), ("composition-gdp",))
    return next((curve for _, curve in found), None)


def compare(report: Report, curve: Curve, stated: float, delta: float, what: str) -> bool:
    """Compare one stated epsilon with the curve."""
    own = curve.epsilon(delta, stated)
    report.own[what if what == "epsilon" else f"{what} at {delta:g}"] = own
    words = f"{what} {stated:.6g} at delta {delta:g}; computed here: {own:.6g}"
    holds = own <= stated * CLOSE
    report.say(
        HOLDS if holds else NOT_COVERED, words if holds else f"{words}, which is larger: not shown"
    )
    return holds


def others(report: Report, stored: dict[str, Any], curve: Curve, delta: float) -> None:
    """What is stated beside epsilon: at other deltas, and for an exchanged record. Any theorem
    may be behind these."""
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
    for split in (False, True) if adjacency == "replace-one" and "run" in stored else (False,):
        with contextlib.suppress(Fails, NotCovered, NotImplementedError):
            yield curve_of(stored, adjacency, [], split)
    if "run" in stored:
        for _, curve in by_any(stored["run"], adjacency, stored.get("at_least", "ENFORCED"), CHEAP):
            yield curve


# Ledgers.

MU_UNIT, FAILURE_UNIT = Fraction(1, 2**40), Fraction(1, 2**100)
FOLLOWS = {"reserved": ("touched", "cancelled"), "touched": ("released",)}
LINE = ["number", "token", "dataset", "purpose", "run", "curve", "costs", "day"]


def chain(before: str, *entries: Any) -> str:
    """The hash that ties an entry to all before it."""
    return hashlib.sha256(json.dumps([before, *entries]).encode()).hexdigest()


def check_ledger(path: Path) -> Report:
    """The chain of events, the states that they give, every charge, and the sums below the
    budgets."""
    report, lines, budgets = Report(), {}, {}
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
            rows = base.execute(
                "SELECT number, event, chain FROM events ORDER BY number"
            ).fetchall()
            stored = base.execute(
                f"SELECT {', '.join(LINE)}, chain, state FROM releases"
            ).fetchall()
    except sqlite3.Error as error:
        raise BadInput(f"{path.name}: is no ledger with a chain of events ({error})") from None
    before = "lastiterate ledger, format 2"
    for place, (number, text, tied) in enumerate(rows, 1):
        if number != place or chain(before, number, text) != tied:
            raise BadInput(f"event {place}: was changed, or events before it are missing")
        before = tied
        event = parse(text, f"event {place}")
        fit(event, "ledger")
        kind, fields = event
        if kind == "dataset":
            budgets[fields["name"]] = parse(fields["filter"], "filter")
        elif kind == "line":
            lines[fields["token"]] = fields
        elif kind == "state":
            line = lines[fields["token"]]
            if fields["state"] not in FOLLOWS.get(line["state"], ()):
                raise BadInput(f"event {place}: a release that is {line['state']} cannot follow so")
            line["state"] = fields["state"]
    report.lines.append(f"chain: {len(rows)} events, each tied to all before it; head {before}")
    given = sorted(
        tuple(line[name] for name in (*LINE, "chain", "state")) for line in lines.values()
    )
    if sorted(stored) != given:
        raise BadInput("releases: are not those that the events give")
    tied = ""
    for row in given:
        if chain(tied, *row[:8]) != row[8]:
            raise BadInput(f"line {row[0]}: was changed, or lines before it are missing")
        tied = row[8]
    for name, limit in budgets.items():
        spent = [Fraction(0), Fraction(0)]
        for line in (
            x for x in lines.values() if x["dataset"] == name and x["state"] != "cancelled"
        ):
            costs, curve = parse(line["costs"], "costs"), parse(line["curve"], "curve")
            spent = [a + b for a, b in zip(spent, costs, strict=True)]
            what = (
                f"{name}, line {line['number']}: a charge for a curve of the kind {curve['type']}"
            )
            paid = curve["type"] == "Gdp" and Fraction(curve["mu"]) ** 2 <= costs[0] * MU_UNIT
            report.say(
                HOLDS if paid else NOT_COVERED, what + ("" if paid else " is not recomputed")
            )
        if limit["type"] != "GaussianFilter":
            report.say(NOT_COVERED, f"{name}: a budget of the kind {limit['type']}")
            continue
        square, failure = Fraction(limit["mu"]) ** 2, Fraction(limit["failure"])
        within = spent[0] * MU_UNIT <= square and spent[1] * FAILURE_UNIT <= failure
        share = float(spent[0] * MU_UNIT / square)
        report.say(HOLDS if within else REFUTED, f"{name}: {share:.4g} of the budget is spent")
    return report
