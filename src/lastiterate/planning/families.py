"""Families of runs that the planner compares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from lastiterate.analysis.perturbed_objective import log_determinants, steps_for
from lastiterate.analysis.shifts import shift_in_draws
from lastiterate.planning.plan_request import MEAN_SHARE, PlanRequest, linear_decay, linear_loss
from lastiterate.planning.task import COSINES, POWERS, budget
from lastiterate.run.adjacency import records_moved
from lastiterate.run.batching import (
    Batching,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
)
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.losses import LinearLoss, Logistic, Softmax
from lastiterate.run.methods import ObjectivePerturbation, VarianceReduced
from lastiterate.run.noise import Correlated, GradientNoise, Noise, NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.preprocessing import (
    CosineFeatures,
    Preparation,
    PrivateCovariance,
    PrivateTargetMean,
)
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, InverseDecay, StableSteps, StepSchedule
from lastiterate.run.updates import HeavyBall

# Rows whitened in part by a private covariance, on the unit sphere or clipped; fresh secret blocks,
# or full batches.  Constants were compared on synthetic families
# (benchmarks/utility/planner_constants.py).

MANY_BLOCKS, FEW_BLOCKS = 20, 10
ENOUGH_OF_MANY, FEWEST_OF_FEW = 150, 50  #: in a block, of many blocks and of few
CORRELATED_PASSES = (50, 20, 10)  #: see ``find_allowed``
SHORT = (
    (50, 5),
    (100, 3),
)  #: blocks and passes where the time budget allows fewer still, and nothing is gathered
SAVED = 0.5
"""Seconds that fewer passes must save to be weighed: on families of 40,000 to 100,000 records 20
instead of 50 passes cost .001 of accuracy where the risk that is predicted is as low, and 10 passes
up to .008."""
FULL_BATCH_STEPS = (64, 128, 256)  #: of full batches
CLIP = 0.1  #: per-example gradients of classifiers are clipped to this fraction of their bound
RESIDUAL_CLIPS = (
    0.2,
    0.35,
)  #: of targets in [-1, 1] around their private mean: less noise, or less bias
TARGET_SHARE = 0.04  #: part of mu^2 spent on that mean
ROW_NORMS = (None, 1.5, 2.0, 3.0)
"""Norms that whitened rows are clipped to, relative to their root mean square; None: all are
divided by theirs."""
CLIPPED = 0.25  #: to this multiple of it before they are whitened, relative to their norm
BETA = 0.9
POWER = 0.35
COVARIANCE_SHARE = 0.04  #: part of the budget mu^2
COSINE_SHARE, COSINE_POWER = (
    0.04,
    0.25,
)  #: the same for the mean of cosine features, and the power of the covariance next to them
TRAVELLED = 3.7  #: the length of all steps, momentum included, times clip sqrt(classes) / (n mu)
FEW_FEATURES, RESOLVED = (
    64,
    10,
)  #: further features need n mu of so many each, or the length is shorter,
SHORTEST = 0.6  #: at least this part of it: shorter ones lose signal at small budgets
REGRESSION_TRAVELLED = 0.15  #: the same, of regressions
SHAPE = 0.55  #: the mean of the falling steps over the first


def allocation(asked: PlanRequest) -> Iterator[Run]:
    """Yield runs over secret blocks that are drawn again in every pass, certified by their
    allocation; for one record that is zeroed."""
    asked, blocks = plan_weighted(asked), block_count(asked.task.n)
    if blocks < 2 or records_moved(asked.adjacency) != 1:
        return
    batching, left = RandomAllocation(-(-asked.task.n // blocks)), asked.mu**2 * (1 - spent(asked))

    def run(passes: int) -> Run:
        noise = NoiseMultiplier(
            1 / math.sqrt(math.log1p(left * blocks / passes))
        )  # near what calibration finds
        return run_of(asked, passes * batching.blocks(asked.task.n), noise, batching)

    yield from find_allowed(asked, map(run, CORRELATED_PASSES))


def find_allowed(asked: PlanRequest, runs: Iterable[Run]) -> Iterator[Run]:
    """The first run that the time budget allows, and the one behind it where that is much quicker."""
    longest = None
    for run in runs:
        seconds = asked.task.seconds(run)
        if longest is not None:
            if seconds <= longest - SAVED:
                yield run
            return
        if seconds <= asked.time_budget:
            yield run
            longest = seconds


def plan_correlated(asked: PlanRequest) -> Iterator[Run]:
    """Blocks in one order for all passes with correlated noise: nothing about the batches is
    secret, and all iterates count. In memory the order is drawn, so that it does not matter how the
    records are sorted; where one is exchanged, full batches did as well there at small budgets."""
    if not asked.task.streamed and records_moved(asked.adjacency) != 1:
        return
    kind, asked = Cyclic if asked.task.streamed else Permuted, plan_weighted(asked)
    few = block_count(asked.task.n)
    short = [shape for shape in SHORT if shape[0] * ENOUGH_OF_MANY <= asked.task.n]
    batchings = [
        (kind(-(-asked.task.n // blocks)), passes)
        for blocks, passes in [(few, passes) for passes in CORRELATED_PASSES if few >= 2] + short
    ]
    plain = (
        run_of(asked, passes * batching.blocks(asked.task.n), NoiseMultiplier(1.0), batching)
        for batching, passes in batchings
    )
    for run in find_allowed(asked, plain):
        yield make_correlated_run(asked, run.batching, run.steps // run.blocks)


def make_correlated_run(asked: PlanRequest, batching: Batching, passes: int) -> Run:
    """Make the run with the strategy, among those with a band as long as a pass, whose noise leaves
    the lowest predicted risk."""
    blocks = batching.blocks(asked.task.n)
    steps, left = passes * blocks, asked.mu * math.sqrt(1 - spent(asked))

    def run(power: float) -> Run:
        unit = Correlated(1.0, blocks if blocks > 1 else steps, power)
        moved = (
            shift_in_draws(unit, blocks, steps) * records_moved(asked.adjacency) * (1 + FLOAT_SLACK)
        )
        return run_of(asked, steps, unit.scale_by(moved / left), batching)

    return min(map(run, POWERS), key=asked.risk)


def plan_whitened(asked: PlanRequest) -> Iterator[Run]:
    """Full batches, certified by composition."""
    best = plan_weighted(asked)
    for steps in FULL_BATCH_STEPS:
        yield compose_run(best, steps)


def compose_run(asked: PlanRequest, steps: int) -> Run:
    return run_of(asked, steps, asked.composition_noise(steps, spent(asked)), FullBatch())


def plan_weighted(asked: PlanRequest) -> PlanRequest:
    """With the longest rows, and of a regression the longest residuals, whose noise and bias
    together leave the lowest predicted risk in full batches."""
    norms = ROW_NORMS[:1] if asked.task.feature_map == "fourier" else ROW_NORMS
    clips = RESIDUAL_CLIPS[:1] if asked.task.classes else RESIDUAL_CLIPS
    return min(
        (
            replace(asked, longest=longest, residual_clip=clip)
            for longest in norms
            for clip in clips
        ),
        key=lambda one: one.risk(compose_run(one, FULL_BATCH_STEPS[1])),
    )


def spent(asked: PlanRequest) -> float:
    """The part of mu^2 that the preparation costs."""
    cosines = COSINE_SHARE if asked.task.feature_map == "fourier" else 0.0
    return MEAN_SHARE + cosines + COVARIANCE_SHARE + (0.0 if asked.task.classes else TARGET_SHARE)


def block_count(n: int) -> int:
    """Blocks that hold enough records for their second moments to be like those of all; fewer than
    2: too few."""
    return min(MANY_BLOCKS, max(n // ENOUGH_OF_MANY, min(FEW_BLOCKS, n // FEWEST_OF_FEW)))


def run_of(asked: PlanRequest, steps: int, noise: Noise, batching: Batching) -> Run:
    """Clipped gradients, momentum, steps that are stable for what was released of the whitened
    rows."""
    task = asked.task
    loss = linear_loss(task, asked.longest or 1.0, asked.residual_clip)
    clip = CLIP * loss.facts().fact("lipschitz") if task.classes else None
    run = Run(
        n=task.n,
        steps=steps,
        step_size=StableSteps(linear_decay(1.0, steps)),
        noise=noise,
        batching=batching,
        loss=loss,
        clip=clip,
        optimizer=HeavyBall(BETA),
        adjacency=asked.adjacency,
        preprocessing=preparation(asked),
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )
    return replace(run, step_size=StableSteps(linear_decay(first_step(asked, run), steps)))


def preparation(asked: PlanRequest) -> tuple[Preparation, ...]:
    """Rows that are whitened in part; a regression's targets are centred, too."""
    moved = records_moved(asked.adjacency)
    targets = (
        () if asked.task.classes else (PrivateTargetMean(asked.multiplier(TARGET_SHARE) * moved),)
    )
    fourier = asked.task.feature_map == "fourier"
    cosines = (CosineFeatures(asked.multiplier(COSINE_SHARE) * moved, COSINES),) if fourier else ()
    power = COSINE_POWER if fourier else POWER
    clipped = CLIPPED * asked.longest * asked.task.mapped_norm if asked.longest else None
    covariance = PrivateCovariance(
        math.sqrt(moved) * asked.multiplier(COVARIANCE_SHARE), power, clipped
    )
    return (*targets, *asked.maps, asked.mean(MEAN_SHARE), *cosines, covariance)


def first_step(asked: PlanRequest, run: Run) -> float:
    """Return the first of steps that add up to a length in proportion to n mu / clip: the noise
    that a weight collects over the run, were there no curvature, is then the same for every n,
    budget and clip, and falls with sqrt(classes). Where rows may be longer noise is in proportion,
    and shorter ways make up for a part of it."""
    return (
        path_length(asked, CLIP) * (asked.longest or 1.0) ** -1.5 * (1 - BETA) / (SHAPE * run.steps)
    )


def path_length(asked: PlanRequest, clip: float) -> float:
    """The length of all steps, momentum included; ``clip``: what the residuals of classes are
    clipped to.

    Shorter where rows have more directions than the budget can distinguish: every step adds noise
    in all of them, while the records' signal lies in few.
    """
    task, resolved = asked.task, asked.task.n * asked.mu
    if not task.classes:
        return REGRESSION_TRAVELLED / asked.residual_clip * resolved
    needed = RESOLVED * max(task.features - FEW_FEATURES, 0)
    shorter = max(SHORTEST, min(1.0, resolved / needed) ** (1 / 3)) if needed else 1.0
    return TRAVELLED * shorter / (math.sqrt(task.classes) * clip) * resolved


# The minimiser of an objective with one random linear term, on whitened rows: no steps to pay for,
# but a ridge.  Constants were compared on synthetic families
# (benchmarks/utility/planner_constants.py).

SHARES = (0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4)  #: ridges, relative to the smoothness of the data term
STEP = 0.9  #: of the solver, relative to 1/smooth
#: noise on the minimiser, relative to the least that the linear term leaves in any direction
LAST = 0.3
LARGEST_EPSILON = (
    50.0  #: beyond it e^epsilon times the probability of a term that is too long could count
)
TOLERANCE = (
    0.05  #: of the solver, as mu of the noise on the minimiser, relative to that of the linear term
)


def plan_perturbed(asked: PlanRequest) -> Iterator[Run]:
    """Runs for ever smaller ridges, while the solver's error can be bounded."""
    if (
        asked.task.classes == 0
        or records_moved(asked.adjacency) != 1
        or asked.task.rows_per_unit > 1
        or asked.task.rows_per_record > 1
    ):
        return
    best = plan_weighted(asked)
    for share in SHARES:
        run = minimiser_run_of(best, share)
        if run is None:
            return
        yield run


def minimiser_run_of(asked: PlanRequest, share: float, *, cap: float | None = None) -> Run | None:
    """The run for a ridge of this share, with about the noise that it needs; ``None`` where so
    small a ridge takes epsilon by itself, where epsilon is out of range, or double precision cannot
    reach the tolerance.
    """
    task = asked.task
    loss = linear_loss(task, asked.longest or 1.0)
    assert isinstance(loss, Logistic | Softmax)
    loss = replace(loss, cap=cap)
    loss = replace(loss, ridge=share * loss.facts().fact("smooth"))
    run = Run(
        n=task.n,
        steps=1,
        step_size=Constant(STEP / loss.facts().fact("smooth")),
        loss=loss,
        noise=NoiseMultiplier(1.0),
        method=ObjectivePerturbation(task.parameters, LAST),
        adjacency=asked.adjacency,
        preprocessing=preparation(asked),
        rows_per_unit=task.rows_per_unit,
    )
    charged = spent(asked) * asked.mu**2 + asked.calibration_share * asked.whole_mu**2
    epsilon = asked.epsilon - log_determinants(run)
    left = budget(epsilon, asked.delta) ** 2 - charged if 0 < epsilon <= LARGEST_EPSILON else 0.0
    if left <= 0:
        return None
    run = replace(run, noise=NoiseMultiplier(left**-0.5))  # near what calibration finds
    steps = steps_for(run, TOLERANCE * math.sqrt(left))
    return None if steps is None else replace(run, steps=steps)


# Blocks in one order for the whole run, secret or public.

BLOCKS, PASSES = (4, 16, 64), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
STREAM_BLOCKS = (64, 512, 4096)  #: small enough to hold one in memory
FEWEST_RECORDS = 20  #: in a block


def plan_permuted(asked: PlanRequest) -> Iterator[Run]:
    """One secret order, certified for the last iterate."""
    return _plan_in_order(asked, Permuted, BLOCKS)


def cyclic(asked: PlanRequest) -> Iterator[Run]:
    """A public order: what reads data larger than memory with no scratch file."""
    return _plan_in_order(asked, Cyclic, STREAM_BLOCKS)


def _plan_in_order(
    asked: PlanRequest, kind: type[Cyclic] | type[Permuted], counts: tuple[int, ...]
) -> Iterator[Run]:
    """Constant steps below 2 / smooth; ever more passes while the prediction improves."""
    step = min(asked.first, 1.9 / asked.loss.facts().fact("smooth"))
    for blocks in counts:
        size = -(-asked.task.n // blocks)
        run = replace(asked.empty, step_size=Constant(step), batching=kind(size))
        best = math.inf
        for passes in PASSES if size >= FEWEST_RECORDS else ():
            calibrated = asked.calibrate_run(replace(run, steps=passes * run.blocks))
            if calibrated is None or (risk := asked.risk(calibrated)) > best:
                break
            best = risk
            yield calibrated


# Full batches.

STEPS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
FRICTIONS = tuple(2.0**-j for j in range(1, 7))  #: 1 - momentum
FORGOTTEN = (
    8  #: memories of the momentum that a run must last: shorter ones do worse than their prediction
)
PLAIN_STEPS = tuple(round(8 * 2 ** (j / 2)) for j in range(26))


def plan_accelerated(asked: PlanRequest) -> Iterator[Run]:
    """Momentum, steps that fall linearly."""
    for one, steps, friction in product(asked.clips, STEPS, FRICTIONS):
        if steps * friction >= FORGOTTEN:
            yield replace(
                one.empty,
                steps=steps,
                step_size=StepSchedule(linear_decay(one.first, steps)),
                clip=one.clip,
                noise=one.composition_noise(steps),
                optimizer=HeavyBall(1 - friction),
            )


def plain(asked: PlanRequest) -> Iterator[Run]:
    """Constant steps."""
    for one, steps in product(asked.clips, PLAIN_STEPS):
        yield replace(one.empty, steps=steps, noise=one.composition_noise(steps), clip=one.clip)


# Families of runs that the planner weighs: one file each, and this table.
#
# A family is a function from what is asked to runs with (nearly) the noise that they need.


@dataclass(frozen=True)
class Family:
    """The candidate runs of a kind for a request. ``larger`` and ``smaller``: whether they are for
    data that do not, and that do, fit in memory. ``whitened``: whether they train on partly
    whitened rows, to which cosine features may be appended."""

    runs: Callable[[PlanRequest], Iterator[Run]]
    larger: bool = True
    smaller: bool = True
    whitened: bool = False


FAMILIES: dict[str, Family] = {
    "allocation": Family(allocation, whitened=True),
    "correlated": Family(plan_correlated, whitened=True),
    "whitened": Family(plan_whitened, larger=False, whitened=True),
    "accelerated": Family(plan_accelerated),
    "plain": Family(plain),
    "permuted": Family(plan_permuted),
    "objective": Family(plan_perturbed, larger=False, whitened=True),
    "cyclic": Family(cyclic, smaller=False),
}


# Output perturbation: gradient descent on a ridge problem, noise on its last step alone (Zhang et
# al. 2017).  After many steps a record moves the result by at most sensitivity / (n ridge)
# (Chaudhuri, Monteleoni, Sarwate 2011). The row that certifies it charges the very steps that are
# executed, so that no solver's tolerance enters.

NORM = 10.0  #: what a model's norm may need to be
FEWEST, MOST_OUTPUT_STEPS = 100, 1000  #: steps


def output_run(
    asked: PlanRequest, batching: Batching, blocks: int, loss: LinearLoss, prox: Prox | None
) -> Run:
    """One unit of noise on the last step. ``blocks``: batches in a pass; the steps are whole
    passes.

    Steps of 1/smooth contract by 1 - step ridge; longer ones less, at the other end of the
    curvature.
    """
    ridge = balance_ridge(asked, loss)
    loss = replace(loss, ridge=ridge)
    step = 1 / loss.facts().fact("smooth")
    steps = max(
        FEWEST, min(MOST_OUTPUT_STEPS, math.ceil(math.log(MOST_OUTPUT_STEPS) / (step * ridge)))
    )
    steps = -(-steps // blocks) * blocks
    return Run(
        n=asked.task.n,
        steps=steps,
        step_size=Constant(step),
        batching=batching,
        loss=loss,
        prox=prox,
        noise=GradientNoise((0.0,) * (steps - 1) + (1.0,)),
        preprocessing=preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=asked.task.rows_per_unit,
        rows_per_record=asked.task.rows_per_record,
    )


def balance_ridge(asked: PlanRequest, loss: LinearLoss) -> float:
    """Return the ridge that balances its cost for a model of norm ``NORM`` and that of noise on the
    minimiser for a loss whose mean curvature is at most 1/4."""
    moved = loss.facts().fact("lipschitz") / (asked.task.n * asked.mu)
    return (moved**2 / (2 * NORM**2)) ** (1 / 3)


# Noisy SGD on a ridge problem (Bassily, Smith, Thakurta 2014), its n^2 steps capped.

MOST_STEPS = 40_000  #: steps
#: of the ridge that the last steps' noise asks for by itself; more is hardly worse, and less soon
#: is
ONE_RECORD_SHARE = 0.1


def one_record_run(
    asked: PlanRequest, loss: LinearLoss, batching: Batching | None, prox: Prox | None
) -> Run:
    """One unit of noise; steps of 1 / (2 smooth + ridge k)."""
    task, steps = asked.task, min(asked.task.n**2, MOST_STEPS)
    loss = replace(
        loss,
        ridge=math.hypot(
            balance_ridge(asked, loss), ONE_RECORD_SHARE * ridge_for_forgetting(asked, loss, steps)
        ),
    )
    return Run(
        n=task.n,
        steps=steps,
        noise=NoiseMultiplier(1.0),
        loss=loss,
        prox=prox,
        step_size=InverseDecay(loss.facts().fact("smooth"), 2 * loss.ridge),
        batching=FixedSize(1) if batching is None else batching,
        preprocessing=preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )


def ridge_for_forgetting(asked: PlanRequest, loss: LinearLoss, steps: int) -> float:
    """Return the ridge that balances its cost for a model of norm ``NORM`` and that of a step's
    noise after steps that fall as 1/(ridge k): one record's gradient, and noise of about its length
    along every parameter at any budget.

    Without it a generous budget has so small a ridge that the steps never fall, and their noise
    stays in the model.
    """
    parameters = asked.task.features * max(1, loss.outputs)
    spread = loss.facts().fact("lipschitz") ** 2 * (1 + parameters)
    return (spread / (2 * steps * NORM**2)) ** (1 / 3)


# DP-SVRG: plain steps on a capped loss that follow snapshots and differences to them (Wang, Ye, Xu
# 2017).  Constants were compared on the synthetic families of benchmarks/utility. The rate hardly
# matters: noise outweighs what a batch leaves out.

SNAPSHOTS, EVERY, RATE = 200, 3, 0.1
SNAPSHOT_SHARE = 0.5  #: part of the budget mu^2 that goes to the steps between snapshots
WAY = 0.3  #: the length of all steps, relative to that with clips and momentum
LONGEST = 1.9  #: steps, relative to 1/smooth


def snapshot_run(
    asked: PlanRequest, loss: LinearLoss, cap: float, batching: Batching | None, prox: Prox | None
) -> Run:
    """About one unit of noise. ``cap``: of the loss, for the length of its steps."""
    task, batches = asked.task, Poisson(RATE) if batching is None else batching
    steps, rate = SNAPSHOTS * EVERY, batches.expected_batch(task.n) / task.n
    step = min(WAY * path_length(asked, cap) / steps, LONGEST / loss.facts().fact("smooth"))
    noise, method = split(SNAPSHOTS, EVERY, rate, SNAPSHOT_SHARE)
    return Run(
        n=task.n,
        steps=steps,
        step_size=Constant(step),
        noise=noise,
        method=method,
        batching=batches,
        loss=loss,
        prox=prox,
        preprocessing=preparation(asked),
        adjacency=asked.adjacency,
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )


def split(
    taken: int, every: int, rate: float, share: float
) -> tuple[NoiseMultiplier, VarianceReduced]:
    """Noise and method of ``taken`` snapshots whose other steps cost about ``share`` of mu^2 = 1.

    For little noise of single steps: a sampled one costs mu^2 = rate^2 / z^2.
    """
    z = rate * math.sqrt(taken * (every - 1) / share)
    return NoiseMultiplier(z), VarianceReduced(every, math.sqrt(taken / (1 - share)) / z)
