"""Descriptions of runs as earlier versions wrote them, in today's words."""

# pyright: basic
# what JSON holds is looked at here, not known
from __future__ import annotations

from typing import Any

METHODS = {"SnapshotNoise": ("VarianceReduced", ("every", "snapshot")),
           "ObjectiveNoise": ("PerturbedMinimiser", ("parameters", "last"))}
"""What was called noise and is a method, and the fields that went with it; the rest was the noise multiplier."""
DEEPEST = 8
"""Levels of lists and objects that are looked through."""


def in_todays_words(data: object, depth: int = DEEPEST) -> Any:
    """``data`` with every run in it as today's version would write it, and the names of what was called noise."""
    if not depth:
        return data
    if isinstance(data, list):
        return [in_todays_words(entry, depth - 1) for entry in data]
    if not isinstance(data, dict):
        return data
    renamed = {key: in_todays_words(value, depth - 1) for key, value in data.items()}
    if isinstance(kind := renamed.get("kind"), str) and kind in METHODS:
        renamed["kind"] = METHODS[kind][0]
    return _run(renamed) if renamed.get("type") == "Run" else renamed


def _run(data: dict[str, Any]) -> dict[str, Any]:
    if "momentum" in data and "update" not in data:
        data = {"update" if key == "momentum" else key: value for key, value in data.items()}
    noise = data.get("noise")
    if not isinstance(noise, dict) or not isinstance(kind := noise.get("type"), str) or kind not in METHODS \
            or "method" in data:
        return data
    name, taken = METHODS[kind]
    method = {"type": name} | {key: noise[key] for key in taken if key in noise}
    left = {key: value for key, value in noise.items() if key not in taken}
    return data | {"noise": left | {"type": "NoiseMultiplier"}, "method": method}
