"""Processor seconds, bytes read and peak memory of 1 and 2 processes that share a Parquet file.

python -m benchmarks.scale.parquet_processes [--records 16000] [--rounds 3]   (about ten minutes)

Logistic regression on synthetic records of 512 float32 columns, in 20 secret bins, with gloo over
loopback and one thread a process. A job trains once to compile, once for one epoch and once for
three; every figure is a median over rounds, in each of which all jobs run in turn. The lines at the
end fit seconds = fixed + records * read + steps * step to five sizes on one process, and
extrapolate reading and sorting to 1e9 records on 64 machines.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import lastiterate as li
from lastiterate.release.distributed import _find_port

COLUMNS, GROUP, BLOCKS = 512, 4096, 20
SCHEMA = {
    "target": "y",
    "classes": ["0", "1"],
    "columns": {f"c{i}": {"kind": "number", "low": -4, "high": 4} for i in range(COLUMNS)},
}
MACHINES, LARGE = 64, 10**9


def write_file(path: Path, records: int) -> None:
    """Write synthetic records in row groups."""
    import pyarrow
    from pyarrow import parquet

    rng, writer = np.random.default_rng(0), None
    for begin in range(0, records, GROUP):
        x = rng.normal(size=(min(GROUP, records - begin), COLUMNS)).clip(-4, 4)
        columns: dict[str, Any] = {f"c{i}": x[:, i].astype(np.float32) for i in range(COLUMNS)}
        columns["y"] = np.where(x[:, :8].sum(1) > 0, "1", "0")
        table = pyarrow.table(columns)
        writer = writer or parquet.ParquetWriter(
            path, table.schema, use_dictionary=False, compression="none"
        )
        writer.write_table(table)
    assert writer is not None
    writer.close()


class CountedFile:
    """A file that counts the bytes that are read of it."""

    total = 0

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb")  # noqa: SIM115

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        CountedFile.total += len(content)
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def work(path: str) -> None:
    """Train in this process of a job, and print its figures."""
    devices = li.distributed.join()
    import pyarrow
    from pyarrow import parquet

    real: Any = parquet.ParquetFile
    parquet.ParquetFile = lambda path, **more: real(
        pyarrow.PythonFile(CountedFile(path), "r"), **more
    )
    before, found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, dict[str, float]()
    for name, epochs in (("compile", 1), ("one", 1), ("three", 3)):
        source = li.data.stream(path, SCHEMA)
        loss, batching = (
            li.Logistic(row_norm=10.0, ridge=1e-2),
            li.BallsInBins(-(-len(source) // BLOCKS)),
        )
        run = li.Run(
            n=len(source), steps=epochs * BLOCKS, step_size=0.3, loss=loss, batching=batching
        )
        CountedFile.total, cpu, wall = 0, time.process_time(), time.perf_counter()
        li.train(run, source, epsilon=1.0, delta=1e-8, devices=devices)
        found |= {
            f"cpu_{name}": time.process_time() - cpu,
            f"wall_{name}": time.perf_counter() - wall,
        }
        found["read"] = CountedFile.total / os.path.getsize(path)
    found["peak"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(json.dumps(found), flush=True)


def start_job(path: Path, count: int) -> dict[str, float]:
    """Return the medians over the processes of a job."""
    told = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_find_port())}
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    quiet["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    words = [sys.executable, "-m", "benchmarks.scale.parquet_processes", "--work", str(path)]
    job = [
        subprocess.Popen(
            words, env={**os.environ, **told, **quiet, "RANK": str(rank)}, stdout=subprocess.PIPE
        )
        for rank in range(count)
    ]
    lines = [process.communicate()[0].decode().strip().split("\n")[-1] for process in job]
    every = [json.loads(line) for line in lines]
    return {name: median(one[name] for one in every) for name in every[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=16_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work")
    asked = parser.parse_args()
    if asked.work:
        work(asked.work)
        return
    n, found = asked.records, dict[tuple[int, int], list[dict[str, float]]]()
    sizes = [n // 2, n, 2 * n, 4 * n, 8 * n]
    jobs = [*((size, 1) for size in sizes), (2 * n, 2), (4 * n, 2)]
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            write_file(Path(folder) / f"{size}.parquet", size)
        for _ in range(asked.rounds):
            for size, count in jobs:
                one = start_job(Path(folder) / f"{size}.parquet", count)
                found.setdefault((size, count), []).append(one)
                print(
                    size, count, {name: round(value, 2) for name, value in one.items()}, flush=True
                )
    medians = {
        job: {name: median(one[name] for one in every) for name in every[0]}
        for job, every in found.items()
    }
    print(
        "| records | processes | processor s of one epoch, of three | s of one | of the file | peak, MB |"
    )
    print("|---|---|---|---|---|---|")
    for (size, count), one in medians.items():
        print(
            f"| {size:,} | {count} | {one['cpu_one']:.2f}, {one['cpu_three']:.2f} | {one['wall_one']:.1f} "
            f"| {one['read']:.2f} | {one['peak']:.0f} |"
        )
    epoch = median(
        (medians[size, 1]["cpu_three"] - medians[size, 1]["cpu_one"]) / 2 for size in sizes
    )
    read, first = np.polyfit(sizes, [medians[size, 1]["cpu_one"] for size in sizes], 1)
    print(
        f"seconds = {first - epoch:.2f} + records * {read:.2e} + steps * {epoch / BLOCKS:.3f}, "
        "where steps of few records take as long as those of more"
    )
    seconds = first - epoch + LARGE / MACHINES * read
    print(
        f"1e9 x {COLUMNS} on {MACHINES} machines, one core each: {seconds:.0f} s before the steps"
    )


if __name__ == "__main__":
    main()
