"""Who contradicts a change that leaks: the default audit, the exact law, the tests that name the
file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.audit.mutants.sites import Mutant

TOP = Path(__file__).parents[3]
LONG, MOST_TESTS = 900, 3
"""Seconds on the clock, and test files."""
AUDITED = "benchmarks.audit.mutants.audited"


def caught(folder: Path, mutant: Mutant, case: str, runs: Path) -> dict[str, Any]:
    """By whom, with seconds on the clock and of the processor; a copy of the sources has the
    change."""
    copy, found = folder / "copy", dict[str, Any]()
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "base", copy)
    mutant.into(copy / "lastiterate")
    for name, flags in (("audit", ()), ("law", ("--law",))):
        found[name] = _asked(folder, copy, "-m", AUDITED, runs, case, *flags)
    files = tests_of(mutant.file)
    found["tests"] = _asked(
        folder, copy, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-x", *files
    )
    return found


def _asked(folder: Path, sources: Path, *arguments: Any) -> dict[str, Any]:
    """Exit code 1 is what catches: an error of another kind, or no answer in time, is none."""
    env = os.environ | {
        "PYTHONPATH": f"{sources}:{TOP}",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    began, before = time.perf_counter(), os.times()
    try:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            env=env,
            cwd=TOP,
            timeout=LONG,
            capture_output=True,
            text=True,
        )
        code, said = done.returncode, (done.stdout or done.stderr)[-400:]
    except subprocess.TimeoutExpired:
        code, said = 124, "too slow"
    after = os.times()
    spent = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    known = "verdict" in said or "pytest" in map(str, arguments)
    return {
        "caught": code == 1 and known,
        "code": code,
        "said": said,
        "seconds": round(time.perf_counter() - began, 1),
        "processor": round(spent, 1),
    }


def tests_of(file: str) -> list[str]:
    """Test files that name the module, those of its own room first."""
    module = "lastiterate." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    stem = module.rpartition(".")[2]
    every = sorted((TOP / "tests").rglob("test_*.py"))
    naming = [
        path for path in every if module in path.read_text() or f"import {stem}" in path.read_text()
    ]
    room = file.split("/")[0].replace("torch", "torch_modules")
    near = [path for path in every if room in path.parts and stem.split("_")[0] in path.stem]
    chosen = list(dict.fromkeys([*near, *naming]))[:MOST_TESTS]
    return [str(path.relative_to(TOP)) for path in chosen] or [f"tests/{room}"]
