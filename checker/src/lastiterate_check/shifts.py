"""The last iterate by allocated shifts (PROOFS A): distances contract, the noise of later steps
hides what is left.

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
from collections.abc import Callable

import numpy as np
from scipy.special import betainc

from lastiterate_check.balls import Best, Curve, Failing, Gaussian, Mixture
from lastiterate_check.run import Array, NotCovered, Run, StepMap

FAILURES = (0.0, 1e-30, 1e-20, 1e-15, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
"""Probabilities that loads are unusual; each gives a valid bound, and the best counts."""
MOST_ATOMS = 4096
"""Groups of places in all."""
Stretch = tuple  # (S, X, r)
Pools = tuple | None  # (S, X, cost of the pools below, the pools below)


def raised(steps: int, growth: float = 0.0) -> float:
    """Above the rounding of mu: a product of k factors is good to k 2^-53 (1 + |log of it|)
    relatively."""
    return 1 + 1e-12 + 2.0**-50 * steps * (1 + growth)


def push(pools: Pools, stretch: Stretch) -> Pools:
    """One more stretch at the end: pooled with those before it while they are at least as steep."""
    s, x, r = stretch
    while pools is not None and pools[0] * x >= s * pools[1] * r:
        s, x, r, pools = s + pools[0] * r, x + pools[1] * r * r, r * pools[4], pools[3]
    below = 0.0 if pools is None else pools[2] + cost(pools[0], pools[1])
    return s, x, below, pools, r


def cost(s: float, x: float) -> float:
    """S^2/X: what a pool costs; infinite where nothing hides it."""
    if x == 0:
        return math.inf if s > 0 else 0.0
    return s * (s / x)


def total(pools: Pools) -> float:
    """The sum over all pools: mu^2."""
    if pools is None:
        return 0.0
    value = pools[2] + cost(pools[0], pools[1])
    return math.inf if math.isnan(value) else value  # beyond the range of floats: no statement


def repeat(pools: Pools, stretch: Stretch, count: int) -> Pools:
    """The same stretch many times: all pool where r <= 1 (slopes fall), none does where r > 1."""
    s, x, r = stretch
    if count <= 64:
        for _ in range(count):
            pools = push(pools, stretch)
        return pools
    if r <= 1:
        whole, square = None, stretch
        while count:
            if count & 1:
                whole = square if whole is None else _joined(whole, square)
            square, count = _joined(square, square), count >> 1
        return push(pools, whole)
    pools = push(pools, stretch)
    pools = push(pools, stretch)
    s0, x0, below, rest, r0 = push(pools, stretch)
    return s0, x0, below + (count - 3) * cost(s, x), rest, r0


def _joined(one: Stretch, two: Stretch) -> Stretch:
    s, x, r = two
    return s + one[0] * r, x + one[1] * r * r, r * one[2]


class Steps:
    """c, s and v of every step, by passes of ``blocks`` steps; a constant run keeps one pass of
    them.

    ``suffix`` and ``prefix`` hold the noise X and the product of c over the rest and the beginning
    of a pass.
    """

    @np.errstate(over="ignore", invalid="ignore")
    def __init__(self, run: Run, shares: tuple[float, float] | None = None) -> None:
        self.blocks, self.steps, self.passes = run.blocks, run.steps, run.passes
        self.reached = run.steps - (run.passes - 1) * run.blocks
        if run.sensitivity is None:
            raise NotCovered("steps without a bound on a record's contribution")
        delta = run.sensitivity.value / run.divisor
        constant = run.constant
        length = min(self.blocks, run.steps) if constant else run.steps
        etas, stds = (
            np.broadcast_to(x, (length,)) if constant or x.size == 1 else x
            for x in (run.etas, run.stds)
        )
        shrink = np.minimum(1.0, (1 + 2.0**-50) / (1 + etas * run.shrinks))
        c = shrink * StepMap(
            run,
            shares
            if shares is not None or run.kind not in ("Cyclic", "Permuted", "Reshuffled")
            else (1.0, 1.0),
        ).lipschitz(etas)
        if (
            shares is None and run.shares[0] < 1 and not run.random_sizes
        ):  # a short last block has less curvature
            last = slice(self.blocks - 1, None, self.blocks)
            c = c.copy()
            c[last] = (shrink * StepMap(run).lipschitz(etas))[last]
        eta = shrink * etas
        self.rows = 1 if constant else self.passes
        pad = self.rows * self.blocks - length

        def table(values: Array, fill: float) -> Array:
            return np.concatenate((values, np.full(pad, fill))).reshape(self.rows, self.blocks)

        self.c, self.s, self.v = (
            table(c, 1.0),
            table(eta * delta, 0.0),
            table((eta * stds) ** 2, 0.0),
        )
        self.growth = float(np.maximum(np.log(np.maximum(c, 1e-300)), 0).sum()) * (
            self.passes if constant else 1
        )
        self.prefix_x, self.prefix_r = (
            np.zeros((self.rows, self.blocks + 1)),
            np.ones((self.rows, self.blocks + 1)),
        )
        for j in range(self.blocks):
            self.prefix_x[:, j + 1] = self.prefix_x[:, j] * self.c[:, j] ** 2 + self.v[:, j]
            self.prefix_r[:, j + 1] = self.prefix_r[:, j] * self.c[:, j]
        self.suffix_x, self.suffix_r = self._suffixes(self.c, self.v)
        rest = self.c[-1:, : self.reached], self.v[-1:, : self.reached]
        self.last_x, self.last_r = (x[0] for x in self._suffixes(*rest))
        self.raised = raised(min(run.steps, 10**9), self.growth)

    @staticmethod
    def _suffixes(c: Array, v: Array) -> tuple[Array, Array]:
        x, r = np.zeros_like(c), np.ones_like(c)
        after = np.ones(c.shape[0])
        noise = np.zeros(c.shape[0])
        for j in range(c.shape[1] - 1, -1, -1):
            noise = noise + v[:, j] * after**2
            x[:, j], r[:, j] = noise, after
            after = after * c[:, j]
        return x, r

    def row(self, number: int) -> int:
        """The row of a pass."""
        return min(number, self.rows - 1)

    def shift(self, number: int, first: int, last: int) -> float:
        """What a participation anywhere in ``first`` .. ``last`` of a pass adds at ``last``, at
        most."""
        worst, row = 0.0, self.row(number)
        for j in range(first, last + 1):
            worst = max(float(self.c[row, j]) * worst, float(self.s[row, j]))
        return worst

    def stretch(self, number: int, place: int, shift: float, after: int | None) -> Stretch:
        """From a participation in pass ``number`` to one at ``after`` in the next pass;
        ``None``: to the end."""
        row = self.row(number)
        if number == self.passes - 1:
            x, r = float(self.last_x[place]), float(self.last_r[place])
            return shift * r, x, r * float(self.c[row, place])
        upto = self.reached if after is None else after
        if after is None and number < self.passes - 2:
            raise NotCovered("a record that is left out of more than one pass")
        next_row = self.row(number + 1)
        more_x, more_r = float(self.prefix_x[next_row, upto]), float(self.prefix_r[next_row, upto])
        r = float(self.suffix_r[row, place]) * more_r
        return (
            shift * r,
            float(self.suffix_x[row, place]) * more_r * more_r + more_x,
            r * float(self.c[row, place]),
        )

    def places(self, diameter: float) -> Array:
        """mu for a record in each of the blocks."""
        return np.array([self.place(j, diameter) for j in range(self.blocks)])

    def place(self, j: int, diameter: float) -> float:
        """mu for a record in block j of every pass."""
        last = self.passes - 1 if j < self.reached else self.passes - 2
        if last < 0:
            return 0.0
        mu = math.sqrt(total(self._from(j, 0, last, None)))
        if math.isfinite(diameter):  # restarted behind a participation, or behind the last one
            mu = min(
                mu,
                least(
                    lambda kept: math.sqrt(total(self._from(j, last + 1 - kept, last, diameter))),
                    last + 1,
                ),
            )
            if last < self.passes - 1 or j + 1 < self.reached:
                mu = min(mu, math.sqrt(total(self._from(j, last + 1, last, diameter))))
        return mu * self.raised

    def _from(self, j: int, first: int, last: int, begun: float | None) -> Pools:
        """Pools of the participations in passes ``first`` .. ``last``; ``begun``: the distance
        right behind the one
        before them (or at the start), where the run is restarted."""

        def at(number: int) -> Stretch:
            shift = float(self.s[self.row(number), j])
            return self.stretch(number, j, shift, j if number < last else None)

        pools: Pools = None
        if begun is not None:
            x, r = self.quiet(first - 1, j, j if first <= last else None)
            pools = (begun * r, x, 0.0, None, r)
        if first < last:
            if self.rows == 1:
                pools = repeat(pools, at(first), last - first)
            else:
                for number in range(first, last):
                    pools = push(pools, at(number))
        return push(pools, at(last)) if first <= last else pools

    def quiet(self, number: int, place: int, after: int | None) -> tuple[float, float]:
        """X and r of the steps behind ``place`` of a pass up to ``after`` in the next one, or to
        the end."""
        x, r = 0.0, 1.0
        if number >= 0:
            final = number == self.passes - 1
            row = self.row(number)
            many, one = (
                (self.last_x, self.last_r) if final else (self.suffix_x[row], self.suffix_r[row])
            )
            x, r = float(many[place + 1]) if place + 1 < many.size else 0.0, float(one[place])
            if final:
                return x, r
        row, upto = self.row(number + 1), self.reached if after is None else after
        more = float(self.prefix_r[row, upto])
        return x * more * more + float(self.prefix_x[row, upto]), r * more

    def spread(self, weights: Array, diameter: float) -> Curve:
        """The mean over places that are drawn again in every pass (PROOFS I, J; docs/theorems:
        reshuffled).

        mu grows with later places, so that places are grouped and each group counts with its last
        one; the last passes have the finest groups, and in all passes before them the record takes
        part at the very end.
        """
        tail = self._groups(weights)
        early = self.passes - len(tail)
        end = self.blocks - 1
        atoms: list[tuple[float, float]] = []
        bounded = math.isfinite(diameter)
        worst = [
            self.shift(number, 0, end)
            for number in range(early if self.rows > 1 else min(early, 1))
        ]
        begin: Pools = None
        if early > 1:
            if self.rows == 1:
                begin = repeat(None, self.stretch(0, end, worst[0], end), early - 1)
            else:
                for number in range(early - 1):
                    begin = push(begin, self.stretch(number, end, worst[number], end))
        shifts = [
            [
                0.0 if last < 0 else self.shift(early + depth, first, last)
                for _, first, last in groups
            ]
            for depth, groups in enumerate(tail)
        ]

        def begun(at: tuple[int, int, float]) -> Pools:
            """Restarted at the diameter, right behind a participation."""
            x, r = self.quiet(at[0], at[1], None)
            return diameter * r, x, 0.0, None, r

        def visit(
            depth: int,
            weight: float,
            pools: tuple[Pools, ...],
            before: tuple[int, int, float] | None,
        ) -> None:
            """``pools``: without a restart, and restarted behind one of the participations so
            far."""
            if depth == len(tail):
                last = (
                    pools
                    if before is None
                    else [push(p, self.stretch(*before, None)) for p in pools]
                )
                if bounded and before is not None:
                    last = [*last, begun(before)]
                atoms.append((weight, math.sqrt(min(map(total, last))) * self.raised))
                return
            for (share, _, place), shift in zip(tail[depth], shifts[depth], strict=True):
                if place < 0:  # the unfinished pass ends before the record's block
                    visit(depth + 1, weight * share, pools, before)
                    continue
                joined = pools
                if before is not None:
                    joined = tuple(push(p, self.stretch(*before, place)) for p in pools)
                    if bounded:
                        x, r = self.quiet(before[0], before[1], place)
                        joined = (*joined, (diameter * r, x, 0.0, None, r))
                visit(depth + 1, weight * share, joined, (early + depth, place, shift))

        visit(0, 1.0, (begin,), (early - 1, end, worst[-1]) if early else None)
        return Mixture(*zip(*atoms, strict=True))

    def _groups(self, weights: Array) -> list[list[tuple[float, int, int]]]:
        """(probability, first, last place) of the groups of the last passes, in the order of
        time."""
        tail = [grouped(weights, self.reached, min(128, MOST_ATOMS), towards_end=True)]
        atoms, wanted = len(tail[0]), [8, 4]
        while len(tail) < self.passes and self.blocks > 1:
            most = min(
                self.blocks, wanted.pop(0) if wanted else 2 if self.blocks > 2 else self.blocks
            )
            if atoms * most > MOST_ATOMS:
                break
            tail.append(grouped(weights, self.blocks, most, towards_end=False))
            atoms *= len(tail[-1])
        return tail[::-1]


def grouped(
    weights: Array, reached: int, most: int, *, towards_end: bool
) -> list[tuple[float, int, int]]:
    """At most ``most`` groups of places below ``reached``; the places that are not reached are
    one more, (w, 0, -1)."""
    cuts = (
        np.geomspace(1, reached + 1, most + 1) - 1
        if towards_end
        else np.linspace(0, reached, most + 1)
    )
    from_end = (
        sorted({0, reached, *np.round(cuts).astype(int).tolist()})
        if most < reached
        else range(reached + 1)
    )
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
    best = min(found, key=found.__getitem__)
    place = tried.index(best)
    low, high = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
    while high - low > 3:
        left, right = low + (high - low) // 3, high - (high - low) // 3
        found |= {k: value(k) for k in (left, right) if k not in found}
        low, high = (low, right) if found[left] <= found[right] else (left, high)
    return min([*found.values(), *(value(k) for k in range(low, high + 1))])


def loads(run: Run, failure: float, chance: float, draws: int) -> tuple[int, int]:
    """The fewest and the most other records in each of ``draws`` batches, except with probability
    ``failure``.

    Binomial tails by the incomplete beta function, raised above its rounding; half of the failure
    for each end.
    """
    others = run.n - 1
    if failure == 0 or others == 0:
        return 0, others
    each = failure / (2 * draws) * (1 - 1e-6)

    def above(p: float, k: int) -> float:  # P[Bin(others, p) > k]
        return 0.0 if k >= others else float(betainc(k + 1, others - k, p))

    def first(p: float) -> int:
        low, high = -1, others
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if above(p, middle) <= each else (middle, high)
        return high

    return others - first(1 - chance), first(chance)


def with_loads(run: Run, draws: int, curve: Callable[[tuple[float, float]], Curve]) -> Curve:
    """The best, over ``FAILURES``, of ``curve`` for usual loads of all ``draws`` batches, except
    with the failure.

    One map of each pair must have the constants; without the record it has the other records'
    alone. Under replace-one both maps of the record's own batch hold one more.
    """
    found: list[Curve] = []
    seen: set[tuple[float, float]] = set()
    for failure in FAILURES:
        fewest, most = loads(run, failure, 1 / run.blocks, draws)
        shares = (fewest / run.divisor, (most + run.moved - 1) / run.divisor)
        map_ = StepMap(run, shares)
        key = tuple(map_.lipschitz(run.etas[:1]).tolist()) if run.constant else shares
        if key in seen:
            continue
        seen.add(key)
        found.append(Failing(curve(shares), failure) if failure else curve(shares))
    return Best(found)


# The theorems.


def public_order(run: Run) -> Curve:
    """Full batches, or blocks in a public order: the worst place."""
    return Gaussian(float(Steps(run).places(run.diameter).max()))


def permuted(run: Run) -> Curve:
    """One secret permutation: the mean over places."""
    return Mixture(run.place_weights, Steps(run).places(run.diameter))


def reshuffled(run: Run) -> Curve:
    """A secret permutation before every pass."""
    return Steps(run).spread(run.place_weights, run.diameter)


def secret_bins(run: Run) -> Curve:
    """Secret bins that are drawn once."""
    return with_loads(
        run,
        run.blocks,
        lambda shares: Mixture(run.place_weights, Steps(run, shares).places(run.diameter)),
    )


def allocated(run: Run) -> Curve:
    """Secret blocks that are drawn again in every pass."""
    return with_loads(
        run,
        run.blocks * run.passes,
        lambda shares: Steps(run, shares).spread(run.place_weights, run.diameter),
    )
