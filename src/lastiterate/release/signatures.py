"""Signatures over a model folder, software versions, and the statement of a folder."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastiterate import limits
from lastiterate.atomic_files import FULL, SHARED, is_taken, write_file
from lastiterate.errors import ExposureWarning, InputError
from lastiterate.release import folder as folders
from lastiterate.release.folder import SIGNATURE

if TYPE_CHECKING:
    from lastiterate.accounting.certificate import Certificate

# Signatures over a model folder, by ``model-signing`` (OpenSSF): nothing of the cryptography is
# ours.  A signature covers every file of the folder but itself; it shows a certificate that was
# issued again as a whole, which hashes in the folder cannot.

PASSWORD = "LASTITERATE_KEY_PASSWORD"
"""The variable that holds the password of an encrypted private key."""


def _library(name: str, asked: str) -> Any:
    """A module of the library that is ``asked`` for."""
    from importlib import import_module

    try:
        return import_module(f"model_signing.{name}")
    except ImportError as error:
        raise InputError(
            asked,
            "needs the libraries model-signing and pyOpenSSL",
            str(error),
            "pip install 'lastiterate[sign]'",
        ) from None


def _config(asked: str) -> Any:
    # files that git ignores count like all others
    return (
        _library("hashing", asked)
        .Config()
        .set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    )


def sign_folder(
    folder: str | Path,
    *,
    key: str | Path,
    certificate: str | Path | None = None,
    chain: Iterable[str | Path] = (),
) -> Path:
    """Sign a model folder with a local private key (PEM, an elliptic curve); the signature's path.

    ``certificate``, ``chain``: a certificate of the key, and those that vouch for it. An encrypted
    key's password is read from the environment (``LASTITERATE_KEY_PASSWORD``).
    """
    place = folders.to_path(folder, "model")
    where = place / SIGNATURE
    if is_taken(where):
        raise InputError(
            "model", "must not be signed yet", str(where), "remove the signature to sign again"
        )
    if too_large := _too_large(place):
        raise InputError("model", "must be a folder that can be signed", too_large)
    config = _library("signing", "sign").Config().set_hashing_config(_config("sign"))
    own = tempfile.TemporaryDirectory(
        prefix="lastiterate-"
    )  # so that a full disk does not look like a bad key
    try:
        if certificate is None:
            word = os.environ.get(
                PASSWORD
            )  # the library hands it on as it is, to a function that takes bytes
            config.use_elliptic_key_signer(
                private_key=key, password=None if word is None else word.encode()
            )
        else:
            config.use_certificate_signer(
                private_key=key, signing_certificate=certificate, certificate_chain=list(chain)
            )
        config.sign(place, Path(own.name) / SIGNATURE)
        signature = (Path(own.name) / SIGNATURE).read_bytes()
    except Exception as error:  # keys and certificates fail in many ways; nothing was signed
        if isinstance(error, OSError) and error.errno in FULL:
            raise OSError(error.errno, error.strerror, tempfile.gettempdir()) from None
        raise InputError(
            "key", "must be a private key that can sign", str(error)[:120] or type(error).__name__
        ) from None
    finally:
        own.cleanup()
    write_file(where, signature, new=True, mode=SHARED)
    return where


def _too_large(folder: Path) -> str:
    """Why the library cannot hash every file of a folder, as it does before it looks at a
    signature; empty if it can."""
    size = 0
    for where, _, names in os.walk(folder):
        size += sum(os.lstat(os.path.join(where, name)).st_size for name in names)
    return (
        ""
        if size <= limits.FOLDER
        else (
            f"the signature was not checked: the folder has {size:,} bytes, of at most "
            f"{limits.text(limits.FOLDER)}"
        )
    )


def signature_problems(
    folder: Path, *, key: str | Path | None, chain: Iterable[str | Path]
) -> tuple[str, ...]:
    """What is wrong with a folder's signature by that public key, or by a certificate below
    ``chain``."""
    where = folder / SIGNATURE
    if not where.is_file():
        return ("the folder is not signed",)
    too_large = _too_large(folder)
    if too_large:
        return (too_large,)
    config = _library("verifying", "key").Config().set_hashing_config(_config("key"))
    try:
        if key is not None:
            config.use_elliptic_key_verifier(public_key=key)
        else:
            config.use_certificate_verifier(certificate_chain=list(chain))
    except Exception as error:  # not a key at all
        raise InputError(
            "key", "must be a public key or a certificate in PEM", str(error)[:120]
        ) from None
    try:
        config.verify(folder, where)
    except (
        Exception
    ):  # whatever goes wrong, nobody vouches for these files; what differs, the list of files says
        return ("the signature is not that of these files by this key",)
    return ()


# What the process that writes a model records of itself: versions, the library's own files, its
# random generator.

WRITTEN = "certificate written on"
"""The day, by the clock of the machine that wrote the certificate, in UTC."""
LIBRARIES = (
    "numpy",
    "scipy",
    "jax",
    "jaxlib",
    "torch",
    "dp-accounting",
    "scikit-learn",
    "safetensors",
)
"""Whose versions are recorded, where they are installed."""
GENERATOR = (
    "Threefry (JAX), its key 128 bits from the operating system; Gaussian noise of double "
    "precision by Box "
    "and Muller"
)
EXACT = "AES-256 in counter mode, its key from the operating system; discrete Gaussian noise, exact"
SYSTEM = "the operating system's generator; Gaussian noise of double precision by Box and Muller"


def record_provenance(generator: str) -> dict[str, str]:
    """The day, names and versions; the process's own word, which no computation can check."""
    facts = {
        WRITTEN: datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "platform": platform.system(),
        "generator": generator,
        "lastiterate_sha256": own_files(),
    }
    for name in LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return facts


@cache
def own_files() -> str:
    """SHA-256 over the paths and contents of the library's Python files."""
    root, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(
            path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()


# A certificate as it lies in a folder.


@dataclass(frozen=True, eq=False)
class ProvenanceRecord:
    """It is derived again, and compared, when somebody asks for it."""

    body: dict[str, Any]

    def to_certificate(self) -> Certificate:
        from lastiterate.accounting.certificate import Certificate

        return Certificate.from_dict(self.body)


# What the process around a fit would write to disk: core dumps, and the compiler's debugging
# output.

FLAGS = ("xla_dump_", "xla_hlo_profile", "xla_cpu_emit_", "xla_gpu_dump")
"""Compiler flags in ``XLA_FLAGS`` that write files."""
VARIABLES = (
    "JAX_DUMP_IR_TO",
    "JAX_DEBUG_LOG_MODULES",
    "JAX_LOG_COMPILES",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT",
)
"""Variables that make JAX log or write what it compiles; shapes and programs, and constants of the
caller's loss."""


def exposures() -> tuple[str, ...]:
    """What is set that would write memory or programs to disk, in words."""
    risks = [
        f"{name} is set"
        for name in VARIABLES
        if os.environ.get(name, "0").lower() not in ("", "0", "false")
    ]
    risks += [
        f"XLA_FLAGS holds {flag}" for flag in FLAGS if flag in os.environ.get("XLA_FLAGS", "")
    ]
    try:
        import resource

        if resource.getrlimit(resource.RLIMIT_CORE)[0] != 0:
            risks.append("a crash writes a core dump (ulimit -c 0 prevents it)")
    except ImportError:  # Windows has no such limit
        pass
    return tuple(risks)


def warn_of_dumps() -> None:
    """Warn where hidden parameters, gradients or records could reach a disk without anybody writing
    them."""
    risks = exposures()
    if risks:
        warnings.warn(
            "hidden state could be written to disk: " + "; ".join(risks),
            ExposureWarning,
            stacklevel=2,
        )
