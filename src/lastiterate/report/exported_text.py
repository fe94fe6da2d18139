"""Texts that several forms of export share: the guarantee in a line, what the releaser states, one line of Markdown."""

from __future__ import annotations

import hashlib
from typing import Any

from lastiterate.accounting.wording import rounded_up
from lastiterate.markup import plain
from lastiterate.report.subject import Subject

UNSTATED = "not stated by the releaser"


def claim(subject: Subject) -> str:
    """The guarantee in one line."""
    body = subject.body
    return f"epsilon {rounded_up(body['epsilon'])} at delta {body['delta']:g} ({body['adjacency']})"


def stated_by_releaser(subject: Subject, name: str, default: str = UNSTATED) -> str:
    """An entry of the releaser's statement, said to be one."""
    said = subject.statement.get(name)
    return default if said is None else f"{said} (the releaser's statement)"


def listed_by_releaser(subject: Subject, name: str) -> list[Any]:
    """A list of the releaser's statement."""
    return subject.statement.get(name, [])


def line(text: str) -> str:
    """A text as one line of Markdown that is nothing but text."""
    safe = " ".join(plain(str(text)).split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!~&" else letter for letter in safe)


def certificate_digest(subject: Subject) -> str:
    """SHA-256 of the certificate as it was written."""
    return hashlib.sha256(subject.text.encode()).hexdigest()
