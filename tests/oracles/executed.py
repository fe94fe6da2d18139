"""Exact laws of the last iterate on explicit losses, by following what the trainer executes record by record.

One dimension; record i has the gradient ``slopes[i] + bends[i] theta``. A step divides the sum of its batch's gradients
by the public number, adds the ridge and the noise, and moves. Given the batches both laws are Gaussian; secret batches
are enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np


def gaussian(run, batches, slopes, bends, ridge):
    """Mean and variance of the last iterate for fixed batches (lists of records, one for every step)."""
    start = getattr(run.start, "std", 0.0)
    mean, variance = 0.0, start**2
    for step, batch in enumerate(batches):
        eta, std = float(run.step_sizes[step]), float(run.noise_stds[step])
        bend = sum(bends[i] for i in batch) / run.divisor + ridge
        slope = sum(slopes[i] for i in batch) / run.divisor
        mean = (1 - eta * bend) * mean - eta * slope
        variance = (1 - eta * bend) ** 2 * variance + (eta * std) ** 2
    return mean, variance


def blocks_of(order, size):
    return [order[k : k + size] for k in range(0, len(order), size)]


def schedules(run):
    """(probability, batches) for every way in which the secret draws can fall out."""
    n, steps, kind = run.n, run.steps, type(run.batching).__name__
    records = list(range(n))
    if kind == "FullBatch":
        yield 1.0, [records] * steps
    elif kind == "Cyclic":
        parts = blocks_of(records, run.batching.size)
        yield 1.0, [parts[step % len(parts)] for step in range(steps)]
    elif kind == "Permuted":
        for order in itertools.permutations(records):
            parts = blocks_of(order, run.batching.size)
            yield 1 / math.factorial(n), [parts[step % len(parts)] for step in range(steps)]
    elif kind == "BallsInBins":
        for bins in itertools.product(range(run.blocks), repeat=n):
            parts = [[i for i in records if bins[i] == part] for part in range(run.blocks)]
            yield run.blocks**-n, [parts[step % len(parts)] for step in range(steps)]
    elif kind == "Reshuffled":
        passes = -(-steps // run.blocks)
        orders = [blocks_of(order, run.batching.size) for order in itertools.permutations(records)]
        for chosen in itertools.product(orders, repeat=passes):
            yield len(orders) ** -passes, [part for parts in chosen for part in parts][:steps]
    elif kind == "RandomAllocation":
        passes = -(-steps // run.blocks)
        chosen = [
            [[i for i in records if bins[i] == part] for part in range(run.blocks)]
            for bins in itertools.product(range(run.blocks), repeat=n)
        ]
        for passed in itertools.product(chosen, repeat=passes):
            yield len(chosen) ** -passes, [part for parts in passed for part in parts][:steps]
    elif kind == "Poisson":
        subsets = [[i for i in records if taken[i]] for taken in itertools.product((0, 1), repeat=n)]
        q = run.batching.rate
        for batches in itertools.product(subsets, repeat=steps):
            drawn = sum(map(len, batches))
            yield q**drawn * (1 - q) ** (n * steps - drawn), list(batches)
    else:
        subsets = [list(part) for part in itertools.combinations(records, run.batching.size)]
        for batches in itertools.product(subsets, repeat=steps):
            yield len(subsets) ** -steps, list(batches)


def law(run, slopes, bends, ridge):
    """The law of the last iterate: (weight, mean, variance) of every Gaussian in the mixture."""
    found = Counter()
    for chance, batches in schedules(run):
        mean, variance = gaussian(run, batches, slopes, bends, ridge)
        found[round(mean, 12), round(variance, 12)] += chance
    return [(chance, mean, variance) for (mean, variance), chance in found.items()]


def deltas(epsilons, p, q, points=60_001):
    """The larger of both directions of the hockey-stick at every epsilon, by quadrature."""
    stds = [math.sqrt(variance) for *_, variance in (*p, *q)]
    means = [mean for _, mean, _ in (*p, *q)]
    x = np.linspace(min(means) - 10 * max(stds), max(means) + 10 * max(stds), points)
    one, two = (
        sum(w * np.exp(-((x - m) ** 2) / (2 * v)) / math.sqrt(2 * math.pi * v) for w, m, v in side) for side in (p, q)
    )
    h = x[1] - x[0]
    return [
        max(np.maximum(one - math.exp(e) * two, 0).sum(), np.maximum(two - math.exp(e) * one, 0).sum()) * h
        for e in epsilons
    ]
