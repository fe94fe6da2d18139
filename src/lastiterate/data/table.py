"""What every reader gives back: columns of text cells, or one numeric array with its labels apart."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import compress
from pathlib import Path
from typing import Any, overload

import numpy as np

from lastiterate import limits
from lastiterate.errors import InputError
from lastiterate.plugins import Outside
from lastiterate.remote_files import find_failure


@dataclass(frozen=True, eq=False)
class CodedCells(Sequence[str]):
    """Text cells as the different texts among them, and the position of each cell's text in their
    list, (n,).

    What a schema says of a cell is found out once for each text.
    """

    texts: list[str]
    codes: np.ndarray

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice | np.ndarray) -> CodedCells: ...
    def __getitem__(self, at: int | slice | np.ndarray) -> str | CodedCells:
        if isinstance(at, slice | np.ndarray):
            return CodedCells(self.texts, self.codes[at])
        return self.texts[int(self.codes[at])]

    def __iter__(self) -> Iterator[str]:
        return (self.texts[int(code)] for code in self.codes)

    def convert(self, read: Callable[[str, int], Any], first: int) -> list[Any]:
        """``read`` of each text and the number of its first record, in the order of the records;
        ``None`` for a text that no cell has. ``first``: records of the file before these."""
        used, at = np.unique(self.codes, return_index=True)
        found = list[Any]([None] * len(self.texts))
        for index in np.argsort(at):
            text = int(used[index])
            found[text] = read(self.texts[text], first + int(at[index]) + 1)
        return found


class NumberText(str):
    """The text of a cell that is a number where it comes from, and no text: its point is a decimal
    point, whatever a schema says of texts."""

    __slots__ = ()


Cells = list[str] | CodedCells | np.ndarray
SHOWN = 20
"""Names of columns in a message, at most."""
BARE = "a file whose first row is no header needs a schema that names its columns, header = [NAME, NAME, ...]"


@dataclass(frozen=True)
class FormatFacts:
    """What a file format itself says about every file of its kind: the range of a value, perhaps
    the classes, and the largest norm of a record."""

    low: int
    high: int
    why: str
    classes: tuple[str, ...] = ()
    norm: float | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name: text cells (CSV, Parquet, JSON lines), or the columns of a numeric array with its target
    apart.

    ``answers_in`` says where the labels of an array belong; ``facts`` is what its format makes
    public. Cells of numbers may be a float64 array, NaN where one is missing. ``first``: records of
    the file before the table's own. ``shape``: of one record of an array. ``types``: what the file
    itself states that a column holds, where it does: integers, numbers, days, times of day,
    true/false, text or nothing. ``kept``: booleans, true for the file's rows that
    are used, where some are not. ``outside``: the plug-in that read the file.
    """

    names: tuple[str, ...]
    cells: dict[str, Cells] | None = None
    array: np.ndarray | None = None
    answers: np.ndarray | None = None
    answers_in: str = "the target's column"
    facts: FormatFacts | None = None
    first: int = 0
    shape: tuple[int, ...] | None = None
    types: Mapping[str, str] = field(default_factory=dict[str, str])
    kept: np.ndarray | None = None
    outside: tuple[Outside, ...] = ()

    def __len__(self) -> int:
        if self.cells is not None:
            return len(next(iter(self.cells.values()), ()))
        return len(self.array)  # type: ignore[arg-type]

    def select(self, kept: np.ndarray) -> Table:
        """The records of a table of cells for which ``kept`` (n,) is true."""
        assert self.cells is not None
        cells: dict[str, Cells] = {
            name: list(compress(column, kept)) if isinstance(column, list) else column[kept]
            for name, column in self.cells.items()
        }
        return replace(self, cells=cells, kept=kept)


def column_names(header: list[str]) -> tuple[str, ...]:
    """The names in a header, stripped; each may stand there once. Without a header they are cells:
    none is shown."""
    names = tuple(name.strip() for name in header)
    if len(names) > limits.COLUMNS:
        raise InputError(
            "data file", f"must have at most {limits.COLUMNS:,} columns", f"{len(names):,}"
        )
    counts = Counter(names)
    twice = (
        next((name for name in names if counts[name] > 1), None)
        if len(counts) != len(names)
        else None
    )
    if twice is not None:
        first = names.index(twice)
        raise InputError(
            "data file",
            f"has a column name twice in its header, in columns {first + 1} and "
            f"{names.index(twice, first + 1) + 1}",
            None,
            f"rename one; {BARE}",
        )
    return names


def check_header(names: Sequence[str], described: Collection[str]) -> None:
    """Refuse names none of which is described, before any of them is shown: they may be cells of a
    record.

    A name that differs from a public one in case or spacing alone is shown: it says nothing else.
    """
    if set(names) & set(described):
        return
    alike = {name: spelt for name in sorted(described) for spelt in spelt_alike(name, names)}
    if alike:
        listed = ", ".join(f"{spelt!r} is {name!r}" for name, spelt in alike.items())
        raise InputError(
            "data file",
            "must name its columns letter by letter as the schema does",
            None,
            f"{listed} in the schema: rename them in the file or in the schema",
        )
    raise InputError("data file", "has no column that the schema describes", None, BARE)


def misses(
    name: str, names: Sequence[str], described: Collection[str], *, stated: bool = True
) -> InputError:
    """Return the refusal of a file without a column of the schema.

    ``names``: in its header, which are shown where it is surely one, because somebody ``stated`` so
    or because the schema describes most of them.
    """
    remedy = 'add it, or train with kind = "ignore" for it in the schema'
    alike = spelt_alike(name, [one for one in names if one not in described])
    if alike:
        remedy = f"the file calls it {alike[0]!r}: rename it in the file or in the schema"
    elif stated or 2 * sum(one in described for one in names) > len(names):
        close = suggest_name(name, [one for one in names if one not in described])
        there = f"the file has {list_names(names)}"
        remedy = f"{close}{remedy}; {there}" if close else f"{there}; {remedy}"
    return InputError("data file", f"misses the column {name!r} of the schema", None, remedy)


def list_names(names: Sequence[str]) -> str:
    """Some names of columns, as a sentence shows them."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def suggest_name(name: str, names: Sequence[str]) -> str:
    """The question for the closest of ``names``, to stand before other remedies; empty where none
    is close."""
    near = get_close_matches(name, names, 1, 0.7)
    return f"did you mean {near[0]!r}? Otherwise " if near else ""


def spelt_alike(name: str, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that differ from ``name`` in case, spaces and punctuation alone."""
    return [one for one in names if one != name and _letters(one) == _letters(name)]


def _letters(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def is_number(cell: str) -> bool:
    """Return whether a cell is a number as Python writes one."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def is_time(cell: str) -> bool:
    """Return whether a cell is a day with a time, however it is written."""
    return _TIME.fullmatch(cell) is not None


def number_text(value: float | np.floating[Any] | None) -> str:
    """Write a number as text: 3.0 is "3", so that a label that became a float because some are
    missing keeps its name.

    NaN is missing, and so is ``None``. Numbers beyond 2^53 keep their point or exponent, which says
    that they may be rounded.
    """
    if value is None or math.isnan(value):
        return ""
    if (
        isinstance(value, np.floating) and value.dtype.itemsize < 8
    ):  # 0.1 of any precision is written 0.1
        value = float(str(value))
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


_NUMBER = re.compile(r"(-?)(0|[1-9][0-9]*)?(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]{1,9}))?")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:(Z)|([+-][0-9]{2}):?([0-9]{2}))?"
)
_WORDS = {
    "true": "True",
    "false": "False",
    "inf": "inf",
    "infinity": "inf",
    "-inf": "-inf",
    "-infinity": "-inf",
}
_DIGITS = 21
"""Integers of more digits are written with an exponent."""


def canonical_text(cell: str) -> str:
    """Return the one form of a cell, whichever program wrote it: 1, 1.0 and 1.00 are "1", 1E+3 is
    "1000".

    A time is "2026-01-31 10:30:00" without zeros behind the seconds, midnight without a zone is the
    day; TRUE and true are "True". Everything else is text and stays: 007 and +7 are no 7, and 12e4
    is a word, because no program writes a number so.
    """
    if cell[:1] in "-.0123456789":
        if cell.isdecimal() and cell[0] != "0" and len(cell) <= _DIGITS:
            return cell
        if (number := _NUMBER.fullmatch(cell)) is not None:
            return _canonical_number(cell, *number.groups())
        if (time := _TIME.fullmatch(cell)) is not None:
            return _canonical_time(*time.groups())
    return _WORDS.get(cell.lower(), cell) if len(cell) < 10 else cell


def _canonical_number(
    cell: str, sign: str, whole: str | None, part: str | None, exponent: str | None
) -> str:
    digits = (whole or "") + (part or "")
    if not digits or (exponent is not None and part is None and exponent[0] not in "+-"):
        return cell
    power = int(exponent or 0) - len(part or "")
    short = digits.strip("0")
    if not short:
        return "0"
    power += len(digits) - len(digits.rstrip("0"))
    top = len(short) + power  # digits in front of the point
    if power >= 0 and top <= _DIGITS:
        return f"{sign}{short}{'0' * power}"
    if power < 0 and top > -6:
        return f"{sign}{short[:top] if top > 0 else '0'}.{'0' * -min(top, 0)}{short[max(top, 0) :]}"
    return f"{sign}{short[0]}{'.' * (len(short) > 1)}{short[1:]}e{top - 1:+d}"


def _canonical_time(
    day: str,
    minute: str,
    second: str | None,
    part: str | None,
    zulu: str | None,
    hours: str | None,
    minutes: str | None,
) -> str:
    part = (part or "").rstrip("0")
    zone = "+00:00" if zulu else f"{hours}:{minutes}" if hours else ""
    time = f"{minute}:{second or '00'}{'.' + part if part else ''}{zone}"
    return day if time == "00:00:00" else f"{day} {time}"


_POWERS = 10.0 ** np.arange(23)
"""Powers of ten that a double holds exactly."""


def to_doubles(values: np.ndarray) -> np.ndarray:
    """Return numbers (n, ...) as float64; those of less precision become what their shortest text
    says, as in a file.

    0.1 in single precision is 0.100000001490116, and a CSV file that is written from it says 0.1.
    """
    if values.dtype.kind != "f" or values.dtype.itemsize >= 8:
        return values.astype(np.float64, copy=False)
    with np.errstate(over="ignore", invalid="ignore"):
        return _shortest(values.reshape(-1)).reshape(values.shape)


def _shortest(given: np.ndarray) -> np.ndarray:
    exact, facts = given.astype(np.float64), np.finfo(given.dtype)
    size = np.abs(exact)
    inexact = np.isfinite(exact) & ((exact != np.rint(exact)) | (size >= 2.0 ** (facts.nmant + 1)))
    # a decimal of at most facts.precision digits that rounds to a number is its shortest text; try
    # a few of them first
    for scale in (1e1, 1e3):
        scaled = np.rint(exact * scale)
        near = scaled / scale
        found = (
            inexact & (np.abs(scaled) < 10.0**facts.precision) & (near.astype(given.dtype) == given)
        )
        exact[found] = near[found]
        inexact &= ~found
    _round_shortest(
        exact, given, np.flatnonzero(inexact & (size >= facts.smallest_normal)), facts.precision
    )
    for place in np.flatnonzero(inexact & (size < facts.smallest_normal)):
        exact[place] = float(str(given[place]))
    return exact


def _round_shortest(
    exact: np.ndarray, given: np.ndarray, places: np.ndarray, precision: int
) -> None:
    """Replace the numbers at some ``places`` of ``exact`` by the shortest decimals that round to
    those ``given``."""
    top = np.floor(np.log10(np.abs(exact[places]))).astype(np.int64)
    by_text: list[int] = []
    for digits in range(precision, precision + 4):
        shift, value = digits - 1 - top, exact[places]
        scale = _POWERS[np.minimum(np.abs(shift), 22)]
        scaled = np.where(shift >= 0, value * scale, value / scale)
        near = np.rint(scaled)
        back = np.where(
            shift >= 0, near / scale, near * scale
        )  # correctly rounded: both factors are exact
        found = back.astype(given.dtype) == given[places]
        unsure = (np.abs(shift) > 22) | (np.abs(scaled - near) > 0.5 - 1e-6)
        by_text += places[unsure].tolist()
        exact[places[found & ~unsure]] = back[found & ~unsure]
        places, top = places[~(found | unsure)], top[~(found | unsure)]
    for place in (*by_text, *places.tolist()):
        exact[place] = float(str(given[place]))


def array_table(
    features: np.ndarray,
    answers: np.ndarray | None,
    *,
    answers_in: str,
    facts: FormatFacts | None = None,
) -> Table:
    """Rows of features (n, ...), flattened to (n, d) and otherwise as they are, with one label per
    row (or none)."""
    if features.dtype.kind not in "biuf" or features.ndim < 2 or features.size == 0:
        raise InputError(
            "data file",
            "needs a numeric array of features of shape (n, d)",
            f"{features.dtype} of shape {features.shape}",
        )
    shape = check_features(features.shape)
    features = features.reshape(len(features), -1)
    if features.dtype.kind == "f" and np.isnan(features).any():
        raise InputError(
            "data file", "must hold numbers", "NaN", "fill those values by a public rule first"
        )
    if answers is not None:
        if answers.size != len(features) or answers.shape[:1] != (len(features),):
            raise InputError(
                "data file",
                f"needs one label for each of {len(features)} rows in {answers_in}",
                answers.shape,
            )
        if answers.dtype.kind not in "biufU":
            raise InputError(
                "data file", f"needs numbers or text as labels in {answers_in}", str(answers.dtype)
            )
        answers = answers.reshape(-1)
    names = tuple(f"x{i}" for i in range(features.shape[1]))
    return Table(
        names, array=features, answers=answers, answers_in=answers_in, facts=facts, shape=shape
    )


def check_features(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one record of an array (n, ...); records of too many numbers are refused."""
    if math.prod(shape[1:]) > limits.FEATURES:
        raise InputError(
            "data file",
            f"must have at most {limits.FEATURES:,} numbers in a record",
            f"an array of shape {shape}",
        )
    return shape[1:]


def not_in_memory(path: Path) -> InputError:
    """The refusal of a table that no memory of this machine holds at once."""
    return InputError(
        "data file",
        "must fit into this machine's memory",
        path.name,
        "lastiterate train --stream reads it piece by piece; predict takes it in parts",
    )


def damage_error(path: Path, rule: str, why: object = None) -> InputError:
    """A file that is cut off or changed: what it must be, and the first line of what its parser
    said. Of an object that its store did not send whole, that."""
    failure = find_failure(path)
    if failure is not None:
        return unreadable(path, failure)
    said = "" if why is None else str(why).strip().split("\n")[0][:120]
    return InputError(
        "data file",
        rule,
        f"{path.name} ({said})" if said else path.name,
        "it may be cut off or damaged",
    )


def unreadable(path: Path, error: OSError) -> InputError:
    """The refusal of a file that the system does not let anybody read."""
    return InputError("data file", "must be readable", f"{path.name} ({error.strerror or error})")


@contextmanager
def explain_read_errors(path: Path) -> Generator[None]:
    """Say in words where the system cannot read a file, or memory does not hold what it states."""
    try:
        yield
    except MemoryError:
        raise InputError(
            "data file", "must fit into memory", path.name, "its header may be damaged"
        ) from None
    except OSError as error:
        raise unreadable(path, error) from None
