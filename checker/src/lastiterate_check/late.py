"""Sampled steps whose early part has faded (docs/theorems: restarted-sampling, restarted-fixed-
size, delayed-shifts).

Every restart, share of the noise and cut into intervals is valid; a few are compared by about their
squared mu, and the curve is the best of those that are evaluated. Products of constants are kept as
logarithms; what is computed from them is raised by ``UP``.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from lastiterate_check.balls import Best, Curve, Failing, Gaussian, Mixture
from lastiterate_check.blocks import LARGEST, ratio_pair
from lastiterate_check.losses import Array, Losses, mixture
from lastiterate_check.run import NotCovered, Run, StepMap
from lastiterate_check.shifts import loads

UP = 1 + 1e-8
FOLLOWED = 2**16
"""Steps that are followed one by one; what lies before them is bounded by its limit."""
FAILURES = (0.0, 1e-20, 1e-12, 1e-9, 1e-7)
SHARES = 1 - np.geomspace(1e-3, 0.5, 28)
"""Shares of the noise variance that hide the draws after a restart."""
RESTARTS = 60
RECENT = 4096
"""Draws of a record that are followed; older ones count as certain."""
ATOMS = 400
"""Shifts that are told apart in the law of an interval."""


class Tail:
    """The last steps: log c, s and log v, the noise multipliers, the distance before them, the
    domain's diameter."""

    def __init__(self, run: Run, failure: float, every: int) -> None:
        if run.sensitivity is None:
            raise NotCovered("steps without a bound on a record's contribution")
        if run.kind == "FixedSize":
            shares = ((run.size - 1) / run.size, 1.0)
        elif not run.random_sizes:
            shares = run.shares
        else:
            draws = -(-run.steps // every) * every
            few, many = loads(
                run, failure, run.rate if run.kind == "Poisson" else 1 / run.blocks, draws
            )
            shares = (few / run.divisor, many / run.divisor)
        skipped = max(0, run.steps - FOLLOWED) // every * every
        unit = run.sensitivity.value / run.divisor
        etas, stds = run.each(run.etas), run.each(run.stds)
        curved = StepMap(run, shares)
        c = curved.lipschitz(etas[skipped:])
        self.diameter, self.before, self.skipped = run.diameter, 0.0, skipped
        if skipped:
            left = 1 - float(curved.lipschitz(etas[:skipped]).max())
            limit = float(etas[:skipped].max()) * unit / left if left > 0 else math.inf
            self.before = min(self.diameter, limit * UP)
        self.c, self.s, self.v = c, etas[skipped:] * unit, (etas[skipped:] * stds[skipped:]) ** 2
        self.z = stds[skipped:] / unit
        with np.errstate(divide="ignore"):
            self.log_c = np.log(c)
        self.later = np.append(
            np.cumsum(self.log_c[::-1])[::-1], 0.0
        )  # later[t]: the product from step t on
        with np.errstate(divide="ignore"):
            noise = np.log(self.v) + 2 * self.later[1:]
        self.noise = np.logaddexp.accumulate(noise[::-1])[::-1]  # sum from step t on of v R^2


def restarts(count: int, every: int) -> Array:
    """Steps at which a restart is tried: multiples of ``every``, more of them towards the end."""
    back = (
        np.unique(np.round(np.geomspace(1, max(1, (count - 1) // every), RESTARTS)).astype(int))
        * every
    )
    first = np.unique(count // every * every - np.append(0, back))
    return first[(first > 0) & (first < count)]


def restarted(
    run: Run,
    chance: float,
    every: int,
    distance: Callable[[Tail, float, int], float],
    curve: Callable[..., Curve],
    longer: Callable[[float, float], float] = lambda apart, closed: 1.0,
    seen: Callable[[Array], Array] = lambda square: np.expm1(1 / square),
) -> Curve:
    """The best restarts for several failures, and none at all: composition of all sampled steps."""
    found: list[Curve] = []
    best_size, last = math.inf, None
    with contextlib.suppress(NotCovered):
        found.append(curve(run, 0, 1.0, 0.0))
    for failure in FAILURES:
        tail = Tail(run, failure / 2, every)
        if last is not None and np.array_equal(last, tail.c) and every > 1:
            continue
        last = tail.c
        options: list[tuple[float, int, float, float, float]] = []
        for at in restarts(tail.c.size, every).tolist():
            apart = distance(tail, failure / 2, at)
            if not 0 < apart < math.inf:
                continue
            with np.errstate(all="ignore"):
                square = math.exp(
                    min(2 * (math.log(apart) + tail.later[at]) - tail.noise[at], 700.0)
                )
                square = max(square * UP, 1e-300)
                # without shifts distances are z c_r ... c_t at most; a shift closes v_t R_t/c_t of
                # the whole
                wide = apart * math.exp(tail.later[at] - float(tail.later[at:-1].min())) * UP
                closed = UP * math.exp(
                    math.log(apart)
                    + tail.later[at]
                    - tail.noise[at]
                    + float((np.log(tail.v[at:]) + tail.later[at + 1 :] - tail.log_c[at:]).max())
                )
                factor = longer(wide, closed)
                for share in SHARES.tolist():
                    drawn = chance * chance * float(seen(share * (tail.z[at:] / factor) ** 2).sum())
                    options.append((drawn + square / (1 - share), at, share, square, factor))
        options.sort()
        if not options or options[0][0] > best_size * (1 - 1e-3):
            continue
        best_size = options[0][0]
        for _, at, share, square, factor in options[:1]:
            more = {"longer": factor} if factor > 1 else {}
            mu = math.sqrt(square / (1 - share)) * UP
            try:
                one = curve(run, at + tail.skipped, share, mu, **more)
            except NotCovered:
                continue
            found.append(Failing(one, failure) if failure else one)
    if not found:
        raise NotCovered("sampled steps with next to no noise")
    return Best(found)


def distance_of_passes(tail: Tail, blocks: int, at: int) -> float:
    """How far apart a record can bring two runs by the end of a pass: once in each, wherever it
    does most."""
    z = tail.before
    s, c = tail.s[:at].reshape(-1, blocks), tail.c[:at].reshape(-1, blocks)
    after = np.concatenate(
        (np.cumprod(c[:, ::-1], axis=1)[:, ::-1][:, 1:], np.ones((len(c), 1))), axis=1
    )
    for shrunk, added in zip(
        c.prod(axis=1).tolist(), (s * after).max(axis=1).tolist(), strict=True
    ):
        z = min(tail.diameter, shrunk * z + added)
    return z * UP


def distance_of_draws(tail: Tail, failure: float, at: int, rate: float, records: int = 1) -> float:
    """A bound on sum s_t B_t c_{t+1} ... by Chernoff's inequality, except with the failure;
    older ones are certain."""
    after = np.exp(
        np.append(np.cumsum(tail.log_c[:at][::-1]), 0.0)[np.r_[-1, 0:at]] if at else np.zeros(1)
    )
    each = tail.s[:at][::-1] * after[:at]
    rest = tail.before * float(np.exp(tail.log_c[:at].sum()))
    recent = each[:RECENT]
    old = records * float(each[RECENT:].sum()) + rest
    bound, largest = records * float(recent.sum()), float(recent.max(initial=0.0))
    if failure > 0 and largest > 0:
        thetas = np.geomspace(0.05, 200, 60) / largest
        moments = np.log1p(rate * np.expm1(np.multiply.outer(thetas, recent))).sum(axis=1)
        bound = min(bound, float(((records * moments - math.log(failure)) / thetas).min()))
    return min(tail.diameter, (bound + old) * UP)


def restarted_passes(run: Run, curve: Callable[..., Curve]) -> Curve:
    """Fresh secret blocks: a restart begins a pass."""
    blocks = run.blocks
    return restarted(
        run, 1 / blocks, blocks, lambda tail, _, at: distance_of_passes(tail, blocks, at), curve
    )


def restarted_draws(run: Run, curve: Callable[..., Curve]) -> Curve:
    """Poisson batches: a restart at any step."""
    rate = run.rate
    return restarted(
        run, rate, 1, lambda tail, failure, at: distance_of_draws(tail, failure, at, rate), curve
    )


def restarted_subsets(run: Run, curve: Callable[..., Curve]) -> Curve:
    """Batches of a fixed size: what is added grows by the curvature of one record's term
    (docs/theorems)."""
    one = StepMap(run, (1.0, 1.0))
    if any(fact.evidence == "PAID" for fact in one.facts):
        raise NotCovered("a measured smoothness, which says nothing of one record")
    relative = (
        max(abs(one.low), abs(one.high)) / run.sensitivity.value if run.sensitivity.value else 0.0
    )
    longer = (
        (lambda apart, closed: (1 + relative * closed) * UP)
        if run.moved == 1
        else (lambda apart, closed: (1 + 2 * relative * (apart + closed)) * UP)
    )

    def instead(square: Array) -> Array:
        grown = np.exp(1 / square)
        return grown * np.expm1(1 / square) * (grown * grown + np.expm1(1 / square))

    seen = {} if run.moved == 2 else {"seen": instead}
    rate = run.rate
    return restarted(
        run,
        rate,
        1,
        lambda tail, failure, at: distance_of_draws(tail, failure, at, rate),
        curve,
        longer,
        **seen,
    )


# Delayed shifts.


def ends_of(steps: int, growth: float, widest: int, blocks: int | None) -> list[int]:
    """0 and where intervals end: one step, then longer ones towards the beginning; they end
    where passes begin."""
    ends, length = [steps], 1.0
    while ends[-1] > 0:
        begins = 0 if blocks is None else (ends[-1] - 1) // blocks * blocks
        ends.append(max(begins, ends[-1] - min(widest, int(length))))
        length = min(length * growth, float(widest))
    return ends[::-1]


def hidden(tail: Tail, begin: int, middle: int, end: int, source: int) -> Array:
    """s_t R_t / sqrt(sum of v R^2 over middle .. end) for the steps begin .. source."""
    local = np.append(np.cumsum(tail.log_c[begin:end][::-1])[::-1], 0.0)
    with np.errstate(divide="ignore"):
        noise = np.log(tail.v[middle:end]) + 2 * local[middle - begin + 1 :]
        total = np.logaddexp.reduce(noise)
        shift = np.log(tail.s[begin:source]) + local[1 : source - begin + 1] - total / 2
    return np.exp(np.minimum(shift, 600.0)) * UP


def intervals(
    tail: Tail, first: int, growth: float, widest: int, blocks: int | None
) -> Iterable[tuple[int, ...]]:
    """(begin, middle, end, source): what begin .. source add is hidden by middle .. end; the
    last step hides its own."""
    steps = tail.c.size - first
    ends = [first + e for e in ends_of(steps, growth, widest, blocks)]
    rows = zip(ends[:-2] or ends[:1], ends[1:-1] or ends[:1], ends[2:] or ends[1:], strict=True)
    for begin, middle, end in rows:
        yield begin, middle, end, end if end == tail.c.size else middle


def carried(
    tail: Tail, first: int, distance: float, growth: float, widest: int, blocks: int | None
) -> float:
    """mu of the distance at ``first``, hidden by the first interval."""
    if distance == 0:
        return 0.0
    ends = ends_of(tail.c.size - first, growth, widest, blocks)
    if len(ends) == 2:
        return math.inf
    end = first + ends[1]
    local = np.append(np.cumsum(tail.log_c[first:end][::-1])[::-1], 0.0)
    with np.errstate(divide="ignore"):
        noise = np.logaddexp.reduce(np.log(tail.v[first:end]) + 2 * local[1:])
    return distance * math.exp(min(local[0] - noise / 2, 600.0)) * UP


def sum_law(weights: Array, rate: float) -> tuple[Array, Array]:
    """Probabilities and values of sum weights[t] B_t, P[B_t = 1] = rate, rounded up on a
    lattice; the rest is missing."""
    top = float(weights.max())
    unit = (
        top
        if float(weights.min()) > top * (1 - 1e-10)
        else max(top / 400, float(weights.sum()) / 20000)
    )
    law = np.ones(1)
    for place in np.ceil(weights / unit * (1 - 1e-12)).astype(int):
        longer = np.zeros(law.size + place)
        longer[: law.size] = law * (1 - rate)
        longer[place:] += law * rate
        above = np.cumsum(longer[::-1])[::-1]
        law = longer[: max(1, int(np.searchsorted(-above, -1e-22)))]
    values = unit * (1 + 1e-11) * np.arange(law.size)
    if law.size > ATOMS:
        starts = np.append(0, np.arange(1, law.size, -(-law.size // ATOMS)))
        values = values[np.append(starts[1:], law.size) - 1]
        law = np.add.reduceat(law, starts)
    kept = law > 0
    return law[kept], values[kept]


def choices(
    run: Run, every: int, blocks: int | None
) -> Iterable[tuple[float, Tail, int, float, float, int]]:
    """(failure, tail, first step, distance there, growth, widest) of every cut that is compared."""
    if run.steps > 4096:
        raise NotCovered("delayed shifts over more than 4,096 steps")
    last = None
    for failure in (*FAILURES, 1e-6) if run.kind != "FixedSize" else (0.0,):
        tail = Tail(run, failure, every)
        if last is not None and np.array_equal(last, tail.c):
            continue
        last, total = tail.c, tail.c.size
        starts = [(0, tail.before)]
        if math.isfinite(tail.diameter):
            if blocks is None:
                back = np.unique(np.geomspace(2, max(2, total), 12).astype(int))
            else:
                back = total - (total // blocks - np.array([1, 2, 4, 8, 16, 32, 64])) * blocks
            starts += [(int(total - b), tail.diameter) for b in back if total > b]
        wide = (
            (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
            if blocks is None
            else sorted({x for x in (2, 4, 8, -(-blocks // 2)) if x < blocks} | {blocks})
        )
        for first, distance in starts:
            for widest in (x for x in wide if x == 1 or x < total - first):
                for growth in (1.2, 1.6) if blocks is None else (1.3, 1.6, 2.0):
                    yield failure, tail, first, distance, growth, widest


def pairs_of(
    tail: Tail, first: int, growth: float, widest: int, blocks: int | None
) -> list[tuple[tuple, int]]:
    """Weights of every interval, equal ones counted."""
    found: Counter[tuple[float, ...]] = Counter()
    for row in intervals(tail, first, growth, widest, blocks):
        found[tuple(float(f"{x:.12g}") * (1 + 1e-11) for x in hidden(tail, *row))] += 1
    return list(found.items())


def delayed(run: Run, build: Callable[..., Curve], about: Callable[..., float]) -> Curve:
    """The best of the cuts that look best, for every failure."""
    blocks = run.blocks if run.kind == "RandomAllocation" else None
    options = []
    for failure, tail, first, distance, growth, widest in choices(run, blocks or 1, blocks):
        mu = carried(tail, first, distance, growth, widest, blocks)
        size = mu * mu + about(tail, first, growth, widest) if mu < 1e6 else math.inf
        options.append((size, failure, tail, first, mu, growth, widest))
    options.sort(key=lambda one: one[0])
    found: list[Curve] = []
    for size, failure, tail, first, mu, growth, widest in options[:3]:
        if size <= 2 * options[0][0]:
            curve = build(tail, first, growth, widest, mu)
            found.append(Failing(curve, failure) if failure else curve)
    return Best(found) if found else Gaussian(math.inf)


def delayed_poisson(run: Run) -> Curve:
    """E N(S/sqrt X, 1) against N(0, 1) for every interval, composed."""
    rate = run.rate

    def about(tail: Tail, first: int, growth: float, widest: int) -> float:
        total = 0.0
        for weights, count in pairs_of(tail, first, growth, widest, None):
            w = np.array(weights[:: max(1, len(weights) // 12)])
            share = len(weights) / w.size
            if w.max() > 20:
                return math.inf
            total += (
                count
                * float(np.log1p(rate**2 * np.expm1(np.multiply.outer(w, w))).sum())
                * share**2
            )
        return total

    def build(tail: Tail, first: int, growth: float, widest: int, mu: float) -> Curve:
        pairs = [
            (mixture(*sum_law(np.array(weights), rate)), count)
            for weights, count in pairs_of(tail, first, growth, widest, None)
        ]
        return Losses(pairs, mu)

    return delayed(run, build, about)


def delayed_blocks(run: Run) -> Curve:
    """A pass: (1/l) sum over its intervals i and steps t of N(s_t R_t/sqrt X e_i) against N(0,
    I); passes compose."""
    blocks = run.blocks

    def passes(
        tail: Tail, first: int, growth: float, widest: int
    ) -> Counter[tuple[tuple[float, ...], ...]]:
        by_pass: dict[int, list[tuple[float, ...]]] = {}
        for row in intervals(tail, first, growth, widest, blocks):
            weights = tuple(max(float(f"{x:.12g}") * (1 + 1e-11), 1e-6) for x in hidden(tail, *row))
            by_pass.setdefault(row[0] // blocks, []).append(weights)
        return Counter(tuple(parts) for parts in by_pass.values())

    def about(tail: Tail, first: int, growth: float, widest: int) -> float:
        if (tail.c.size - 1) % blocks == 0 and tail.c.size > 1:
            return math.inf  # the last step begins a pass: nothing is said
        total = 0.0
        for parts, count in passes(tail, first, growth, widest).items():
            squares = 0.0
            for weights in parts:
                w = np.array(weights)
                if w.max() > 20:
                    return math.inf
                squares += float(np.expm1(np.multiply.outer(w, w)).sum())
            total += count * math.log1p(squares / blocks**2)
        return total

    def build(tail: Tail, first: int, growth: float, widest: int, mu: float) -> Curve:
        pairs = []
        for parts, count in passes(tail, first, growth, widest).items():
            if max(max(weights) for weights in parts) > LARGEST:
                return Gaussian(math.inf)
            equal = Counter((weights, len(weights)) for weights in parts)
            pairs.append(
                (ratio_pair(tuple((w, n, k) for (w, n), k in equal.items()), blocks), count)
            )
        return Losses(pairs, mu)

    return delayed(run, build, about)


def delayed_subsets(run: Run) -> Curve:
    """The mean over the draws of delta_mu, mu^2 = the sum over intervals of S^2/X: its law,
    rounded up on a lattice."""
    rate, places = run.rate, 2**14

    def about(tail: Tail, first: int, growth: float, widest: int) -> float:
        mean = variance = 0.0
        for weights, count in pairs_of(tail, first, growth, widest, None):
            w = np.array(weights)
            one, two = rate * float(w.sum()), rate * (1 - rate) * float((w * w).sum())
            mean += count * (one * one + two)
            variance += count * (4 * one * one * two + 2 * two * two)
        return mean + 3 * math.sqrt(variance) if mean < 1e12 else math.inf

    def build(tail: Tail, first: int, growth: float, widest: int, mu: float) -> Curve:
        laws = [
            (*sum_law(np.array(weights), rate), count)
            for weights, count in pairs_of(tail, first, growth, widest, None)
        ]
        top = max(float(values.max()) ** 2 for _, values, _ in laws)
        reach = math.inf
        for theta in (
            np.geomspace(1e-4, 1e4, 60) / top
        ):  # Chernoff: mu^2 beyond it has a probability of 1e-14
            moments = sum(
                count * float(np.logaddexp.reduce(np.log(p) + theta * x * x))
                for p, x, count in laws
            )
            reach = min(reach, (moments + math.log(1e14)) / theta)
        unit = reach / places
        total, lost = np.ones(1), 0.0
        for p, values, count in laws:
            at = np.ceil(values * values * UP / unit).astype(int)
            lost += count * (max(0.0, 1 - float(p.sum())) + float(p[at > places].sum()))
            one = np.bincount(at[at <= places], weights=p[at <= places])
            while count:
                if count & 1:
                    total = np.convolve(total, one)
                    lost, total = lost + float(total[places + 1 :].sum()), total[: places + 1]
                count >>= 1
                if count:
                    one = np.convolve(one, one)
                    lost, one = lost + 2 * count * float(one[places + 1 :].sum()), one[: places + 1]
        mus = np.sqrt(np.arange(total.size) * unit * UP + mu * mu)
        starts = np.append(0, np.arange(1, total.size, max(1, total.size // 1200)))
        highest = mus[np.append(starts[1:], total.size) - 1]
        return Mixture(np.add.reduceat(total, starts) * UP, highest, lost + 1e-15)

    return delayed(run, build, about)


def hoelder_path(modulus: Callable[[Array], Array], steps: int, diameter: float) -> float:
    """sqrt(min sum a_t^2) over paths from the diameter (or from 0) to 0 with a_t = modulus(z_{t-1})
    - z_t >= 0.

    Paths are found backwards from the last shift; costs are computed forwards from the states of a
    path, whatever they are, so that every path that is found is a bound.
    """
    longest = min(steps, 2000)
    top = float(modulus(np.array(diameter)))
    best = min(top, math.sqrt(steps) * float(modulus(np.array(0.0))))
    low, high = top * 1e-9, top
    for _ in range(3):
        tried = np.geomspace(low, high, 120)
        costs = np.array([_path(modulus, float(last), longest, diameter) for last in tried])
        best = min(best, math.sqrt(float(costs.min())))
        middle = float(tried[int(np.argmin(costs))])
        width = (high / low) ** (2 / 120)
        low, high = middle / width, min(top, middle * width)
    return best * UP


def _path(modulus: Callable[[Array], Array], last: float, longest: int, diameter: float) -> float:
    """sum a^2 of the path whose last shift is ``last``; infinite where it does not reach the
    diameter in time."""
    z, shift, total = 0.0, last, 0.0
    for _ in range(longest):
        low, high = 0.0, diameter
        if float(modulus(np.array(diameter))) <= z + shift:
            low = diameter
        else:
            for _ in range(50):
                middle = (low + high) / 2
                low, high = (
                    (middle, high)
                    if float(modulus(np.array(middle))) <= z + shift
                    else (low, middle)
                )
        before = low
        paid = max(0.0, float(modulus(np.array(before))) * (1 + 1e-14) - z)
        total += paid * paid
        if before >= diameter * (1 - 1e-9):
            return (
                total + (float(modulus(np.array(diameter))) - float(modulus(np.array(before)))) ** 2
            )
        if before <= z:
            return math.inf
        d = 1e-6 * max(before, 1e-12)
        slope = (float(modulus(np.array(before + d))) - float(modulus(np.array(before)))) / d
        shift, z = shift * max(slope, 1.0), before
    return math.inf
