"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

import sys
import warnings
from functools import cache

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
    """The command, as ``__main__`` starts it; warnings are sentences, each once, without the line they come from."""
    shown = cache(lambda text: print(f"warning: {in_flags(text)}", file=sys.stderr))
    warnings.showwarning = lambda message, *_, **__: shown(str(message))
    try:
        app()
    except SystemExit as left:
        interrupts.over()
        stopped = left.code == interrupts.CODE
        if not stopped and not interrupts.pending():
            raise
        interrupts.end(None if stopped else interrupts.sentence())
