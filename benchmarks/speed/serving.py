"""`lastiterate predict` on files: processor time and memory, for a small file and a large one.

python -m benchmarks.speed.serving [RECORDS] [--rounds K]    25 columns: 19 numbers, 5 categories, a day
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet

COLORS = ["red", "green", "blue", "violet", "black"]
SMALL = 10


def make_table(n: int, seed: int = 0) -> pyarrow.Table:
    """Synthetic records of 25 columns, and two classes."""
    random = np.random.default_rng(seed)
    columns = {f"n{i}": np.round(2 * random.normal(size=n), 4) for i in range(19)}
    columns |= {f"c{i}": np.array(COLORS)[random.integers(0, 5, n)] for i in range(5)}
    days = np.datetime64("2020-01-01") + random.integers(0, 2000, n).astype("timedelta64[D]")
    label = np.where(columns["n0"] + random.normal(size=n) > 0, "yes", "no")
    return pyarrow.table(columns | {"d0": days.astype(str), "y": label})


def write_schema(path: Path, names: list[str]) -> None:
    """The public facts of such a table."""
    facts = {
        "n": 'kind = "number"\nlow = -5\nhigh = 5\n',
        "c": f'kind = "category"\nvalues = {json.dumps(COLORS)}\n',
        "d": 'kind = "date"\nfirst = "2020-01-01"\nlast = "2026-01-01"\n',
    }
    entries = [f"[columns.{name}]\n{facts[name[0]]}" for name in names if name != "y"]
    path.write_text('target = "y"\nclasses = ["no", "yes"]\n' + "".join(entries))


def run_command(*words: object) -> tuple[float, float]:
    """Processor seconds of a command, and its largest resident memory in MB."""
    command = [sys.executable, "-m", "lastiterate", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("records", type=int, nargs="?", default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as parent:
        place = Path(parent)
        pyarrow.csv.write_csv(make_table(2000, 1), place / "train.csv")
        write_schema(place / "train.toml", make_table(1).column_names)
        run_command("train", place / "train.csv", "--epsilon", 2, "--out", place / "model")
        for records in (SMALL, asked.records // 5, asked.records):
            table = make_table(records).drop_columns(["y"])
            pyarrow.csv.write_csv(table, place / "new.csv")
            pyarrow.parquet.write_table(table, place / "new.parquet")
            with (place / "new.jsonl").open("w") as file:
                for batch in table.to_batches(2**14):
                    file.writelines(json.dumps(one) + "\n" for one in batch.to_pylist())
            for form in ("csv", "parquet", "jsonl"):
                found = [
                    run_command("predict", place / "model", place / f"new.{form}")
                    for _ in range(asked.rounds)
                ]
                seconds, memory = (statistics.median(one) for one in zip(*found, strict=True))
                print(
                    f"{records:>9,} records, {form}: {seconds:.2f} s of processor, {memory:.0f} MB"
                )


if __name__ == "__main__":
    main()
