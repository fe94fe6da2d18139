"""What a path on the command line names: a run, or the run of a released model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from lastiterate.errors import InputError
from lastiterate.models.folder import CERTIFICATE
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run


@dataclass(frozen=True)
class Subject:
    """A run to audit, and the delta at which its certificate speaks (``None`` if it has none)."""

    run: Run
    delta: float | None = None
    at_least: Evidence = Evidence.ENFORCED


def read(path: Path) -> Subject:
    """The run in a JSON file, or in the certificate of a folder that train wrote.

    Only the description is used: the model's own data and weights are not touched.
    """
    if not path.exists():
        raise InputError("audit", "needs an existing run file or model folder", str(path))
    if not path.is_dir():
        return Subject(Run.from_json(path.read_text(encoding="utf-8")))
    try:
        stored = json.loads((path / CERTIFICATE).read_text(encoding="utf-8"))
        return Subject(Run.from_dict(stored["run"]), float(stored["delta"]), Evidence[stored["at_least"]])
    except FileNotFoundError:
        raise InputError("model", f"misses the file {CERTIFICATE}", str(path), "train again") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputError("certificate", "must be one that lastiterate wrote, complete", str(error)) from None
