"""Files that appear whole or not at all, whatever fails: a full disk, an interruption, a killed
process.

A file is written under a hidden name in the same folder, forced to disk, and only then given its
own name.
"""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

from lastiterate import interrupts

UNFINISHED = ".part"
"""How the hidden name ends that is written under."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or of a quota, without space."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of a file system without hard links, such as FAT."""
NO_FOLDERS = (
    errno.EINVAL,
    errno.EBADF,
    errno.EACCES,
    errno.EPERM,
    errno.EISDIR,
    errno.ENOTSUP,
    errno.ENOSYS,
)
"""Errors of a file system that cannot force a folder to disk."""
PRIVATE, SHARED = 0o600, 0o666
"""Modes of new files: for their owner alone, or what the umask leaves."""


def write_file(path: Path, content: bytes, *, new: bool = False, mode: int = PRIVATE) -> None:
    """Write a file whole: see ``whole_file``."""
    with whole_file(path, new=new, mode=mode) as file:
        file.write(content)


@contextmanager
def whole_file(path: Path, *, new: bool = False, mode: int = PRIVATE) -> Generator[BinaryIO]:
    """Open a file that gets the name ``path`` once it is complete and on disk; ``new``: no other
    one is replaced.

    Errors: ``OSError`` that names ``path``, ``FileExistsError`` where a ``new`` name is taken.
    Nothing is left then.
    """
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}{UNFINISHED}")
    interrupts.unfinished.add(draft)
    with interrupts.later():
        try:
            _clean(path)
            with os.fdopen(
                os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb"
            ) as file:
                if fcntl is not None:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX)
                yield file
                file.flush()
                os.fsync(file.fileno())
            _rename(draft, path, new)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            interrupts.unfinished.discard(draft)


def _clean(path: Path) -> None:
    """Remove what processes that were killed while they wrote this file left; a draft that is
    locked is in use."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}-{'?' * 8}{UNFINISHED}"):
        with suppress(OSError):
            if fcntl is not None and stale.is_file():
                with stale.open("ab") as file:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stale.unlink()


def _rename(draft: Path, path: Path, new: bool) -> None:
    """Give a complete file its name, on disk; one that is ``new`` and not on disk has none."""
    if not new:
        os.replace(draft, path)
        sync_folder(path.parent)
        return
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        os.rename(draft, path)
    try:
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Force the names of a folder's files to disk, where its file system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in NO_FOLDERS:
            raise


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, by their paths within it, for everybody who may read its parent; it
    gets its name once all of them are on disk, and replaces none."""
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}{UNFINISHED}")
    interrupts.unfinished.add(draft)
    with interrupts.later():
        try:
            draft.mkdir(parents=True)
            for name, content in files.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                write_file(draft / name, content, new=True, mode=SHARED)
            sync_folder(draft)
            if os.path.lexists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            os.rename(draft, path)
            sync_folder(path.parent)
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), str(path)) from None
        finally:
            shutil.rmtree(draft, ignore_errors=True)
            interrupts.unfinished.discard(draft)


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file, on disk; a file that has no space for it stays as it was."""
    try:
        with path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            try:
                done = 0
                while done < len(line):
                    done += file.write(line[done:])
                os.fsync(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def is_taken(path: Path) -> bool:
    """Return whether a name is in use: by a file, a folder, or a link, also one that leads nowhere."""
    return os.path.lexists(path)
