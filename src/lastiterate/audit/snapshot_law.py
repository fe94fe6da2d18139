"""The exact law of variance-reduced steps on squared error, up to the square of a small noise.

Their noise between snapshots is as large as the parameters have moved, which depends on earlier noise; where noise is
small that is how far they would have moved without. Given the batches the last iterate is Gaussian then. A sum in the
place of a difference, or a snapshot that is too old, stays within its clip and need not leak: they show here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

import numpy as np

from lastiterate.run.batching import Poisson
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import HuberRidge
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.run import Run
from lastiterate.run.starts import GaussianStart
from lastiterate.run.step_sizes import Steps

EVERY, STEPS, RATE, STEP = 2, 4, 0.3, 0.6
NORM, CLIP = 2.0, 20.0
"""Bounds on rows and residuals far above those of the made-up records, so that nothing is clipped."""
MULTIPLIER, SNAPSHOT = 2e-3, 0.1
"""Noise between snapshots, and at snapshots in units of it: both move parameters by some thousandths."""


def shrunk(run: Run, records: int) -> Run:
    """The run's schedule, ridge and intercept: two snapshots, each with one step after it."""
    eta = np.resize(run.step_sizes[:STEPS], STEPS)
    loss = HuberRidge(row_norm=NORM, residual_clip=CLIP, ridge=min(run.loss.ridge, 0.5),
                      intercept=min(getattr(run.loss, "intercept", 0.5), 1.0))
    start = GaussianStart(min(run.start.std, MULTIPLIER)) if run.start.std > 0 else run.start
    return replace(run, n=records, steps=STEPS, batching=Poisson(RATE), loss=loss, domain=Everywhere(), prox=None,
                   start=start, release="last", adjacency="zero-out", prelude=(), counts=(), calibration=None,
                   step_size=Steps(tuple((STEP * eta / eta.max()).tolist())), noise=NoiseMultiplier(MULTIPLIER),
                   method=replace(run.method, every=EVERY, snapshot=SNAPSHOT))


def mixture(run: Run, rows: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights (c,), means (c, p) and covariances (c, p, p) over all batches of the steps between snapshots."""
    every = range(len(rows))
    subsets = [list(one) for size in range(len(rows) + 1) for one in combinations(every, size)]
    components: list[tuple[float, np.ndarray, np.ndarray]] = []
    for batches in product(subsets, repeat=STEPS - STEPS // EVERY):
        taken = sum(map(len, batches))
        weight = RATE**taken * (1 - RATE) ** (len(rows) * len(batches) - taken)
        components.append((weight, *_gaussian(run, rows, target, iter(batches))))
    weights, means, spreads = zip(*components, strict=True)
    return np.array(weights), np.stack(means), np.stack(spreads)


def _gaussian(run: Run, rows: np.ndarray, target: np.ndarray,
              batches: Iterator[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the last iterate given the batches; the state is parameters w, snapshot s and its noisy
    mean gradient g, written out again on purpose."""
    n, p = rows.shape
    ridge, width = run.loss.ridge, float(np.hypot(NORM, run.loss.intercept))  # pyright: ignore
    eye, none = np.eye(p), np.zeros((p, p))
    mean, spread = np.zeros(3 * p), np.zeros((3 * p, 3 * p))
    spread[:p, :p] = run.start.std**2 * eye
    for k, eta in enumerate(run.step_sizes):
        if k % EVERY == 0:
            bend, push = rows.T @ rows / n, rows.T @ target / n
            take = np.block([[eye, none, none], [eye, none, none], [bend, none, none]])
            mean = take @ mean - np.concatenate((0 * push, 0 * push, push))
            spread = take @ spread @ take.T
            spread[2 * p:, 2 * p:] += (SNAPSHOT * MULTIPLIER * CLIP * width / n) ** 2 * eye
            moved, noise = none, 0.0
        else:
            batch = rows[next(batches)]
            moved, size = batch.T @ batch / (RATE * n), float(np.linalg.norm(mean[:p] - mean[p:2 * p]))
            noise = MULTIPLIER * min(2 * CLIP * width, width**2 * size) / (RATE * n)
        step = np.eye(3 * p)
        step[:p] = np.hstack(((1 - eta * ridge) * eye - eta * moved, eta * moved, -eta * eye))
        mean, spread = step @ mean, step @ spread @ step.T
        spread[:p, :p] += (eta * noise) ** 2 * eye
    return mean[:p], spread[:p, :p]
