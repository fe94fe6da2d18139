"""A run as its parts see it: its fields, the values that follow, and one error for wrong
arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Literal, TypeVar

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.adjacency import Adjacency, facts_of, has_fixed_size, noise_unit
from lastiterate.run.batching import Batching, FullBatch
from lastiterate.run.domains import Domain, Everywhere
from lastiterate.run.facts import LossFacts
from lastiterate.run.losses import KnownConstants, Loss
from lastiterate.run.noise import Noise
from lastiterate.run.penalties import Prox
from lastiterate.run.preprocessing import Preparation
from lastiterate.run.step_sizes import FixedStart, Start, StepSize, to_step_size
from lastiterate.run.updates import Plain, Update, UpdateRule
from lastiterate.run.validation import Array

Release = Literal["last", "all"]


class GivenStepSize:
    """The field ``step_size``: callers may give a number or several, what is stored is a
    description."""

    def __get__(self, run: RunBase | None, owner: type) -> StepSize:
        if run is None:
            raise AttributeError("step_size")  # there is no default
        return run.__dict__["step_size"]

    def __set__(self, run: RunBase, given: StepSize | float | Sequence[float]) -> None:
        run.__dict__["step_size"] = to_step_size(given)


@dataclass(frozen=True, kw_only=True)
class RunBase:
    """The base of ``Run``, which adds its method and counts, and checks: parts of a run know it as
    this."""

    n: int
    steps: int
    step_size: GivenStepSize = GivenStepSize()
    noise: Noise | None = None
    batching: Batching = FullBatch()
    domain: Domain = Everywhere()
    prox: Prox | None = None
    start: Start = FixedStart()
    clip: float | None = None
    optimizer: Update | None = field(default=None, metadata={"key": "update"})
    preprocessing: tuple[Preparation, ...] = field(default=(), metadata={"key": "prelude"})
    release: Release = "last"
    adjacency: Adjacency = "zero-out"
    loss: Loss = KnownConstants()
    rows_per_unit: int = 1
    rows_per_record: int = 1

    @property
    def noisy_steps(self) -> bool:
        """Whether every step adds noise of a size that is known beforehand."""
        return True

    @property
    def rule(self) -> UpdateRule:
        """The update rule that every step applies to its noisy mean gradient."""

        def stds() -> Array:
            return np.array([self.first_noise]) if self.same_noise else self.noise_stds

        return Plain() if self.optimizer is None else self.optimizer.bind_noise(stds)

    @property
    def nominal(self) -> bool:
        """Whether n is nominal: a public number that everything follows from, and that the data
        need not have.

        **Guarantee:** where neighbours differ by a record more, how many there are is never
        compared with n.
        """
        return not has_fixed_size(self.adjacency)

    def admits(self, records: int) -> bool:
        """Return whether data of this many records may be executed.

        Parameters
        ----------
        records : int
            Number of records.

        Returns
        -------
        bool
            True for n records, and for any positive number where n is nominal.
        """
        return records >= 1 if self.nominal else records == self.n

    @property
    def divisor(self) -> float:
        """The public number that summed gradients are divided by."""
        return self.batching.divisor(self.n)

    @property
    def blocks(self) -> int:
        """Batches in one pass over the data (1 for full batches, and for batches drawn at every
        step)."""
        return self.batching.blocks(self.n)

    @property
    def shares(self) -> tuple[float, float]:
        """The fewest and the most records that a step's batch can hold, over the public divisor."""
        return self.batching.shares(self.n)

    @property
    def sampling_rate(self) -> float:
        """Probability that a batch holds a given record, where every step draws its own."""
        rate = self.batching.inclusion_probability(self.n)
        assert rate is not None  # an assumption asks for such batches
        return rate

    def reads(self, record: int) -> np.ndarray:
        """Return the steps that read a record.

        Parameters
        ----------
        record : int
            Position of the record.

        Returns
        -------
        numpy.ndarray, shape (steps,)
            Booleans, all true where batches are drawn.
        """
        block = self.batching.block_of(self.n)
        if block is None:
            return np.ones(self.steps, bool)
        return np.arange(self.steps) % self.blocks == block[record]

    @property
    def constant(self) -> bool:
        """Whether step size and noise are the same at every step."""
        return self.step_size.constant and self.same_noise

    @property
    def same_noise(self) -> bool:
        """Whether the noise on the gradient is the same at every step, by the form of the
        description."""
        return self.noisy_steps and self.decided_noise.constant(self.step_size)

    @property
    def for_any_length(self) -> bool:
        """Whether step sizes and noise are described for any number of steps."""
        return self.step_size.length is None and (self.noise is None or self.noise.length is None)

    @property
    def decided_noise(self) -> Noise:
        """The noise, where it is decided."""
        if self.noise is None:
            raise InputError(
                "noise", "is not decided yet", None, "calibrate the run, or state its noise"
            )
        return self.noise

    @cached_property
    def step_sizes(self) -> Array:
        """The step size of every step, read-only; shape (steps,)."""
        return self.step_size.sizes(0, self.steps)

    @cached_property
    def noise_stds(self) -> Array:
        """The noise's standard deviation, per coordinate of the mean gradient, at every step; shape
        (steps,)."""
        return self._stds(self.steps)

    @property
    def noise_unit(self) -> float | None:
        """The factor of a noise multiplier, before the divisor: the clipping norm, or else the
        Lipschitz constant."""
        return noise_unit(self.loss, self.clip)

    def _stds(self, last: int) -> Array:
        if not self.noisy_steps:
            raise InputError(
                "noise",
                "has no size that is known before every step of this method",
                None,
                "ask the method",
            )
        return self.decided_noise.stds(0, last, self.step_size, self.noise_unit, self.divisor)

    @cached_property
    def first_step(self) -> float:
        """The step size of step 0: of every step, where it is constant."""
        return float(self.step_size.sizes(0, 1)[0])

    @cached_property
    def longest_step(self) -> float:
        """The largest step size of the run."""
        return self.first_step if self.step_size.falls else float(self.step_sizes.max())

    @property
    def total_time(self) -> float:
        """The sum of all step sizes, rounded up."""
        return self.step_size.total(self.steps)

    @cached_property
    def first_noise(self) -> float:
        """The noise's standard deviation at step 0: at every step, where it is constant."""
        return float(self._stds(1)[0])

    @property
    def largest_noise(self) -> float:
        """The largest of the noise's standard deviations, per coordinate of the mean gradient."""
        return self.first_noise if self.same_noise else float(self.noise_stds.max())

    @property
    def temperature(self) -> float:
        """sigma^2 of step 0, which adds sqrt(2 step) sigma N(0, I) to the iterate; of every step
        where there is one."""
        given = self.decided_noise.temperature
        return self.first_step * self.first_noise**2 / 2 if given is None else given

    @property
    def one_temperature(self) -> bool:
        """Whether sigma^2 is the same at every step, by the form of the description."""
        return self.constant or self.decided_noise.temperature is not None

    def facts(self) -> LossFacts:
        """Return the constants of the loss after clipping, under the run's adjacency.

        Returns
        -------
        LossFacts
            Constants with their evidence.
        """
        return self._facts

    @cached_property
    def _facts(self) -> LossFacts:
        return facts_of(self.loss, self.clip, self.adjacency)


DescribedRun = TypeVar("DescribedRun", bound=RunBase)
"""The same kind of run that was given."""


# Refusal of arguments that a description does not have.

OF_TRAIN = frozenset(
    {
        "epsilon",
        "delta",
        "seed",
        "secure_noise",
        "optimizer",
        "average",
        "augment",
        "copies",
        "microbatch",
        "unit",
        "ledger",
        "devices",
    }
)
"""Arguments of training that are no part of a run's description."""


def checks_arguments(kind: type) -> None:
    """Let a class refuse missing and unknown arguments with an ``InputError``; of others nothing is
    looked at."""
    made: Callable[..., None] = getattr(kind, "__init__")  # noqa: B009  # pyright: of an instance it would be unsafe

    @wraps(made)
    def init(self: object, *args: Any, **named: Any) -> None:
        try:
            made(self, *args, **named)
        except TypeError:
            _check(kind, inspect.signature(made), args, named)
            raise

    setattr(kind, "__init__", init)  # noqa: B010


def _check(
    kind: type, signature: inspect.Signature, args: tuple[Any, ...], named: dict[str, Any]
) -> None:
    """Refuse arguments that do not fit."""
    own = [each for each in signature.parameters.values() if each.name != "self"]
    positions = sum(each.kind is not inspect.Parameter.KEYWORD_ONLY for each in own)
    written = f"{kind.__name__}({', '.join(_form(each) for each in own)})"
    for name in named:
        if name not in signature.parameters:
            raise InputError(
                name,
                f"is no argument of {kind.__name__}",
                None,
                "give it to train" if name in OF_TRAIN else f"write {written}",
            )
    if len(args) > positions:
        raise InputError(
            kind.__name__,
            f"takes {positions} arguments without a name",
            len(args),
            f"write {written}",
        )
    given = {each.name for each in own[: len(args)]} | set(named)
    for each in own:
        if each.default is each.empty and each.name not in given:
            raise InputError(
                f"{kind.__name__}.{each.name}", "must be given", None, f"write {written}"
            )


def _form(argument: inspect.Parameter) -> str:
    needed = argument.default is argument.empty
    return (
        argument.name
        if needed and argument.kind is not argument.KEYWORD_ONLY
        else f"{argument.name}=..."
    )
