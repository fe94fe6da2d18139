"""Sampled steps whose early part has faded (docs/theorems: restarted-sampling, restarted-fixed-
size, delayed-shifts).

Every restart, share of the noise and cut into intervals is valid; a few are compared by about their
squared mu, and the curve is the best of those that are evaluated. Rounding: ``UP`` on every product
of constants, which are at most a few thousand operations deep where they matter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np

from lastiterate_check.curves import Best, Curve, Failing, Gaussian
from lastiterate_check.losses import REACH, Cells, Losses, Pair, between, few, mixture, sampled
from lastiterate_check.run import Array, Fails, NotCovered, Run, StepMap
from lastiterate_check.sampling import LARGEST, allocation, poisson, ratio_pair
from lastiterate_check.shifts import loads, recursion

UP = 1 + 1e-8
FOLLOWED = 2**17
"""Steps that are followed, one by one."""
FAILURES = (0.0, 1e-20, 1e-12, 1e-9, 1e-7)
SHARES = 1 - np.geomspace(1e-3, 0.5, 28)
"""Shares of the noise variance that hide the draws after a restart."""
RESTARTS = 60
RECENT = 4096
"""Draws of a record that are followed; older ones count as certain."""
ATOMS = 400
"""Shifts that are distinguished in the distribution of an interval."""
Weights = tuple[float, ...]
Parts = Counter  # of tuples of Weights: the intervals of a pass, or one interval


class Tail:
    """c, s, v and noise multipliers z of all steps; for every step the product of c from it on, and
    the sum of v R^2 from it on."""

    @np.errstate(all="ignore")
    def __init__(self, run: Run, failure: float) -> None:
        shares = run.shares
        if run.kind == "FixedSize":
            shares = ((run.size - 1) / run.size, 1.0)
        elif run.random_sizes:
            few, many = loads(run, failure)
            shares = (few / run.divisor, many / run.divisor)
        if run.steps > FOLLOWED:
            raise NotCovered(f"the fading of more than {FOLLOWED} steps")
        self.c, self.s, self.v = recursion(run, shares, run.steps)
        self.diameter, self.z = run.diameter, np.sqrt(self.v) / self.s
        self.after = np.append(np.cumprod(self.c[::-1])[::-1], 1.0)
        self.hides = np.cumsum((self.v * self.after[1:] ** 2)[::-1])[::-1]


def tails(run: Run, failures: Iterable[float], every: bool = False) -> Iterable[tuple[float, Tail]]:
    """(failure, tail) of the failures that change the tail, or of every one."""
    last = None
    for failure in failures:
        tail = Tail(run, failure / 2)
        if every or last is None or not np.array_equal(last, tail.c):
            yield failure, tail
        last = tail.c


def restarted(
    run: Run,
    curve: Callable[..., Curve],
    chance: float,
    distance: Callable[[Run, Tail, float, int], float],
    longer: Callable[[float, float], float] = lambda apart, closed: 1.0,
    seen: Callable[[Array], Array] = lambda square: np.expm1(1 / square),
) -> Curve:
    """The best restarts for several failures, and none at all: composition of all sampled steps."""
    found: list[Curve] = []
    with suppress(NotCovered):
        found.append(curve(run))
    least = math.inf
    for failure, tail in tails(run, FAILURES, run.drawn == "step"):
        options = []
        back = np.geomspace(1, max(1, (tail.c.size - 1) // run.blocks), RESTARTS).round()
        last = tail.c.size // run.blocks
        for at in {int(last - b) * run.blocks for b in (0, *back)} - {tail.c.size}:
            apart = distance(run, tail, failure / 2, at) if at > 0 else 0.0
            if not 0 < apart < math.inf:
                continue
            with np.errstate(all="ignore"):
                square = (apart * tail.after[at]) ** 2 / tail.hides[at] * UP + 1e-300
                # without shifts distances are z c_r ... c_t at most; a shift closes v_t R_t/c_t of
                # the whole
                wide = apart * max(1.0, float(np.cumprod(tail.c[at:-1]).max(initial=0.0))) * UP
                shifted = float((tail.v[at:] * tail.after[at + 1 :] / tail.c[at:]).max())
                factor = longer(wide, apart * tail.after[at] / tail.hides[at] * shifted * UP)
                z, count = np.unique(tail.z[at:] / factor, return_counts=True)
                for share in SHARES.tolist():
                    drawn = chance * chance * float((count * seen(share * z * z)).sum())
                    options.append((drawn + square / (1 - share), at, share, square, factor))
        size, at, share, square, factor = min(options, default=(math.inf, 0, 0.0, 0.0, 1.0))
        if size >= least * (1 - 1e-3):
            continue
        least, mu = size, math.sqrt(square / (1 - share)) * UP
        with suppress(NotCovered):
            one = curve(run, at, share, mu, **({"longer": factor} if factor > 1 else {}))
            found.append(Failing(one, failure) if failure else one)
    if not found:
        raise NotCovered("sampled steps with next to no noise")
    return Best(found)


def distance_of_passes(run: Run, tail: Tail, _: float, at: int) -> float:
    """How far apart a record can bring two runs by the end of a pass: once in each, wherever it
    does most."""
    s, c = (x[:at].reshape(-1, run.blocks) for x in (tail.s, tail.c))
    after = np.append(np.cumprod(c[:, :0:-1], axis=1)[:, ::-1], np.ones((len(c), 1)), axis=1)
    z, added = 0.0, (s * after).max(axis=1)
    for shrunk, more in zip(c.prod(axis=1).tolist(), added.tolist(), strict=True):
        z = min(tail.diameter, shrunk * z + more)
    return z * UP


def distance_of_draws(run: Run, tail: Tail, failure: float, at: int) -> float:
    """A bound on sum s_t B_t c_{t+1} ... by Chernoff's inequality, except with the failure;
    older ones are certain."""
    each = tail.s[:at][::-1] * np.append(1.0, np.cumprod(tail.c[:at][::-1]))[:-1]
    recent = each[:RECENT]
    bound, largest = float(recent.sum()), float(recent.max())
    if failure > 0 and largest > 0:
        thetas = np.geomspace(0.05, 200, 60) / largest
        moments = np.log1p(run.rate * np.expm1(np.multiply.outer(thetas, recent))).sum(axis=1)
        bound = min(bound, float(((moments - math.log(failure)) / thetas).min()))
    return min(tail.diameter, (bound + float(each[RECENT:].sum())) * UP)


def restarted_allocation(run: Run) -> Curve:
    """Fresh secret blocks: a restart begins a pass."""
    return restarted(run, allocation, 1 / run.blocks, distance_of_passes)


def restarted_poisson(run: Run) -> Curve:
    """Poisson batches: a restart at any step."""
    return restarted(run, poisson, run.rate, distance_of_draws)


def restarted_fixed_size(run: Run) -> Curve:
    """Batches of a fixed size: what is added grows by the curvature of one record's term
    (docs/theorems)."""
    one = StepMap(run, (1.0, 1.0))
    if any(fact.evidence == "PAID" for fact in one.facts):
        raise NotCovered("a measured smoothness, which says nothing of one record")
    relative = max(abs(one.low), abs(one.high)) / max(run.sensitivity.value, 1e-300)

    def longer(apart: float, closed: float) -> float:
        return (1 + relative * (closed if run.moved == 1 else 2 * (apart + closed))) * UP

    def instead(square: Array) -> Array:
        grown, more = np.exp(1 / square), np.expm1(1 / square)
        return grown * more * (grown * grown + more)

    seen = {} if run.moved == 2 else {"seen": instead}
    return restarted(run, fixed_size, run.rate, distance_of_draws, longer, **seen)


# Delayed shifts.


def cut(tail: Tail, growth: float, widest: int, blocks: int | None) -> Parts:
    """s_t R_t / sqrt(sum of v R^2 over the hiding interval) for the steps of every interval.

    Intervals end at the last step, one step long there and longer towards the beginning; they end
    where passes begin. What one of them adds is hidden by the next one; the last step hides its
    own, too.
    """
    steps, length = tail.c.size, 1.0
    ends = [steps]
    while ends[0] > 0:
        begins = 0 if blocks is None else (ends[0] - 1) // blocks * blocks
        ends.insert(0, max(begins, ends[0] - min(widest, int(length))))
        length = min(length * growth, float(widest))
    rows = list(zip(ends[:-2], ends[1:-1], ends[2:], strict=True)) or [(0, 0, steps)]
    found: dict[int, list[Weights]] = {}
    for begin, middle, end in rows:
        after = np.append(np.cumprod(tail.c[begin:end][::-1])[::-1], 1.0)
        hides = math.sqrt(float((tail.v[middle:end] * after[middle - begin + 1 :] ** 2).sum()))
        source = end if end == steps else middle
        with np.errstate(all="ignore"):
            weights = tail.s[begin:source] * after[1 : source - begin + 1] / hides * UP
        key = begin if blocks is None else begin // blocks
        rounded = (max(float(f"{x:.12g}") * (1 + 1e-11), 1e-6) for x in weights.tolist())
        found.setdefault(key, []).append(tuple(rounded))
    return Counter(tuple(one) for one in found.values())


def delayed(
    run: Run, build: Callable[[Parts], Curve], size: Callable[[Array], tuple[float, float]]
) -> Curve:
    """The best of the cuts that look best, for every failure; ``size``: about the squared mu of an
    interval of these weights, its mean and variance over the draws."""
    blocks = run.blocks if run.kind == "RandomAllocation" else None
    if run.steps > 4096:
        raise NotCovered("delayed shifts over more than 4,096 steps")
    if blocks is None:
        widths, growths = [2**k for k in range(10)], (1.2, 1.6)
    else:
        short = {x for x in (2, 4, 8, -(-blocks // 2)) if x < blocks}
        widths, growths = sorted({*short, blocks}), (1.3, 1.6, 2.0)
    options = []
    for failure, tail in tails(run, (*FAILURES, 1e-6) if run.kind != "FixedSize" else (0.0,)):
        for widest in (x for x in widths if x == 1 or x < tail.c.size):
            for growth in growths:
                parts = cut(tail, growth, widest, blocks)
                if max(max(w) for part in parts for w in part) < 20:
                    sizes = [(n, *size(np.array(w))) for p, n in parts.items() for w in p]
                    spread = 3 * math.sqrt(sum(n * variance for n, _, variance in sizes))
                    about = sum(n * mean for n, mean, _ in sizes) + spread
                    options.append((about, len(options), failure, parts))
    options.sort(key=lambda one: one[:2])
    found: list[Curve] = []
    for about, _, failure, parts in options[:3]:
        if about <= 2 * options[0][0]:
            curve = build(parts)
            found.append(Failing(curve, failure) if failure else curve)
    return Best(found) if found else Gaussian(math.inf)


def chi_square(chance: float) -> Callable[[Array], tuple[float, float]]:
    """chance^2 sum (e^(w w') - 1), of every eighth weight where there are many."""

    def size(w: Array) -> tuple[float, float]:
        some = w[:: max(1, w.size // 12)]
        whole = float(np.expm1(np.multiply.outer(some, some)).sum()) * (w.size / some.size) ** 2
        return math.log1p(chance**2 * whole), 0.0

    return size


def sum_law(weights: Weights, rate: float) -> tuple[Array, Array]:
    """Probabilities and values of sum weights[t] B_t, P[B_t = 1] = rate, rounded up on a
    lattice; the rest is missing."""
    w = np.array(weights)
    top = float(w.max())
    even = float(w.min()) > top * (1 - 1e-10)
    unit = top if even else max(top / 400, float(w.sum()) / 20000)
    law = np.ones(1)
    for place in np.ceil(w / unit * (1 - 1e-12)).astype(int):
        longer = np.append(law * (1 - rate), np.zeros(place))
        longer[place:] += law * rate
        above = np.cumsum(longer[::-1])[::-1]
        law = longer[: max(1, int(np.searchsorted(-above, -1e-22)))]
    values = unit * (1 + 1e-11) * np.arange(law.size)
    if law.size > ATOMS:
        starts = np.append(0, np.arange(1, law.size, -(-law.size // ATOMS)))
        values = values[np.append(starts[1:], law.size) - 1]
        law = np.add.reduceat(law, starts)
    return law[law > 0], values[law > 0]


def delayed_poisson(run: Run) -> Curve:
    """E N(S/sqrt X, 1) against N(0, 1) for every interval, composed."""

    def build(parts: Parts) -> Curve:
        pairs = [(mixture(*sum_law(w, run.rate)), count) for (w,), count in parts.items()]
        return Losses(pairs)

    return delayed(run, build, chi_square(run.rate))


def delayed_blocks(run: Run) -> Curve:
    """A pass: (1/l) sum over its intervals i and steps t of N(s_t R_t/sqrt X e_i) against N(0,
    I); passes compose."""
    if (run.steps - 1) % run.blocks == 0 and run.steps > 1:
        raise NotCovered("a last step that begins a pass")

    def build(parts: Parts) -> Curve:
        if max(max(weights) for one in parts for weights in one) > LARGEST:
            return Gaussian(math.inf)
        pairs = []
        for one, count in parts.items():
            equal = Counter((weights, len(weights)) for weights in one)
            copies = tuple((w, n, k) for (w, n), k in equal.items())
            pairs.append((ratio_pair(copies, run.blocks), count))
        return Losses(pairs)

    return delayed(run, build, chi_square(1 / run.blocks))


def labelled(weights: Array, shifts: Array) -> Pair:
    """(J, N(shifts[J], 1)) against (J, N(0, 1)), P[J = j] = weights[j]: Gaussian steps of known
    shifts; weights that are missing from 1 are lost."""
    missing = max(0.0, 1 - math.fsum(weights)) + 1e-15
    moving = shifts > 0

    def cells(h: float) -> Cells:
        top = float(shifts.max())
        last = math.ceil(top * (REACH + top / 2) / h)
        loss = np.arange(-last, last + 1) * h
        p, q = np.zeros(2 * last), np.zeros(2 * last)
        for weight, m in zip(weights[moving], shifts[moving], strict=True):
            edge = np.clip(loss / m + m / 2, -40.0, 40.0)
            p += weight * between(edge[:-1] - m, edge[1:] - m)
            q += weight * between(edge[:-1], edge[1:])
        zero = float(weights[~moving].sum())
        return Cells(-last, p, q, p_above=missing, q_below=missing, p_at_zero=zero)

    return cells


def delayed_subsets(run: Run) -> Curve:
    """Gaussian steps of the shifts S/sqrt X of every interval, which the draws decide; composed."""

    def size(w: Array) -> tuple[float, float]:
        mean, variance = run.rate * float(w.sum()), run.rate * (1 - run.rate) * float((w * w).sum())
        return mean**2 + variance, 4 * mean**2 * variance + 2 * variance**2

    def build(parts: Parts) -> Curve:
        laws = [(labelled(*sum_law(w, run.rate)), count) for (w,), count in parts.items()]
        return Losses(laws)

    return delayed(run, build, size)


# Batches of a fixed size.


def fixed_size(
    run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0, longer: float = 1.0
) -> Curve:
    """Batches of a fixed size, amplified by sampling (docs/theorems/fixed-size)."""
    if run.size == run.n:
        raise Fails("b < n records drawn at every step")
    noises = few(run.multipliers(first, share) / longer, 0.1)
    return Losses([(drawn_subset(run.rate, z, run.moved == 2), count) for z, count in noises], mu)


def drawn_subset(rate: float, z: float, replaced: bool) -> Pair:
    """Batches of a fixed size (docs/theorems/fixed-size): each order's curve as a part of a known
    pair.

    Losses below 0 have the curve q delta_{1/z}(log(1 + (e^e - 1)/q)), that of (1 - q) N(0) + q
    N(1/z) against N(0), in the other order. Losses above 0 have the same under replace-one; under
    zero-out that of q N(2/z) + (1 - q) N(0) against q N(1/z) + (1 - q) N(0), which begins higher at
    epsilon 0 than the other order does: both orders agree there, so the convex hull leaves out
    losses below ``x``, where the tangent from epsilon 0 touches.
    """
    m = 1 / z

    def cells(h: float) -> Cells:
        other = sampled(rate, z)(h)
        cut = -other.first
        # cells 0, 1, ... of the pair that is looked at backwards
        down_p, down_q = other.p[cut:], other.q[cut:]
        if replaced:
            up_p, up_q = down_p, down_q
        else:
            up_p, up_q = _removed(rate, m, h, float(down_p.sum() - down_q.sum()))
        zero = max(0.0, 1 - float(up_q.sum() + down_p.sum()))
        p = np.concatenate((down_q[::-1], up_p))
        return Cells(-down_q.size, p, np.concatenate((down_p[::-1], up_q)), p_at_zero=zero)

    return cells


def _removed(rate: float, m: float, h: float, at_zero: float) -> tuple[Array, Array]:
    """Cells 0, 1, ... of q N(2m) + (1 - q) N(0) against q N(m) + (1 - q) N(0), from the tangent
    point on."""
    top = math.log(rate) + 2 * m * (2 * m + REACH) - 2 * m * m - math.log1p(-rate)
    count = max(1, math.ceil(max(top, m * (3 * m / 2 + REACH)) / h)) + 1
    gamma = np.exp(np.minimum(np.arange(count + 1) * h, 600.0))
    a, b = rate * math.exp(-2 * m * m), gamma * rate * math.exp(-m * m / 2)
    c = (gamma - 1) * (1 - rate)
    # the larger root of a y^2 - b y - c, y = e^(m x)
    edge = np.log((b + np.sqrt(b * b + 4 * a * c)) / (2 * a)) / m
    low, high = float(edge[0]), float(edge[0]) + 40.0

    def difference(x: float) -> float:
        return rate * float(between(np.array([x - 2 * m]), np.array([x - m]))[0])

    # the tangent point, from below: what lies above it is then no less than at_zero
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if difference(middle) >= at_zero else (low, middle)
    edge = np.maximum(edge, low)
    edge[-1] = math.inf
    common = between(edge[:-1], edge[1:])
    p, q = (rate * between(edge[:-1] - k * m, edge[1:] - k * m) for k in (2, 1))
    return p + (1 - rate) * common, q + (1 - rate) * common
