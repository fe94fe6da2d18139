"""Mutated run descriptions, many of them: every one is refused in a sentence, or is a run.

    python tools/fuzz_runs.py [COUNT=100000] [SEED=from the clock]

Prints the first text that breaks the rule and exits with 1. CI does 2,000
(tests/run/test_bad_json.py).
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.description_fuzz import outcome, texts


def main(count: int, seed: int) -> int:
    found: Counter[str] = Counter()
    for index, text in enumerate(texts(count, seed)):
        try:
            found[outcome(text, account=index % 50 == 0)] += 1
        except Exception as error:
            print(f"seed {seed}, text {index}: {type(error).__name__}: {error}\n{text[:4000]}")
            return 1
    print(
        f"seed {seed}: " + ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
    )
    return 0


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*arguments[:1] or [100_000], *arguments[1:2] or [int(time.time())]))
