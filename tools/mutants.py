"""Mutants of the theorem formulas: one operator, comparison, constant or extremum is changed, and
the laws run.

    python tools/mutants.py                 # everything: at most half an hour on two idle cores
    python tools/mutants.py --sample 60     # a random sample
    python tools/mutants.py curve           # files whose name contains a word
    python tools/mutants.py curve --tests tests/curves/test_curve.py

Sources and tests are copied to a temporary folder; the checkout is only read. Results are kept in
.mutants/ (a line of JSON each), so that an interrupted run goes on: killed mutants stay killed as
long as their file is the same, survivors are tried again. Tests that call its function run on a
mutant, quickest first, until one fails. Survivors that change nothing, or nothing that a law could
see, are judged in tools/mutants.toml with the reason. Exit code 1 below 95 %.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
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

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("curves/*.py", "analysis/*.py", "theorems/*.py")
TESTS = ("tests/laws", "tests/curves", "tests/accounting/test_certificate.py")
GOAL = 0.95
TINY = 1e-6
"""Smaller constants are rounding allowances, as are the names below: what only they enter is no
formula. That bounds round to the safe side is tested against 60 digits, not by mutants: twice an
allowance is as safe as one."""
ALLOWANCES = {"UP", "DOWN", "ROUNDING", "allowance", "FLOAT_SLACK"}
GRIDS = {"linspace", "geomspace"}
"""Calls that lay out a search: one point more or less changes nothing that is promised."""

SWAPS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
NAMES = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "floor": "ceil",
    "ceil": "floor",
    "argmin": "argmax",
    "any": "all",
    "all": "any",
}


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

    def source(self) -> str:
        """The whole file with the change."""
        tree = ast.parse((ROOT / self.file).read_text(encoding="utf-8"))
        change(list(ast.walk(tree))[self.index])
        return ast.unparse(tree)


def change(node: Any) -> bool:
    """Change one node in place; False where there is nothing to change."""
    match node:
        case ast.BinOp(op=ast.BitOr(), left=ast.Name() | ast.Attribute()):
            return False  # a union of types
        case ast.BinOp(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            node.op = SWAPS[type(op)]()
        case ast.Compare(ops=[op]) if type(op) in SWAPS:
            node.ops = [SWAPS[type(op)]()]
        case ast.UnaryOp(op=ast.USub()):
            node.op = ast.UAdd()
        case ast.UnaryOp(op=ast.Not() | ast.Invert() as op):
            node.operand = ast.UnaryOp(op, node.operand)
        case ast.Constant(value=int() | float() as value) if (
            not isinstance(value, bool) and not 0 < abs(value) <= TINY
        ):
            node.value = value + 1 if isinstance(value, int) else value * 2 if value else 1.0
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            node.func.id = NAMES[name]
        case ast.Call(func=ast.Attribute(attr=name)) if name in NAMES:
            node.func.attr = NAMES[name]
        case _:
            return False
    return True


def tiny(node: ast.AST) -> bool:
    """Whether a term only covers rounding: 1e-12, 2.0**-48 * (...), slack."""
    match node:
        case ast.Name(id="slack"):
            return True
        case ast.Constant(value=float() as value):
            return 0 < abs(value) <= TINY
        case ast.BinOp(
            ast.Constant(value=2),
            ast.Pow(),
            ast.UnaryOp(ast.USub(), ast.Constant(value=int() as bits)),
        ):
            return 2.0**-bits <= TINY
        case ast.BinOp(op=ast.Mult(), left=one, right=two):
            return tiny(one) or tiny(two)
        case ast.BinOp(op=ast.Div(), left=one):
            return tiny(one)
        case _:
            return False


def near_one(node: ast.AST) -> bool:
    """Whether a factor only covers rounding: UP, 1 + 1e-9, 1 + allowance(...)."""
    match node:
        case ast.Name(id=name):
            return name in ALLOWANCES
        case ast.BinOp(op=ast.Add() | ast.Sub(), left=ast.Constant(value=1), right=rest):
            return (
                tiny(rest)
                or (isinstance(rest, ast.Call) and getattr(rest.func, "id", "") in ALLOWANCES)
                or (near_one(rest))
            )
        case _:
            return False


def left_out(tree: ast.AST) -> set[int]:
    """Nodes that are no formula: annotations, decorators, imports, assertions, error messages,
    allowances, grids."""
    parts: list[ast.AST | None] = []
    alone: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef():
                arguments = [
                    inner.annotation for inner in ast.walk(node.args) if isinstance(inner, ast.arg)
                ]
                parts += [*node.decorator_list, node.returns, *arguments]
            case ast.AnnAssign():
                parts.append(node.annotation)
            case ast.Assign(targets=[ast.Name(id=name)]) if name in ALLOWANCES:
                parts.append(node.value)
            case ast.Raise() | ast.Assert() | ast.Import() | ast.ImportFrom():
                parts.append(node)
            case ast.Call(func=ast.Attribute(attr=name)) if name in GRIDS:
                parts.append(node)
            case ast.BinOp() if tiny(node):
                parts.append(node)
            case ast.BinOp(left=one, right=two):
                spent = [
                    part
                    for part in (one, two)
                    if (near_one(part) if isinstance(node.op, ast.Mult | ast.Div) else tiny(part))
                ]
                parts += spent
                alone |= {id(node)} if spent else set()
            case _:
                pass
    return alone | {id(inner) for part in parts if part is not None for inner in ast.walk(part)}


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every mutant of one file, in the order of its tree."""
    source = path.read_text(encoding="utf-8")
    digest, lines, tree = (
        hashlib.sha256(source.encode()).hexdigest()[:12],
        source.splitlines(),
        ast.parse(source),
    )
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    without = left_out(tree)
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
    """Verdicts of earlier runs, by the mutants' keys."""
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {row["key"]: row["verdict"] for row in rows}


def report(mutants: list[Mutant], verdicts: dict[str, str], rows: list[dict[str, str]]) -> float:
    """Print survivors and the share of killed ones, file by file; the share over all."""
    equal = {m.key for m in mutants if judged(m, rows)}
    tried = [m for m in mutants if m.key in verdicts and m.key not in equal]
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
    parser.add_argument("--sample", type=int, help="only this many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--tests", nargs="+", default=TESTS, help="only these files or folders of tests"
    )
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    asked = parser.parse_args()
    package = ROOT / "src" / "lastiterate"
    files = [
        path
        for pattern in SOURCES
        for path in sorted(package.glob(pattern))
        if path.name != "__init__.py"
    ]
    files = [
        path for path in files if not asked.words or any(word in path.name for word in asked.words)
    ]
    mutants = [mutant for path in files for mutant in mutants_of(path)]
    if asked.sample is not None and asked.sample < len(mutants):
        mutants = random.Random(asked.seed).sample(mutants, asked.sample)
    if asked.list:
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
    left = [
        mutant
        for mutant in mutants
        if done.get(mutant.key) != "killed" and not judged(mutant, rows)
    ]
    print(
        f"{len(mutants)} mutants, {len(left)} to test (the others are known to be killed, or "
        f"judged)"
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for job in range(asked.jobs):
            copied = Path(folder) / str(job)
            for part in ("src", "tests", "benchmarks"):
                shutil.copytree(
                    ROOT / part, copied / part, ignore=shutil.ignore_patterns("__pycache__")
                )
            shutil.copy(ROOT / "pyproject.toml", copied)
        tests = (
            mutant_tests.calls(Path(folder) / "0", tuple(asked.tests), kept / "calls.json")
            if left
            else {}
        )
        work = [
            (m.key, m.file, m.source(), mutant_tests.chosen(tests, m.file, m.function))
            for m in left
        ]
        mutant_tests.run(
            work, [Path(folder) / str(job) for job in range(asked.jobs)], kept / "verdicts.jsonl"
        )
    share = report(mutants, load(kept / "verdicts.jsonl"), rows)
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if share >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
