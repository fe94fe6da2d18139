"""Which tests call which functions, and whether some of them fail on a changed copy; used by
mutants.py.

Every test run is a fork of a process that has imported the heavy libraries and not the package.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

SLOWEST, ENOUGH = 6.0, 20.0
"""Seconds of a test that is used at all, and of all tests that run on one mutant (as they took when
listed)."""
PATIENCE = 4.0
"""A mutant that takes so many times longer than its tests did is killed: it hangs."""
MEMORY = 6 * 2**30
"""Bytes that a test may address: a mutant that needs more is killed."""
ASLEEP = 20
"""Seconds on the clock for each second of processor time that a test may take, before it counts as
asleep."""

Calls = dict[str, dict[str, Any]]
"""By test: its ``seconds`` and the ``functions`` it calls, each "file line"."""
Work = tuple[str, str, str, list[tuple[str, float]]]
"""Key, file, changed source, and the tests with their seconds."""


def preload() -> None:
    """Import what tests need and no mutant changes, so that forks need not."""
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for name in (
        "pytest",
        "numpy",
        "scipy.special",
        "scipy.optimize",
        "scipy.stats",
        "mpmath",
        "hypothesis",
        "dp_accounting.pld.privacy_loss_distribution",
        "dp_accounting.rdp",
    ):
        with suppress(ImportError):
            importlib.import_module(name)


def forked(action: Callable[[], int], limit: float) -> int:
    """Exit code of ``action`` in a fork; negative where it took more than ``limit`` seconds of
    processor time."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), math.ceil(limit) + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            with (
                open(os.devnull, "w") as nowhere,
                redirect_stdout(nowhere),
                redirect_stderr(nowhere),
            ):
                code = action()
        finally:
            os._exit(code)
    until = time.monotonic() + ASLEEP * limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return -1
        time.sleep(0.01)


def pytest_on(folder: Path, names: list[str], plugins: list[Any], *options: str) -> int:
    """Run tests of a copy inside this process (a fork)."""
    import pytest

    os.chdir(folder)
    ways = [str(folder / part) for part in ("", "src", "checker/src", "tests")]
    sys.path[:0] = ways
    os.environ["PYTHONPATH"] = os.pathsep.join(ways)
    return int(
        pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--tb=no", *options, *names], plugins)
    )


class Listener:
    """Notes, for every test, its seconds and the package's functions that it calls."""

    def __init__(self, package: str, found: Calls) -> None:
        self.package, self.found, self.now = package, found, set()
        self.begun, self.failed = 0.0, ""

    def pytest_runtest_protocol(self, item: Any) -> None:
        """Forget what earlier tests left in caches, so that their functions are called again."""
        for name, module in list(sys.modules.items()):
            if name.startswith("lastiterate"):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"):
                        value.cache_clear()
        self.now: set[str] = set()
        sys.settrace(self.called)

    def pytest_runtest_call(self) -> None:
        """Seconds are of processor time, children's too: a busy machine must not leave out the main
        laws."""
        self.begun = sum(os.times()[:4])

    def called(self, frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if name.startswith(self.package):
            self.now.add(f"{name.removeprefix(self.package)} {frame.f_code.co_firstlineno}")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = f"{report.nodeid}: {report.longreprtext.splitlines()[-1]}"
        if report.when == "call":
            sys.settrace(None)
            self.found[report.nodeid] = {
                "seconds": sum(os.times()[:4]) - self.begun,
                "functions": sorted(self.now),
            }


def calls(folder: Path, tests: tuple[str, ...], memory: Path) -> Calls:
    """The tests with their seconds and calls; files of tests are listed again when they or the
    package have changed."""
    preload()
    files = sorted(
        path
        for name in tests
        for path in (
            [folder / name] if (folder / name).is_file() else (folder / name).glob("test_*.py")
        )
    )
    common = [
        *folder.glob("src/**/*.py"),
        *folder.glob("tests/oracles/*.py"),
        *folder.glob("tests/golden/*.toml"),
    ]
    shared = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(common)))
    digests = {
        str(path.relative_to(folder)): shared.hexdigest()
        + hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {}
    stale = [
        name for name, digest in digests.items() if known.get(name, {}).get("digest") != digest
    ]
    if stale:
        print(f"listing what the tests of {len(stale)} files call ...", flush=True)
        if forked(lambda: listen(folder, stale, digests, known, memory), 3600) != 0:
            failed = memory.with_suffix(".failed")
            why = failed.read_text() if failed.exists() else "the tests took an hour"
            raise SystemExit(f"a test fails without any mutant, mend that first: {why}")
        known = json.loads(memory.read_text())
    return {name: entry for file in digests for name, entry in known[file]["tests"].items()}


def listen(
    folder: Path, stale: list[str], digests: dict[str, str], known: dict[str, Any], memory: Path
) -> int:
    """Run tests with a ``Listener`` and remember what it heard (in a fork)."""
    found: Calls = {}
    listener = Listener(f"{folder}/", found)
    code = pytest_on(folder, stale, [listener])
    for file in stale:
        own = {name: entry for name, entry in found.items() if name.split("::")[0] == file}
        known[file] = {"digest": digests[file], "tests": own}
    if code == 0:
        memory.write_text(json.dumps(known))
    else:
        memory.with_suffix(".failed").write_text(listener.failed)
    return code


def chosen(tests: Calls, file: str, function: int) -> list[tuple[str, float]]:
    """Tests that call the function (any of the file's, for what lies outside functions), quickest
    first."""

    def concerned(entry: dict[str, Any]) -> bool:
        return any(
            called.rsplit(" ", 1)[0] == file and function in (0, int(called.rsplit(" ", 1)[1]))
            for called in entry["functions"]
        )

    found = sorted(
        (entry["seconds"], name)
        for name, entry in tests.items()
        if entry["seconds"] <= SLOWEST and concerned(entry)
    )
    total, out = 0.0, []
    for seconds, name in found:
        total += seconds
        if total > ENOUGH:
            break
        out.append((name, seconds))
    return out


def run(work: list[Work], folders: list[Path], verdicts: Path) -> None:
    """Run every mutant's tests, in as many processes as there are copies; verdicts are appended.

    Mutants are handed out one by one, as numbers in a pipe.
    """
    reader, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(4, "big") for number in range(len(work))))
    os.close(writer)
    children = []
    for folder in folders:
        child = os.fork()
        if child == 0:
            try:
                meet_all(work, reader, folder, verdicts)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def meet_all(work: list[Work], reader: int, folder: Path, verdicts: Path) -> None:
    """Test mutants one by one; the tests that killed the latest mutants of the same file come
    first."""
    files = sorted({name.split("::")[0] for *_, tests in work for name, _ in tests})
    forked(lambda: pytest_on(folder, files, [], "--collect-only"), 600)  # leaves byte code behind
    killers: dict[str, list[str]] = {}
    while handed := os.read(reader, 4):
        number = int.from_bytes(handed, "big")
        key, file, source, tests = work[number]
        recent = killers.setdefault(file, [])
        ranks = {name: -rank for rank, name in enumerate(recent)}
        tests.sort(key=lambda test, ranks=ranks: ranks.get(test[0], 1))
        verdict, killer = run_tests(folder, file, source, tests)
        if killer is not None:
            killers[file] = [*(name for name in recent if name != killer), killer]
        with verdicts.open("a") as lines:
            lines.write(json.dumps({"key": key, "verdict": verdict}) + "\n")
        if number % 50 == 49:
            print(f"{number + 1} of {len(work)}", flush=True)


class Killer:
    """Writes down the test that fails."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.path.write_text(report.nodeid)


def run_tests(
    folder: Path, file: str, source: str, tests: list[tuple[str, float]]
) -> tuple[str, str | None]:
    """Whether one mutant is killed by its tests, and by which, where that is known.

    No byte code is written, and what is there is kept: the mutant's file is younger than its byte
    code, and gets its age back.
    """
    if not tests:
        return "survived", None
    path, killer = folder / file, folder / "killer"
    original, times = path.read_text(encoding="utf-8"), path.stat()
    names, seconds = [name for name, _ in tests], sum(taken for _, taken in tests)
    killer.unlink(missing_ok=True)

    def quick() -> int:
        sys.dont_write_bytecode = True
        return pytest_on(folder, names, [Killer(killer)])

    try:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 10**10))
        verdict = "survived" if forked(quick, 20 + PATIENCE * seconds) == 0 else "killed"
    finally:
        path.write_text(original, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return verdict, killer.read_text() if killer.exists() else None
