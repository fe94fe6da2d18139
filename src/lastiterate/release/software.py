"""What the process that writes a model records of itself: versions, the library's own files, its random generator."""

from __future__ import annotations

import hashlib
import platform
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path

WRITTEN = "certificate written on"
"""The day, by the clock of the machine that wrote the certificate, in UTC."""
LIBRARIES = ("numpy", "scipy", "jax", "jaxlib", "torch", "dp-accounting", "scikit-learn", "safetensors")
"""Whose versions are recorded, where they are installed."""
GENERATOR = ("Threefry (JAX), its key 128 bits from the operating system; Gaussian noise of double precision by Box "
             "and Muller")
EXACT = "AES-256 in counter mode, its key from the operating system; discrete Gaussian noise, exact"
SYSTEM = "the operating system's generator; Gaussian noise of double precision by Box and Muller"


def recorded(generator: str) -> dict[str, str]:
    """The day, names and versions; the process's own word, which no computation can check."""
    facts = {WRITTEN: datetime.now(UTC).date().isoformat(), "python": platform.python_version(),
             "platform": platform.system(), "generator": generator, "lastiterate_sha256": own_files()}
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
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
