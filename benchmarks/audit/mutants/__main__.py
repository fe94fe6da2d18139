"""Who catches bugs that nobody listed? python -m benchmarks.audit.mutants FOLDER [--seed S]
[--count N] [--half 1|2]

Changes of ``engine``, ``torch`` and ``release`` are drawn by the seed, in two halves; each is
executed, in a fork, on the cases of the bank that reach its line, and whatever shows the very bits
of the unchanged sources is done. What leaks is audited as a user would audit it (with fewer
models), compared with the exact law, and given to the tests that import the changed file. One JSON
line per change in FOLDER/log.jsonl; the same command goes on where it was stopped. ``--table``
counts the lines of that seed and half, and names the changes that leak with who caught them. FOLDER
keeps a copy of the sources that it was begun with: what is drawn follows from these and the seed.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import json
import os
import pickle
import shutil
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audit.mutants.catching import TOP, caught
from benchmarks.audit.mutants.forked import ahead, forked, lines, shown
from benchmarks.audit.mutants.judgement import ORDER, judged, moved
from benchmarks.audit.mutants.sites import Mutant, halves, mutants

MOST_CASES = 3
SLOW = 240
"""Processor seconds of a case whose lines are traced, or that is executed the first time."""
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "PYTHONWARNINGS": "ignore",
}


class Bench:
    """A folder with references, the sources that are changed, and the log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.runs = folder, folder / "log.jsonl", folder / "runs.json"
        self.base, self.out = folder / "base", folder / "out.pickle"
        folder.mkdir(parents=True, exist_ok=True)
        if not self.base.exists():
            shutil.copytree(TOP / "src", self.base)
            compileall.compile_dir(self.base, quiet=1)
        os.environ.update(
            {**SETTINGS, "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"), **os.environ}
        )
        sys.path.insert(0, str(self.base))
        ahead()
        self.quick: dict[str, bool] = forked(partial(_quick, self.runs), self.out, seconds=SLOW)
        path = folder / "lines.pickle"
        self.lines = pickle.loads(path.read_bytes()) if path.exists() else {}
        for name in self.quick:
            if name not in self.lines:
                self.lines[name] = forked(partial(lines, name, self.runs), self.out, seconds=SLOW)
                path.write_bytes(pickle.dumps(self.lines))

    def kept(self, name: str, few: bool) -> Any:
        """What a case shows under the unchanged sources."""
        path = self.folder / f"{name}{', few' if few else ''}.pickle"
        if not path.exists():
            path.write_bytes(
                pickle.dumps(forked(partial(shown, name, self.runs, few), self.out, seconds=SLOW))
            )
        return pickle.loads(path.read_bytes())

    def reached(self, mutant: Mutant) -> list[str]:
        """The cases that execute the statement that is changed, the fewest lines first."""
        first, last = statement((self.base / "lastiterate" / mutant.file).read_text(), mutant.line)
        wanted = {(mutant.file, line) for line in range(first, last + 1)}
        return sorted(
            (name for name in self.quick if wanted & self.lines[name]),
            key=lambda n: len(self.lines[n]),
        )

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """One row of the log."""
        row: dict[str, Any] = {
            "mutant": mutant.name,
            "kind": mutant.kind,
            "word": "not executed",
            "ratio": 1.0,
        }
        began, names = time.perf_counter(), self.reached(mutant)
        for name in names[:MOST_CASES]:
            word, ratio, far = self.executed(mutant, name)
            if ORDER.index(word) < ORDER.index(row["word"]):
                row |= {"word": word, "ratio": ratio, "case": name, "moved": far}
            if word in ("leaks", "fails"):
                break
        return row | {
            "cases": names[:MOST_CASES],
            "of": len(names),
            "seconds": round(time.perf_counter() - began, 1),
        }

    def executed(self, mutant: Mutant, name: str) -> tuple[str, float, tuple[float, float] | None]:
        """The word for one case; the few models of its pairs first, the others where these are not
        the same."""
        path = self.base / "lastiterate" / mutant.file
        changed = (path, mutant.applied(path.read_text()))
        for few in (False,) if self.quick[name] else (True, False):
            before, found = (
                self.kept(name, few),
                forked(partial(shown, name, self.runs, few), self.out, changed),
            )
            word, ratio = judged(before, found)
            if word in ("same", "fails"):
                break
        far = (
            (moved(before), moved(found))
            if word in ("leaks", "other law", "other bits") and ratio < np.inf
            else None
        )
        return word, ratio, far


def _quick(held: Path) -> dict[str, bool]:
    """The names of all cases, and whether they train many models at once."""
    from benchmarks.audit.mutants import bank

    return {name: name in bank.AT_ONCE for name in bank.cases(held)}


def statement(text: str, line: int) -> tuple[int, int]:
    """First and last line of the innermost statement at a line; of one with a body, its head."""
    found = (line, line)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            last = max(line, body[0].lineno - 1) if body else node.end_lineno or line
            if node.lineno >= found[0] or found == (line, line) or not body:
                found = (node.lineno, last)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """How many of what, and who caught what leaks."""
    words = Counter(row["word"] for row in rows)
    leaking = [row for row in rows if row["word"] == "leaks"]
    by = {
        name: sum(row.get(name, {}).get("caught", False) for row in leaking)
        for name in ("audit", "law", "tests")
    }
    each = {
        row["mutant"]: [name for name in by if row.get(name, {}).get("caught", False)]
        for row in leaking
    }
    return json.dumps({"mutants": len(rows), **words, "caught by": by, "leaking": each}, indent=1)


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    given.add_argument("folder", type=Path)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--count", type=int, default=200)
    given.add_argument("--half", type=int, default=1, choices=(1, 2))
    given.add_argument("--table", action="store_true")
    asked = given.parse_args()
    log = asked.folder / "log.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    if asked.table:
        print(
            table([row for row in rows if (row["seed"], row["half"]) == (asked.seed, asked.half)])
        )
        return
    bench, done = Bench(asked.folder), {row["mutant"] for row in rows if row["seed"] == asked.seed}
    for mutant in halves(mutants(bench.base / "lastiterate"), asked.seed, asked.count)[
        asked.half - 1
    ]:
        if mutant.name not in done:
            row = bench.judge(mutant) | {"seed": asked.seed, "half": asked.half}
            if row["word"] == "leaks":
                row |= caught(asked.folder, mutant, row["case"], bench.runs)
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
