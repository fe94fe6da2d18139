"""Peak memory and time of commands on files of several sizes: 25 columns, about 157 bytes a record.

python -m benchmarks.streaming.files 100000 1000000 4000000
python -m benchmarks.streaming.files 20000000 --forms csv
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, ipc, parquet

NUMBERS, TOWNS, JOBS = 20, ("Bonn", "Ulm", "Koeln", "Hamburg", "Jena"), 8
AT_ONCE = 100_000
COMMANDS = {
    "check": ("check", "{file}", "--schema", "{schema}"),
    "train --memory 1GB": (
        *("train", "{file}", "--schema", "{schema}", "--epsilon", "1", "--memory", "1GB"),
        *("--time-budget", "60", "--out", "{model}"),
    ),
    "predict": ("predict", "{model}", "{file}", "--out", "{out}"),
}


def make_tables(n: int) -> Iterator[pyarrow.Table]:
    """Yield records with numbers, categories, a day and a label, some at a time."""
    rng = np.random.default_rng(0)
    for first in range(0, n, AT_ONCE):
        many = min(AT_ONCE, n - first)
        values = np.round(rng.normal(0, 2, (many, NUMBERS)).clip(-9.9, 9.9), 3)
        sick = values[:, 0] + rng.normal(0, 1, many) > 0
        town, job = rng.integers(0, len(TOWNS), many), rng.integers(1, JOBS + 1, many)
        day = np.datetime64("2015-01-01") + rng.integers(0, 3000, many)
        yield pyarrow.table(
            {
                "id": np.arange(first, first + many),
                **{f"a{i}": values[:, i] for i in range(NUMBERS)},
                "town": np.array(TOWNS)[town],
                "job": job,
                "day": day.astype(str),
                "sick": np.where(sick, "yes", "no"),
            }
        )


def write_table(path: Path, n: int) -> None:
    """Write the records as CSV, Parquet or Feather."""
    with ExitStack() as files:
        writer: Any = None
        for table in make_tables(n):
            if writer is None:
                made = {
                    ".csv": lambda schema: csv.CSVWriter(path, schema),
                    ".parquet": lambda schema: parquet.ParquetWriter(path, schema),
                    ".feather": lambda schema: ipc.new_file(path, schema),
                }[path.suffix](table.schema)
                writer = files.enter_context(made)
            writer.write_table(table)


def write_schema(path: Path) -> None:
    """Write the public facts of these columns."""
    parts = [
        'target = "sick"\nclasses = ["no", "yes"]\nsource = "synthetic"',
        '[columns.id]\nkind = "id"',
    ]
    parts += [f'[columns.a{i}]\nkind = "number"\nlow = -10\nhigh = 10' for i in range(NUMBERS)]
    towns, jobs = list(TOWNS), [str(i + 1) for i in range(JOBS)]
    parts.append(f'[columns.town]\nkind = "category"\nvalues = {towns}')
    parts.append(f'[columns.job]\nkind = "category"\nvalues = {jobs}')
    parts.append('[columns.day]\nkind = "date"\nfirst = "2015-01-01"\nlast = "2023-12-31"')
    path.write_text("\n".join(parts) + "\n")


def measure(command: list[str]) -> tuple[float, float]:
    """Run a command in a process of its own; its processor seconds and its peak memory in MB."""
    # what getrusage states is never less than what the process had that started this one
    code = (
        "import sys, time; from pathlib import Path; from lastiterate.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]\n"
        "print(time.process_time(), peak, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    seconds, peak = ran.stderr.split()[-2:]
    return float(seconds), float(peak) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("counts", type=int, nargs="+", help="records")
    parser.add_argument("--forms", nargs="+", default=["csv", "parquet", "feather"])
    asked = parser.parse_args()
    print("| records | file | MB | command | processor s | peak, MB |\n|---|---|---|---|---|---|")
    for n in asked.counts:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            write_schema(place / "s.toml")
            for path in (place / f"d.{form}" for form in asked.forms):
                write_table(path, n)
                model, out = place / f"m{path.suffix}", place / f"p{path.suffix}.csv"
                named = {"file": path, "schema": place / "s.toml", "model": model, "out": out}
                for name, parts in COMMANDS.items():
                    seconds, peak = measure([part.format(**named) for part in parts])
                    size = path.stat().st_size / 1e6
                    print(
                        f"| {n:,} | {path.suffix} | {size:.0f} | {name} | {seconds:.1f} | {peak:.0f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
