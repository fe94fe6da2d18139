"""Encrypted checkpoints of a run: written whole or not at all, deleted at release."""

from __future__ import annotations

import glob
import hashlib
import hmac
import json
import os
import re
import stat
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from safetensors.numpy import load, save

from lastiterate import interrupts
from lastiterate.atomic_files import FULL, write_file
from lastiterate.engine.random import Key as NoiseKey
from lastiterate.engine.random import derive_key, fresh_key, host_stream
from lastiterate.errors import InputError, outside
from lastiterate.run.run import Run
from lastiterate.run.validation import nonnegative

# A file that is an intermediate state: encrypted, authenticated, written whole or not at all,
# deleted at release. Layout: ``MAGIC``, the length of the header (4 bytes), the header (JSON), a
# nonce (12 bytes), AES-256-GCM of the body with everything before it authenticated. The header says
# whose checkpoint it is: the hash of the run, digests of the data and of the loss under the key,
# versions, a number that grows. Keys of a file are derived from the user's key and a random salt.

MAGIC = b"LICKPT2\n"
LONGEST_HEADER = 4096
RANDOM = "?" * 8
"""Pattern of the random part that ``atomic_files`` puts into a name; more than that belongs to a
file with a longer name."""
VARIABLE, FILE_VARIABLE = "LASTITERATE_CHECKPOINT_KEY", "LASTITERATE_CHECKPOINT_KEY_FILE"
HAS_MODES = os.name != "nt"
"""Whether a file's mode says who may read it; Windows has lists of access instead, which nothing here
reads."""
HELP = (
    "write 64 hexadecimal digits to a file of mode 0600 and name it with checkpoint_key= or in "
    f"{FILE_VARIABLE}, or put the digits into {VARIABLE}"
)


@final
@dataclass(frozen=True, repr=False)
class Key:
    """256 bits that open checkpoints; they are never shown."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise InputError(
                "checkpoint key", "must be 256 bits", f"{8 * len(self.secret)} bits", HELP
            )

    def __repr__(self) -> str:
        return "Key(...)"

    def digest(self, arrays: Iterable[Any]) -> str:
        """Return a digest that distinguishes data sets for the holder of the key, and reveals
        nothing to others."""
        mac = hmac.new(derive_key(self.secret, "data"), digestmod="sha256")
        for array in arrays:
            values = np.ascontiguousarray(array)
            mac.update(f"{values.dtype.str} {values.shape};".encode())
            mac.update(values.reshape(-1).view(np.uint8).data if values.size else b"")
        return mac.hexdigest()


def read_key(file: Path | None = None) -> Key | None:
    """The key in ``file``, or in the environment; ``None`` where there is none, and then nothing is
    written.

    Errors: a file that others may read, and whatever is not a key; nothing of it is shown.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = file if file is not None else Path(named) if named else None
    if path is None:
        text = os.environ.get(VARIABLE)
        return None if not text else _parse_key(text)
    try:
        if path.is_dir():
            raise InputError("checkpoint key", "must be a text file, not a folder", str(path), HELP)
        if HAS_MODES and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InputError(
                "checkpoint key",
                "must be readable by its owner alone",
                str(path),
                "chmod 600 the file",
            )
        return _parse_key(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        itself = (
            re.fullmatch(r"\s*[0-9a-fA-F]{32,}\s*", str(path)) is not None
        )  # the key instead of its file
        raise InputError(
            "checkpoint key",
            "must be a readable text file",
            str(path) if isinstance(error, OSError) and not itself else None,
            HELP,
        ) from None


def _parse_key(text: str) -> Key:
    try:
        return Key(bytes.fromhex(text.strip()))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("checkpoint key", "must be 64 hexadecimal digits", None, HELP) from None


@final
@dataclass(frozen=True)
class Owner:
    """The owner of a state: hash of the run, keyed digests of the data and of the loss (its
    gradient's whole program), the ledger's token (or none), and the versions of the libraries."""

    run: str
    data: str
    token: str = ""
    program: str = ""
    software: str = ""


def claim(path: Path, key: Key, token: str) -> None:
    """Write an empty checkpoint, number 0, for the line ``token`` of a ledger: a run that is killed
    before it reads a record resumes under that line, whatever its data are. It never replaces a
    file."""
    try:
        seal(path, key, Owner("", "", token), 0, b"", new=True)
    except FileExistsError:
        raise InputError(
            "checkpoint",
            "was begun by another process at this moment",
            str(path),
            "wait for that process, or name another file; nothing was charged",
        ) from None


def seal(path: Path, key: Key, owner: Owner, number: int, body: bytes, new: bool = False) -> None:
    """Replace the checkpoint at ``path``; a process that is killed meanwhile leaves the old one.
    ``new``: none is replaced, ``FileExistsError``."""
    salt = os.urandom(32)
    header = json.dumps(
        asdict(owner) | {"number": number, "salt": salt.hex(), "check": _check(key, salt)}
    ).encode()
    front = MAGIC + len(header).to_bytes(4, "big") + header
    nonce = os.urandom(12)
    content = front + nonce + AESGCM(_file_key(key, salt)).encrypt(nonce, body, front)
    try:
        with interrupts.later():
            clean(path)
            write_file(path, content, new=new)
    except FileExistsError:
        raise
    except OSError as error:
        full = error.errno in FULL
        raise InputError(
            "checkpoint",
            "cannot be written",
            f"{path} ({error.strerror})",
            "free some space and run again: it resumes from the last complete checkpoint"
            if full
            else "name a file in a folder that you may write to",
        ) from None


def unseal(path: Path, key: Key, owner: Owner) -> tuple[int, bytes]:
    """Number and body of a checkpoint of this owner.

    Errors: another key, another run, other data, a damaged file: each is an ``InputError``, and
    the run does not start again.
    """
    content = path.read_bytes()
    header, front, rest = _header(content, path)
    salt = bytes.fromhex(header["salt"])
    if not hmac.compare_digest(header["check"], _check(key, salt)):
        raise InputError(
            "checkpoint key",
            "is not the one that this checkpoint was written with",
            str(path),
            "use that key, or remove the file to start again: what was spent stays spent",
        )
    try:
        body = AESGCM(_file_key(key, salt)).decrypt(rest[:12], rest[12:], front)
    except (InvalidTag, ValueError):
        raise _damage_error(path) from None
    for name, what in (
        ("run", "another run"),
        ("data", "other data"),
        ("token", "another line of the ledger"),
        ("program", "another loss, model or optimizer"),
        ("software", f"other versions: {header['software']}"),
    ):
        if header[name] != getattr(owner, name):
            raise InputError(
                "checkpoint",
                f"belongs to {what}",
                str(path),
                "restore the command that began it: without this file its charge, if a ledger holds "
                "one, is lost. Another file begins again, with a new charge where a ledger pays",
            )
    return header["number"], body


def token_of(path: Path) -> str:
    """The ledger's token in a checkpoint (not yet authenticated: ``unseal`` compares it)."""
    return _header(path.read_bytes(), path)[0]["token"]


def is_claim(path: Path, key: Key, token: str) -> bool:
    """Whether a checkpoint is of nothing yet; if it says so it is authenticated, as that line's."""
    if _header(path.read_bytes(), path)[0]["number"] != 0:
        return False
    unseal(path, key, Owner("", "", token))
    return True


def remove(path: Path) -> None:
    """Delete a checkpoint, and the files that killed writers left in its folder."""
    path.unlink(missing_ok=True)
    clean(path)


def clean(path: Path) -> None:
    """Delete the truncated ciphertexts that killed writers left in a checkpoint's folder."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}-{RANDOM}.part"):
        if not stale.is_dir():  # of a model's folder with this name
            stale.unlink(missing_ok=True)


def _header(content: bytes, path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The header (checked in form), the bytes that are authenticated with it, and the rest."""
    length = int.from_bytes(content[8:12], "big")
    if content[:8] != MAGIC or length > LONGEST_HEADER or len(content) < 12 + length + 12 + 16:
        raise _damage_error(path)
    try:
        header = json.loads(content[12 : 12 + length])
        texts = all(
            isinstance(header[name], str)
            for name in ("run", "data", "token", "program", "software", "salt", "check")
        )
        if (
            not texts
            or type(header["number"]) is not int
            or len(bytes.fromhex(header["salt"])) != 32
        ):
            raise ValueError
        header["check"].encode("ascii")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damage_error(path) from None
    return header, content[: 12 + length], content[12 + length :]


def _damage_error(path: Path) -> InputError:
    return InputError(
        "checkpoint",
        "is damaged or was changed",
        str(path),
        "restore it, or remove it to start again: what was spent stays spent",
    )


def _file_key(key: Key, salt: bytes) -> bytes:
    return derive_key(key.secret + salt, "checkpoint")


def _check(key: Key, salt: bytes) -> str:
    """Tells a wrong key from a damaged file."""
    return derive_key(key.secret + salt, "which key").hex()[:32]


# Checkpoints of a run that resumes: key, parameters and steps done, sealed; opened again after an
# interruption. A resumed run uses the same key, so the same secret draws: it releases the very
# bits that an uninterrupted one would. Even a run that is killed at once must resume with the key
# that it began with; so the key is sealed before a record is read.

KEY, DONE, GIVEN, FIRST = "key", "done", "given", "first"
COMPUTES = ("lastiterate", "jax", "jaxlib", "numpy")
"""Libraries whose other versions may compute otherwise."""


def versions() -> str:
    """Their versions."""
    return ", ".join(f"{name} {version(name)}" for name in COMPUTES)


def check_kept_run(run: Run) -> None:
    """Refuse a checkpoint of a run that releases every iterate: it keeps the last one alone."""
    if run.release != "last":
        raise InputError(
            "checkpoint", "is for runs that release the last iterate", run.release, "leave it out"
        )


class Line(Protocol):
    """A ledger's record of a run's checkpoints; ``digest`` distinguishes the noise, the data and
    the loss."""

    def begin(self, digest: str, write: Callable[[], None]) -> None:
        """Write the first one; refused where there was one."""

    def note(self, number: int, write: Callable[[], None]) -> None:
        """Write a later one."""

    def resume(self, digest: str, number: int) -> None:
        """Resume from a checkpoint; refuse one that is not the last of the first one's noise."""


@final
@dataclass
class Checkpoint:
    """A run's state, written to ``path`` every ``seconds``, under ``key``.

    ``token`` names the run's line in a ledger, and ``line`` is what that ledger knows of its
    checkpoints: an older copy of the file is refused, and another beginning. ``held_out``: arrays
    of records that are read only after the run, such as those of a noisy count; they are data like
    all others. ``read_as``: what the scores of these records are read as, where numbers about them
    are released: it is part of the model.

    **Guarantee:** the file is ciphertext that is bound to the run and to the data; it is only ever
    replaced as a whole.
    """

    path: Path
    key: Key
    seconds: float = 60.0
    token: str = ""
    line: Line | None = None
    held_out: tuple[Any, ...] = ()
    read_as: str = ""
    _owner: Owner = field(init=False, repr=False)
    _number: int = field(init=False, default=0, repr=False)
    _secret: np.ndarray = field(init=False, repr=False)
    _given: np.ndarray = field(
        init=False, repr=False
    )  #: whether a caller's seed made the key: a caveat
    _state: dict[str, np.ndarray] = field(
        init=False, default_factory=dict[str, np.ndarray], repr=False
    )
    _first: dict[str, np.ndarray] = field(
        init=False, default_factory=dict[str, np.ndarray], repr=False
    )  #: the first parameters, where the caller gives them
    _last: float = field(init=False, default=0.0, repr=False)

    def __post_init__(self) -> None:
        nonnegative("checkpoint_every", self.seconds, "number of seconds")

    def begin(
        self,
        run: Run,
        arrays: Iterable[Any],
        key: NoiseKey | None,
        program: str,
        initial: np.ndarray | None = None,
    ) -> NoiseKey:
        """Return the key with which the run resumes or begins. A new key is sealed before anything
        else happens.

        ``program``: what distinguishes the loss, the model and the arithmetic from all others.
        ``initial``: the first parameters. A run that resumes continues from those that it began
        with (``initial``), whatever is given, and warns where they differ.
        Errors: a checkpoint of another run, of other data, of another loss, of other versions of
        the libraries, under another key, damaged, or older than the ledger knows.

        **Guarantee:** one key is drawn from for one loss on one data set only: of two releases with
        the same noise the difference would be a sum of gradients without noise.
        """
        check_kept_run(run)
        described = hashlib.sha256(run.to_json().encode()).hexdigest()
        named = self.key.digest([np.frombuffer((program + self.read_as).encode(), np.uint8)])
        data = self.key.digest(chain(arrays, self.held_out))
        self._owner = Owner(described, data, self.token, named, versions())
        if self.path.exists() and not is_claim(self.path, self.key, self.token):
            self._resume(key)
            if initial is not None and not np.array_equal(self.initial, initial):
                warnings.warn(
                    f"the run that {self.path} resumes began with other first parameters than "
                    "these: it continues from its own",
                    stacklevel=outside(),
                )
        else:
            self._first = {} if initial is None else {FIRST: np.array(initial)}
            self._secret = np.asarray(fresh_key() if key is None else key)
            self._given = np.array([key is not None])
            self.keep(0, {})
        return self._secret

    def _resume(self, key: NoiseKey | None) -> None:
        self._number, body = unseal(self.path, self.key, self._owner)
        clean(self.path)
        self._state = load(body)
        self._secret, self._given = self._state.pop(KEY), self._state.pop(GIVEN)
        self._first = {name: self._state.pop(name) for name in (FIRST,) if name in self._state}
        same = key is None or np.array_equal(self._secret, np.asarray(key))
        if (key is not None) != bool(self._given[0]) or not same:
            raise InputError(
                "seed",
                "must be the one that the checkpoint was begun with",
                "none" if key is None else "another seed",
                "give that seed" if self._given[0] else "leave it out",
            )
        if self.line is not None:
            self.line.resume(self._digest(), self._number)
        self._last = time.monotonic()

    def derive_stream(self, which: int) -> np.ndarray:
        """Return a stream of the run's key for what is released in addition to its parameters; a
        resumed run has the same one."""
        return host_stream(self._secret, which)

    @property
    def initial(self) -> np.ndarray:
        """The first parameters of the run: those that it began with."""
        return self._first[FIRST]

    @property
    def first(self) -> np.ndarray | None:
        """The same; none where the run has its own."""
        return self._first.get(FIRST)

    @property
    def state(self) -> tuple[int, dict[str, np.ndarray]]:
        """Steps done, and the arrays of the state then (none at the beginning)."""
        arrays = dict(self._state)
        return int(arrays.pop(DONE)[0]), arrays

    @property
    def due(self) -> bool:
        """Whether it is time for the next checkpoint: a matter of the clock alone."""
        return time.monotonic() - self._last >= self.seconds

    def keep(self, done: int, arrays: dict[str, np.ndarray]) -> None:
        """Seal the state after ``done`` steps."""
        self._state = {DONE: np.array([done]), **arrays}
        kept = {KEY: self._secret, GIVEN: self._given, **self._first, **self._state}
        body = save(
            {name: np.asarray(array, order="C") for name, array in kept.items()}
        )  # of any shape, () too
        number = self._number + 1

        def write() -> None:
            seal(self.path, self.key, self._owner, number, body)

        if self.line is None:
            write()
        elif number == 1:
            self.line.begin(self._digest(), write)
        else:
            self.line.note(number, write)
        self._number = number
        self._last = time.monotonic()

    def _digest(self) -> str:
        """Return a digest that distinguishes this run's noise, on its data and with its loss, from
        all others."""
        owner = json.dumps(asdict(self._owner)).encode()
        first = self._first.values()
        return self.key.digest([self._secret, *first, np.frombuffer(owner, np.uint8)])

    def finish(self) -> None:
        """Delete the checkpoint: the model is released."""
        remove(self.path)


@final
@dataclass(frozen=True)
class FollowedCheckpoint:
    """The state from which the first process of several resumes, in another one, which writes none.

    ``initial``: the first parameters, where the caller gives them. ``state``: as a checkpoint's.
    """

    initial: np.ndarray | None
    state: tuple[int, dict[str, np.ndarray]]
    due = False

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> bytes:
        """Return what the other processes follow of a checkpoint that has begun, and no key."""
        done, arrays = checkpoint.state
        first = {} if checkpoint.first is None else {FIRST: checkpoint.first}
        kept = {DONE: np.array([done]), **first, **arrays}
        return save({name: np.asarray(array, order="C") for name, array in kept.items()})

    @classmethod
    def read(cls, sent: bytes) -> FollowedCheckpoint:
        """Return what ``of`` gave in another process."""
        arrays = load(sent)
        return cls(arrays.pop(FIRST, None), (int(arrays.pop(DONE)[0]), arrays))
