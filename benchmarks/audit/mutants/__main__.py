"""Who catches bugs that nobody listed? python -m benchmarks.audit.mutants FOLDER [--seed S] [--count N] [--half 1|2]

Changes of ``engine``, ``torch`` and ``release`` are drawn by the seed, in two halves; each is written into a copy of
the sources (never into these), and executed on the cases of the bank that reach its line. What leaks is audited as a
user would audit it (with fewer models), compared with the exact law, and given to the tests that import the changed
file. One JSON line per change in FOLDER/log.jsonl; the same command goes on where it was stopped. ``--table`` counts
what is there.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.audit.mutants import bank
from benchmarks.audit.mutants.judgement import ORDER, judged
from benchmarks.audit.mutants.sites import Mutant, halves, mutants

TOP = Path(__file__).parents[3]
SLOW, LONG = 300, 900
"""Seconds for a case, and for an audit or the tests."""
MOST_CASES, MOST_TESTS, TRIALS = 2, 6, 4000
COMMAND = "from lastiterate.__main__ import main; main()"
EXECUTE = "benchmarks.audit.mutants.executed_cases"


class Bench:
    """A folder with references, copies of the sources and the log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.runs = folder, folder / "log.jsonl", folder / "runs.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.base = folder / "base"
        if not self.base.exists():
            shutil.copytree(TOP / "src", self.base)
        self.names = list(bank.cases(self.runs))
        path, part = folder / "lines.pickle", folder / "lines-part.pickle"
        self.lines = pickle.loads(path.read_bytes()) if path.exists() else {}
        while missing := [name for name in self.names if name not in self.lines]:
            self.python(self.base, "-m", EXECUTE, part, self.runs, *missing, "--lines", seconds=LONG)
            self.lines |= pickle.loads(part.read_bytes())
            path.write_bytes(pickle.dumps(self.lines))

    def python(self, sources: Path, *arguments: Any, seconds: float = SLOW) -> tuple[int, str]:
        """Exit code (124: too slow) and the end of what it wrote."""
        env = os.environ | {"PYTHONPATH": f"{sources}:{TOP}", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1",
                            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
                            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                            "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run([sys.executable, *map(str, arguments)], env=env, cwd=TOP, timeout=seconds,
                                  capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return 124, "too slow"
        return done.returncode, (done.stdout or done.stderr)[-20_000:]

    def kept(self, name: str) -> Any:
        """What a case shows under the unchanged sources."""
        path = self.folder / f"{name}.pickle"
        if not path.exists():
            self.python(self.base, "-m", EXECUTE, path, self.runs, name, seconds=LONG)
        return pickle.loads(path.read_bytes())[name]

    def reached(self, mutant: Mutant) -> list[str]:
        """The cases that execute the statement that is changed, the fewest lines first."""
        first, last = statement((self.base / "lastiterate" / mutant.file).read_text(), mutant.line)
        wanted = {(mutant.file, line) for line in range(first, last + 1)}
        return sorted((name for name in self.names if wanted & self.lines[name]), key=lambda n: len(self.lines[n]))

    def judge(self, mutant: Mutant) -> dict[str, Any]:
        """One row of the log."""
        row: dict[str, Any] = {"mutant": mutant.name, "kind": mutant.kind, "word": "not executed", "ratio": 1.0}
        began, names = time.perf_counter(), self.reached(mutant)
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.base, copy, copy_function=os.link)
        mutant.into(copy / "lastiterate")
        for name in names[:MOST_CASES]:
            out = self.folder / "shown.pickle"
            out.unlink(missing_ok=True)
            code, said = self.python(copy, "-m", EXECUTE, out, self.runs, name)
            found = pickle.loads(out.read_bytes())[name] if out.exists() else f"{code} {said[-200:]}"
            word, ratio = judged(self.kept(name), found)
            if ORDER.index(word) < ORDER.index(row["word"]):
                row |= {"word": word, "ratio": ratio, "case": name}
            if word in ("leaks", "fails"):
                break
        row["cases"], row["seconds"] = names[:MOST_CASES], round(time.perf_counter() - began, 1)
        if row["word"] == "leaks":
            row |= self.caught(copy, mutant, row["case"])
        return row

    def caught(self, copy: Path, mutant: Mutant, case: str) -> dict[str, Any]:
        """By whom: the default audit, the exact law, the tests that import the file."""
        described, found = json.loads(self.runs.read_text()), dict[str, Any]()
        if case in described:
            path = self.folder / "run.json"
            path.write_text(json.dumps(described[case]))
            for name, flags in (("audit", ("--trials", TRIALS)), ("law", ("--law",))):
                began = time.perf_counter()
                code, said = self.python(copy, "-c", COMMAND, "audit", path, "--seed", 1, "--json", *flags,
                                         seconds=LONG)
                found[name] = {"caught": code == 1 and "BUG" in said, "code": code, "said": said[-200:],
                               "seconds": round(time.perf_counter() - began, 1)}
        files = tests_of(mutant.file)
        code, said = self.python(copy, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", *files, seconds=LONG)
        return found | {"tests": {"caught": code == 1, "code": code, "files": files, "said": said[-200:]}}


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


def tests_of(file: str) -> list[str]:
    """Test files that name the module, those of its own room first."""
    module = "lastiterate." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    stem = module.rpartition(".")[2]
    every = sorted((TOP / "tests").rglob("test_*.py"))
    naming = [path for path in every if module in path.read_text() or f"import {stem}" in path.read_text()]
    room = file.split("/")[0].replace("torch", "torch_modules")
    near = [path for path in every if room in path.parts and stem.split("_")[0] in path.stem]
    chosen = list(dict.fromkeys([*near, *naming]))[:MOST_TESTS]
    return [str(path.relative_to(TOP)) for path in chosen] or [f"tests/{room}"]


def table(rows: list[dict[str, Any]]) -> str:
    """How many of what, and who caught what leaks."""
    words = Counter(row["word"] for row in rows)
    leaking = [row for row in rows if row["word"] == "leaks"]
    by = {name: sum(row.get(name, {}).get("caught", False) for row in leaking) for name in ("audit", "law", "tests")}
    lost = [row["mutant"] for row in leaking if not any(row.get(name, {}).get("caught", False) for name in by)]
    return json.dumps({"mutants": len(rows), **words, "caught by": by, "by nobody": lost}, indent=1)


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
        print(table(rows))
        return
    bench, done = Bench(asked.folder), {row["mutant"] for row in rows}
    for mutant in halves(mutants(bench.base / "lastiterate"), asked.seed, asked.count)[asked.half - 1]:
        if mutant.name not in done:
            row = bench.judge(mutant) | {"half": asked.half}
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
