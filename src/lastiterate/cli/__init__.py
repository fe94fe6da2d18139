"""The command line: flags in, one screen out; no logic of its own."""

from __future__ import annotations

import os
import sys
import warnings
from functools import cache

from lastiterate import interrupts
from lastiterate.cli.app import ERRORS, app, choose_modules, translate_to_flags

__all__ = ["app", "main"]


def main() -> None:
    """The command, as ``__main__`` starts it; warnings are sentences, each once, without the line
    they come from.
    """
    given = ("report_accuracy", "rows_per_unit")
    shown = cache(
        lambda text: print(f"warning: {translate_to_flags(text, given)}", file=sys.stderr)
    )
    warnings.showwarning = lambda message, *_, **__: shown(str(message))
    choose_modules(sys.argv[1] if len(sys.argv) > 1 else "")
    try:
        app()
    except OSError as error:  # help that could not be written; commands say theirs themselves
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"error: output must be writable, got {error.strerror or error}", file=sys.stderr)
        raise SystemExit(2) from None
    except SystemExit as left:
        interrupts.finish()
        stopped = left.code == interrupts.CODE
        if left.code and "lastiterate.release.jax_processes" in sys.modules:
            from lastiterate.release.jax_processes import leave_job

            why = interrupts.sentence() if stopped else "".join(ERRORS[-1:])
            leave_job(left.code if isinstance(left.code, int) else 1, why)
        if not stopped and not interrupts.is_pending():
            raise
        interrupts.end(None if stopped else interrupts.sentence())
