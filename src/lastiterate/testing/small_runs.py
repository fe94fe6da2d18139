"""Small runs of every batching, drawn at random, with the exact distribution of the last iterate on
both neighbours.

One dimension, a handful of records with slopes and curvatures of their own, every secret draw
enumerated. Neighbours differ in the slope of the first record by the whole sensitivity; the others'
slopes show where those are read.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np

import lastiterate as li
from lastiterate.run.adjacency import Adjacency
from lastiterate.testing.exact_distributions import deltas, law
from lastiterate.theorems.theorem import Theorem

EPSILONS = (0.0, 0.4, 1.0, 2.5)
MOST_WAYS, MOST_POINTS = 5_000, 3_000_000
INDEPENDENT = (li.BallsInBins, li.RandomAllocation, li.Poisson)


def needs_absence(theorem: Theorem) -> bool:
    """Whether its replace-one goes through the record's absence: the record then has no
    curvature."""
    return "not_replace_one" in {asked.name for asked in theorem.assumptions}


def count_ways(run: li.Run) -> float:
    """In how many ways the secret draws can fall out."""
    n, blocks, steps = run.n, run.blocks, run.steps
    passes = -(-steps // blocks)
    match run.batching:
        case li.Poisson():
            return 2.0 ** (n * steps)
        case li.FixedSize(size):
            return float(math.comb(n, size)) ** steps
        case li.Permuted():
            return math.factorial(n)
        case li.Reshuffled():
            return float(math.factorial(n)) ** passes
        case li.BallsInBins():
            return float(blocks) ** n
        case li.RandomAllocation():
            return float(blocks) ** (n * passes)
    return 1.0


def draw_batching(kind, rng, n):
    if kind is li.FullBatch:
        return kind()
    if kind is li.Poisson:
        return li.Poisson(float(rng.uniform(0.1, 0.9)))
    return kind(int(rng.integers(1, n + 1)))


def draw_run(kind, rng):
    """A run, and the slopes and curvatures of its records under both neighbours."""
    while True:
        n, steps = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        smooth = float(rng.uniform(0.2, 2))
        lowest = float(
            rng.choice(
                [
                    0.0,
                    smooth,
                    rng.uniform(0, smooth),
                    rng.uniform(-0.5, 0) * smooth,
                    rng.uniform(-3, -1) * smooth,
                ]
            )
        )
        sensitivity = float(rng.uniform(0.5, 2))
        top = float(rng.choice([1.0, 1.999, rng.uniform(0.05, 2), rng.uniform(2, 3)])) / smooth
        varied = rng.random() < 0.4
        etas = rng.uniform(0.2, 1, steps) * top if varied else np.full(steps, top)
        std = float(rng.uniform(0.3, 2)) * sensitivity
        noise = li.Langevin(std) if rng.random() < 0.2 else li.GradientNoise(std)
        below = {"strong": lowest} if lowest >= 0 else {"weak_convexity": -lowest}
        adjacency = str(
            rng.choice(
                ["zero-out", "replace-one", "add-remove"]
                if kind is li.Poisson
                else ["zero-out", "zero-out", "replace-one"]
            )
        )
        absent = kind in INDEPENDENT and (adjacency != "replace-one" or rng.random() < 0.5)
        # an exchange of records that may be absent is one of gradients half as long as they are
        # apart
        single = absent and adjacency == "replace-one"
        stated = {"lipschitz": sensitivity / 2} if single else {"sensitivity": sensitivity}
        facts = li.LossFacts(smooth=smooth, **stated, **below)
        run = li.Run(
            n=n,
            steps=steps,
            step_size=li.StepSchedule(tuple(map(float, etas))) if varied else li.Constant(top),
            noise=noise,
            batching=draw_batching(kind, rng, n),
            loss=li.KnownConstants(facts),
            start=li.GaussianStart(float(rng.uniform(0.1, 2)))
            if rng.random() < 0.3
            else li.FixedStart(),
            adjacency=cast(Adjacency, adjacency),
        )
        if count_ways(run) <= MOST_WAYS:
            break
    bends = (
        rng.uniform(lowest, smooth, n)
        if rng.random() < 0.5
        else np.full(n, float(rng.choice([lowest, smooth])))
    )
    slopes = rng.normal(size=n) * float(rng.choice([0.0, 1.0]))
    if (
        kind is li.FixedSize
    ):  # another record may take the drawn one's place: all gradients differ by a bounded number
        bends[:], slopes = bends[0], np.clip(slopes, min(pulls(run)), max(pulls(run)))
    if absent:
        bends[0] = (
            # a record that may be absent has no curvature, the other ones' constants are what is
            # stated
            0.0
        )
    return run, slopes, bends


def pulls(run) -> tuple[float, float]:
    """The first record's slope under both neighbours: as far apart as the sensitivity allows."""
    most = run.facts().sensitivity.value
    return (most / 2, -most / 2) if run.adjacency == "replace-one" else (most, 0.0)


def exact_deltas(run, slopes, bends):
    """The larger delta of both orders at EPSILONS; ``None`` where the narrowest part needs too fine
    a grid."""
    sides = [law(run, np.append(pull, slopes[1:]), bends, 0.0) for pull in pulls(run)]
    means, variances = zip(
        *((mean, variance) for side in sides for _, mean, variance in side), strict=True
    )
    widest, narrowest = math.sqrt(max(variances)), math.sqrt(min(variances))
    points = max(
        6001, int(30 * (max(means) - min(means) + 20 * widest) / narrowest)
    )  # 30 in a standard deviation
    return deltas(EPSILONS, *sides, points=points) if points * len(means) <= MOST_POINTS else None
