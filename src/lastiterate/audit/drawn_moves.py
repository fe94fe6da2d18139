"""How far a record moves a score, by the description: the sum of what it adds in the steps whose batches hold it.

Where every step is linear, a step that holds the record adds a number that the description says; which steps do is
drawn. Draws are written out again here, and so is their arithmetic: the accountant's mistakes are not to be shared.
Sums are put on a grid: a sum between two points of it is split between them so that its mean stays, and the variance
that splitting adds is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate.audit import trajectory
from lastiterate.run.batching import Batching, FixedSize, Poisson
from lastiterate.run.method import Descent
from lastiterate.run.run import Run

GRID = 2**14
LONGEST = 4096
"""Steps whose moves are followed one by one, at most."""
BEYOND = 32.2
"""A sum exceeds the grid with probability exp(-BEYOND) at most, by Bernstein's inequality; what does is counted."""
Choice = tuple[np.ndarray, np.ndarray]
"""One draw: what it may add, and with which probabilities; what is left of 1 adds nothing."""


@dataclass(frozen=True, eq=False)
class Moves:
    """``values`` >= 0 and their ``weights``, (c,) each, in units that mean nothing; ``variance``: what the grid has
    added to the sum's; ``lost``: probability that is not on it."""

    values: np.ndarray
    weights: np.ndarray
    variance: float = 0.0
    lost: float = 0.0


CERTAIN = Moves(np.ones(1), np.ones(1))
"""Of a record that is in the same steps of every run."""


def moves(run: Run, *, all_steps: bool) -> Moves | None:
    """The law of the sum; ``all_steps``: of the attack on all iterates, else on the last one.

    ``None`` where no line says what a step adds, or where steps move the score to both sides.
    """
    if run.batching.drawn == "never":
        return CERTAIN
    if type(run.method) is not Descent or run.steps > LONGEST or run.prelude or run.rows_per_record > 1:
        return None
    added = trajectory.weights(run, 0) if all_steps else added_to_last(run)
    added = added * (-1.0 if added.sum() < 0 else 1.0)
    if not np.isfinite(added).all() or added.max() <= 0 or added.min() < -1e-12 * added.max():
        return None
    return summed(choices(run, np.maximum(added, 0.0)))


def added_to_last(run: Run) -> np.ndarray:
    """By how much a gradient of 1 in step k, and nowhere else, lets the last iterate go against it; (T,)."""
    theta, rule = np.zeros(run.steps), run.rule
    memory = rule.init(theta)
    for k, step in enumerate(np.eye(run.steps)):
        point = rule.point(theta, memory, k)
        direction, memory = rule.update(run.loss.ridge * point - step, memory, theta, k)
        theta = point - float(run.step_sizes[k]) * direction
    return theta


def choices(run: Run, added: np.ndarray) -> list[Choice]:
    """The independent draws of one record: one for every step, for every pass, or one in all."""
    batching, blocks = run.batching, run.blocks
    if batching.drawn == "each step":
        share = np.array([_share(batching, run.n)])
        return [(added[k:k + 1], share) for k in range(run.steps)]
    passes = np.pad(added, (0, -run.steps % blocks)).reshape(-1, blocks)
    size = int(run.divisor)
    held = np.full(blocks, float(size))
    held[-1] = run.n - size * (blocks - 1)
    places = np.full(blocks, 1 / blocks) if batching.independent else held / run.n
    return [(row, places) for row in (passes.sum(0, keepdims=True) if batching.drawn == "once" else passes)]


def _share(batching: Batching, n: int) -> float:
    match batching:
        case Poisson(rate):
            return rate
        case FixedSize(size):
            return size / n
        case _:
            raise AssertionError(type(batching).__name__)  # no other draws in every step


def summed(drawn: list[Choice]) -> Moves:
    """The law of the sum of independent draws."""
    mean = sum(float(v @ p) for v, p in drawn)
    spread = sum(float(v**2 @ p) for v, p in drawn)
    most = max(float(v.max()) for v, _ in drawn)
    far = BEYOND * most / 3
    top = min(sum(float(v.max()) for v, _ in drawn), mean + far + math.sqrt(far**2 + 2 * BEYOND * spread))
    width = most / math.ceil(most * (GRID - 2) / top) if top > 0 else 1.0  # the largest addend lies on the grid
    mass, variance = np.zeros(math.ceil(top / width) + 2), 0.0
    mass[0] = 1.0
    for values, shares in drawn:
        after = (1 - shares.sum()) * mass
        for value, share in zip(values, shares, strict=True):
            low = math.floor(float(value) / width * (1 + 1e-12))
            rest = max(float(value) / width - low, 0.0)
            _shifted(after, mass, low, share * (1 - rest))
            _shifted(after, mass, low + 1, share * rest)
            variance += float(share) * rest * (1 - rest) * width**2
        mass = np.maximum(after, 0.0)
    kept = mass > 1e-18
    return Moves(np.flatnonzero(kept) * width, mass[kept], variance, max(0.0, 1 - float(mass[kept].sum())) + 1e-15)


def _shifted(onto: np.ndarray, mass: np.ndarray, by: int, weight: float) -> None:
    """Add so much of ``mass``, moved by so many points; what leaves the grid is lost."""
    if weight > 0 and by < mass.size:
        onto[by:] += weight * mass[:mass.size - by]
