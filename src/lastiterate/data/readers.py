"""The kinds of files that are read, one row each, and the schema to fill in for any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lastiterate.data.arrays import read_npy, read_npz
from lastiterate.data.cifar import is_python_batch, read_binary_batch, read_folder, read_python_batch
from lastiterate.data.csv_file import read_csv
from lastiterate.data.idx import is_idx, read_idx
from lastiterate.data.parquet import read_parquet
from lastiterate.data.schema import MISSING, empty_schema
from lastiterate.data.table import FormatFacts, Table
from lastiterate.errors import InputError


@dataclass(frozen=True)
class Format:
    """A kind of file: what it is called in a refusal, how it is recognised, and its reader."""

    called: str
    matches: Callable[[Path], bool]
    read: Callable[[Path], Table]


def _ends(suffix: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix.lower() == suffix


FORMATS = (
    Format("a CIFAR-10 folder", Path.is_dir, read_folder),
    Format(".csv", _ends(".csv"), read_csv),
    Format(".parquet", _ends(".parquet"), read_parquet),
    Format(".npz", _ends(".npz"), read_npz),
    Format(".npy", _ends(".npy"), read_npy),
    Format("CIFAR-10 .bin", _ends(".bin"), read_binary_batch),
    Format("CIFAR-10 data_batch_1", is_python_batch, read_python_batch),
    Format("IDX (train-images-idx3-ubyte.gz)", is_idx, read_idx),  # last: it may look into the file
)


def read_table(path: str | Path) -> Table:
    """The table in a file (or in a folder of CIFAR-10 batches); the first row of ``FORMATS`` that matches reads it."""
    path = Path(path)
    if not (path.is_file() or path.is_dir()):
        raise InputError("data file", "must be an existing file, or a folder of CIFAR-10 batches", str(path))
    try:
        for kind in FORMATS:
            if kind.matches(path):
                return kind.read(path)
    except MemoryError:
        raise InputError("data file", "must fit into memory", path.name, "its header may be damaged") from None
    except OSError as error:
        raise InputError("data file", "must be readable", f"{path.name} ({error.strerror or error})") from None
    raise InputError("data file", "must be one of: " + ", ".join(kind.called for kind in FORMATS), path.name,
                     "unpack an archive first")


def schema_template(path: str | Path) -> str:
    """A schema to fill in for a file. Only names, whether cells look like numbers, and the format are taken from it."""
    table = read_table(path)
    if table.cells is None:
        return _array_schema(table.facts)
    return empty_schema(list(table.names), [_looks_numeric(table.cells[name][:50]) for name in table.names])


def _array_schema(facts: FormatFacts | None) -> str:
    low, high, why = ("\"?\"", "\"?\"", "?") if facts is None else (facts.low, facts.high, facts.why)
    classes = ", ".join(f"\"{label}\"" for label in facts.classes) if facts is not None and facts.classes else "\"?\""
    return ("# Public facts about the array. Fill in every \"?\", never from the data.\n"
            f"target = \"y\"\nclasses = [{classes}]   # or target_range = [low, high]\nsource = \"{why}\"\n\n"
            f"[array]\nlow = {low}\nhigh = {high}\noutside = \"clip\"   # or \"refuse\"\n")


def _looks_numeric(cells: list[str]) -> bool:
    def number(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    return all(number(cell) or cell.lower() in MISSING for cell in cells)
