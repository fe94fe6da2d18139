"""Executes the bank under one change of the sources, in a fork of a process that has imported
everything else.

Third-party packages are imported once; the library itself is imported in every fork, with the
changed text in the place of one file. No fork shares a compiled program with another except through
JAX's persistent cache.
"""

from __future__ import annotations

import importlib
import os
import pickle
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from benchmarks.audit.mutants.sites import ROOMS

AHEAD = (
    "numpy",
    "scipy.stats",
    "scipy.optimize",
    "scipy.signal",
    "jax",
    "jax.numpy",
    "jax.scipy.special",
    "sklearn.linear_model",
    "sklearn.preprocessing",
    "torch",
    "torch.func",
    "typer",
    "cryptography.fernet",
)
SECONDS, WALL = 30, 300
"""Processor seconds of a fork, and seconds on the clock."""
Lines = set[tuple[str, int]]


def ahead() -> None:
    """Imports what no change touches, and nothing that starts threads or devices."""
    for name in AHEAD:
        with suppress(ImportError):
            importlib.import_module(name)


def forked(
    what: Callable[[], Any],
    out: Path,
    changed: tuple[Path, str] | None = None,
    seconds: int = SECONDS,
) -> Any:
    """What a function returns in a process of its own, or why it returned nothing; ``changed``: a
    file and its text."""
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            _alone(what, out, changed, seconds)
        finally:
            os._exit(1)
    began = time.monotonic()
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() - began > WALL:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.05)
    return pickle.loads(out.read_bytes()) if out.exists() else "too slow, or killed"


def _alone(
    what: Callable[[], Any], out: Path, changed: tuple[Path, str] | None, seconds: int
) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if changed is not None:
        _replace(*changed)
    try:
        found = what()
    except BaseException as error:  # whatever a wrong line raises
        found = f"{type(error).__name__}: {error}"[:300]
    part = out.with_suffix(".part")
    part.write_bytes(pickle.dumps(found))
    part.rename(out)


def _replace(path: Path, text: str) -> None:
    """Another text is compiled in the place of a file."""
    whole = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> Any:
        if Path(self.get_filename(fullname)) == path:
            return compile(text, str(path), "exec", dont_inherit=True)
        return whole(self, fullname)

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]


def shown(name: str, held: Path, few: bool = False) -> Any:
    """What a case shows; ``few``: under the keys of its pairs alone."""
    from benchmarks.audit.mutants import bank

    return bank.cases(held)[name]().shown(few=few)


def lines(name: str, held: Path) -> Lines:
    """The lines of the rooms that a case executes."""
    from benchmarks.audit.mutants import bank

    with Traced() as traced, suppress(Exception):
        bank.cases(held)[name]().shown(few=True)
    return traced.lines


class Traced:
    """Lines of the rooms that this process executes."""

    def __init__(self) -> None:
        import lastiterate

        self.lines: Lines = set()
        self._sources = str(Path(lastiterate.__file__).parent) + "/"

    def __enter__(self) -> Traced:
        threading.settrace(self._called)
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _called(self, frame: Any, event: str, given: Any) -> Any:
        name = frame.f_code.co_filename
        if (
            not name.startswith(self._sources)
            or name[len(self._sources) :].split("/")[0] not in ROOMS
        ):
            return None
        self._line(frame, "line", None)
        return self._line

    def _line(self, frame: Any, event: str, given: Any) -> Any:
        if event == "line":
            self.lines.add((frame.f_code.co_filename[len(self._sources) :], frame.f_lineno))
        return self._line
