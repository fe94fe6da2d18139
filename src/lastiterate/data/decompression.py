"""Compressed files, unpacked up to a stated size: a few bytes can expand to more than any memory
holds."""

from __future__ import annotations

import gzip
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import BinaryIO

from lastiterate.errors import InputError
from lastiterate.limits import UNPACKED

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
        super().__init__(path)
        self._path, self._count = path, 0

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
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return Unpacked(path) if packed else path.open("rb")


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
