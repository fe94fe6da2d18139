"""The default audit, or the exact law, of a case's run: python -m benchmarks.audit.mutants.audited
RUNS CASE [--law]

Run with the changed sources in front. Prints one JSON line; ends with 1 where something contradicts
the certificate.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.audit.mutants import bank
from lastiterate.accounting.accounted_run import ExactRun
from lastiterate.audit import audit, networks
from lastiterate.audit.end_to_end import alone
from lastiterate.audit.exact_distribution import compare

SEED = 1
TRIALS = 4000
"""Models per data set that count; fewer than by default, so that it takes less than two minutes of
a busy core."""


def main() -> None:
    held, name, *flags = sys.argv[1:]
    run, torch = bank.described(Path(held), name)
    subject = ExactRun(run) if name == "exact" else run
    if "--law" in flags:
        report = compare(run)
        print(
            json.dumps(
                {"verdict": report.verdict, "z": report.z, "p": report.p, "noise": report.noise}
            )
        )
        sys.exit(0 if report.holds else 1)
    train = None
    if torch:
        from lastiterate.torch.audited_modules import stand_in

        train = stand_in(run, networks.SHAPES)
    slow = name == "exact" or alone(run)
    found = audit(subject, trials=600 if slow else TRIALS, seed=SEED, train=train)
    by = [one.attack for one in found.seen if one.refuted_at is not None]
    print(
        json.dumps({"verdict": found.verdict, "by": [*by, *found.violations], "lower": found.lower})
    )
    sys.exit(1 if found.refuted else 0)


if __name__ == "__main__":
    main()
