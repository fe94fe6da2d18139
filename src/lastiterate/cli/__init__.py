"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

from lastiterate.cli import audits, fits, ledgers, reports, runs, tunings  # their commands register themselves
from lastiterate.cli.screen import app

__all__ = ["app", "audits", "fits", "ledgers", "main", "reports", "runs", "tunings"]


def main() -> None:
    """Entry point of the ``lastiterate`` command."""
    app()
