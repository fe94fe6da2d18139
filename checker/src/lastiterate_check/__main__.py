"""The command line: lastiterate-check MODEL_DIR|certificate.json|ledger [--delta D] [--json]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lastiterate_check.check import (
    HOLDS,
    NOT_COVERED,
    REFUTED,
    check,
    check_folder,
    check_ledger,
    read,
)
from lastiterate_check.run import BadInput

EXIT = {HOLDS: 0, REFUTED: 1, NOT_COVERED: 3}


def is_ledger(path: Path) -> bool:
    """Whether a file begins as databases of SQLite do."""
    try:
        with path.open("rb") as stream:
            return stream.read(15) == b"SQLite format 3"
    except OSError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Check one file or folder; 0 holds, 1 refuted, 2 bad input, 3 not covered."""
    parser = argparse.ArgumentParser(
        prog="lastiterate-check", description="Check a certificate of lastiterate."
    )
    parser.add_argument("path", type=Path, help="a model's folder, a certificate.json, or a ledger")
    parser.add_argument("--delta", type=float, help="state epsilon at this delta, too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    try:
        if given.delta is not None and not 0 < given.delta < 1:
            raise BadInput("--delta: must lie in (0, 1)")
        lines: list[str] = []
        if given.path.is_dir():
            stored, lines = check_folder(given.path)
        elif is_ledger(given.path):
            stored = None
        else:
            stored = read(given.path)
        report = check_ledger(given.path) if stored is None else check(stored, given.delta)
    except (BadInput, KeyError, TypeError, AttributeError) as error:
        words = (
            str(error)
            if isinstance(error, BadInput)
            else f"{given.path}: is no certificate ({error!r})"
        )
        print(f"bad input: {words}", file=sys.stderr)
        return 2
    if given.json:
        print(
            json.dumps(
                {"verdict": report.verdict, "own": report.own, "lines": lines + report.lines}
            )
        )
    else:
        print("\n".join([*lines, *report.lines, report.verdict]))
    return EXIT[report.verdict]


if __name__ == "__main__":
    sys.exit(main())
