"""Numbers as weights of hat functions between their public ends, so that a linear model learns a curve of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.features.record_fields import Field, Grid, Number, Values
from lastiterate.features.record_map import RecordMap
from lastiterate.run.fields import settle
from lastiterate.run.validate import whole

PAYS, FINE = 60.0, 400.0
"""Records times mu for each number from which on curves gain on synthetic tables, and more knots do
(benchmarks.utility.curved_tables)."""
FEW, MANY = 8, 12


def _numbers(fields: tuple[Field, ...]) -> int:
    return sum(field.width if isinstance(field, Grid) else isinstance(field, Number) for field in fields)


@final
@dataclass(frozen=True)
class Curves(RecordMap):
    """Piecewise linear hat functions at ``knots`` equally spaced places between a number's public ends.

    A value between two knots has the weights 1 - f and f on them, f its way from the one to the other, divided by their
    norm: every number becomes a unit vector, and the score of a linear model a continuous curve of it. A missing number
    is a unit vector of its own where the schema says missing = "indicator".
    """

    knots: int = MANY
    name: ClassVar[str] = "curves"
    takes: ClassVar[tuple[type[Field], ...]] = (Number, Grid)

    def __post_init__(self) -> None:
        settle(self)
        whole("knots of curves", self.knots, least=2, most=1000)

    @classmethod
    def sized(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        return cls(MANY if resolved >= FINE * _numbers(fields) else FEW)

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        return Number in map(type, fields) and resolved >= PAYS * _numbers(fields)

    def width(self, field: Field) -> int:
        return self.knots + field.indicator if isinstance(field, Number) else self.knots * field.width

    def norm(self, field: Field) -> float:
        return math.sqrt(field.width) if isinstance(field, Grid) else field.norm  # each number is a unit vector

    def names(self, field: Field) -> tuple[str, ...]:
        if not isinstance(field, Number):
            return tuple(f"{name}~{i}" for name in field.names for i in range(self.knots))
        return (*(f"{field.name}~{i}" for i in range(self.knots)), *field.names[1:])

    def words(self) -> str:
        return f"curves: numbers as {self.knots} hat functions between their public ends"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float64)
        if not isinstance(field, Number):
            return self._weights(given.ravel()).reshape(len(given), self.width(field))
        missing = np.isnan(given)
        weights = np.where(missing[:, None], 0.0, self._weights(np.where(missing, 0.0, given)))
        return np.column_stack((weights, missing))[:, :self.width(field)]

    def _weights(self, scaled: np.ndarray) -> np.ndarray:
        """Weights (n, knots) of numbers (n,) in [-1, 1]."""
        place = (np.clip(np.nan_to_num(scaled), -1, 1) + 1) / 2 * (self.knots - 1)
        left = np.minimum(place.astype(np.int64), self.knots - 2)
        way = place - left
        out, every = np.zeros((len(place), self.knots), dtype=np.float32), np.arange(len(place))
        length = np.hypot(1 - way, way)
        out[every, left], out[every, left + 1] = (1 - way) / length, way / length
        return out


