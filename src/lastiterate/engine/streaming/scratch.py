"""Encrypted scratch files for records that are read more than once."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lastiterate.engine.streaming.source import (
    Cursor,
    Piece,
    RecordForm,
    Source,
    check_streams,
    check_unchanged,
    count_records,
    first_record,
    own_records,
    regroup,
)
from lastiterate.errors import InputError
from lastiterate.run.run import Run

# Scratch files: pages of records, encrypted and authenticated under a key that lives in memory
# alone. A file has no name from the moment it is opened, so that it is gone with the process,
# however that ends; its key is gone with it. Every page is written once, under its own number as
# nonce (AES-256-GCM).

TAG = 16
FULL = (errno.ENOSPC, errno.EDQUOT)


class NoScratch(InputError):
    """There is no folder, or no space, for a scratch file."""


@dataclass
class Scratch:
    """``pages`` pages of at most ``size`` bytes in a file without a name, in ``folder`` (default:
    temporary files).

    ``spare``: whether the run could do without the file, which may then take half of the free space
    and no more. ``instead``: a scratch file that is read no more and lies on this one's disk: it
    ends, and this one takes its space.

    **Guarantee:** what reaches the disk is ciphertext under 256 bits from the operating system that
    are never written, and that are this file's alone; no page is written twice, so that no nonce is
    used twice; a page that was changed on the disk is refused.
    """

    pages: int
    size: int
    folder: Path | None = None
    spare: bool = False
    instead: Scratch | None = None
    _file: int = field(init=False, repr=False)
    _cipher: AESGCM = field(init=False, repr=False)
    _written: np.ndarray = field(
        init=False, repr=False
    )  #: bytes of every page, 0 before it is written

    def __post_init__(self) -> None:
        self._cipher = AESGCM(os.urandom(32))
        self._written = np.zeros(self.pages, np.int64)
        where = Path(tempfile.gettempdir()) if self.folder is None else self.folder
        try:
            if self.instead is None:
                self._file = _nameless(where)
            else:
                self._file, self.instead._file, self.instead = self.instead._file, -1, None
        except OSError as error:
            raise NoScratch(
                "scratch",
                "must be a folder that can be written to",
                f"{where} ({error.strerror})",
                "name another one",
            ) from None
        try:
            if self.spare and 2 * self.reserved > shutil.disk_usage(where).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            _take_space(self._file, max(1, self.reserved), where)
        except OSError as error:
            self.close()
            raise self._no_space(error) from None

    def write(self, page: int, content: Any) -> None:
        """Write a page, once."""
        assert 0 < len(content) <= self.size and not self._written[page]
        self._written[page] = len(content)
        sealed = self._cipher.encrypt(page.to_bytes(12, "big"), content, None)
        try:
            done = 0
            while done < len(sealed):
                done += _write_at(
                    self._file, memoryview(sealed)[done:], page * (self.size + TAG) + done
                )
        except OSError as error:
            raise self._no_space(error) from None

    @cached_property
    def _sealed(self) -> bytearray:
        return bytearray(self.size + TAG)

    def read(self, page: int) -> bytes:
        """A page that was written; one thread may read at a time."""
        length = int(self._written[page]) + TAG
        try:
            # one buffer for all pages: new memory costs as much as reading
            sealed = memoryview(self._sealed)[:length]
            if _read_at(self._file, sealed, page * (self.size + TAG)) != length:
                raise ValueError
            return self._cipher.decrypt(page.to_bytes(12, "big"), sealed, None)
        except (InvalidTag, ValueError, OSError):
            raise InputError(
                "scratch",
                "is damaged: a page is not as it was written",
                None,
                "check the disk, or name another folder",
            ) from None

    @property
    def reserved(self) -> int:
        """Bytes of the file."""
        return self.pages * (self.size + TAG)

    def close(self) -> None:
        """Give the space back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self.close()

    def _no_space(self, error: OSError) -> InputError:
        if error.errno not in FULL:
            return NoScratch("scratch", "cannot be written", error.strerror, "name another folder")
        where = tempfile.gettempdir() if self.folder is None else self.folder
        return NoScratch(
            "scratch",
            f"needs {self.reserved / 1e9:.3g} GB of free space",
            str(where),
            "name a folder on another disk; nothing was kept",
        )


# What Linux has and other systems have not: space that is taken before it is written to (macOS,
# Windows), reading and writing at a position (Windows), and files without a name.

_moves = Lock()
"""Held while a file's one position is moved and used, on systems without ``pwrite``."""


def _take_space(file: int, size: int, folder: Path) -> None:
    """Take the space of a file on the disk, or where that cannot be asked for, see that it is there."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    if size > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(file, size)


def _write_at(file: int, content: memoryview, position: int) -> int:
    """Write bytes at a position; the number of those written."""
    if hasattr(os, "pwrite"):
        return os.pwrite(file, content, position)
    with _moves:
        os.lseek(file, position, os.SEEK_SET)
        return os.write(file, content)


def _read_at(file: int, into: memoryview, position: int) -> int:
    """Fill a buffer from a position; the number of bytes read."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [into], position)
    done = 0
    with _moves:
        os.lseek(file, position, os.SEEK_SET)
        while content := os.read(file, len(into) - done):
            into[done : done + len(content)] = content
            done += len(content)
    return done


def _nameless(folder: Path) -> int:
    """A file that is open and has no name; on Windows, one that is gone once it is closed."""
    temporary: Any = getattr(os, "O_TEMPORARY", None)
    if temporary is not None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | temporary | getattr(os, "O_BINARY", 0)
        return os.open(folder / f".lastiterate-{secrets.token_hex(8)}", flags, 0o600)
    flag: Any = getattr(os, "O_TMPFILE", None)
    if flag is not None:
        try:
            return os.open(folder, os.O_RDWR | flag | os.O_EXCL, 0o600)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    handle, name = tempfile.mkstemp(prefix=".lastiterate-", dir=folder)
    os.unlink(name)
    return handle


# Records of a dear source, kept once in public order: text is parsed once, however many passes read
# it.

PAGE = 2**23
"""Bytes of a page, about: records that are scattered come in large pieces."""


class SourceCopy:
    """The records of a source, in a scratch file (see ``Scratch``).

    ``own``: which of them, where it is not all: the first, and behind the last. Of the others there
    is the first one alone, whose form is looked at.
    """

    dear = False

    def __init__(
        self,
        source: Source,
        folder: Path | None = None,
        spare: bool = False,
        own: tuple[int, int] | None = None,
    ) -> None:
        self._n, self._first = len(source), first_record(source)
        self._form, (self._begin, end) = RecordForm.of(self._first), own or (0, self._n)
        self._rows, many = max(1, PAGE // self._form.size), end - self._begin
        self._pages = -(-many // self._rows)
        self._scratch = Scratch(self._pages, self._rows * self._form.size, folder, spare)
        try:
            cursor = Cursor(count_records(source, self._n, self._begin))
            for page, piece in enumerate(regroup(cursor.take(many), self._rows)):
                self._scratch.write(page, self._form.pack(piece))
            if end == self._n:
                cursor.finish()
        except BaseException:
            self.close()
            raise
        self._source = source

    def __len__(self) -> int:
        return self._n

    def pieces(self, most: int, first: int = 0) -> Iterator[Piece]:
        at = first - self._begin
        if at < 0:
            yield self._first
            raise AssertionError("records of other processes are not here")
        for page in range(at // self._rows, self._pages):
            piece = self._form.unpack(self._scratch.read(page))
            for begin in range(max(0, at - page * self._rows), len(piece[0]), most):
                yield tuple(part[begin : begin + most] for part in piece)

    def check(self) -> None:
        """Refuse a source that changed."""
        check_unchanged(self._source)

    def fingerprint(self) -> Iterator[np.ndarray]:
        return self._source.fingerprint()

    def close(self) -> None:
        """Give the space back."""
        self._scratch.close()


@dataclass
class Readable:
    """A source, or the copy of it that is read instead."""

    source: Source

    def close(self) -> None:
        """Give scratch space back."""
        if isinstance(self.source, SourceCopy):
            self.source.close()


def again_and_again(
    run: Run,
    source: Source,
    folder: Path | None,
    arranged_once: bool = False,
    part: tuple[int, int] = (0, 1),
) -> Readable:
    """The source of a run that reads it in order, or where it is dear and read more than once a
    copy in a scratch file.

    ``arranged_once``: its passes read records that were arranged in the first one. ``part``: which
    process this is, of how many: it copies its own records, unless its batches are cut from those
    of all.
    """
    check_streams(run, source)
    apart = run.batching.streams != "in order" or run.blocks == 1
    passes = 1 if arranged_once or run.batching.drawn == "once" else -(-run.steps // run.blocks)
    return Readable(
        SourceCopy(source, folder, own=own_records(run.n, *part) if apart else None)
        if source.dear and passes + len(run.preprocessing) > 1
        else source
    )
