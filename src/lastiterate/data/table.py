"""What every reader gives back: columns of text cells, or one numeric array with its labels apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate import limits
from lastiterate.errors import InputError

Cells = list[str] | np.ndarray
BARE = "a file whose first row is no header needs a schema that names its columns, header = [NAME, NAME, ...]"


@dataclass(frozen=True)
class FormatFacts:
    """What a file format itself says about every file of its kind: the range of a value, perhaps the classes, and the
    largest norm of a record."""

    low: int
    high: int
    why: str
    classes: tuple[str, ...] = ()
    norm: float | None = None


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name: text cells (CSV, Parquet), or the columns of a numeric array with its target apart.

    ``answers_in`` says where the labels of an array belong; ``facts`` is what its format makes public. Cells of numbers
    may be a float64 array, NaN where one is missing. ``first``: records of the file before the table's own.
    ``shape``: of one record of an array.
    """

    names: tuple[str, ...]
    cells: dict[str, Cells] | None = None
    array: np.ndarray | None = None
    answers: np.ndarray | None = None
    answers_in: str = "the target's column"
    facts: FormatFacts | None = None
    first: int = 0
    shape: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()))) if self.cells is not None else len(self.array)  # type: ignore[arg-type]


def column_names(header: list[str]) -> tuple[str, ...]:
    """The names in a header, stripped; each may stand there once. Without a header they are cells: none is shown."""
    names = tuple(name.strip() for name in header)
    if len(names) > limits.COLUMNS:
        raise InputError("data file", f"must have at most {limits.COLUMNS:,} columns", f"{len(names):,}")
    counts = Counter(names)
    twice = next((name for name in names if counts[name] > 1), None) if len(counts) != len(names) else None
    if twice is not None:
        first = names.index(twice)
        raise InputError("data file", f"has a column name twice in its header, in columns {first + 1} and "
                         f"{names.index(twice, first + 1) + 1}", None, f"rename one; {BARE}")
    return names


def check_header(names: Sequence[str], described: Collection[str]) -> None:
    """Refuse names none of which is described, before any of them is shown: they may be cells of a record."""
    if not set(names) & set(described):
        raise InputError("data file", "has no column that the schema describes", None, BARE)


def number_text(value: float | None) -> str:
    """3.0 is "3", so that a label that became a float because some are missing keeps its name; NaN is missing.

    An infinite number is written as one that no float holds: as a word it would be refused, as in a CSV file.
    """
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "1e999" if value > 0 else "-1e999"
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else repr(value)


def array_table(features: np.ndarray, answers: np.ndarray | None, *, answers_in: str,
                facts: FormatFacts | None = None) -> Table:
    """Rows of features (n, ...), flattened to (n, d) and otherwise as they are, with one label per row (or none)."""
    if features.dtype.kind not in "biuf" or features.ndim < 2 or features.size == 0:
        raise InputError("data file", "needs a numeric array of features of shape (n, d)",
                         f"{features.dtype} of shape {features.shape}")
    shape = check_features(features.shape)
    features = features.reshape(len(features), -1)
    if features.dtype.kind == "f" and np.isnan(features).any():
        raise InputError("data file", "must hold numbers", "NaN", "fill those values by a public rule first")
    if answers is not None:
        if answers.size != len(features) or answers.shape[:1] != (len(features),):
            raise InputError("data file", f"needs one label for each of {len(features)} rows in {answers_in}",
                             answers.shape)
        if answers.dtype.kind not in "biufU":
            raise InputError("data file", f"needs numbers or text as labels in {answers_in}", str(answers.dtype))
        answers = answers.reshape(-1)
    names = tuple(f"x{i}" for i in range(features.shape[1]))
    return Table(names, array=features, answers=answers, answers_in=answers_in, facts=facts, shape=shape)


def check_features(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of one record of an array (n, ...); records of too many numbers are refused."""
    if math.prod(shape[1:]) > limits.FEATURES:
        raise InputError("data file", f"must have at most {limits.FEATURES:,} numbers in a record",
                         f"an array of shape {shape}")
    return shape[1:]


def not_in_memory(path: Path) -> InputError:
    """The refusal of a table that no memory of this machine holds at once."""
    return InputError("data file", "must fit into this machine's memory", path.name,
                      "train --stream reads it piece by piece; predict takes it in parts")


def damaged(path: Path, rule: str, why: object = None) -> InputError:
    """A file that is cut off or changed: what it must be, and the first line of what its parser said."""
    said = "" if why is None else str(why).strip().split("\n")[0][:120]
    return InputError("data file", rule, f"{path.name} ({said})" if said else path.name, "it may be cut off or damaged")
