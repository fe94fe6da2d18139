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
import time
from collections.abc import Callable, Generator, Mapping
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
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of a file system without hard links, such as FAT; Windows gives the last one."""
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
WAITS = (0.01, 0.05, 0.2, 0.7)
"""Seconds between attempts to rename a file that another program of Windows has open."""
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
                force_to_disk(file.fileno())
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
            if fcntl is None:
                stale.unlink()  # Windows refuses it while somebody has the file open
            elif stale.is_file():
                with stale.open("ab") as file:
                    fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                    stale.unlink()


def _rename(draft: Path, path: Path, new: bool) -> None:
    """Give a complete file its name, on disk; one that is ``new`` and not on disk has none."""
    if not new:
        rename_patiently(os.replace, draft, path)
        sync_folder(path.parent)
        return
    link_or_move(draft, path)
    try:
        sync_folder(path.parent)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def link_or_move(draft: Path, path: Path, *, exclusive: bool = False) -> None:
    """Give a file a new name, by a second link to it or, on a file system without links, by moving
    it.

    ``exclusive``: of several processes at most one gets the name. A link promises it everywhere, a
    move on Windows alone, where it replaces nothing; elsewhere it is refused then.
    """
    try:
        os.link(draft, path)
    except OSError as error:
        if error.errno not in NO_LINKS or (exclusive and fcntl is not None):
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from None
        rename_patiently(os.rename, draft, path)


def rename_patiently(rename: Callable[[Path, Path], None], draft: Path, path: Path) -> None:
    """Rename by ``rename``, a function of ``os``; on Windows try again for a second, because a file
    keeps its name there while another program reads it."""
    for wait in WAITS if fcntl is None else ():
        try:
            return rename(draft, path)
        except FileExistsError:
            raise
        except PermissionError:
            time.sleep(wait)
    rename(draft, path)


def force_to_disk(handle: int) -> None:
    """Force what was written to an open file to the disk itself; on macOS ``fsync`` alone leaves it
    in the disk's cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if fcntl is not None and full is not None:
        with suppress(OSError):  # a file system that has no such request
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Force the names of a folder's files to disk, where its file system can; Windows cannot."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            force_to_disk(handle)
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
            rename_patiently(os.rename, draft, path)
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
                force_to_disk(file.fileno())
            except OSError:
                file.truncate(size)
                raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def is_taken(path: Path) -> bool:
    """Return whether a name is in use: by a file, a folder, or a link, also one that leads nowhere."""
    return os.path.lexists(path)
