"""The reference pages hold every public name and every command; the glossary has the words that
descriptions use."""

import dataclasses
import functools
import inspect
import json
import re
import types
from pathlib import Path
from typing import get_args

import pytest

import lastiterate as li
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.run import Run
from support import load_script

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


GENERATOR = load_script(ROOT / "docs" / "generate_api.py")
PUBLIC = GENERATOR.public_names()


def test_every_public_name_is_in_the_reference():
    written = "\n".join(GENERATOR.pages().values())
    shown = set(re.findall(r"^::: ([\w.]+)$", written, re.MULTILINE))
    assert {f"lastiterate.{name}" for name in li.__all__} <= set(PUBLIC) | {
        f"lastiterate.{name}"
        for name in (
            "audit",
            "bayes",
            "curves",
            "data",
            "distributed",
            "domains",
            "errors",
            "estimators",
            "ledger",
            "penalties",
            "torch",
        )
    }
    assert {GENERATOR.home(name, value) for name, value in PUBLIC.items()} == shown
    assert (
        "li.Run" in written
        and "lastiterate.domains.Ball" in written
        and "lastiterate.audit.audit" in written
    )


def test_a_name_that_no_page_takes_is_an_error():
    with pytest.raises(ValueError, match=r"no reference page takes lastiterate\.elsewhere\.Thing"):
        GENERATOR.page_of("lastiterate.elsewhere.Thing")


def keys_and_types(value):
    """Keys of a JSON value and of all in it, and the types that objects name."""
    if isinstance(value, list):
        for entry in value:
            yield from keys_and_types(entry)
    if isinstance(value, dict):
        for key, entry in value.items():
            yield key
            if key == "type" and isinstance(entry, str):
                yield entry
            if key not in ("software", "sha256"):
                yield from keys_and_types(entry)


def test_every_key_of_a_written_certificate_is_on_the_page_of_its_format():
    page = (ROOT / "docs" / "reference" / "certificate-format.md").read_text(encoding="utf-8")
    told = set(re.findall(r"[A-Za-z_0-9]+", page))
    written = set[str]()
    for folder in ("tests/golden/certificates", "checker/corpus/certificates"):
        for path in (ROOT / folder).glob("*.json"):
            written |= set(keys_and_types(json.loads(path.read_text(encoding="utf-8"))))
    assert len(written) > 100 and written - told == set()
    schema = ROOT / "src" / "lastiterate" / "accounting" / "certificate.schema.json"
    known = json.loads(schema.read_text(encoding="utf-8"))["properties"]
    assert {*known, *known["stated"]["properties"]} - told == set()


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_is_described(name):
    value = PUBLIC[name]
    if not (isinstance(value, type) or callable(value)):
        return  # a constant: its text stands below it in its module
    text = (value.__doc__ or "").strip()
    assert text and not text.startswith(f"{value.__name__}("), (
        "a docstring of its own, not the one of dataclasses"
    )
    if isinstance(value, type):
        kinds = (property, functools.cached_property, classmethod, staticmethod, types.FunctionType)
        own = [
            key
            for key, member in vars(value).items()
            if not key.startswith("_") and isinstance(member, kinds)
        ]
        bare = [key for key in own if not (inspect.getdoc(getattr(value, key)) or "").strip()]
        assert not bare, f"public methods say what they answer: {bare}"


def test_the_command_line_is_in_the_reference():
    text = GENERATOR.command_line()
    for command in (
        "train",
        "account",
        "calibrate",
        "audit",
        "verify",
        "schema",
        "predict",
        "theorems",
        "ledger make",
    ):
        assert f"## lastiterate {command}\n" in text
    assert re.search(r"^\| `--epsilon` \| float \| required \| \w.* \|$", text, re.MULTILINE)
    assert re.search(r"^\| `--delta` \| \w+ \| `auto` \|", text, re.MULTILINE)


def test_error_messages_are_in_the_reference():
    rows = GENERATOR.read_errors()
    assert all(rows.values()), "every folder raises errors"
    assert sum(map(len, rows.values())) > 500
    text = GENERATOR.error_messages()
    assert all(f"## {title}\n" in text for title in GENERATOR.ROOMS.values())


def test_exit_codes_and_variables_are_in_the_reference():
    page = (ROOT / "docs" / "reference" / "environment.md").read_text(encoding="utf-8")
    sources = [file.read_text("utf-8") for file in (ROOT / "src" / "lastiterate").rglob("*.py")]
    used = set(re.findall(r"LASTITERATE_[A-Z_]+", "\n".join(sources)))
    assert used == set(re.findall(r"LASTITERATE_[A-Z_]+", page))
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)] == [
        *(0, 1, 2, 130, 141)
    ]


def test_troubleshooting_quotes_messages_that_exist():
    page = (ROOT / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    sources = [file.read_text("utf-8") for file in (ROOT / "src" / "lastiterate").rglob("*.py")]
    text = " ".join("\n".join(sources).replace('"\n', " ").split())
    quoted = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    pieces = [piece.strip(" ,") for line in quoted for piece in line.split("...")]
    assert len(quoted) > 20
    assert not [piece for piece in pieces if piece and piece not in text]


def test_the_glossary_has_the_words_of_descriptions():
    modules = (
        "batching",
        "correlated_noise",
        "counts",
        "noise",
        "preparation",
        "probability_calibration",
        "starts",
        "step_sizes",
    )
    classes = [
        name
        for name in li.__all__
        if getattr(getattr(li, name), "__module__", "").startswith(
            tuple(f"lastiterate.run.{module}" for module in modules)
        )
    ]
    curves = [name for name in li.curves.__all__ if name in ("Gdp", "Rdp", "Pld")]
    missing = [
        name
        for name in [*classes, *curves, *(each.name for each in li.Evidence)]
        if f"`{name}" not in GLOSSARY
    ]
    assert not missing, missing
    for value in get_args(Adjacency):
        assert f'`"{value}"`' in GLOSSARY, value
    words = {
        "n",
        "step_size",
        "noise",
        "batching",
        "domain",
        "prox",
        "start",
        "clip",
        "optimizer",
        "method",
        "preprocessing",
        "release",
        "adjacency",
        "loss",
        "steps",
        "rows_per_unit",
        "rows_per_record",
        "counts",
        "probability_calibration",
        "augmentation",
    }
    assert {field.name for field in dataclasses.fields(Run)} <= words, (
        "a new field of Run needs a word in the glossary"
    )
    for word in words - {"n", "noise", "batching", "loss", "steps"}:
        assert re.search(rf"`(Run\()?{word}", GLOSSARY), word


def test_every_term_stands_once():
    terms = re.findall(r"^\| ([^|]+?) \|", GLOSSARY, re.MULTILINE)
    terms = [term for term in terms if term not in ("term", "---")]
    assert len(terms) == len(set(terms)) > 60


def test_code_names_in_the_glossary_exist():
    """Names written as ``Name(...)`` or ``li.name`` are this library's, or stand in the column of
    other libraries."""
    ours = [row.rsplit("|", 2)[0] for row in GLOSSARY.splitlines() if row.startswith("| ")]
    known = set(PUBLIC) | {f"lastiterate.{name}" for name in li.__all__}
    short = {name.rsplit(".", 1)[1] for name in known}
    for row in ours:
        for name in re.findall(r"`([A-Z][A-Za-z]+)\(", row):
            assert name in short, name


def test_the_navigation_has_every_page_once_and_nothing_else():
    pages = re.findall(
        r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(pages) == sorted(
        str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")
    )
