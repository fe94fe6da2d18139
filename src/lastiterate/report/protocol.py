"""An audit beside the protocol that was fixed before training: what departs from it, and how to repeat it.

The settings stand in the certificate, which its content hash covers: who changes them afterwards changes the
certificate. An audit trains on made-up data, so that anybody who has the folder can repeat one with a fixed seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lastiterate.accounting.releaser_statement import SETTINGS
from lastiterate.markup import Markup, tag


def fixed(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings of the audit that a certificate was written with, or ``None``."""
    return body.get("word", {}).get("audit", {}).get("settings")


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings as canonical JSON: what may be published before training."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def departures(settings: Mapping[str, Any], audit: Mapping[str, Any]) -> list[str]:
    """Where an audit did something else than was fixed, in words."""
    return [f"{name}: {audit.get(name)!r} instead of {settings[name]!r}" for name in SETTINGS
            if name in settings and audit.get(name) != settings[name]]


def command(settings: Mapping[str, Any]) -> str:
    """What repeats the audit."""
    flags = " ".join(f"--{name} {settings[name]}" for name in SETTINGS if name in settings)
    return f"lastiterate audit MODEL_DIR {flags} --json"


def said(body: Mapping[str, Any], audit: Mapping[str, Any] | None) -> Markup | str:
    """What a report says of the protocol."""
    settings = fixed(body)
    if settings is None:
        return "" if audit is None else tag("p", "No settings of an audit were fixed in the certificate.",
                                            class_="soft")
    parts = [tag("p", "Settings fixed in the certificate (SHA-256 ", tag("code", settings_hash(settings)), "): ",
                 ", ".join(f"{name} {settings[name]}" for name in SETTINGS if name in settings),
                 ". Anybody can repeat it: ", tag("code", command(settings)))]
    if audit is None:
        parts.append(tag("p", "Its result was not given for this report.", class_="no"))
    elif deviations := departures(settings, audit):
        parts.append(tag("p", "The audit DEPARTS from what was fixed: " + "; ".join(deviations) + ".", class_="no"))
    else:
        parts.append(tag("p", "The audit has these very settings.", class_="ok"))
    return tag("div", parts)
