"""What a file may take at most: bytes, nesting and counts that are checked before a reader parses
it.

Files come from strangers: a model folder that is verified, a schema, a table, a run. A few of their
bytes can need more memory or time than a machine has. Each limit is a public number far above
what this library writes and what honest tables hold; beyond it a file is refused in one sentence.
The guide on data files lists them.
"""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO

from lastiterate.errors import InputError
from lastiterate.remote_files import open_bytes

TEXT = 2**27
"""Bytes of a JSON text. A certificate has kilobytes, or a few megabytes with a list of noise for
every step."""
VALUES = 2**23
"""Values in a JSON text, twice what a list of 17 digits for each of 3,000,000 steps needs."""
NESTING = 64
"""Lists and tables inside of one another, in JSON and TOML; what this library writes needs a tenth
of it."""
DIGITS = 1_100
"""Characters of a number in JSON; no double has more significant digits than 767."""
TOML = 2**23
"""Bytes of a TOML file: a schema of 10,000 columns with the comments of its template has 2,000,000.
"""
FOLDER = 2**36
"""Bytes of all files of a model folder together, and of its weights."""
OTHERS = 2**30
"""Bytes of all files of a model folder together, without its weights."""
COLUMNS = 2**20
"""Columns of a table in text (CSV, Parquet)."""
FEATURES = 2**22
"""Numbers in one record of an array (.npz, .npy, IDX): 4,194,304, an image of 2,048 by 2,048."""
CELL = 2**24
"""Characters of one cell of a table."""
RECORD = 2**25
"""Characters of one record of a CSV file, its header included."""
UNPACKED = 2**31
"""Bytes that a compressed file, or standard input, may unpack to, unless ``unpacked_limit`` says
otherwise."""
LEAST = 16
"""Bytes of memory that a cell of a table takes at least: a table whose cells take more than there
is, is refused."""


def text(size: int) -> str:
    """A number of bytes in words: in MiB, or exactly where it is smaller or lies between two."""
    return f"{size // 2**20:,} MiB" if size >= 2**20 and size % 2**20 == 0 else f"{size:,} bytes"


def content(path: Path, where: str, most: int) -> bytes:
    """The bytes of a file, which may be a pipe; one of more than ``most`` bytes is refused before
    they fill the memory.

    ``where``: what the errors call the file.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            size = found.st_size if stat.S_ISREG(found.st_mode) else most
            raw = (
                file.read(size + 1) if size <= most else None
            )  # Python allocates what it is asked for
    except FileNotFoundError:
        raise InputError(where, "must be an existing file", str(path)) from None
    except OSError as error:
        raise InputError(where, "must be a readable file", f"{path} ({error.strerror})") from None
    if raw is None or len(raw) > most:
        raise too_large(where, most, path)
    return raw


def too_large(where: str, most: int, path: Path) -> InputError:
    """The refusal of a file of more than ``most`` bytes."""
    return InputError(
        where, f"must be at most {text(most)} long", str(path), "no such file is longer"
    )


def memory() -> float:
    """Bytes of memory of this machine, or of its container; infinity where it does not say."""
    try:
        whole = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
    try:  # what a container may use of it
        return min(whole, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # "max", or no such file
        return whole


def free_memory() -> float:
    """Bytes of memory that this machine, or its container, could still give; infinity where it
    does not say."""
    try:
        stated = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
        free = 1024 * float(stated)
    except (OSError, ValueError, IndexError):
        free = memory()
    try:  # what a container may use of it
        inside = Path("/sys/fs/cgroup")
        most = float((inside / "memory.max").read_text())
        return min(free, most - float((inside / "memory.current").read_text()))
    except (OSError, ValueError):  # "max", or no such file
        return free


# Compressed files, unpacked up to a stated size: a few bytes can expand to more than any memory
# holds.

_limit: ContextVar[int] = ContextVar("unpacked_limit", default=UNPACKED)


@contextmanager
def limit_unpacking(size: int | None) -> Generator[None]:
    """Compressed files that are read within may unpack to ``size`` bytes (``None``: as before)."""
    if size is not None and size < 1:
        raise InputError("unpacked_limit", "must be a number of bytes", size, "such as 8000000000")
    token = _limit.set(_limit.get() if size is None else size)
    try:
        yield
    finally:
        _limit.reset(token)


def most_unpacked() -> int:
    """The limit in force, in bytes."""
    return _limit.get()


def refuse_beyond(size: int, path: Path) -> None:
    """Refuse ``size`` unpacked bytes of a file where they are more than the limit."""
    if size > most_unpacked():
        raise InputError(
            "data file",
            f"must not unpack to more than {most_unpacked()} bytes",
            path.name,
            "unpack it yourself, or raise the limit with unpacked_limit(BYTES)",
        )


class Unpacked(gzip.GzipFile):
    """A gzip file that is read up to the limit, and refused beyond."""

    def __init__(self, path: Path) -> None:
        self._packed = open_bytes(path)
        super().__init__(path.name, "rb", fileobj=self._packed)
        self._path, self._count = path, 0

    def close(self) -> None:
        super().close()
        self._packed.close()

    def read(self, size: int | None = -1) -> bytes:
        chunk = super().read(
            min(size, most_unpacked() + 1)
            if size is not None and size >= 0
            else most_unpacked() + 1
        )
        self._count_bytes(len(chunk))
        return chunk

    def read1(self, size: int = -1) -> bytes:
        chunk = super().read1(size)
        self._count_bytes(len(chunk))
        return chunk

    def readinto(self, buffer: bytearray | memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        got = super().readinto(buffer)
        self._count_bytes(got)
        return got

    def _count_bytes(self, more: int) -> None:
        self._count += more
        refuse_beyond(self._count, self._path)


def open_unpacked(path: Path) -> Unpacked | BufferedReader:
    """The bytes of a file, unpacked on the way if its content is gzip, whatever its name says."""
    with open_bytes(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
    return Unpacked(path) if packed else open_bytes(path)


class LimitedInput(BufferedIOBase):
    """Standard input that is read up to the limit, and refused beyond."""

    def __init__(self, raw: BinaryIO, path: Path) -> None:
        self._raw, self._path, self._count = raw, path, 0

    def read(self, size: int | None = -1, /) -> bytes:
        left = most_unpacked() + 1 - self._count
        chunk = self._raw.read(left if size is None or size < 0 else min(size, left))
        self._count += len(chunk)
        refuse_beyond(self._count, self._path)
        return chunk
