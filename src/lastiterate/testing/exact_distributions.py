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
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
from scipy.special import ndtr

import lastiterate as li
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.plugin_batching import PublicBlocks
from lastiterate.run.updates import Plain
from lastiterate.theorems.theorem import Theorem


def gaussian(run, steps, batches, sums, ridge, start):
    """Mean and variance of the last iterate for fixed batches (lists of records, one for every
    step).

    ``steps``: step size and noise of each; ``sums``: a batch's mean slope and curvature.
    """
    if run.optimizer is not None or not run.decided_noise.independent:
        return _gaussian_by_rule(run, steps, batches, sums, ridge, start)
    mean, variance = 0.0, start**2
    for (eta, std), batch in zip(steps, batches, strict=True):
        slope, bend = sums(tuple(batch))
        factor = 1 - eta * (bend + ridge)
        mean = factor * mean - eta * slope
        variance = factor**2 * variance + (eta * std) ** 2
    return mean, variance


def _gaussian_by_rule(run, steps, batches, sums, ridge, start):
    """The same for a rule that remembers one number, by its own code, and for correlated noise: what
    the rule does to the iterate, to what it remembers, and to a pull, step by step."""
    rule = run.optimizer or Plain()
    begin = np.array([1.0, *(rule.init(1.0) or (0.0,))])
    mean, started, pulls = np.zeros(2), start * begin, np.zeros((2, 0))
    for k, ((eta, _), batch) in enumerate(zip(steps, batches, strict=True)):
        slope, bend = sums(tuple(batch))

        def move(theta, memory, pull, k=k, eta=eta, bend=bend):
            point = rule.point(theta, (memory,), k)
            direction, after = rule.update(pull + (bend + ridge) * point, (memory,), theta, k)
            return np.array([point - eta * direction, *(after or (0.0,))])

        linear = np.stack([move(1.0, 0.0, 0.0), move(0.0, 1.0, 0.0)], axis=1)
        pulled = move(0.0, 0.0, 1.0)
        mean, started = linear @ mean + slope * pulled, linear @ started
        pulls = np.append(linear @ pulls, pulled[:, None], axis=1)
    drawn = pulls[0] @ mix_noise(run, [std for _, std in steps])
    return mean[0], started[0] ** 2 + (drawn**2).sum()


def mix_noise(run, stds):
    """How much of every draw is in the noise of every step (steps, draws), by the recursion that
    ``Correlated`` describes."""
    noise = run.decided_noise
    if noise.independent:
        return np.diag(stds)
    entries, found, whitened = noise.entries, [], []
    for k in range(run.steps):
        whole = np.eye(run.steps)[k]
        for j in range(1, min(len(entries), k + 1)):
            whole = whole - entries[j] * whitened[k - j]
        whitened.append(whole)
        found.append(whole - (noise.decay * whitened[k - 1] if k else 0.0))
    return np.array(found) * stds


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
        mean, variance = gaussian(run, steps, batches, sums, ridge, start)
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


# Runs on quadratics, drawn at random: the last iterate is exactly Gaussian, however long they are.


def draw_loss(sensitivity, smooth, lowest, rng):
    """Constants of records whose Hessians lie in [lowest, smooth]."""
    if lowest < 0 or (lowest == 0 and rng.random() < 0.5):
        return li.KnownConstants(
            li.LossFacts(sensitivity=sensitivity, smooth=smooth, weak_convexity=-lowest)
        )
    return li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=smooth, strong=lowest))


def draw_quadratic_run(rng, batching):
    """A run, the Hessians of its records, and the edges of every regime: 1/smooth, 2/smooth, one
    step, batch = n."""
    smooth = float(rng.uniform(0.2, 3))
    concave = rng.uniform(-3, -1) if rng.random() < 0.3 else rng.uniform(-1, 1)
    lowest = float(rng.choice([smooth, 0.0, concave * smooth, rng.uniform(0.01, 1) * smooth]))
    n = int(rng.integers(1, 16))
    b = n if rng.random() < 0.1 else int(rng.integers(1, n + 1))
    steps = int(rng.choice([1, -(-n // b), rng.integers(1, 40)]))
    eta = float(rng.choice([2, 1, rng.uniform(0.01, 2), rng.uniform(0.01, 1)])) / smooth
    kind = rng.integers(4)
    schedule = li.Constant(eta) if kind < 2 else li.InverseDecay(1 / (2 * eta), abs(lowest))
    if kind == 3:
        schedule = li.StepSchedule(tuple(map(float, rng.uniform(0.1, 1, steps) * eta)))
    sigma = float(rng.uniform(0.1, 1))
    noise = [
        li.Langevin(sigma),
        li.GradientNoise(sigma),
        li.GradientNoise(tuple(map(float, rng.uniform(0.1, 1, steps)))),
    ]
    gibbs = (
        li.GaussianStart(math.sqrt(2 * sigma**2 / lowest)) if lowest > 0 else li.GaussianStart(0.5)
    )
    run = li.Run(
        n=n,
        steps=steps,
        step_size=schedule,
        noise=noise[0] if rng.random() < 0.6 else noise[int(rng.integers(1, 3))],
        batching=batching(b),
        start=gibbs if rng.random() < 0.5 else li.FixedStart(),
        adjacency=cast(Adjacency, str(rng.choice(["zero-out", "replace-one"]))),
        loss=draw_loss(float(rng.uniform(0.5, 3)), smooth, lowest, rng),
    )
    one = float(rng.choice([lowest, smooth, rng.uniform(lowest, smooth)]))
    return run, np.full(n, one) if rng.random() < 0.5 else rng.uniform(lowest, smooth, n)


def exact_mu_of(run, curvatures, place):
    """mu of a record in block ``place`` that pulls with its full sensitivity, ``curvatures`` one
    for each block."""
    etas = run.step_sizes
    stds = run.noise_stds
    block = np.arange(run.steps) % run.blocks
    pull = run.facts().sensitivity.value / run.divisor * (block == place)
    start = run.start.std if isinstance(run.start, li.GaussianStart) else 0.0
    return exact_mu(np.asarray(curvatures)[block], etas, stds, pull, start)


def block_curvatures(run, hessians):
    """The curvature of each block: sums over its records, divided by the public number."""
    size = run.n if isinstance(run.batching, li.FullBatch) else run.batching.size
    return [hessians[k * size : (k + 1) * size].sum() / run.divisor for k in range(run.blocks)]


def weaken(run, rng):
    """(what, run): each is no more private than ``run``, as far as its constants say."""
    facts = run.loss.constants
    given = {
        name: getattr(facts, name).value
        for name in ("sensitivity", "smooth", "strong", "weak_convexity")
        if getattr(facts, name) is not None
    }
    more = {"sensitivity": given["sensitivity"] * 1.7}
    yield "sensitivity", replace(run, loss=li.KnownConstants(li.LossFacts(**given | more)))
    if run.start == li.FixedStart():
        match run.noise:
            case li.Langevin(sigma):
                yield "noise", replace(run, noise=li.Langevin(sigma / 1.7))
            case li.GradientNoise(std):
                less = tuple(x / 1.7 for x in std) if isinstance(std, tuple) else std / 1.7
                yield "noise", replace(run, noise=li.GradientNoise(less))
    if given.get("strong"):
        yield (
            "curvature",
            replace(
                run,
                loss=li.KnownConstants(li.LossFacts(**given | {"strong": given["strong"] * 0.6})),
            ),
        )
    if given.get("weak_convexity"):
        less = {"weak_convexity": given["weak_convexity"] * 1.3}
        yield "convexity", replace(run, loss=li.KnownConstants(li.LossFacts(**given | less)))
    yield (
        "smoothness",
        replace(
            run, loss=li.KnownConstants(li.LossFacts(**given | {"smooth": given["smooth"] * 1.2}))
        ),
    )
    whole = isinstance(run.batching, li.FullBatch) or run.n % run.batching.size == 0
    if (
        run.constant and whole
    ):  # otherwise another step may hide more than it adds, a short block among them
        yield "steps", replace(run, steps=run.steps + int(rng.integers(1, 20)))
    if isinstance(run.domain, li.domains.Ball):
        yield "domain", replace(run, domain=li.domains.Ball(run.domain.radius * 1.3))
        yield "no domain", replace(run, domain=li.domains.Everywhere())
    if isinstance(run.batching, li.FullBatch) and run.n > 1:
        yield "records", replace(run, n=run.n - 1)


CONSTANTS = {
    "sensitivity": "sensitivity",
    "curvature": "strong",
    "convexity": "weak_convexity",
    "smoothness": "smooth",
}
"""The constant of the loss that each weaker run changes, where it changes one."""


# Small runs of every batching, drawn at random, with the exact distribution of the last iterate on
# both neighbours.
#
# One dimension, a handful of records with slopes and curvatures of their own, every secret draw
# enumerated. Neighbours differ in the slope of the first record by the whole sensitivity; the others'
# slopes show where those are read.

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


def draw_small_run(kind, rng):
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
