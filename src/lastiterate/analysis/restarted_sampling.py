"""The last iterate of sampled batches after a restart: contraction for the past, sampling for the
rest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lastiterate.analysis.secret_blocks import usual_counts
from lastiterate.analysis.step_map import find_known_map
from lastiterate.curves.allocation import AllocationPld
from lastiterate.curves.curve import BestOf, Curve, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.sampled_batches import FixedSizeSteps, Pld
from lastiterate.curves.subsampling import merge_levels
from lastiterate.run.adjacency import records_moved
from lastiterate.run.facts import require_fact
from lastiterate.run.run import Run
from lastiterate.run.validation import Array

# The last iterate of sampled batches after a restart: contraction for the past, sampling for the
# rest.  Before step r the two runs use the same noise and the same draws, so that they are at most
# z apart. From then on the distance is absorbed by shifts, which are given the share 1 - beta of
# every step's noise; what the record adds is hidden by its secret draws and the share beta. Proof:
# docs/theorems/restarted-sampling.

FAILURES = (0.0, 1e-20, 1e-12, 1e-9, 1e-7)
"""Probabilities that a batch holds more or fewer records than usual, or that a record is drawn more
often."""
SHARES = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998, 0.999)
"""Choices of beta."""
LONGEST = 2**16
"""Steps that are followed one by one; what lies before them is bounded by its limit."""
RESTARTS = 60
"""Steps at which a restart is tried."""


@dataclass(frozen=True, eq=False)
class LastSteps:
    """Lipschitz constants, shifts, noise variances and noise multipliers of the last steps; the
    distance before them."""

    c: Array
    s: Array
    v: Array
    z: Array
    before: float
    diameter: float


Distances = Callable[[LastSteps, float, Array], Array]
"""The logarithm of how far apart two runs can be at certain steps (the last argument), except with
the probability given."""


Lengthened = Callable[[float, float], float]
"""From ``apart`` and ``closed`` of a restart to the factor by which what the record adds is longer
in its tail."""


@dataclass(frozen=True)
class Restart:
    """The tail begins at step ``first``; its sampled steps have the share ``share`` of the noise
    variance, its shifts cost ``mu``. ``size``: about what it costs in all, as a squared mu; it
    orders choices and bounds nothing.

    ``apart``: a bound on the distance at all of these steps; ``closed``: on how much of it one
    shift closes, measured before the step's map."""

    size: float
    first: int
    share: float
    mu: float
    apart: float = 0.0
    closed: float = 0.0


Seen = Callable[[Array], Array]
"""From the square of a noise multiplier to the chi-squared distance of what a record that is drawn
for certain adds."""


def by_itself(square: Array) -> Array:
    """Return the chi-squared distance of N(1/z) to N(0); infinite with next to no noise, so that
    such a step ranks last."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.expm1(1 / square)


def add_nothing(apart: float, closed: float) -> float:
    """Return 1: the record's shift is not lengthened."""
    return 1.0


def search_restarts(
    run: Run,
    *,
    chance: float,
    every: int,
    distances: Distances,
    curve: Callable[[Run, Restart], Curve],
    shares: tuple[float, float] | None = None,
    lengthened: Lengthened = add_nothing,
    seen: Seen = by_itself,
) -> Curve:
    """The best restarts for several failures; ``curve`` with a restart at step 0 is composition of
    sampled steps.

    ``chance``: of another record to be in a batch; ``every``: restarts lie at its multiples (a
    pass, or a step). ``shares``: the least and the largest load of a batch where it is not drawn;
    ``lengthened``: see ``Lengthened``; ``seen`` orders choices.
    """
    restarts: list[Restart] = []
    curves, maps = [curve(run, Restart(math.inf, 0, 1.0, 0.0))], None
    if curves == [Gdp(0.0)]:
        return curves[0]  # the record adds nothing
    for failure in FAILURES:
        steps = last_steps(run, chance, failure / 2, every, shares)
        whole = _approximate_squared_mu(steps.z, chance, 1.0, seen)
        same = maps is not None and np.array_equal(maps, steps.c) and every > 1
        maps = steps.c
        if same:
            continue  # a larger failure buys nothing
        best = min(
            candidates(steps, chance, run.steps, every, distances, failure / 2, lengthened, seen),
            key=lambda one: one.size,
            default=None,
        )
        if best is not None and best.size < min((one.size for one in restarts), default=whole) * (
            1 - 1e-3
        ):
            restarts.append(best)
            curves.append(WithFailure(curve(run, best), failure) if failure else curve(run, best))
    return curves[0] if len(curves) == 1 else BestOf(tuple(curves))


def last_steps(
    run: Run, chance: float, failure: float, every: int, shares: tuple[float, float] | None = None
) -> LastSteps:
    """The last steps, whole passes of ``every`` and the rest, if the loads of all batches are usual
    (or ``shares``)."""
    sensitivity = require_fact(run.facts(), "sensitivity")
    if shares is None:
        fewest, most = usual_counts(run.n - 1, chance, failure, -(-run.steps // every) * every)
        shares = fewest / run.divisor, most / run.divisor
    curvature = find_known_map(run, shares)
    skipped = max(0, run.steps - LONGEST) // every * every
    eta, std, unit = (
        run.step_sizes[skipped:],
        run.noise_stds[skipped:],
        sensitivity.value / run.divisor,
    )
    diameter, before = run.domain.diameter(), 0.0
    if skipped:
        longest = run.step_sizes[:skipped].max()
        worst = float(curvature.lipschitz_each(run.step_sizes[:skipped]).max())
        left = 1 - worst - 2.0**-50  # what rounding may have added to it
        limit = longest * unit / left if left > 0 else math.inf
        before = min(diameter, limit * (1 + 1e-9))
    return LastSteps(
        curvature.lipschitz_each(eta), eta * unit, (eta * std) ** 2, std / unit, before, diameter
    )


def candidates(
    steps: LastSteps,
    chance: float,
    total: int,
    every: int,
    distances: Distances,
    failure: float,
    lengthened: Lengthened = add_nothing,
    seen: Seen = by_itself,
) -> list[Restart]:
    """Restarts at some steps with some shares; each is valid."""
    count = steps.c.size
    far = (
        np.unique(np.round(np.geomspace(1, max(1, (count - 1) // every), RESTARTS)).astype(int))
        * every
    )
    first = np.unique(count // every * every - np.concatenate(([0], far)))
    first = first[(first > 0) & (first < count)]
    if not first.size:
        return []
    log_c, log_v = _log(steps.c), _log(steps.v)
    later = np.append(
        np.cumsum(log_c[::-1])[::-1], 0.0
    )  # later[t]: log of the product from step t on
    noise = np.logaddexp.accumulate((log_v + 2 * later[1:])[::-1])[::-1]
    slack = _bound_rounding(later, steps)
    with np.errstate(invalid="ignore", over="ignore"):  # a shift that costs too much is left out
        begun = distances(steps, failure, first) + later[first]  # log of z_r c_r ... c_{T-1}
        exponent = 2 * begun - noise[first] + slack
        cost = np.where(exponent > LEAST, np.exp(exponent), math.exp(LEAST))
        apart = np.exp(
            begun - _least(later[:-1])[first] + slack
        )  # without shifts, z_t = z_r c_r ... c_{t-1}
        # shifts a_{t+1} = z_r c_r ... c_{T-1} v_t c_{t+1} ... c_{T-1} / sum_u v_u (c_{u+1} ...
        # c_{T-1})^2, over c_t
        closed = np.exp(begun - noise[first] - _least(log_c - log_v - later[1:])[first] + slack)
    return [
        Restart(
            _approximate_squared_mu(steps.z[at:] / lengthened(wide, part), chance, share, seen)
            + shift / (1 - share),
            total - count + int(at),
            share,
            math.sqrt(shift / (1 - share)),
            wide,
            part,
        )
        for at, shift, wide, part in zip(
            first, cost.tolist(), apart.tolist(), closed.tolist(), strict=True
        )
        if not math.isnan(shift + wide + part) and math.isfinite(shift)
        for share in SHARES
    ]


def _least(values: Array) -> Array:
    """Return the least of the values from every index on."""
    return np.minimum.accumulate(values[::-1])[::-1]


LEAST = -700.0
"""The logarithm of the smallest squared mu that shifts cost."""


def _log(values: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _bound_rounding(later: Array, steps: LastSteps) -> float:
    """Above the errors of ``exponent``: sums of at most as many logarithms as there are steps,
    2^-53 of the largest partial sum each, and of what distances allow for."""
    parts = [np.abs(x[np.isfinite(x)]) for x in (later, _log(steps.s), _log(steps.v))]
    return (
        2.0**-48 * (steps.c.size + 16) * (1 + sum(float(x.max()) for x in parts if x.size)) + 1e-9
    )


def _approximate_squared_mu(z: Array, chance: float, share: float, seen: Seen) -> float:
    """About the squared mu of sampled steps (central limit theorem, Dong, Roth, Su 2022); it orders
    choices only."""
    with np.errstate(over="ignore"):  # of z^2, where nothing is seen
        return chance * (
            chance * float(seen(share * z * z).sum())
        )  # the square of a chance may be 0, and 0 inf a nan


def distances_of_passes(blocks: int) -> Distances:
    """At the ends of passes, in each of which the record takes part once, wherever it does most.
    Always holds."""

    def distances(steps: LastSteps, failure: float, at: Array) -> Array:
        whole = steps.c.size // blocks
        log_c, log_s = (
            _log(x[: whole * blocks]).reshape(whole, blocks) for x in (steps.c, steps.s)
        )
        later = np.concatenate(
            (np.cumsum(log_c[:, ::-1], axis=1)[:, ::-1][:, 1:], np.zeros((whole, 1))), axis=1
        )
        added, shrunk = (log_s + later).max(axis=1), log_c.sum(axis=1)
        apart, z, widest = np.empty(whole + 1), *_log(np.array([steps.before, steps.diameter]))
        for number in range(whole + 1):
            apart[number] = z = min(z, widest)
            z = np.logaddexp(shrunk[number] + z, added[number]) if number < whole else z
        return apart.take((at // blocks).astype(np.int64))

    return distances


def distances_of_draws(rate: float, records: int = 1) -> Distances:
    """Bound distances where the record is drawn at every step with probability ``rate``: Chernoff's
    bound on the sum of its shifts, or of those of several ``records``, each drawn at most as if by
    itself."""

    def distances(steps: LastSteps, failure: float, at: Array) -> Array:
        apart = _all_shifts(
            steps.c.tobytes(),
            steps.s.tobytes(),
            steps.before,
            failure,
            tuple(at.tolist()),
            rate,
            records,
        )
        return np.minimum(_log(np.array([steps.diameter]))[0], apart)

    return distances


DRAWN = 4096
"""Shifts whose draws are followed; older ones count as drawn."""


@lru_cache(maxsize=8)
def _all_shifts(
    c: bytes,
    s: bytes,
    before: float,
    failure: float,
    at: tuple[int, ...],
    rate: float,
    records: int,
) -> tuple[float, ...]:
    """``_shifts`` at several steps. They do not depend on the noise, and a search for it asks for
    the same again."""
    each = np.frombuffer(c), np.frombuffer(s)
    return tuple(_shifts(*each, before, failure, int(first), rate, records) for first in at)


def _shifts(
    c: Array, s: Array, before: float, failure: float, first: int, rate: float, records: int
) -> float:
    """The logarithm of a bound on the distance at step ``first``, except with probability
    ``failure``."""
    later = np.concatenate(([0.0], np.cumsum(_log(c[:first][::-1]))))
    parts = np.append(_log(s[:first][::-1]) + later[:-1], _log(np.array([before]))[0] + later[-1])
    unit = float(parts.max())
    if math.isinf(unit):
        return unit
    each = np.exp(parts - unit)  # what is lost below is 1e-308 of the largest
    old, each = records * float(each[min(DRAWN, first) :].sum()), each[: min(DRAWN, first)]
    recent, largest = records * float(each.sum()), float(each.max())
    for theta in np.geomspace(0.05, 200, 60) / largest if failure > 0 and largest > 1e-300 else ():
        moment = float(np.log1p(rate * np.expm1(theta * each)).sum())  # e^200 at most
        recent = min(recent, (records * moment - math.log(failure)) / theta)
    return unit + math.log((recent + old) * (1 + 1e-9))


# What the bounds for sampled batches share: the noise multiplier of every step, and the curves of
# sampled steps.  Poisson: every record is in every batch independently with probability q, so that
# a step is a Poisson-subsampled Gaussian mechanism with noise multiplier noise_std * divisor /
# sensitivity. The divisor is public, hence zero-out (the record's gradient becomes 0) and
# add-remove compare the same two distributions; both orders of the pair are covered. Steps are
# charged one by one, whatever is released and however they are combined. Proofs:
# docs/theorems/poisson, docs/theorems/random-allocation.

MOST_LEVELS = 64
"""Different noise multipliers that are distinguished."""


def levels(run: Run, first: int = 0, share: float = 1.0) -> tuple[tuple[float, int], ...] | None:
    """(noise multiplier, steps) from step ``first`` on, least noise first; ``None`` where nothing
    leaks because the sensitivity is 0. ``share``: of the noise variance.

    Beyond ``MOST_LEVELS`` different multipliers they are rounded down.
    """
    unit = _unit(run, share)
    if unit is None:
        return None
    if run.same_noise:
        return ((run.first_noise * unit, run.steps - first),)
    noises, counts = np.unique(run.noise_stds[first:] * unit, return_counts=True)
    return merge_levels(tuple(zip(noises.tolist(), counts.tolist(), strict=True)), MOST_LEVELS)


def _unit(run: Run, share: float) -> float | None:
    sensitivity = require_fact(run.facts(), "sensitivity")
    return run.divisor / sensitivity.value * math.sqrt(share) if sensitivity.value else None


def poisson_steps(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """Steps ``first`` .. T - 1 of Poisson batches with the share ``share`` of the noise variance,
    and a mechanism ``mu``."""
    noises, rate = levels(run, first, share), run.sampling_rate
    if noises is None:
        return Gdp(mu)
    return Pld(rate, tuple(z for z, _ in noises), tuple(count for _, count in noises), mu=mu)


def allocation_passes(run: Run, first: int = 0, share: float = 1.0, mu: float = 0.0) -> Curve:
    """The same for fresh secret blocks; ``first`` is where a pass begins. A pass has the least
    noise of its steps."""
    unit = _unit(run, share)
    if unit is None:
        return Gdp(mu)
    passes, reached = divmod(run.steps - first, run.blocks)
    if run.same_noise:
        last = run.first_noise * unit
        levels: dict[float, int] = {last: passes} if passes else {}
    else:
        full, rest = np.split(run.noise_stds[first:], [passes * run.blocks])
        levels = dict(
            sorted(
                Counter[float](
                    (full.reshape(passes, run.blocks).min(axis=1) * unit).tolist()
                ).items()
            )
        )
        last = float(rest.min()) * unit if reached else 0.0
    return AllocationPld(
        run.blocks, tuple(levels), tuple(levels.values()), last if reached else 0.0, reached, mu=mu
    )


# Batches of a fixed size after a restart: the replacement of a record is published, whether it was
# drawn is not.  The uniform subset of b records is S + {i} with probability q = b/n and S + {j}
# otherwise, S a uniform set of b - 1 others and j one of the remaining others, drawn independently
# of that. Shifts follow the steps over S + {j}; where the record was drawn instead, the map differs
# by one record's term, whose change over the distance is counted as part of what the record adds.
# Proof: docs/theorems/restarted-fixed-size.

UP = 1 + 2.0**-40
"""Above the rounding of a few operations."""


def search_subset_restarts(run: Run) -> Curve:
    """The best restarts of a run whose steps draw ``run.divisor`` records each without replacement."""
    rate, factor = run.sampling_rate, shift_growth(run)

    def tail(run: Run, at: Restart) -> Curve:
        noises, longer = levels(run, at.first, at.share), factor(at.apart, at.closed)
        if noises is None:
            return Gdp(at.mu)
        return FixedSizeSteps(
            rate,
            tuple(z / longer for z, _ in noises),
            tuple(count for _, count in noises),
            records_moved(run.adjacency) == 2,
            mu=at.mu,
        )

    return search_restarts(
        run,
        chance=rate,
        every=1,
        distances=distances_of_draws(rate),
        curve=tail,
        shares=((run.divisor - 1) / run.divisor, 1.0),
        lengthened=factor,
        seen=by_itself if records_moved(run.adjacency) == 2 else instead_of_another,
    )


def instead_of_another(square: Array) -> Array:
    """Return the chi-squared distance of N(2/z) to N(1/z) where most of the distribution is N(0): a
    record that replaces another.

    With next to no noise it is infinite, and no factor is 0 then: expm1 is above 1 long before exp
    overflows."""
    with np.errstate(over="ignore", divide="ignore"):
        one = np.exp(1 / square)
        return one * np.expm1(1 / square) * (one * one + np.expm1(1 / square))


def shift_growth(run: Run) -> Lengthened:
    """Return the factor by which the record's shift exceeds S eta/b, where shifts follow the other
    record's map.

    Zero-out: by M eta/b times what a shift closes. Replace-one: two maps of one record differ from
    two of others, and the difference of its gradients is taken ``apart`` from where S speaks of it:
    twice both.
    """
    sensitivity, curvature = require_fact(run.facts(), "sensitivity"), _curvature_of_one(run)
    if not sensitivity.value:
        return add_nothing
    relative = curvature / sensitivity.value
    if records_moved(run.adjacency) == 1:
        return lambda apart, closed: (1 + relative * closed) * UP
    return lambda apart, closed: (1 + 2 * relative * (apart + closed)) * UP


def _curvature_of_one(run: Run) -> float:
    """The Lipschitz constant of one record's gradient: constants of a mean hold where all records
    are alike, and a clip projects on a ball."""
    curvature = find_known_map(run, (1.0, 1.0))
    return max(abs(curvature.lowest), abs(curvature.highest))
