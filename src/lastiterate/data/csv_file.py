"""CSV: UTF-8 text with a header, one record per line, as many cells in each as in the header."""

from __future__ import annotations

import csv
from pathlib import Path

from lastiterate.data.table import Table, column_names
from lastiterate.errors import InputError


def read_csv(path: Path) -> Table:
    """Text cells by column. A file that was cut off after a record, or in its last cell, looks like a shorter one."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file, strict=True) if row]
    except UnicodeDecodeError:
        raise InputError("data file", "must be UTF-8 text", path.name, "save it as UTF-8") from None
    except csv.Error as error:
        raise InputError("data file", "must be a CSV table", f"{path.name} ({error})", "it may be cut off") from None
    if len(rows) < 2:
        raise InputError("data file", "must hold a header and at least one record", path.name)
    names = column_names(rows[0])
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(names):
            raise InputError("data file", f"needs {len(names)} cells in every record", f"{len(row)} in record {number}",
                             "the file may be cut off")
    columns = zip(*rows[1:], strict=True)
    return Table(names, {name: [cell.strip() for cell in column] for name, column in zip(names, columns, strict=True)})
