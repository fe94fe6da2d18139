"""Mutated certificates and model folders, many of them: each is refused in a sentence, or says what
its run says.

    python tools/fuzz_models.py [COUNT=100000] [SEED=from the clock]

Prints what breaks the rule and exits with 1. CI does 2,000 (tests/release/test_hostile.py).
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from oracles.json_mutations import mutated
from oracles.model_fuzz import certificate_outcome, folder_outcome, forge, short
from release.test_hostile import fitted


def main(count: int, seed: int) -> int:
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as home:
        folders = list(fitted(Path(home)).values())
        for index in range(count):
            rng, folder = random.Random(f"{seed}-{index}"), folders[index % len(folders)]
            changed = mutated((folder / "certificate.json").read_text(), rng)
            try:
                if index % 2:
                    found["folder: " + folder_outcome(folder, rng, Path(home) / "copy")] += 1
                elif short(changed):
                    found[
                        "certificate: "
                        + certificate_outcome(forge(changed), Path(home) / "copy.json")
                    ] += 1
            except Exception as error:
                print(
                    f"seed {seed}, number {index}, {folder.name}: {type(error).__name__}: "
                    f"{error}\n{changed[:4000]}"
                )
                return 1
    print(
        f"seed {seed}: " + ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
    )
    return 0


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*arguments[:1] or [100_000], *arguments[1:2] or [int(time.time())]))
