"""From a table and its schema to rows and targets: public scaling to [-1, 1], public maps, class
indices."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np

from lastiterate.data.cell_values import (
    RANGE,
    Positions,
    numbers,
    plain_cells,
    read_numbers,
    refuse_in_turn,
    values_of,
)
from lastiterate.data.columns import MISSING, Category, Column, Date, Numeric, day_number
from lastiterate.data.schema import Schema, read_schema
from lastiterate.data.table import (
    Cells,
    CodedCells,
    Table,
    canonical_text,
    check_header,
    is_number,
    list_names,
    misses,
    number_text,
    spelt_alike,
    suggest_name,
    to_doubles,
)
from lastiterate.errors import InputError
from lastiterate.features.column_maps import SLICE, RowForm
from lastiterate.features.record_fields import Values
from lastiterate.limits import memory

TIMES = 3
"""Tables of 4 bytes per entry that a fit holds at once, about."""


def encode_features(table: Table, schema: object) -> np.ndarray:
    """Rows, shape (n, d), float32: the columns in the schema's order, scaled to [-1, 1], and
    through its maps. ``schema``: a Schema, its dictionary, or the path of its TOML file."""
    schema = read_schema(schema)
    _check_table(table)
    form = form_of(table, schema)
    if table.array is not None:
        return _encode_array(table, schema, form)
    return form.rows(
        values
        for column in schema.columns
        if column.fields
        for values in _column_values(table, schema, column)
    )


_OTHER_SCHEMA = re.compile(r",? or (?=train |in the schema)")
"""What stands before the remedies that need a schema of another training."""


def keep_schema(error: InputError, data: str) -> InputError:
    """The error of new records ``data`` for a trained model: another schema would need another fit,
    which costs epsilon."""
    found = _OTHER_SCHEMA.search(error.rule)
    if found is None:
        return error
    rule = error.rule[: found.start()].rstrip(" ,;")
    return InputError(error.argument, f"{rule}; rewrite {data}, not the schema")


def _column_values(table: Table, schema: Schema, column: Column) -> tuple[Values, ...]:
    """What a column gives to each of its fields; refuses cells that break its rules."""
    assert table.cells is not None
    cells = table.cells[column.name]
    return values_of(column, _plain(schema, column, cells, table.first), table.first)


def _plain(schema: Schema, column: Column, cells: Cells, first: int) -> Cells:
    return plain_cells(column, cells, first, decimal=schema.decimal, dates=schema.dates)


def form_of(table: Table, schema: Schema) -> RowForm:
    """How a table's records become rows, from the columns' names alone: no value is looked at.

    Errors: columns that the schema does not know, maps that fit none of them, and more features
    than memory holds.
    """
    form = schema.form(table.shape or (len(table.names),))
    if table.array is not None:
        _array_columns(table, schema)
    else:
        _check_columns(table, schema)
    width = form.width
    if TIMES * 4 * len(table) * width > memory():
        raise InputError(
            "schema",
            f"makes {width} features of {len(table)} records, which need about "
            f"{TIMES * 4e-9 * len(table) * width:.0f} GB of memory",
            None,
            'list fewer categories and let outside = "zero" take the rare ones, or ignore the '
            "column",
        )
    return form


def _check_columns(table: Table, schema: Schema) -> None:
    """Refuse cells whose columns are not those of the schema."""
    assert table.cells is not None
    if schema.array is not None:
        raise InputError(
            "schema",
            "has an [array] entry, which speaks of numeric arrays",
            None,
            "describe the columns",
        )
    check_header(table.names, schema.described)
    used = [column for column in schema.columns if column.fields]
    for column in used:
        if column.name not in table.cells:
            raise misses(column.name, table.names, schema.described)
    unknown = sorted(set(table.names) - schema.described)
    if unknown:
        raise InputError(
            "data file",
            "has a column that the schema does not describe",
            unknown[0],
            f"the schema calls it {alike[0]!r}: rename it in the file or in the schema"
            if (alike := spelt_alike(unknown[0], sorted(schema.described - set(table.names))))
            else suggest_name(unknown[0], sorted(schema.described - set(table.names)))
            + "leave it out of the file, or train with an entry for it in the schema (kind = "
            '"ignore")',
        )
    if not used:
        raise InputError("schema", "ignores every column", None, "describe at least one feature")


def _check_table(table: object) -> None:
    """Refuse what is no table of ``read_table``."""
    if not isinstance(table, Table):
        raise InputError(
            "table",
            "must be what read_table returns",
            type(table).__name__,
            "read a file by read_table(FILE, schema); SchemaTransformer(schema).fit_transform "
            "takes data frames",
        )


def encode(table: Table, schema: object) -> tuple[np.ndarray, np.ndarray]:
    """Features and target: class indices (n,) int32, or for regression numbers scaled to [-1, 1]
    (n,) float32. ``schema``: as in ``encode_features``."""
    schema = read_schema(schema)
    _check_table(table)
    try:
        features = encode_features(table, schema)
        return features, _table_target(table, schema)
    except InputError as error:
        raise _number_in_file(error, table) from None


def encode_public(table: Table, schema: Schema) -> tuple[np.ndarray, np.ndarray]:
    """Features and target of records to score on, which are public: class indices, or for regression
    the table's own numbers (n,) float64, which may lie outside the public range."""
    features, _ = encode(table, schema)
    return features, _public_target(table, schema)


def _table_target(table: Table, schema: Schema) -> np.ndarray:
    return _target(_answers(table, schema), schema, table.first)


def _public_target(table: Table, schema: Schema) -> np.ndarray:
    if schema.target_range is None:
        return _table_target(table, schema)
    column, cells = _target_cells(_answers(table, schema), schema, table.first)
    return read_numbers(column, cells, table.first)


def encode_tables(
    tables: Iterable[Table], schema: Schema, count: int, *, public: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """``encode`` of the ``count`` records of tables of cells that lie one behind the other; or,
    where they are ``public``, ``encode_public``.

    **Guarantee:** rows are those of one whole table, to the last bit, and so is what is refused:
    maps get the same records at once, and of several faults the one that ``encode`` names is raised.
    """
    every = iter(tables)
    features, target = np.empty((0, 0), np.float32), np.empty(0)
    form, held, done, read = None, list[Values](), 0, 0
    for table in every:
        try:
            form = form_of(table, schema)
            values = [
                part
                for column in schema.columns
                if column.fields
                for part in _column_values(table, schema, column)
            ]
            answers = (_public_target if public else _table_target)(table, schema)
        except InputError as error:
            faults = find_faults(chain([table], every), schema)
            raise (faults[0] if faults else error) from None
        if read == 0:
            features = np.empty((count, form.width), np.float32)
            target = np.empty(count, answers.dtype)
        read += len(table)
        if read > count:
            break
        target[read - len(table) : read] = answers
        held = [_join_values(*pair) for pair in zip(held, values, strict=True)] if held else values
        whole = read - done if read == count else (read - done) // SLICE * SLICE
        features[done : done + whole] = form.rows([part[:whole] for part in held])
        done, held = done + whole, [part[whole:] for part in held]
    if read != count:
        raise InputError(
            "data file",
            f"must hold the {count} records that were counted",
            "more" if read > count else read,
            "nothing may change it while it is read",
        )
    return features, target


def _join_values(one: Values, other: Values) -> Values:
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    return np.concatenate((np.asarray(one), np.asarray(other)))


def _number_in_file(error: InputError, table: Table) -> InputError:
    """The same error with the record's number in the file, also where rows before it were left out."""
    if table.kept is None:
        return error
    of = np.flatnonzero(table.kept) + 1 + table.first
    rule = re.sub(  # the last one: names of classes stand in front of it
        r"(.* in record )([0-9]+)(?=;)",
        lambda found: f"{found[1]}{of[int(found[2]) - 1 - table.first]}",
        error.rule,
        count=1,
        flags=re.DOTALL,
    )
    return InputError(error.argument, rule.removesuffix("."))


def find_faults(tables: Iterable[Table], schema: Schema) -> list[InputError]:
    """The first refusal of each column and of the target in tables that lie one behind the other;
    none where ``encode`` takes them all.

    A column that is refused for several reasons is refused for the one that ``encode`` names, which
    looks at a whole column for one reason after the other.
    """
    found = dict[tuple[int, int], InputError]()
    for table in tables:
        try:
            encode(table, schema)
            continue
        except InputError as error:
            first = error
        for place, checks in enumerate(_checks_of(table, schema)):
            for stage, check in enumerate(checks):
                if (place, stage) in found:
                    continue
                try:
                    check()
                except InputError as error:
                    found[place, stage] = _number_in_file(error, table)
                    break
        if first.argument not in (one.argument for one in found.values()):
            found.setdefault((-1, 0), first)
    first_faults = dict[int, InputError]()
    for place, stage in sorted(found):
        first_faults.setdefault(place, found[place, stage])
    return list(first_faults.values())


def _checks_of(table: Table, schema: Schema) -> list[list[Callable[[], object]]]:
    """What refuses cells of every column and of the target, each for one more reason than the
    check before it."""
    if table.cells is None:
        return [
            [partial(encode_features, table, schema)],
            [partial(_table_target, table, schema)],
        ]
    checks = list[list[Callable[[], object]]]()
    for column in schema.columns:
        if column.name in table.cells and column.fields:
            cells = table.cells[column.name]
            checks.append(
                [
                    partial(_plain, schema, column, cells, table.first),
                    *(
                        partial(_column_values, table, schema, one)
                        for one in refuse_in_turn(column)
                    ),
                ]
            )
    if not schema.regression:
        return [*checks, [partial(_table_target, table, schema)]]

    def check_target(turn: int | None) -> None:
        column, cells = _target_cells(_answers(table, schema), schema, table.first)
        if turn is not None:
            values_of(refuse_in_turn(column)[turn], cells, table.first)

    return [*checks, [partial(check_target, turn) for turn in (None, 0, 1, 2)]]


def check_stated(table: Table, schema: Schema) -> None:
    """Refuse what a table's names and types contradict, before a cell is looked at: a target that
    is not there, and columns of another kind than the schema says."""
    answers = _answers(table, schema)
    stated = table.types.get(schema.target)
    if table.cells is None and isinstance(answers, np.ndarray):
        stated = _OF_ARRAYS.get(answers.dtype.kind)
    for column in schema.columns if table.cells is not None else ():
        if column.name in table.types:
            _check_type(f"column {column.name!r}", column, table.types[column.name])
    if stated is not None:
        _check_type(
            f"target {schema.target!r}",
            Category(schema.target, schema.classes)
            if schema.target_range is None
            else Numeric(schema.target, *schema.target_range),
            stated,
        )


_OF_ARRAYS = {"b": "true/false", "i": "integers", "u": "integers", "f": "numbers", "U": "text"}


def _check_type(where: str, column: Column, stated: str) -> None:
    """Refuse a column of which no cell can be what the schema says."""
    wanted = ""
    match column:
        case Numeric(missing=missing):
            wanted = "numbers" if stated in ("days", "times of day") else ""
        case Date(missing=missing):
            wanted = "" if stated in ("days", "text", "nothing") else "days"
        case Category(values=values, outside=outside, missing=missing):
            possible = stated == "nothing" or any(
                _can_be(stated, canonical_text(value)) for value in values
            )
            wanted = "" if possible or outside != "refuse" else "one of " + ", ".join(values)
        case _:
            return
    if stated == "nothing" and missing == "refuse":
        wanted = "a value in every record"
    if wanted:
        raise InputError(
            where,
            f"must hold {wanted}, and by its type in the file it holds {stated}",
            None,
            "change the schema, or write the file with another type",
        )


def _can_be(stated: str, value: str) -> bool:
    """Whether a cell of a column of such a type can be this public value, in its canonical form."""
    match stated:
        case "true/false":
            return value in ("True", "False")
        case "integers":
            return re.fullmatch(r"-?([0-9]+|[0-9](\.[0-9]+)?e\+[0-9]+)", value) is not None
        case "numbers":
            return is_number(value)
        case "days":
            return day_number(value) is not None
        case "times of day":
            return ":" in value
        case _:
            return stated == "text"


def _answers(table: Table, schema: Schema) -> Cells:
    if table.cells is not None:
        if schema.target not in table.cells:
            raise InputError(
                "target",
                "must be a column of the data file",
                schema.target,
                "the columns are " + list_names(table.names),
            )
        return table.cells[schema.target]
    if table.answers is None:
        raise InputError(
            "data file", "has no labels to learn from", None, f"they belong in {table.answers_in}"
        )
    return table.answers


def _target_cells(answers: Cells, schema: Schema, first: int) -> tuple[Numeric, Cells]:
    """A regression's target as a column, and its cells with a decimal point."""
    assert schema.target_range is not None
    column = Numeric(schema.target, *schema.target_range)
    if isinstance(answers, np.ndarray) and answers.dtype.kind in "biuf":
        return column, to_doubles(answers)
    texts = (
        answers
        if isinstance(answers, CodedCells)
        else [x if isinstance(x, str) else str(x) for x in answers]
    )
    return column, _plain(schema, column, texts, first)


def _target(answers: Cells, schema: Schema, first: int) -> np.ndarray:
    if schema.target_range is not None:
        return numbers(*_target_cells(answers, schema, first), first).astype(np.float32)
    place = Positions(schema.classes)
    if (
        isinstance(answers, np.ndarray) and answers.dtype.kind in "biu"
    ):  # few labels, each looked up once
        labels, which = np.unique(answers, return_inverse=True)
        indices = place.of(map(label_text, labels)).astype(np.int32)[which]
    elif isinstance(answers, CodedCells):
        indices = place.of(map(label_text, answers.texts)).astype(np.int32)[answers.codes]
    else:
        indices = place.of(map(label_text, answers)).astype(np.int32)
    if (indices < 0).any():
        wrong = int(np.argmin(indices))
        what = "another label" if label_text(answers[wrong]).lower() not in MISSING else "no label"
        raise InputError(
            f"target {schema.target!r}",
            f"must hold only the classes {', '.join(schema.classes)}, and has {what} in record "
            f"{first + wrong + 1}",
            None,
            "correct the label or the classes",
        )
    return indices


def label_text(value: object) -> str:
    """Return a label as a file writes it; 3, 3.0, Decimal("3.00") and "3.0" are the same class,
    "3"."""
    if isinstance(value, float | np.floating):
        return canonical_text(number_text(cast("float | np.floating[Any]", value)))
    return canonical_text(str(value).strip())


def _array_columns(table: Table, schema: Schema) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Public ends of every column of an array, and whether what lies outside is refused; (d,) each."""
    assert table.array is not None
    if schema.array is not None:
        low = np.full(table.array.shape[1], schema.array.low, dtype=np.float64)
        high, refuse = (
            np.full_like(low, schema.array.high),
            np.full(low.shape, schema.array.outside == "refuse"),
        )
    else:
        columns = _numeric(schema)
        if tuple(column.name for column in columns) != table.names:
            raise InputError(
                "schema",
                f"must describe x0 ... x{len(table.names) - 1} as numbers, or give one [array]",
                f"{len(columns)} numbers",
            )
        low, high = (
            np.array([c.low for c in columns], dtype=np.float64),
            np.array([c.high for c in columns]),
        )
        refuse = np.array([c.outside == "refuse" for c in columns])
    return low, high, refuse


def _numeric(schema: Schema) -> list[Numeric]:
    return [column for column in schema.columns if isinstance(column, Numeric)]


def _encode_array(table: Table, schema: Schema, form: RowForm) -> np.ndarray:
    assert table.array is not None
    low, high, refuse = _array_columns(table, schema)
    out = np.empty((len(table.array), form.width), dtype=np.float32)
    for start in range(0, len(out), SLICE):
        values = table.array[start : start + SLICE]
        # named columns may be those of a file as well, whose cells are the shortest text of their
        # numbers
        values = values.astype(np.float64) if schema.array is not None else to_doubles(values)
        bad = ((values < low) | (values > high)) & refuse
        if bad.any():
            record, column = np.argwhere(bad)[0]
            raise InputError(
                f"column {table.names[column]!r}",
                f"has a value outside its public range in record "
                f"{table.first + start + int(record) + 1}",
                None,
                RANGE,
            )
        values = np.clip(values, low, high)
        out[start : start + SLICE] = form.rows(
            [((values - low) / (high - low) * 2 - 1).astype(np.float32)]
            if schema.array is not None
            else [
                column.to_unit(cells)
                for column, cells in zip(_numeric(schema), values.T, strict=True)
            ]
        )
    return out
