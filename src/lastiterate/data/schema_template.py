"""Schemas to fill in: names and kinds of columns, with a "?" for every public fact that is still to
be stated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from lastiterate.data.cell_values import DECIMALS, ORDERS
from lastiterate.data.columns import day_number
from lastiterate.data.schema import NEEDS
from lastiterate.data.table import FormatFacts
from lastiterate.errors import InputError
from lastiterate.run.serialization import is_list, is_object

HEAD = """\
# Public facts about the table. Fill in every "?" from the meaning of the columns (a questionnaire, a
# sensor's range, a law), never from the data: a range measured on private data is not private.
# "outside" and "missing" hold for files to predict, too: after training, another choice is another model.
"""
OPEN = """\
# Only what a column's kind needs has to be filled in: low and high of a number, values of a category.
# lastiterate schema FILE --columns NAME:KIND,NAME:KIND,... writes no other entries.
"""
KINDS = tuple(NEEDS)
NUMBERS = ("number", "count")
TRUTH = "true/false"
"""What a file may state beyond these: a category whose two values are known."""
TRUTHS = '["False", "True"]'
Read = TypeVar("Read")
OUTSIDE = 'outside = "clip"     # or "refuse"'
OWN = '"indicator" for a feature of its own'
EMPTY: dict[str, tuple[str, ...]] = {
    "number": (
        'low = "?"',
        'high = "?"',
        OUTSIDE,
        f'missing = "refuse"   # or a public number to fill in, or {OWN}',
        'scale = "linear"   # or "log" where a few values are far larger than most',
    ),
    "count": (
        'high = "?"',
        OUTSIDE,
        f'missing = "refuse"   # or a public number to fill in, or {OWN}',
    ),
    "date": (
        'first = "?"   # such as "2000-01-01"',
        'last = "?"',
        OUTSIDE,
        f'missing = "refuse"   # or {OWN}',
    ),
    "category": (
        'values = ["?"]',
        'outside = "refuse"   # or "zero"',
        f'missing = "refuse"   # or "zero", or {OWN}',
    ),
    "text": (),
    "id": (),
    "ignore": (),
}
"""What is to be filled in for a column of each kind."""


def parse_columns(text: str) -> dict[str, str]:
    """``NAME:KIND,NAME:KIND`` (or only ``NAME``) as names and kinds, "?" where none is given."""
    kinds: dict[str, str] = {}
    for part in text.split(","):
        name, _, kind = part.strip().rpartition(":") if ":" in part else (part.strip(), "", "?")
        if not name or kind not in (*KINDS, "?"):
            raise InputError(
                "columns",
                "must be NAME:KIND,NAME:KIND,... with the kinds " + ", ".join(KINDS),
                part,
            )
        if name in kinds:
            raise InputError("columns", "must name every column once", name)
        kinds[name] = kind
    return kinds


def template(
    kinds: Mapping[str, str],
    *,
    header: bool | None = None,
    known: Mapping[str, Any] | None = None,
    ask: Callable[[str, Sequence[str]], str] | None = None,
    predicted: str | None = None,
    stated: Mapping[str, str] | None = None,
    decimal: str | None = None,
    dates: str | None = None,
) -> str:
    """TOML for columns of these kinds; nothing in it is measured on the data. ``predicted``: the
    target; otherwise that of ``known``, or the last column that is read. ``stated``: the kinds that
    a person states, and not the file. ``decimal``, ``dates``: how the file writes numbers and days.

    ``header``: what was said of the file's first row; without a header the schema holds the names
    in order. ``known``: entries of another schema, by column. ``ask(question, choices)``: answers
    of a person for what is not known.
    """
    names = list(kinds)
    if len(names) < 2:
        raise InputError("data file", "needs at least one feature and a target", ", ".join(names))
    known = dict(known or {})
    last = next(
        (name for name in reversed(names) if kinds[name] not in ("id", "ignore")), names[-1]
    )
    target = str(predicted or known.get("target", last))
    if target not in names:
        target = last
    if ask is not None and predicted is None:
        target = ask(f"Which column is predicted? [{target}]", names) or target
    columns = known.get("columns", {})
    unknown = ask is None and any(
        kinds[name] == "?" for name in names if name != target and name not in columns
    )
    lines = [
        HEAD + (OPEN if unknown else "") + f"target = {_text(target)}   # the column to predict",
        *_target(target, kinds[target], (stated or {}).get(target, "?"), known, ask),
    ]
    source = str(known.get("source", "?"))
    if ask is not None and source == "?":
        source = ask("Where do these facts come from?", ())
    lines.append(f"source = {_text(source)}      # where these facts come from")
    if header is not None:
        lines.append(
            'header = "yes"   # the first row of the file names its columns'
            if header
            else f"header = [{', '.join(map(_text, names))}]   # the file has no header"
        )
    for entry, given, allowed, what in (
        ("decimal", decimal, DECIMALS, "1.5"),
        ("dates", dates, tuple(ORDERS), "days"),
    ):
        value = str(given or known.get(entry, ""))
        if value and value not in allowed:
            raise InputError(entry, "must be one of " + " ".join(map(_text, allowed)), value)
        lines += [f"{entry} = {_text(value)}   # how the file writes {what}"] if value else []
    for name in names:
        if name != target:
            lines += [
                "",
                f"[columns.{_text(name)}]",
                *_entry(name, kinds[name], columns.get(name), ask),
            ]
    return "\n".join(lines) + "\n"


def _target(
    target: str,
    kind: str,
    stated: str,
    known: Mapping[str, Any],
    ask: Callable[[str, Sequence[str]], str] | None,
) -> list[str]:
    """The line that says what the target can be: classes, or the range of a number."""
    if stated not in ("?", "category", *NUMBERS):
        raise InputError(
            "columns",
            "must call the target a number, a count or a category",
            f"{target}:{stated}",
            "name another target=COLUMN, or give it one of these kinds",
        )
    if target == known.get("target"):
        values, ends = known.get("classes"), known.get("target_range")
    else:  # of a schema with another target, where this one is a column
        values, ends = _facts_of(known.get("columns", {}).get(target))
    if ends and stated != "category":
        return [f"target_range = {_value(list(ends))}"]
    if values and stated not in NUMBERS:
        return [f"classes = [{', '.join(_text(str(x)) for x in values)}]"]
    if kind == TRUTH:
        return [f"classes = {TRUTHS}"]
    if ask is not None:
        return [_ask_target(target, stated, ask)]
    if stated in NUMBERS:
        low = '"?"' if stated == "number" else "0"
        return [f'target_range = [{low}, "?"]   # the lowest and the highest value it can have']
    return [
        'classes = ["?"]   # every label it can have; for regression use target_range = [low, '
        "high] instead"
    ]


def _facts_of(entry: object) -> tuple[Any, Any]:
    """The categories of a column's entry in a schema, and the ends of its range; ``None`` where it
    has none."""
    if not is_object(entry):
        return None, None
    low = 0 if entry.get("kind") == "count" else entry.get("low")
    numeric = entry.get("kind") in NUMBERS and None not in (low, entry.get("high"))
    return entry.get("values"), [low, entry["high"]] if numeric else None


def _ask_target(target: str, stated: str, ask: Callable[[str, Sequence[str]], str]) -> str:
    """What a person says of the target: its classes, or its range."""
    as_range = f"{target}: its public range as LOW..HIGH"
    if stated in NUMBERS:
        return _answer(ask, as_range, _range)
    if stated == "category":
        return _answer(ask, f"{target}: every class it can have, separated by commas", _classes)
    said = _answer(
        ask,
        f"{target}: every class it can have, separated by commas, such as no, yes; or, of a "
        "number, its range, such as 0..1000",
        _classes_or_range,
    )
    return said or _answer(ask, as_range, _range)


def _entry(
    name: str, kind: str, known: object, ask: Callable[[str, Sequence[str]], str] | None
) -> list[str]:
    """The lines of one column."""
    if is_object(known):
        return [f"{key} = {_value(value)}" for key, value in known.items()]
    if kind == TRUTH:
        missing = (
            EMPTY["category"][-1]
            if ask is None
            else f"missing = {_ask_missing(name, ask, otherwise='zero')}"
        )
        return ['kind = "category"', f"values = {TRUTHS}", EMPTY["category"][1], missing]
    if ask is not None:
        kind = (
            ask(f"{name}: {', '.join(KINDS[:-1])} or {KINDS[-1]}?", KINDS) if kind == "?" else kind
        )
        return [f'kind = "{kind}"', *_ask_column(name, kind, ask)]
    if kind == "?":
        return [
            'kind = "?"   # ' + ", ".join(f'"{one}"' for one in KINDS),
            'low = "?"    # of a number; "outside" and "missing" say what else may stand there',
            'high = "?"   # of a number or a count',
            'values = ["?"]   # of a category',
            'first = "?"  # of a date, such as "2000-01-01"',
            'last = "?"',
        ]
    return [f'kind = "{kind}"', *EMPTY[kind]]


def _ask_column(name: str, kind: str, ask: Callable[[str, Sequence[str]], str]) -> list[str]:
    """What a person says of a column of this kind."""
    if kind in ("number", "date"):
        what, form = ("range", _number) if kind == "number" else ("first and last day", _day)
        low, high = _answer(
            ask, f"{name}: its public {what} as LOW..HIGH", lambda text: _ends(text, form)
        )
        ends = ("low", "high") if kind == "number" else ("first", "last")
        lines = [f"{ends[0]} = {low}", f"{ends[1]} = {high}", 'outside = "clip"']
        if kind == "number":
            tail = ask(
                f"{name}: are a few values far larger than most, as of incomes? [no]", ("yes", "no")
            )
            lines += ['scale = "log"'] if tail == "yes" else []
        return [*lines, f"missing = {_ask_missing(name, ask)}"]
    if kind == "count":
        return [
            f"high = {_answer(ask, f'{name}: the largest count that can be', _number)}",
            'outside = "clip"',
            f"missing = {_ask_missing(name, ask)}",
        ]
    if kind == "category":
        values = ask(f"{name}: every category it can have, separated by commas", ())
        listed = ", ".join(_text(part.strip()) for part in values.split(",") if part.strip())
        return [
            f"values = [{listed}]",
            'outside = "zero"',
            f"missing = {_ask_missing(name, ask, otherwise='zero')}",
        ]
    return []


def _ask_missing(
    name: str, ask: Callable[[str, Sequence[str]], str], otherwise: str = "refuse"
) -> str:
    """What becomes of a missing value."""
    question = (
        f"{name}: may it be missing? Then it becomes a feature of its own, whether it is. [no]"
    )
    return _text("indicator" if ask(question, ("yes", "no")) == "yes" else otherwise)


def _answer(
    ask: Callable[[str, Sequence[str]], str], question: str, read: Callable[[str], Read]
) -> Read:
    """What ``read`` makes of an answer; where it makes nothing of it, the same is asked again."""
    said = ""
    while True:
        try:
            return read(ask(said + question, ()))
        except InputError as error:
            said = f"{error} "


def _classes_or_range(answer: str) -> str:
    """The line of a schema; empty where the answer only says that the target is a number."""
    if answer.strip().lower() in ("number", "a number", "numbers", "range", "regression"):
        return ""
    return _range(answer) if ".." in answer else _classes(answer)


def _range(answer: str) -> str:
    return f"target_range = [{', '.join(_ends(answer, _number))}]"


def _classes(answer: str) -> str:
    listed = [_text(part.strip()) for part in answer.split(",") if part.strip()]
    if len(set(listed)) < max(2, len(listed)):
        raise InputError(
            "classes",
            "must be at least two different ones, separated by commas",
            answer,
            "a number has a range, LOW..HIGH",
        )
    return f"classes = [{', '.join(listed)}]"


def _ends(text: str, form: Callable[[str], str]) -> tuple[str, str]:
    if "..." in text:
        raise InputError("answer", "must be LOW..HIGH, with two points between them", text)
    low, high = (form(end) for end in text.partition("..")[::2])
    if json.loads(low) >= json.loads(high):
        raise InputError("answer", "must be two ends, the lower one first", text)
    return low, high


def _day(text: str) -> str:
    if day_number(text.strip()) is None:
        raise InputError("answer", "must be two days such as 2000-01-01..2026-12-31", text)
    return _text(text.strip())


def array_template(facts: FormatFacts | None) -> str:
    """TOML for one numeric array: what its format makes public is filled in."""
    low, high, why = ('"?"', '"?"', "?") if facts is None else (facts.low, facts.high, facts.why)
    classes = (
        ", ".join(f'"{label}"' for label in facts.classes)
        if facts is not None and facts.classes
        else '"?"'
    )
    return (
        '# Public facts about the array. Fill in every "?", never from the data.\n'
        f'target = "y"\nclasses = [{classes}]   # or target_range = [low, high]\nsource = '
        f'"{why}"\n\n'
        f'[array]\nlow = {low}\nhigh = {high}\noutside = "clip"   # or "refuse"; holds for files to predict too\n'
        + ("" if facts is None or facts.norm is None else f"norm = {facts.norm}\n")
    )


def _number(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError("answer", "must be a number; a range is two of them, LOW..HIGH", text)
    return repr(number)


def _value(value: object) -> str:
    if is_list(value):
        return f"[{', '.join(map(_value, value))}]"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
