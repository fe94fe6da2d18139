"""Distributions of likelihood ratios on a geometric grid, and their products by Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from lastiterate.curves.gaussian import gdp_delta, log_sum_exp
from lastiterate.run.validation import Array

# The distribution of a likelihood ratio Y = dP/dQ on a geometric grid, rounded so that both
# directions only get worse.  Rounding a value to its two neighbouring nodes with its mean preserved
# is a mean-preserving spread of the distribution of Y under Q: it raises E[f(Y)] for every convex
# f, so delta in both directions, and stays a spread when independent ratios are averaged or
# multiplied afterwards (Jensen's inequality, one factor at a time).  Every node e^{k h} carries its
# mass under Q and, apart from it, its mass under P (the first times the node), so that neither tail
# is lost where the other underflows. All sums have positive terms.

FINE, COARSE = 64, 20
"""Nodes per standard deviation of log Y that grids aim at, more where averages follow on one
another: each adds about h^2 / 6 to the variance."""
MOST_NODES = 3000
"""Nodes beyond which a grid is not refined any more."""
REACH = 9.5
"""Standard deviations beyond which a Gaussian counts as lost; its mass there is below ``LOST``."""
LOST = 1.1e-21
BITS = 12
"""Binary digits of a number of copies that count: at most 1 in 2,000 is left out."""
NEGLIGIBLE = 1e-20
"""Mass that is cut from each end of a distribution, pessimistically, after every average."""
FAR_REACH, FAR_LOST, FAR_NEGLIGIBLE = 13.5, 8e-42, 1e-40
"""The same three for deltas that are as small as what is cut."""
SLACK = 1e-9
"""Relative allowance for rounding errors of masses: sums of at most 10^4 positive terms, good to a
few ulp each, some forty times over."""


@lru_cache
def _rule() -> tuple[Array, Array]:
    """Points and weights of Gauss and Legendre on [-1, 1]; NumPy's polynomials are imported when
    first needed."""
    return np.polynomial.legendre.leggauss(12)


@dataclass(frozen=True, eq=False)
class Ratio:
    """Masses of Y at the nodes e^{(low + k) h} under Q and under P; at 0 under Q, at infinity under
    P.

    ``cut``: the mass that averages of it lose at either end.
    """

    h: float
    low: int
    q: Array
    p: Array
    zero: float
    infinite: float
    cut: float = NEGLIGIBLE

    @property
    def floors(self) -> tuple[float, float]:
        """Below them no delta falls: what is lost in either order."""
        return self.infinite, self.zero

    @property
    def logs(self) -> Array:
        """log Y at the nodes: the privacy loss."""
        return (self.low + np.arange(self.q.size, dtype=np.float64)) * self.h

    @property
    def spread(self) -> float:
        """The standard deviation of log Y under Q or P, whichever is smaller."""
        return min(_std(self.logs, self.q), _std(self.logs, self.p))

    def deltas(self, epsilon: float, mu: float = 0.0) -> tuple[float, float]:
        """Upper ends of delta_{P||Q} and delta_{Q||P}, composed with a ``mu``-GDP mechanism.

        Given Y, a Gaussian mechanism multiplies it by e^{mu Z - mu^2/2}: delta_{P||Q} = sum_k p_k
        delta_mu(eps - log y_k), delta_{Q||P} = sum_k q_k delta_mu(eps + log y_k), delta_mu(e) = (1
        - e^e)_+ for mu = 0. Means are preserved up to a relative error of 1e-11 in all: scaling the
        nodes by as much costs as much in epsilon.
        """
        epsilon -= 1e-11 * (1 + abs(epsilon))
        removed = self.infinite + float((self.p * _gaussian_delta(epsilon - self.logs, mu)).sum())
        added = self.zero + float((self.q * _gaussian_delta(epsilon + self.logs, mu)).sum())
        return min(1.0, removed * (1 + SLACK)), min(1.0, added * (1 + SLACK))


def _gaussian_delta(epsilons: Array, mu: float) -> Array:
    """delta of mu-GDP at any real epsilon: delta(-e) = 1 - e^-e + e^-e delta(e)."""
    below = np.minimum(epsilons, 0.0)
    plain = -np.expm1(below)
    if mu == 0:
        return plain
    positive = gdp_delta(np.abs(epsilons), np.full(1, mu))
    return plain + np.exp(below) * positive


def _std(logs: Array, masses: Array) -> float:
    weights = masses / masses.sum()
    mean = float((weights * logs).sum())
    return math.sqrt(float((weights * (logs - mean) ** 2).sum()))


def lognormal(a: float, h: float, *, far: bool = False) -> Ratio:
    """Y = exp(a Z - a^2 / 2), Z ~ N(0, 1): the ratio of N(a, 1) to N(0, 1), rounded to nodes e^{k
    h}.

    Cells are integrated by 12 Gauss points each, which is exact to rounding for (20 + a) h / a <=
    8: the integrands are Gaussians times exponentials over a width h / a.
    """
    reach = (FAR_REACH if far else REACH) * a + a * a / 2
    low, high = math.floor(-reach / h), math.ceil(reach / h)
    points, weights = _rule()
    place = (points + 1) / 2
    z = ((np.arange(low, high)[:, None] + place) * h + a * a / 2) / a
    scale = weights / 2 * (h / a) / math.sqrt(2 * math.pi)
    up: Array = np.expm1(place * h) / math.expm1(h)
    under_q, under_p = np.exp(-z * z / 2) * scale, np.exp(-((z - a) ** 2) / 2) * scale
    q, p = np.zeros(high - low + 1), np.zeros(high - low + 1)
    q[1:], p[1:] = under_q @ up, under_p @ (up * np.exp((1 - place) * h))
    q[:-1] += under_q @ (1 - up)
    p[:-1] += under_p @ ((1 - up) * np.exp(-place * h))
    # both tails go to 0 under Q and to infinity under P
    lost, cut = (FAR_LOST, FAR_NEGLIGIBLE) if far else (LOST, NEGLIGIBLE)
    return Ratio(h, low, q, p, 2 * lost, 2 * lost, cut)


def average(one: Ratio, two: Ratio, share: float, finer: int = 1) -> Ratio:
    """share Y_1 + (1 - share) Y_2 for independent ratios, on a grid of two.h / ``finer``; one.h is
    a multiple of two.h.

    share e^{i h} + (1 - share) e^{j h} = e^{i h} (share + (1 - share) e^{-(i - j) h}): where it
    falls between two nodes depends on i - j alone, so that each difference is one product of
    shifted vectors.
    """
    coarser, other = round(one.h / two.h), 1 - share
    alike = one is two and share == 0.5  # i - j and j - i fall on the same nodes
    ends = [
        (law.low * times, (law.low + law.q.size - 1) * times)
        for law, times in ((one, coarser), (two, 1))
    ]
    lowest = ends[0][0] * two.h + math.log(share), ends[1][0] * two.h + math.log(other)
    bottom = float(np.logaddexp(*lowest)) / two.h
    nodes = _Nodes(
        two.h / finer, math.floor(bottom * finer) - 1, max(ends[0][1], ends[1][1]) * finer + 2
    )
    for d in range(0 if alike else ends[0][0] - ends[1][1], ends[0][1] - ends[1][0] + 1):
        i = max(one.low, -(-(two.low + d) // coarser))
        count = min(one.low + one.q.size - 1, (ends[1][1] + d) // coarser) - i + 1
        if count < 1:
            continue
        begin = i * coarser - d - two.low
        of_one = slice(i - one.low, i - one.low + count)
        of_two = slice(begin, begin + (count - 1) * coarser + 1, coarser)
        offset = (
            math.log(share + other * math.exp(-d * two.h))
            if d >= 0
            else (math.log(share * math.exp(d * two.h) + other) - d * two.h)
        )
        q = one.q[of_one] * two.q[of_two]
        p = share * (one.p[of_one] * two.q[of_two]) + other * (one.q[of_one] * two.p[of_two])
        weight = 2.0 if alike and d else 1.0
        nodes.add(i * coarser * finer, coarser * finer, offset, weight * q, weight * p)
    # where one of them is 0 the rest is far below all nodes: to 0 under Q and to infinity under P
    lost = other * one.zero * float(two.p.sum()) + share * two.zero * float(one.p.sum())
    return nodes.law(
        one.zero + two.zero,
        share * one.infinite + other * two.infinite + lost,
        max(one.cut, two.cut),
    )


class _Nodes:
    """Masses that fall between the nodes of a grid, shared by the two around them with the mean
    preserved."""

    def __init__(self, h: float, low: int, high: int) -> None:
        self.h, self.low = h, low
        self.q, self.p = np.zeros(high - low + 1), np.zeros(high - low + 1)

    def add(self, first: int, stride: int, offset: float, q: Array, p: Array) -> None:
        """Values e^{(first + k stride) h + offset}, k = 0, 1, ..., of masses ``q`` and ``p``."""
        if not q.size:
            return
        node = math.floor(offset / self.h)
        place = min(max(offset - node * self.h, 0.0), self.h)
        up = math.expm1(place) / math.expm1(self.h)
        begin = first + node - self.low
        for at, share, under_p in (
            (begin, 1 - up, math.exp(-place)),
            (begin + 1, up, math.exp(self.h - place)),
        ):
            nodes = slice(at, at + (q.size - 1) * stride + 1, stride)
            self.q[nodes] += share * q
            self.p[nodes] += share * under_p * p

    def law(self, zero: float, infinite: float, cut: float) -> Ratio:
        """Return the distribution, cut at both ends where less than ``cut`` lies: to 0 under Q and
        to infinity under P."""
        both = self.q + self.p
        first = int(np.searchsorted(np.cumsum(both), cut))
        last = both.size - int(np.searchsorted(np.cumsum(both[::-1]), cut))
        return Ratio(
            self.h,
            self.low + first,
            self.q[first:last],
            self.p[first:last],
            zero + 2 * cut,
            infinite + 2 * cut,
            cut,
        )


def certain(h: float, *, far: bool = False) -> Ratio:
    """Y = 1: nothing to distinguish."""
    return Ratio(h, 0, np.ones(1), np.ones(1), 0.0, 0.0, FAR_NEGLIGIBLE if far else NEGLIGIBLE)


def mean_of(a: float, count: int, h: float, resolution: int = FINE, *, far: bool = False) -> Ratio:
    """The mean of ``count`` independent ratios of N(a, 1) to N(0, 1), on grids that begin at ``h``
    and get finer. ``far``: for deltas that are as small as what is cut otherwise.

    Fewer ratios have a mean that is a spread of the mean of more: ``count`` is rounded down to
    ``BITS`` binary digits.
    """
    if a == 0:
        return certain(h, far=far)
    resolution = round(resolution * max(1.0, math.sqrt(count.bit_length() / 6)))
    count -= count % (1 << max(count.bit_length() - BITS, 0))
    power, total, size, held = lognormal(a, h, far=far), None, 1, 0
    while True:
        if count & size:
            total = (
                power
                if total is None
                else mix_ratios(total, power, held / (held + size), resolution)
            )
            held += size
        size *= 2
        if size > count:
            assert total is not None
            return total
        power = mix_ratios(power, power, 0.5, resolution)


def mix_ratios(one: Ratio, two: Ratio, share: float, resolution: int = FINE) -> Ratio:
    """share Y_1 + (1 - share) Y_2 for independent ratios on grids of which one contains the other.

    The grid is halved where it is coarse for the narrower distribution: averages are narrower
    still.
    """
    if one.h < two.h:
        one, two, share = two, one, 1 - share
    wanted = math.hypot(share * one.spread, (1 - share) * two.spread) / resolution
    while two.h < one.h and (2 * two.h <= wanted or one.q.size * one.h > 2 * MOST_NODES * two.h):
        two = coarsen(two)
    finer = 2 if two.h > 1.4 * wanted and two.q.size > 1 and 2 * two.q.size <= MOST_NODES else 1
    return average(one, two, share, finer)


def coarsen(law: Ratio) -> Ratio:
    """The same on every other node."""
    low = law.low // 2
    nodes = _Nodes(2 * law.h, low, (law.low + law.q.size) // 2 + 1)
    for first in (0, 1):
        at = law.low + first
        nodes.add(at // 2, 1, law.h * (at % 2), law.q[first::2], law.p[first::2])
    return nodes.law(law.zero, law.infinite, law.cut)


# Several independent likelihood ratios at once: products of distributions on one geometric grid, by
# fast Fourier transforms.  Dominating pairs compose adaptively, each order by itself (Zhu, Dong,
# Wang 2022, Theorem 10), and the likelihood ratio of a product is the product of the factors'
# ratios: their losses add up on the grid, under Q and under P.

LOWEST, USUAL, HIGHEST = -40, -6, 13
"""Half powers of two, over the standard deviation, between which ``_window`` looks for a rate; the
first where draws are rare."""
CUT = 1e-18
"""Bound on the mass outside of the window of a product, which is lost."""
LARGEST = 2**21
"""Nodes of a product."""
UNIT = 2.0**-53
RATES = np.geomspace(0.005, 50.0, 64)
"""Exponents of ``chernoff``'s bounds, over the standard deviation of the loss."""
DECADE = 16
"""Further exponents per decade below them, down to one over the largest loss: where one step in
thousands holds a record and noise is small, losses reach 10^5 standard deviations."""
RETRY = 4
"""Rates that are left out before the next one is tried, where a tilted product has too many nodes."""
TRIMMED = 1e-18
"""Mass of far losses that ``tilt_product`` may count as infinite."""

Parts = tuple[tuple[Ratio, int], ...]


def product(parts: Parts) -> Ratio:
    """Return the distribution of the product of ``count`` independent copies of every part; all on
    grids of the same h.

    ``ValueError`` where it needs more than ``LARGEST`` nodes.
    """
    under_p, low_p, lost_p = _convolve(
        [(law.low, law.p, count) for law, count in parts], parts[0][0].h
    )
    under_q, low_q, lost_q = _convolve(
        [(law.low, law.q, count) for law, count in parts], parts[0][0].h
    )
    low, high = min(low_p, low_q), max(low_p + under_p.size, low_q + under_q.size)
    p, q = np.zeros(high - low), np.zeros(high - low)
    p[low_p - low : low_p - low + under_p.size] = under_p
    q[low_q - low : low_q - low + under_q.size] = under_q
    return Ratio(
        parts[0][0].h,
        low,
        q,
        p,
        lost_q + sum(count * law.zero for law, count in parts),
        lost_p + sum(count * law.infinite for law, count in parts),
    )


def _convolve(
    parts: list[tuple[int, Array, int]], h: float, *, rare: bool = False
) -> tuple[Array, int, float]:
    """Masses of the sum of losses, the index of the first, and a bound on what a delta may lack.

    What lies beyond the window, at either end, is lost.
    """
    low, high = _window(parts, h, LOWEST if rare else USUAL)
    if high - low >= LARGEST and not rare:  # every window holds: draws may be rare here too
        low, high = _window(parts, h)
    size = 2 ** max(1, math.ceil(math.log2(high - low + 1)))
    if size > LARGEST:
        raise ValueError("too many nodes")
    transforms = [
        np.fft.rfft(np.bincount((first + np.arange(masses.size)) % size, masses, size))
        for first, masses, _ in parts
    ]
    counts = [count for _, _, count in parts]
    total = np.ones(size // 2 + 1, dtype=np.complex128)
    for transform, count in zip(transforms, counts, strict=True):
        total = total * _power(transform, count)
    masses = np.roll(np.fft.irfft(total, size), -(low % size))
    return (
        np.maximum(masses[: high - low + 1], 0.0),
        low,
        2 * CUT + _bound_rounding(transforms, counts, total, size, rare=rare),
    )


def compose_ratios(parts: tuple[tuple[Ratio, int], ...], resolution: float) -> Ratio:
    """The product, on ``resolution`` to four times as many nodes for each standard deviation of its
    loss."""
    law = parts[0][0] if len(parts) == 1 and parts[0][1] == 1 else product(parts)
    while law.h * 4 * resolution < law.spread:
        law = coarsen(law)
    return law


@dataclass(frozen=True, eq=False)
class Chernoff:
    """A product by the moments of its factors, for deltas that rounding would hide: every error is
    relative.

    (1 - e^-x)_+ <= c e^{t x} for t > 0, c = t^t / (1 + t)^{1 + t} (their largest ratio): E_P[(1 -
    e^{eps - L})_+] is at most c e^{-t eps} times the product of the factors' E_P[e^{t L}] (Canonne,
    Kamath, Steinke 2020, Proposition 12). ``removed`` and ``added``: logarithms of c and the
    product at ``rates`` t, of finite losses alone; ``infinite`` and ``zero``: sums of what the
    factors lose, in full. All is rounded up.
    """

    rates: Array
    removed: Array
    added: Array
    infinite: float
    zero: float

    def deltas(self, epsilon: float, mu: float = 0.0) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism, of loss N(mu^2/2,
        mu^2) in either."""
        epsilon = min(epsilon, 1e100)  # delta never increases, and products with rates stay finite
        epsilon -= 1e-11 * (1 + abs(epsilon))  # as ``Ratio.deltas``
        gauss = self.rates * (1 + self.rates) * (mu * mu / 2) * (1 + 1e-14)
        removed, added = (self.infinite, self.removed), (self.zero, self.added)
        one, two = (
            lost + math.exp(min(0.0, float((logs + gauss - self.rates * epsilon).min())))
            for lost, logs in (removed, added)
        )
        return min(1.0, one * (1 + 1e-11)), min(1.0, two * (1 + 1e-11))


def chernoff(parts: Parts) -> Chernoff:
    """``product`` by moments, of ``count`` independent copies of every part; grids need not be
    alike.

    A moment is a sum of positive terms: their exponents are good to 2^-52 of themselves, their sum
    to 1e-13.
    """
    variance = sum(count * law.spread**2 for law, count in parts)
    rates: Array = RATES / math.sqrt(max(variance, 1e-300))
    largest = max(
        float(np.abs(law.logs[masses > 0]).max(initial=0.0))
        for law, _ in parts
        for masses in (law.p, law.q)
    )
    first = float(rates[0])
    if first * largest > 1:
        more = math.ceil(DECADE * math.log10(first * largest))
        lower: Array = np.geomspace(1 / largest, first, more, endpoint=False)
        rates = np.concatenate([lower, rates])
    orders: list[Array] = []
    for sign in (1, -1):
        logs = rates * np.log(rates) - (1 + rates) * np.log1p(rates) + 1e-13 * (1 + rates)
        for law, count in parts:
            losses, masses = (law.logs, law.p) if sign > 0 else (-law.logs, law.q)
            kept = masses > 0
            if not kept.any():
                return Chernoff(rates[:1], np.zeros(1), np.zeros(1), 1.0, 1.0)
            seen, x = np.log(masses[kept]), losses[kept]
            size = float(np.abs(x).max())
            logs += count * np.array(
                [log_sum_exp(seen + t * x) + 1e-13 + 4 * UNIT * t * size for t in rates]
            )
        orders.append(logs)
    infinite = sum(count * law.infinite for law, count in parts) * (1 + 1e-12)
    zero = sum(count * law.zero for law, count in parts) * (1 + 1e-12)
    return Chernoff(rates, orders[0], orders[1], infinite, zero)


@dataclass(frozen=True, eq=False)
class Tilted:
    """A product by Fourier transforms of tilted masses, for deltas that the rounding of plain sums
    would hide.

    With tilt t > 0 each factor's masses become p_k e^{t l_k} / M: then E_P[(1 - e^{eps - L})_+] is
    the product of all M times the tilted mean of w(L) = e^{-t L} (1 - e^{eps - L})_+. What
    transforms and windows lose is a share of the largest w, which makes it a share of the bound by
    moments at that rate (Esscher's transform). w rises and then falls, also with a Gaussian
    mechanism: e^{-t l} delta_mu(eps - l) is log-concave, as the survival function of a normal loss
    is. ``trimmed``: the same without the farthest losses, which count as infinite; where few steps
    hold a record, they spoil the moments.
    """

    parts: Parts
    moments: Chernoff
    trimmed: Tilted | None = None

    def deltas(self, epsilon: float, mu: float = 0.0) -> tuple[float, float]:
        """Upper ends of delta in both orders, with a ``mu``-Gaussian mechanism on the same data."""
        found = [self.moments.deltas(epsilon, mu)]
        if self.trimmed is not None:
            found.append(self.trimmed.deltas(epsilon, mu))
        epsilon = min(epsilon, 1e100)
        epsilon -= 1e-11 * (1 + abs(epsilon))  # as ``Ratio.deltas``
        lost = self.moments.infinite, self.moments.zero
        one, two = (lost[order] + self._sum_finite(order, epsilon, mu) for order in (0, 1))
        removed, added = zip(*found, (one, two), strict=True)
        return min(removed), min(added)

    def _sum_finite(self, order: int, epsilon: float, mu: float) -> float:
        """Upper end of the part of delta that comes of finite losses."""
        rates = self.moments.rates
        gauss = rates * (1 + rates) * (mu * mu / 2) * (1 + 1e-14)
        logs = (self.moments.added if order else self.moments.removed) + gauss - rates * epsilon
        for rate in range(int(logs.argmin()), -1, -RETRY):
            if not -700 < logs[rate] < 0:  # nothing to gain, or less than a double
                return 1.0
            if (tilted := _tilt(self, order, rate)) is not None:
                most, (log_scale, off, losses, masses, lost) = math.exp(logs[rate]), tilted
                if mu == 0:
                    above = losses > epsilon
                    losses, masses = losses[above], masses[above]
                with np.errstate(under="ignore", over="ignore"):
                    weights = np.exp(log_scale - rates[rate] * losses)
                    weights *= _gaussian_delta(epsilon - losses, mu)
                    total = float((masses * np.minimum(weights, most)).sum())
                return (total + most * lost) * math.exp(off) * (1 + SLACK)
        return 1.0


@lru_cache(maxsize=16)
def _tilt(law: Tilted, order: int, rate: int) -> tuple[float, float, Array, Array, float] | None:
    """The logarithm of the product of all M, that of the largest relative error of a mass, losses,
    tilted masses of the sum of losses, and what a mean of weights up to 1 may lack; ``None`` where
    there are too many nodes.

    Logarithms of masses are below 745 and good to 2^-52 of themselves, exponents to that of their
    terms.
    """
    tilt, log_scale, off = float(law.moments.rates[rate]), 0.0, 0.0
    parts: list[tuple[int, Array, int]] = []
    for part, count in law.parts:
        first, masses = (1 - part.low - part.q.size, part.q[::-1]) if order else (part.low, part.p)
        losses = (first + np.arange(masses.size, dtype=np.float64)) * part.h
        with np.errstate(divide="ignore", under="ignore"):
            logs = np.log(masses) + tilt * losses
            moment = log_sum_exp(logs)
            parts.append((first, np.exp(logs - moment), count))
        size = float(np.abs(losses).max())
        log_scale += count * moment
        off += count * (1e-12 + 8 * UNIT * (abs(moment) + tilt * size))
    h, rare = law.parts[0][0].h, law.moments.rates.size > RATES.size
    try:
        total, low, lost = _convolve(parts, h, rare=rare)
    except (ValueError, OverflowError):
        return None
    return log_scale, off, (low + np.arange(total.size, dtype=np.float64)) * h, total, lost


def tilt_product(parts: Parts) -> Tilted | Chernoff:
    """``product`` for small deltas; by moments alone where grids differ."""
    moments = chernoff(parts)
    if any(part.h != parts[0][0].h for part, _ in parts) or moments.rates.size == 1:
        return moments
    trimmed = tuple((_trim(part, count), count) for part, count in parts)
    return Tilted(parts, moments, Tilted(trimmed, chernoff(trimmed)))


def _trim(law: Ratio, count: int) -> Ratio:
    """``law`` with the farthest losses of either order, of mass ``TRIMMED`` in all copies, lost."""
    above = np.cumsum(law.p[::-1])[::-1] * count <= TRIMMED
    below = np.cumsum(law.q) * count <= TRIMMED
    return replace(
        law,
        p=np.where(above, 0.0, law.p),
        q=np.where(below, 0.0, law.q),
        infinite=law.infinite + float(law.p[above].sum()),
        zero=law.zero + float(law.q[below].sum()),
    )


def _bound_rounding(
    transforms: list[NDArray[np.complex128]],
    counts: list[int],
    total: NDArray[np.complex128],
    size: int,
    *,
    rare: bool,
) -> float:
    """Bound on the error of any delta.

    A coefficient of a transform of masses that sum to 1 is off by at most r = 8 u log2(size); a
    power multiplies that by its exponent and the modulus to the power before. A delta weighs masses
    by a function of total variation 2 on the circle, whose k-th coefficient is at most 1/k. The
    inverse transform adds r times the mean modulus to each mass. ``rare``: closer where few nodes
    hold the mass. The Euclidean norm of its error is at most r times that of the masses (Higham
    2002, Theorem 24.2); a sum of ``size`` of its entries, with weights up to 1, is at most r times
    the Euclidean norm of all coefficients.
    """
    one = 8 * UNIT * math.log2(size)
    sizes = [np.abs(transform) + one for transform in transforms]
    with np.errstate(under="ignore"):
        whole = np.prod(
            [modulus**count for modulus, count in zip(sizes, counts, strict=True)], axis=0
        )
    wrong = sum(
        count * (one + 4 * UNIT) * whole / modulus
        for modulus, count in zip(sizes, counts, strict=True)
    )
    weights = 1 / np.maximum(np.arange(total.size), 1.0)
    moduli = np.abs(total)
    norm = math.sqrt(2 * float((moduli**2).sum())) if rare else 2 * float(moduli.sum())
    return 2 * float((weights * wrong).sum()) + one * norm


def _power(base: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """base^count by repeated squaring."""
    power = np.ones_like(base)
    with np.errstate(under="ignore"):
        while count:
            if count & 1:
                power = power * base
            base, count = base * base, count >> 1
    return power


def _least(bound: Callable[[int], float], lowest: int) -> float:
    """The least value between ``lowest`` and ``HIGHEST`` of a function that falls and then rises.

    (log M(rate) + c) / rate is one, c > 0: log M is convex and 0 at 0.
    """
    at, value = 0, bound(0)
    for way in (1, -1):
        while lowest <= at + way <= HIGHEST and (further := bound(at + way)) <= value:
            at, value = at + way, further
    return value


def _window(parts: list[tuple[int, Array, int]], h: float, lowest: int = LOWEST) -> tuple[int, int]:
    """Indices between which the sum of losses lies but for a mass of ``CUT`` at either end
    (Chernoff)."""
    low = sum(count * first for first, _, count in parts)
    high = sum(count * (first + masses.size - 1) for first, masses, count in parts)
    values = [(first + np.arange(masses.size)) * h for first, masses, _ in parts]
    variance = sum(
        count * float((masses * x * x).sum())
        for (_, masses, count), x in zip(parts, values, strict=True)
    )
    scale = math.sqrt(variance + h * h)

    def bound(half: int, sign: int) -> float:
        rate, total = sign * 2.0 ** (half / 2) / scale, -math.log(CUT)
        for (_, masses, count), x in zip(parts, values, strict=True):
            exponents = rate * x
            top = float(max(exponents[0], exponents[-1]))  # of losses that rise
            moment = float((masses * np.exp(exponents - top)).sum())
            total += count * (top + math.log(max(moment, 1e-300)))  # above what underflows
        return total / rate

    high = min(high, math.ceil(_least(lambda half: bound(half, 1), lowest) / h) + 1)
    low = max(low, math.floor(-_least(lambda half: -bound(half, -1), lowest) / h) - 1)
    return low, max(high, low + 1)
