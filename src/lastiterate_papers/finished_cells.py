"""Partial results of a long item, kept as it runs: an interrupted item resumes where it stopped.

A cell is one piece of an item's work: a name, and numbers that JSON can hold. Finished cells lie in
the out folder, in one hidden file per item and settings, a line each. The file's name has a digest
of everything that the cells rest on (item, sizes, seed, data, settings, version), so that nothing
is taken up by a run that asks for something else. It is removed when the item's result is written.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastiterate import interrupts
from lastiterate.errors import InputError


@dataclass
class Cells:
    """The finished cells of one item; without a ``path`` nothing is kept.

    ``seconds``, ``processor``: what cells cost that an earlier process made, wall clock and
    processor time.
    """

    path: Path | None = None
    about: Mapping[str, Any] = field(default_factory=dict[str, Any])
    seconds: float = 0.0
    processor: float = 0.0
    _found: dict[str, Any] = field(default_factory=dict[str, Any])
    _used: set[str] = field(default_factory=set[str])

    @classmethod
    def of(cls, folder: Path, about: Mapping[str, Any]) -> Cells:
        """The cells in ``folder`` that rest on ``about``, which names its item."""
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
        found = cls(folder / f"{prefix(about['item'])}{digest}.jsonl", about)
        found._read()
        return found

    def get(self, name: str, make: Callable[[], Any]) -> Any:
        """The cell of that name: kept from before, or made now and kept. Tuples come back as lists,
        as JSON has it."""
        if name in self._used:
            raise InputError(
                "cell", "must be asked for once: two pieces of work have one name", name
            )
        interrupts.check()
        self._used.add(name)
        if name in self._found:
            return self._found[name]
        began, spent = time.perf_counter(), time.process_time()
        line = json.dumps(
            {
                "cell": name,
                "value": make(),
                "seconds": time.perf_counter() - began,
                "processor": time.process_time() - spent,
            }
        )
        if self.path is not None:
            self._append(self.path, line)
        return json.loads(line)["value"]

    def _read(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                entry = json.loads(line)
                name, value, cost = (
                    entry["cell"],
                    entry["value"],
                    (entry["seconds"], entry["processor"]),
                )
            except (ValueError, KeyError, TypeError):
                continue  # the first line, or one that was cut off
            if name not in self._found:
                self.seconds, self.processor = self.seconds + cost[0], self.processor + cost[1]
            self._found[name] = value

    def _append(self, path: Path, line: str) -> None:
        """Every line begins with a line break, so that one that was cut off spoils no other."""
        with writing(path.parent), interrupts.later():
            path.parent.mkdir(parents=True, exist_ok=True)
            head = "" if path.exists() else json.dumps({"about": dict(self.about)})
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{head}\n{line}")
                file.flush()


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """What goes wrong while files are written to ``folder``, in one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "out",
            "must be a folder that can be written",
            f"{folder} ({error.strerror or error})",
            "name another one, or make space; finished pieces are kept",
        ) from None


def check_writable(folder: Path) -> None:
    """Refuse a folder that files could not be written to, before any work; nothing is left behind."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    with writing(folder), tempfile.TemporaryFile(dir=there):
        pass


def kept_any(folder: Path, item: str) -> bool:
    """Whether the folder has finished cells of an item."""
    return any(folder.glob(f"{prefix(item)}*"))


def prefix(item: str) -> str:
    """How the files of an item's cells begin."""
    return f".{item}.cells-"


def discard(folder: Path, item: str) -> None:
    """Remove all cells of an item, of these settings or of others: it is finished."""
    for path in folder.glob(f"{prefix(item)}*"):
        path.unlink(missing_ok=True)
