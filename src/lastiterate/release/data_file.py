"""A data file as it is opened: its form and public facts first, its values when they have been paid
for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from lastiterate.data import BUNDLED, Schema, check_readable, encode, load_bundled, split
from lastiterate.data.columns import Category, Numeric
from lastiterate.data.encoding import TIMES, check_stated, encode_public, find_faults, form_of
from lastiterate.data.file_stream import Stream
from lastiterate.data.readers import find_format
from lastiterate.data.record_source import (
    EncodedSource,
    estimate_memory,
    find_faults_of,
    is_table,
    open_stream,
    open_table,
    streams,
)
from lastiterate.data.schema import check_classes
from lastiterate.data.table import Table
from lastiterate.errors import InputError
from lastiterate.features.column_maps import RowForm
from lastiterate.limits import free_memory, memory
from lastiterate.planning.task import Task
from lastiterate.release.score_meaning import Labels, Range
from lastiterate.release.training_request import LazyRecords
from lastiterate.release.units import Units
from lastiterate.remote_files import schema_beside, to_path
from lastiterate.run.preprocessing import PrivateCovariance, columns
from lastiterate.run.run import Run

SAMPLE = "bayes-linear"
MODELS = ("logistic", "huber-ridge", SAMPLE)
SHARE = 0.6
"""Of the machine's memory that values may take."""
PROGRAM, LEAST = 5 * 10**8, 10**9
"""Bytes that a command takes without a file's rows, about, and the least that it may be given."""
MARGIN = 2**19
"""Bytes for all theorems' verdicts in a certificate, and for what else does not depend on the
data's form."""


@dataclass(frozen=True)
class MemoryBound:
    """Bytes of memory that a command may take, about: as somebody ``stated``, or a quarter of what
    is free; ``room``: those for records, where that was found out before."""

    stated: int | None = None
    room: float | None = None

    def __post_init__(self) -> None:
        if self.stated is not None and self.stated < LEAST:
            raise InputError(
                "memory",
                f"must be at least {LEAST / 1e6:.0f} MB, which the program itself takes",
                self.stated,
                "such as 1GB",
            )

    @property
    def most(self) -> float:
        """Bytes for records, next to the program itself."""
        if self.room is not None:
            return self.room
        return free_memory() / 4 if self.stated is None else self.stated - PROGRAM

    def covers(self, size: int) -> bool:
        """Whether records of ``size`` bytes may be held in memory."""
        return size <= self.most

    @property
    def words(self) -> str:
        """The bound as the end of a sentence."""
        if self.stated is None:
            return f"a quarter of the free memory is {self.most / 1e9:.3g} GB; memory=BYTES allows more"
        return f"memory={self.stated} leaves them {self.most / 1e9:.3g} GB"


def format_least(size: int) -> str:
    """The least bound that holds records of ``size`` bytes."""
    return f"{(size + PROGRAM) / 1e9:.3g} GB"


@dataclass(frozen=True, eq=False)
class DataFile:
    """A data file of which only the form is known yet: how many records, how many features.

    ``table``: cells or an array, or what reads them block by block. ``nominal``: the public number
    of records, where the data's own is private. ``row_norm``, ``held`` (public test data): see
    ``map_rows``. ``in_pieces``: whether steps read the file's rows in pieces, and not from memory.
    """

    table: Table | Stream | EncodedSource
    schema: Schema
    bundled: bool
    rows_per_unit: int = 1
    who: np.ndarray | None = None  #: the unit of every row
    nominal: int | None = None
    row_norm: float = 0.0
    held: tuple[np.ndarray, np.ndarray] | None = None
    in_pieces: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record as it is read."""
        assert not isinstance(self.table, EncodedSource)
        return self.table.shape or (len(self.table.names),)

    @property
    def count(self) -> int:
        """The public number of records, or of units: how many rows these have is theirs."""
        records = len(self.table) if self.who is None else len(np.unique(self.who))
        return self.nominal or records

    def map_rows(self, schema: Schema, *, test: str | None, row_norm: float | None) -> DataFile:
        """The file with the schema whose maps make its rows, and a public test file, read whole."""
        if isinstance(self.table, Table):
            table, head, form = self.table, self.table, form_of(self.table, schema)
        else:
            assert not isinstance(self.table, EncodedSource)
            table, head = EncodedSource(self.table, schema), self.table.head
            form = table.form
        check_stated(head, schema)
        held = None if test is None else _public_test(test, schema, form.width)
        norm = form.norm if row_norm is None else row_norm
        return replace(self, table=table, schema=schema, row_norm=norm, held=held)

    @property
    def task(self) -> Task:
        """What the planner may know: public numbers only."""
        classes = 0 if self.schema.regression else len(self.schema.classes)
        n = self.nominal or (len(self._kept[0]) if self.bundled else len(self.table))
        return Task(n, self.features, classes, self.row_norm, self.rows_per_unit)

    @property
    def features(self) -> int:
        """Columns of a row."""
        return self.form.width

    @property
    def form(self) -> RowForm:
        """How records become rows."""
        if isinstance(self.table, Table):
            return form_of(self.table, self.schema)
        assert isinstance(self.table, EncodedSource)
        return self.table.form

    def size(self, run: Run | None = None) -> int:
        """Bytes that a model of these data takes on disk, at most: weights, preparation, schema,
        certificate."""
        task, wide = self.task, 0
        width = task.features
        if run is not None:
            width = columns(run.preprocessing, task.features)
            wide = sum(
                width**2 for part in run.preprocessing if isinstance(part, PrivateCovariance)
            )
        numbers = (max(1, task.classes) + 4) * (width + 1) + wide
        said = len(json.dumps(self.schema.to_dict(), indent=2)) + (
            0 if run is None else 4 * len(run.to_json())
        )
        return 8 * numbers + 2 * said + MARGIN

    @property
    def records(self) -> Table | Stream:
        """The rows of the file that are used, as cells or numbers."""
        return self.table.stream if isinstance(self.table, EncodedSource) else self.table

    @property
    def memory(self) -> int:
        """Bytes that the rows take in memory while a run trains on them, about."""
        return TIMES * 4 * len(self.table) * (self.form.width + 1)

    @property
    def answers(self) -> Labels | Range:
        """What scores of a model of these data mean."""
        bounds = self.schema.target_range
        return (
            Labels(self.schema.classes)
            if bounds is None
            else Range(float(bounds[0]), float(bounds[1]))
        )

    @property
    def data(self) -> EncodedSource | LazyRecords:
        """Rows and targets: a source of them, or not yet read."""
        if isinstance(self.table, EncodedSource) and self.in_pieces:
            return self.table
        return LazyRecords(lambda: self.rows, self._iterate_arrays)

    def _iterate_arrays(self) -> Iterable[np.ndarray]:
        """The bytes of the file, or of the arrays in memory."""
        if not isinstance(self.table, Table):
            assert isinstance(self.table, EncodedSource)
            return self.table.fingerprint()
        parts = (self.table.array, self.table.answers, *(self.table.cells or {}).values())
        return (np.asarray(part) for part in parts if part is not None)

    @property
    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """The values to train on: rows (n, d) and targets (n,)."""
        features, target = self._encoded
        kept = self._kept[0] if self.bundled else slice(None)
        return features[kept], target[kept]

    @property
    def tested(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rows and targets that are public: what is held out of a bundled set, or a test file's; the
        targets of a regression as they are written, also outside the public range."""
        if not self.bundled:
            return self.held
        assert isinstance(self.table, Table)
        (features, target), out = encode_public(self.table, self.schema), self._kept[1]
        return features[out], target[out]

    @cached_property
    def _encoded(self) -> tuple[np.ndarray, np.ndarray]:
        if isinstance(self.table, Table):
            return encode(self.table, self.schema)
        assert isinstance(self.table, EncodedSource)
        return self.table.read_whole()

    def find_faults(self) -> list[InputError]:
        """Return the first refusal of each column and of the target among the rows that ``rows``
        reads; none where training takes them all."""
        if isinstance(self.records, Table):
            return find_faults([self.records], self.schema)
        return find_faults_of(self.records, self.schema)

    @property
    def _kept(self) -> tuple[np.ndarray, np.ndarray]:
        return split(len(self.table), seed=0)


def open_file(
    data: str,
    schema: Schema | None,
    *,
    units: Units | None = None,
    stream: bool = False,
    nominal: int | None = None,
) -> DataFile:
    """The file, not yet encoded, bounded to a public number of rows per unit.

    ``nominal``: the public number that is used as the number of records where that is private.
    ``stream``: the values will be read piece by piece.
    """
    bundled, who = data in BUNDLED, None
    if stream and bundled:
        raise InputError("stream", "is for files of your own", data, "leave it out")
    if schema is None and not bundled:
        raise needs_schema(data)
    if bundled or schema is None:
        table, own = load_bundled(data)
    else:
        table, own = (open_stream if stream else open_table)(data, schema), schema
    if units is not None:
        table, who = units.limit_rows(table, own)
    if len(table) < 2:
        raise InputError("data file", "must hold at least two records", len(table))
    rows = 1 if units is None else units.rows
    return DataFile(table, own, bundled, rows, who, nominal, in_pieces=stream)


def is_array_too_large(data: str, bound: MemoryBound) -> bool:
    """Whether the values of an array file have to be read in pieces; of a table that is known when
    it is open."""
    if data in BUNDLED or not streams(data) or is_table(data):
        return False
    size = int(estimate_memory(data))
    return not bound.covers(size) if bound.stated else size > SHARE * memory()


def _public_test(path: str, schema: Schema, width: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        table = open_table(path, schema)
        if isinstance(table, Table):
            features, target = encode_public(table, schema)
        else:
            features, target = EncodedSource(table, schema).read_whole(public=True)
        if schema.regression:
            _check_numbers(target, schema.target)
    except InputError as error:
        raise error.with_clause(f"this is in the test file {path}") from None
    if features.shape[1] != width:
        raise InputError(
            "test", f"must have {width} features like the data file", features.shape[1]
        )
    return features, target


def _check_numbers(target: np.ndarray, name: str) -> None:
    """Refuse targets of a test of which no R^2 can be computed."""
    if not np.isfinite(target).all():
        record = int(np.argmin(np.isfinite(target))) + 1
        raise InputError(
            f"target {name!r}",
            f"must be finite numbers, and is not in record {record}",
            None,
            "correct the cell, or leave the record out",
        )
    if len(np.unique(target)) < 2:
        raise InputError(
            f"target {name!r}",
            "must hold two different numbers at least, or R^2 has no meaning",
            None,
            "add records, or train without a test file",
        )


def schema_for(
    data: str,
    path: Path | None,
    *,
    target: str | None,
    classes: str | None,
    model: str | None,
    header: bool | None = None,
) -> Schema | None:
    """The schema of a data file with what the flags change in it; ``None`` for bundled sets.

    Without a ``path`` it is the file of the same name that ends in .toml.
    """
    if model not in (None, *MODELS):
        raise InputError("model", "must be one of " + ", ".join(MODELS), model)
    if data in BUNDLED:
        for name, value in (
            ("schema", path),
            ("target", target),
            ("classes", classes),
            ("header", header),
        ):
            if value is not None:
                raise InputError(
                    name,
                    "cannot be combined with a bundled set, which has its own schema",
                    str(value),
                    "leave it out",
                )
        _check_fits(model, load_bundled(data)[1])
        return None
    if path is None:
        path = schema_beside(data)
        find_format(to_path(data))  # a bad file is reported first
        if not path.is_file():
            check_readable(data)
            raise needs_schema(data)
    listed = () if classes is None else tuple(name.strip() for name in classes.split(","))
    if listed:  # said of the flag: what is wrong in the file is said of the schema
        check_classes("classes", listed)
    schema = Schema.read(path, listed if target is None else ()).with_header(header)
    if target is not None:
        if listed:  # what its column says of numbers says nothing of labels
            columns = tuple(
                Category(target, listed)
                if isinstance(column, Numeric) and column.name == target
                else column
                for column in schema.columns
            )
            schema = replace(schema, columns=columns)
        schema = schema.with_target(target)
        schema = replace(schema, classes=listed, target_range=None) if listed else schema
    _check_fits(model, schema)
    return schema


def _check_fits(model: str | None, schema: Schema) -> None:
    """Refuse a model for numbers where the schema has classes, and the other way round."""
    if model is None or schema.regression == (model != "logistic"):
        return
    if model == SAMPLE:
        raise InputError(
            "model", "needs a target that is a range of numbers", SAMPLE, "use logistic for classes"
        )
    raise InputError(
        "model",
        "does not fit the target: the schema says "
        + ("a range of numbers" if schema.regression else "classes"),
        model,
        "use huber-ridge" if schema.regression else "use logistic",
    )


def needs_schema(data: str) -> InputError:
    return InputError(
        "schema",
        f"is needed: the public ranges, categories and classes of {to_path(data).name}",
        None,
        f"write one to fill in with: lastiterate schema {data} --out {schema_beside(data)}",
    )
