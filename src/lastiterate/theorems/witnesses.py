"""Lower bounds: exact distributions on losses of the run's class."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from lastiterate.analysis.block_positions import MOST_MERGED, merge_places, place_weights
from lastiterate.analysis.shifts import decay
from lastiterate.analysis.witnesses import (
    GridDistribution,
    add,
    curvature,
    geometric,
    largest_gradient,
    law_of_values,
    log_with_sign,
    power,
    repeat_draw,
    scale_law,
    tree,
    unequal_batches,
)
from lastiterate.curves.lower_bound import Largest, LowerBound, MixturePair
from lastiterate.run.batching import FixedSize
from lastiterate.run.facts import require_fact
from lastiterate.run.noise import Correlated
from lastiterate.run.preprocessing import PrivateMean, PrivateTargetMean
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import StableSteps
from lastiterate.run.updates import HeavyBall, Nesterov
from lastiterate.run.validation import Array
from lastiterate.theorems.assumptions import (
    NOISY_STEPS,
    drawn_anew,
    everywhere,
    fixed_start,
    idle_clip,
    known_noise,
    known_sensitivity,
    last_iterate_only,
    linear_response,
    noisy_steps,
    not_averaged,
    not_resampled,
    plain_updates,
    public_curvature,
    released_as_left,
    released_up_to_scale,
    short_step,
    strongly_convex,
)
from lastiterate.theorems.diffusion_assumptions import LANGEVIN_PAPER, LAST_ITERATE
from lastiterate.theorems.theorem import (
    EXAMPLE,
    EXAMPLE_FULL_BATCH,
    STRONG,
    Theorem,
    example_loss,
    register,
)


def _bound_langevin_lower_bound(run: Run) -> MixturePair:
    strong, gradient = require_fact(run.facts(), "strong"), largest_gradient(run)
    squared_ratio = ((gradient.ahead + gradient.behind) / run.n) ** 2 / run.temperature
    slope = squared_ratio / (4 * strong.value) * decay(strong.value * run.first_step * run.steps)
    return MixturePair.of_one(math.sqrt(2 * slope))


LANGEVIN_LOWER_BOUND = register(
    Theorem(
        name="langevin-lower-bound",
        kind="lower",
        family="last iterate",
        statement="""
Lower bound.

epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - e^{-eta m K}) on a quadratic of curvature m =
strong.

Source: Chourasia et al. 2021, Theorem 3 (m = 1; rescaled time otherwise; it holds for eta m <= 1).
The two distributions are Gaussians of equal covariance, so the pair is mu-GDP exactly and the Renyi
bound is a bound on mu^2 / 2: its (epsilon, delta) form is a lower bound too. S_g is what the
constants allow, without the allowance of upper bounds for floating-point sums. Proof:
docs/theorems/langevin.""",
        citation=f"{LANGEVIN_PAPER}, Theorem 3 (docs/theorems/langevin)",
        formula="epsilon(alpha) >= alpha S_g^2 / (4 m sigma^2 n^2) (1 - exp(-eta m K)), some loss "
        "of the class",
        latex=r"\epsilon(\alpha) \ge \frac{\alpha S_g^2}{4 m \sigma^2 n^2} \left(1 - \exp(-\eta m "
        r"K)\right), \text{ some loss of the class}",
        assumptions=(
            *LAST_ITERATE,
            released_as_left,
            everywhere,
            fixed_start,
            strongly_convex,
            short_step,
        ),
        bound=_bound_langevin_lower_bound,
        example=replace(EXAMPLE_FULL_BATCH, loss=example_loss(strong=STRONG)),
    )
)


MOST_ATOMS = 2000
"""Atoms of the mixture; further ones are rounded down."""
LONGEST = 200_000
"""Steps of a varying schedule that are looked at."""
CLASSES = 512
"""Different weights of steps that are distinguished where every step draws and the schedule varies.
"""


def chances(run: Run) -> Array:
    """The probability that a record is in block j of a pass, (blocks,); of one step where every
    step draws."""
    places = run.batching.place_probabilities(run.n)
    included = run.batching.inclusion_probability(run.n)
    assert places is not None or included is not None
    return places if places is not None else np.array([included], dtype=np.float64)


def _draw(shifts: Array, chance: Array, sign: float) -> GridDistribution:
    """The shift of one pass (or step): ``shifts[j]`` with probability ``chance[j]``, otherwise 0."""
    missed = 1 - math.fsum(chance)
    if missed < 1e-12:  # rounding of probabilities that sum to 1
        return law_of_values(sign * shifts, chance)
    return law_of_values(np.append(sign * shifts, 0.0), np.append(chance, missed))


@lru_cache(maxsize=4)  # kept with the probability of every block
def _constant_sum(
    scaled_bend: float, steps: int, chance: tuple[float, ...], sign: float
) -> GridDistribution:
    """Return the distribution of sign * S for a constant schedule whose steps shift by 1;
    ``scaled_bend`` = eta h."""
    places, (turn, rate) = np.array(chance), log_with_sign(scaled_bend)
    blocks = places.size
    passes, left = divmod(steps, blocks)
    full = power(turn, rate, np.arange(blocks)[::-1])
    last = _draw(power(turn, rate, np.arange(left)[::-1]), places[:left], sign) if left else None
    if passes == 0:
        assert last is not None
        return last
    decay = float(
        power(turn, rate, np.array([left]))[0]
    )  # of the whole passes over the unfinished one
    factor = float(power(turn, rate, np.array([blocks]))[0])
    before = repeat_draw(
        lambda way: _draw(full, places, way * sign * math.copysign(1, decay)), factor, passes
    )
    moved = scale_law(before, abs(decay))
    return moved if last is None else add(moved, last)


def _sum_varying(shifts: Array, chance: Array, sign: float) -> GridDistribution:
    """Return the distribution of sign * S for steps that shift by ``shifts``."""
    shifts, blocks = sign * shifts, chance.size
    if blocks > 1:
        starts = range(0, shifts.size, blocks)
        return tree([_draw(shifts[k : k + blocks], chance[: shifts.size - k], 1.0) for k in starts])
    ordered = np.sort(shifts)
    parts = np.array_split(ordered, CLASSES) if ordered.size > CLASSES else ordered[:, None]
    return tree(
        [
            repeat_draw(lambda way, low=part[:1]: _draw(low, chance, way), 1.0, len(part))
            for part in parts
        ]
    )


def _spread(run: Run, bend: float) -> tuple[Array | None, float]:
    """R_u of every step (``None`` for a constant schedule) and the variance X."""
    start, eta = run.start.std**2, run.first_step
    if run.constant:
        rate, count = log_with_sign(eta * bend)[1], np.array([run.steps])
        spread = (eta * run.first_noise) ** 2 * geometric(1, 2 * rate, count) + start * power(
            1, 2 * rate, count
        )
        return None, float(spread[0])
    factors: Array = np.append(1.0, (1 - run.step_sizes * bend)[::-1])
    later = np.asarray(np.cumprod(factors)[::-1], dtype=np.float64)
    return later[1:], float(
        ((run.step_sizes * run.noise_stds * later[1:]) ** 2).sum() + start * later[0] ** 2
    )


def _pair(law: GridDistribution, unit: float, opposed: float) -> MixturePair:
    """Return the mixture of ``unit`` times the distribution: at most ``MOST_ATOMS`` atoms,
    neighbours rounded down to the lowest."""
    weights, places = law.points()
    width = -(-weights.size // MOST_ATOMS)
    starts = np.arange(1, weights.size, width)
    weights = np.append(weights[0], np.add.reduceat(weights[1:], starts - 1))
    places = np.append(places[0], places[starts])
    with np.errstate(invalid="ignore"):
        mus = np.where(places == 0, 0.0, places * unit)
    return MixturePair(tuple(weights.tolist()), tuple(mus.tolist()), opposed)


def _bound_linear_witness(run: Run) -> LowerBound:
    gradient, bend, chance = largest_gradient(run), sum(curvature(run)), chances(run)
    if gradient.ahead == 0 or (
        run.steps > LONGEST and (not run.constant or run.first_step * bend >= 1)
    ):
        return MixturePair.of_one(0.0)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later, variance = _spread(run, bend)
    if not variance < math.inf:
        return MixturePair.of_one(0.0)  # outside double precision
    unit = gradient.ahead / run.divisor / math.sqrt(variance) if variance > 0 else math.inf
    if later is None:
        scale = run.first_step * bend
        laws = [
            _constant_sum(scale, run.steps, tuple(chance.tolist()), sign)
            for sign in _signs(scale > 1)
        ]
        unit *= run.first_step
    else:
        shifts = run.step_sizes * later
        laws = [_sum_varying(shifts, chance, sign) for sign in _signs(bool((shifts < 0).any()))]
    pairs = tuple(_pair(law, unit, gradient.opposed) for law in laws)
    return pairs[0] if len(pairs) == 1 else Largest(pairs)


def _signs(both: bool) -> tuple[float, ...]:
    """Steps may shift to opposite sides: half lines on either side are looked at."""
    return (1.0, -1.0) if both else (1.0,)


LINEAR_WITNESS = register(
    Theorem(
        name="linear-witness",
        kind="lower",
        family="last iterate",
        statement="""
Batches or positions that are drawn again, on linear losses and a ridge: a bound that no analysis of
the class can beat.

Every record's loss is 0 but one's, whose gradient is constant and as long as the constants allow;
curvature h = strong sits outside the records. Given the draws the last iterate is Gaussian, its
mean moved by S = sum over the steps u that the record takes part in of eta_u (gradient / b) R_u,
R_u = prod of the later 1 - eta h. So the pair is the mixture of N(S / sqrt(X), 1) over the draws
against N(0, 1) (or the mixture for the opposite gradient), X = sum of (eta_u noise_std_u)^2 R_u^2 +
R_0^2 std^2 of the start. The distribution of S is computed rounded down: that makes the pair harder
to distinguish. Source: docs/theorems/linear-witness.""",
        citation="exact mixture on linear losses (docs/theorems/linear-witness)",
        formula="delta >= H_eps(sum over draws of P[draws] N(S / sqrt(X), 1) || N(0, 1)), S = sum "
        "of eta_u (L / b) R_u "
        "over the steps that the record is drawn in",
        latex=r"\delta \ge H_\epsilon\left(\sum_{\text{draws}} P[\text{draws}] \, N(S / \sqrt{X}, "
        r"1) \, \| \, N(0, 1)\right), \quad S = \sum \eta_u (L / b) R_u \text{ over the "
        r"steps that the record is drawn in}",
        assumptions=(
            *NOISY_STEPS,
            drawn_anew,
            plain_updates,
            not_averaged,
            released_as_left,
            everywhere,
            idle_clip,
            public_curvature,
        ),
        bound=_bound_linear_witness,
        example=replace(EXAMPLE, batching=FixedSize(100)),
        remark="The worst loss with these constants, not necessarily yours.",
    )
)


MOST_PRODUCTS = 2e8
"""Products of the longest recursion of correlated noise that is followed."""
LONGEST_QUADRATIC = 200_000
"""Steps of a varying schedule, or of one with a short block, that are looked at."""


def witness_mus(run: Run) -> Array:
    """Return the signed mu of the exact pair for every position, the neighbour having no such
    record; shape (blocks,)."""
    ridge, inside = curvature(run)
    everywhere_alike = _mus(run, np.full(run.blocks, ridge + inside))
    if inside == 0 or run.shares[0] == 1:
        return everywhere_alike
    sizes = run.batching.block_sizes(run.n)
    assert sizes is not None  # curvature in records needs batches of public sizes
    in_records = _mus(run, ridge + inside * (sizes / run.divisor))
    both = np.concatenate((in_records, everywhere_alike))
    if run.batching.drawn == "once" and both.min() < 0 < both.max():
        return np.zeros(
            run.blocks
        )  # which of two is harder to see depends on the other positions: no statement
    return np.minimum(np.abs(in_records), np.abs(everywhere_alike))


def _mus(run: Run, bends: Array) -> Array:
    """Return mu of every position where the steps on block j are 1 - eta bends[j]."""
    unit, start = largest_gradient(run).ahead / run.divisor, run.start.std**2
    if run.constant and (bends == bends[0]).all():
        return _constant_mus(run, float(bends[0]), unit, start)
    if run.steps > LONGEST_QUADRATIC:
        return np.zeros(run.blocks)  # no statement; a lower bound of zero is always true
    eta, std = run.step_sizes, run.noise_stds
    block = np.arange(run.steps) % run.blocks
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        later = np.cumprod(np.concatenate(([1.0], (1 - eta * bends[block])[::-1])))[
            ::-1
        ]  # R_0, R_1, ..., R_K
        variance = float((((eta * std) * later[1:]) ** 2).sum()) + start * later[0] ** 2
        shift = np.bincount(block, weights=eta * unit * later[1:], minlength=run.blocks)
    return _ratio(shift, variance, noisy=bool(std.any()) or start > 0)


def _constant_mus(run: Run, bend: float, unit: float, start: float) -> Array:
    """The same in closed form: R_u = r^(K-u), r = 1 - eta bend."""
    eta, std = run.first_step, run.first_noise
    places = np.arange(run.blocks)
    participations = np.maximum((run.steps - 1 - places) // run.blocks + 1, 0)  # 0 if never
    # steps after the last of them
    tail = np.where(
        participations > 0, run.steps - 1 - places - (participations - 1) * run.blocks, 0
    )
    if eta * bend >= 1 and run.steps > LONGEST_QUADRATIC:
        return np.zeros(run.blocks)  # next to r = -1 powers are not known well enough
    with np.errstate(divide="ignore", over="ignore", invalid="ignore", under="ignore"):
        sign, rate = log_with_sign(eta * bend)
        decayed = power(sign, rate, tail) * geometric(
            sign**run.blocks, rate * run.blocks, participations
        )
        variance = (eta * std) ** 2 * geometric(1, 2 * rate, np.array([run.steps]))
        variance += start * power(1, 2 * rate, np.array([run.steps]))
    return _ratio(decayed * eta * unit, float(variance[0]), noisy=std > 0 or start > 0)


def _ratio(shift: ArrayLike, variance: float, *, noisy: bool) -> Array:
    """shift / sqrt(variance); zero (no statement) outside the range of double precision."""
    shift = np.asarray(shift, dtype=np.float64)
    if not noisy:
        return np.asarray(np.where(shift != 0, math.inf, 0.0), dtype=np.float64)
    if not 0 < variance < math.inf:
        return np.zeros(shift.shape)  # pyright: ignore
    return np.asarray(
        np.where(np.isfinite(shift), shift / math.sqrt(variance), 0.0), dtype=np.float64
    )


def _bound_quadratic_witness(run: Run) -> LowerBound:
    return _bound_positions(run, witness_mus(run))


def _bound_positions(run: Run, mus: Array) -> LowerBound:
    """The pair whose mu is one of ``mus`` (blocks,), by the place of the record: the worst place in
    public order, or the mixture over secret ones."""
    opposed = largest_gradient(run).opposed
    if run.batching.drawn == "never":
        return MixturePair((1.0,), (float(np.abs(mus).max()),), opposed)
    sides = [sign * mus for sign in (1, -1) if (sign * mus > 0).any()]
    if len(sides) > 1 and mus.size > MOST_MERGED:
        return MixturePair.of_one(0.0)  # many positions that shift to opposite sides: no statement
    pairs = [merge_places(place_weights(run.batching, run.n), side, up=False) for side in sides]
    mixtures = [
        MixturePair(tuple(weights.tolist()), tuple(mu.tolist()), opposed) for weights, mu in pairs
    ]
    return (
        mixtures[0]
        if len(mixtures) == 1
        else Largest(tuple(mixtures))
        if mixtures
        else MixturePair.of_one(0.0)
    )


QUADRATIC_WITNESS = register(
    Theorem(
        name="quadratic-witness",
        kind="lower",
        family="last iterate",
        statement="""
The exact distribution on one quadratic: a bound that no analysis of the run's class of losses can
beat.

Data terms are linear with a record whose gradient is constant and as long as the constants allow,
and the curvature is h = strong everywhere (h = 0: linear losses). Then theta_K is Gaussian with the
same covariance for both neighbours: mu = S_K / sqrt(X_K), S_K = sum over the record's steps of s_u
R_u, X_K = sum of v_u R_u^2 (+ R_0^2 std^2 of the start), R_u = prod over later steps of (1 - eta
h). Blocks in public order: the worst position. A secret position: the exact mixture over positions.
Curvature that is not a ridge may sit in the records, and a short last block has less of it: both
readings are computed, and the smaller mu of every position counts. Source:
docs/theorems/quadratic-witness.""",
        citation="exact Gaussian recursion on a quadratic of the class "
        "(docs/theorems/quadratic-witness)",
        formula="mu >= |sum_u s_u R_u| / sqrt(sum_u v_u R_u^2), R_u = prod_{w>u} (1 - eta_w "
        "strong)",
        latex=r"\mu \ge \frac{|\sum_u s_u R_u|}{\sqrt{\sum_u v_u R_u^2}}, \quad R_u = \prod_{w > "
        r"u} (1 - \eta_w \, \text{strong})",
        assumptions=(
            *NOISY_STEPS,
            last_iterate_only,
            not_resampled,
            plain_updates,
            not_averaged,
            released_as_left,
            everywhere,
            idle_clip,
            public_curvature,
        ),
        bound=_bound_quadratic_witness,
        example=EXAMPLE,
        remark="The worst loss with these constants, not necessarily yours.",
    )
)


def _responses(run: Run, bend: float) -> tuple[Array, float]:
    """How far the last iterate moves against a unit of gradient at every step, (steps,), and with a
    unit of the start; ``bend``: the curvature.

    Backwards: ``theta`` and ``kept`` are the derivatives of the last iterate by an iterate, and by
    what the update rule remembers with it.
    """
    rule, etas = run.optimizer, run.step_sizes.tolist()
    theta, kept, found = 1.0, 0.0, np.empty(run.steps)
    for k in reversed(range(run.steps)):
        found[k] = etas[k] * theta
        if isinstance(rule, Nesterov):  # y = theta + a (theta - last theta), theta' = y - eta g
            ahead, of_point = k / (k + 3), theta - bend * found[k]
            theta, kept = (1 + ahead) * of_point + kept, -ahead * of_point
        else:  # v' = beta v + g, theta' = theta - eta v'
            beta = rule.beta if isinstance(rule, HeavyBall) else 0.0
            found[k] -= kept
            theta, kept = theta - bend * found[k], -beta * found[k]
    return found, theta + kept if isinstance(rule, Nesterov) else theta


def _response_variance(run: Run, responses: Array) -> float:
    """The variance of the last iterate by the noise of all steps."""
    noise = run.decided_noise
    if not isinstance(noise, Correlated):
        return float(((run.noise_stds * responses) ** 2).sum())
    column = noise.column(run.steps)
    if column.size * run.steps > MOST_PRODUCTS:
        return math.inf  # no statement
    from scipy.signal import lfilter  # pyright: ignore  # slow to import

    # the noise is z C^-1 Z: the weights of the draws solve C^T w = responses
    weights = np.asarray(lfilter([1.0], column, responses[::-1]), dtype=np.float64)  # pyright: ignore
    return float(((weights[::-1] * run.noise_stds) ** 2).sum())


def _bound_linear_response(run: Run) -> LowerBound:
    gradient, (ridge, inside) = largest_gradient(run), curvature(run)
    bend = ridge + inside
    measured = isinstance(run.step_size, StableSteps)
    in_records = inside and (run.clip is not None or unequal_batches(run))
    if run.steps > LONGEST or (bend and measured) or in_records:
        return MixturePair.of_one(0.0)  # no statement
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        responses, of_start = _responses(run, bend)
        variance = _response_variance(run, responses) + (run.start.std * of_start) ** 2
        unit = gradient.ahead / run.divisor / math.sqrt(variance) if variance > 0 else math.inf
    if not (variance < math.inf and 0 < unit < math.inf):
        return MixturePair.of_one(0.0)  # outside double precision, or without noise
    if run.batching.drawn in ("once", "never"):
        block = np.arange(run.steps) % run.blocks
        shifts = np.bincount(block, weights=responses, minlength=run.blocks) * unit
        return _with_noisy_means(run, _bound_positions(run, np.asarray(shifts, dtype=np.float64)))
    laws = [
        _sum_varying(responses, chances(run), sign) for sign in _signs(bool((responses < 0).any()))
    ]
    pairs = tuple(_pair(law, unit, gradient.opposed) for law in laws)
    return _with_noisy_means(run, pairs[0] if len(pairs) == 1 else Largest(pairs))


def _with_noisy_means(run: Run, bound: LowerBound) -> LowerBound:
    """The same pair where the noisy means of targets and of rows are released before the steps: the
    record is also the only one with a row and a target other than 0.

    All releases have noise of their own. In the direction of (mean of the mus, mu of the means) the
    pair is again a mixture of Gaussians, and a function of several releases leaks no more than all.
    """
    means = dict[type, float]()
    for part in run.preprocessing:  # what stands before a mean may keep a row from being as long
        if not isinstance(part, PrivateMean | PrivateTargetMean) or type(part) in means:
            break
        means[type(part)] = 1 / part.noise_multiplier
    if not means:
        return bound
    of_means = math.hypot(*means.values())
    if isinstance(bound, Largest):
        return Largest(tuple(_with_noisy_means(run, each) for each in bound.bounds))
    assert isinstance(bound, MixturePair)
    mus = np.array(bound.mus)
    with np.errstate(invalid="ignore"):
        middle = float(np.dot(bound.weights, mus))
    length = math.hypot(middle, of_means)
    if not (middle > 0 and length < math.inf):  # else mus that were rounded down would be turned up
        return bound
    turned = (mus * middle + of_means**2) / length
    return replace(bound, mus=tuple(turned.tolist()))


LINEAR_RESPONSE_WITNESS = register(
    Theorem(
        name="linear-response-witness",
        kind="lower",
        family="last iterate",
        statement="""
Momentum, noise that later steps take back, noisy means before the steps, or a public factor behind
them, on linear losses and a ridge: a bound that no analysis of the class can beat.

Every record's loss is 0 but one's, whose gradient is constant and as long as the constants allow;
the ridge h is outside of the records. Plain steps, heavy ball and Nesterov's rule are linear, so the
last iterate is a sum of c_u (gradient + noise) over the steps u, and Gaussian given the draws: its
mean is moved by S = sum of c_u |gradient| / b over the steps that the record takes part in, its
variance X is that of the sum of c_u noise_u, plus the start's share. The pair is the
mixture of N(S / sqrt(X), 1) over draws or secret positions against N(0, 1) (or the mixture for the
opposite gradient); blocks in public order: the worst position. Without a ridge a common factor of
all step sizes changes nothing, so it may be measured. Where noisy means of rows and targets are
released first, the record is also the only one with a row and a target, and the means are a second
coordinate. Source:
docs/theorems/linear-response-witness.""",
        citation="exact mixture for linear update rules (docs/theorems/linear-response-witness)",
        formula="delta >= H_eps(sum over draws of P[draws] N(S / sqrt(X), 1) || N(0, 1)), S = sum "
        "of c_u L / b over the record's steps, X = variance of the sum of c_u noise_u",
        latex=r"\delta \ge H_\epsilon\left(\sum_{\text{draws}} P[\text{draws}] \, N(S / \sqrt{X}, "
        r"1) \, \| \, N(0, 1)\right), \quad S = \sum_{u \text{ of the record}} c_u L / b, \quad X = "
        r"\operatorname{Var} \sum_u c_u \, \text{noise}_u",
        assumptions=(
            noisy_steps,
            known_sensitivity,
            known_noise,
            linear_response,
            not_averaged,
            released_up_to_scale,
            everywhere,
            idle_clip,
            public_curvature,
        ),
        bound=_bound_linear_response,
        example=replace(EXAMPLE, optimizer=HeavyBall(0.9)),
        remark="The worst loss with these constants, not necessarily yours.",
    )
)
