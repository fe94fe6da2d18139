"""mu of the last iterate for a record whose place is drawn anew in every pass: groups of places, each at its worst.

The optimal shift allocation grows when a participation moves to a later step u of its pass with the shift
max_w s_w c_{w+1} ... c_u over the steps w that it stands for: the allocation of the later one, capped, serves the
earlier one. So places are grouped, each group counts with its last place, and delta is averaged over the groups. The
last passes, which matter most, get the finest groups; in all earlier passes the record participates at the very end.
Proof: docs/theorems/shifted-interpolation-reshuffled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np

from lastiterate.analysis.shift_allocation import allowance
from lastiterate.run.arrays import Array

MOST_ATOMS, FINEST, COARSER = 1024, 64, (8, 4)
"""Groups in all, in the last pass, and in the passes before it (the last entry holds for all earlier ones)."""


@dataclass(frozen=True)
class Group:
    """Places ``first`` to ``last`` of a pass and their probability; ``last`` < 0: it does not participate."""

    weight: float
    first: int
    last: int


def groups(weights: Array, reached: int, most: int, *, towards_end: bool) -> list[Group]:
    """At most ``most`` groups of the places 0 .. reached - 1, and the places that are not reached as one more."""
    share = np.geomspace(1, reached + 1, most + 1) - 1 if towards_end else np.linspace(0, reached, most + 1)
    from_end = range(reached + 1) if most >= reached else sorted({0, *np.round(share).astype(int).tolist(), reached})
    edges = [reached - place for place in reversed(from_end)]
    grouped = [Group(math.fsum(weights[a:b]), a, b - 1) for a, b in pairwise(edges)]
    if reached < weights.size:
        grouped.append(Group(math.fsum(weights[reached:]), 0, -1))
    return grouped


def tail_groups(weights: Array, steps: int, most_atoms: int = MOST_ATOMS) -> list[list[Group]]:
    """Groups of the last few passes, in the order of time; their product has about ``most_atoms`` elements."""
    blocks = weights.size
    passes = -(-steps // blocks)
    reached = steps - (passes - 1) * blocks
    tail = [groups(weights, reached, min(reached, FINEST, most_atoms), towards_end=True)]
    while len(tail) < passes:
        left = most_atoms // math.prod(map(len, tail))
        wanted = min(blocks, COARSER[min(len(tail), len(COARSER)) - 1], left)
        if wanted < 2:
            break
        tail.append(groups(weights, blocks, wanted, towards_end=False))
    return tail[::-1]


Stack = tuple[float, float, float, "Stack"] | None
"""Pools in order: log dS, log dX, cost of the pools below, the pools below."""


def _cost(log_shift: float, log_noise: float) -> float:
    exponent = 2 * log_shift - log_noise
    return math.exp(exponent) if exponent < 700 else math.inf


def _push(stack: Stack, log_shift: float, log_noise: float) -> Stack:
    """One more block, pooled with those before it while slopes do not increase."""
    while stack is not None and stack[0] - stack[1] >= log_shift - log_noise:
        log_shift, log_noise = _add(stack[0], log_shift), _add(stack[1], log_noise)
        stack = stack[3]
    below = 0.0 if stack is None else stack[2] + _cost(stack[0], stack[1])
    return log_shift, log_noise, below, stack


def _add(one: float, two: float) -> float:
    high, low = (one, two) if one > two else (two, one)
    return high + math.log1p(math.exp(low - high))


def _log_geometric(log_c: float, count: int) -> float:
    """log of 1 + c + ... + c^(count - 1)."""
    if log_c == 0:
        return math.log(count)
    if log_c > 0:
        return (count - 1) * log_c + _log_geometric(-log_c, count)
    return math.log(-math.expm1(count * log_c)) - math.log(-math.expm1(log_c))


def _pulse(log_c: float, count: int) -> float:
    """The cost of one unit shift spread over ``count`` steps: c^(2 count - 2) / (1 + c^2 + ... + c^(2 count - 2))."""
    return math.exp(2 * (count - 1) * log_c - _log_geometric(2 * log_c, count))


def constant_atoms(c: float, s: float, v: float, steps: int, weights: Array) -> tuple[Array, Array]:
    """Weights and mus of the groups for a constant schedule; s, v > 0. Shapes (atoms,)."""
    blocks = weights.size
    if c == 0:  # only a participation in the very last step survives
        place = (steps - 1) % blocks
        mu = s / math.sqrt(v) * (1 + allowance(1))
        return np.array([float(weights[place]), math.fsum(np.delete(weights, place))]), np.array([mu, 0.0])
    log_c, log_s, log_v = math.log(c), math.log(s), math.log(v)
    grows = max(log_c, 0.0)

    def block(begin: int, until: int, spread: int) -> tuple[float, float]:
        """log dS and log dX of the steps ``begin`` .. ``until`` - 1, in coordinates of the end."""
        dS = log_s + spread * grows + (steps - 1 - begin) * log_c
        return dS, log_v + 2 * (steps - until) * log_c + _log_geometric(2 * log_c, until - begin)

    tail = tail_groups(weights, steps)
    early = -(-steps // blocks) - len(tail)
    stack: Stack = None
    apart, pending = 0.0, None
    if early:
        pending = ((early - 1) * blocks + blocks - 1, blocks - 1)
        if c > 1 and early > 1:  # every gap pays for itself (beyond all bounds, maybe); with c <= 1 all of them pool
            apart = (early - 1) * _pulse(log_c, blocks) * _cost(log_s + (blocks - 1) * grows, log_v)
        elif c <= 1 and early > 1:
            span = (early - 1) * blocks
            dS = log_s + (steps - 1 - (pending[0] - blocks)) * log_c
            stack = (dS + _log_geometric(blocks * log_c, early - 1),
                     log_v + 2 * (steps - pending[0]) * log_c + _log_geometric(2 * log_c, span), 0.0, None)
    found_weights: list[float] = []
    costs: list[float] = []

    def visit(depth: int, weight: float, stack: Stack, pending: tuple[int, int] | None) -> None:
        if depth == len(tail):
            last = stack if pending is None else _push(stack, *block(pending[0], steps, pending[1]))
            found_weights.append(weight)
            costs.append(apart + (0.0 if last is None else last[2] + _cost(last[0], last[1])))
            return
        for group in tail[depth]:
            if group.last < 0:
                visit(depth + 1, weight * group.weight, stack, pending)
                continue
            step = (early + depth) * blocks + group.last
            before = stack if pending is None else _push(stack, *block(pending[0], step, pending[1]))
            visit(depth + 1, weight * group.weight, before, (step, group.last - group.first))

    visit(0, 1.0, stack, pending)
    return np.array(found_weights), np.sqrt(costs) * (1 + allowance(steps, steps * grows))


def scheduled_shifts(c: Array, s: Array, weights: Array, most_atoms: int) -> Iterator[tuple[float, Array]]:
    """The same for any schedule: weight and shifts of every group; c, s (shifts of the record's steps) of length T."""
    blocks, steps = weights.size, c.size
    tail = tail_groups(weights, steps, most_atoms)
    early = -(-steps // blocks) - len(tail)
    fixed = np.zeros(steps)
    for begin in range(0, early * blocks, blocks):
        fixed[begin + blocks - 1] = latest_shift(c, s, begin, begin + blocks - 1)
    for choice in product(*tail):
        shifts = fixed.copy()
        for begin, group in zip(range(early * blocks, steps, blocks), choice, strict=True):
            if group.last >= 0:
                shifts[begin + group.last] = latest_shift(c, s, begin + group.first, begin + group.last)
        yield math.prod(group.weight for group in choice), shifts


def latest_shift(c: Array, s: Array, first: int, last: int) -> float:
    """The shift at step ``last`` that stands for a participation anywhere in ``first`` .. ``last``."""
    worst = 0.0
    for step in range(first, last + 1):
        worst = max(float(c[step]) * worst, float(s[step]))
    return worst
