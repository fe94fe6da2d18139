"""A certificate as it is stored: the entry of its subject, its hash, and the releaser's statement.

Nothing is derived here: who reads a model folder to predict needs no accounting.
"""

# what a file holds is checked here, not known
# pyright: basic

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lastiterate.errors import InputError
from lastiterate.run import serialization

ENTRIES = ("run", "exact_run", "selection", "unlearning", "problem")
"""Entries that describe what a certificate is about; it has one of them."""


def entry_of(stored: Mapping[str, Any]) -> str:
    """Return the entry that names the subject of a written certificate; refuse none or two."""
    entries = [entry for entry in ENTRIES if entry in stored]
    if len(entries) != 1:
        raise InputError(
            "certificate",
            "must be one that lastiterate wrote: about a run, or a posterior's problem",
            " and ".join(entries) or None,
        )
    return entries[0]


def content_hash(body: dict[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a certificate without its own hash."""
    kept = {key: value for key, value in body.items() if key != "content_sha256"}
    return hashlib.sha256(
        json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


# The releaser's statement: what a release document needs and no computation can derive.  It is
# stored in a certificate next to the derived fields, covered by its hash, and shown as a statement
# everywhere.


TEXTS = {
    "unit": "what a unit is, such as one patient",
    "purpose": "what the model is for",
    "trained_by": "who trained the model",
    "accuracy": "a score on public data",
    "contact": "who answers",
    "note": "anything else",
}
"""Entries that hold a text."""
LISTS = {
    "charged": "other releases and tunings that a budget paid for",
    "not_charged": "those that none paid for",
}
"""Entries that hold a list of texts."""
FACTS = ("fact", "source")
AUDIT = ("protocol", "fixed_on", "result", "settings")
SETTINGS: dict[str, type[str | int | float]] = {
    "attack": str,
    "trials": int,
    "failure": float,
    "delta": float,
    "seed": int,
}
"""Settings that fix an audit before training, so that it can be repeated and its report
compared."""
STATED = (*TEXTS, *LISTS, "public_facts", "audit")
"""All that a statement may hold."""
LONGEST = 64_000
"""Characters of JSON that a releaser's statement may have."""


def check_statement(statement: object) -> dict[str, Any]:
    """``statement`` itself, if it holds known entries of the right form; ``InputError`` otherwise.

    Those of ``TEXTS``: texts; ``public_facts``: objects with ``fact`` and ``source``; ``charged``,
    ``not_charged``: lists of texts; ``audit``: an object with ``protocol``, ``fixed_on`` (a day
    before training), ``result``, a text or what ``lastiterate audit --json`` wrote, and
    ``settings``, what is given to it: ``attack``, ``trials``, ``seed``, and perhaps ``failure`` and
    ``delta``.
    """
    if not isinstance(statement, dict):
        raise InputError("statement", "must be a table of entries", type(statement).__name__)
    extra = sorted(str(key) for key in set(statement) - set(STATED))
    if extra:
        raise InputError(
            "statement", "has an unknown entry", extra[0], "the entries are " + ", ".join(STATED)
        )
    for name in TEXTS:
        _text(name, statement.get(name, ""))
    for name in LISTS:
        for entry in _list(name, statement.get(name, [])):
            _text(name, entry)
    for entry in _list("public_facts", statement.get("public_facts", [])):
        _object("public_facts", entry, FACTS)
        for name in FACTS:
            _text(f"public_facts: {name}", entry.get(name))
    if "audit" in statement:
        _object("audit", statement["audit"], AUDIT)
        _text("audit: protocol", statement["audit"].get("protocol"))
        _text("audit: fixed_on", statement["audit"].get("fixed_on", ""))
        if not isinstance(statement["audit"].get("result", ""), str | dict):
            raise InputError(
                "audit: result", "must be a text, or what lastiterate audit --json wrote", None
            )
        if "settings" in statement["audit"]:
            _settings(statement["audit"]["settings"])
    try:
        size = len(json.dumps(statement, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InputError(
            "statement", "must hold what JSON can hold", None, "write dates as text"
        ) from None
    if size > LONGEST:
        raise InputError("statement", f"must be shorter than {LONGEST} characters of JSON", size)
    return statement


def read_statement(path: str | Path) -> dict[str, Any]:
    """A releaser's statement from a TOML or JSON file."""
    place = Path(path)
    if place.suffix.lower() == ".json":
        return check_statement(serialization.read(place, "statement"))
    return check_statement(serialization.read_toml(place, "statement", "write one as TOML or JSON"))


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InputError(f"statement: {name}", "must be a text", value)


def _settings(settings: Any) -> None:
    _object("audit: settings", settings, tuple(SETTINGS))
    for name, kind in SETTINGS.items():
        if name not in settings and name in ("attack", "trials", "seed"):
            raise InputError(
                f"statement: audit: settings: {name}", "is needed to repeat an audit", None
            )
        if name in settings and type(settings[name]) is not kind:
            raise InputError(
                f"statement: audit: settings: {name}",
                f"must be of type {kind.__name__}",
                settings[name],
            )


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"statement: {name}", "must be a list", value)
    return value


def _object(name: str, value: object, entries: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or not set(value) <= set(entries):
        raise InputError(f"statement: {name}", "must be a table of " + ", ".join(entries), value)
