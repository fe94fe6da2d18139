"""Runs on quadratics, drawn at random: the last iterate is exactly Gaussian, however long they are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import numpy as np

import lastiterate as li
from lastiterate.run.adjacency import Adjacency
from lastiterate.testing.exact_distributions import exact_mu


def draw_loss(sensitivity, smooth, lowest, rng):
    """Constants of records whose Hessians lie in [lowest, smooth]."""
    if lowest < 0 or (lowest == 0 and rng.random() < 0.5):
        return li.KnownConstants(
            li.LossFacts(sensitivity=sensitivity, smooth=smooth, weak_convexity=-lowest)
        )
    return li.KnownConstants(li.LossFacts(sensitivity=sensitivity, smooth=smooth, strong=lowest))


def draw_run(rng, batching):
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
