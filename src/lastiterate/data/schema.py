"""Schemas: the public facts about a table, read from TOML or JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import UnionType
from typing import Any, cast

import numpy as np

from lastiterate.data.cell_values import DECIMALS, ORDERS
from lastiterate.data.columns import (
    UNKNOWN,
    Array,
    Category,
    Column,
    Date,
    Id,
    Ignore,
    Numeric,
    Words,
    to_texts,
)
from lastiterate.errors import InputError
from lastiterate.features.column_maps import RecordMap, RowForm
from lastiterate.features.map_registry import check_maps, maps_from, names_in, to_data
from lastiterate.lazy import RenamedAttribute
from lastiterate.run import serialization
from lastiterate.run.serialization import is_list, is_object
from lastiterate.run.validation import check_choice

# Entries of a schema as TOML or JSON holds them: checked, complete, and read into columns.

ENTRIES: dict[str, tuple[type | UnionType, str]] = {
    "columns": (dict, "tables such as [columns.age]"),
    "target": (str, "the name of a column"),
    "classes": (list, "a list of labels"),
    "target_range": (list, "[low, high]"),
    "array": (dict, "a table with low and high"),
    "source": (str, "text"),
    "decimal": (str, '"." or ","'),
    "dates": (str, "the order of day, month and year"),
    "header": (list | str, 'a list of names, or "yes"'),  # pyright: ignore
    "features": (str | list, "the name of a map, or a list of maps"),  # pyright: ignore
}


NEEDS = {
    "number": ("low", "high"),
    "count": ("high",),
    "date": ("first", "last"),
    "category": ("values",),
    "text": (),
    "id": (),
    "ignore": (),
}
"""The kinds of columns, and what each has to state."""
UNFILLED: tuple[object, ...] = (UNKNOWN, [], [UNKNOWN])
LISTED = ("classes", "target_range")
"""Lists in whose place a question mark may stand while they are not filled in."""


def check_entries(data: object, *, partly: bool = False) -> None:
    """Refuse what is no schema: entries that do not exist or have another type, and all that is not
    filled in.

    ``partly``: lists with a question mark in them, too, as in a file that somebody fills in; models
    that were trained before this was refused may have a category of that name.
    """
    if not isinstance(data, dict):
        raise InputError("schema", "must be a table of entries", type(data).__name__)
    given = cast("dict[str, Any]", data)
    extra = sorted(set(given) - set(ENTRIES))
    if extra:
        raise InputError(
            "schema",
            "has an unknown entry",
            extra[0],
            "the entries are " + ", ".join(sorted(ENTRIES)),
        )
    for name, value in given.items():
        kind, meaning = ENTRIES[name]
        if not isinstance(value, kind) and (value != UNKNOWN or name not in LISTED):
            raise InputError(
                f"schema: {name}", f"must be {meaning}", value
            )  # not of the flag of the same name
    missing = [
        name for name in ("target", "classes", "target_range") if _asks(given.get(name), partly)
    ]
    for name, entry in given.get("columns", {}).items():
        _check_names(name, entry)
        missing += [f"{name}: {item}" for item in _list_unfilled(entry, partly)]
    listed = any(
        is_object(entry)
        and is_list(values := entry.get("values"))
        and len(values) > 1
        and UNKNOWN in values
        for entry in given.get("columns", {}).values()
    )
    array: dict[str, Any] = given.get("array") or {}
    missing += [
        f"[array]: {item}" for item, value in array.items() if value == [] or _asks(value, partly)
    ]
    if missing:
        raise InputError(
            "schema",
            "leaves public facts open",
            "; ".join(missing),
            "fill each in from the meaning of the column, not from your data"
            + '; cells "?" get a place of their own by missing = "indicator"' * listed,
        )
    bounds = given.get("target_range")
    if bounds is not None and (len(bounds) != 2 or not all(_is_number(bound) for bound in bounds)):
        raise InputError("target_range", "must be [low, high], two numbers", bounds)
    header = given.get("header", ())
    if isinstance(header, str) and header != "yes":
        raise InputError(
            "schema: header", 'must be "yes", or a list of names for files without one', header
        )
    if not all(isinstance(name, str) for name in header):
        raise InputError("header", "must be a list of names", header)
    if not all(isinstance(label, str | int | float) for label in given.get("classes", ())):
        raise InputError("schema: classes", "must be a list of labels", given["classes"])


def _to_plain(given: object) -> Any:
    """Entries as TOML has them: lists of arrays, series and tuples, and Python's own scalars."""
    value = cast(Any, given)
    if isinstance(given, dict):
        return {name: _to_plain(entry) for name, entry in value.items()}
    if isinstance(given, np.datetime64):
        return str(value)[:10]
    if isinstance(given, np.floating):  # 0.1 of any precision is 0.1
        return float(str(value))
    if isinstance(given, np.generic):
        return value.item()
    if isinstance(given, list | tuple) or (hasattr(given, "tolist") and np.ndim(value) == 1):
        return [_to_plain(entry) for entry in value]
    return value.tolist() if isinstance(given, np.ndarray) else given


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_names(name: str, entry: object) -> None:
    """Refuse an entry of a column that no kind has, before what a misspelt one leaves open."""
    kind = entry.get("kind") if is_object(entry) else None
    if not is_object(entry) or not isinstance(kind, str) or kind not in NEEDS:
        return
    known = {"kind", *(item for needed in NEEDS.values() for item in needed)}
    known |= {
        item.name for kind in (Numeric, Category, Date, Words, Id, Ignore) for item in fields(kind)
    } - {"name"}
    for item in entry:
        if item not in known:
            raise InputError(
                f"column {name!r}",
                f"has an entry that columns of kind {kind!r} have not",
                item,
                f"entries of kind {kind!r}: " + ", ".join(_entries_of(kind) or ("kind alone",)),
            )


def _entries_of(kind: str) -> tuple[str, ...]:
    """The entries that a column of a kind may have, besides the kind itself."""
    made = MAKE["number" if kind == "count" else kind] if kind != "category" else Category
    names = [item.name for item in fields(cast(type, made)) if item.name != "name"]
    return tuple(name for name in names if (kind, name) != ("count", "low"))


def _list_unfilled(entry: object, partly: bool) -> list[str]:
    """What a column's entry still has to state."""
    if not is_object(entry):
        return []
    kind = entry.get("kind", UNKNOWN)
    if kind == UNKNOWN:
        return ["kind"]
    if not isinstance(kind, str):
        return []
    return [
        item
        for item in NEEDS.get(kind, ())
        if entry.get(item, []) == [] or _asks(entry[item], partly)
    ]


def _asks(value: object, partly: bool) -> bool:
    """Return whether it is a question mark, or with ``partly`` holds one."""
    return value in (UNKNOWN, [UNKNOWN]) or (
        partly and isinstance(value, list | tuple) and UNKNOWN in value
    )


def column_from(name: str, entry: object) -> Column:
    where = f"column {name!r}"
    if not is_object(entry):
        raise InputError(
            where, 'must be a table such as { kind = "number", low = 0, high = 1 }', entry
        )
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in NEEDS:
        raise InputError(f"{where}: kind", "must be one of " + ", ".join(NEEDS), kind)
    # what an empty schema offers to the other kinds may stand there unfilled
    others = {item for needed in NEEDS.values() for item in needed} - set(NEEDS[kind])
    rest: dict[str, Any] = {
        key: value
        for key, value in entry.items()
        if key != "kind" and not (key in others and value in UNFILLED)
    }
    try:
        if kind == "category":
            listed: Any = rest["values"]
            if not isinstance(listed, list | tuple) or not all(
                isinstance(value, str | int | float) for value in cast("list[object]", listed)
            ):
                raise InputError(f"{where}: values", "must be a list of categories", rest["values"])
            return Category(name, tuple(rest.pop("values")), **rest)
        return MAKE[kind](name, **rest)
    except TypeError as error:
        raise InputError(
            where,
            f"has an entry that columns of kind {kind!r} have not",
            str(error).rsplit(" ", 1)[-1].strip("'"),
            "`lastiterate schema` writes the entries of every kind",
        ) from None


def _count(name: str, high: float, **rest: Any) -> Numeric:
    """A number from 0 on that may be large: its logarithm is what counts."""
    return Numeric(name, 0, high, **({"scale": "log"} | rest))


MAKE: dict[str, Callable[..., Column]] = {
    "number": Numeric,
    "count": _count,
    "date": Date,
    "text": Words,
    "id": Id,
    "ignore": Ignore,
}
"""What makes a column of an entry, by its kind; a count is a number."""


def to_entry(column: Column) -> dict[str, Any]:
    """What ``column_from`` reads, without the name; a linear scale is not written, as before there
    was another."""
    entry = {
        item.name: getattr(column, item.name) for item in fields(column) if item.name != "name"
    }
    return {key: value for key, value in entry.items() if (key, value) != ("scale", "linear")}


# The public facts about a table: columns, ranges, categories, classes. Never measured on private
# data.


def check_classes(argument: str, classes: tuple[str, ...]) -> None:
    """Refuse what is no list of classes; ``argument``: what lists them."""
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise InputError(argument, "must list at least two different public labels", list(classes))


@dataclass(frozen=True)
class Schema:
    """Public facts about a table. ``classes`` for classification, ``target_range`` for regression.

    ``header``: the names of all columns, in order, of a file that has no header. ``headed``:
    whether the first row of a file is said to be a header, ``header = "yes"`` in TOML.
    ``features``: the public maps that make rows of records, each the first one for the fields that
    it speaks of; without one, numbers are scaled to [-1, 1] and every category becomes a 0 or a 1.
    ``decimal``: what files write before the fraction of a number; ``dates``: how they write days.
    ``unsized``: those that were given by name alone; a fit makes them as large as its records and
    budget carry.
    """

    columns: tuple[Column, ...] = ()
    target: str = "y"
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    array: Array | None = None
    source: str = ""
    header: tuple[str, ...] = ()
    features: tuple[RecordMap, ...] = ()
    unsized: tuple[str, ...] = field(default=(), compare=False)
    headed: bool | None = field(default=None, compare=False)
    decimal: str = "."
    dates: str = "year-month-day"

    def __post_init__(self) -> None:
        check_maps(self.features)
        object.__setattr__(self, "classes", to_texts("schema: classes", self.classes))
        if bool(self.classes) == (self.target_range is not None):
            raise InputError(
                "schema",
                "needs either classes (classification) or target_range (regression)",
                None,
                f"state which values {self.target!r} can have",
            )
        if self.decimal not in DECIMALS:
            raise InputError("schema: decimal", 'must be "." or ","', self.decimal)
        check_choice("schema: dates", self.dates, ORDERS)
        if self.classes:
            check_classes("schema: classes", self.classes)
        if self.target_range is not None:
            Numeric(f"target {self.target}", *self.target_range)
        if not self.columns and self.array is None:
            raise InputError(
                "schema",
                "describes no columns",
                None,
                "add a [columns.NAME] table for every column",
            )
        names = [column.name for column in self.columns]
        counts = Counter(names)
        twice = sorted(
            {name for name, many in counts.items() if many > 1} | ({self.target} & set(names))
        )
        if twice:
            raise InputError(
                "schema",
                "describes a column twice",
                twice[0],
                "keep one entry; the target is described by classes or target_range",
            )
        described = self.described
        strange = [name for name in self.header if name not in described]
        if len(set(self.header)) != len(self.header) or strange:
            raise InputError(
                "header",
                "must name every column once, each described or the target",
                strange[0] if strange else None,
            )

    def __getstate__(self) -> dict[str, Any]:
        """The state of pickles and skops files: its description, and no objects."""
        return {"described": self.to_dict(), "unsized": self.unsized}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Schema.from_dict(state["described"])))
        vars(self)["unsized"] = tuple(state["unsized"])

    def __repr__(self) -> str:
        what = (
            f"{len(self.columns)} columns"
            if self.array is None
            else f"arrays, {self.array.low:g} to {self.array.high:g}"
        )
        answers = (
            f"{len(self.classes)} classes"
            if self.target_range is None
            else f"{self.target_range[0]:g} to {self.target_range[1]:g}"
        )
        return f"<Schema of {what}, target {self.target!r}: {answers}>"

    def form(self, shape: tuple[int, ...] | None = None) -> RowForm:
        """How records become rows. ``shape``: of one record of an array, which says so itself.

        Errors: a map that has nothing to map.
        """
        known = None if self.array is None else self.array.shape
        if known is not None and shape is not None and math.prod(known) != math.prod(shape):
            raise InputError(
                "data file",
                f"must have {math.prod(known)} features, as the schema's arrays have",
                math.prod(shape),
            )
        fields = (
            (self.array.field(shape or (1,)),)
            if self.array is not None
            else tuple(field for column in self.columns for field in column.fields)
        )
        return RowForm(fields, self.features)

    shaped = RenamedAttribute("with_shape")
    stating = RenamedAttribute("with_header")
    predicting = RenamedAttribute("with_target")

    def with_shape(self, shape: tuple[int, ...] | None) -> Schema:
        """The same schema with the shape of one record of its arrays, where it has maps, which may
        depend on it."""
        if self.array is None or not self.features or shape is None or self.array.shape is not None:
            return self
        return replace(self, array=replace(self.array, shape=shape))

    @property
    def described(self) -> frozenset[str]:
        """Names of the columns that it speaks of, the target among them."""
        return frozenset((*(column.name for column in self.columns), self.target))

    @property
    def numbers(self) -> frozenset[str]:
        """Names of the columns of which only the numbers count, the target of a regression among
        them."""
        names = (column.name for column in self.columns if isinstance(column, Numeric))
        return frozenset((*names, self.target) if self.regression else names)

    @property
    def unread(self) -> frozenset[str]:
        """Names of the columns that are not used, whatever they hold."""
        return frozenset(column.name for column in self.columns if isinstance(column, Ignore))

    @property
    def regression(self) -> bool:
        """Whether the target is a number with a public range, and not a class."""
        return self.target_range is not None

    @classmethod
    def read(cls, path: str | Path, classes: tuple[str, ...] = ()) -> Schema:
        """Read a TOML schema; everything that was not filled in is listed at once. ``classes``:
        instead of its own."""
        data = serialization.read_toml(Path(path), "schema", "lastiterate schema writes one")
        data = (
            data
            if not classes
            else {name: entry for name, entry in data.items() if name != "target_range"}
            | {"classes": list(classes)}
        )
        check_entries(data, partly=True)
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> Schema:
        """The schema that ``to_dict`` or a TOML file describes; values may be NumPy's or pandas'."""
        data = _to_plain(data)
        check_entries(data)
        columns = tuple(column_from(name, entry) for name, entry in data.get("columns", {}).items())
        bounds = data.get("target_range")
        try:
            array = Array(**data["array"]) if data.get("array") else None
        except TypeError:
            raise InputError(
                "[array]", "takes low, high, outside, shape and norm", sorted(data["array"])
            ) from None
        maps, headed = data.get("features", ()), data.get("header") == "yes"
        return cls(
            columns,
            data.get("target", "y"),
            data.get("classes", ()),
            None if bounds is None else (bounds[0], bounds[1]),
            array,
            data.get("source", ""),
            () if headed else tuple(data.get("header", ())),
            maps_from(maps),
            names_in(maps),
            headed or None,
            data.get("decimal", "."),
            data.get("dates", "year-month-day"),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        body: dict[str, Any] = {
            "target": self.target,
            "source": self.source,
            "columns": {
                column.name: {"kind": column.kind} | to_entry(column) for column in self.columns
            },
        }
        if self.classes:
            body["classes"] = list(self.classes)
        if self.target_range is not None:
            body["target_range"] = list(self.target_range)
        if self.array is not None:
            body["array"] = {
                key: value for key, value in asdict(self.array).items() if value is not None
            }
        if self.header or self.headed:
            body["header"] = list(self.header) if self.header else "yes"
        if self.features:
            body["features"] = to_data(self.features)
        if self.decimal != ".":
            body["decimal"] = self.decimal
        if ORDERS[self.dates]:
            body["dates"] = self.dates
        return body

    def with_header(self, header: bool | None) -> Schema:
        """Return the schema of files whose first row is a header, or is none, as somebody says;
        ``None``: unchanged."""
        if header is False and not self.header:
            raise InputError(
                "header",
                "must be the names of the columns, in order, where a file has none",
                None,
                "write header = [NAME, NAME, ...] into the schema",
            )
        return (
            self
            if header is None
            else replace(self, headed=header, header=() if header else self.header)
        )

    def with_target(self, target: str) -> Schema:
        """The same table with another column to predict: what was said of it becomes its classes or
        its range, and the former target is left out."""
        if target == self.target:
            return self
        answer = next((column for column in self.columns if column.name == target), None)
        if answer is not None and not isinstance(answer, Numeric | Category):
            raise InputError(
                "target",
                f"must be a column that can be predicted, and {target} is of kind {answer.kind}",
                None,
                'in the schema give it kind = "number" with its public low and high, or '
                'kind = "category" with its values',
            )
        if not isinstance(answer, Numeric | Category):
            raise InputError(
                "target",
                "must be a column that the schema describes",
                target,
                "add it to the schema, or name one of "
                + ", ".join(c.name for c in self.columns if isinstance(c, Numeric | Category)),
            )
        others = (*(column for column in self.columns if column is not answer), Ignore(self.target))
        if isinstance(answer, Numeric):
            _check_numeric_target(answer)
            return replace(
                self,
                columns=others,
                target=target,
                classes=(),
                target_range=(answer.low, answer.high),
            )
        return replace(
            self, columns=others, target=target, classes=answer.values, target_range=None
        )


def _check_numeric_target(column: Numeric) -> None:
    """Refuse entries of a column that say nothing of a target, which is learned as the file has it
    and clipped to its range."""
    where, entry = f"target {column.name!r}", f"in [columns.{column.name}]"
    if column.scale == "log":
        raise InputError(
            where,
            f'cannot be learned on the scale of its column, scale = "log" {entry} (a count has it '
            "unless it says another)",
            None,
            f'write scale = "linear" there to learn the numbers as they are. To learn logarithms, '
            f"add a column with them to the file, such as log_{column.name} with low and high their "
            "logarithms, and name it as the target; its predictions are logarithms. In Python an "
            "estimator within TransformedTargetRegressor(..., func=numpy.log, "
            "inverse_func=numpy.exp) predicts the numbers themselves",
        )
    if column.outside != "clip":
        raise InputError(
            where,
            f'cannot have outside = "{column.outside}" {entry}: training clips targets to the range',
            None,
            'write outside = "clip" there',
        )


def read_schema(given: object, classes: tuple[str, ...] = ()) -> Schema:
    """A schema from what holds one: itself, its ``to_dict``, or the path of its TOML file;
    ``classes``: for one that leaves its own open."""
    if isinstance(given, Schema):
        return given
    if isinstance(given, str | Path):
        try:
            return Schema.read(given)
        except InputError:
            if not classes:
                raise
            return Schema.read(given, classes)
    if is_object(given):
        return Schema.from_dict(
            given | {"classes": list(classes)} if classes and "classes" not in given else given
        )
    raise InputError(
        "schema",
        "must be a Schema, its dictionary, or the path of a TOML file that holds one",
        type(given).__name__,
        "lastiterate schema FILE writes one to fill in",
    )
