"""How records become rows: the fields of a record, the maps that speak of them, and a bound on
every row's norm."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.features.columns import RecordMap
from lastiterate.features.record_fields import Field, Record, Values

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
    for (field, one, _), values in zip(parts, columns, strict=True):
        yield (
            _clip_rows(field.rows(values), field.norm)
            if one is None
            else _clip_rows(one.rows(field, values), one.norm(field))
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
