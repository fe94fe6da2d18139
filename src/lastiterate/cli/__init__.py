"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

import sys
import warnings

from lastiterate import interrupts
from lastiterate.cli import (  # their commands register themselves
    audits,
    backbones,
    explore_command,
    fits,
    forget_command,
    ledgers,
    plans,
    published,
    releases,
    reports,
    runs,
    trainings,
    tunings,
)
from lastiterate.cli.names import in_flags
from lastiterate.cli.screen import app

__all__ = ["app", "audits", "backbones", "explore_command", "fits", "forget_command", "ledgers", "main", "plans",
           "published", "releases", "reports", "runs", "trainings", "tunings"]


def main() -> None:
    """The command, as ``__main__`` starts it; warnings are sentences, without the line of code they come from."""
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {in_flags(str(message))}", file=sys.stderr)
    try:
        app()
    except SystemExit as left:
        interrupts.over()
        shown = left.code == interrupts.CODE
        if not shown and not interrupts.pending():
            raise
        interrupts.end(None if shown else interrupts.sentence())
