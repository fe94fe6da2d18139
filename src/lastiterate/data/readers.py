"""The table of file formats, and the public sets that come with scikit-learn."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from lastiterate import plugins
from lastiterate.data.binary_files import is_idx, read_batch, read_folder, read_npy, read_npz
from lastiterate.data.cell_values import is_day_of, is_number_of
from lastiterate.data.columns import MISSING, Array, Numeric
from lastiterate.data.csv_files import (
    STANDARD_INPUT,
    HeaderRule,
    is_text_table,
    read_csv,
    read_header,
    records_of,
)
from lastiterate.data.file_stream import read_idx
from lastiterate.data.parquet import ARROW, is_parts, read_blocks, read_parquet, read_types
from lastiterate.data.schema import Schema, read_schema
from lastiterate.data.schema_template import array_template, parse_columns, template
from lastiterate.data.table import Table, explain_read_errors, unreadable
from lastiterate.errors import InputError
from lastiterate.remote_files import is_remote, to_path

AT_ONCE = 2**12
"""Records of a public sample that are held at once."""

# Public sets that come with scikit-learn, with their published ranges.

BUNDLED = ("digits", "breast_cancer", "wine", "iris", "diabetes")
_ON_THE_SET = (
    "ranges as printed in the set's description; they were measured on the set itself, "
    "which is fine for a public set and not for yours"
)
# age, sex code, body mass index, blood pressure, s1..s6 of the unscaled set (Efron et al. 2004),
# rounded outwards
_DIABETES = (
    (19, 79),
    (1, 2),
    (18, 43),
    (62, 133),
    (97, 301),
    (41, 243),
    (22, 100),
    (2, 10),
    (3.2, 6.2),
    (58, 124),
)


def load_bundled(name: str) -> tuple[Table, Schema]:
    """A public set and its schema."""
    from sklearn import datasets  # pyright: ignore

    if name not in BUNDLED:
        raise InputError("data set", "must be a file or one of " + ", ".join(BUNDLED), name)
    bunch = cast(
        Any,
        datasets.load_diabetes(scaled=False)
        if name == "diabetes"
        else getattr(datasets, f"load_{name}")(),
    )
    table = Table(
        tuple(f"x{i}" for i in range(bunch.data.shape[1])),
        array=bunch.data,
        answers=bunch.target,
        shape=(8, 8) if name == "digits" else None,
    )
    if name == "diabetes":
        columns = tuple(Numeric(f"x{i}", *pair) for i, pair in enumerate(_DIABETES))
        return table, Schema(columns, target_range=(25.0, 346.0), source=_ON_THE_SET)
    classes = tuple(str(i) for i in range(len(bunch.target_names)))
    if name == "digits":
        return table, Schema(
            array=Array(0.0, 16.0), classes=classes, source="pixels count 0 to 16 by construction"
        )
    printed = re.findall(r"^[^:\n]+:\s+([\d.]+)\s+([\d.]+)", bunch.DESCR, re.MULTILINE)[
        : bunch.data.shape[1]
    ]
    columns = tuple(
        Numeric(f"x{i}", float(low), float(high)) for i, (low, high) in enumerate(printed)
    )
    return table, Schema(columns, classes=classes, source=_ON_THE_SET)


def split(n: int, seed: int, test_fraction: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """A random split of 0..n-1 into train and test indices; for public sets."""
    order = np.random.default_rng(seed).permutation(n)
    cut = n - round(n * test_fraction)
    return np.sort(order[:cut]), np.sort(order[cut:])


# The kinds of files that are read, one row each, and the schema to fill in for any of them.


@dataclass(frozen=True)
class Format:
    """A kind of file: what it is called in a refusal, how it is recognised, its reader, and its
    header."""

    called: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Table]
    header: Callable[[Path], dict[str, str]] | None = None
    """Names of the columns and the kinds that the format states ("?": none); ``None`` for arrays.
    """


def _ends(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix.lower() in suffixes


FORMATS = (
    Format("a folder of .parquet files", is_parts, read_parquet, read_types),
    Format("a CIFAR-10 folder", Path.is_dir, read_folder),
    Format(
        ".csv or .tsv (or .csv.gz, or - for standard input)",
        is_text_table,
        read_csv,
        lambda path: dict.fromkeys(read_header(path, stated=True), "?"),
    ),
    Format(".parquet", _ends(".parquet"), read_parquet, read_types),
    Format(".feather or .arrow", _ends(*ARROW), read_parquet, read_types),
    Format(".npz", _ends(".npz"), read_npz),
    Format(".npy", _ends(".npy"), read_npy),
    Format("CIFAR-10 .bin", _ends(".bin"), read_batch),
    Format("IDX (train-images-idx3-ubyte.gz)", is_idx, read_idx),  # last: it may look into the file
)


def header_rule(schema: Schema | None, header: bool | None = None) -> HeaderRule:
    """Return what a schema, or who reads a file, says about the first row of a CSV file."""
    if schema is None:
        return HeaderRule(header)
    needed = tuple(column.name for column in schema.columns if column.fields)
    return HeaderRule(
        schema.headed if header is None else header,
        schema.header,
        schema.described,
        needed,
        schema.target,
    )


def read_table(path: str | Path, schema: object = None, header: bool | None = None) -> Table:
    """The table in a file (or in a folder of CIFAR-10 batches); the first row of ``FORMATS`` that
    matches reads it. CSV, Parquet and Arrow may be addresses in a store, ``s3://BUCKET/NAME.csv``.

    ``schema``: a Schema, its dictionary, or the path of its TOML file; it names the columns of a
    CSV file, in its header or without one (the target may be missing from new records).
    ``header``: whether its first row is a header, where the schema does not decide. "-" reads a CSV
    table from standard input.
    """
    path, schema = to_path(path), None if schema is None else read_schema(schema)
    kind = find_format(path)
    if schema is not None and kind.read is not read_csv:
        check_has_names(schema, path)
    with explain_read_errors(path):
        if schema is not None and kind.read is read_parquet:
            return read_parquet(path, schema.numbers, schema.unread)
        return (
            read_csv(path, header_rule(schema, header))
            if kind.read is read_csv
            else kind.read(path)
        )


def check_has_names(schema: Schema, path: Path) -> None:
    """Refuse names of columns that belong to CSV files, for a file that has its own."""
    if schema.header:
        raise InputError(
            "header", "belongs to CSV files without one", path.name, "leave it out of the schema"
        )


def check_readable(path: str | Path, schema: Schema | None = None) -> None:
    """Refuse a file that is of no known kind, or whose header cannot be read; ``schema``: may name
    the columns of a CSV file without one."""
    path = to_path(path)
    kind = find_format(path)
    bare = schema is not None and schema.header and kind.read is read_csv
    try:
        if kind.header is not None and path != STANDARD_INPUT and not bare:
            kind.header(path)
    except OSError as error:
        raise unreadable(path, error) from None


def find_format(path: Path) -> Format:
    """The row of ``FORMATS`` that reads a file."""
    if path != STANDARD_INPUT and not (path.is_file() or path.is_dir()):
        raise refuse_missing(path)
    try:
        reader = next((kind for kind in FORMATS if kind.matches(path)), None)
        if reader is None:  # a plug-in never takes a file from a reader of this project
            others = plugins.find_all("readers", _accept).values()
            reader = next((kind for kind in others if kind.matches(path)), None)
    except OSError as error:
        raise unreadable(path, error) from None
    if reader is not None and is_remote(path) and reader.read not in (read_csv, read_parquet):
        raise InputError(
            "data file",
            "must be a table to be read from a store: CSV, Parquet or Arrow",
            path.name,
            "copy it to a disk of this machine first",
        )
    if reader is None:
        raise InputError(
            "data file",
            "must be one of: " + ", ".join(kind.called for kind in FORMATS),
            path.name,
            _way_in(path),
        )
    return reader


def refuse_missing(path: Path) -> InputError:
    """The refusal of a path where no file is."""
    return InputError(
        "data file",
        "must be an existing file, or a folder of Parquet files or CIFAR-10 batches",
        str(path),
    )


def _accept(name: str, value: object, package: str) -> Format:
    """Return the format of a plug-in; what it reads is marked, and its errors show no cell."""
    if type(value) is not Format:
        raise InputError("entry point", "must name a lastiterate.data.readers.Format", value)
    outside, given = plugins.Outside("readers", name, package), value

    def guard(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def call(path: Path) -> Any:
            try:
                return function(path)
            except (InputError, OSError, MemoryError):
                raise
            except Exception as error:
                raise InputError(
                    "data file",
                    f"must be readable by the reader {name} of {package}",
                    f"{path.name} ({type(error).__name__})",
                ) from None

        return call

    def read(path: Path) -> Table:
        table = guard(given.read)(path)
        if type(table) is not Table:
            raise InputError(
                "data file", f"must become a Table, and the reader {name} of {package} gives none"
            )
        return replace(table, outside=(outside,))

    return Format(
        given.called,
        guard(given.matches),
        read,
        None if given.header is None else guard(given.header),
    )


WAYS_IN = {
    (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar"): "unpack it first",
    (".xlsx", ".xls", ".xlsm", ".ods", ".numbers"): "save the sheet as CSV UTF-8",
    (".pq", ".parq"): "if it is a Parquet file, call it {stem}.parquet",
    ("", ".txt", ".dat", ".data", ".text"): "if it is a table of text, call it {stem}.csv",
}
"""What to do with a file that is not read, by the end of its name."""


def _way_in(path: Path) -> str:
    """A remedy for a file of another kind, by its name."""
    end = path.suffix.lower()
    said = next((way for ends, way in WAYS_IN.items() if end in ends), None)
    return (said or "write its table as CSV or Parquet with the program that reads it").format(
        stem=path.stem
    )


def schema_template(
    path: str | Path,
    *,
    columns: str | None = None,
    header: bool | None = None,
    like: dict[str, Any] | None = None,
    sample: str | Path | None = None,
    ask: Callable[[str, Sequence[str]], str] | None = None,
    target: str | None = None,
    decimal: str | None = None,
    dates: str | None = None,
) -> str:
    """A schema to fill in for a file, of which only the header is read (and the types that a
    Parquet file states).

    ``header``: whether its first row is a header, where that is ambiguous. ``columns``: kinds by
    name, "a:number,b:category"; with ``header`` False the names of a file without a header, in
    order. ``sample``: another file with the same columns that is public, whose cells may say what
    is a number. ``like``: a schema (as read from TOML) whose entries are taken over. ``ask``:
    answers the remaining questions. ``target``: the column to predict; otherwise the last one
    that is read. ``decimal`` ("," or ".") and ``dates`` ("day.month.year", "month/day/year"): how
    the file writes numbers and days.
    """
    path = to_path(path)
    kind = find_format(path)
    given = {} if columns is None else parse_columns(columns)
    if header is False and not given:
        raise InputError(
            "columns",
            "must name the columns in order where there is no header",
            None,
            "such as columns=NAME:KIND,...",
        )
    try:
        if kind.header is None:
            if target is not None:
                raise InputError(
                    "target", "is a column of a table", target, "leave it out: arrays have labels"
                )
            return array_template(kind.read(path).facts)
        types = (
            dict.fromkeys(given, "?")
            if header is False
            else kind.header(path)
            if kind.read is not read_csv
            else dict.fromkeys(read_header(path, header), "?")
        )
    except OSError as error:
        raise unreadable(path, error) from None
    strange = [name for name in given if name not in types]
    if strange:
        listed = (
            ", ".join(types)
            if set(types) & set(given)
            else "those of its first row, which has to be a header"
        )
        raise InputError(
            "columns", "must name columns of the file", strange[0], f"they are {listed}"
        )
    if target is not None and (target not in types or given.get(target) in ("id", "ignore")):
        raise InputError(
            "target",
            "must be a column of the file that is neither an id nor ignored",
            target,
            "give it another kind"
            if target in types
            else "its first row must be a header with that name",
        )
    guessed = (
        {}
        if sample is None
        else _guess_kinds(
            _read_sample(
                to_path(sample), HeaderRule(names=tuple(types)) if header is False else header
            ),
            decimal or str((like or {}).get("decimal", ".")),
            dates or str((like or {}).get("dates", "year-month-day")),
        )
    )
    kinds = {
        name: given.get(name, "?")
        if given.get(name, "?") != "?"
        else guessed.get(name, stated)
        if stated in ("?", "category")
        else stated  # cells say less than a type does
        for name, stated in types.items()
    }
    return template(
        kinds,
        header=header,
        known=like,
        ask=ask,
        predicted=target,
        stated=given,
        decimal=decimal,
        dates=dates,
    )


def _read_sample(path: Path, rule: HeaderRule | bool | None) -> Iterator[Table]:
    """A table as text, some records after the others where its kind allows that; ``rule``: what is
    known of the first row."""
    of_text = isinstance(rule, HeaderRule)
    kind = None if of_text else find_format(path)
    if of_text or (kind is not None and kind.read is read_csv):
        with (
            explain_read_errors(path),
            records_of(path, rule if of_text else HeaderRule(rule)) as (names, records),
        ):
            empty = True
            while rows := list(islice(records, AT_ONCE)):
                empty, columns = False, zip(names, zip(*rows, strict=True), strict=True)
                yield Table(
                    names, {name: [cell.strip() for cell in cells] for name, cells in columns}
                )
        if empty:
            raise InputError("data file", "must hold a header and at least one record", path.name)
        return
    if kind is not None and kind.read is read_parquet:
        with explain_read_errors(path):
            yield from read_blocks(path, AT_ONCE, (), (), read_types(path))
        return
    yield read_table(path, header=None if of_text else rule)


@dataclass
class _Seen:
    """What the cells of a column of a public table have in common; ``texts``: the different ones,
    as long as all are."""

    number: bool = True
    day: bool = True
    spaces: bool = False
    cells: int = 0
    texts: set[str] | None = field(default_factory=set[str])

    def add(self, cells: Iterable[object], decimal: str, dates: str) -> None:
        """Look at some more cells."""
        texts = [text for text in map(str, cells) if text.lower() not in MISSING]
        self.number = self.number and all(is_number_of(text, decimal) for text in texts)
        self.day = self.day and all(is_day_of(text, dates) for text in texts)
        self.spaces = self.spaces or any(" " in text for text in texts)
        self.cells += len(texts)
        if self.texts is not None:
            self.texts.update(texts)
            self.texts = self.texts if len(self.texts) == self.cells else None

    @property
    def kind(self) -> str:
        """The kind of column that this is."""
        if self.number or self.day:
            return "number" if self.number else "date"
        return "text" if self.texts is not None and self.cells > 1 and self.spaces else "category"


def _guess_kinds(tables: Iterable[Table], decimal: str, dates: str) -> dict[str, str]:
    """Numbers, days, text and categories by the cells of a public table, which writes numbers and
    days as ``decimal`` and ``dates`` say."""
    seen = dict[str, _Seen]()
    for table in tables:
        if table.cells is None:
            raise InputError("from_public_sample", "must be a table with a header")
        for name in table.names:
            seen.setdefault(name, _Seen()).add(table.cells[name], decimal, dates)
    return {name: one.kind for name, one in seen.items()}
