"""The releaser's word: what a release document needs and no computation can derive.

It is stored in a certificate beside what is derived, covered by its hash, and shown as somebody's word everywhere.
"""

# pyright: basic
# what a file holds is checked here, not known
from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from lastiterate.errors import InputError
from lastiterate.run import strict_json

TEXTS = {
    "unit": "what a unit is, such as one patient", "purpose": "what the model is for", "contact": "who answers",
    "note": "anything else",
}
"""Entries that hold a text."""
LISTS = {"charged": "other releases and tunings that a budget paid for", "not_charged": "those that none paid for"}
"""Entries that hold a list of texts."""
FACTS = ("fact", "source")
AUDIT = ("protocol", "fixed_on", "result", "settings")
SETTINGS = {"attack": str, "trials": int, "failure": float, "delta": float, "seed": int}
"""What fixes an audit before training, so that it can be repeated and its report compared."""
LONGEST = 64_000
"""Characters of JSON that a releaser's word may have."""


def check_word(word: Any) -> dict[str, Any]:
    """``word`` itself, if it holds known entries of the right form; ``InputError`` otherwise.

    ``unit``, ``purpose``, ``contact``, ``note``: texts; ``public_facts``: objects with ``fact`` and ``source``;
    ``charged``, ``not_charged``: lists of texts; ``audit``: an object with ``protocol``, ``fixed_on`` (a day before
    training), ``result``, a text or what ``lastiterate audit --json`` wrote, and ``settings``, what is given to it:
    ``attack``, ``trials``, ``seed``, and perhaps ``failure`` and ``delta``.
    """
    if not isinstance(word, dict):
        raise InputError("word", "must be a table of entries", type(word).__name__)
    known = {*TEXTS, *LISTS, "public_facts", "audit"}
    extra = sorted(str(key) for key in set(word) - known)
    if extra:
        raise InputError("word", "has an unknown entry", extra[0], "the entries are " + ", ".join(sorted(known)))
    for name in TEXTS:
        _text(name, word.get(name, ""))
    for name in LISTS:
        for entry in _list(name, word.get(name, [])):
            _text(name, entry)
    for entry in _list("public_facts", word.get("public_facts", [])):
        _object("public_facts", entry, FACTS)
        for name in FACTS:
            _text(f"public_facts: {name}", entry.get(name))
    if "audit" in word:
        _object("audit", word["audit"], AUDIT)
        _text("audit: protocol", word["audit"].get("protocol"))
        _text("audit: fixed_on", word["audit"].get("fixed_on", ""))
        if not isinstance(word["audit"].get("result", ""), str | dict):
            raise InputError("audit: result", "must be a text, or what lastiterate audit --json wrote", None)
        if "settings" in word["audit"]:
            _settings(word["audit"]["settings"])
    try:
        size = len(json.dumps(word, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise InputError("word", "must hold what JSON can hold", None, "write dates as text") from None
    if size > LONGEST:
        raise InputError("word", f"must be shorter than {LONGEST} characters of JSON", size)
    return word


def read_word(path: str | Path) -> dict[str, Any]:
    """A releaser's word from a TOML or JSON file."""
    place = Path(path)
    if place.suffix.lower() == ".json":
        return check_word(strict_json.read(place, "word"))
    try:
        return check_word(tomllib.loads(place.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("word", "must be a TOML or JSON file", str(error)[:120]) from None


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f"word: {name}", "must be a text", value)


def _settings(settings: Any) -> None:
    _object("audit: settings", settings, tuple(SETTINGS))
    for name, kind in SETTINGS.items():
        if name not in settings and name in ("attack", "trials", "seed"):
            raise InputError(f"word: audit: settings: {name}", "is needed to repeat an audit", None)
        if name in settings and type(settings[name]) is not kind:
            raise InputError(f"word: audit: settings: {name}", f"must be of type {kind.__name__}", settings[name])


def _list(name: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"word: {name}", "must be a list", value)
    return value


def _object(name: str, value: Any, entries: tuple[str, ...]) -> None:
    if not isinstance(value, dict) or not set(value) <= set(entries):
        raise InputError(f"word: {name}", "must be a table of " + ", ".join(entries), value)
