"""What is public about a column: the range of a number, the values of a category."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lastiterate.errors import InputError
from lastiterate.features.record_fields import Choice, Field, Number

MISSING = frozenset({"", "?", "na", "nan", "null", "none"})
"""Cells (lower case, stripped) that count as missing."""



def _finite(value: object) -> bool:
    """Whether it is a number that a float holds; whole numbers may be longer."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


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
            if not _finite(value):
                raise InputError(f"{where}: {side}", "must be a finite number", value,
                                 "state the public range, from the meaning of the column and not from your data")
        if not self.low < self.high:
            raise InputError(f"{where}: low", "must lie below high", (self.low, self.high),
                             "leave a column that is constant by definition out with kind = \"ignore\"")
        if not math.isfinite(float(self.high) - float(self.low)):
            raise InputError(f"{where}: low", "must lie a finite distance below high", (self.low, self.high))
        if self.outside not in ("clip", "refuse"):
            raise InputError(f"{where}: outside", "must be \"clip\" or \"refuse\"", self.outside)
        if self.missing != "refuse" and not _finite(self.missing):
            raise InputError(f"{where}: missing", "must be \"refuse\" or a public number to fill in", self.missing)

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it gives to a record."""
        return (Number(self.name),)



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

    @property
    def fields(self) -> tuple[Field, ...]:
        """What it gives to a record."""
        return (Choice(self.name, self.values),)



@dataclass(frozen=True)
class Ignore:
    """A column that is not used."""

    name: str

    @property
    def fields(self) -> tuple[Field, ...]:
        """Nothing."""
        return ()



@dataclass(frozen=True)
class Array:
    """All columns of a numeric array share one public range."""

    low: float
    high: float
    outside: str = "clip"

    def __post_init__(self) -> None:
        Numeric("(all columns of the array)", self.low, self.high, self.outside)



Column = Numeric | Category | Ignore
