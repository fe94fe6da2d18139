"""The public facts about a table: columns, ranges, categories, classes. Never measured on private data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lastiterate.data.columns import Array, Category, Column, Ignore, Numeric, as_texts
from lastiterate.data.entries import as_entry, check_entries, column_from
from lastiterate.errors import InputError
from lastiterate.features.map_table import as_data, check_maps, maps_from, names_in
from lastiterate.features.record_map import RecordMap
from lastiterate.features.row_form import RowForm
from lastiterate.run import strict_toml


def check_classes(argument: str, classes: tuple[str, ...]) -> None:
    """Refuse what is no list of classes; ``argument``: what lists them."""
    if len(classes) < 2 or len(set(classes)) != len(classes):
        raise InputError(argument, "must list at least two different public labels", list(classes))


@dataclass(frozen=True)
class Schema:
    """Public facts about a table. ``classes`` for classification, ``target_range`` for regression.

    ``header``: the names of all columns, in order, of a file that has no header. ``headed``: whether the first row of a
    file is said to be a header, ``header = "yes"`` in TOML. ``features``: the public maps that
    make rows of records, each the first one for the fields that it speaks of; without one, numbers are scaled to
    [-1, 1] and every category becomes a 0 or a 1. ``unsized``: those that were given by name alone; a fit makes them as
    large as its records and budget carry.
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

    def __post_init__(self) -> None:
        check_maps(self.features)
        object.__setattr__(self, "classes", as_texts("schema: classes", self.classes))
        if bool(self.classes) == (self.target_range is not None):
            raise InputError("schema", "needs either classes (classification) or target_range (regression)", None,
                             f"state which values {self.target!r} can have")
        if self.classes:
            check_classes("schema: classes", self.classes)
        if self.target_range is not None:
            Numeric(f"target {self.target}", *self.target_range)
        if not self.columns and self.array is None:
            raise InputError("schema", "describes no columns", None, "add a [columns.NAME] table for every column")
        names = [column.name for column in self.columns]
        counts = Counter(names)
        twice = sorted({name for name, many in counts.items() if many > 1} | ({self.target} & set(names)))
        if twice:
            raise InputError("schema", "describes a column twice", twice[0],
                             "keep one entry; the target is described by classes or target_range")
        described = self.described
        strange = [name for name in self.header if name not in described]
        if len(set(self.header)) != len(self.header) or strange:
            raise InputError("header", "must name every column once, each described or the target",
                             strange[0] if strange else None)

    def form(self, shape: tuple[int, ...] | None = None) -> RowForm:
        """How records become rows. ``shape``: of one record of an array, which says so itself.

        Errors: a map that has nothing to map.
        """
        known = None if self.array is None else self.array.shape
        if known is not None and shape is not None and math.prod(known) != math.prod(shape):
            raise InputError("data file", f"must have {math.prod(known)} features, as the schema's arrays have",
                             math.prod(shape))
        fields = (self.array.field(shape or (1,)),) if self.array is not None else tuple(
            field for column in self.columns for field in column.fields)
        return RowForm(fields, self.features)

    def shaped(self, shape: tuple[int, ...] | None) -> Schema:
        """The same schema with the shape of one record of its arrays, where it has maps, which may depend on it."""
        if self.array is None or not self.features or shape is None or self.array.shape is not None:
            return self
        return replace(self, array=replace(self.array, shape=shape))

    @property
    def described(self) -> frozenset[str]:
        """Names of the columns that it speaks of, the target among them."""
        return frozenset((*(column.name for column in self.columns), self.target))

    @property
    def numbers(self) -> frozenset[str]:
        """Names of the columns of which only the numbers count, the target of a regression among them."""
        names = (column.name for column in self.columns if isinstance(column, Numeric))
        return frozenset((*names, self.target) if self.regression else names)

    @property
    def regression(self) -> bool:
        """Whether the target is a number with a public range, and not a class."""
        return self.target_range is not None

    @classmethod
    def read(cls, path: str | Path, classes: tuple[str, ...] = ()) -> Schema:
        """Read a TOML schema; everything that was not filled in is listed at once. ``classes``: instead of its own."""
        data = strict_toml.read(Path(path), "schema", "lastiterate schema writes one")
        data = data if not classes else {
            name: entry for name, entry in data.items() if name != "target_range"} | {"classes": list(classes)}
        check_entries(data, partly=True)
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> Schema:
        """The schema that ``to_dict`` or a TOML file describes."""
        check_entries(data)
        columns = tuple(column_from(name, entry) for name, entry in data.get("columns", {}).items())
        bounds = data.get("target_range")
        try:
            array = Array(**data["array"]) if data.get("array") else None
        except TypeError:
            raise InputError("[array]", "takes low, high, outside, shape and norm", sorted(data["array"])) from None
        maps, headed = data.get("features", ()), data.get("header") == "yes"
        return cls(columns, data.get("target", "y"), data.get("classes", ()),
                   None if bounds is None else (bounds[0], bounds[1]), array, data.get("source", ""),
                   () if headed else tuple(data.get("header", ())), maps_from(maps), names_in(maps), headed or None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; reads back with ``from_dict``."""
        body: dict[str, Any] = {"target": self.target, "source": self.source, "columns": {
            column.name: {"kind": column.kind} | as_entry(column) for column in self.columns
        }}
        if self.classes:
            body["classes"] = list(self.classes)
        if self.target_range is not None:
            body["target_range"] = list(self.target_range)
        if self.array is not None:
            body["array"] = {key: value for key, value in asdict(self.array).items() if value is not None}
        if self.header or self.headed:
            body["header"] = list(self.header) if self.header else "yes"
        if self.features:
            body["features"] = as_data(self.features)
        return body

    def stating(self, header: bool | None) -> Schema:
        """Return the schema of files whose first row is a header, or is none, as somebody says; ``None``: unchanged."""
        if header is False and not self.header:
            raise InputError("header", "must be the names of the columns, in order, where a file has none", None,
                             "write header = [NAME, NAME, ...] into the schema")
        return self if header is None else replace(self, headed=header, header=() if header else self.header)

    def predicting(self, target: str) -> Schema:
        """The same table with another column to predict: what was said of it becomes its classes or its range, and the
        former target is left out."""
        if target == self.target:
            return self
        answer = next((column for column in self.columns if column.name == target), None)
        if not isinstance(answer, Numeric | Category):
            raise InputError("target", "must be a column that the schema describes", target,
                             "add it to the schema: " + ", ".join(c.name for c in self.columns))
        others = (*(column for column in self.columns if column is not answer), Ignore(self.target))
        if isinstance(answer, Numeric):
            return replace(self, columns=others, target=target, classes=(), target_range=(answer.low, answer.high))
        return replace(self, columns=others, target=target, classes=answer.values, target_range=None)
