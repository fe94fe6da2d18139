"""Which one-line bugs does an audit find? python -m benchmarks.audit.bugs [NAME ...] [--right]
[--trials N] [--seed S]

Every bug stands in a small run of certified epsilon 1 at delta 1e-5 and is audited as a user audits
it, with a failure probability of 0.05; what no attack refutes is compared with its exact law
(``lastiterate audit --law``). One JSON line per bug: whether it is caught and by what, the models
that were trained, seconds with compilation. ``--right`` audits the same runs without a bug, each
with several seeds: none should be refuted.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from typing import Any

from benchmarks.audit.bugs import batching, clipping, noise, output, preparation
from benchmarks.audit.bugs.bug import Bug, patched
from lastiterate.audit import AuditReport, audit
from lastiterate.audit.exact_distribution import compare
from lastiterate.run.run import Run

BUGS = (*noise.BUGS, *clipping.BUGS, *preparation.BUGS, *batching.BUGS, *output.BUGS)


def audited(bug: Bug, *, right: bool, **settings: Any) -> tuple[AuditReport, bool, float]:
    """The report of an audit; whether the exact law holds, where nothing was refuted; and seconds."""
    subject, began = bug.subject(), time.perf_counter()
    with nullcontext() if right else patched(*bug.patches):
        report = audit(subject, **settings)
        follows = report.refuted or type(subject) is not Run or compare(subject).holds
    return report, follows, time.perf_counter() - began


def row(bug: Bug, report: AuditReport, follows: bool, seconds: float) -> dict[str, Any]:
    """What is printed about one audit."""
    first = next((one for one in report.seen if one.refuted_at is not None), report.seen[0])
    by = (
        f"{first.attack}: {first.neighbours}"
        if report.refuted_at is not None
        else "".join(report.violations[:1]) or ("" if follows else "the exact law")
    )
    pairs = len({one.neighbours for one in report.seen})
    return {
        "bug": bug.name,
        "caught": bool(by),
        "by": by,
        "lower": round(report.lower, 3),
        "models": 2 * (report.pilot * report.pairs + report.trials * pairs),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("names", nargs="*", help="parts of names; default: all")
    given.add_argument("--right", action="store_true", help="the same runs without their bugs")
    given.add_argument("--seeds", type=int, default=1, help="audits of each")
    given.add_argument(
        "--trials", type=int, help="models per data set that count; default: as the audit chooses"
    )
    given.add_argument("--seed", type=int, default=1)
    asked = given.parse_args()
    chosen = [
        bug for bug in BUGS if not asked.names or any(name in bug.name for name in asked.names)
    ]
    if asked.right:
        chosen = list({str(bug.run): bug for bug in chosen}.values())
    caught = 0
    for bug in chosen:
        for seed in range(asked.seed, asked.seed + asked.seeds):
            found = row(bug, *audited(bug, right=asked.right, seed=seed, trials=asked.trials))
            caught += found["caught"]
            print(json.dumps(found), flush=True)
    print(json.dumps({"audits": len(chosen) * asked.seeds, "caught": caught}), flush=True)


if __name__ == "__main__":
    main()
