"""The public facts about a table: columns, ranges, categories, classes. Never measured on private data."""

from __future__ import annotations

import math
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lastiterate.errors import InputError

MISSING = frozenset({"", "?", "na", "nan", "null", "none"})
"""Cells (lower case, stripped) that count as missing."""


@dataclass(frozen=True)
class Numeric:
    """A number with a public range; scaled to [-1, 1]. ``missing``: "refuse", or the number to put in its place."""

    name: str
    low: float
    high: float
    outside: str = "clip"
    missing: str | float = "refuse"

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        for side in ("low", "high"):
            value = getattr(self, side)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InputError(f"{where}: {side}", "must be a finite number", value,
                                 "state the public range, from the meaning of the column and not from your data")
        if not self.low < self.high:
            raise InputError(f"{where}: low", "must lie below high", (self.low, self.high),
                             "leave a column that is constant by definition out with kind = \"ignore\"")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise InputError(f"{where}: low", "must lie a finite distance below high", (self.low, self.high))
        if self.outside not in ("clip", "refuse"):
            raise InputError(f"{where}: outside", "must be \"clip\" or \"refuse\"", self.outside)
        good = isinstance(self.missing, int | float) and math.isfinite(self.missing)
        if self.missing != "refuse" and not good:
            raise InputError(f"{where}: missing", "must be \"refuse\" or a public number to fill in", self.missing)


@dataclass(frozen=True)
class Category:
    """One of some public values; one column each. "zero" leaves unknown or missing cells without a one."""

    name: str
    values: tuple[str, ...]
    outside: str = "refuse"
    missing: str = "refuse"

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        if not self.values or len(set(self.values)) != len(self.values):
            raise InputError(f"{where}: values", "must be a list of different public categories", list(self.values),
                             "state every category the column can have")
        for rule in ("outside", "missing"):
            if getattr(self, rule) not in ("zero", "refuse"):
                raise InputError(f"{where}: {rule}", "must be \"zero\" or \"refuse\"", getattr(self, rule))


@dataclass(frozen=True)
class Ignore:
    """A column that is not used."""

    name: str


@dataclass(frozen=True)
class Array:
    """All columns of a numeric array share one public range."""

    low: float
    high: float
    outside: str = "clip"

    def __post_init__(self) -> None:
        Numeric("(all columns of the array)", self.low, self.high, self.outside)


Column = Numeric | Category | Ignore


@dataclass(frozen=True)
class Schema:
    """Public facts about a table. ``classes`` for classification, ``target_range`` for regression."""

    columns: tuple[Column, ...] = ()
    target: str = "y"
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    array: Array | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if bool(self.classes) == (self.target_range is not None):
            raise InputError("schema", "needs either classes (classification) or target_range (regression)", None,
                             f"state which values {self.target!r} can have")
        if self.classes and (len(self.classes) < 2 or len(set(self.classes)) != len(self.classes)):
            raise InputError("classes", "must list at least two different public labels", list(self.classes))
        if self.target_range is not None:
            Numeric(f"target {self.target}", *self.target_range)
        if not self.columns and self.array is None:
            raise InputError("schema", "describes no columns", None, "add a [columns.NAME] table for every column")
        names = [column.name for column in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1} | ({self.target} & set(names)))
        if twice:
            raise InputError("schema", "describes a column twice", twice[0], "keep one entry")

    @property
    def regression(self) -> bool:
        """Whether the target is a number with a public range, and not a class."""
        return self.target_range is not None

    @classmethod
    def read(cls, path: str | Path) -> Schema:
        """Read a TOML schema; a placeholder that was not filled in is refused by the name of its column."""
        try:
            data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError("schema", "must be an existing file", str(path)) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError("schema", "must be valid TOML", str(error), "lastiterate schema writes one") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Schema:
        """The schema that ``to_dict`` or a TOML file describes."""
        known = {"columns", "target", "classes", "target_range", "array", "source"}
        extra = sorted(set(data) - known)
        if extra:
            raise InputError("schema", "has an unknown entry", extra[0], "the entries are " + ", ".join(sorted(known)))
        columns = tuple(_column(name, entry) for name, entry in data.get("columns", {}).items())
        bounds = data.get("target_range")
        if bounds is not None and len(bounds) != 2:
            raise InputError("target_range", "must be [low, high]", bounds)
        try:
            array = Array(**data["array"]) if data.get("array") else None
        except TypeError:
            raise InputError("[array]", "takes low, high and outside", sorted(data["array"])) from None
        return cls(columns, str(data.get("target", "y")), tuple(map(str, data.get("classes", ()))),
                   None if bounds is None else (bounds[0], bounds[1]), array, str(data.get("source", "")))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        kinds = {Numeric: "number", Category: "category", Ignore: "ignore"}
        body: dict[str, Any] = {"target": self.target, "source": self.source, "columns": {
            column.name: {"kind": kinds[type(column)]} | {k: v for k, v in asdict(column).items() if k != "name"}
            for column in self.columns
        }}
        if self.classes:
            body["classes"] = list(self.classes)
        if self.target_range is not None:
            body["target_range"] = list(self.target_range)
        if self.array is not None:
            body["array"] = asdict(self.array)
        return body


def _column(name: str, entry: Any) -> Column:
    where = f"column {name!r}"
    if not isinstance(entry, dict):
        raise InputError(where, "must be a table such as { kind = \"number\", low = 0, high = 1 }", entry)
    kind, rest = entry.get("kind"), {key: value for key, value in entry.items() if key != "kind"}
    needs = {"number": ("low", "high"), "category": ("values",), "ignore": ()}
    if kind not in needs:
        raise InputError(f"{where}: kind", "must be \"number\", \"category\" or \"ignore\"", kind)
    for item in needs[kind]:
        if item not in rest or rest[item] in ("?", [], ["?"]):
            raise InputError(f"{where}: {item}", "is a public fact that the schema must state", rest.get(item),
                             "fill it in from the meaning of the column, not from your data")
    try:
        if kind == "number":
            return Numeric(name, **rest)
        if kind == "category":
            return Category(name, tuple(map(str, rest.pop("values"))), **rest)
        return Ignore(name)
    except TypeError as error:
        raise InputError(where, "has an entry that does not exist", str(error).rsplit(" ", 1)[-1]) from None


def empty_schema(columns: list[str], numeric: list[bool]) -> str:
    """TOML to fill in for a table with these columns; it holds names and kinds, and nothing measured on the data."""
    lines = [
        "# Public facts about the table. Fill in every \"?\" from the meaning of the columns (a questionnaire, a",
        "# sensor's range, a law), never from the data: a range measured on private data is not private.",
        f"target = {_quote(columns[-1])}   # the column to predict",
        "classes = [\"?\"]   # every label it can have; for regression use target_range = [low, high] instead",
        "source = \"?\"      # where these facts come from",
    ]
    for name, number in zip(columns[:-1], numeric[:-1], strict=True):
        lines += ["", f"[columns.{_quote(name)}]"]
        if number:
            lines += ["kind = \"number\"", "low = \"?\"", "high = \"?\"", "outside = \"clip\"     # or \"refuse\"",
                      "missing = \"refuse\"   # or a public number to fill in"]
        else:
            lines += ["kind = \"category\"   # or \"ignore\"", "values = [\"?\"]",
                      "outside = \"refuse\"   # or \"zero\"", "missing = \"refuse\"   # or \"zero\""]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"") + "\""


def public_row_norm(schema: Schema, features: int) -> float:
    """The largest norm a row can have: each number lies in [-1, 1], each category has at most one 1."""
    counted = sum(isinstance(column, Numeric | Category) for column in schema.columns)
    return math.sqrt(features if schema.array is not None else counted)
