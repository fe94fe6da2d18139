"""Damaged schemas and data files, a law in small.

The exhaustive tier, and ``tools/fuzz_files.py``, try 100,000.
"""

import random
from collections import Counter
from pathlib import Path

import pytest

from oracles.file_fuzz import KINDS, damaged, outcome
from tiers import size

EACH = max(300, size(0, 100_000, "MUTANTS") // len(KINDS))


@pytest.mark.parametrize("name", KINDS)
def test_damaged_files_are_refused_or_lie_within_their_bounds(name: str, tmp_path: Path) -> None:
    kind, chance = KINDS[name], random.Random(31)
    assert outcome(kind, kind.whole, tmp_path) == "read"
    found = Counter(outcome(kind, damaged(kind, chance), tmp_path) for _ in range(EACH))
    assert found["refused"] > EACH / 20, found
