"""mu of the last iterate for every position of a record in the order of the batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from lastiterate.analysis.shifts import allowance, best_restart, constant_mus, optimal_mu
from lastiterate.analysis.step_map import StepMap, find_known_map, shrinkage
from lastiterate.run.batching import Batching
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

# mu of the last iterate for a record whose position is drawn again in every pass: groups of
# positions, each at its worst.  The optimal shift allocation grows when a participation moves to a
# later step u of its pass with the shift max_w s_w c_{w+1} ... c_u over the steps w that it
# represents: the allocation of the later one, capped, serves the earlier one. So positions are
# grouped, each group counts with its last one, and delta is averaged over the groups. The last
# passes, which matter
# most, get the finest groups; in all earlier passes the record participates at the very end. Proof:
# docs/theorems/shifted-interpolation-reshuffled.

MOST_ATOMS, FINEST, COARSER = 1024, 64, (8, 4)
"""Groups in all, in the last pass, and in the passes before it (the last entry holds for all
earlier ones)."""


@dataclass(frozen=True)
class Group:
    """Positions ``first`` to ``last`` of a pass and their probability; ``last`` < 0: the record
    does not participate."""

    weight: float
    first: int
    last: int


def groups(weights: Array, reached: int, most: int, *, towards_end: bool) -> list[Group]:
    """Return at most ``most`` groups of the positions 0 .. reached - 1, and one more of the
    positions that are not reached."""
    share = (
        np.geomspace(1, reached + 1, most + 1) - 1
        if towards_end
        else np.linspace(0, reached, most + 1)
    )
    from_end = (
        range(reached + 1)
        if most >= reached
        else sorted({0, *np.round(share).astype(int).tolist(), reached})
    )
    edges = [reached - place for place in reversed(from_end)]
    grouped = [Group(math.fsum(weights[a:b]), a, b - 1) for a, b in pairwise(edges)]
    if reached < weights.size:
        grouped.append(Group(math.fsum(weights[reached:]), 0, -1))
    return grouped


def tail_groups(weights: Array, steps: int, most_atoms: int = MOST_ATOMS) -> list[list[Group]]:
    """Groups of the last few passes, in the order of time; their product has about ``most_atoms``
    elements."""
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
    """The cost of one unit shift spread over ``count`` steps: c^(2 count - 2) / (1 + c^2 + ... +
    c^(2 count - 2))."""
    return math.exp(2 * (count - 1) * log_c - _log_geometric(2 * log_c, count))


def constant_atoms(c: float, s: float, v: float, steps: int, weights: Array) -> tuple[Array, Array]:
    """Weights and mus of the groups for a constant schedule; s, v > 0. Shapes (atoms,)."""
    blocks = weights.size
    if c == 0:  # only a participation in the very last step survives
        place = (steps - 1) % blocks
        mu = s / math.sqrt(v) * (1 + allowance(1))
        return np.array([float(weights[place]), math.fsum(np.delete(weights, place))]), np.array(
            [mu, 0.0]
        )
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
        if (
            c > 1 and early > 1
        ):  # every gap pays for itself (beyond all bounds, maybe); with c <= 1 all of them pool
            apart = (early - 1) * _pulse(log_c, blocks) * _cost(log_s + (blocks - 1) * grows, log_v)
        elif c <= 1 and early > 1:
            span = (early - 1) * blocks
            dS = log_s + (steps - 1 - (pending[0] - blocks)) * log_c
            stack = (
                dS + _log_geometric(blocks * log_c, early - 1),
                log_v + 2 * (steps - pending[0]) * log_c + _log_geometric(2 * log_c, span),
                0.0,
                None,
            )
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
            before = (
                stack if pending is None else _push(stack, *block(pending[0], step, pending[1]))
            )
            visit(depth + 1, weight * group.weight, before, (step, group.last - group.first))

    visit(0, 1.0, stack, pending)
    return np.array(found_weights), np.sqrt(costs) * (1 + allowance(steps, steps * grows))


def shifts_of_schedule(
    c: Array, s: Array, weights: Array, most_atoms: int
) -> Iterator[tuple[float, Array]]:
    """The same for any schedule: weight and shifts of every group; c, s (shifts of the record's
    steps) of length T."""
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
                shifts[begin + group.last] = latest_shift(
                    c, s, begin + group.first, begin + group.last
                )
        yield math.prod(group.weight for group in choice), shifts


def latest_shift(c: Array, s: Array, first: int, last: int) -> float:
    """Return the shift at step ``last`` that covers a participation in ``first`` .. ``last``."""
    worst = 0.0
    for step in range(first, last + 1):
        worst = max(float(c[step]) * worst, float(s[step]))
    return worst


# mu of the last iterate for every position that a record can have in the order of the batches.

FEW = 4
"""Arrays that are kept of each kind, for the theorems and the search that look at one run: with ten
million blocks each has 80 MB."""


@lru_cache(maxsize=FEW)
def _unit_mus(c: float, steps: int, blocks: int, diameter: float) -> Array:
    """``constant_mus`` for shifts and noise of size 1 and a diameter in units of the shift: mu is
    proportional to the shift and inversely to the noise, so that a search computes this once."""
    return constant_mus(c, 1.0, 1.0, steps, blocks, diameter)


MOST_WORK = 2_000_000
"""Steps times positions up to which a constant schedule with short blocks is followed block by
block; a fiftieth of it where restarts are searched as well."""


@lru_cache(maxsize=FEW)
def place_mus(run: Run, shares: tuple[float, float] | None = None) -> Array:
    """mu for a record in block 0, ..., run.blocks - 1, by the optimal shift allocation; shape
    (blocks,).

    ``shares``: the fewest and the most records of every batch over the divisor, if not what the run
    can have at worst.
    """
    curvature, sensitivity = find_known_map(run, shares), require_fact(run.facts(), "sensitivity")
    delta, diameter = sensitivity.value / run.divisor, run.domain.diameter()
    full = full_map(run) if shares is None else curvature
    if run.constant:
        eta = run.first_step
        k = float(shrinkage(run, np.array([eta]))[0])
        whole, any_block, eta = k * full.lipschitz(eta), k * curvature.lipschitz(eta), k * eta
        s = eta * delta
        if s == 0:
            return np.zeros(run.blocks)
        unit = _unit_mus(any_block, run.steps, run.blocks, diameter / s) * (s / eta)
        work = run.steps * run.blocks * (50 if math.isfinite(diameter) else 1)
        if whole < any_block and work <= MOST_WORK:  # both bounds hold for every position
            by_block = _unit_by_block(
                whole, any_block, s, eta, run.steps, run.n, run.batching, diameter
            )
            unit = np.minimum(unit, by_block)
        std = run.first_noise
        return unit / std if std > 0 else np.where(unit > 0, np.inf, 0.0)
    eta = run.step_sizes
    k = shrinkage(run, eta)
    c = block_constants(run) if shares is None else k * curvature.lipschitz_each(eta)
    return _each_place(c, k * eta * delta, (k * eta * run.noise_stds) ** 2, run.blocks, diameter)


def full_map(run: Run) -> StepMap:
    """Return what is known about the map of a full block; of shorter ones ``step_map(run)`` is."""
    cut = run.batching.block_sizes(run.n) is not None
    return find_known_map(run, (1.0, 1.0) if cut else None)


def short_steps(batching: Batching, n: int, steps: int) -> NDArray[np.bool_]:
    """Whether the block of every step holds fewer records than the divisor; shape (steps,)."""
    sizes = batching.block_sizes(n)
    assert sizes is not None  # of blocks that are cut from an order
    return (sizes < batching.divisor(n))[np.arange(steps) % sizes.size]


def block_constants(run: Run) -> Array:
    """The Lipschitz constant of every step, its proximal map included; shape (steps,)."""
    short, c = find_known_map(run), full_map(run).lipschitz_each(run.step_sizes)
    at = short_steps(run.batching, run.n, run.steps)
    c[at] = short.lipschitz_each(run.step_sizes[at])
    return c * shrinkage(run, run.step_sizes)


@lru_cache(maxsize=FEW)
def _unit_by_block(
    full: float,
    short: float,
    s: float,
    eta: float,
    steps: int,
    n: int,
    batching: Batching,
    diameter: float,
) -> Array:
    """mu at noise std 1 for a constant schedule whose short blocks have a constant of their own."""
    c = np.where(short_steps(batching, n, steps), short, full)
    v = np.full(steps, eta * eta)
    return _each_place(c, np.full(steps, s), v, batching.blocks(n), diameter)


def _each_place(c: Array, s: Array, v: Array, blocks: int, diameter: float) -> Array:
    """Return mu of every position, step by step; where that is too much work, of groups of
    positions, each at its worst."""
    mus = np.zeros(blocks)  # a block that the run never reaches leaks nothing
    reached = min(blocks, c.size)
    searched = 50 if math.isfinite(diameter) else 1
    few = max(FEWEST_GROUPS, MOST_FOLLOWED // (c.size * searched))
    for first, last in _groups(reached, (c.size - 1) % blocks + 1, few):
        shifts = np.zeros(c.size)
        if first == last:
            shifts[first::blocks] = s[first::blocks]
        for begin in range(0, c.size - first, blocks) if first < last else ():
            at = min(begin + last, c.size - 1)
            shifts[at] = latest_shift(c, s, begin + first, at)
        mu = optimal_mu(c, shifts, v)
        mus[first : last + 1] = (
            min(mu, best_restart(c, shifts, v, diameter)) if math.isfinite(diameter) else mu
        )
    return mus


MOST_FOLLOWED, FEWEST_GROUPS = 20_000_000, 64
"""Steps times positions (a fiftieth where restarts are searched) up to which each position is
followed alone; fewest groups."""


def _groups(reached: int, end: int, most: int) -> list[tuple[int, int]]:
    """Return the first and last position of at most about ``most`` groups of positions 0 .. reached
    - 1, finer before the positions where the run and its passes end: a group counts with its last
    one (docs/theorems/shifted-interpolation-reshuffled)."""
    if reached <= most:
        return [(place, place) for place in range(reached)]
    near = np.geomspace(1, reached + 1, most // 3 + 1) - 1
    edges = np.concatenate((np.linspace(0, reached, most // 3 + 1), reached - near, end - near))
    cuts = sorted({0, reached, *np.round(edges[edges > 0]).astype(int).tolist()})
    return [(first, after - 1) for first, after in pairwise(cuts)]


def place_weights(batching: Batching, n: int) -> Array:
    """Return the probability of each block for one record, where its position is secret; shape
    (blocks,)."""
    weights = batching.place_probabilities(n)
    assert weights is not None
    return weights


MOST_MERGED, PER_OCTAVE = 4096, 1024
"""Positions up to which every one is kept; beyond them, the number of marks per doubling of mu to
which mus are rounded."""


def merge_places(weights: Array, mus: Array, *, up: bool) -> tuple[Array, Array]:
    """Return the mixture over positions with few different mus: at most ``PER_OCTAVE`` per doubling
    of mu.

    With more than ``MOST_MERGED`` positions mus >= 0 are rounded up (or down) to marks that do not
    depend on the run, by less than 0.07 %, so that a larger mu never becomes a smaller one. A
    larger mu dominates: delta_mu grows with mu.
    """
    if mus.size <= MOST_MERGED:
        return weights, mus
    apart = (mus == 0) | np.isinf(mus)
    sums: list[float] = [math.fsum(weights[mus == value]) for value in (0.0, math.inf)]
    marks = [0.0, math.inf]
    if not apart.all():
        exact: Array = np.log2(mus[~apart]) * PER_OCTAVE
        level = (np.ceil(exact + 1e-6) if up else np.floor(exact - 1e-6)).astype(np.int64)
        low = int(level.min())
        sums += _sums(level - low, weights[~apart]).tolist()
        marks += np.exp2(np.arange(low, int(level.max()) + 1) / PER_OCTAVE).tolist()
    total, mu = np.array(sums), np.array(marks)
    return total[total > 0], mu[total > 0]


def _sums(level: NDArray[np.int64], weights: Array) -> Array:
    """The sums of the weights on every level; all blocks but the last are alike, so that few
    roundings happen."""
    alike = weights == weights[0]
    sums: Array = np.bincount(level[alike], minlength=int(level.max()) + 1) * np.float64(weights[0])
    np.add.at(sums, level[~alike], weights[~alike])
    return sums
