"""A two-layer ReLU network with public random gates: a linear model in every one of some random half spaces."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.features.record_fields import Field, Record, Text, Values
from lastiterate.features.record_map import RecordMap
from lastiterate.run.fields import settle
from lastiterate.run.validate import whole

MOST, FEWEST = 32, 4
PER_NUMBER = 2.0
"""Records times mu for each number of a row and each gate, compared on synthetic tables
(benchmarks.utility.gated_tables)."""
ENTRIES, GATES = 2.0**20, 2.0**10
"""Steps of the grids on which gates are evaluated. Products of both and their sums are whole numbers below 2^53, which
double precision adds without rounding in any order: a gate is open or not on every machine, whatever rows are beside.
"""
WIDEST = 2**16
LARGEST = 8.0
"""Entries of a row are taken for at most so large where a gate looks at them."""


@final
@dataclass(frozen=True)
class Gated(RecordMap):
    """A row x becomes [x', 1(g_1 . x' >= 0) x', ..., 1(g_K . x' >= 0) x'] over the root of how many of these parts are
    not 0, x' = [x, 1].

    The K = ``count`` gates g_k are public standard normal vectors from the public ``seed``. A linear model on such rows
    is a network of ReLU units with a linear part whose gates do not move, and training it is a convex problem (Pilanci
    and Ergen 2020; arXiv 2407.04884, with private training): what a number means may depend on all the others.

    It maps whole records: their rows as the other maps make them. Rows are at most sqrt(norm^2 + 1) long, for a part is
    |x'| long or 0.
    """

    count: int = MOST
    seed: int = 0
    name: ClassVar[str] = "gated"
    takes: ClassVar[tuple[type[Field], ...]] = (Record,)

    def __post_init__(self) -> None:
        settle(self)
        whole("count of gates", self.count, most=10**4)
        whole("seed of gates", self.seed, least=0, most=2**31)

    @classmethod
    def sized(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """A power of two of gates; the fields count as they are without another map, and few gates for texts."""
        plain = math.inf if any(isinstance(field, Text) for field in fields) else sum(field.width for field in fields)
        carried = resolved / (PER_NUMBER * max(1, plain))
        return cls(min(MOST, max(FEWEST, 2 ** math.floor(math.log2(min(max(carried, 1.0), MOST))))))

    def width(self, field: Field) -> int:
        if field.width > WIDEST:
            raise InputError("features", f"must be at most {WIDEST} numbers for gates", field.width, "leave gated out")
        return (1 + self.count) * (field.width + 1)

    def norm(self, field: Field) -> float:
        return math.sqrt(field.norm**2 + 1)

    def names(self, field: Field) -> tuple[str, ...]:
        inner = (*field.names, "1")
        return (*inner, *(f"{name}|gate{k}" for k in range(self.count) for name in inner))

    def words(self) -> str:
        return f"gated: a linear part in each of {self.count} public random half spaces, and one for all"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.column_stack((np.asarray(values, dtype=np.float32), np.ones(len(values), dtype=np.float32)))
        gates = self.opened(given)
        parts = np.column_stack((np.ones(len(given), dtype=np.float32), gates))
        parts /= np.sqrt(parts.sum(axis=1, keepdims=True))
        return (parts[:, :, None] * given[:, None, :]).reshape(len(given), -1)

    def opened(self, rows: np.ndarray) -> np.ndarray:
        """Which gates are open for rows x' (n, d): (n, count) of 0 and 1, the same on every machine."""
        whole_numbers = np.rint(np.clip(rows.astype(np.float64), -LARGEST, LARGEST) * ENTRIES)
        return (whole_numbers @ directions(self.seed, rows.shape[1], self.count) >= 0).astype(np.float32)


@lru_cache(maxsize=4)
def directions(seed: int, width: int, count: int) -> np.ndarray:
    """Standard normal gates (width, count) on their grid, from a generator whose bits do not change with NumPy."""
    from scipy.special import ndtri  # pyright: ignore

    raw = np.random.Philox(key=seed).random_raw(width * count)
    drawn = np.asarray(ndtri((np.right_shift(raw, np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53))
    gates = np.rint(drawn.reshape(count, width).T * GATES)
    gates.setflags(write=False)
    return gates
