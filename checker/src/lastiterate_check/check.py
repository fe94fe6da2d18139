"""Check a certificate: what it states against curves that are computed here."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lastiterate_check import curves
from lastiterate_check.curves import Curve, Failing, Gaussian, up
from lastiterate_check.losses import Losses, sampled
from lastiterate_check.mechanisms import shown_by_linear_losses
from lastiterate_check.run import TABLE, BadInput, Body, Fails, NotCovered, whole
from lastiterate_check.sampling import bins, pass_of_blocks
from lastiterate_check.subjects import UNKNOWN, by_any, curve_of, of_run

LONGEST, DEEPEST = 64 * 2**20, 40
"""Bytes of a file, and levels of lists and objects in each other."""
CLOSE = 1 + 1e-3
"""What is stated holds where it is at least the bound that is computed here, over this."""
HOLDS, REFUTED, NOT_COVERED = "holds", "refuted", "not covered"
UNSHOWN = ": no theorem that is known here shows it"


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

    def show(self, shown: bool, words: str, more: str = UNSHOWN) -> None:
        """Add a statement that holds where it is shown; elsewhere with ``more``, as not covered."""
        self.say(HOLDS if shown else NOT_COVERED, words + ("" if shown else more))


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


def parse(text: str, name: str, largest: float = sys.float_info.max) -> Any:
    """``read`` of a text; numbers are at most ``largest``."""
    depth = 0
    for mark in re.finditer(r'"(?:[^"\\]|\\.)*"|[\[{]|[\]}]', text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark.group(), 0)
        if depth > DEEPEST:
            raise BadInput(f"{name}: is nested deeper than {DEEPEST} levels")

    def finite(word: str) -> float:
        if not abs(float(word)) <= largest:
            raise BadInput(f"{name}: has {word}, which is no finite number")
        return float(word)

    try:
        pairs = partial(once, name)
        return json.loads(text, object_pairs_hook=pairs, parse_float=finite, parse_constant=finite)
    except ValueError:
        raise BadInput(f"{name}: is no JSON") from None


def once(name: str, pairs: list[tuple[str, Any]]) -> Body:
    """A dictionary; a key that stands twice is refused, of which readers show different ones."""
    if len(dict(pairs)) < len(pairs):
        raise BadInput(f"{name}: has a key twice")
    return dict(pairs)


KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer"}


def misfits(value: Any, schema: Body, where: str) -> Iterator[str]:
    """Where a value does not fit a JSON Schema: the keywords that the four schemas use."""
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    kind = "null" if value is None else KINDS.get(type(value), "number")
    if kinds and kind not in kinds and (kind, "number" in kinds) != ("integer", True):
        yield f"{where}: must be {' or '.join(kinds)}"
        return  # the other keywords speak of that type
    allowed = schema.get("enum", [schema.get("const", value)])
    if value not in allowed:
        yield f"{where}: must be one of {allowed}"
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        yield f"{where}: must match {schema['pattern']}"
    low, high = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    if type(value) in (int, float) and not low < value < high:
        yield f"{where}: must lie within {low} and {high}"
    if type(value) in (int, float) and value < schema.get("minimum", value):
        yield f"{where}: must be at least {schema['minimum']}"
    for options in (schema[key] for key in ("oneOf", "anyOf") if key in schema):
        count = sum(not any(misfits(value, option, where)) for option in options)
        if count == 0 or (count > 1 and "oneOf" in schema):
            yield f"{where}: must be of one of {len(options)} forms, and is of {count}"
    if isinstance(value, dict):
        yield from (f"{where}: misses {x}" for x in schema.get("required", []) if x not in value)
        known, others_ = schema.get("properties", {}), schema.get("additionalProperties", True)
        for name, entry in value.items():
            inner = known.get(name, others_)
            if inner is False:
                yield f"{where}: has an unknown field, {name}"
            elif isinstance(inner, dict):
                yield from misfits(entry, inner, f"{where}.{name}")
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        for place, entry in enumerate(value):
            inner = first[place] if place < len(first) else schema.get("items", {})
            yield from misfits(entry, inner, f"{where}[{place}]")
    if isinstance(value, dict | list):
        least = schema.get("minItems", schema.get("minProperties", 0))
        if not least <= len(value) <= schema.get("maxItems", math.inf):
            yield f"{where}: has {len(value)} entries"


def fit(value: Any, name: str) -> None:
    """Refuse what does not fit the schema of that name."""
    schema = Path(__file__).parent / "schemas" / f"{name}.schema.json"
    for found in misfits(value, json.loads(schema.read_text(encoding="utf-8")), name):
        raise BadInput(found)


def check_hash(folder: Path, name: str, stated: Any) -> None:
    """Refuse a file that is missing, or is not the one of that hash."""
    if Path(name).name != name or not (folder / name).is_file():
        raise BadInput(f"{name}: must be a file of the folder itself; it is missing")
    with (folder / name).open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != stated:
            raise BadInput(f"{name}: is not the file whose hash is stated; ask for the original")


def canonical_hash(stored: Body) -> str:
    """The hash of a certificate's canonical JSON without its own hash."""
    body = {key: value for key, value in stored.items() if key != "content_sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def read_folder(folder: Path) -> tuple[Body, list[str]]:
    """The certificate of a released model, its files looked at: hashes of the manifest, and what
    depends on them."""
    lines, stored = [], read(folder / "certificate.json")
    if (folder / "manifest.json").exists():
        listed = read(folder / "manifest.json")
        fit(listed, "manifest")
        for name, stated in listed["sha256"].items():
            check_hash(folder, name, stated)
        lines.append(f"manifest: {len(listed['sha256'])} files have the hashes that it states")
    else:
        lines.append("no manifest.json: no list of files was there, report.html was not compared")
    if not isinstance(stored, dict):
        raise BadInput("certificate: must be a JSON object")
    for entry, name in (("weights_sha256", "weights.safetensors"), ("model_sha256", "model.json")):
        if stored.get(entry) is not None:
            check_hash(folder, name, stored[entry])
    if (folder / "model.json").is_file():
        model = read(folder / "model.json")
        fit(model, "model")
        if "run" in stored and model.get("run") not in (None, stored["run"]):
            raise BadInput("model.json: describes another run than the certificate")
    return stored, lines


def stated_number(body: Body, name: str, low: float = 0.0, high: float = math.inf) -> float:
    """A number that a certificate states."""
    value = body.get(name)
    if type(value) not in (int, float) or not low <= value < high:
        raise BadInput(f"{name}: must be a number of at least {low:g} and below {high:g}")
    return float(value)


def check(stored: Any, delta: float | None = None) -> Report:
    """Check what a certificate states; at ``delta`` too, where one is given."""
    report = Report()
    compare(report, stored, delta)
    stated = stored.get("stated") or {}
    left = [name for name in stored if name not in COMPARED]
    left += [f"stated.{name}" for name in stated if name not in COMPARED_OF_STATED]
    left += ["the name in stated.unit"] if "name" in stated.get("unit", {}) else []
    report.lines.append("not compared: " + ", ".join(left or ["nothing else is stated"]))
    return report


COMPARED = (
    *("epsilon", "delta", "adjacency", "epsilon_replace_one", "theorem", "at_least", "plugins"),
    *("run", "exact_run", "selection", "unlearning", "stated", "format", "content_sha256"),
    *("weights_sha256", "model_sha256"),
)
COMPARED_OF_STATED = ("unit", "neighbours", "guarantees", "right_guesses")
"""What is compared with the run, with a curve or with files; of all else only the form."""


def unit_of(stored: Body, name: str) -> tuple[int, str, str]:
    """Return the most rows of the protected unit, its words and a short form of them, as they
    follow from the run and the unit's name."""
    if "unlearning" in stored:
        rows = sum(whole(part, "removed") for part in stored["unlearning"]["requests"])
        words = f"the {rows} removed record{'s' * (rows > 1)} together, and nobody else"
        return rows, words, words
    run = stored.get("run", stored.get("exact_run", {}))
    group, together = (whole(run, key, 1) for key in ("rows_per_unit", "rows_per_record"))
    rows, read = together if together > 1 else group, run.get("loss", {}).get("type") == "Abstract"
    alone = "kept" if name else "read" if read else "row"
    kind = "together" if together > 1 else "group" if group > 1 else alone
    whose = f"one unit ({name})" if name not in ("", "unit") else "one unit"
    short = f"one {name or 'unit'} with at most {rows} row{'s' * (rows > 1)}"
    short = {"row": "one row", "read": "one record, as the loss takes it"}.get(kind, short)
    return rows, TABLE["units"][kind].format(whose=whose, rows=rows), short


def check_unit(report: Report, stored: Body) -> None:
    """Say who is protected, by the run; refuse another unit, and other neighbours."""
    stated = stored.get("stated") or {}
    unit, neighbours = stated.get("unit", {}), TABLE["neighbours"].get(stored.get("adjacency"))
    rows, words, short = unit_of(stored, unit.get("name", ""))
    if unit and (unit["rows"], unit["words"]) != (rows, words):
        said = f"says rows = {unit['rows']}, {unit['words'][:60]!r}"
        raise BadInput(f"stated.unit: {said}; the run protects {unit_of(stored, '')[2]}")
    if stated.get("neighbours", neighbours) != neighbours:
        raise BadInput("stated.neighbours: must be those of the adjacency")
    report.lines.append(f"protects {short}")


def compare(report: Report, stored: Any, delta: float | None) -> None:
    """Compare what is stated with what follows."""
    if not isinstance(stored, dict):
        raise BadInput("certificate: must be a JSON object")
    if "content_sha256" in stored and canonical_hash(stored) != stored["content_sha256"]:
        raise BadInput("content_sha256: is not the hash of this certificate; ask for the original")
    if stored.get("format") == 3 and {"caveats", "stated"} & set(stored):  # no extract of one
        fit(stored, "certificate")
    check_unit(report, stored)
    at = stated_number(stored, "delta", math.ulp(0.0), 1.0)
    if stored.get("epsilon") is None:
        report.say(HOLDS, "nothing is stated: epsilon is null")
        return
    epsilon = stated_number(stored, "epsilon")
    for part in stored.get("plugins", []):
        report.lines.append(f"{part['kind']} {part['name']}: by {part['by']}, not reviewed")
    described = stored.get("run", stored.get("exact_run", stored))
    if described.get("adjacency", "zero-out") != stored.get("adjacency"):
        raise BadInput("adjacency: must be that of the run")
    if "run" in stored:
        with suppress(NotCovered):
            shown = shown_by_linear_losses(stored["run"], epsilon)
            if shown > at * (1 + 1e-9):
                words = f"linear losses of the class show delta {shown:.6g} at {epsilon:.6g}"
                report.say(REFUTED, f"{words}, above {at:g}: docs/theorems/linear-witness")
                return
    try:
        curve = curve_of(stored, None, report.lines)
    except UNKNOWN as error:
        named = "the theorem that is named does not speak of this run: it needs "
        report.say(NOT_COVERED, (named if isinstance(error, Fails) else "") + str(error))
        return
    if stored.get("theorem") in FULLY and curve.delta(epsilon * CLOSE) > at:
        with suppress(*UNKNOWN):
            run, at_least = stored["run"], stored.get("at_least", "ENFORCED")
            curve = curves.Best([curve, of_run(run, "composition-gdp", None, at_least, [])])
            report.lines.append("  or every step charged in full: composition-gdp")
    own = report.own["epsilon"] = curve.epsilon(at, epsilon)
    words = f"{epsilon:.6g} at delta {at:g} ({stored['adjacency']}); computed here: {own:.6g}"
    report.show(own <= epsilon * CLOSE, f"epsilon {words}", ", which is larger: not shown")
    check_others(report, stored, curve, at)
    if delta is not None:
        own = report.own[f"epsilon at {delta:g}"] = curve.epsilon(delta)
        report.lines.append(f"epsilon at delta {delta:g}: {own:.6g}, computed here")


FULLY = ("random-allocation-pld", "balls-in-bins-pld", "fixed-size-amplified")
"""Theorems whose bound is never above that of all steps charged in full."""


def check_others(report: Report, stored: Body, curve: Curve, delta: float) -> None:
    """Check the statements in addition to epsilon: at other deltas, and for an exchanged record.
    Any theorem may be behind these."""
    stated = stored.get("stated") or {}
    guarantees = stated.get("guarantees", [])
    numbers = [(one, "delta", "epsilon", None) for one in guarantees if one["epsilon"] is not None]
    if stated.get("right_guesses") is not None:  # (1 + delta(0)) / 2
        right = stated_number(stated, "right_guesses", 0.5)
        tried = itertools.chain([curve], alternatives(stored, None))
        found = any(one.delta(0.0) / 2 <= (right - 0.5) * CLOSE for one in tried)
        report.show(found, f"right guesses {right:.6g}")
    if stored.get("epsilon_replace_one") is not None and stored.get("adjacency") != "forgotten":
        numbers.append((stored, "delta", "epsilon_replace_one", "replace-one"))
    for body, at, name, adjacency in numbers:
        delta, epsilon = stated_number(body, at, math.ulp(0.0), 1.0), stated_number(body, name)
        first = [curve] if adjacency is None else []
        tried = itertools.chain(first, alternatives(stored, adjacency))
        found = any(one.delta(epsilon * CLOSE) <= delta for one in tried)
        under = " under replace-one" if adjacency else ""
        report.show(found, f"epsilon{under} {epsilon:.6g} at delta {delta:g}")


def alternatives(stored: Body, adjacency: str | None) -> Iterator[Curve]:
    """Curves of a certificate's subject by the theorem that it names first, then by any other."""
    for split in (False, True) if adjacency == "replace-one" and "run" in stored else ():
        with suppress(*UNKNOWN):
            yield curve_of(stored, adjacency, [], split)
    if "run" in stored:
        yield from by_any(stored["run"], adjacency, stored.get("at_least", "ENFORCED"))
    elif adjacency is not None:
        with suppress(*UNKNOWN):
            yield curve_of(stored, adjacency, [])


# Ledgers.

UNITS = Fraction(1, 2**40), Fraction(1, 2**100)
"""Of squared mu and of failure probabilities."""
POINTS = 801
"""Points at which a curve is compared with what is charged for it."""
FOLLOWS = {"reserved": ("touched", "cancelled"), "touched": ("released",)}
LINE = ["number", "token", "dataset", "purpose", "run", "curve", "costs", "day"]


def chain(before: str, *entries: Any) -> str:
    """The hash that ties an entry to all before it."""
    return hashlib.sha256(json.dumps([before, *entries]).encode()).hexdigest()


def stated_curves(body: Body) -> list[Curve]:
    """Curves that a ledger charges for, in this program's own evaluation: each of them holds."""
    steps = zip(body.get("multipliers", ()), body.get("counts", ()), strict=False)
    match body:
        case {"type": "Gdp", "mu": mu}:
            return [Gaussian(mu)]
        case {"type": "GdpMixture", "weights": weights, "mus": mus}:
            return [curves.Mixture(weights, mus)]
        case {"type": "Rdp", "slope": slope, "orders": orders, "values": values}:
            return [curves.Renyi(slope, dict(zip(orders, values, strict=True)) or None)]
        case {"type": "WithFailure", "curve": curve, "failure": failure}:
            return [Failing(one, failure) for one in stated_curves(curve)]
        case {"type": "Pld", "rate": rate, "mu": mu}:
            return [Losses([(sampled(rate, z), count) for z, count in steps], mu)]
        case {"type": "AllocationPld", "blocks": blocks, "last_reached": reached, "mu": mu}:
            pairs = [(pass_of_blocks(blocks, 1 / z), count) for z, count in steps]
            if reached:
                pairs.append((pass_of_blocks(blocks, 1 / body["last_multiplier"], reached), 1))
            return [Losses(pairs, mu)]
        case {"type": "SecretBins", "strengths": strengths, "counts": counts, "mu": mu}:
            pair = bins(tuple(zip(strengths, counts, strict=True)), sum(counts))
            return [Losses([(pair, 1)], mu)]
        case {"type": "Exchanged", "curve": curve}:
            return [curves.Exchanged(one) for one in stated_curves(curve)]
        case {"type": "Grouped", "curve": curve, "size": size}:
            return [one.group(size) for one in stated_curves(curve)]
        case {"type": "BestOf", "curves": parts}:
            return [one for part in parts for one in stated_curves(part)]
        case {"type": "WorstOf", "curves": [_, *_] as parts}:  # each part has to be paid for
            return [curves.Best(x, max) for x in itertools.product(*map(stated_curves, parts))]
    return []


def is_paid(curve: Curve, square: float, failure: float) -> bool:
    """Whether delta(e) <= failure + (1 - failure) delta_mu(e) for every e >= 0, mu^2 = square: what
    a charge claims (docs/theorems/privacy-filters).

    Between two points the curve at the left one is compared with the Gaussian at the right one. A
    point (e_j, d_j) also bounds smaller e, where curves can be worse: d(e) <= d_j + (1 - e^(e -
    e_j)) (1 - d_j) / (1 + e^-e_j).
    """
    if isinstance(curve, curves.Best) and curve.choose is max:
        return all(is_paid(part, square, failure) for part in curve.curves)
    mu = math.sqrt(square) * (1 + 1e-12)
    if isinstance(curve, curves.Mixture) and curve.mu <= mu:
        return True
    top = curve.epsilon(failure) if failure > 0 and mu > 0 else math.inf
    if top == math.inf:
        return False
    points = np.linspace(0.0, top, POINTS)
    deltas = np.array([*curve.deltas(points)[:-1], failure])
    apart = -np.expm1(np.minimum(points[:, None] - points, 0.0))
    implied = deltas + apart * (1 - deltas) / (1 + np.exp(-points))
    least = np.minimum(1.0, np.where(points >= points[:, None], implied, 1.0).min(axis=1))
    gaussian = [-up(-curves.gaussian_delta(mu, e)) for e in points[1:].tolist()]
    return bool((least[:-1] <= failure + (1 - failure) * np.array(gaussian) + 1e-15).all())


def check_ledger(path: Path) -> Report:
    """The chain of events, the states that they give, every charge, and the sums below the
    budgets."""
    report, lines, budgets = Report(), {}, {}
    before, names = "lastiterate ledger, format 2", ", ".join((*LINE, "chain", "state"))
    try:
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
            rows = list(base.execute("SELECT number, event, chain FROM events ORDER BY number"))
            stored = base.execute(f"SELECT {names} FROM releases").fetchall()
    except sqlite3.Error as error:
        raise BadInput(f"{path.name}: is no ledger with a chain of events ({error})") from None
    for place, (number, text, tied) in enumerate(rows, 1):
        if number != place or chain(before, number, text) != tied:
            raise BadInput(f"event {place}: was changed, or events before it are missing")
        before, event = tied, parse(text, f"event {place}")
        fit(event, "ledger")
        kind, fields = event
        if kind == "dataset":
            budgets[fields["name"]] = parse(fields["filter"], "filter")
        elif kind == "line":
            lines[fields["token"]] = fields
        elif kind == "state":
            line = lines.get(fields["token"], {"state": "missing"})
            if fields["state"] not in FOLLOWS.get(line["state"], ()):
                raise BadInput(f"event {place}: a release that is {line['state']} cannot follow so")
            line["state"] = fields["state"]
    report.lines.append(f"chain: {len(rows)} entries of {len(lines)} releases, tied; head {before}")
    given = sorted(tuple(x[name] for name in names.split(", ")) for x in lines.values())
    if sorted(stored) != given:
        raise BadInput("releases: are not those that the events give")
    for row, before in zip(given, ["", *(row[8] for row in given)], strict=False):
        if chain(before, *row[:8]) != row[8]:
            raise BadInput(f"line {row[0]}: was changed, or lines before it are missing")
    for name, limit in budgets.items():
        charged = [x for x in lines.values() if x["dataset"] == name and x["state"] != "cancelled"]
        check_budget(report, name, limit, charged)
    return report


def check_budget(report: Report, name: str, limit: Body, charged: list[Body]) -> None:
    """Every charge to one budget, and their sum."""
    if limit["type"] != "GaussianFilter":
        report.say(NOT_COVERED, f"{name}: a budget of the kind {limit['type']}")
        return
    spent = [Fraction(0), Fraction(0)]
    for line in charged:
        costs = [x * unit for x, unit in zip(parse(line["costs"], "costs"), UNITS, strict=True)]
        spent = [a + b for a, b in zip(spent, costs, strict=True)]
        known = stated_curves(parse(line["curve"], "curve", math.inf))
        paid = any(is_paid(x, *map(float, costs)) for x in known)
        words = f"{name}, release {line['number']}: the charge covers its privacy curve"
        bounds = [f"epsilon {x.epsilon(1e-6):.6g} at delta 1e-06" for x in known if not paid]
        report.show(paid, words, f": not shown; known here: {', '.join(bounds) or 'no bound'}")
    square = Fraction(limit["mu"]) ** 2
    within = spent[0] <= square and spent[1] <= Fraction(limit["failure"])
    share = float(spent[0] / square)
    report.say(HOLDS if within else REFUTED, f"{name}: {share:.4g} of the budget is spent")
