"""Every upper row about batches against the enumerated law of small drawn runs.

20 runs of each row; 1,000 in the exhaustive tier (minutes).
"""

import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import get_args
from zlib import crc32

import numpy as np
import pytest

from lastiterate.run.batching import Batching
from lastiterate.testing.exact_distributions import EPSILONS, draw_small_run, exact_deltas
from oracles.drawn import about, uppers
from tiers import size

DRAWS = size(20, 1000, "DRAWS")
SLOW = {"poisson-rdp", "poisson-pld", "restarted-poisson-pld"}
"""Theorems that take a third of a second each, of which 5 runs are drawn in ``make test``;
test_poisson and test_restarted have laws of their own."""
GOLDEN = Path(__file__).parents[1] / "golden" / "theorems.toml"
KNOWN = tomllib.loads(GOLDEN.read_text())


@pytest.mark.parametrize("kind", get_args(Batching), ids=lambda kind: kind.__name__)
def test_no_bound_lies_below_the_exact_law(kind):
    rng, met, near = (
        np.random.default_rng(crc32(kind.__name__.encode())),
        Counter(),
        defaultdict(float),
    )
    names = about(kind)
    needed = {name: min(DRAWS, 5) if name in SLOW and DRAWS <= 50 else DRAWS for name in names}
    while any(met[name] < count for name, count in needed.items()):
        run, slopes, bends = draw_small_run(kind, rng)
        found = list(uppers(run, bends, lambda name: met[name] < needed.get(name, DRAWS)))
        truth = exact_deltas(run, slopes, bends) if found else None
        if truth is None:
            continue
        for name, curve in found:
            met[name] += 1
            for epsilon, true in zip(EPSILONS, truth, strict=True):
                bound = curve.delta(epsilon)
                assert bound >= true * (1 - 5e-4) - 1e-7, (name, run, slopes, bends, epsilon)
                near[name] = max(near[name], true / bound if true > 1e-3 else 0.0)
    attained = {name for name in KNOWN if kind.__name__ in KNOWN[name].get("attained", ())}
    assert attained <= names and all(near[name] > 0.95 for name in attained), near
