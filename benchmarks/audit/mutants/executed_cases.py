"""Executes cases of the bank in a process of its own: python -m benchmarks.audit.mutants.executed_cases OUT CASE ...

What every case shows goes to the file OUT; with ``--lines`` the lines of the sources that it executes.
"""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path
from typing import Any

import jax

import lastiterate
from benchmarks.audit.mutants import bank
from benchmarks.audit.mutants.sites import ROOMS

SOURCES = str(Path(lastiterate.__file__).parent) + "/"
Lines = set[tuple[str, int]]


def shown(name: str, held: Path) -> Any:
    """What a case shows, or why it cannot be executed."""
    try:
        return bank.cases(held)[name]().shown()
    except BaseException as error:  # whatever a wrong line raises
        return f"{type(error).__name__}: {error}"[:300]


class Traced:
    """Lines of the rooms that this process executes."""

    def __init__(self) -> None:
        self.lines: Lines = set()

    def __enter__(self) -> Traced:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: Any, event: str, given: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(SOURCES) or name[len(SOURCES):].split("/")[0] not in ROOMS:
            return None
        self._line(frame, "line", None)
        return self._line

    def _line(self, frame: Any, event: str, given: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename[len(SOURCES):], frame.f_lineno))
        return self._line


def main() -> None:
    out, held, *names = sys.argv[1:]
    found: dict[str, Any] = {}
    for name in names:
        if name == "--lines":
            continue
        if "--lines" in names:
            jax.clear_caches()  # programs of the cases before would hide lines
            with Traced() as traced:
                shown(name, Path(held))
            found[name] = traced.lines
        else:
            found[name] = shown(name, Path(held))
        Path(out).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
