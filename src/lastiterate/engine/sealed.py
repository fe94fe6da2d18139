"""A file that is an intermediate state: encrypted, authenticated, written whole or not at all, deleted at release.

Layout: ``MAGIC``, the length of the header (4 bytes), the header (JSON), a nonce (12 bytes), AES-256-GCM of the body
with everything before it authenticated. The header says whose checkpoint it is: the hash of the run, digests of the
data and of the loss under the key, versions, a number that grows. Keys of a file are derived from the user's key and a
random salt.
"""

from __future__ import annotations

import glob
import hmac
import json
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lastiterate import interrupts
from lastiterate.atomic_files import FULL, write_file
from lastiterate.engine.random_bits import derived
from lastiterate.errors import InputError

MAGIC = b"LICKPT2\n"
LONGEST_HEADER = 4096
RANDOM = "?" * 8
"""What ``atomic_files`` puts into a name; more than that belongs to a file with a longer name."""
VARIABLE, FILE_VARIABLE = "LASTITERATE_CHECKPOINT_KEY", "LASTITERATE_CHECKPOINT_KEY_FILE"
HELP = f"write 64 hexadecimal digits to a file of mode 0600, or into the variable {VARIABLE}"


@final
@dataclass(frozen=True, repr=False)
class Key:
    """256 bits that open checkpoints; they are never shown."""

    secret: bytes

    def __post_init__(self) -> None:
        if len(self.secret) != 32:
            raise InputError("checkpoint key", "must be 256 bits", f"{8 * len(self.secret)} bits", HELP)

    def __repr__(self) -> str:
        return "Key(...)"

    def digest(self, arrays: Iterable[Any]) -> str:
        """What distinguishes data sets for the holder of the key, and says nothing to others."""
        mac = hmac.new(derived(self.secret, "data"), digestmod="sha256")
        for array in arrays:
            values = np.ascontiguousarray(array)
            mac.update(f"{values.dtype.str} {values.shape};".encode())
            mac.update(values.reshape(-1).view(np.uint8).data if values.size else b"")
        return mac.hexdigest()


def read_key(file: Path | None = None) -> Key | None:
    """The key in ``file``, or in the environment; ``None`` where there is none, and then nothing is written.

    Errors: a file that others may read, and whatever is not a key; nothing of it is shown.
    """
    named = os.environ.get(FILE_VARIABLE)
    path = file if file is not None else Path(named) if named else None
    if path is None:
        text = os.environ.get(VARIABLE)
        return None if not text else _parsed(text)
    try:
        if path.is_dir():
            raise InputError("checkpoint key", "must be a text file, not a folder", str(path), HELP)
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise InputError("checkpoint key", "must be readable by its owner alone", str(path), "chmod 600 the file")
        return _parsed(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError) as error:
        itself = re.fullmatch(r"\s*[0-9a-fA-F]{32,}\s*", str(path)) is not None  # the key in the place of its file
        raise InputError("checkpoint key", "must be a readable text file", str(path) if isinstance(error, OSError)
                         and not itself else None, HELP) from None


def _parsed(text: str) -> Key:
    try:
        return Key(bytes.fromhex(text.strip()))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError("checkpoint key", "must be 64 hexadecimal digits", None, HELP) from None


@final
@dataclass(frozen=True)
class Owner:
    """Whose state it is: hash of the run, keyed digests of the data and of the loss (its gradient's whole program), the
    ledger's token (or none), and the versions of what computes."""

    run: str
    data: str
    token: str = ""
    program: str = ""
    software: str = ""


def claim(path: Path, key: Key, token: str) -> None:
    """A checkpoint of nothing yet, number 0, for the line ``token`` of a ledger: a run that is killed before it looked
    at a record goes on under that line, whatever its data turn out to be. It never replaces a file."""
    try:
        seal(path, key, Owner("", "", token), 0, b"", new=True)
    except FileExistsError:
        raise InputError("checkpoint", "was begun by another process at this moment", str(path),
                         "wait for that process, or name another file; nothing was charged") from None


def seal(path: Path, key: Key, owner: Owner, number: int, body: bytes, new: bool = False) -> None:
    """Replace the checkpoint at ``path``; a process that is killed meanwhile leaves the old one. ``new``: none is
    replaced, ``FileExistsError``."""
    salt = os.urandom(32)
    header = json.dumps(asdict(owner) | {"number": number, "salt": salt.hex(), "check": _check(key, salt)}).encode()
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
        raise InputError("checkpoint", "cannot be written", f"{path} ({error.strerror})",
                         "free some space and run again: it goes on from the last whole checkpoint" if full else
                         "name a file in a folder that you may write to") from None


def unseal(path: Path, key: Key, owner: Owner) -> tuple[int, bytes]:
    """Number and body of a checkpoint of this owner.

    Errors: another key, another run, other data, a damaged file: each is an ``InputError``, and nothing starts anew.
    """
    content = path.read_bytes()
    header, front, rest = _header(content, path)
    salt = bytes.fromhex(header["salt"])
    if not hmac.compare_digest(header["check"], _check(key, salt)):
        raise InputError("checkpoint key", "is not the one that this checkpoint was written with", str(path),
                         "use that key, or remove the file to start anew: what was spent stays spent")
    try:
        body = AESGCM(_file_key(key, salt)).decrypt(rest[:12], rest[12:], front)
    except (InvalidTag, ValueError):
        raise _damaged(path) from None
    for name, what in (("run", "another run"), ("data", "other data, or other first parameters of the model"),
                       ("token", "another line of the ledger"), ("program", "another loss or model"),
                       ("software", f"other versions: {header['software']}")):
        if header[name] != getattr(owner, name):
            raise InputError("checkpoint", f"belongs to {what}", str(path), "name another file, or remove this one")
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
    """Delete a checkpoint and what killed writers left beside it."""
    path.unlink(missing_ok=True)
    clean(path)


def clean(path: Path) -> None:
    """Delete what writers that were killed left beside a checkpoint (ciphertext, cut off)."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}-{RANDOM}.part"):
        if not stale.is_dir():  # of a model's folder with this name
            stale.unlink(missing_ok=True)


def _header(content: bytes, path: Path) -> tuple[dict[str, Any], bytes, bytes]:
    """The header (checked in form), the bytes that are authenticated with it, and the rest."""
    length = int.from_bytes(content[8:12], "big")
    if content[:8] != MAGIC or length > LONGEST_HEADER or len(content) < 12 + length + 12 + 16:
        raise _damaged(path)
    try:
        header = json.loads(content[12:12 + length])
        texts = all(isinstance(header[name], str) for name in
                    ("run", "data", "token", "program", "software", "salt", "check"))
        if not texts or type(header["number"]) is not int or len(bytes.fromhex(header["salt"])) != 32:
            raise ValueError
        header["check"].encode("ascii")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _damaged(path) from None
    return header, content[:12 + length], content[12 + length:]


def _damaged(path: Path) -> InputError:
    return InputError("checkpoint", "is damaged or was changed", str(path),
                      "restore it, or remove it to start anew: what was spent stays spent")


def _file_key(key: Key, salt: bytes) -> bytes:
    return derived(key.secret + salt, "checkpoint")


def _check(key: Key, salt: bytes) -> str:
    """Tells a wrong key from a damaged file."""
    return derived(key.secret + salt, "which key").hex()[:32]
