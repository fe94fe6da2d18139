"""Batchings on a file larger than what they may keep in memory, each in a process of its own.

python -m benchmarks.streaming.larger 4        4 GB (checks the free space first; 20 does as well); 0.3 takes a minute
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.streaming.made import FEATURES, write

KINDS = ("memory", "cyclic", "permuted", "reshuffled", "allocation", "full", "poisson")
HEAD = ("| batches | noise multiplier | 1,000 examples/s | processor s per pass | s, whole run | "
        "peak beyond imports, MB | bytes read per pass | accuracy |\n|---|---|---|---|---|---|---|---|")


def cell(found: dict[str, float], name: str, form: str, factor: float = 1.0) -> str:
    return format(found[name] * factor, form) if name in found else ""


def main(gigabytes: float, kinds: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, n = write(Path(folder), gigabytes)
        print(f"{n} records of {FEATURES} numbers, {path.stat().st_size / 1e9:.2f} GB\n\n{HEAD}", flush=True)
        for kind in kinds:
            ran = subprocess.run([sys.executable, "-m", "benchmarks.streaming.one", kind, str(path)],
                                 capture_output=True, text=True, check=False)
            if ran.returncode:
                print(f"| {kind} | {ran.stderr.strip().splitlines()[-1:]} |", flush=True)
                continue
            found = json.loads(ran.stdout.splitlines()[-1])
            rate = {"rate": n / found["seconds"] / 1000}
            print(f"| {kind} | {cell(found, 'z', '.4g')} | {cell(rate, 'rate', ',.0f')} | "
                  f"{cell(found, 'processor', '.3g')} | {cell(found, 'whole', '.3g')} | "
                  f"{cell(found, 'memory', ',.0f')} | {cell(found, 'read', ',.2f', 1e-9)} GB | "
                  f"{cell(found, 'accuracy', '.3f')} |", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), tuple(sys.argv[2:]) or KINDS)
