"""The list of a folder's files with their hashes, ``manifest.json``: what was written together, and nothing else.

The certificate cannot hold the hash of the page that shows the certificate. So the folder has a list of all files but
itself and the signature, which is over the list as well. Whoever changes a file can write another list: without a
signature it shows damage and additions, not a folder that somebody issued again as a whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from lastiterate import limits
from lastiterate.atomic_files import whole_file, write_file
from lastiterate.errors import InputError
from lastiterate.run import strict_json

MANIFEST, PAGE, SIGNATURE = "manifest.json", "report.html", "model.sig"
OLD = ("by its format it was written before folders had a list of their files: nothing compares {} with what was "
       "released, and files may have been added")


def written(files: Mapping[str, bytes]) -> bytes:
    """The list of these files, in its one form."""
    return _form({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})


def _form(listed: Mapping[str, object]) -> bytes:
    return (json.dumps({"sha256": dict(sorted(listed.items()))}, indent=2) + "\n").encode()


def add(folder: Path, name: str, content: bytes, *, replacing: bool = False) -> None:
    """Write one more file into a folder and list it; there is space for both before either appears.

    A folder without a list stays without one: what nobody listed when it was written is not vouched for later.
    """
    if not (folder / MANIFEST).is_file():
        write_file(folder / name, content, new=not replacing)
        return
    listed = _listed(strict_json.content(folder / MANIFEST, MANIFEST)) | {name: hashlib.sha256(content).hexdigest()}
    with whole_file(folder / MANIFEST) as file:
        file.write(_form(listed))
        file.flush()
        os.fsync(file.fileno())
        write_file(folder / name, content, new=not replacing)


def holds(folder: Path, name: str) -> bool:
    """Whether a file is in a folder, as the folder's list says."""
    try:
        return _listed(strict_json.content(folder / MANIFEST, MANIFEST))[name] == _hash(folder / name)
    except (InputError, OSError, KeyError):
        return False


def compared(folder: Path, needed: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is wrong with the files of a folder, and what of them nobody vouches for.

    ``needed``: whether a folder of its form has a list of files; older ones have none.
    """
    there = sorted(folder.iterdir())
    problems = tuple(f"{_name(path)} is {_what(path)}, not a file of its own" for path in there if not _plain(path))
    if not (folder / MANIFEST).is_file():
        rest = [_name(path) for path in there if path.name in (PAGE,) or path.name not in KNOWN]
        return (*problems, *((f"{MANIFEST} is missing",) if needed else ())), \
            () if needed else (OLD.format(", ".join(rest) or "a page that is added"),)
    try:
        listed = _listed(strict_json.content(folder / MANIFEST, MANIFEST))
    except InputError as error:
        return (*problems, str(error)), ()
    plain = {path.name: path for path in there if _plain(path)}
    sizes = {name: plain[name].lstat().st_size for name in listed if name in plain and name != KNOWN[0]}
    if sum(sizes.values()) > limits.OTHERS:
        largest = max(sizes, key=lambda name: sizes[name])
        return (*problems, f"{largest} has {sizes[largest]:,} bytes, and was not compared: all files but "
                           f"{KNOWN[0]} may have {limits.text(limits.OTHERS)} together"), ()
    changed = tuple(f"{name} is not the file that {MANIFEST} lists" for name, digest in listed.items()
                    if name in plain and _hash(plain[name]) != digest)
    gone = tuple(f"{name} is listed in {MANIFEST} and missing" for name in listed
                 if name not in plain and name != PAGE and not os.path.lexists(folder / name))
    added = tuple(f"{_name(path)} was added: {MANIFEST} does not list it" for path in plain.values()
                  if path.name not in {*listed, MANIFEST, SIGNATURE})
    removed = (f"{PAGE} was removed: lastiterate report makes it again",) if PAGE in listed and not os.path.lexists(
        folder / PAGE) else ()
    return (*problems, *changed, *gone), (*added, *removed)


KNOWN = ("weights.safetensors", "model.json", "certificate.json", SIGNATURE)


def _listed(content: bytes) -> dict[str, str]:
    body = strict_json.loads(content, MANIFEST)
    listed = body.get("sha256") if strict_json.is_object(body) else None
    if not strict_json.is_object(listed) or not all(isinstance(digest, str) for digest in listed.values()) \
            or any(Path(name).name != name for name in listed) or _form(listed) != content:
        raise InputError(MANIFEST, "must be the list that was written with the folder", None, "it was changed")
    return cast("dict[str, str]", listed)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _what(path: Path) -> str:
    return "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"


def _name(path: Path) -> str:
    """A name that somebody else chose, without characters that steer a terminal."""
    return path.name if path.name.isprintable() else ascii(path.name)
