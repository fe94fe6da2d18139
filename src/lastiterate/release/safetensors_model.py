"""Models of every kind as one safetensors file that carries its release."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lastiterate import limits
from lastiterate.accounting.verification import CheckResult
from lastiterate.errors import InputError
from lastiterate.release import folder as folders
from lastiterate.release import loading
from lastiterate.run import serialization

ENTRIES = (folders.MODEL, folders.CERTIFICATE)


def to_safetensors(files: Mapping[str, bytes]) -> bytes:
    """Return the weights of a release with model, certificate and privacy as the file's metadata."""
    from safetensors.numpy import save

    stored = folders.parse(files)
    texts = {name: files[name].decode() for name in ENTRIES}
    return save(stored.tensors(), texts | folders.state_privacy(stored.certificate))


def verify_safetensors(path: Path) -> CheckResult:
    """Verify the release in a safetensors file, and that its arrays are the certified ones."""
    from safetensors.numpy import load, save

    content = limits.content(path, "model", limits.FOLDER)
    try:
        texts = _read_metadata(content)
        files = {name: texts[name].encode() for name in ENTRIES}
        files[folders.WEIGHTS] = save(load(content))
    except Exception:  # the format's parser raises several kinds on damaged bytes
        raise InputError(
            "model",
            "must be a safetensors file that lastiterate wrote, with its release in the metadata",
            str(path),
            "lastiterate export MODEL_DIR --to safetensors writes one",
        ) from None
    checked = loading.verify_files(files)
    if not checked.holds:
        return checked
    certificate = serialization.loads(files[folders.CERTIFICATE], folders.CERTIFICATE)
    stated = folders.state_privacy(certificate)
    problems = [
        f"the entry {name} of the metadata is not what the certificate says"
        for name, text in stated.items()
        if texts.get(name) != text
    ]
    strange = sorted(set(texts) - set(stated) - set(ENTRIES))
    uncovered = [f"the metadata's {' and '.join(strange)}"] if strange else []
    return replace(checked, problems=tuple(problems), uncovered=(*checked.uncovered, *uncovered))


def _read_metadata(content: bytes) -> dict[str, str]:
    """The texts in the header of a safetensors file: 8 bytes of its length, then JSON.

    Errors: names that stand twice, of which readers show different ones.
    """
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length], object_pairs_hook=_refuse_repeats)
    return {name: str(text) for name, text in header["__metadata__"].items()}


def _refuse_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found
