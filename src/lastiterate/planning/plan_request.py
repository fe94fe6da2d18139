"""The request to all families: one task, one budget; and the shared parts of their runs."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.noise_calibration import calibrate, calibrate_run
from lastiterate.errors import NotCertified
from lastiterate.planning.predicted_risk import predict_risk, public_slope
from lastiterate.planning.task import Task, budget
from lastiterate.run.adjacency import Adjacency, has_fixed_size, records_moved
from lastiterate.run.facts import FLOAT_SLACK
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.preprocessing import PrivateMean, SquareRoots
from lastiterate.run.probability_calibration import MOST_CLASSES, AssumedSlope, Calibration
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant

INTERCEPT = 0.2  #: value of the constant column, relative to the largest norm of the prepared rows
CENTRED = 0.25  #: norm that centred rows are clipped to, relative to the norm before
WIDER = (
    0.5,
    1.0,
)  #: clips that are compared with it, for classes only the first: long rows need few features
CLIP = 0.3  #: per-example gradients of classifiers are clipped to this fraction of their bound
MEAN_SHARE = 0.08  #: part of the budget mu^2 spent on the mean
FARTHEST_MEAN = (
    0.5  #: length of the mean's noise, relative to the norm of rows, beyond which none is released
)
LAST_STEP = 0.1  #: falling steps end near this fraction of the first, which lets noise die out


def linear_loss(task: Task, row_norm: float, residual_clip: float = 0.5) -> LinearLoss:
    """The loss of a task's model on rows of this norm; of a regression, on targets in [-1, 1]."""
    intercept, weights = INTERCEPT * row_norm, task.class_weights
    if task.classes == 0:
        return HuberRidge(row_norm=row_norm, residual_clip=residual_clip, intercept=intercept)
    if task.classes == 2:
        return Logistic(row_norm=row_norm, intercept=intercept, class_weights=weights)
    return Softmax(
        classes=task.classes, row_norm=row_norm, intercept=intercept, class_weights=weights
    )


def linear_decay(first: float, steps: int) -> tuple[float, ...]:
    """Step sizes that fall on a line from ``first`` to near ``LAST_STEP`` of it."""
    return tuple(first * (1 - (1 - LAST_STEP) * k / steps) for k in range(steps))


@dataclass(frozen=True)
class PlanRequest:
    """One task and one budget. ``time_budget``: seconds that a fit may take, estimated on two
    cores; ``centred``: what centred rows are clipped to, relative to the norm before; ``longest``:
    what whitened rows are clipped to, relative to their root mean square, ``None`` where each is
    divided by its norm; ``residual_clip``: of their regressions."""

    task: Task
    epsilon: float
    delta: float
    adjacency: Adjacency
    time_budget: float
    centred: float = CENTRED
    longest: float | None = None
    residual_clip: float = 0.2

    @property
    def clips(self) -> tuple[PlanRequest, ...]:
        """The same with every clip of centred rows that is weighed: bias of short rows against
        noise for long ones."""
        wider = WIDER[:1] if self.task.classes else WIDER
        return (self, *(replace(self, centred=clip) for clip in wider))

    @cached_property
    def mu(self) -> float:
        """The mu that one row may cost before the calibration of probabilities."""
        return self.whole_mu * math.sqrt(1 - self.calibration_share)

    @property
    def calibration_share(self) -> float:
        """Part of mu^2 that goes to the calibration of probabilities."""
        return self.task.calibration_share(self.whole_mu / records_moved(self.adjacency))

    @cached_property
    def whole_mu(self) -> float:
        """The mu that one row may cost: the budget, shared by the rows of a unit."""
        mu, rows = budget(self.epsilon, self.delta), self.task.rows_per_unit
        return mu if rows == 1 else mu / rows * (1 - 1e-9)

    @cached_property
    def loss(self) -> LinearLoss:
        """On centred rows, or on rows clipped to as much where ``centring`` is 0."""
        return linear_loss(self.task, self.centred * self.task.mapped_norm)

    @cached_property
    def centring(self) -> float:
        """Part of mu^2 spent on the mean of rows; 0 where it is mostly noise, which centred rows
        would all share."""
        noise = self.mean(MEAN_SHARE).noise_multiplier * math.sqrt(self.task.features) / self.task.n
        return MEAN_SHARE if noise <= FARTHEST_MEAN else 0.0

    def with_public_count(self) -> PlanRequest:
        """The same where the number of records is public: a record moves as much then, and families
        may compare their runs with those that add-remove is not defined for."""
        return self if has_fixed_size(self.adjacency) else replace(self, adjacency="zero-out")

    def under(self, run: Run) -> Run | None:
        """A run of ``with_public_count`` under the adjacency that is asked for; ``None`` where its batches
        do not have it."""
        return (
            replace(run, adjacency=self.adjacency)
            if self.adjacency in run.batching.adjacencies
            else None
        )

    @cached_property
    def empty(self) -> Run:
        """The shared part of all runs without whitening: the loss, the private mean, one plain
        step."""
        mean = (self.mean(self.centring),) if self.centring else ()
        return Run(
            n=self.task.n,
            steps=1,
            step_size=Constant(self.first),
            noise=NoiseMultiplier(1.0),
            loss=self.loss,
            clip=self.clip if self.task.classes == 2 else None,
            adjacency=self.adjacency,
            preprocessing=(*self.maps, *mean),
            rows_per_unit=self.task.rows_per_unit,
            rows_per_record=self.task.rows_per_record,
        )

    @property
    def maps(self) -> tuple[SquareRoots, ...]:
        """The first maps of single rows."""
        return (SquareRoots(),) if self.task.feature_map == "sqrt" else ()

    def mean(self, share: float) -> PrivateMean:
        """The private mean of the rows for a share of the budget mu^2."""
        return PrivateMean(
            noise_multiplier=self.multiplier(share) * records_moved(self.adjacency),
            row_norm=self.task.mapped_norm,
        )

    def multiplier(self, share: float) -> float:
        """The noise of a single release that a share of mu^2 pays for."""
        return 1.01 / (self.mu * math.sqrt(share))

    @cached_property
    def clip(self) -> float | None:
        """Clipping records that are far from right: less sensitivity, and so less noise, for some
        bias.

        Composition holds whatever is clipped; other theorems keep a clamped scalar residual (two
        classes), but not a clipped vector, whose step expands.
        """
        return CLIP * self.loss.facts().fact("lipschitz") if self.task.classes else None

    @cached_property
    def first(self) -> float:
        """sqrt(classes / 2) / smooth: the worst curvature of softmax needs two classes at even
        odds."""
        return math.sqrt(max(self.task.classes, 2) / 2) / self.loss.facts().fact("smooth")

    def composition_noise(self, steps: int, spent: float | None = None) -> NoiseMultiplier:
        """Return the noise that composition needs: it grows with the square root of the steps;
        ``spent``: part of mu^2."""
        left = 1 - (self.centring if spent is None else spent)
        return NoiseMultiplier(math.sqrt(steps / left) / self.mu * (1 + FLOAT_SLACK))

    def with_calibration(self, run: Run) -> Run:
        """The run with the calibration of probabilities that its task asks for; a public factor
        where that would not pay."""
        share = self.calibration_share
        if not share:
            asked = (
                self.task.calibrated
                and 2 <= self.task.classes <= MOST_CLASSES
                and run.probability_calibration is None
            )
            slope = public_slope(run) if asked else 1.0
            return run if slope == 1 else replace(run, probability_calibration=AssumedSlope(slope))
        moved = records_moved(self.adjacency)
        return replace(
            run,
            probability_calibration=Calibration(1.01 * moved / (self.whole_mu * math.sqrt(share))),
        )

    def risk(self, run: Run) -> float:
        """Predicted on the public reference problem."""
        return predict_risk(self.task, run)

    def calibrate_run(self, run: Run) -> Run | None:
        """The run with the noise that it needs, unless it takes too long or nothing certifies it."""
        if self.task.seconds(run) > self.time_budget:
            return None
        with suppress(NotCertified):
            return calibrate_run(run, epsilon=self.epsilon, delta=self.delta)
        return None

    def certificate(self, run: Run) -> Certificate:
        """The run with its calibration of probabilities and the least noise that the budget allows."""
        return calibrate(self.with_calibration(run), epsilon=self.epsilon, delta=self.delta)
