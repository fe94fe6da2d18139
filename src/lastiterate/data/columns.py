"""The public facts about a column."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import ClassVar, final

import numpy as np

from lastiterate.data.table import number_text
from lastiterate.errors import InputError
from lastiterate.features.record_fields import Choice, Field, Grid, Number, Text
from lastiterate.run.validation import is_finite

# What is public about a column: the range of a number or of a date, the values of a category.

MISSING = frozenset(
    {
        "",
        "?",
        "na",
        "n/a",
        "#n/a",
        "#n/a n/a",
        "#na",
        "<na>",
        "nan",
        "-nan",
        "1.#ind",
        "-1.#ind",
        "1.#qnan",
        "-1.#qnan",
        "null",
        "none",
        "nat",
    }
)
"""Cells (lower case, stripped) that count as missing, as in pandas. A category of that very name is
kept."""
UNKNOWN = "?"
"""What stands in a schema for a public fact that is still to be stated."""
INDICATOR = "indicator"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")


class ColumnSpec(ABC):
    """A column of a table. ``kind``: what a schema calls it."""

    kind: ClassVar[str]
    name: str

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it gives to a record."""
        return ()


@final
@dataclass(frozen=True)
class Numeric(ColumnSpec):
    """A number with a public range; scaled to [-1, 1], by its logarithm where ``scale`` is "log".

    ``missing``: "refuse", the number to put in its place, or "indicator": a feature of its own.
    ``scale`` "log" suits what has a heavy tail: log(x / low) where low is positive, log(1 + x -
    low) otherwise.
    """

    name: str
    low: float
    high: float
    outside: str = "clip"
    missing: str | float = "refuse"
    scale: str = "linear"
    kind: ClassVar[str] = "number"

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        for side, value in (("low", self.low), ("high", self.high)):
            if not is_finite(value):
                raise InputError(
                    f"{where}: {side}",
                    "must be a finite number",
                    value,
                    "state the public range, from the meaning of the column and not from your data",
                )
        if not self.low < self.high:
            raise InputError(
                f"{where}: low",
                "must lie below high",
                (self.low, self.high),
                'leave a column that is constant by definition out with kind = "ignore"',
            )
        if not math.isfinite(float(self.high) - float(self.low)):
            raise InputError(
                f"{where}: low", "must lie a finite distance below high", (self.low, self.high)
            )
        if self.outside not in ("clip", "refuse"):
            raise InputError(f"{where}: outside", 'must be "clip" or "refuse"', self.outside)
        if self.missing not in ("refuse", INDICATOR) and not is_finite(self.missing):
            raise InputError(
                f"{where}: missing",
                'must be "refuse", "indicator" or a public number to fill in',
                self.missing,
            )
        if self.scale not in ("linear", "log"):
            raise InputError(f"{where}: scale", 'must be "linear" or "log"', self.scale)
        if self.scale == "log" and self.low > 0 and not math.log(self.low) < math.log(self.high):
            raise InputError(f"{where}: low", "must lie further below high", (self.low, self.high))

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Number(self.name, self.missing == INDICATOR),)

    @property
    def origin(self) -> float | None:
        """What logarithms count from: the scaled number is linear in log(x - origin); ``None``
        without a logarithm."""
        return None if self.scale == "linear" else 0.0 if self.low > 0 else float(self.low) - 1

    def to_unit(self, values: np.ndarray) -> np.ndarray:
        """Numbers in the public range (n,), float64, on their way from -1 to 1; NaN stays."""
        low, high = float(self.low), float(self.high)
        if self.scale == "linear":
            return (values - low) / (high - low) * 2 - 1
        way = np.log(values) - math.log(low) if low > 0 else np.log1p(values - low)
        way = way / (math.log(high) - math.log(low) if low > 0 else math.log1p(high - low))
        return np.clip(way * 2 - 1, -1, 1)

    def from_unit(self, scaled: np.ndarray) -> np.ndarray:
        """Numbers of the column (n,) for numbers in [-1, 1]."""
        low, high, way = float(self.low), float(self.high), (scaled + 1) / 2
        if self.scale == "linear":
            return low + way * (high - low)
        if low > 0:
            return low * np.exp(way * (math.log(high) - math.log(low)))
        return low + np.expm1(way * math.log1p(high - low))


def to_texts(argument: str, values: Iterable[object]) -> tuple[str, ...]:
    """Categories or classes as a file writes them: 1 and 1.0 are "1". Refuses one text, whose
    letters are no list."""
    if isinstance(values, str):
        raise InputError(
            argument, "must be a list of texts", values, f"write {[values]!r} for a single one"
        )
    return tuple(number_text(value) if isinstance(value, float) else str(value) for value in values)


@final
@dataclass(frozen=True)
class Category(ColumnSpec):
    """One of some public values; one column each. "zero" leaves unknown or missing cells without a
    one, "indicator" gives missing ones a column of their own."""

    name: str
    values: tuple[str, ...]
    outside: str = "refuse"
    missing: str = "refuse"
    kind: ClassVar[str] = "category"

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        object.__setattr__(self, "values", to_texts(f"{where}: values", self.values))
        if not self.values or len(set(self.values)) != len(self.values):
            raise InputError(
                f"{where}: values",
                "must be a list of different public categories",
                list(self.values),
                "state every category the column can have",
            )
        if self.outside not in ("zero", "refuse"):
            raise InputError(f"{where}: outside", 'must be "zero" or "refuse"', self.outside)
        if self.missing not in ("zero", "refuse", INDICATOR):
            raise InputError(
                f"{where}: missing", 'must be "zero", "refuse" or "indicator"', self.missing
            )

    @property
    def fields(self) -> tuple[Field, ...]:
        return (
            Choice(
                self.name, (*self.values, *(("(missing)",) if self.missing == INDICATOR else ()))
            ),
        )


@final
@dataclass(frozen=True)
class Date(ColumnSpec):
    """A day with a public range, written as 2026-01-31 (a time behind it is not read): its place
    between the ends, its month and its weekday.

    ``outside``: "clip" moves the day's place to the nearer end. ``missing``: "refuse", or
    "indicator".
    """

    name: str
    first: str
    last: str
    outside: str = "clip"
    missing: str = "refuse"
    kind: ClassVar[str] = "date"

    def __post_init__(self) -> None:
        where = f"column {self.name!r}"
        for side, value in (("first", self.first), ("last", self.last)):
            if isinstance(value, date):  # as TOML reads it
                object.__setattr__(self, side, value.isoformat()[:10])
            elif day_number(value) is None:
                raise InputError(
                    f"{where}: {side}",
                    'must be a day such as "2026-01-31"',
                    value,
                    "state the public range, from the meaning of the column and not from your data",
                )
        if not self.ends[0] < self.ends[1]:
            raise InputError(
                f"{where}: first", "must be an earlier day than last", (self.first, self.last)
            )
        if self.outside not in ("clip", "refuse"):
            raise InputError(f"{where}: outside", 'must be "clip" or "refuse"', self.outside)
        if self.missing not in ("refuse", INDICATOR):
            raise InputError(f"{where}: missing", 'must be "refuse" or "indicator"', self.missing)

    @property
    def ends(self) -> tuple[int, int]:
        """Numbers of the first and of the last day."""
        return day_number(self.first) or 0, day_number(self.last) or 0

    @property
    def fields(self) -> tuple[Field, ...]:
        return (
            Number(self.name, self.missing == INDICATOR),
            Choice(f"{self.name}.month", MONTHS),
            Choice(f"{self.name}.weekday", DAYS),
        )


@final
@dataclass(frozen=True)
class Words(ColumnSpec):
    """Free text, which a map makes numbers of; a missing cell is an empty text."""

    name: str
    kind: ClassVar[str] = "text"

    @property
    def fields(self) -> tuple[Field, ...]:
        return (Text(self.name),)


@final
@dataclass(frozen=True)
class Ignore(ColumnSpec):
    """A column that is not used."""

    name: str
    kind: ClassVar[str] = "ignore"


@final
@dataclass(frozen=True)
class Id(ColumnSpec):
    """A number or name of the record, which is never trained on; ``predict`` writes it next to the
    prediction."""

    name: str
    kind: ClassVar[str] = "id"


def day_number(text: object) -> int | None:
    """The number of a day, from its ISO form, with or without a time; ``None`` where it is none."""
    try:
        return (
            date.fromisoformat(text[:10]).toordinal()
            if isinstance(text, str) and _plain_day(text)
            else None
        )
    except ValueError:
        return None


def _plain_day(text: str) -> bool:
    return len(text) == 10 or text[10:11] in (" ", "T")


@dataclass(frozen=True)
class Array:
    """All columns of a numeric array share one public range. ``shape``: of one record, where a map
    depends on it; a flat record of as many numbers is read as one of this shape. ``norm``: largest
    Euclidean norm of a record, where it is less than the range allows; longer records are scaled
    down to it."""

    low: float
    high: float
    outside: str = "clip"
    shape: tuple[int, ...] | None = None
    norm: float | None = None

    def __post_init__(self) -> None:
        if self.norm is not None and not (
            is_finite(self.norm) and self.norm > 0 and self.low == -self.high
        ):
            raise InputError(
                "[array]: norm",
                "must be a positive number, of an array with low = -high",
                self.norm,
                "leave it out, or state low = -high",
            )
        if self.shape is not None:
            sides = tuple(self.shape) if isinstance(self.shape, list | tuple) else ()  # pyright: ignore[reportUnnecessaryIsInstance]
            if not sides or not all(type(side) is int and side > 0 for side in sides):
                raise InputError(
                    "[array]: shape", "must be a list of positive integers", self.shape
                )
            object.__setattr__(self, "shape", sides)
        Numeric("(all columns of the array)", self.low, self.high, self.outside)

    def field(self, shape: tuple[int, ...]) -> Grid:
        """A record of this shape, its numbers scaled to [-1, 1]."""
        return Grid("x", self.shape or shape, None if self.norm is None else self.norm / self.high)


Column = Numeric | Category | Date | Words | Id | Ignore
