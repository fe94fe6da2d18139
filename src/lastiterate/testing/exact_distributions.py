"""Exact distributions of the last iterate on explicit losses, by following what the trainer executes
record by record.

One dimension; record i has the gradient ``slopes[i] + bends[i] theta``. A step divides the sum of
its batch's gradients by the public number, adds the ridge and the noise, and moves. Given the
batches both laws are Gaussian; secret batches are enumerated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
from scipy.special import ndtr

from lastiterate.run.public_blocks import PublicBlocks


def gaussian(steps, batches, sums, ridge, start):
    """Mean and variance of the last iterate for fixed batches (lists of records, one for every
    step).

    ``steps``: step size and noise of each; ``sums``: a batch's mean slope and curvature.
    """
    mean, variance = 0.0, start**2
    for (eta, std), batch in zip(steps, batches, strict=True):
        slope, bend = sums(tuple(batch))
        factor = 1 - eta * (bend + ridge)
        mean = factor * mean - eta * slope
        variance = factor**2 * variance + (eta * std) ** 2
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
        subsets = [
            [i for i in records if taken[i]] for taken in itertools.product((0, 1), repeat=n)
        ]
        q = run.batching.rate
        for batches in itertools.product(subsets, repeat=steps):
            drawn = sum(map(len, batches))
            yield q**drawn * (1 - q) ** (n * steps - drawn), list(batches)
    elif isinstance(run.batching, PublicBlocks):
        held = run.batching.assign_blocks(n)
        parts = [[i for i in records if held[i] == part] for part in range(run.blocks)]
        yield 1.0, [parts[step % len(parts)] for step in range(steps)]
    else:
        subsets = [list(part) for part in itertools.combinations(records, run.batching.size)]
        for batches in itertools.product(subsets, repeat=steps):
            yield len(subsets) ** -steps, list(batches)


def law(run, slopes, bends, ridge):
    """The law of the last iterate: (weight, mean, variance) of every Gaussian in the mixture."""
    steps = [*zip(map(float, run.step_sizes), map(float, run.noise_stds), strict=True)]
    divisor, start = run.divisor, getattr(run.start, "std", 0.0)

    @cache
    def sums(batch):
        return sum(slopes[i] for i in batch) / divisor, sum(bends[i] for i in batch) / divisor

    found: Counter[tuple[float, float]] = Counter()
    for chance, batches in schedules(run):
        mean, variance = gaussian(steps, batches, sums, ridge, start)
        found[round(mean, 12), round(variance, 12)] += chance  # pyright: ignore[reportArgumentType]
    return [(chance, mean, variance) for (mean, variance), chance in found.items()]


def deltas(epsilons, p, q, points=6001):
    """The larger of both directions of the hockey-stick at every epsilon.

    The masses of where one density exceeds the other are exact; their ends are interpolated between
    ``points``, and an end that is off by d costs d^2.
    """
    (_, means, stds), sides = parts([*p, *q]), [parts(side) for side in (p, q)]
    x = np.linspace(min(means) - 10 * max(stds), max(means) + 10 * max(stds), points)
    one, two = (
        sum(w * np.exp(-(((x - m) / s) ** 2) / 2) / s for w, m, s in zip(*side, strict=True))
        for side in sides
    )
    return [
        max(
            excess(math.exp(e), x, one, two, *sides), excess(math.exp(e), x, two, one, *sides[::-1])
        )
        for e in epsilons
    ]


def parts(side):
    """Weights, means and standard deviations of a mixture."""
    weights, means, variances = np.array(side).T
    return weights, means, np.sqrt(variances)


def excess(level, x, one, two, p, q):
    """P(A) - level Q(A) of the set where the density of ``p`` is the larger; ``one``, ``two``: both
    at the points x."""
    above = one - level * two
    inside = above > 1e-14 * one
    k = np.flatnonzero(inside[1:] != inside[:-1])
    fall = above[k] - above[k + 1]
    ends = x[k] + (x[k + 1] - x[k]) * np.clip(above[k] / np.where(fall == 0, 1.0, fall), 0.0, 1.0)
    ends = np.concatenate([[-np.inf] * int(inside[0]), ends, [np.inf] * int(inside[-1])])
    return float(
        (between(ends[::2], ends[1::2], *p) - level * between(ends[::2], ends[1::2], *q)).sum()
    )


def between(low, high, weights, means, stds):
    """A mixture's mass of intervals, by the tail that is the smaller: a large level may stand
    before it."""
    a, b = ((ends[:, None] - means) / stds for ends in (low, high))
    return np.where(a > 0, ndtr(-a) - ndtr(-b), ndtr(b) - ndtr(a)) @ weights


def exact_mu(curvature, eta, std, shifts, start=0.0):
    """mu of the pair theta <- (1 - eta h) theta + eta shift + eta std N(0, 1), with shift 0 on the
    neighbour.

    ``curvature``: one number, or one for each step; ``start``: standard deviation of a Gaussian
    start.
    """
    mean, variance = 0.0, start**2
    for step, noise, shift, bend in zip(
        eta, std, shifts, np.broadcast_to(curvature, len(eta)), strict=True
    ):
        factor = 1 - step * bend
        mean = factor * mean + step * shift
        variance = factor**2 * variance + (step * noise) ** 2
    return abs(mean) / np.sqrt(variance) if variance > 0 else (np.inf if mean else 0.0)
