"""Tables from files: CSV with a header, and NumPy archives."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastiterate.data.schema import MISSING, empty_schema
from lastiterate.errors import InputError

SUFFIXES = (".csv", ".npz")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name: text cells of a CSV file, or the columns of a numeric array (with its target apart)."""

    names: tuple[str, ...]
    cells: dict[str, list[str]] | None = None
    array: np.ndarray | None = None
    answers: np.ndarray | None = None

    def __len__(self) -> int:
        return len(next(iter(self.cells.values()))) if self.cells is not None else len(self.array)  # type: ignore[arg-type]


def read_table(path: str | Path) -> Table:
    """The table in a file; the suffix says which kind (.csv, .npz)."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError("data file", "must end in " + " or ".join(SUFFIXES), path.name)
    if not path.is_file():
        raise InputError("data file", "must be an existing file", str(path))
    return _read_csv(path) if path.suffix == ".csv" else _read_npz(path)


def _read_csv(path: Path) -> Table:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if row]
    except UnicodeDecodeError:
        raise InputError("data file", "must be UTF-8 text", path.name, "save it as UTF-8") from None
    except csv.Error as error:
        raise InputError("data file", "must be a CSV table", str(error)) from None
    if len(rows) < 2:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    names = tuple(name.strip() for name in rows[0])
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError("data file", "has a column name twice in its header", twice[0], "rename one")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise InputError("data file", f"needs {len(names)} cells in every record", f"{len(row)} in record {number}",
                             "the file may be cut off")
    columns = zip(*rows[1:], strict=True)
    return Table(names, {name: [cell.strip() for cell in column] for name, column in zip(names, columns, strict=True)})


def _read_npz(path: Path) -> Table:
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError) as error:
        raise InputError("data file", "must be a complete .npz archive of plain arrays", str(error).split("\n")[0],
                         "write it with numpy.savez") from None
    features = next((arrays[key] for key in ("X", "x", "x_train") if key in arrays), None)
    if features is None or features.ndim < 2 or features.size == 0 or features.dtype.kind not in "biuf":
        raise InputError("data file", "needs a numeric array 'X' (or 'x', 'x_train') of shape (n, d)", sorted(arrays))
    features = features.reshape(len(features), -1)
    if not np.isfinite(features).all():
        raise InputError("data file", "must hold finite numbers", "NaN or infinity", "fill or drop those values first")
    answers = next((arrays[key] for key in ("y", "y_train") if key in arrays), None)
    if answers is not None and answers.reshape(-1).shape != (len(features),):
        raise InputError("data file", f"needs one answer in 'y' for each of {len(features)} rows", answers.shape)
    names = tuple(f"x{i}" for i in range(features.shape[1]))
    return Table(names, array=features, answers=None if answers is None else answers.reshape(-1))


def schema_template(path: str | Path) -> str:
    """A schema to fill in for a file. Only names and whether cells look like numbers are taken from it."""
    table = read_table(path)
    if table.cells is None:
        return ("# Public facts about the array. Fill in every \"?\", never from the data.\n"
                "target = \"y\"\nclasses = [\"?\"]   # or target_range = [low, high]\nsource = \"?\"\n\n"
                "[array]\nlow = \"?\"\nhigh = \"?\"\noutside = \"clip\"   # or \"refuse\"\n")
    return empty_schema(list(table.names), [_looks_numeric(table.cells[name][:50]) for name in table.names])


def _looks_numeric(cells: list[str]) -> bool:
    def number(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    return all(number(cell) or cell.lower() in MISSING for cell in cells)
