"""From the cells of a column to the values of its fields.

Every rule is public, and every record is read by itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from lastiterate.data.columns import (
    INDICATOR,
    MISSING,
    Category,
    Column,
    Date,
    Id,
    Ignore,
    Numeric,
    Words,
    day_number,
)
from lastiterate.data.table import Cells, CodedCells, NumberText, canonical_text, is_number
from lastiterate.errors import InputError
from lastiterate.features.record_fields import Values

RANGE = 'correct the cell, or train with another public range or outside = "clip" in the schema'
"""Remedies hold before training and for the new records of a trained model, whose schema is fixed.
"""
MARKS = (
    'an empty cell, "?", NA, NaN, null and None are missing values: write another mark, such as "-", '
    "as an empty cell"
)
TRUTHS = {"true": 1.0, "false": 0.0}
"""Cells (lower case, stripped) that a number column reads as numbers, as arrays have true and
false."""


class Positions(dict[str, int]):
    """Positions of public values in their list, by the cell as it is written or else by its
    canonical form.

    Cells that are no value are -1, or ``missing`` where they are a mark of that. Values that are
    one number, such as 1.1 and 1.10, are known by their own text alone.
    """

    def __init__(self, values: Sequence[str], missing: int = -1) -> None:
        super().__init__((value, index) for index, value in enumerate(values))
        self._missing, forms = missing, [canonical_text(value) for value in values]
        counts = Counter(forms)
        self.forms = {form: index for index, form in enumerate(forms) if counts[form] == 1}

    def __missing__(self, cell: str) -> int:
        index = self.forms.get(canonical_text(cell))
        if index is None:
            index = self._missing if cell.lower() in MISSING else -1
        self[cell] = index
        return index

    def of(self, cells: Iterable[str]) -> np.ndarray:
        """Return the positions of cells, (n,)."""
        if isinstance(cells, CodedCells):
            return self.of(cells.texts)[cells.codes]
        return np.array([self[cell] for cell in cells], dtype=np.int64)


DECIMALS = (".", ",")
ORDERS = {"year-month-day": (), "day.month.year": (3, 2, 1), "month/day/year": (3, 1, 2)}
"""How a file may write days; the groups of ``_DAY`` that are year, month and day."""
EXAMPLES = {"day.month.year": "31.01.2026", "month/day/year": "01/31/2026"}
_COMMA = re.compile(
    r"([-+]?)([0-9]{1,3}(?:[. '\u00a0\u202f][0-9]{3})+|[0-9]*)(?:,([0-9]*))?([eE][-+]?[0-9]+)?"
)
_DAY = re.compile(r"([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})([ T].*)?")


def plain_cells(column: Column, cells: Cells, first: int, *, decimal: str, dates: str) -> Cells:
    """Return cells with a decimal point and ISO days, of a file that writes them otherwise.

    Cells that are no such number or day stay as they are, and numbers that are no text
    (``NumberText``) as well; a text with a point where the comma is decimal is refused, since 1.5
    may be 15.
    """
    if isinstance(cells, np.ndarray):
        return cells
    if isinstance(column, Numeric) and decimal == ",":
        return _convert(cells, lambda cell, number: _with_point(column, cell, number), first)
    if isinstance(column, Date) and ORDERS[dates]:
        return _convert(cells, lambda cell, number: _as_iso(column, cell, number, dates), first)
    return cells


def _convert(
    cells: list[str] | CodedCells, read: Callable[[str, int], str], first: int
) -> list[str] | CodedCells:
    """``read`` of every cell and its record's number."""
    if isinstance(cells, CodedCells):
        return CodedCells([text or "" for text in cells.convert(read, first)], cells.codes)
    return [read(cell, number) for number, cell in enumerate(cells, first + 1)]


def _to_floats(
    cells: list[str] | CodedCells, read: Callable[[str, int], float], first: int
) -> np.ndarray:
    """``read`` of every cell and its record's number, (n,) float64."""
    if isinstance(cells, CodedCells):
        return np.array(cells.convert(read, first), dtype=np.float64)[cells.codes]
    return np.array(
        [read(cell, number) for number, cell in enumerate(cells, first + 1)], np.float64
    )


def _with_point(column: Numeric, cell: str, number: int) -> str:
    if isinstance(cell, NumberText):
        return cell
    text = cell.strip()
    if (plain := _without_comma(text)) is not None:
        return plain
    known = text.lower() in MISSING or text.lower() in TRUTHS
    if known or (is_number(text) and not {".", ",", "_"} & set(text)):
        return cell
    raise InputError(
        f"column {column.name!r}",
        f"must hold numbers with a decimal comma, and holds other text in record {number}",
        None,
        f'write 1.234,5 or 1234,5, or train without decimal = "," in the schema; {MARKS}',
    )


def _without_comma(text: str) -> str | None:
    """The number with a decimal point that a text with a decimal comma is; ``None`` where it is
    none."""
    found = _COMMA.fullmatch(text)
    if found is None or not (found[2] or found[3]):
        return None
    sign, whole, part, exponent = (group or "" for group in found.groups())
    return f"{sign}{''.join(filter(str.isdecimal, whole))}.{part}{exponent}"


def _as_iso(column: Date, cell: str, number: int, dates: str) -> str:
    day = _iso_day(cell.strip(), dates)
    if day is not None or day_number(cell) is not None or cell.strip().lower() in MISSING:
        return day or cell
    raise InputError(
        f"column {column.name!r}",
        f"must hold days such as {EXAMPLES[dates]}, and holds other text in record {number}",
        None,
        "correct the cell: the year has four digits; or train with another order than "
        f'dates = "{dates}" in the schema, or with kind = "category" or "text"; {MARKS}',
    )


def _iso_day(text: str, dates: str) -> str | None:
    """The ISO form of a day that is written in another order; ``None`` where it is none."""
    found, groups = _DAY.fullmatch(text), ORDERS.get(dates)
    if found is None or not groups:
        return None
    year, month, day = (found[group] for group in groups)
    iso = f"{year}-{month:0>2}-{day:0>2}{found[4] or ''}"
    return None if day_number(iso) is None else iso


def is_number_of(cell: str, decimal: str) -> bool:
    """Return whether a cell is a number in a file that writes ``decimal`` before a fraction."""
    return is_number(cell) or (decimal == "," and _without_comma(cell) is not None)


def is_day_of(cell: str, dates: str) -> bool:
    """Return whether a cell is a day in a file that writes days in the order ``dates``."""
    return day_number(cell) is not None or _iso_day(cell, dates) is not None


def is_written_otherwise(cell: str) -> bool:
    """Whether a cell is a number with a decimal comma, or a day that begins with its day or month."""
    comma = _COMMA.fullmatch(cell)
    return (comma is not None and bool(comma[3])) or _DAY.fullmatch(cell) is not None


def values_of(column: Column, cells: Cells, first: int) -> tuple[Values, ...]:
    """What a column gives to each of its fields; ``first``: records of the file before these.

    Errors: cells that the schema refuses, by the number of the record and never by their value.
    """
    match column:
        case Numeric():
            return (numbers(column, cells, first),)
        case Category():
            return (_places(column, cells, first),)
        case Date():
            return _days(column, cells, first)
        case Words():
            return (list(_convert(_texts(cells), _plain_text, first)),)
        case Id() | Ignore():
            return ()


def refuse_in_turn(column: Column) -> list[Column]:
    """The column as it refuses cells for its first reason alone, for the first two, and for all:
    ``values_of`` looks at all cells for one reason after the other."""
    match column:
        case Numeric() | Date():
            within = replace(column, outside="clip")
            return [replace(within, missing=INDICATOR), within, column]
        case Category():
            return [replace(column, outside="zero"), column]
        case _:
            return [column]


def _texts(cells: Cells) -> list[str] | CodedCells:
    return [str(cell) for cell in cells] if isinstance(cells, np.ndarray) else cells


def _plain_text(cell: str, number: int) -> str:
    return "" if cell.lower() in MISSING else canonical_text(cell)


def read_numbers(column: Numeric, cells: Cells, first: int) -> np.ndarray:
    """Numbers as the cells state them (n,) float64, also outside the public range; NaN where one is
    missing and the schema keeps that."""
    values = _parse_numbers(column, cells, first)
    missing = np.isnan(values)
    if missing.any() and column.missing == "refuse":
        raise InputError(
            f"column {column.name!r}",
            f"has a missing value in record {first + int(np.argmax(missing)) + 1}",
            None,
            'fill the cell, or train with missing = a public number or "indicator" in the schema',
        )
    if column.missing not in ("refuse", INDICATOR):
        values = np.where(missing, float(column.missing), values)
    return values


def numbers(column: Numeric, cells: Cells, first: int) -> np.ndarray:
    """Numbers on their way from -1 to 1 (n,) float64, NaN where one is missing and the schema keeps
    that."""
    values = read_numbers(column, cells, first)
    outside = (values < column.low) | (values > column.high)
    if column.outside == "refuse" and outside.any():
        raise InputError(
            f"column {column.name!r}",
            f"must lie in [{column.low:g}, {column.high:g}], and does not in record "
            f"{first + int(np.argmax(outside)) + 1}",
            None,
            RANGE,
        )
    return column.to_unit(np.clip(values, column.low, column.high))


def _parse_numbers(column: Numeric, cells: Cells, first: int) -> np.ndarray:
    """Numbers of cells (n,) float64, NaN where one is missing."""
    if isinstance(cells, np.ndarray):
        return cells.astype(np.float64)
    texts = cells.texts if isinstance(cells, CodedCells) else cells
    try:
        values = np.array(texts, dtype=np.float64)
        if any("_" in text for text in texts):
            raise ValueError  # Python reads 1_0 as a number; each cell is looked at
    except ValueError:
        return _to_floats(cells, lambda cell, number: _parse(column, cell, number), first)
    return values[cells.codes] if isinstance(cells, CodedCells) else values


def _parse(column: Numeric, cell: str, number: int) -> float:
    if cell.strip().lower() in MISSING:
        return float("nan")
    if cell.strip().lower() in TRUTHS:
        return TRUTHS[cell.strip().lower()]
    try:
        if "_" in cell:
            raise ValueError
        return float(cell)
    except ValueError:
        raise InputError(
            f"column {column.name!r}",
            f"must hold numbers, and holds other text in record {number}",
            None,
            "correct the cell: write 1000 and not 1,000, 30.5 and not 30,5; or train with decimal = "
            f'"," in the schema, or with kind = "category" or "text"; {MARKS}',
        ) from None


def _places(column: Category, cells: Cells, first: int) -> np.ndarray:
    """Places of categories in their list (n,), -1 for none of them."""
    codes = Positions(column.values, len(column.values) if column.missing == INDICATOR else -2).of(
        cells
    )
    for code, rule, what, remedy in (
        (
            -2,
            column.missing,
            "a missing value",
            'fill the cell, or train with missing = "indicator" or "zero"',
        ),
        (
            -1,
            column.outside,
            "an unknown category",
            'correct the cell, or train with it in values, or with outside = "zero"',
        ),
    ):
        if rule == "refuse" and (codes == code).any():
            raise InputError(
                f"column {column.name!r}",
                f"has {what} in record {first + int(np.argmax(codes == code)) + 1}",
                None,
                f"{remedy} in the schema",
            )
    return codes


def _read_day(column: Date, cell: str, number: int) -> float:
    """The number of a day, NaN where it is missing."""
    day = day_number(cell)
    if day is None and cell.lower() not in MISSING:
        raise InputError(
            f"column {column.name!r}",
            f"must hold days such as 2026-01-31, and holds other text in record {number}",
            None,
            'correct the cell, or train with dates = "day.month.year" (or "month/day/year") in '
            f'the schema, or with kind = "category" or "text"; {MARKS}',
        )
    return float("nan") if day is None else day


def _days(column: Date, cells: Cells, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of days between the ends, from -1 to 1, their months and weekdays, each (n,)."""
    dates = _to_floats(_texts(cells), lambda cell, number: _read_day(column, cell, number), first)
    missing, (low, high) = np.isnan(dates), column.ends
    if missing.any() and column.missing == "refuse":
        raise InputError(
            f"column {column.name!r}",
            f"has a missing value in record {first + int(np.argmax(missing)) + 1}",
            None,
            'fill the cell, or train with missing = "indicator" in the schema',
        )
    outside = (dates < low) | (dates > high)
    if column.outside == "refuse" and outside.any():
        raise InputError(
            f"column {column.name!r}",
            f"must lie from {column.first} to {column.last}, and does not in record "
            f"{first + int(np.argmax(outside)) + 1}",
            None,
            RANGE,
        )
    days = np.where(missing, 0, dates).astype(np.int64)
    calendar = np.datetime64("0001-01-01", "D") + (days - 1).astype(
        "timedelta64[D]"
    )  # day 1 is a Monday
    month = calendar.astype("datetime64[M]").astype(np.int64) % 12
    return (
        (np.clip(dates, low, high) - low) / (high - low) * 2 - 1,
        np.where(missing, -1, month),
        np.where(missing, -1, (days - 1) % 7),
    )
