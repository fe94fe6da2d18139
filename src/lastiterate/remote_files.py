"""Tables in a store, by their address: ``s3://BUCKET/NAME.csv``, ``gs://BUCKET/FOLDER``.

They are read in ranges of bytes through fsspec; no file of them is kept here. What a store raises
becomes a ``StoreError``, an ``OSError``, which every reader explains in words.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

from lastiterate.errors import InputError

STORES = {"s3": "s3", "gs": "gcs", "gcs": "gcs", "memory": "s3"}
"""Kinds of addresses, and the extra of this package that reads them; ``memory``: fsspec's own store
within a process."""
BLOCK = 2**22
"""Bytes that are asked for at once. More would be read in vain where a table has columns that no one
needs."""
BUFFER = 2**16
"""Bytes that a reader takes from there."""
LISTED = 8
"""Objects of one folder of which the store is asked at once, for a list of the folder."""
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/+(?=[^/])", re.IGNORECASE)
_failures: dict[str, StoreError] = {}
"""The last failure of every object since it was opened: Arrow makes errors of its own of it."""
Value = TypeVar("Value")


class StoreError(OSError):
    """What went wrong in a store: its own kind of error, and the first line of what it said."""

    def __init__(self, error: Exception) -> None:
        said = (str(error) or type(error).__name__).strip().split("\n")[0][:120]
        super().__init__(f"{type(error).__name__}: {said}")


def to_path(given: str | Path) -> Path:
    """Return the path of a file, or of an object or a folder in a store.

    Errors: addresses of no known kind, a store's package that is not installed, and an object that
    is not there or may not be read. A ``Path`` of an address, which lost a slash, is one as well.

    >>> to_path("records.csv") == Path("records.csv")
    True
    """
    path = _open_address(given, "data file")
    if not is_remote(path):
        return path
    try:
        look_up(path)
    except FileNotFoundError:
        raise InputError(
            "data file", "must be an object, or a folder of them, in the store", str(path)
        ) from None
    except StoreError as error:
        raise InputError("data file", "must be readable", f"{path} ({error})") from None
    return path


def _open_address(given: str | Path, argument: str) -> Path:
    """Return a path on a disk, or one that leads into a store, of which nothing was asked."""
    if is_remote(given):
        return cast(Path, given)
    address = find_address(given)
    if address is None:
        return Path(given)
    kind, rest = address.split("://", 1)
    if kind == "file":
        return Path(url2pathname(urlsplit(f"file:///{rest}").path))
    if kind not in STORES:
        raise InputError(
            argument,
            "must be a file, or an address that begins with s3:// or gs://",
            address,
            "copy it to a disk of this machine first"
            if argument == "data file"
            else "write it to a disk of this machine first",
        )
    try:
        from upath import UPath

        path = cast(Path, UPath(address))
        _explain(lambda: cast(Any, path).fs)  # the store's own package
    except ImportError as error:
        raise InputError(
            argument,
            f"needs the extra {STORES[kind]} for addresses that begin with {kind}://",
            f"{address} ({str(error).splitlines()[0][:80]})",
            f"install it with: pip install lastiterate[{STORES[kind]}]",
        ) from None
    except (StoreError, FileNotFoundError) as error:  # of its keys and settings
        rule = "must be readable" if argument == "data file" else "must be writable"
        raise InputError(argument, rule, f"{address} ({error})") from None
    return path


def find_address(given: str | Path) -> str | None:
    """Return the address that a text, or a ``Path`` of one, is; ``None`` for files of a disk.

    >>> find_address(Path("s3://bucket/name.csv"))
    's3://bucket/name.csv'
    """
    text = given.as_posix() if isinstance(given, Path) else given
    found = _ADDRESS.match(text)
    return None if found is None else f"{found[1].lower()}://{text[found.end() :]}"


def refuse_address(argument: str, given: str | Path) -> None:
    """Refuse an address where a file or folder of a disk is meant: as a name it would be a folder
    ``s3:`` of this machine."""
    address = find_address(given)
    if address is None:
        return
    if address.startswith("file://"):
        path = _open_address(address, argument)
        raise InputError(argument, "must be written as a path", str(given), f"such as {path}")
    raise InputError(
        argument,
        "must be on a disk of this machine, and this is an address",
        address,
        "copy it from or to a disk: only data and predictions have addresses",
    )


def to_new_object(given: str | Path, argument: str) -> Path:
    """Return the path of a file, or of an object that is not in its store yet.

    Errors: as ``to_path``, and an object that exists or may not be looked for.
    """
    path = _open_address(given, argument)
    if is_remote(path):
        try:
            taken = _ask(path, "exists")
        except StoreError as error:
            raise InputError(argument, "must be writable", f"{path} ({error})") from None
        if taken:
            raise InputError(argument, "must not exist yet", str(path), "choose another name")
    return path


def write_object(path: Any, file: Path) -> None:
    """Copy a file of a disk into a store, whole or not at all, and only where there is none.

    Errors: ``FileExistsError``, and a ``StoreError`` for all others.
    """
    _explain(lambda: path.fs.put_file(str(file), path.path, mode="create"))


def is_remote(path: object) -> bool:
    """Whether a path leads into a store."""
    return not isinstance(path, str | Path) and hasattr(path, "fs")


def look_up(path: Path) -> dict[str, Any]:
    """Return what a store says of an object now, its size and version among others.

    Errors: ``FileNotFoundError``, ``ImportError``, and a ``StoreError`` for all others.
    """
    return _ask(path, "info")


def _ask(path: Any, question: str, **options: bool) -> Any:
    """Ask the store itself: what it said before is forgotten."""

    def ask() -> Any:
        path.fs.invalidate_cache()
        return getattr(path.fs, question)(path.path, **options)

    return _explain(ask)


def find_versions(paths: Sequence[Path]) -> list[tuple[int, ...]]:
    """Return each object's size, and a number that is another one wherever its bytes are: of its
    tag, version and time, as the store states them."""
    found: dict[str, dict[str, Any]] = {}
    for folder, inside in Counter(path.parent for path in paths).items():
        if inside >= LISTED:
            found |= {entry["name"]: entry for entry in _ask(folder, "ls", detail=True)}
    return [_version(found.get(cast(Any, path).path) or look_up(path)) for path in paths]


def _version(stated: dict[str, Any]) -> tuple[int, ...]:
    said = repr(sorted((key, str(value)) for key, value in stated.items()))
    number = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "big") | 1
    return int(stated.get("size") or 0), number, 0, number


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file, or an object, to read its bytes."""
    if not is_remote(path):
        return path.open("rb")
    whole: Any = path
    _failures.pop(str(path), None)
    file = _remember(str(path), lambda: whole.fs.open(whole.path, "rb", block_size=BLOCK))
    return io.BufferedReader(_StoreFile(file, str(path)), BUFFER)


def find_failure(path: Path) -> StoreError | None:
    """Return what a store raised since an object was opened, if anything."""
    return _failures.get(str(path)) if is_remote(path) else None


def schema_beside(data: str | Path) -> Path:
    """Return where the schema of a file lies by default: in the file of its name that ends in
    .toml, in the same folder; of an address in this one."""
    path = to_path(data)
    return Path(path.with_suffix(".toml").name) if is_remote(path) else path.with_suffix(".toml")


class _StoreFile(io.RawIOBase):
    """The bytes of an object; its errors are a ``StoreError``."""

    def __init__(self, file: Any, address: str) -> None:
        self._file, self._address = file, address

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        part = _remember(self._address, lambda: self._file.read(len(buffer)))
        buffer[: len(part)] = part
        return len(part)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return _remember(self._address, lambda: self._file.seek(offset, whence))

    def tell(self) -> int:
        return self._file.tell()


def _explain(ask: Callable[[], Value]) -> Value:
    """What is asked of a store; its packages raise errors of many kinds."""
    try:
        return ask()
    except (FileNotFoundError, FileExistsError, ImportError, MemoryError, StoreError):
        raise
    except Exception as error:
        raise StoreError(error) from None


def _remember(address: str, ask: Callable[[], Value]) -> Value:
    """What is asked of an object; its failure is kept for ``find_failure``."""
    try:
        return _explain(ask)
    except FileNotFoundError as error:
        failure = StoreError(error)
    except StoreError as error:
        failure = error
    _failures[address] = failure
    raise failure
