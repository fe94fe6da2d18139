"""Damaged schemas, tables, IDX files, archives and ledgers: each is refused in a sentence, or read
within its bounds.

    python tools/fuzz_files.py [COUNT=100000] [SEED=from the clock]

Prints what breaks the rule and exits with 1. CI does about 3,000 (tests/data/test_hostile.py,
tests/ledger/test_hostile.py). Certificates and model folders: ``tools/fuzz_models.py``; runs:
``tools/fuzz_runs.py``.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ledger.test_hostile import made, mutant
from ledger.test_hostile import outcome as ledger_outcome
from oracles.file_fuzz import KINDS, damaged, outcome


def main(count: int, seed: int) -> int:
    found: Counter[str] = Counter()
    began, names = time.perf_counter(), [*KINDS, "ledger"]
    with tempfile.TemporaryDirectory() as home:
        whole = made(Path(home) / "whole")
        honest = ledger_outcome(whole, Path(home) / "ledger")[1]
        (Path(home) / "data").mkdir()
        for index in range(count):
            rng, name = random.Random(f"{seed}-{index}"), names[index % len(names)]
            content = mutant(whole, rng) if name == "ledger" else damaged(KINDS[name], rng)
            try:
                what = (
                    ledger_outcome(content, Path(home) / "ledger", honest)[0]
                    if name == "ledger"
                    else outcome(KINDS[name], content, Path(home) / "data")
                )
            except Exception as error:
                print(
                    f"seed {seed}, number {index}, {name}: {type(error).__name__}: "
                    f"{error}\n{content[:4000]!r}"
                )
                return 1
            found[f"{name}: {what}"] += 1
    print(
        f"seed {seed}, {time.perf_counter() - began:.0f} s: "
        + ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
    )
    return 0


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*arguments[:1] or [100_000], *arguments[1:2] or [int(time.time())]))
