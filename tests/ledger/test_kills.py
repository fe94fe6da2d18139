"""Processes that are killed, and two at once. The exhaustive tier kills 50 times."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.ledger import GaussianFilter, Ledger, Total
from tiers import size

KILLS = size(5, 50, "KILLS")
PAGE = 4096
CHILD = """
import sys
from pathlib import Path
from lastiterate.curves.gaussian import Gdp
from lastiterate.errors import InputError
from lastiterate.ledger import Ledger

ledger, first, last = Ledger(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
print("ready", flush=True)
for i in range(first, last):
    token = f"{i:032x}"
    try:
        ledger.reserve("a", Gdp(0.125), adjacency="zero-out", run="r" * 64, purpose="test", token=token)
        print("reserved", i, flush=True)
        states = {line.token: line.state for line in ledger.total().releases}
        ledger.touch(token) if states[token] != "released" else None
        ledger.release(token, "f" * 64)
    except InputError as error:
        print("refused" if "refuses" in str(error) else error, i, flush=True)
        continue
    print("released", i, flush=True)
"""


def child(ledger: Ledger, first: int, last: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(ledger.path), str(first), str(last)],
        stdout=subprocess.PIPE,
        text=True,
    )


def made(folder: Path, releases: int) -> Ledger:
    ledger = Ledger(folder / "l")
    ledger.add(
        "a", unit="record", adjacency="zero-out", filter=GaussianFilter(0.125 * releases**0.5)
    )
    return ledger


def test_a_killed_process_loses_and_doubles_nothing(tmp_path: Path) -> None:
    ledger, told, chance = made(tmp_path, 10_000), set[int](), random.Random(os.urandom(8))
    first = 0
    for _ in range(KILLS):
        running = child(ledger, first, first + 500)
        assert running.stdout is not None and running.stdout.readline() == "ready\n"
        time.sleep(chance.uniform(0.0, 0.15))
        running.send_signal(signal.SIGKILL)
        lines = [
            line.split()
            for line in running.communicate()[0].splitlines()
            if line.endswith(tuple("0123456789"))
        ]
        told |= {int(line[1]) for line in lines if line[0] == "released"}
        (tmp_path / "copy").write_bytes(
            ledger.path.read_bytes()
        )  # without the journal, if there is one
        if (copied := sound(Ledger(tmp_path / "copy"))) is not None:
            assert told <= {
                int(line.token, 16) for line in copied.releases if line.state == "released"
            }
        known = {int(release.token, 16): release for release in ledger.total().releases}
        assert ledger.verify() == () and {int(line[1]) for line in lines} <= set(known)
        assert all(known[i].state == "released" for i in told)
        assert ledger.total().spent[0] == len(known) * 2**34  # 0.125 squared in units of 2^-40
        first = max(
            [first, *known]
        )  # the last one is tried again under its own token: charged once
        if first in known and known[first].state == "released":
            first += 1
    print(f"{KILLS} kills, {len(told)} releases known to be made, {len(known)} charged")


def sound(ledger: Ledger) -> Total | None:
    """Return what a ledger says; ``None`` where it is found damaged, and then it takes no charge."""
    try:
        if ledger.verify() == ():
            return ledger.total()
    except InputError:
        pass
    with pytest.raises(InputError):
        ledger.reserve("a", Gdp(0.01), adjacency="zero-out", run="r" * 64, purpose="test")
    return None


def test_a_copy_from_the_middle_of_a_commit_is_before_it_behind_it_or_damaged(
    tmp_path: Path,
) -> None:
    """A commit writes the pages that it changed one by one: any of them may be missing where a
    process is killed."""
    ledger, chance, seen = made(tmp_path, 100), random.Random(5), set[str]()
    for i in range(12):
        ledger.reserve(
            "a",
            Gdp(0.125),
            adjacency="zero-out",
            run="r" * 64,
            purpose="t" * 199,
            token=f"{i:032x}",
        )
    for i, moved in enumerate([ledger.touch, ledger.cancel, ledger.touch, ledger.touch]):
        old, said = ledger.path.read_bytes(), ledger.total()
        moved(f"{i:032x}")
        ledger.reserve(
            "a", Gdp(0.125), adjacency="zero-out", run="r" * 64, purpose="t", token=f"{20 + i:032x}"
        )
        new = ledger.path.read_bytes()
        pages = range(0, len(new), PAGE)
        changed = [at for at in pages if old[at : at + PAGE] != new[at : at + PAGE]]
        written = [changed[:count] for count in range(len(changed) + 1)]
        written += [[at for at in changed if chance.random() < 0.5] for _ in range(10)]
        for some in written:
            content = bytearray(
                old.ljust(len(new), b"\0") if some and some[-1] >= len(old) else old
            )
            for at in some:
                content[at : at + PAGE] = new[at : at + PAGE]
            (tmp_path / "copy").write_bytes(content)
            copied = sound(Ledger(tmp_path / "copy"))
            assert copied in (None, said, ledger.total()), some
            seen.add("damaged" if copied is None else "old" if copied == said else "new")
    assert seen == {"damaged", "old", "new"}


def test_two_processes_share_one_budget(tmp_path: Path) -> None:
    ledger = made(tmp_path, 30)
    running = [child(ledger, first, first + 25) for first in (0, 1000)]
    lines = [line.split() for process in running for line in process.communicate()[0].splitlines()]
    said = [line[0] for line in lines]
    assert (said.count("released"), said.count("refused")) == (30, 20)
    assert ledger.verify() == () and ledger.total().left[0] == 0.0
