"""Batches or places drawn anew on linear losses and a ridge: a law that no analysis of the class can beat.

Every record's loss is 0 but one's, whose gradient is constant and as long as the constants allow; curvature h = strong
sits outside the records. Given the draws the last iterate is Gaussian, its mean moved by S = sum over the steps u that
the record takes part in of eta_u (gradient / b) R_u, R_u = prod of the later 1 - eta h. So the pair is the mixture of
N(S / sqrt(X), 1) over the draws against N(0, 1) (or the mixture for the opposite gradient), X = sum of (eta_u
noise_std_u)^2 R_u^2 + R_0^2 std^2 of the start. The law of S is computed rounded down: that makes the pair harder to
distinguish. Source: docs/theorems/linear-witness.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from lastiterate.analysis.drawn_sums import Law, add, of_values, repeated, scaled, tree
from lastiterate.analysis.witness_losses import curvature, geometric, largest_gradient, power, signed_log
from lastiterate.curves.lower_bound import Largest, LowerBound, MixturePair
from lastiterate.run.arrays import Array
from lastiterate.run.run import Run
from lastiterate.theorems.assumptions.basic import (
    NOISY_STEPS,
    drawn_anew,
    everywhere,
    not_averaged,
    plain_updates,
    released_as_left,
)
from lastiterate.theorems.assumptions.witness import idle_clip, public_curvature
from lastiterate.theorems.theorem import Theorem

MOST_ATOMS = 2000
"""Atoms of the mixture; further ones are rounded down."""
LONGEST = 200_000
"""Steps of a varying schedule that are looked at."""
CLASSES = 512
"""Different weights of steps that are distinguished where every step draws and the schedule varies."""


def chances(run: Run) -> Array:
    """The probability that a record is in block j of a pass, (blocks,); of one step where every step draws."""
    places = run.batching.place_probabilities(run.n)
    included = run.batching.inclusion_probability(run.n)
    assert places is not None or included is not None
    return places if places is not None else np.array([included], dtype=np.float64)


def _draw(shifts: Array, chance: Array, sign: float) -> Law:
    """The shift of one pass (or step): ``shifts[j]`` with probability ``chance[j]``, otherwise 0."""
    missed = 1 - math.fsum(chance)
    if missed < 1e-12:  # rounding of probabilities that sum to 1
        return of_values(sign * shifts, chance)
    return of_values(np.append(sign * shifts, 0.0), np.append(chance, missed))


@lru_cache(maxsize=64)
def _constant_sum(scaled_bend: float, steps: int, chance: tuple[float, ...], sign: float) -> Law:
    """The law of sign * S for a constant schedule whose steps shift by 1; ``scaled_bend`` = eta h."""
    places, (turn, rate) = np.array(chance), signed_log(scaled_bend)
    blocks = places.size
    passes, left = divmod(steps, blocks)
    full = power(turn, rate, np.arange(blocks)[::-1])
    last = _draw(power(turn, rate, np.arange(left)[::-1]), places[:left], sign) if left else None
    if passes == 0:
        assert last is not None
        return last
    decay = float(power(turn, rate, np.array([left]))[0])  # of the whole passes over the unfinished one
    factor = float(power(turn, rate, np.array([blocks]))[0])
    before = repeated(lambda way: _draw(full, places, way * sign * math.copysign(1, decay)), factor, passes)
    moved = scaled(before, abs(decay))
    return moved if last is None else add(moved, last)


def _varying_sum(shifts: Array, chance: Array, sign: float) -> Law:
    """The law of sign * S for steps that shift by ``shifts``."""
    shifts, blocks = sign * shifts, chance.size
    if blocks > 1:
        starts = range(0, shifts.size, blocks)
        return tree([_draw(shifts[k : k + blocks], chance[: shifts.size - k], 1.0) for k in starts])
    ordered = np.sort(shifts)
    parts = np.array_split(ordered, CLASSES) if ordered.size > CLASSES else ordered[:, None]
    return tree([repeated(lambda way, low=part[:1]: _draw(low, chance, way), 1.0, len(part)) for part in parts])


def _spread(run: Run, bend: float) -> tuple[Array | None, float]:
    """R_u of every step (``None`` for a constant schedule) and the variance X."""
    start, eta = run.start.std**2, run.first_step
    if run.constant:
        rate, count = signed_log(eta * bend)[1], np.array([run.steps])
        spread = (eta * run.first_noise) ** 2 * geometric(1, 2 * rate, count) + start * power(1, 2 * rate, count)
        return None, float(spread[0])
    factors: Array = np.append(1.0, (1 - run.step_sizes * bend)[::-1])
    later = np.asarray(np.cumprod(factors)[::-1], dtype=np.float64)
    return later[1:], float(((run.step_sizes * run.noise_stds * later[1:]) ** 2).sum() + start * later[0] ** 2)


def _pair(law: Law, unit: float, opposed: float) -> MixturePair:
    """The mixture of ``unit`` times the law: at most ``MOST_ATOMS`` of it, neighbours rounded down to the lowest."""
    weights, places = law.points()
    width = -(-weights.size // MOST_ATOMS)
    starts = np.arange(1, weights.size, width)
    weights = np.append(weights[0], np.add.reduceat(weights[1:], starts - 1))
    places = np.append(places[0], places[starts])
    with np.errstate(invalid="ignore"):
        mus = np.where(places == 0, 0.0, places * unit)
    return MixturePair(tuple(weights.tolist()), tuple(mus.tolist()), opposed)


def _bound(run: Run) -> LowerBound:
    gradient, bend, chance = largest_gradient(run), sum(curvature(run)), chances(run)
    if gradient.ahead == 0 or (run.steps > LONGEST and (not run.constant or run.first_step * bend >= 1)):
        return MixturePair.of_one(0.0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later, variance = _spread(run, bend)
    if not variance < math.inf:
        return MixturePair.of_one(0.0)  # outside double precision
    unit = gradient.ahead / run.divisor / math.sqrt(variance) if variance > 0 else math.inf
    if later is None:
        scale = run.first_step * bend
        laws = [_constant_sum(scale, run.steps, tuple(chance.tolist()), sign) for sign in _signs(scale > 1)]
        unit *= run.first_step
    else:
        shifts = run.step_sizes * later
        laws = [_varying_sum(shifts, chance, sign) for sign in _signs(bool((shifts < 0).any()))]
    pairs = tuple(_pair(law, unit, gradient.opposed) for law in laws)
    return pairs[0] if len(pairs) == 1 else Largest(pairs)


def _signs(both: bool) -> tuple[float, ...]:
    """Steps may shift to opposite sides: half lines on either side are looked at."""
    return (1.0, -1.0) if both else (1.0,)


THEOREM = Theorem(
    name="linear-witness",
    kind="lower",
    citation="exact mixture on linear losses (docs/theorems/linear-witness)",
    formula="delta >= H_eps(sum over draws of P[draws] N(S / sqrt(X), 1) || N(0, 1)), S = sum of eta_u (L / b) R_u "
            "over the steps that the record is drawn in",
    assumptions=(*NOISY_STEPS, drawn_anew, plain_updates, not_averaged, released_as_left, everywhere, idle_clip,
                 public_curvature),
    bound=_bound,
    remark="The worst loss with these constants, not necessarily yours.",
)
