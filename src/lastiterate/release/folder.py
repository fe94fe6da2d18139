"""A released model on disk: written whole or not at all, with the hash of every file."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lastiterate import interrupts, limits
from lastiterate.atomic_files import (
    UNFINISHED,
    force_to_disk,
    is_taken,
    rename_patiently,
    sync_folder,
    whole_file,
    write_file,
)
from lastiterate.certificate_statement import content_hash, entry_of
from lastiterate.errors import InputError
from lastiterate.remote_files import refuse_address
from lastiterate.run import serialization

if TYPE_CHECKING:
    from lastiterate.accounting.certificate import Certificate

# The manifest of a folder, ``manifest.json``: its files with their hashes. The certificate cannot
# hold the hash of the page that shows it, so the manifest lists every file but itself and the
# signature, which covers the manifest too. Anybody can write another manifest: without a
# signature it shows damage and added files, and not a folder that was issued again as a whole.

MANIFEST, PAGE, SIGNATURE = "manifest.json", "report.html", "model.sig"
DIFFERS, MISSING = (
    f" is not the file that {MANIFEST} lists",
    f" is listed in {MANIFEST} and missing",
)
PAGE_DIFFERS = f"{PAGE}{DIFFERS}"
NOT_CERTIFIED = "the certificate does not hold"
"""The problem of a folder whose page was changed."""


def format_manifest(files: Mapping[str, bytes]) -> bytes:
    """The list of these files, in its one form."""
    return _form({name: hashlib.sha256(content).hexdigest() for name, content in files.items()})


def _form(listed: Mapping[str, object]) -> bytes:
    return (json.dumps({"sha256": dict(sorted(listed.items()))}, indent=2) + "\n").encode()


def add(folder: Path, name: str, content: bytes, *, replacing: bool = False) -> None:
    """Write one more file into a folder and list it; there is space for both before either appears.

    A folder without a list stays without one: what nobody listed when it was written is not vouched
    for later.
    """
    if not (folder / MANIFEST).is_file():
        write_file(folder / name, content, new=not replacing)
        return
    listed = _parse_manifest(serialization.content(folder / MANIFEST, MANIFEST)) | {
        name: hashlib.sha256(content).hexdigest()
    }
    with whole_file(folder / MANIFEST) as file:
        file.write(_form(listed))
        file.flush()
        force_to_disk(file.fileno())
        write_file(folder / name, content, new=not replacing)


def holds(folder: Path, name: str) -> bool:
    """Whether a file is in a folder, as the folder's list says."""
    try:
        return lists(folder, name, _hash(folder / name))
    except OSError:
        return False


def lists(folder: Path, name: str, digest: str) -> bool:
    """Whether a folder's list has a file of this name with this hash."""
    try:
        listed = _parse_manifest(serialization.content(folder / MANIFEST, MANIFEST))
    except (InputError, OSError):
        return False
    return listed.get(name) == digest


def compare_files(folder: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is wrong with the files of a folder, and what of them nobody vouches for."""
    from lastiterate.accounting.certificate_json import check_schema

    there = sorted(folder.iterdir())
    problems = tuple(
        f"{_name(path)} is {_what(path)}, not a file of its own"
        for path in there
        if not _plain(path)
    )
    if not (folder / MANIFEST).is_file():
        return (*problems, f"{MANIFEST} is missing"), ()
    try:
        content = serialization.content(folder / MANIFEST, MANIFEST)
        check_schema(serialization.loads(content, MANIFEST), "manifest")
        listed = _parse_manifest(content)
    except InputError as error:
        return (*problems, str(error)), ()
    plain = {path.name: path for path in there if _plain(path)}
    sizes = {
        name: plain[name].lstat().st_size for name in listed if name in plain and name != WEIGHTS
    }
    if sum(sizes.values()) > limits.OTHERS:
        largest = max(sizes, key=lambda name: sizes[name])
        return (
            *problems,
            f"{largest} has {sizes[largest]:,} bytes, and was not compared: all files but "
            f"{WEIGHTS} may have {limits.text(limits.OTHERS)} together",
        ), ()
    changed = tuple(
        f"{_printable(name)}{DIFFERS}"
        for name, digest in listed.items()
        if name in plain and _hash(plain[name]) != digest
    )
    gone = tuple(
        f"{_printable(name)}{MISSING}"
        for name in listed
        if name not in plain and name != PAGE and not os.path.lexists(folder / name)
    )
    added = tuple(
        f"{_name(path)} was added: {MANIFEST} does not list it"
        for path in plain.values()
        if path.name not in {*listed, MANIFEST, SIGNATURE}
    )
    removed = (
        (
            f"{PAGE} was removed, which the signature covers: copy it from the folder as it was sent"
            if os.path.lexists(folder / SIGNATURE)
            else f"{PAGE} was removed: lastiterate report makes it again",
        )
        if PAGE in listed and not os.path.lexists(folder / PAGE)
        else ()
    )
    return (*problems, *changed, *gone), (*added, *removed)


def _parse_manifest(content: bytes) -> dict[str, str]:
    body = serialization.loads(content, MANIFEST)
    listed = body.get("sha256") if serialization.is_object(body) else None
    if (
        not serialization.is_object(listed)
        or not all(isinstance(digest, str) for digest in listed.values())
        or any(Path(name).name != name for name in listed)
        or _form(listed) != content
    ):
        raise InputError(
            MANIFEST, "must be the list that was written with the folder", None, "it was changed"
        )
    return cast("dict[str, str]", listed)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _plain(path: Path) -> bool:
    return stat.S_ISREG(path.lstat().st_mode)


def _what(path: Path) -> str:
    return "a link" if path.is_symlink() else "a folder" if path.is_dir() else "no plain file"


def _name(path: Path) -> str:
    return _printable(path.name)


def _printable(name: str) -> str:
    """A name that somebody else chose, without characters that steer a terminal."""
    return name if name.isprintable() else ascii(name)


def describe_failure(problems: tuple[str, ...], unsigned: tuple[str, ...] = ()) -> str:
    """Say in one line what fails: the signature, files that the certificate does not name, or the
    certificate itself."""
    others = [problem for problem in problems if problem not in unsigned]
    names = [
        "the page"
        if problem == PAGE_DIFFERS
        else problem.removesuffix(DIFFERS).removesuffix(MISSING)
        for problem in others
    ]
    if not others:
        return "the folder has no valid signature"
    if any(name in (*FILES, problem) for name, problem in zip(names, others, strict=True)):
        return NOT_CERTIFIED
    also = "; the folder has no valid signature" if unsigned else ""
    if any(problem.endswith(MISSING) for problem in others):
        return f"the certificate holds, and files are missing or changed: {', '.join(names)}{also}"
    verb = "does" if len(names) == 1 else "do"
    return f"{' and '.join(names)} {verb} not belong to the certificate, which holds{also}"


# A released model on disk. ``certificate.json`` holds the SHA-256 of weights and model, and what
# it certifies: a ``run``, or the ``problem`` of a posterior sample. ``model.json`` names the kind
# of model and repeats that description.

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

DAY = 86_400.0
"""Seconds after which a draft without a lock belongs to a process that was killed."""

FILES = WEIGHTS, MODEL, CERTIFICATE = "weights.safetensors", "model.json", "certificate.json"
FORMAT = 3
HASHES = {WEIGHTS: "weights_sha256", MODEL: "model_sha256"}


@dataclass(frozen=True, eq=False)
class StoredModel:
    """What a model folder holds, read but not yet believed; ``text``: its very certificate."""

    path: Path
    model: dict[str, Any]
    weights: bytes
    certificate: dict[str, Any]
    hashes: dict[str, str]
    text: str

    def damage(self) -> list[str]:
        """What does not fit together: files that were not certified, and another description than
        the certificate's.

        **Guarantee:** where it is empty, weights and description are those the certificate was
        written for. Whether its numbers follow from the description is for ``verify`` to recompute.
        """
        flaws = [
            f"{name} is not the file that was certified"
            for name, entry in HASHES.items()
            if self.hashes[name] != self.certificate.get(entry)
        ]
        if self.certificate.get("content_sha256") != content_hash(self.certificate):
            flaws.append(
                "the content hash does not match: something in the certificate was changed"
            )
        subject = entry_of(self.certificate)
        if json.dumps(self.model.get(subject)) != json.dumps(self.certificate[subject]):
            flaws.append(f"{MODEL} describes another {subject} than the certificate")
        return flaws

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays of the weights file, by name; anything but finite floating-point numbers is
        refused."""
        from safetensors.numpy import load as unpack

        try:
            arrays = unpack(self.weights)
        except Exception as error:  # the format's parser raises several kinds on damaged bytes
            raise InputError(
                WEIGHTS, "must hold arrays in the safetensors format", str(error)[:80]
            ) from None
        for name, array in arrays.items():
            if array.dtype.kind != "f" or not np.isfinite(array).all():
                raise InputError(
                    WEIGHTS,
                    "must hold finite floating-point numbers",
                    f"{name}: {array.dtype}",
                    "the library writes no others",
                )
        return arrays


def pack_files(
    tensors: dict[str, np.ndarray],
    model: dict[str, Any],
    certificate: Certificate,
    delta: float,
    recorded: dict[str, Any],
) -> dict[str, bytes]:
    """The files of a model folder by name, their list included.

    ``recorded``: entries of the certificate that are recorded and not derived.
    """
    from safetensors.numpy import save as pack

    described = json.dumps({"format": FORMAT} | model, indent=2)
    files = {WEIGHTS: pack(tensors), MODEL: described.encode()}
    stated = recorded | {HASHES[name]: sha256(content) for name, content in files.items()}
    files[CERTIFICATE] = json.dumps(certificate.to_dict(delta, files=stated), indent=2).encode()
    return files | {MANIFEST: format_manifest(files)}


def write(folder: str | Path, files: dict[str, bytes]) -> StoredModel:
    """Write a model folder of ``pack_files``, for its owner's eyes; it appears complete or not at
    all, and never replaces another one."""
    where = free(folder)
    where.parent.mkdir(parents=True, exist_ok=True)
    clean(where)
    with interrupts.later():
        _appear(where, files)
    hashes = {name: sha256(files[name]) for name in HASHES}
    model, certificate = (json.loads(files[name]) for name in (MODEL, CERTIFICATE))
    text = files[CERTIFICATE].decode()
    return StoredModel(where, model, files[WEIGHTS], certificate, hashes, text)


def _appear(where: Path, files: dict[str, bytes]) -> None:
    """A folder of these files, on disk, under its name or not at all."""
    draft, held = _lock_draft(where)
    try:
        for name, content in files.items():
            with os.fdopen(
                os.open(draft / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb"
            ) as file:
                file.write(content)
                file.flush()
                force_to_disk(file.fileno())
        sync_folder(draft)
        rename_patiently(os.rename, draft, where)
        sync_folder(where.parent)
    except BaseException as error:
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError):  # names the folder that was asked for, not its draft
            raise OSError(error.errno, error.strerror or str(error), str(where)) from None
        raise
    finally:
        if held is not None:
            os.close(held)


def _lock_draft(where: Path) -> tuple[Path, int | None]:
    """A draft that no other process takes files out of, and what holds it."""
    while True:
        draft = _draft(where)
        held = _hold(draft)
        if held is not None or fcntl is None:
            return draft, held


def _hold(draft: Path) -> int | None:
    """A draft is this process's until what this gives is closed, or the process ends. ``None``: it
    is another's, or there are no locks."""
    if fcntl is None:
        return None
    try:
        handle = os.open(draft, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def _draft(where: Path) -> Path:
    """Make a new hidden folder next to ``where``, of mode 0700."""
    draft = Path(tempfile.mkdtemp(prefix=f".{where.name}-", suffix=UNFINISHED, dir=where.parent))
    interrupts.unfinished.add(draft)
    return draft


def reserve_space(where: Path, size: int) -> Path:
    """Make a hidden folder next to ``where`` that holds ``size`` bytes of disk; ``OSError`` where
    they cannot be had.

    ``write`` removes it, and so does the next process that writes ``where`` if this one is killed.
    """
    where.parent.mkdir(parents=True, exist_ok=True)
    held = _draft(where)
    try:
        with (held / "reserved").open("wb") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, max(size, 1))
            else:  # macOS, Windows
                file.write(bytes(size))
                force_to_disk(file.fileno())
    except BaseException as error:
        shutil.rmtree(held, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(where)) from None
        raise
    return held


def _is_old(draft: Path) -> bool:
    """Return whether nobody has added to a draft for a day; folders of Windows have no locks."""
    with suppress(OSError):
        return time.time() - draft.stat().st_mtime > DAY
    return False


def clean(where: Path) -> None:
    """Remove the files that killed processes left next to this folder while they saved it."""
    for stale in where.parent.glob(
        f".{glob.escape(where.name)}-{'?' * 8}{UNFINISHED}"
    ):  # as tempfile names them
        held = _hold(stale)
        if held is not None or (fcntl is None and _is_old(stale)):
            shutil.rmtree(stale, ignore_errors=True)
        if held is not None:
            os.close(held)


def free(
    folder: str | Path,
    argument: str = "folder",
    remedy: str = "choose another folder, or remove this one",
) -> Path:
    """The path of a folder that does not exist yet."""
    where = to_path(folder, argument)
    if is_taken(where):
        raise InputError(argument, "must not exist yet", str(where), remedy)
    return where


def check_ending(argument: str, path: Path, ending: str) -> Path:
    """The path of a new file; refused without the ``ending`` by which ``verify`` knows it."""
    if ending and path.suffix != ending:
        raise InputError(
            argument, f"must end in {ending}", str(path), f"name it {path.stem or 'model'}{ending}"
        )
    return path


def read(folder: str | Path) -> StoredModel:
    """The three files of a model folder; ``InputError`` for what is missing or no JSON of one
    meaning."""
    path = to_path(folder, "model")
    if not path.is_dir():
        raise InputError("model", "must be a folder that train wrote", str(path))
    if path.resolve().name.endswith(UNFINISHED):
        raise InputError(
            "model",
            "must be a whole folder, not what a process that was killed left",
            str(path),
            "train again: the next run with the same name removes it",
        )
    return parse(read_files(path), path)


def read_files(folder: str | Path) -> dict[str, bytes]:
    """The bytes of the three files of a model folder, by name."""
    path = Path(folder)
    for name in FILES:
        if not (path / name).is_file():
            raise InputError("model", f"misses the file {name}", str(path), "train again")
    files = {name: serialization.content(path / name, name) for name in (MODEL, CERTIFICATE)}
    return files | {WEIGHTS: _weights(path / WEIGHTS)}


def parse(files: Mapping[str, bytes], path: Path | None = None) -> StoredModel:
    """A released model of the bytes of its files; ``path``: of their folder, where they have one."""
    model = serialization.loads(files[MODEL], MODEL)
    if not serialization.is_object(model):
        raise InputError(MODEL, "must be a JSON object", type(model).__name__)
    if isinstance(model.get("format"), bool) or model.get("format") != FORMAT:
        raise InputError(MODEL, f"must be of format {FORMAT}", model.get("format"), "train again")
    certificate = serialization.loads(files[CERTIFICATE], CERTIFICATE)
    if not serialization.is_object(certificate):
        raise InputError(CERTIFICATE, "must be a JSON object", type(certificate).__name__)
    hashes = {name: sha256(files[name]) for name in HASHES}
    text = files[CERTIFICATE].decode()
    return StoredModel(path or Path(), model, files[WEIGHTS], certificate, hashes, text)


def state_privacy(certificate: Mapping[str, Any]) -> dict[str, str]:
    """Epsilon, delta, neighbours and unit of a certificate as texts, for programs that read a
    model's metadata alone."""
    from lastiterate.accounting.certificate_subject import name_protected

    return {
        "epsilon": json.dumps(certificate["epsilon"]),
        "delta": json.dumps(certificate["delta"]),
        "adjacency": str(certificate["adjacency"]),
        "unit": name_protected(certificate["stated"]["unit"], certificate.get("caveats")),
    }


def _weights(path: Path) -> bytes:
    """The bytes of the weights; those of which no second copy fits into memory are refused before
    they are read."""
    size, most = path.stat().st_size, min(limits.FOLDER, limits.memory() / 2)
    if size > most:
        raise InputError(
            WEIGHTS,
            f"must take at most half of this machine's memory, and {limits.text(limits.FOLDER)}",
            f"{size:,} bytes",
        )
    return limits.content(path, WEIGHTS, limits.FOLDER)


def whole(folder: Path) -> StoredModel | None:
    """A model folder whose weights and description fit its certificate; ``None`` for anything else."""
    try:
        stored = read(folder)
        return None if stored.damage() else stored
    except (InputError, OSError, KeyError):
        return None


def to_path(given: object, argument: str) -> Path:
    """A path from text or ``Path``, and from nothing else."""
    if not isinstance(given, str | Path):
        raise InputError(argument, "must be a path", type(given).__name__)
    refuse_address(argument, given)
    return Path(given)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
