"""Work that goes on for long: memory, threads and open files must stay as they were.

    python tools/soak.py fits [COUNT=10000]         # fits in this one process
    python tools/soak.py explore [COUNT=100000]     # questions to one `lastiterate explore`

72 hours of a person at the explorer, with a question every three seconds, are 86,400 questions. A
line after every twentieth of the work; exit code 1 where the process has more than ``SLACK`` more
memory at the end than after the first tenth, or more threads or files, or gave a wrong answer.
Linux alone, whose /proc it reads.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

SLACK, FEW = 16 * 2**20, 2
"""Bytes that a process may grow by, less than 2 kB for each of 10,000 fits; threads and files that
come and go."""
TWENTIETHS = 20


def measure(process: int) -> tuple[int, int, int]:
    """Resident bytes, threads and open files of a process."""
    home = Path(f"/proc/{process}")
    pages = int((home / "statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(home / "task")), len(os.listdir(home / "fd"))


def watch(process: int, count: int, work: Callable[[int], str]) -> int:
    """Do ``work`` ``count`` times, print what ``process`` holds meanwhile, and judge it."""
    began, outcomes, held = time.perf_counter(), Counter[str](), list[tuple[int, int, int]]()
    for index in range(count):
        outcomes[work(index)] += 1
        if (index + 1) % max(1, count // TWENTIETHS) == 0:
            held.append(measure(process))
            resident, threads, files = held[-1]
            print(
                f"{index + 1:,}: {resident / 2**20:.1f} MiB, {threads} threads, {files} files, "
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )
    first, last = held[max(0, len(held) // 10 - 1)], held[-1]
    growth = last[0] - first[0]
    print(f"{dict(outcomes)}; {growth / 2**20:+.1f} MiB since a tenth of them")
    more = any(now > before + FEW for now, before in zip(last[1:], first[1:], strict=True))
    return int(growth > SLACK or more or outcomes["wrong"] > 0)


def fits(count: int) -> int:
    """Fit classifiers and regressors of several sizes, again and again."""
    from lastiterate.estimators import DPHuberRidge, DPLogisticRegression

    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (400, 12))
    labels = (x[:, 0] + 0.3 * rng.normal(size=400) > 0).astype(int)
    values = np.clip(x[:, 1], -1, 1)

    def work(index: int) -> str:
        n = 380 + index % 5 * 5
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if index % 4 == 3:
                regressor = DPHuberRidge(epsilon=1.0, row_norm=3.5, target_range=(-1.0, 1.0))
                answers = regressor.fit(x[:n], values[:n]).predict(x)
            else:
                answers = (
                    DPLogisticRegression(epsilon=1.0, row_norm=3.5)
                    .fit(x[:n], labels[:n])
                    .predict(x)
                )
        return "right" if answers.shape == (400,) and np.isfinite(answers).all() else "wrong"

    return watch(os.getpid(), count, work)


def explore(count: int) -> int:
    """Ask one explorer what its sliders ask, with some questions that it must refuse."""
    from lastiterate.report.explore import DEFAULT, KINDS

    command = [sys.executable, "-u", "-m", "lastiterate", "explore", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split("/")[2]
        rng = random.Random(0)

        def work(index: int) -> str:
            bad = index % 50 == 49
            question = DEFAULT | {
                "batching": rng.choice(list(KINDS)),
                "n": -1 if bad else rng.randint(1000, 100_000),
                "noise": round(rng.uniform(0.5, 20), 2),
                "passes": rng.randint(1, 40),
                "batch": rng.choice([50, 100, 500, 1000]),
            }
            link = http.client.HTTPConnection(address, timeout=300)
            link.request(
                "POST",
                "/answer?rows=closed",
                json.dumps(question),
                {"Content-Type": "application/json", "Host": address},
            )
            reply = link.getresponse()
            said = json.loads(reply.read())
            link.close()
            if reply.status == 400 and "error" in said:
                return "refused"
            known = reply.status == 200 and (said["epsilon"] is None or said["epsilon"] > 0)
            return "answered" if known and not bad else "wrong"

        try:
            return watch(server.pid, count, work)
        finally:
            server.terminate()


if __name__ == "__main__":
    kind, *more = sys.argv[1:] or [""]
    works = {"fits": (fits, 10_000), "explore": (explore, 100_000)}
    if kind not in works:
        raise SystemExit(__doc__)
    action, most = works[kind]
    sys.exit(action(int(more[0]) if more else most))
