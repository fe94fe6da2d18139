"""Batchings on a file larger than what they may keep in memory, each in a process of its own.

python -m benchmarks.streaming.larger 4     4 GB (checks the free space first; 20 does as well); 0.3 takes a minute
python -m benchmarks.streaming.larger 1 --to 0.89

The last one adds the seconds, by the clock and of the processors, of the shortest run of 1, 2, 3, 5
or 8 passes, at the same epsilon, whose model is as accurate as that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.streaming.made import FEATURES, write

KINDS = (
    "memory",
    "cyclic",
    "correlated",
    "permuted",
    "reshuffled",
    "allocation",
    "full",
    "poisson",
    "opacus",
)
HEAD = (
    "| batches | noise multiplier | 1,000 examples/s | processor s per pass | s, whole run | "
    "peak beyond imports, MB | bytes read per pass | accuracy |"
)
PASSES = (1, 2, 3, 5, 8)


def cell(found: dict[str, float], name: str, form: str, factor: float = 1.0) -> str:
    return format(found[name] * factor, form) if name in found else ""


def one(kind: str, path: Path, *numbers: int) -> dict[str, float] | str:
    """What a run in a process of its own says, or the last line of its error."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.streaming.one", kind, str(path), *map(str, numbers)],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        json.loads(ran.stdout.splitlines()[-1])
        if ran.returncode == 0
        else str(ran.stderr.strip().splitlines()[-1:])
    )


def until(kind: str, path: Path, wanted: float) -> str:
    """Seconds of the shortest run that is accurate enough, and its passes."""
    for passes in PASSES:
        found = one(kind, path, passes)
        if isinstance(found, dict) and found.get("accuracy", 0.0) >= wanted:
            return f"{found['whole']:.3g}, {cell(found, 'busy', '.3g')} ({passes})"
    return f"none of {PASSES[-1]} passes"


def main(gigabytes: float, kinds: list[str], wanted: float | None, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, n = write(Path(folder), gigabytes)
        more = "" if wanted is None else f" s, processor s (passes) to {wanted} |"
        print(
            f"{n} records of {FEATURES} numbers, {path.stat().st_size / 1e9:.2f} "
            f"GB\n\n{HEAD}{more}\n" + "|---" * (HEAD.count("|") - 1 + bool(more)) + "|",
            flush=True,
        )
        for kind in kinds:
            found = one(
                kind, path, *((3, steps) if steps and kind in ("poisson", "opacus") else ())
            )
            if isinstance(found, str):
                print(f"| {kind} | {found} |", flush=True)
                continue
            rate = {"rate": n / found["seconds"] / 1000}
            last = "" if wanted is None else f" {until(kind, path, wanted)} |"
            print(
                f"| {kind} | {cell(found, 'z', '.4g')} | {cell(rate, 'rate', ',.0f')} | "
                f"{cell(found, 'processor', '.3g')} | {cell(found, 'whole', '.3g')} | "
                f"{cell(found, 'memory', ',.0f')} | {cell(found, 'read', ',.2f', 1e-9)} GB | "
                f"{cell(found, 'accuracy', '.3f')} |{last}",
                flush=True,
            )


if __name__ == "__main__":
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("gigabytes", type=float)
    asked.add_argument("kinds", nargs="*", default=list(KINDS))
    asked.add_argument("--to", type=float, help="an accuracy")
    asked.add_argument(
        "--steps", type=int, default=0, help="of poisson and opacus, times what the others make"
    )
    given = asked.parse_args()
    main(given.gigabytes, given.kinds, given.to, given.steps)
