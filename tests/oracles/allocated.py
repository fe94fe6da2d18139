"""Exact curves of one or two passes over two or three fresh secret blocks, by quadrature; exact
last iterates."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
from scipy.special import ndtr


def ratio(z, blocks, reached, nodes):
    """The likelihood ratio of one pass but for its last block, and its weights under Q: values of 1
    - reached / blocks plus the first blocks' part of the mean."""
    x = np.linspace(
        -10, 10, nodes
    )  # the trapezoid rule is exact to rounding for a smooth integrand
    weights = np.exp(-x * x / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    one = np.exp(x / z - 1 / (2 * z * z)) / blocks
    values, total = np.array([1 - reached / blocks]), np.ones(1)
    for _ in range(reached - 1):
        values, total = np.add.outer(values, one).ravel(), np.multiply.outer(total, weights).ravel()
    return values, total


def whole(z, blocks, reached, nodes):
    """All values of a pass's likelihood ratio on a grid, and their weights under Q."""
    values, total = ratio(z, blocks, reached, nodes)
    last, weights = ratio(z, blocks, 2, nodes)
    last = last - (1 - 2 / blocks)
    return np.add.outer(values, last).ravel(), np.multiply.outer(total, weights).ravel()


def put(level, z, share, values):
    """E[(level - values - share Y)_+], Y = exp(x / z - 1 / (2 z^2)) with x normal."""
    left = (level - values) / share
    safe = np.where(left > 0, left, 1.0)
    at = np.log(safe) * z + 1 / (2 * z)
    return share * np.where(left > 0, left * ndtr(at) - ndtr(at - 1 / z), 0.0)


def deltas(epsilon, passes, nodes=201):
    """Both orders' deltas of ``passes`` (noise multiplier, blocks, blocks reached), of which there
    are one or two."""
    z, blocks, reached = passes[0]
    values, weights = ratio(z, blocks, reached, nodes)
    before, shares = whole(*passes[1], 81) if len(passes) == 2 else (np.ones(1), np.ones(1))
    found = []
    for level in (epsilon, -epsilon):
        each = [
            y * (weights * put(math.exp(level) / y, z, 1 / blocks, values)).sum() for y in before
        ]
        found.append(float((shares * each).sum()))
    return found[0] + 1 - math.exp(epsilon), math.exp(epsilon) * found[1]


def exact_delta(run, curvature, epsilons, most=math.inf):
    """The last iterate's delta for records of one curvature but a linear one, that is removed; the
    others' draws are seen, its own are not."""
    blocks, eta, std = run.blocks, run.first_step, run.first_noise
    passes, unit = -(-run.steps // blocks), run.facts().sensitivity.value / run.divisor
    single = Counter(
        tuple(np.bincount(bins, minlength=blocks)) if bins else (0,) * blocks
        for bins in itertools.product(range(blocks), repeat=run.n - 1)
    )
    places = list(itertools.product(range(blocks), repeat=passes))
    total = np.zeros(len(epsilons))
    for held in itertools.product(single, repeat=passes):
        if max(map(max, held)) > most:
            continue
        chance = math.prod(single[h] for h in held) / blocks ** ((run.n - 1) * passes)
        factors = 1 - eta * curvature * np.concatenate(held)[: run.steps] / run.divisor
        later = np.append(np.cumprod(factors[::-1])[::-1][1:], 1.0)
        variance = ((eta * std * later) ** 2).sum()
        means = [
            sum(
                eta * unit * later[e * blocks + j]
                for e, j in enumerate(place)
                if e * blocks + j < run.steps
            )
            for place in places
        ]
        x = np.linspace(
            min(0, *means) - 10 * math.sqrt(variance),
            max(0, *means) + 10 * math.sqrt(variance),
            1501,
        )
        p = np.mean([np.exp(-((x - m) ** 2) / (2 * variance)) for m in means], axis=0)
        q, width = (
            np.exp(-(x**2) / (2 * variance)),
            (x[1] - x[0]) / math.sqrt(2 * math.pi * variance),
        )
        total += (
            chance
            * width
            * np.array(
                [
                    max(
                        np.maximum(p - math.exp(e) * q, 0).sum(),
                        np.maximum(q - math.exp(e) * p, 0).sum(),
                    )
                    for e in epsilons
                ]
            )
        )
    return total
