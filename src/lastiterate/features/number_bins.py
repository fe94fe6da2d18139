"""Numbers as the one of equal intervals that they lie in, so that a linear model learns a step function of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from lastiterate.features.record_fields import Field, Number, Values
from lastiterate.features.record_map import RecordMap
from lastiterate.run.fields import settle
from lastiterate.run.validate import whole


@final
@dataclass(frozen=True)
class Bins(RecordMap):
    """A 1 for the one of ``count`` equal intervals between the public ends that a number lies in, 0 for the others."""

    count: int = 16
    name: ClassVar[str] = "bins"
    takes: ClassVar[tuple[type[Field], ...]] = (Number,)

    def __post_init__(self) -> None:
        settle(self)
        whole("count of bins", self.count, least=2, most=1000)

    def width(self, field: Field) -> int:
        return self.count + field.width - 1

    def norm(self, field: Field) -> float:
        return field.norm

    def words(self) -> str:
        return f"bins: the one of {self.count} equal intervals that a number lies in"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float64)
        missing = np.isnan(given)
        place = ((np.clip(np.where(missing, 0, given), -1, 1) + 1) / 2 * self.count).astype(np.int64)
        place = np.where(missing, self.count, np.minimum(place, self.count - 1))
        return np.eye(self.count + 1, dtype=np.float32)[place][:, :self.width(field)]
