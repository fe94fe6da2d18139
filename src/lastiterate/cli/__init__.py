"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

import os
import sys
import warnings
from contextlib import suppress

from lastiterate.cli import (  # their commands register themselves
    audits,
    backbones,
    explorer,
    fits,
    ledgers,
    plans,
    published,
    releases,
    reports,
    runs,
    tunings,
)
from lastiterate.cli.screen import INTERRUPTED, app

__all__ = ["app", "audits", "backbones", "explorer", "fits", "ledgers", "main", "plans", "published", "releases",
           "reports", "runs", "tunings"]


def main() -> None:
    """Entry point of the ``lastiterate`` command; warnings are sentences, without the line of code they come from."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        app()
    except SystemExit as left:
        if left.code != INTERRUPTED:
            raise
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(INTERRUPTED)  # compiled steps go on in other threads: Python's own end would crash them, and itself
