"""Named ways to draw batches, as runs on a linear model, from public numbers alone: what
``algorithm`` means.

All share the automatic plan's preparation: a private mean, and rows whitened in part. Where the row
of the table that certifies the batches holds for any loss, they share its clip, momentum and stable
steps. Where it speaks of the last iterate of convex losses, the loss is capped instead, and steps
follow a smoothness that is paid for, if the batches are large enough for that to buy anything. The
noise is left to calibration.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lastiterate.curves.curve import log_powers
from lastiterate.errors import InputError
from lastiterate.planning import families
from lastiterate.planning.families import balance_ridge, one_record_run, output_run, snapshot_run
from lastiterate.planning.plan_request import PlanRequest, linear_loss
from lastiterate.run.adjacency import check_adjacency, records_moved
from lastiterate.run.batching import (
    BallsInBins,
    Batching,
    Cyclic,
    FixedSize,
    FullBatch,
    Permuted,
    Poisson,
    RandomAllocation,
)
from lastiterate.run.losses import HuberRidge, LinearLoss
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.penalties import Prox
from lastiterate.run.preprocessing import TopEigenvalue, UnitRows
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, RelativeToSmooth
from lastiterate.run.validation import check_choice

FEWEST_BLOCKS = 10
PASSES = 20  #: over sampled batches; the fewest over blocks in one order
MOST_PASSES = 200
FORGETTING_BLOCKS = 50  #: at most, where a model is to forget
FULL_STEPS = (100, 500)  #: the fewest and the most steps of full batches
CAP = 0.1
WAY = 0.54  #: the length of all steps on capped losses, relative to that with clips and momentum
LONGEST = 1.9  #: steps, relative to 1/smooth
SMOOTH_SHARE = 0.03  #: part of the budget mu^2 that a top eigenvalue may cost
LIKELIEST, RARER, RAREST = 1e-8, 1000, 1e-15
"""The failure of its measurement: at most so likely, by so much less than the delta of a record
among those of a unit (``Grouped``), and not less than the last."""
FEWEST_FAILURES = 10
"""Failures that this delta must cover."""
FEWER = 1_000_000
"""Records for which a perturbed objective's solver rounds little."""
EXPECTED, WORTH = 0.25, 0.8
"""The top eigenvalue's share of a batch that is expected before its noise, and the share up to
which it is measured."""


@dataclass(frozen=True)
class NamedBatching:
    """A way of drawing batches, given n and a size; ``any_loss``: whether the theorem that
    certifies them needs no smoothness."""

    batching: Callable[[int, int], Batching]
    any_loss: bool


NAMED = {
    "noisy-gd": NamedBatching(lambda n, size: FullBatch(), False),
    "dp-sgld": NamedBatching(lambda n, size: FixedSize(size), True),
    "cyclic-dp-sgd": NamedBatching(lambda n, size: Cyclic(size), False),
    "permuted-sgd": NamedBatching(lambda n, size: Permuted(size), False),
    "bins-sgd": NamedBatching(lambda n, size: BallsInBins(size), True),
    "allocation-sgd": NamedBatching(lambda n, size: RandomAllocation(size), True),
    "poisson-dp-sgd": NamedBatching(lambda n, size: Poisson(size / n), True),
}
PERTURBED, LAST_NOISE, REDUCED, ONE_RECORD = (
    "objective-perturbation",
    "output-perturbation",
    "dp-svrg",
    "noisy-sgd",
)
CORRELATED, FORGETTING = "correlated-sgd", "forgetting-sgd"
ABOUT = {
    "automatic": "the planner's choice, from public numbers alone",
    "noisy-gd": "full batches (Chourasia, Ye, Shokri 2021)",
    "dp-sgld": "fresh batches of one size (Ryffel, Bach, Pointcheval 2022)",
    "cyclic-dp-sgd": "blocks in a public order (Kong, Ribero 2024)",
    "permuted-sgd": "blocks in one secret order",
    "bins-sgd": "every record in one of the secret bins",
    "allocation-sgd": "bins that are drawn again in every epoch",
    "poisson-dp-sgd": "Poisson batches",
    CORRELATED: "blocks in a public order with noise that later steps take back (matrix mechanism; "
    "Denisov et al. 2022, Choquette-Choo et al. 2023)",
    ONE_RECORD: "one record a step, steps of about 1/(ridge k), n^2 of them but at most 40,000 "
    "(Bassily, Smith, Thakurta 2014)",
    REDUCED: "noisy full gradients at snapshots, noisy differences to them over Poisson batches "
    "between (after Wang, Ye, Xu 2017)",
    PERTURBED: "no steps: the minimiser of an objective with a random linear term, for classes and "
    "zero-out (Chaudhuri, Monteleoni, Sarwate 2011)",
    LAST_NOISE: "gradient descent on a ridge problem with noise on its last step alone (Zhang et "
    "al. 2017)",
    FORGETTING: "blocks in a public order with noise on the last step alone, on rows of unit length: "
    "its weights can forget records (lastiterate forget)",
}
"""Named algorithms, each in a line."""
ALGORITHMS = tuple(ABOUT)
INEXACT = {
    PERTURBED: "its noise is drawn once, as a term of the objective, and a minimiser is no sum",
    LAST_NOISE: "every step is charged then, and all but one have no noise",
    ONE_RECORD: "every step is charged then, and it takes tens of thousands of them",
    FORGETTING: "every step is charged then, and all but one have no noise",
    REDUCED: "its noise follows the parameters, and no grid fits all of its sizes",
    CORRELATED: "its later steps take noise back, in parts that are not an integer number of "
    "grid steps",
}
"""Why exact noise does not fit an algorithm."""


def is_read_in_order(algorithm: str, batching: Batching | None) -> bool:
    """Whether a named algorithm, with its own batches or others, takes records that come in order."""
    if algorithm not in (CORRELATED, *NAMED):
        return False
    own = Cyclic(10) if algorithm == CORRELATED else NAMED[algorithm].batching(100, 10)
    return bool((own if batching is None else batching).streams)


def describe_algorithm(
    asked: PlanRequest,
    algorithm: str,
    *,
    batching: Batching | None = None,
    prox: Prox | None = None,
    cap: float | None = None,
    charged: bool = False,
) -> Run:
    """The run of a named algorithm, with one unit of noise, and the calibration that the task asks
    for.

    ``algorithm``: one of ``ABOUT`` but the first. The ridge of objective perturbation is that of
    the lowest predicted risk.

    The papers' own noise and step sizes are runs that can be described (``Langevin``,
    ``InverseDecay``). ``cap``: of the loss (``Softmax(cap=)``), which replaces per-example
    clipping. ``charged``: for exact noise, where every step is charged: then no smoothness is
    needed, and none is measured.
    """
    check_choice("algorithm", algorithm, ALGORITHMS[1:])
    counted = asked.with_public_count()
    run = _describe_algorithm(counted, algorithm, batching, prox, cap, charged)
    run = run if algorithm == FORGETTING else counted.with_calibration(run)
    check_adjacency(asked.adjacency, run.batching.adjacencies)
    return replace(run, adjacency=asked.adjacency)


def _describe_algorithm(
    asked: PlanRequest,
    algorithm: str,
    batching: Batching | None,
    prox: Prox | None,
    cap: float | None,
    charged: bool,
) -> Run:
    if cap is not None and asked.task.classes == 0:
        raise InputError(
            "cap",
            "is for classes: a regression's residuals are clamped already",
            cap,
            "leave it out",
        )
    if charged and algorithm in INEXACT:
        raise InputError(
            "algorithm",
            f"must not be {algorithm} with secure_noise: {INEXACT[algorithm]}",
            algorithm,
            "use noisy-gd",
        )
    if algorithm == PERTURBED:
        return _describe_minimised(asked, batching, prox, cap)
    if algorithm == ONE_RECORD:
        return one_record_run(asked, _cap_loss(asked, cap), batching, prox)
    if algorithm == REDUCED:
        return snapshot_run(
            asked, _cap_loss(asked, cap), CAP if cap is None else cap, batching, prox
        )
    if algorithm == LAST_NOISE:
        batches = FullBatch() if batching is None else batching
        return output_run(asked, batches, in_a_pass(asked, batches), _cap_loss(asked, cap), prox)
    if algorithm == FORGETTING:
        return _describe_forgetting(asked, batching, _cap_loss(asked, cap), prox)
    size = -(-asked.task.n // max(FEWEST_BLOCKS, families.block_count(asked.task.n)))
    if algorithm == CORRELATED:
        return _with(
            _describe_correlated(asked, Cyclic(size) if batching is None else batching), prox, cap
        )
    named = NAMED[algorithm]
    batches = named.batching(asked.task.n, size) if batching is None else batching
    if named.any_loss or charged:
        steps = (
            families.FULL_BATCH_STEPS[-1]
            if type(batches) is FullBatch
            else PASSES * in_a_pass(asked, batches)
        )
        return _with(
            families.run_of(families.plan_weighted(asked), steps, NoiseMultiplier(1.0), batches),
            prox,
            cap,
        )
    return _describe_capped(asked, batches, prox, cap)


def _describe_forgetting(
    asked: PlanRequest, batching: Batching | None, loss: LinearLoss, prox: Prox | None
) -> Run:
    """Blocks so many that a pass forgets about as much as theory allows before distances within it
    add up."""
    loss = replace(loss, ridge=balance_ridge(asked, loss))
    count = int(loss.facts().fact("smooth") / (2 * loss.ridge))
    batches = (
        Cyclic(-(-asked.task.n // max(1, min(count, FORGETTING_BLOCKS))))
        if batching is None
        else batching
    )
    return replace(
        output_run(asked, batches, in_a_pass(asked, batches), loss, prox),
        preprocessing=(UnitRows(),),
    )


def _with(run: Run, prox: Prox | None, cap: float | None) -> Run:
    """Return the run with a penalty, and with a cap instead of clips."""
    run = replace(run, prox=prox)
    return run if cap is None else replace(run, clip=None, loss=replace(run.loss, cap=cap))  # pyright: ignore


def _describe_correlated(asked: PlanRequest, batching: Batching) -> Run:
    """Return correlated noise over batches in which a record has one position."""
    if batching.drawn not in ("never", "once"):
        raise InputError(
            "batch",
            f"must keep a record in its place of every epoch for {CORRELATED}",
            type(batching).__name__,
            "use cyclic, permuted, bins or full",
        )
    passes = families.FULL_BATCH_STEPS[-1] if batching.blocks(asked.task.n) == 1 else PASSES
    return families.make_correlated_run(families.plan_weighted(asked), batching, passes)


def in_a_pass(asked: PlanRequest, batching: Batching) -> int:
    """Batches that hold as many records as there are."""
    blocks = batching.blocks(asked.task.n)
    return (
        blocks
        if batching.drawn != "each step"
        else max(1, round(asked.task.n / batching.divisor(asked.task.n)))
    )


def _cap_loss(asked: PlanRequest, cap: float | None) -> LinearLoss:
    loss = linear_loss(asked.task, 1.0, asked.residual_clip)
    return loss if isinstance(loss, HuberRidge) else replace(loss, cap=CAP if cap is None else cap)


def _describe_capped(
    asked: PlanRequest, batching: Batching, prox: Prox | None, cap: float | None
) -> Run:
    """Plain steps on a capped loss: relative to a measured smoothness where that is worth its
    noise."""
    task, loss = asked.task, _cap_loss(asked, cap)
    parts = families.preparation(asked)
    multiplier = asked.multiplier(SMOOTH_SHARE)
    expected = EXPECTED + 6 * multiplier / batching.divisor(
        task.n
    )  # what is added keeps it an upper bound
    rows = task.rows_per_unit
    covered = asked.delta * math.exp(-log_powers(asked.epsilon / rows, rows))
    failure = max(min(LIKELIEST, covered / RARER), RAREST)
    paid = prox is None and expected < WORTH and task.rows_per_record == 1
    paid = paid and covered > FEWEST_FAILURES * RAREST
    longest = LONGEST / (loss.facts().fact("smooth") * (expected if paid else 1.0))
    length = WAY * families.path_length(asked, CAP if cap is None else cap)
    blocks = in_a_pass(asked, batching)
    fewest, most = (PASSES, MOST_PASSES) if blocks > 1 else FULL_STEPS
    passes = max(fewest, min(most, math.ceil(length / (longest * blocks))))
    step = min(longest, length / (passes * blocks))
    return Run(
        n=task.n,
        steps=passes * blocks,
        noise=NoiseMultiplier(1.0),
        batching=batching,
        loss=loss,
        prox=prox,
        step_size=RelativeToSmooth(LONGEST * step / longest) if paid else Constant(step),
        preprocessing=(*parts, TopEigenvalue(multiplier, failure)) if paid else parts,
        adjacency=asked.adjacency,
        rows_per_unit=task.rows_per_unit,
        rows_per_record=task.rows_per_record,
    )


def _describe_minimised(
    asked: PlanRequest, batching: Batching | None, prox: Prox | None, cap: float | None
) -> Run:
    """The perturbed objective whose ridge has the lowest predicted risk."""
    for name, value in (("batch", batching), ("prox", prox)):
        if value is not None:
            raise InputError(
                name,
                f"must be left out for {PERTURBED}: a minimiser has no batches and no steps",
                type(value).__name__,
                "leave it out",
            )
    if asked.task.classes == 0:
        raise InputError(
            "algorithm",
            "must not be objective-perturbation for a regression: it is proved for residuals "
            "of one sign, such as those of classes",
            PERTURBED,
            "use allocation-sgd",
        )
    if records_moved(asked.adjacency) != 1:
        raise InputError(
            "adjacency",
            f"must be zero-out for {PERTURBED}; its certificate states replace-one as well",
            asked.adjacency,
        )
    if max(asked.task.rows_per_unit, asked.task.rows_per_record) > 1:
        raise InputError(
            "rows_per_unit",
            f"must be 1 for {PERTURBED}: group privacy of its curve leaves no budget "
            "next to a private preparation",
            asked.task.rows_per_unit,
            "use allocation-sgd",
        )
    runs = _describe_minimisers(asked, cap)
    if not runs and asked.task.n > FEWER:
        fewer = replace(asked, task=replace(asked.task, n=FEWER))
        if _describe_minimisers(fewer, cap):  # which needs more epsilon
            raise InputError(
                "n",
                f"is too large for {PERTURBED}: its noise would be less than its solver rounds "
                "in double precision",
                asked.task.n,
                "use allocation-sgd",
            )
    if not runs:
        raise InputError(
            "epsilon",
            "is too small for the largest ridge of objective-perturbation, or above 50",
            asked.epsilon,
            "use allocation-sgd",
        )
    return min(runs, key=asked.risk)


def _describe_minimisers(asked: PlanRequest, cap: float | None) -> list[Run]:
    best = families.plan_weighted(asked)
    found = (families.minimiser_run_of(best, share, cap=cap) for share in families.SHARES)
    return [run for run in found if run is not None]
