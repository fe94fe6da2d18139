"""Public maps of columns: curves, bins, gated half spaces."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.features.record_fields import Field, Grid, Number, Record, Text, Values
from lastiterate.run.serialization import Checked, require
from lastiterate.run.validation import check_integer

# What every public map of a record answers.


class RecordMap(Checked, ABC):
    """A public map of single fields of one record: a frozen description, recognised by its exact
    type.

    ``name``: what ``features=`` calls it. ``takes``: the kinds of fields that it speaks of; the
    others become numbers as without a map. Widths, names and norms follow from public facts alone.

    **Guarantee:** what ``rows`` makes of a value depends on that value and on public facts, and on
    no other value, and its Euclidean norm is at most ``norm(field)``.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[type[Field], ...]]

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """The map with as many numbers as such fields and a budget carry.

        ``resolved``: public records times mu of the budget, in proportion to how fine a difference
        stands out of the noise of a fit.
        """
        return cls()

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        """Whether ``features="auto"`` takes it for a record of such fields."""
        return False

    @abstractmethod
    def width(self, field: Field) -> int:
        """Numbers that a field becomes. Errors: a field that the map does not fit."""

    @abstractmethod
    def norm(self, field: Field) -> float:
        """Their largest Euclidean norm, whatever the values."""

    @abstractmethod
    def rows(self, field: Field, values: Values) -> np.ndarray:
        """The numbers (n, width) of values (n, ...)."""

    @abstractmethod
    def words(self) -> str:
        """What it does, in a few words."""

    def names(self, field: Field) -> tuple[str, ...]:
        """What the numbers are called."""
        return tuple(f"{field.name}#{i}" for i in range(self.width(field)))


# A two-layer ReLU network with public random gates: a linear model in every one of some random half
# spaces.

MOST, FEWEST = 32, 4
RECORDS_PER_GATE = 2.0
"""Records times mu for each number of a row and each gate, compared on synthetic tables
(benchmarks.utility.gated_tables)."""
ENTRIES, GATES = 2.0**20, 2.0**10
"""Steps of the grids on which gates are evaluated. Products of both and their sums are integers
below 2^53, which double precision adds without rounding in any order: whether a gate is open is the
same on every machine, whatever other records there are.
"""
FEW_GATES, UNSURE = 2**20, 1e-8
WIDEST_GATED = 2**16
LARGEST = 8.0
"""Entries of a row are taken for at most so large where a gate looks at them."""


@final
@dataclass(frozen=True)
class Gated(RecordMap):
    """A map of whole records that makes a linear model a network of fixed ReLU gates.

    A row x becomes [x', 1(g_1 . x' >= 0) x', ..., 1(g_K . x' >= 0) x'] with x' = [x, 1], divided by
    the root of the number of parts that are not 0. The gates g_k are public standard normal
    vectors.

    Parameters
    ----------
    count : int
        Number K of gates, at most 10,000.
    seed : int, default 0
        Public seed of the gates.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    **Guarantee:** a row depends on its own record only, and its norm is at most sqrt(norm^2 + 1).
    Sources: Pilanci and Ergen 2020; with private training arXiv:2407.04884.

    Examples
    --------
    >>> from lastiterate.features import Gated
    >>> Gated(count=4).words()
    'gated: a linear part in each of 4 public random half spaces, and one for all'
    """

    count: int = field(default=MOST, metadata=require(check_integer, "count of gates", most=10**4))
    seed: int = field(
        default=0, metadata=require(check_integer, "seed of gates", least=0, most=2**31)
    )
    name: ClassVar[str] = "gated"
    takes: ClassVar[tuple[type[Field], ...]] = (Record,)

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        """A power of two of gates; the fields count as they are without another map, and few gates
        for texts."""
        plain = (
            math.inf
            if any(isinstance(field, Text) for field in fields)
            else sum(field.width for field in fields)
        )
        carried = resolved / (RECORDS_PER_GATE * max(1, plain))
        return cls(min(MOST, max(FEWEST, 2 ** math.floor(math.log2(min(max(carried, 1.0), MOST))))))

    def width(self, field: Field) -> int:
        if field.width > WIDEST_GATED:
            raise InputError(
                "features",
                f"must be at most {WIDEST_GATED} numbers for gates",
                field.width,
                "leave gated out",
            )
        return (1 + self.count) * (field.width + 1)

    def norm(self, field: Field) -> float:
        return math.sqrt(field.norm**2 + 1)

    def names(self, field: Field) -> tuple[str, ...]:
        inner = (*field.names, "1")
        return (*inner, *(f"{name}|gate{k}" for k in range(self.count) for name in inner))

    def words(self) -> str:
        return f"gated: a linear part in each of {self.count} public random half spaces, and one for all"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.column_stack(
            (np.asarray(values, dtype=np.float32), np.ones(len(values), dtype=np.float32))
        )
        gates = self.open_gates(given)
        parts = np.column_stack((np.ones(len(given), dtype=np.float32), gates))
        parts /= np.sqrt(parts.sum(axis=1, keepdims=True))
        return (parts[:, :, None] * given[:, None, :]).reshape(len(given), -1)

    def open_gates(self, rows: np.ndarray) -> np.ndarray:
        """Return the open gates of rows x' (n, d): 0 and 1, shape (n, count), on every machine."""
        whole_numbers = np.rint(np.clip(rows.astype(np.float64), -LARGEST, LARGEST) * ENTRIES)
        return (whole_numbers @ directions(self.seed, rows.shape[1], self.count) >= 0).astype(
            np.float32
        )


@lru_cache(maxsize=4)
def directions(seed: int, width: int, count: int) -> np.ndarray:
    """Standard normal gates (width, count) on their grid, from a generator whose bits do not change
    with NumPy."""
    raw = np.random.Philox(key=seed).random_raw(width * count)
    shares = (np.right_shift(raw, np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    gates = _quantiles_on_grid(shares).reshape(count, width).T
    gates.setflags(write=False)
    return gates


def _quantiles_on_grid(shares: np.ndarray) -> np.ndarray:
    """Standard normal quantiles (n,), rounded to 1 / ``GATES``, in units of it.

    A few are computed without SciPy, whose import takes longer; it decides what lies within
    ``UNSURE`` of a tie, as both are good to 1e-11 there.
    """
    if len(shares) > FEW_GATES:
        return np.rint(_quantiles(shares) * GATES)
    from statistics import NormalDist

    scaled = np.array(list(map(NormalDist().inv_cdf, shares.tolist()))) * GATES
    unsure = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < UNSURE
    if unsure.any():
        scaled[unsure] = _quantiles(shares[unsure]) * GATES
    return np.rint(scaled)


def _quantiles(shares: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri  # pyright: ignore

    return np.asarray(ndtri(shares))


# Numbers as weights of hat functions between their public ends, so that a linear model learns a
# curve of each.

PAYS, FINE = 60.0, 400.0
"""Records times mu for each number from which on curves gain on synthetic tables, and more knots do
(benchmarks.utility.curved_tables)."""
FEW, MANY = 8, 12


def _numbers(fields: tuple[Field, ...]) -> int:
    return sum(
        field.width if isinstance(field, Grid) else isinstance(field, Number) for field in fields
    )


@final
@dataclass(frozen=True)
class Curves(RecordMap):
    """A map of numbers to piecewise linear hat functions between their public ends.

    A value between two knots has the weights 1 - f and f on them, f its relative distance from the
    first, divided by their norm. Every number becomes a unit vector, and a linear model learns a
    continuous curve of it. A missing number is a unit vector of its own where the schema says
    ``missing = "indicator"``.

    Parameters
    ----------
    knots : int
        Number of knots, from 2 to 1000.

    Raises
    ------
    InputError
        If ``knots`` is out of range.

    See Also
    --------
    Bins : A step function instead of a curve.

    Examples
    --------
    >>> from lastiterate.features import Curves, SchemaTransformer
    >>> facts = {
    ...     "target": "ill",
    ...     "classes": ["no", "yes"],
    ...     "columns": {"age": {"kind": "number", "low": 0, "high": 100}},
    ... }
    >>> rows = SchemaTransformer(facts, features="curves").fit_transform({"age": [0, 100]})
    >>> rows[:, [0, -1]]
    array([[1., 0.],
           [0., 1.]], dtype=float32)
    >>> Curves(knots=5).knots
    5
    """

    knots: int = field(
        default=MANY, metadata=require(check_integer, "knots of curves", least=2, most=1000)
    )
    name: ClassVar[str] = "curves"
    takes: ClassVar[tuple[type[Field], ...]] = (Number, Grid)

    @classmethod
    def for_budget(cls, fields: tuple[Field, ...], resolved: float) -> Self:
        return cls(MANY if resolved >= FINE * _numbers(fields) else FEW)

    @classmethod
    def pays(cls, fields: tuple[Field, ...], resolved: float) -> bool:
        return Number in map(type, fields) and resolved >= PAYS * _numbers(fields)

    def width(self, field: Field) -> int:
        return (
            self.knots + field.indicator if isinstance(field, Number) else self.knots * field.width
        )

    def norm(self, field: Field) -> float:
        return (
            math.sqrt(field.width) if isinstance(field, Grid) else field.norm
        )  # each number is a unit vector

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
        return np.column_stack((weights, missing))[:, : self.width(field)]

    def _weights(self, scaled: np.ndarray) -> np.ndarray:
        """Weights (n, knots) of numbers (n,) in [-1, 1]."""
        place = (np.clip(np.nan_to_num(scaled), -1, 1) + 1) / 2 * (self.knots - 1)
        left = np.minimum(place.astype(np.int64), self.knots - 2)
        way = place - left
        out, every = np.zeros((len(place), self.knots), dtype=np.float32), np.arange(len(place))
        length = np.hypot(1 - way, way)
        out[every, left], out[every, left + 1] = (1 - way) / length, way / length
        return out


# Numbers as the one of equal intervals that they lie in, so that a linear model learns a step
# function of each.


@final
@dataclass(frozen=True)
class Bins(RecordMap):
    """A map of numbers to one of several equal intervals between their public ends.

    The entry of a number's interval is 1, and all others are 0, so that a linear model learns a
    step function.

    Parameters
    ----------
    count : int, default 16
        Number of intervals, from 2 to 1000.

    Raises
    ------
    InputError
        If ``count`` is out of range.

    See Also
    --------
    Curves : A continuous curve instead of a step function.

    Examples
    --------
    >>> from lastiterate.features import Bins
    >>> Bins(count=4).words()
    'bins: the one of 4 equal intervals that a number lies in'
    """

    count: int = field(
        default=16, metadata=require(check_integer, "count of bins", least=2, most=1000)
    )
    name: ClassVar[str] = "bins"
    takes: ClassVar[tuple[type[Field], ...]] = (Number,)

    def width(self, field: Field) -> int:
        return self.count + field.width - 1

    def norm(self, field: Field) -> float:
        return field.norm

    def words(self) -> str:
        return f"bins: the one of {self.count} equal intervals that a number lies in"

    def rows(self, field: Field, values: Values) -> np.ndarray:
        given = np.asarray(values, dtype=np.float64)
        missing = np.isnan(given)
        place = ((np.clip(np.where(missing, 0, given), -1, 1) + 1) / 2 * self.count).astype(
            np.int64
        )
        place = np.where(missing, self.count, np.minimum(place, self.count - 1))
        return np.eye(self.count + 1, dtype=np.float32)[place][:, : self.width(field)]


# How records become rows: the fields of a record, the maps that speak of them, and a bound on
# every row's norm.

SLICE = 4096
"""Records that are mapped at once."""
SLACK = 1 + 1e-6
"""Of single precision, in a row's norm."""
Parts = tuple[tuple[Field, RecordMap | None, int], ...]
"""Fields, their maps, and how many numbers of a row each becomes."""


@final
@dataclass(frozen=True)
class RowForm:
    """The fields of a record in their order, and the maps in theirs; the first that takes a field
    maps it.

    Maps of whole records are applied to the row that this gives, one after the other.

    Errors: a map that takes none of the fields.
    """

    fields: tuple[Field, ...]
    maps: tuple[RecordMap, ...] = ()

    def __post_init__(self) -> None:
        used = {self._of(field) for field in self.fields}
        idle = next((one for one in self.maps if one not in used and Record not in one.takes), None)
        if idle is not None:
            kinds = " or ".join(kind.words for kind in idle.takes)
            before = next(
                (
                    one.name
                    for one in self.maps
                    for field in self.fields
                    if self._of(field) == one and isinstance(field, idle.takes)
                ),
                None,
            )
            if before is not None:
                rule = f"has nothing left to map for {idle.name}: {before} maps all its fields"
                raise InputError(
                    "features", rule, None, f'use one of the two, "{before}" or "{idle.name}"'
                )
            raise InputError(
                "features",
                f"has nothing to map: {idle.name} is for {kinds}",
                None,
                'name a map of its kinds, or "plain" for none',
            )

    def _of(self, field: Field) -> RecordMap | None:
        return next(
            (one for one in self.maps if isinstance(field, one.takes) and Record not in one.takes),
            None,
        )

    @cached_property
    def levels(self) -> tuple[Parts, ...]:
        """What is applied in turn: maps of fields, then every map of whole records."""
        pairs = [(field, self._of(field)) for field in self.fields]
        levels: list[Parts] = [
            tuple(
                (field, one, field.width if one is None else one.width(field))
                for field, one in pairs
            )
        ]
        for one in (one for one in self.maps if Record in one.takes):
            record = Record(_names(levels[-1]), _norm(levels[-1]))
            levels.append(((record, one, one.width(record)),))
        return tuple(levels)

    @property
    def parts(self) -> Parts:
        """What a row consists of."""
        return self.levels[-1]

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return sum(width for _, _, width in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called."""
        return _names(self.parts)

    @property
    def norm(self) -> float:
        """The largest Euclidean norm of a row; a public number, the same for all records."""
        return _norm(self.parts)

    def rows(self, values: Iterable[Values]) -> np.ndarray:
        """Rows (n, width) float32 of values, one array (n, ...) or list for each field.

        **Guarantee:** a row depends on its own record and on public facts only, and is at most
        ``norm`` long whatever the values are: each field's part is cut to its own bound, and what
        is no finite number is 0.
        """
        given = list(values)
        out = np.empty((len(given[0]), self.width), dtype=np.float32)
        for first in range(0, len(out), SLICE):
            columns: Sequence[Values] = [column[first : first + SLICE] for column in given]
            for level in self.levels[:-1]:
                columns = [np.concatenate(list(_map_fields(level, columns)), axis=1)]
            at = 0
            for part in _map_fields(self.parts, columns):
                out[first : first + SLICE, at : at + part.shape[1]] = part
                at += part.shape[1]
        return out


def _names(parts: Parts) -> tuple[str, ...]:
    return tuple(
        name
        for field, one, _ in parts
        for name in (field.names if one is None else one.names(field))
    )


def _norm(parts: Parts) -> float:
    return math.sqrt(
        sum((field.norm if one is None else one.norm(field)) ** 2 for field, one, _ in parts)
    )


def _map_fields(parts: Parts, columns: Sequence[Values]) -> Iterator[np.ndarray]:
    """Every field's part of the rows, at most as long as it says."""
    for (mapped, one, _), values in zip(parts, columns, strict=True):
        yield (
            _clip_rows(mapped.rows(values), mapped.norm)
            if one is None
            else _clip_rows(one.rows(mapped, values), one.norm(mapped))
        )


def _clip_rows(rows: np.ndarray, most: float) -> np.ndarray:
    """Rows of at most this norm, in single precision; a row that is longer is scaled down."""
    if not np.isfinite(rows).all():
        rows = np.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(rows.astype(np.float64, copy=False), axis=1, keepdims=True)
    if (norms <= most * SLACK).all():
        return rows.astype(np.float32, copy=False)
    scaled = rows / np.where(largest > 0, largest, 1.0)  # whose squares are finite
    long = norms[:, 0] > most * SLACK
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    return np.where(long[:, None], scaled / np.where(norms > 0, norms, 1.0) * most, rows).astype(
        np.float32
    )
