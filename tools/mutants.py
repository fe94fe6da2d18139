"""Mutants of the theorem formulas: one operator, comparison, constant or extremum is changed, and
the laws run.

    python tools/mutants.py                 # everything, in two or three hours on two cores
    python tools/mutants.py --sample 60     # a random sample
    python tools/mutants.py curve           # files whose name contains a word
    python tools/mutants.py curve --tests tests/curves/test_curve.py
    python tools/mutants.py --part engine --sample 60

Sources and tests are copied to a temporary folder; the checkout is only read. Which test calls which
function is listed once for a state of the sources, in half an hour. Results are kept in .mutants/ (a
line of JSON each), so that an interrupted run continues: killed mutants stay killed as long as their
file is the same, survivors are tried again. Tests that call its function run on a mutant, quickest
first, until one fails. Survivors that change nothing, or nothing that a law could see, are judged in
tools/mutants.toml with the reason. Exit code 1 below 95 %.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.util
import json
import os
import random
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import mutant_tests


def load_by_path(path: Path) -> Any:
    """Import one file of a package, and nothing else of it."""
    spec = importlib.util.spec_from_file_location(path.stem + "_alone", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "formulas": (
        ("curves/*.py", "analysis/*.py", "theorems/*.py"),
        (
            "tests/laws",
            "tests/curves",
            "tests/accounting",
            "tests/bayes/test_clipped_sgld.py",
            "tests/bayes/test_gaussian.py",
            "tests/planning/test_strategies.py",
            "tests/release/test_tuning.py",
            "tests/run/test_questions.py",
        ),
    ),
    "engine": (
        ("engine/*.py",),
        (
            "tests/engine",
            "tests/audit/test_correlated_noise.py",
            "tests/audit/test_low_bits.py",
            "tests/release/test_before_charge.py",
            "tests/release/test_calibrated.py",
            "tests/release/test_correlated_training.py",
            "tests/release/test_kept_rows.py",
            "tests/release/test_private_loop.py",
            "tests/release/test_stated_noise.py",
        ),
    ),
}
"""Sources, and the tests that run on their mutants."""
GOAL = 0.95
_mutation = load_by_path(ROOT / "src" / "lastiterate" / "testing" / "mutants.py")
"""The changes of nodes, without the package: forks import a changed one."""
change, list_excluded = _mutation.change, _mutation.list_excluded


@dataclass(frozen=True)
class Mutant:
    """One change: node ``index`` of a file's tree, in the function that begins at line ``function``
    (0: in none)."""

    file: str
    digest: str
    index: int
    line: int
    function: int
    text: str
    before: str
    after: str

    @property
    def key(self) -> str:
        return f"{self.file} {self.digest} {self.index}"

    def tree(self) -> ast.Module:
        """The whole file with the change."""
        tree = ast.parse((ROOT / self.file).read_text(encoding="utf-8"))
        change(list(ast.walk(tree))[self.index])
        return tree


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of one file, in the order of its tree."""
    source = path.read_text(encoding="utf-8")
    digest, lines, tree = (
        hashlib.sha256(source.encode()).hexdigest()[:12],
        source.splitlines(),
        ast.parse(source),
    )
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    without = list_excluded(tree)
    for index, node in enumerate(ast.walk(tree)):
        changed = copy.deepcopy(node)
        if not isinstance(node, ast.expr) or id(node) in without or not change(changed):
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= (f.end_lineno or 0)]
        inner = max(around, key=lambda f: f.lineno, default=None)
        first = (
            0
            if inner is None
            else min([inner.lineno, *(part.lineno for part in inner.decorator_list)])
        )
        yield Mutant(
            str(path.relative_to(ROOT)),
            digest,
            index,
            node.lineno,
            first,
            lines[node.lineno - 1].strip(),
            ast.unparse(node),
            ast.unparse(changed),
        )


def judged(mutant: Mutant, rows: list[dict[str, str]]) -> bool:
    """Whether tools/mutants.toml says why nobody can kill this one."""
    return any(
        fnmatch(mutant.file, f"*/{row['file']}")
        and row["text"] in mutant.text
        and row.get("before", mutant.before) == mutant.before
        for row in rows
    )


def load(path: Path) -> dict[str, str]:
    """Verdicts of earlier runs, by the mutants' keys: one that was killed once is killed."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {
        row["key"]: row["verdict"]
        for row in sorted(rows, key=lambda row: row["verdict"] == "killed")
    }


def report(mutants: list[Mutant], verdicts: dict[str, str], rows: list[dict[str, str]]) -> float:
    """Print survivors and the share of killed ones, file by file; the share over all."""
    equal = {m.key for m in mutants if judged(m, rows)}
    tried = sorted(
        (m for m in mutants if m.key in verdicts and m.key not in equal),
        key=lambda m: (m.file, m.line),
    )
    for mutant in tried:
        if verdicts[mutant.key] == "survived":
            print(
                f"{mutant.file}:{mutant.line}: {mutant.before}  ->  {mutant.after}\n    "
                f"{mutant.text}"
            )
    total, dead = len(tried), sum(verdicts[m.key] == "killed" for m in tried)
    for file in sorted({mutant.file for mutant in mutants}):
        own = [verdicts[m.key] for m in tried if m.file == file]
        print(
            f"{file}: {own.count('killed')} killed, {own.count('survived')} survived, "
            f"{sum(m.file == file and m.key in equal for m in mutants)} judged"
        )
    share = dead / total if total else 1.0
    print(f"{dead} of {total} killed: {share:.1%}")
    return share


def main() -> int:
    """Run the mutants that were asked for; 0 when enough of them are killed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("words", nargs="*", help="only files whose name contains one of these")
    parser.add_argument("--part", choices=PARTS, default="formulas")
    parser.add_argument("--sample", type=int, help="only this many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="of the tests that run on one mutant, as long as they took when listed",
    )
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--tests", nargs="+", help="only these files or folders of tests")
    parser.add_argument(
        "--survivors", action="store_true", help="only those that earlier runs did not kill"
    )
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    asked = parser.parse_args()
    sources, tests_of_part = PARTS[asked.part]
    package = ROOT / "src" / "lastiterate"
    files = [
        path
        for pattern in sources
        for path in sorted(package.glob(pattern))
        if path.name != "__init__.py"
    ]
    files = [
        path for path in files if not asked.words or any(word in path.name for word in asked.words)
    ]
    if not files:
        parser.error(f"no file of {asked.part} has {' or '.join(asked.words)} in its name")
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    # drawn or not, in a random order: a run that was interrupted is a sample too
    few = len(mutants) if asked.sample is None else min(asked.sample, len(mutants))
    mutants = random.Random(asked.seed).sample(mutants, few)
    if asked.list:
        mutants.sort(key=lambda m: (m.file, m.line))
        print(
            "\n".join(f"{m.file}:{m.line}: {m.before}  ->  {m.after}" for m in mutants),
            f"\n{len(mutants)}",
        )
        return 0
    kept = ROOT / ".mutants"
    kept.mkdir(exist_ok=True)
    done = load(kept / "verdicts.jsonl")
    rows = tomllib.loads((ROOT / "tools" / "mutants.toml").read_text(encoding="utf-8")).get(
        "judged", []
    )
    asked_for = {"survived"} if asked.survivors else {"survived", "new"}
    left = [
        mutant
        for mutant in mutants
        if done.get(mutant.key, "new") in asked_for and not judged(mutant, rows)
    ]
    print(
        f"{len(mutants)} mutants, {len(left)} to test (the others are known to be killed, or "
        f"judged)"
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for job in range(asked.jobs):
            copied = Path(folder) / str(job)
            for part in ("src", "checker", "tests", "benchmarks", "docs"):
                shutil.copytree(
                    ROOT / part, copied / part, ignore=shutil.ignore_patterns("__pycache__")
                )
            shutil.copy(ROOT / "pyproject.toml", copied)
        tests = (
            mutant_tests.calls(
                Path(folder) / "0", tuple(asked.tests or tests_of_part), kept / "calls.json"
            )
            if left
            else {}
        )
        callers = mutant_tests.Callers(tests)
        work = [
            (m.key, m.file, m.tree, callers.choose(m.file, m.function, asked.seconds)) for m in left
        ]
        mutant_tests.run(
            work, [Path(folder) / str(job) for job in range(asked.jobs)], kept / "verdicts.jsonl"
        )
    share = report(mutants, load(kept / "verdicts.jsonl"), rows)
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
