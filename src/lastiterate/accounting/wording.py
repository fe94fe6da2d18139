"""What certificates of all kinds say in the same words: neighbours, units, caveats, numbers rounded safely."""

from __future__ import annotations

import math
from typing import Any

NEIGHBOURS = {
    "zero-out": "one record's contribution is set to zero; the number of records is public",
    "replace-one": "one record is exchanged for any other; the number of records is public",
    "add-remove": "one record is added or removed",
    "forgotten": "the removed records' contributions are zero from the beginning; the number of records is public",
}
ROW = "one row of the training data; somebody with several rows is protected as a group of that many"
READ = ("what the loss takes as one record, a row of the training data or all rows of a unit (a caveat then says so); "
        "somebody with several records is protected as a group of that many")
"""What a record is: of a linear model, and where only the caller's loss knows."""


def units(rows: int) -> str:
    """What a record is not, where epsilon speaks of units of several rows."""
    return f"epsilon is for a unit of at most {rows} rows, by group privacy; holds if no unit has more rows in the data"


UNNAMED = "unit"
"""What a unit is called whose rows are known by an array without a name."""


MOST_NAME = 200
"""Characters of a unit's name."""


def as_unit_name(text: str) -> str:
    """A column's name as a certificate calls its unit: one that cannot be printed is left out."""
    return text if 0 < len(text) <= MOST_NAME and text.isprintable() else UNNAMED


def unit(rows: int, record: int = 1, *, read: bool = False, name: str = "") -> dict[str, Any]:
    """The privacy unit in words, and how many rows of it can be in the data; ``record``: rows of one record; ``read``:
    whether only the caller's loss knows what a record is; ``name``: what the unit is called, whose rows were bounded
    before the training."""
    whose = "one unit" if name in ("", UNNAMED) else f"one unit ({name})"
    named = {"name": name} if name else {}
    if record > 1:
        return named | {"rows": record, "words": (
            f"{whose} with at most {record} rows of the training data, all of them together; a public bound, applied "
            "before training; batches draw units, n counts units, and a unit's gradient is the mean over its places, "
            "so that the sensitivity is the unit's")}
    if rows > 1:
        return named | {"rows": rows, "words": (
            f"{whose} with at most {rows} rows of the training data, all of them together; a public bound, applied "
            "before training; theorems speak of one row, and group privacy makes epsilon the unit's")}
    if name:
        return named | {"rows": 1, "words": (
            f"{whose} with at most 1 row of the training data; a public bound, applied before training: further rows "
            "of a unit are not in it")}
    return {"rows": 1, "words": f"one record: {READ if read else ROW}"}


CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "noise and steps have double precision; the proofs are about real numbers",
    "intermediate iterates, gradients, noise and its seed must stay secret",
)


class Text(str):
    """Lines of text that an interactive session shows as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def rounded_up(value: float | None) -> str:
    """A number rounded up in its last shown digit, or a dash."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / scale * (1 - 1e-12)) * scale:.4g}"


def rounded_down(value: float) -> str:
    """A number rounded down in its last shown digit."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / scale) * scale:.4g}"


def finite(value: float) -> float | None:
    """JSON has no infinity: ``null``."""
    return value if math.isfinite(value) else None
