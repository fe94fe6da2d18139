"""A released model on disk: weights, what is needed to predict, the certificate; written whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from lastiterate.accounting.certificate import Certificate, content_hash
from lastiterate.accounting.stored import CERTIFICATE, MODEL, WEIGHTS, read_json, sha256
from lastiterate.errors import InputError


def save(folder: Path, weights: bytes, model: dict[str, Any], certificate: Certificate, delta: float) -> None:
    """Write a model folder; it appears complete or not at all, and never replaces another one."""
    if folder.exists():
        raise InputError("--out", "must not exist yet", str(folder), "choose another folder, or remove this one")
    text = json.dumps(model, indent=2).encode()
    body = certificate.to_dict(delta, weights_sha256=sha256(weights)) | {"model_sha256": sha256(text)}
    body["content_sha256"] = content_hash(body)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        (draft / WEIGHTS).write_bytes(weights)
        (draft / MODEL).write_bytes(text)
        (draft / CERTIFICATE).write_text(json.dumps(body, indent=2))
        draft.chmod(0o755)
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def load(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The model description and the weights of a folder."""
    if not folder.is_dir():
        raise InputError("model", "must be a folder that train wrote", str(folder))
    for name in (WEIGHTS, MODEL):
        if not (folder / name).is_file():
            raise InputError("model", f"misses the file {name}", str(folder), "train again")
    return read_json(folder / MODEL), (folder / WEIGHTS).read_bytes()


