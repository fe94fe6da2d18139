"""The command line: lastiterate-check FILE_OR_FOLDER [--delta D] [--json]."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lastiterate_check import check
from lastiterate_check.exports import read_release
from lastiterate_check.run import BadInput

EXIT = {check.HOLDS: 0, check.REFUTED: 1, check.NOT_COVERED: 3}


def check_path(path: Path, delta: float | None) -> check.Report:
    """Check a release in a folder or another file, a certificate, or a ledger, which begins as
    databases do."""
    if delta is not None and not 0 < delta < 1:
        raise BadInput("--delta: must lie in (0, 1)")
    if path.is_file() and path.open("rb").read(15) == b"SQLite format 3":
        return check.check_ledger(path)
    stored, lines = read_release(path)
    report = check.check(stored, delta)
    report.lines[:0] = lines
    return report


def main(arguments: list[str] | None = None) -> int:
    """Check one file or folder; 0 holds, 1 refuted, 2 bad input, 3 not covered."""
    parser = argparse.ArgumentParser(prog="lastiterate-check", description=__doc__)
    parser.add_argument(
        "path", type=Path, help="a model's folder, an export of it, a certificate.json, or a ledger"
    )
    parser.add_argument("--delta", type=float, help="state epsilon at this delta, too")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    given = parser.parse_args(arguments)
    try:
        report = check_path(given.path, given.delta)
    except BadInput as error:
        print(f"bad input: {error}", file=sys.stderr)
        return 2
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        print(f"bad input: {given.path}: is no certificate ({error!r})", file=sys.stderr)
        return 2
    body = {"verdict": report.verdict, "own": report.own, "lines": report.lines}
    print(json.dumps(body) if given.json else "\n".join([*report.lines, report.verdict]))
    return EXIT[report.verdict]


if __name__ == "__main__":
    sys.exit(main())
