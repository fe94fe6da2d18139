"""Methods: noisy SGD, perturbed minimisers, variance reduction, exact minimisers, averages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run import serialization
from lastiterate.run.base import RunBase
from lastiterate.run.batching import FullBatch, Poisson
from lastiterate.run.domains import Everywhere
from lastiterate.run.losses import HuberRidge, LinearLoss, Logistic, Softmax, data_curvature
from lastiterate.run.noise import NoiseMultiplier
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.step_sizes import Constant, FixedStart, RelativeToSmooth
from lastiterate.run.validation import check_integer, check_interval, executable, positive

# What every method answers, and plain noisy descent.


class ReleaseMethod(Checked, ABC):
    """The questions that every method answers.

    ``noisy_steps``: whether every step adds noise to its mean gradient, of a size that is known
    beforehand: what ``noise_stds`` gives. ``hides_way``: whether what is visited before the end has
    no noise, and no guarantee. ``charges_way``: whether every iterate counts as released, whatever
    is released. ``averaged``: whether what is released is an average of iterates.
    """

    noisy_steps: ClassVar[bool] = False
    hides_way: ClassVar[bool] = False
    charges_way: ClassVar[bool] = False
    averaged: ClassVar[bool] = False

    @property
    def model_parameters(self) -> int | None:
        """The number of parameters of the model, where the method has to know it."""
        return None

    @abstractmethod
    def check(self, run: RunBase) -> None:
        """Refuse what the method cannot be combined with."""

    @abstractmethod
    def gradient_evaluations(self, run: RunBase) -> float:
        """Expected gradients of records that the run computes."""

    @abstractmethod
    def farthest_draw(self, run: RunBase) -> float:
        """Return the most standard deviations of one draw of noise that hide a record; infinite
        where a draw is silent."""

    @abstractmethod
    def describe_noise(self, run: RunBase) -> dict[str, Any]:
        """The noise in numbers, JSON-ready: kind, same_every_step, std_of_mean_gradient,
        multiplier."""

    @abstractmethod
    def words(self, run: RunBase) -> str:
        """The run in one line: steps, records, batches, noise."""

    @abstractmethod
    def summarise_noise(self, run: RunBase) -> str:
        """The noise that was found for a run, in one line."""

    @property
    def beyond_composition(self) -> str | None:
        """Why composition has nothing to charge for, where it has not."""
        return None


class NoisySteps(ReleaseMethod):
    """Shared parts of methods that step along noisy mean gradients."""

    noisy_steps: ClassVar[bool] = True

    def check(self, run: RunBase) -> None:
        """Nothing is refused: every field is a part of a step."""

    def gradient_evaluations(self, run: RunBase) -> float:
        return run.steps * run.batching.expected_batch(run.n)

    def farthest_draw(self, run: RunBase) -> float:
        """A silent step is hidden by those behind it: no draw of its own."""
        least = float(run.noise_stds.min())
        if not least > 0:
            return float("inf")
        together = run.rows_per_unit * run.decided_noise.largest_sum(run.blocks, run.steps)
        return together * run.facts().fact("sensitivity", float("inf")) / (run.divisor * least)

    def describe_noise(self, run: RunBase) -> dict[str, Any]:
        return {
            "kind": type(run.noise).__name__,
            "same_every_step": run.same_noise,
            "std_of_mean_gradient": run.largest_noise,
            "multiplier": run.largest_noise * run.divisor / run.noise_unit
            if run.noise_unit
            else None,
        }

    def words(self, run: RunBase) -> str:
        assert run.noise is not None
        stated = (
            run.noise.words
            or f"noise std {run.largest_noise:.4g} on the mean gradient{_of_steps(run)}"
        )
        return f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, {stated}"

    def summarise_noise(self, run: RunBase) -> str:
        unit = run.noise_unit
        multiplier = (
            "" if not unit else f"noise multiplier {run.largest_noise * run.divisor / unit:.6g}, "
        )
        return (
            f"{run.steps} steps with {multiplier}standard deviation {run.largest_noise:.6g} per "
            f"coordinate of the "
            f"mean gradient{_of_steps(run)}"
        )


@final
@dataclass(frozen=True)
class NoisySGD(NoisySteps):
    """Steps along noisy mean gradients, of which the last iterate is released.

    It is the default of a run.

    See Also
    --------
    TailAverage : Release an average instead of the last iterate.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Run(n=100, steps=3, step_size=0.1).method
    NoisySGD()
    """

    json_type: ClassVar[str] = "Descent"


def _of_steps(run: RunBase) -> str:
    """Return which noise is shown, where steps differ in it."""
    return "" if run.same_noise else " (the largest of all steps)"


# Averages of iterates.


class AveragedSteps(NoisySteps):
    """Shared parts of averages: a function of all iterates, which count as released."""

    charges_way: ClassVar[bool] = True
    averaged: ClassVar[bool] = True

    def check(self, run: RunBase) -> None:
        """Refuse to release all iterates: from these anybody can compute the average."""
        if run.release != "last":
            raise InputError(
                "release",
                "must be 'last' where an average is released",
                run.release,
                "use method=NoisySGD(), and average the iterates that are released",
            )


@final
@dataclass(frozen=True)
class TailAverage(AveragedSteps):
    """The mean of the last iterates, released instead of the last one.

    Parameters
    ----------
    share : float, default 0.5
        Share of the iterates that the mean is taken over, within (0, 1], rounded up.

    Raises
    ------
    InputError
        If ``share`` is out of range.

    See Also
    --------
    ExponentialAverage : An average with falling weights.

    Notes
    -----
    **Guarantee:** an average is a function of all iterates, so every iterate is charged.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.TailAverage(0.25).first(steps=10)
    7
    """

    share: float = field(
        default=0.5,
        metadata=require(check_interval, "share of TailAverage", low=0, high=1, ends="(]"),
    )

    def first(self, steps: int) -> int:
        """Return the number of steps before the first iterate of the mean."""
        return steps - max(1, math.ceil(self.share * steps))


@final
@dataclass(frozen=True)
class ExponentialAverage(AveragedSteps):
    """A mean of all iterates with geometrically falling weights, released instead of the last one.

    Parameters
    ----------
    decay : float, default 0.99
        Weight of an iterate relative to the following one, within (0, 1). Weights sum to one, and
        the first parameters have none.

    Raises
    ------
    InputError
        If ``decay`` is out of range.

    See Also
    --------
    TailAverage : The mean of the last iterates.

    Notes
    -----
    **Guarantee:** an average is a function of all iterates, so every iterate is charged.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, method=li.ExponentialAverage(0.9))
    >>> run.method.decay
    0.9
    """

    decay: float = field(
        default=0.99,
        metadata=require(check_interval, "decay of ExponentialAverage", low=0, high=1, ends="()"),
    )


# Refusals of parts that do not go together.


def allow(run: RunBase, where: str, remedy: str, **allowed: tuple[type, ...]) -> None:
    """Refuse the fields of ``run`` whose type is not one of those ``allowed`` for it."""
    for name, kinds in allowed.items():
        value = getattr(run, name)
        if type(value) not in kinds:
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise InputError(name, f"must be {names} {where}", type(value).__name__, remedy)


def only_single_rows(run: RunBase, where: str, remedy: str) -> None:
    """Refuse records of several rows."""
    if run.rows_per_record > 1:
        raise InputError("rows_per_record", f"must be 1 {where}", run.rows_per_record, remedy)


def multiplier_of(run: RunBase) -> float:
    """The noise multiplier of a run that has one by its description."""
    assert isinstance(run.noise, NoiseMultiplier)
    return run.noise.z


# Objective perturbation.

KEPT = 0.875
"""The part of the ridge that acceleration counts on; the rest absorbs errors of gradients."""


@final
@dataclass(frozen=True)
class ObjectivePerturbation(ReleaseMethod):
    """The minimiser of an objective with one random linear term (objective perturbation).

    The summed objective gets <b, theta> with b ~ N(0, (z L)^2 I), where L is the loss's Lipschitz
    constant and z the run's `NoiseMultiplier`.

    Parameters
    ----------
    parameters : int
        Number of weights of the model, intercepts included.
    last : float, default 0.05
        Size of the noise that the minimiser gets before its release, because it is found up to a
        public tolerance: its standard deviation is ``last * z * L / (n * smooth)``.

    Raises
    ------
    InputError
        If a value is out of range, or the run is not one that releases the minimiser of a
        classifier's objective with full batches and a constant step size.

    Notes
    -----
    The steps have no noise, so only the end may be seen. docs/theorems/objective-perturbation has
    the guarantee, its proof and its sources.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=100, steps=50, step_size=0.5, loss=li.Logistic(ridge=0.1),
    ...     noise=li.NoiseMultiplier(4.0), method=li.ObjectivePerturbation(parameters=4),
    ... )
    >>> run.noisy_steps
    False
    """

    json_type: ClassVar[str] = "PerturbedMinimiser"

    parameters: int = field(metadata=require(check_integer, "parameters", most=10**9))
    last: float = field(default=0.05, metadata=require(executable, "last"))
    hides_way: ClassVar[bool] = True

    @property
    def model_parameters(self) -> int:
        return self.parameters

    def check(self, run: RunBase) -> None:
        """Its steps have no noise, and only its end is released."""
        where, nothing = "where the objective is perturbed", (type(None),)
        allow(
            run,
            where,
            "the minimiser of one convex objective of a classifier is released",
            loss=(Logistic, Softmax),
            batching=(FullBatch,),
            step_size=(Constant,),
            domain=(Everywhere,),
            start=(FixedStart,),
            prox=nothing,
            clip=nothing,
            optimizer=nothing,
            noise=(NoiseMultiplier, type(None)),
        )
        if run.release != "last":
            raise InputError(
                "release",
                f"must be 'last' {where}",
                run.release,
                "what the solver visits on its way has no noise",
            )
        assert run.loss.outputs is not None
        if self.parameters % run.loss.outputs or self.parameters < 2 * run.loss.outputs:
            raise InputError(
                "parameters",
                f"must be {run.loss.outputs} outputs times the columns of a row",
                self.parameters,
                "count the features and the intercept",
            )
        only_single_rows(run, where, "its proof speaks of records of one row")

    def last_noise(self, run: RunBase) -> float:
        """Return the standard deviation of the noise on every entry of the minimiser."""
        return self.last * linear_term(run) / (run.n * run.loss.facts().fact("smooth"))

    def gradient_evaluations(self, run: RunBase) -> float:
        return float(run.steps * run.n)

    def farthest_draw(self, run: RunBase) -> float:
        return run.rows_per_unit * run.facts().fact("sensitivity", math.inf) / linear_term(run)

    def describe_noise(self, run: RunBase) -> dict[str, Any]:
        """One draw that every mean gradient of the solver holds."""
        return {
            "kind": serialization.type_name(type(self)),
            "same_every_step": True,
            "std_of_mean_gradient": linear_term(run) / run.n,
            "multiplier": linear_term(run) / run.noise_unit if run.noise_unit else None,
        }

    def words(self, run: RunBase) -> str:
        return (
            f"the minimiser over {run.n} records, {run.steps} solver steps, one linear term of "
            f"multiplier "
            f"{multiplier_of(run):.4g}"
        )

    def summarise_noise(self, run: RunBase) -> str:
        return (
            f"{run.steps} steps of the solver, one random linear term of multiplier "
            f"{multiplier_of(run):.6g}, and "
            f"noise of {self.last:.3g} of its least effect on the minimiser"
        )

    @property
    def beyond_composition(self) -> str:
        return (
            "composition has nothing to charge for: one random term of the objective is drawn, no "
            "step has noise, "
            "and what the solver visits stays secret"
        )


def linear_term(run: RunBase) -> float:
    """Standard deviation of every entry of the random linear term of the summed objective."""
    assert run.noise_unit is not None
    return multiplier_of(run) * run.noise_unit


def contraction(run: RunBase) -> float:
    """a = sqrt(step ``KEPT`` ridge): what accelerated steps take off the distance to the optimum,
    in squares."""
    return math.sqrt(run.first_step * KEPT * run.loss.facts().fact("strong"))


def look_ahead(run: RunBase) -> float:
    """Return the share of the last step by which an accelerated step moves before its gradient."""
    a = contraction(run)
    return (1 - a) / (1 + a)


# Variance-reduced steps.


@final
@dataclass(frozen=True)
class VarianceReduced(ReleaseMethod):
    """Variance-reduced steps (DP-SVRG) on a linear model, with noise that shrinks near a snapshot.

    Step k = 0, ``every``, 2 ``every``, ... takes a snapshot and follows it: the mean gradient of
    all records, with noise of standard deviation ``snapshot * z * L / n`` per coordinate. Every
    other step follows the same noisy mean, plus the batch mean of the differences of gradients
    since the snapshot. Each difference is clipped to c = min(2 L, beta |theta - snapshot|), and the
    noise is ``z * c / divisor``. z is the run's `NoiseMultiplier`, L the loss's Lipschitz constant
    and beta the smoothness of its data term.

    Parameters
    ----------
    every : int
        Steps from one snapshot to the next, at least 2.
    snapshot : float
        Noise of a snapshot in units of z, positive.

    Raises
    ------
    InputError
        If a value is out of range, or the run does not have a linear model, Poisson batches, stated
        step sizes, and neither clip nor update rule.

    Notes
    -----
    Every iterate is charged. docs/theorems/variance-reduction has the guarantee and its proof.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=1000, steps=20, step_size=0.5, loss=li.Logistic(), batching=li.Poisson(0.05),
    ...     noise=li.NoiseMultiplier(10.0), method=li.VarianceReduced(every=10, snapshot=1.0),
    ... )
    >>> run.method.count_snapshots(run)
    2
    """

    every: int = field(metadata=require(check_integer, "every", least=2, most=10**9))
    snapshot: float = field(metadata=require(executable, "snapshot"))
    charges_way: ClassVar[bool] = True

    def check(self, run: RunBase) -> None:
        """A bound on what a gradient moves needs a known, smooth loss."""
        allow(
            run,
            "where steps follow snapshots",
            "a capped loss (cap=) needs no clip",
            loss=(Logistic, Softmax, HuberRidge),
            batching=(Poisson,),
            clip=(type(None),),
            optimizer=(type(None),),
            noise=(NoiseMultiplier, type(None)),
        )
        if type(run.step_size) is RelativeToSmooth:
            raise InputError(
                "step_size",
                "must be stated where steps follow snapshots",
                "RelativeToSmooth",
                "use Constant, InverseDecay or Steps",
            )
        only_single_rows(
            run, "where steps follow snapshots", "use rows_per_unit, for group privacy"
        )

    def count_snapshots(self, run: RunBase) -> int:
        """Return the number of snapshots that a run takes."""
        return -(-run.steps // self.every)

    def gradient_evaluations(self, run: RunBase) -> float:
        """All records' at a snapshot, two for every record of a batch between them."""
        taken = self.count_snapshots(run)
        return taken * run.n + 2 * (run.steps - taken) * run.batching.expected_batch(run.n)

    def snapshot_multiplier(self, run: RunBase) -> float:
        """Return the noise on a snapshot's summed gradient, in Lipschitz constants."""
        return self.snapshot * multiplier_of(run)

    def difference_multiplier(self, run: RunBase) -> float:
        """Return the noise on a sum of gradient differences, in units of their clip."""
        return multiplier_of(run)

    def farthest_draw(self, run: RunBase) -> float:
        assert run.noise_unit is not None
        moved = run.rows_per_unit * run.facts().fact("sensitivity", float("inf")) / run.noise_unit
        return moved / min(self.difference_multiplier(run), self.snapshot_multiplier(run))

    def describe_noise(self, run: RunBase) -> dict[str, Any]:
        """The deviation is that of a snapshot; between them it shrinks with the parameters' way."""
        return {
            "kind": serialization.type_name(type(self)),
            "same_every_step": False,
            "multiplier": self.difference_multiplier(run),
            "std_of_mean_gradient": self.snapshot_multiplier(run)
            * run.facts().fact("lipschitz")
            / run.n,
        }

    def words(self, run: RunBase) -> str:
        return (
            f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, a snapshot "
            f"every {self.every} "
            f"steps, multiplier {self.snapshot_multiplier(run):.4g}, between them "
            f"{self.difference_multiplier(run):.4g}"
        )

    def summarise_noise(self, run: RunBase) -> str:
        return (
            f"{run.steps} steps, noise multiplier {self.snapshot_multiplier(run):.6g} at every "
            f"snapshot and "
            f"{self.difference_multiplier(run):.6g} of a difference's clip between them"
        )

    @property
    def beyond_composition(self) -> str:
        return (
            "composition has no single noise to charge for: between snapshots it follows the "
            "parameters; every "
            "step counts, and that {secret} stay secret is part of the price"
        )


def data_smoothness(run: RunBase) -> float:
    """beta: how far a record's data gradient moves, at most, per unit of the parameters' way."""
    return data_curvature(run.loss.facts().fact("smooth"), run.loss.ridge)


# All methods.

Method = NoisySGD | TailAverage | ExponentialAverage | VarianceReduced | ObjectivePerturbation


def minimiser_of(method: Method) -> ObjectivePerturbation | None:
    """The method that releases a perturbed minimiser; ``None`` for any other."""
    return method if type(method) is ObjectivePerturbation else None


def snapshots_of(method: Method) -> VarianceReduced | None:
    """The method whose steps follow snapshots; ``None`` for any other."""
    return method if type(method) is VarianceReduced else None


def last_noise(method: Method, run: RunBase) -> float:
    """Standard deviation of what is added to every entry of a run's perturbed minimiser."""
    minimiser = minimiser_of(method)
    assert minimiser is not None
    return minimiser.last_noise(run)


# The exact minimiser of a ridge problem, trained without noise.

NORM_SLACK = 1e-6
"""Relative slack by which rows may exceed the loss's ``row_norm``: they are checked and not
clipped."""


@final
@dataclass(frozen=True, kw_only=True)
class RidgeMinimiser:
    """The weights that minimise the mean of ``loss`` over ``n`` records, ridge included.

    ``residual``: the largest Euclidean norm of the objective's gradient that is accepted as the end
    of the solver. Errors: ``InputError`` where the loss has no ridge, so that nothing says how far
    one record moves its minimiser.

    **Guarantee:** it says nothing about differential privacy: such a model has none.
    """

    n: int = field(metadata=require(check_integer, "n"))
    loss: LinearLoss
    residual: float = field(metadata=require(positive, "residual"))

    def __post_init__(self) -> None:
        normalise_fields(self)
        if not self.loss.ridge > 0:
            raise InputError(
                "ridge",
                "must be positive where a minimiser is to forget records",
                self.loss.ridge,
                "without it one record may move the minimiser by any distance",
            )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``from_dict`` gives it back."""
        return serialization.encode(self)

    @classmethod
    def from_dict(cls, data: object) -> RidgeMinimiser:
        """Read a description; ``InputError`` for anything else."""
        decoded = serialization.decode(
            data, "training", {kind.__name__: kind for kind in (cls, Logistic, Softmax, HuberRidge)}
        )
        if type(decoded) is not cls:
            raise InputError(
                "training",
                'must be a JSON object with "type": "RidgeMinimiser"',
                type(decoded).__name__,
            )
        return decoded
