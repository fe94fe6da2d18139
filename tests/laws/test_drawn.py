"""Every upper row about batches against the enumerated law of small drawn runs.

30 runs of each row; 1,000 in the exhaustive tier (minutes).
"""

from collections import Counter, defaultdict
from zlib import crc32

import numpy as np
import pytest

import lastiterate as li
from oracles.drawn import EPSILONS, draw, exact, uppers
from tiers import size

DRAWS = size(30, 1000, "DRAWS")
ROWS = {
    li.FullBatch: {
        "shifted-interpolation",
        "pabi-convex",
        "cyclic-weakly-convex",
        "langevin-linear",
    },
    li.Cyclic: {"shifted-interpolation", "cyclic-weakly-convex"},
    li.Permuted: {"shifted-interpolation-permuted", "sgld-strongly-convex-batch"},
    li.Reshuffled: {"shifted-interpolation-reshuffled"},
    li.FixedSize: {"fixed-size-amplified", "restarted-fixed-size", "delayed-shifts-fixed-size"},
    li.BallsInBins: {"shifted-interpolation-bins", "balls-in-bins-pld"},
    li.RandomAllocation: {
        "shifted-interpolation-allocated",
        "random-allocation-pld",
        "restarted-allocation-pld",
        "delayed-shifts-allocated",
    },
    li.Poisson: {"poisson-rdp", "poisson-pld", "restarted-poisson-pld", "delayed-shifts-poisson"},
}
SLOW = {"poisson-rdp", "poisson-pld", "restarted-poisson-pld"}
"""Rows that take a third of a second each, of which 5 runs are drawn in ``make test``; test_poisson
and test_restarted have laws of their own."""
FAR = {"poisson-rdp", "langevin-linear", "cyclic-weakly-convex"}
"""Rows that no quadratic attains."""


@pytest.mark.parametrize("kind", ROWS, ids=lambda kind: kind.__name__)
def test_no_bound_lies_below_the_exact_law(kind):
    rng, met, near = (
        np.random.default_rng(crc32(kind.__name__.encode())),
        Counter(),
        defaultdict(float),
    )
    needed = {name: min(DRAWS, 5) if name in SLOW and DRAWS <= 50 else DRAWS for name in ROWS[kind]}
    while any(met[name] < count for name, count in needed.items()):
        run, slopes, bends = draw(kind, rng)
        found = list(uppers(run, bends, lambda name: met[name] < needed.get(name, DRAWS)))
        truth = exact(run, slopes, bends) if found else None
        if truth is None:
            continue
        for name, curve in found:
            met[name] += 1
            for epsilon, true in zip(EPSILONS, truth, strict=True):
                bound = curve.delta(epsilon)
                assert bound >= true * (1 - 5e-4) - 1e-7, (name, run, slopes, bends, epsilon)
                near[name] = max(near[name], true / bound if true > 1e-3 else 0.0)
    assert all(near[name] > 0.95 for name in ROWS[kind] - FAR), near
