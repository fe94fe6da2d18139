"""A finished item as two files, NAME.png and NAME.json; a failed one leaves neither, only its
finished cells."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import lastiterate
from lastiterate import interrupts
from lastiterate.errors import InputError
from lastiterate_papers import real_data
from lastiterate_papers.finished_cells import Cells, check_writable, discard, writing
from lastiterate_papers.item import Item, Result, Row, Work
from lastiterate_papers.picture import drawn


@dataclass(frozen=True)
class Cost:
    """What an item took, cells of interrupted runs included: wall clock, and processor time over
    all cores."""

    seconds: float
    processor: float


def made(item: Item, work: Work, folder: Path | None = None) -> tuple[Result, Cost]:
    """Run an item: its result and what it took. ``folder``: where finished cells are kept until the
    result is written.

    Errors: ``InputError`` where its data are not there or damaged, or ``folder`` cannot be written,
    before any work.
    """
    if missing := item.missing(work.data_dir):
        raise InputError(
            "data_dir",
            f"must hold {', '.join(missing)} for {item.name}",
            str(work.data_dir or "none"),
            "name the folder that holds it",
        )
    if folder is not None:
        check_writable(folder)
    real_data.check(work.data_dir, (*item.data, *item.optional))
    cells = Cells() if folder is None else Cells.of(folder, asked(item, work))
    before = Cost(cells.seconds, cells.processor)
    began, spent = time.perf_counter(), time.process_time()
    result = item.run(replace(work, cells=cells))
    return result, Cost(
        before.seconds + time.perf_counter() - began, before.processor + time.process_time() - spent
    )


def asked(item: Item, work: Work) -> dict[str, Any]:
    """What must be the same for a finished item, or a finished cell of it, to be kept."""
    files, folder = (*item.data, *item.optional), work.data_dir
    data = {} if folder is None else {name: _checksum(folder / name) for name in files}
    return {
        "item": item.name,
        "quick": work.quick,
        "seed": work.seed,
        "data": data,
        "given": dict(work.given),
        "version": lastiterate.__version__,
        "source": _source(),
    }


def _checksum(path: Path) -> str:
    """Of a file's bytes; empty where it is not there."""
    return f"{zlib.crc32(path.read_bytes()):08x}" if path.is_file() else ""


@lru_cache(maxsize=1)
def _source() -> str:
    """A checksum of the modules of both packages, which a version's number cannot distinguish while
    they change."""
    found = 0
    for root in (Path(lastiterate.__file__).parent, Path(__file__).parent):
        for path in sorted(root.rglob("*.py")):
            found = zlib.crc32(
                path.read_bytes(), zlib.crc32(path.relative_to(root).as_posix().encode(), found)
            )
    return f"{found:08x}"


def as_json(item: Item, work: Work, result: Result, cost: Cost) -> dict[str, Any]:
    """Return everything about a finished item, JSON-ready; ``null`` represents numbers that are not
    finite."""
    rows = [_row(row) for row in result.rows]
    return {
        **asked(item, work),
        "paper": item.paper,
        "title": item.title,
        "status": result.status,
        "finding": item.found(rows),
        "rows": rows,
        "settings": result.settings,
        "notes": list(result.notes),
        "panels": _finite([asdict(panel) for panel in result.panels]),
        "seconds": round(cost.seconds, 2),
        "processor_seconds": round(cost.processor, 2),
    }


def _row(row: Row) -> dict[str, Any]:
    return _finite(
        {
            "what": row.what,
            "published": row.published,
            "relation": row.relation,
            "ours": row.ours,
            "difference": row.difference,
            "tolerance": row.tolerance,
            "agrees": row.agrees,
            "unit": row.unit,
        }
    )


def _finite(value: object) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
        case _:
            return value


def places(folder: Path, name: str) -> tuple[Path, Path]:
    """Picture and numbers of an item."""
    return folder / f"{name}.png", folder / f"{name}.json"


def write(folder: Path, item: Item, work: Work, result: Result, cost: Cost) -> tuple[Path, Path]:
    """Write both files under other names, then rename them, the numbers last: they say that an item
    is finished.

    Then its cells are removed."""
    text = json.dumps(as_json(item, work, result, cost), indent=1, allow_nan=False) + "\n"
    picture = drawn(result.panels)
    found = places(folder, item.name)
    parts = [path.with_name(f".{path.name}.part-{os.getpid()}") for path in found]
    interrupts.unfinished.update(parts)
    with writing(folder), interrupts.later():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            parts[0].write_bytes(picture)
            parts[1].write_text(text, encoding="utf-8")
            for part, path in zip(parts, found, strict=True):
                os.replace(part, path)
        finally:
            for part in parts:
                part.unlink(missing_ok=True)
        discard(folder, item.name)
        interrupts.say(f"{item.name} is written to {folder}")
    return found


def kept(folder: Path, item: Item, work: Work) -> dict[str, Any] | None:
    """The numbers of an item that was finished with the same settings, ``None`` if it was not."""
    picture, numbers = places(folder, item.name)
    try:
        found = json.loads(numbers.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    wanted = asked(item, work)
    same = isinstance(found, dict) and {key: found.get(key) for key in wanted} == wanted
    return found if same and picture.is_file() else None
