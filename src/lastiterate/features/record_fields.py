"""The fields of a record as maps see them: public facts, and how a field becomes numbers where no
map speaks of it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from lastiterate.errors import InputError

Values = np.ndarray | list[str]
"""One value for each record; numbers, or text."""


class Field(ABC):
    """One field of a record. ``name``: of its column. ``words``: what such fields are called.

    A field answers what a map answers, for records that no map speaks of: how many numbers it
    becomes (``width``), how they are called, how long they are at most (``norm``), and what they
    are for given values.
    """

    words: ClassVar[str]
    name: str

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that it becomes."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """What they are called."""

    @property
    @abstractmethod
    def norm(self) -> float:
        """Their largest Euclidean norm, whatever the values."""

    @abstractmethod
    def rows(self, values: Values) -> np.ndarray:
        """The numbers (n, width) of values (n, ...)."""


@final
@dataclass(frozen=True)
class Number(Field):
    """A number in [-1, 1], as its public range scales it; NaN where it is missing and ``indicator``
    says so."""

    words: ClassVar[str] = "columns of numbers"
    name: str
    indicator: bool = False

    @property
    def width(self) -> int:
        return 1 + self.indicator

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, f"{self.name}=missing")[: self.width]

    @property
    def norm(self) -> float:
        return 1.0

    def rows(self, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float64)
        missing = np.isnan(given)
        return np.column_stack((np.where(missing, 0.0, given), missing))[:, : self.width]


@final
@dataclass(frozen=True)
class Choice(Field):
    """One of some public values: the index of the value in the list, -1 where it is none of
    them."""

    words: ClassVar[str] = "columns of categories"
    name: str
    labels: tuple[str, ...]

    @property
    def width(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={label}" for label in self.labels)

    @property
    def norm(self) -> float:
        return 1.0

    def rows(self, values: Values) -> np.ndarray:
        places = np.asarray(values)
        out = np.zeros((len(places), self.width), dtype=np.float32)
        known = places >= 0
        out[np.flatnonzero(known), places[known]] = 1
        return out


@final
@dataclass(frozen=True)
class Grid(Field):
    """An array of numbers in [-1, 1] such as an image, ``shape`` (height, width) or (height, width,
    channels), or (d,).

    Its values are rows (n, d), d the product of the shape. ``longest``: their largest norm, where
    the schema says one.
    """

    words: ClassVar[str] = "arrays, such as images"
    name: str
    shape: tuple[int, ...]
    longest: float | None = None

    @property
    def width(self) -> int:
        return math.prod(self.shape)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}{i}" for i in range(self.width))

    @property
    def norm(self) -> float:
        return (
            math.sqrt(self.width)
            if self.longest is None
            else min(math.sqrt(self.width), self.longest)
        )

    def rows(self, values: Values) -> np.ndarray:
        return np.asarray(values)


@final
@dataclass(frozen=True)
class Text(Field):
    """Free text, which becomes numbers by a map only."""

    words: ClassVar[str] = "columns of text"
    name: str

    @property
    def width(self) -> int:
        raise self._text_error()

    @property
    def names(self) -> tuple[str, ...]:
        raise self._text_error()

    @property
    def norm(self) -> float:
        raise self._text_error()

    def rows(self, values: Values) -> np.ndarray:
        raise self._text_error()

    def _text_error(self) -> InputError:
        return InputError(
            f"column {self.name!r}",
            "holds text, which becomes numbers by a map only",
            None,
            'use features="words", say features = "words" in the schema, or make it '
            'kind = "category" or "ignore"',
        )


@final
@dataclass(frozen=True)
class Record(Field):
    """A whole record: the row that its fields have become, for maps that look at all of it at once.

    ``labels``: what its numbers are called. ``longest``: its largest norm.
    """

    labels: tuple[str, ...]
    longest: float
    name = "record"

    @property
    def width(self) -> int:
        return len(self.labels)

    @property
    def names(self) -> tuple[str, ...]:
        return self.labels

    @property
    def norm(self) -> float:
        return self.longest

    def rows(self, values: Values) -> np.ndarray:
        return np.asarray(values)
