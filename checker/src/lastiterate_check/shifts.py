"""The last iterate by allocated shifts (PROOFS A): distances contract, the noise of later steps
hides the rest.

z_0 = 0, z_t = c_t z_{t-1} + s_t - a_t >= 0, z_T = 0 (or restarted at z = diameter): mu^2 = min sum
a_t^2 / v_t. The optimum is the greatest convex minorant of shifts over noise. Here it is found
stretch by stretch: a stretch runs from one participation of the record to the next, and carries
what it adds (S), the noise that hides it (X) and the product of its Lipschitz constants (r), all
seen from its own end. Stretches are pooled while the one before is steeper. Everything is positive,
so that every operation is good to 2^-53 relatively; ``raised`` covers all of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from scipy.special import betainc

from lastiterate_check.curves import Best, Curve, Failing, Gaussian, Mixture
from lastiterate_check.run import Array, NotCovered, Run, StepMap

FAILURES = (0.0, 1e-30, 1e-20, 1e-15, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Probabilities that loads are unusual; each gives a valid bound, and the best counts."""
MOST_ATOMS = 4096
"""Groups of places in all."""
Stretch = tuple  # (S, X, r)
Pools = tuple | None  # (S, X, cost of the pools below, the pools below, r)


def raised(steps: int, growth: float = 0.0) -> float:
    """Above the rounding of mu: a product of k factors is good to k 2^-53 (1 + |log of it|)
    relatively."""
    return 1 + 1e-12 + 2.0**-50 * steps * (1 + growth)


def push(pools: Pools, stretch: Stretch) -> Pools:
    """One more stretch at the end: pooled with those before it while they are at least as steep."""
    s, x, r = stretch
    while pools is not None and pools[0] * x >= s * pools[1] * r:
        s, x, r, pools = s + pools[0] * r, x + pools[1] * r * r, r * pools[4], pools[3]
    return s, x, total(pools), pools, r


def total(pools: Pools) -> float:
    """mu^2: the sum of S^2/X over all pools; infinite where no noise hides a shift."""
    if pools is None:
        return 0.0
    s, x, below = pools[:3]
    value = below + (s * (s / x) if x > 0 else math.inf if s > 0 else 0.0)
    return math.inf if math.isnan(value) else value  # beyond the range of floats: no statement


def recursion(
    run: Run, shares: tuple[float, float] | None, count: int
) -> tuple[Array, Array, Array]:
    """c, s and v of the first ``count`` steps; a proximal term w/2 |theta|^2 divides what a step
    makes by 1 + eta w (PROOFS N)."""
    if run.sensitivity is None:
        raise NotCovered("steps without a bound on a record's contribution")
    if run.steps > 10**7:
        raise NotCovered("shifts over more than 10,000,000 steps")
    etas, stds = (np.broadcast_to(x, (count,)) for x in (run.etas, run.stds))
    shrink = np.minimum(1.0, (1 + 2.0**-50) / (1 + etas * run.shrinks))
    eta = shrink * etas
    c = shrink * StepMap(run, shares).lipschitz(etas)
    return c, eta * (run.sensitivity.value / run.divisor), (eta * stds) ** 2


class Steps:
    """c, s and v of every step; of one pass where all passes are alike."""

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, run: Run, shares: tuple[float, float] | None = None, every: int = 0) -> None:
        self.blocks, self.steps, self.diameter = every or run.blocks, run.steps, run.diameter
        self.passes = -(-self.steps // self.blocks)
        self.c, self.s, self.v = recursion(run, shares, self.blocks if run.constant else run.steps)
        growth = float(np.log(np.maximum(self.c, 1)).sum()) * self.steps / self.c.size
        self.raised = raised(run.steps, growth)
        self.noise = lru_cache(maxsize=2**16)(self._noise)

    def _noise(self, begin: int, end: int) -> tuple[float, float, float]:
        """Of the steps begin .. end: the product of c behind the first, X, and the product r."""
        if begin >= end:
            return 1.0, 0.0, 1.0
        index = np.arange(begin, end) % self.c.size
        with np.errstate(over="ignore", invalid="ignore"):
            after = np.append(np.cumprod(self.c[index[:0:-1]])[::-1], 1.0)
            hidden = float((self.v[index] * after**2).sum())
        return float(after[0]), hidden, float(after[0] * self.c[index[0]])

    def stretch(self, begin: int, end: int, shift: float) -> Stretch:
        """The steps begin .. end, of which the first adds ``shift``."""
        turns = begin // self.c.size * self.c.size
        after, hidden, r = self.noise(begin - turns, end - turns)
        return shift * after, hidden, r

    def begun(self, begin: int, end: int) -> Pools:
        """Restarted at the diameter before step ``begin``."""
        c = float(self.c[begin % self.c.size])
        return push(None, self.stretch(begin, end, self.diameter * (c if begin < end else 1.0)))

    def chain(self, times: Sequence[int], shifts: Sequence[float], pools: Pools = None) -> Pools:
        """Participations at ``times``, each up to the next one, the last up to the end."""
        for begin, end, shift in zip(times, [*times[1:], self.steps], shifts, strict=False):
            pools = push(pools, self.stretch(begin, end, shift))
        return pools

    def place(self, j: int) -> float:
        """mu for a record in block j of every pass."""
        times = range(j, self.steps, self.blocks)

        def mu(kept: int) -> float:
            """With the last participations alone, restarted behind the one before them."""
            later, pools = times[len(times) - kept :], None
            if kept < len(times):
                pools = self.begun(times[-kept - 1] + 1, later[0] if kept else self.steps)
            shifts = [float(self.s[t % self.s.size]) for t in later]
            return math.sqrt(total(self.chain(later, shifts, pools)))

        if not times:
            return 0.0
        found = mu(len(times))
        if math.isfinite(self.diameter):
            found = min(found, mu(0), least(mu, len(times)))
        return found * self.raised

    def places(self) -> Array:
        """mu for a record in each of the blocks."""
        return np.array([self.place(j) for j in range(self.blocks)])

    def worst(self, number: int, first: int, last: int) -> float:
        """What a participation anywhere in ``first`` .. ``last`` of a pass adds at ``last``, at
        most."""
        found = 0.0
        for t in range(number * self.blocks + first, number * self.blocks + last + 1):
            found = max(float(self.c[t % self.c.size]) * found, float(self.s[t % self.s.size]))
        return found

    def spread(self, weights: Array) -> Curve:
        """The mean over places that are drawn again in every pass (PROOFS I, J).

        mu grows with later places, so that places are grouped and each group counts with its last
        one; the last passes have the finest groups, and in all passes before them the record takes
        part at the very end.
        """
        tail = self._groups(weights)
        early, end = self.passes - len(tail), self.blocks - 1
        begin = [number * self.blocks + end for number in range(early)]
        shift, pools = [self.worst(number, 0, end) for number in range(early)], None
        for before, after, one in zip(begin, begin[1:], shift, strict=False):
            pools = push(pools, self.stretch(before, after, one))

        def option(number: int, share: float, first: int, last: int) -> tuple:
            if last < 0:  # the unfinished pass ends before the record's block
                return share, None, 0.0
            return share, number * self.blocks + last, self.worst(number, first, last)

        choices = [[option(n, *group) for group in groups] for n, groups in enumerate(tail, early)]
        mus, chances = [], []
        for combined in itertools.product(*choices):
            reached = [one for one in combined if one[1] is not None]
            times = [*begin[-1:], *(time for _, time, _ in reached)]
            shifts = [*shift[-1:], *(one for _, _, one in reached)]
            found = [total(self.chain(times, shifts, pools))]
            if math.isfinite(self.diameter):
                for k, upto in enumerate([*times[1:], self.steps]):
                    restarted = self.begun(times[k] + 1, upto)
                    found.append(total(self.chain(times[k + 1 :], shifts[k + 1 :], restarted)))
            mus.append(math.sqrt(min(found)) * self.raised)
            chances.append(math.prod(share for share, _, _ in combined))
        return Mixture(chances, mus)

    def _groups(self, weights: Array) -> list[list[tuple[float, int, int]]]:
        """(probability, first, last place) of the groups of the last passes, in the order of
        time."""
        reached = self.steps - (self.passes - 1) * self.blocks
        tail, wanted = [grouped(weights, reached, 128, towards_end=True)], [8, 4]
        while len(tail) < self.passes and self.blocks > 1:
            most = min(self.blocks, wanted.pop(0) if wanted else 2)
            if math.prod(map(len, tail)) * most > MOST_ATOMS:
                break
            tail.append(grouped(weights, self.blocks, most, towards_end=False))
        return tail[::-1]


def grouped(
    weights: Array, reached: int, most: int, *, towards_end: bool
) -> list[tuple[float, int, int]]:
    """At most ``most`` groups of places below ``reached``; the places that are not reached are
    one more, (w, 0, -1)."""
    even, finer = np.linspace(0, reached, most + 1), np.geomspace(1, reached + 1, most + 1) - 1
    cuts = np.round(finer if towards_end else even).astype(int)
    from_end = sorted({0, reached, *cuts.tolist()}) if most < reached else range(reached + 1)
    edges = [reached - place for place in reversed(list(from_end))]
    found = [(math.fsum(weights[a:b]), a, b - 1) for a, b in itertools.pairwise(edges)]
    if reached < weights.size:
        found.append((math.fsum(weights[reached:]), 0, -1))
    return found


def least(value: Callable[[int], float], most: int) -> float:
    """The smallest of value(1) .. value(most) that is found on a coarse and then a fine look;
    each one is a bound."""
    tried = sorted({round(most ** (i / 16)) for i in range(17)})
    found = {k: value(k) for k in tried}
    place = tried.index(min(found, key=found.__getitem__))
    low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
    while high - low > 3:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        found |= {k: value(k) for k in (left, right) if k not in found}
        low, high = (low, right) if found[left] <= found[right] else (left, high)
    return min([*found.values(), *(value(k) for k in range(low, high + 1))])


def loads(run: Run, failure: float) -> tuple[int, int]:
    """The fewest and the most other records in each of the batches that are drawn, except with
    probability ``failure``.

    Binomial tails by the incomplete beta function, raised above its rounding; half of the failure
    for each end.
    """
    others = run.n - 1
    if failure == 0 or others == 0:
        return 0, others
    chance = run.rate if run.kind == "Poisson" else 1 / run.blocks
    draws = run.blocks * (1 if run.drawn == "once" else run.passes)
    each = failure / (2 * draws) * (1 - 1e-6)

    def first(p: float) -> int:  # the least k with P[Bin(others, p) > k] <= each
        low, high = -1, others
        while high - low > 1:
            middle = (low + high) // 2
            above = float(betainc(middle + 1, others - middle, p))
            low, high = (low, middle) if above <= each else (middle, high)
        return high

    return others - first(1 - chance), first(chance)


def with_loads(run: Run, curve: Callable[[Steps], Curve]) -> Curve:
    """The best, over ``FAILURES``, of ``curve`` for usual loads of all batches, except with the
    failure.

    One map of each pair must have the constants; without the record it has the other records'
    alone. Under replace-one both maps of the record's own batch hold one more.
    """
    found: dict[bytes, Curve] = {}
    for failure in FAILURES:
        fewest, most = loads(run, failure)
        steps = Steps(run, (fewest / run.divisor, (most + run.moved - 1) / run.divisor))
        if steps.c.tobytes() not in found:
            one = curve(steps)
            found[steps.c.tobytes()] = Failing(one, failure) if failure else one
    return Best(list(found.values()))


# The theorems.


def public_order(run: Run) -> Curve:
    """Full batches, or blocks in a public order: the worst place."""
    return Gaussian(float(Steps(run).places().max()))


def in_every_batch(run: Run) -> Curve:
    """A record that may be in every batch, whatever draws it (PROOFS D)."""
    return Gaussian(Steps(run, every=1).place(0))


def permuted(run: Run) -> Curve:
    """One secret permutation: the mean over places."""
    return Mixture(run.place_weights, Steps(run).places())


def reshuffled(run: Run) -> Curve:
    """A secret permutation before every pass."""
    return Steps(run).spread(run.place_weights)


def secret_bins(run: Run) -> Curve:
    """Secret bins that are drawn once."""
    return with_loads(run, lambda steps: Mixture(run.place_weights, steps.places()))


def allocated(run: Run) -> Curve:
    """Secret blocks that are drawn again in every pass."""
    return with_loads(run, lambda steps: steps.spread(run.place_weights))
