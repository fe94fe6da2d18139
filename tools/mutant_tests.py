"""Which tests call which functions, and whether some of them fail on a changed copy; used by
mutants.py.

A mutant's tests run in a fork of a process that has collected all tests, in which functions get the
changed code. What runs while a module is imported is changed in the file, in a fork of a process
that has imported the heavy libraries and not the package; so is everything where collecting tests
starts threads, as JAX does, because a fork of such a process may wait for ever.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import importlib
import inspect
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
from types import CodeType, FunctionType
from typing import Any

SLOWEST = 6.0
"""Seconds of a test that is used at all (as it took when listed)."""
RECENT, PREFERRED = 5, 0.15
"""Of the tests that killed a mutant of a file, the latest so many count as so much quicker."""
PATIENCE = 4.0
"""A mutant that takes so many times longer than its tests did is killed: it hangs."""
MEMORY = 6 * 2**30
"""Bytes that a test may address: a mutant that needs more is killed."""
ASLEEP = 20
"""Seconds on the clock for each second of processor time that a test may take, before it counts as
asleep."""

Calls = dict[str, dict[str, Any]]
"""By test: its ``seconds`` and the ``functions`` it calls, each "file line"."""
Work = tuple[str, str, Callable[[], ast.Module], list[tuple[str, float]]]
"""Key, file, what makes the changed tree, and the tests with their seconds."""


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
        "jax",
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
        forget_results()
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


def digest_calls(folder: Path, name: str, tests: Calls) -> str:
    """Digest of a file of tests, of what tests read, and of every file whose functions they call."""
    called = {line.rsplit(" ", 1)[0] for entry in tests.values() for line in entry["functions"]}
    read = [*folder.glob("tests/oracles/*.py"), *folder.glob("tests/golden/*.toml")]
    names = {name, *called, *(str(path.relative_to(folder)) for path in read)}
    digest = hashlib.sha256()
    for each in sorted(names):
        path = folder / each
        digest.update(each.encode() + (path.read_bytes() if path.exists() else b""))
    return digest.hexdigest()


def calls(folder: Path, tests: tuple[str, ...], memory: Path) -> Calls:
    """The tests with their seconds and calls; a file of tests is listed again when it has changed, or
    a file whose functions it calls."""
    preload()
    names = sorted(
        str(path.relative_to(folder))
        for name in tests
        for path in (
            [folder / name] if (folder / name).is_file() else (folder / name).glob("test_*.py")
        )
    )
    known: dict[str, Any] = json.loads(memory.read_text()) if memory.exists() else {}
    stale = [
        name
        for name in names
        if name not in known
        or known[name]["digest"] != digest_calls(folder, name, known[name]["tests"])
    ]
    if stale:
        print(f"listing what the tests of {len(stale)} files call ...", flush=True)
        if forked(lambda: listen(folder, stale, known, memory), 3600) != 0:
            failed = memory.with_suffix(".failed")
            why = failed.read_text() if failed.exists() else "the tests took an hour"
            raise SystemExit(f"a test fails without any mutant, mend that first: {why}")
        known = json.loads(memory.read_text())
    return {name: entry for file in names for name, entry in known[file]["tests"].items()}


def listen(folder: Path, stale: list[str], known: dict[str, Any], memory: Path) -> int:
    """Run tests with a ``Listener`` and remember what it heard (in a fork)."""
    found: Calls = {}
    listener = Listener(f"{folder}/", found)
    code = pytest_on(folder, stale, [listener])
    for file in stale:
        own = {name: entry for name, entry in found.items() if name.split("::")[0] == file}
        known[file] = {"digest": digest_calls(folder, file, own), "tests": own}
    if code == 0:
        memory.write_text(json.dumps(known))
    else:
        memory.with_suffix(".failed").write_text(listener.failed)
    return code


class Callers:
    """Tests by the functions that they call."""

    def __init__(self, tests: Calls) -> None:
        self.seconds = {name: entry["seconds"] for name, entry in tests.items()}
        self.names: dict[tuple[str, int], set[str]] = {}
        for name, entry in tests.items():
            for called in entry["functions"] if entry["seconds"] <= SLOWEST else ():
                file, line = called.rsplit(" ", 1)
                for function in (0, int(line)):
                    self.names.setdefault((file, function), set()).add(name)

    def choose(self, file: str, function: int, most: float) -> list[tuple[str, float]]:
        """Tests that call the function (any of the file's, for what lies outside functions),
        quickest first, as many as take ``most`` seconds."""
        total, out = 0.0, []
        names = self.names.get((file, function), set())
        for name in sorted(names, key=lambda name: (self.seconds[name], name)):
            total += self.seconds[name]
            if total > most:
                break
            out.append((name, self.seconds[name]))
        return out


def run(work: list[Work], folders: list[Path], verdicts: Path) -> None:
    """Run every mutant's tests, in as many processes as there are copies; verdicts are appended.

    Mutants are handed out one by one, as numbers in a pipe. First come changes within functions,
    made in the memory of a process that has collected the tests; the others go into a second pipe
    and are made in the file.
    """
    numbers, writer = os.pipe()
    os.write(writer, b"".join(number.to_bytes(4, "big") for number in range(len(work))))
    os.close(writer)
    others, put = os.pipe()
    children = []
    for folder in folders:
        child = os.fork()
        if child == 0:
            try:
                within = os.fork()
                if within == 0:
                    try:
                        meet_functions(work, numbers, put, folder, verdicts)
                    finally:
                        os._exit(0)
                os.close(put)
                os.waitpid(within, 0)
                meet_files(work, others, folder, verdicts)
            finally:
                os._exit(0)
        children.append(child)
    os.close(put)
    for child in children:
        os.waitpid(child, 0)


class Order:
    """The order of a mutant's tests: quick ones, and those that killed the file's latest mutants."""

    def __init__(self) -> None:
        self.killers: dict[str, list[str]] = {}

    def sort(self, file: str, tests: list[tuple[str, float]]) -> list[tuple[str, float]]:
        recent = self.killers.get(file, [])[-RECENT:]
        return sorted(
            tests, key=lambda test: (test[1] * (PREFERRED if test[0] in recent else 1), test[0])
        )

    def note(self, file: str, killer: str | None) -> None:
        if killer is not None:
            recent = self.killers.get(file, [])
            self.killers[file] = [*(name for name in recent if name != killer), killer]


def write_verdict(verdicts: Path, key: str, verdict: str, killer: str | None) -> None:
    with verdicts.open("a") as lines:
        lines.write(json.dumps({"key": key, "verdict": verdict, "by": killer}) + "\n")


def meet_functions(work: list[Work], numbers: int, put: int, folder: Path, verdicts: Path) -> None:
    """Collect the tests once, and test each mutant in a fork in which functions have its code."""
    files = sorted({name.split("::")[0] for *_, tests in work for name, _ in tests})
    with (
        open(os.devnull, "w") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        server = Server(work, numbers, put, folder, verdicts)
        pytest_on(folder, files, [server], f"--basetemp={folder}/made")


class Server:
    """Plays pytest's loop: instead of the tests, mutants are met."""

    def __init__(
        self, work: list[Work], numbers: int, put: int, folder: Path, verdicts: Path
    ) -> None:
        self.work, self.numbers, self.put = work, numbers, put
        self.folder, self.verdicts = folder, verdicts
        self.at_import: set[str] = set()
        self.failed = ""
        self.unchanged: dict[tuple[tuple[str, float], ...], bool] = {}

    def pytest_collection(self) -> None:
        """Listen to what runs while modules are imported: its results are not made again."""
        package = f"{self.folder}/"

        def called(frame: Any, event: str, _: Any) -> None:
            name = frame.f_code.co_filename
            if event == "call" and name.startswith(package):
                self.at_import.add(f"{name} {frame.f_code.co_firstlineno}")

        sys.setprofile(called)

    def pytest_collection_finish(self) -> None:
        sys.setprofile(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        for file in {file for _, file, *_ in self.work}:  # some are imported when they are needed
            parts = Path(file).with_suffix("").parts[1:]
            importlib.import_module(".".join(parts))
        functions: dict[str, list[FunctionType]] = {}
        gc.unfreeze()  # what is frozen is not listed
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                functions.setdefault(found.__code__.co_filename, []).append(found)
        gc.freeze()  # forks share what they do not write
        order, alone = Order(), len(os.listdir("/proc/self/task")) == 1
        while handed := os.read(self.numbers, 4):
            number = int.from_bytes(handed, "big")
            if not alone:
                os.write(self.put, handed)
                continue
            key, file, tree, tests = self.work[number]
            path = self.folder / file
            codes = changed_codes(path, tree(), self.at_import)
            changed = [
                (function, codes[function.__code__])
                for function in functions.get(str(path), [])
                if codes is not None and function.__code__ in codes
            ]
            if codes is None or not changed:
                os.write(self.put, handed)
                continue
            tests = order.sort(file, [test for test in tests if test[0] in items])
            verdict, killer = self.meet(changed, items, tests)
            while verdict == "killed" and not self.passes(items, tests, killer):
                tests = [test for test in tests if killer not in (None, test[0])]
                verdict, killer = self.meet(changed, items, tests)
            order.note(file, killer)
            write_verdict(self.verdicts, key, verdict, killer)
            if number % 50 == 49:
                print(f"{number + 1} of {len(self.work)}", flush=True, file=sys.__stdout__)
        return True

    def meet(
        self,
        changed: list[tuple[FunctionType, CodeType]],
        known: dict[str, Any],
        tests: list[tuple[str, float]],
    ) -> tuple[str, str | None]:
        """Whether one of the tests fails with the changed code, and which."""
        if not tests:
            return "survived", None
        items = [known[name] for name, _ in tests]
        note = self.folder / "killer"
        note.unlink(missing_ok=True)

        def try_all() -> int:
            for function, code in changed:
                function.__code__ = code
            forget_results()
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    note.write_text(self.failed)
                    return 1
            return 0

        limit = 20 + PATIENCE * sum(taken for _, taken in tests)
        verdict = "survived" if forked(try_all, limit) == 0 else "killed"
        return verdict, note.read_text() if note.exists() else None

    def passes(
        self, known: dict[str, Any], tests: list[tuple[str, float]], killer: str | None
    ) -> bool:
        """Whether a test, or all where none is known to have failed, passes in a fork without a
        change: one that fails there anyway kills nothing."""
        asked = tuple(test for test in tests if killer in (None, test[0]))
        if asked not in self.unchanged:
            self.unchanged[asked] = self.meet([], known, list(asked))[0] == "survived"
        return self.unchanged[asked]


def changed_codes(path: Path, changed: ast.Module, at_import: set[str]) -> dict[Any, Any] | None:
    """The changed code of every function by its code as it is; None where modules or classes are
    changed, or what runs while they are imported."""
    source = path.read_text(encoding="utf-8")
    before = compile(source, str(path), "exec", dont_inherit=True)
    after = compile(ast.fix_missing_locations(changed), str(path), "exec", dont_inherit=True)
    out: dict[Any, Any] = {}

    def compare(old: Any, new: Any) -> bool:
        inner = [code for code in old.co_consts if isinstance(code, CodeType)]
        other = [code for code in new.co_consts if isinstance(code, CodeType)]
        own = [
            code.replace(co_consts=tuple(v for v in code.co_consts if not isinstance(v, CodeType)))
            for code in (old, new)
        ]
        if len(inner) != len(other):
            return False
        if own[0] != own[1] and (
            not old.co_flags & inspect.CO_OPTIMIZED or f"{path} {old.co_firstlineno}" in at_import
        ):
            return False
        if old != new:
            out[old] = new
        return all(compare(a, b) for a, b in zip(inner, other, strict=True))

    return out if compare(before, after) and len(out) > 1 else None


def forget_results() -> None:
    """Clear the caches of the package's functions, and what JAX traced: a program that an earlier
    test compiled calls no function."""
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    for name, module in list(sys.modules.items()):
        if name.startswith("lastiterate"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def meet_files(work: list[Work], others: int, folder: Path, verdicts: Path) -> None:
    """Test the mutants of modules and classes one by one: the file is changed, and every run
    imports it."""
    files = sorted({name.split("::")[0] for *_, tests in work for name, _ in tests})
    forked(lambda: pytest_on(folder, files, [], "--collect-only"), 600)  # leaves byte code behind
    order, unchanged = Order(), dict[tuple[tuple[str, float], ...], bool]()

    def passes(file: str, tests: list[tuple[str, float]]) -> bool:
        """Whether tests pass without a change: those that fail anyway kill nothing."""
        if tuple(tests) not in unchanged:
            source = (folder / file).read_text(encoding="utf-8")
            unchanged[tuple(tests)] = run_tests(folder, file, source, tests)[0] == "survived"
        return unchanged[tuple(tests)]

    while handed := os.read(others, 4):
        number = int.from_bytes(handed, "big")
        key, file, tree, tests = work[number]
        source, tests = ast.unparse(tree()), order.sort(file, tests)
        verdict, killer = run_tests(folder, file, source, tests)
        while verdict == "killed" and not passes(
            file, [test for test in tests if killer in (None, test[0])]
        ):
            tests = [test for test in tests if killer not in (None, test[0])]
            verdict, killer = run_tests(folder, file, source, tests)
        order.note(file, killer)
        write_verdict(verdicts, key, verdict, killer)
        if number % 10 == 9:
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
