"""One immutable description of a training run: the accountant reads it and the trainer executes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

from lastiterate.errors import InputError
from lastiterate.run import codec, older, strict_json
from lastiterate.run.adjacency import Adjacency, check_adjacency
from lastiterate.run.arrays import Array
from lastiterate.run.batching import Batching, FullBatch
from lastiterate.run.counts import NoisyCount, check_counts
from lastiterate.run.domains import Domain, Everywhere
from lastiterate.run.evidence import Fact, TestedFact
from lastiterate.run.facts import LossFacts
from lastiterate.run.fields import settle
from lastiterate.run.losses import Abstract, Loss
from lastiterate.run.method import Descent
from lastiterate.run.methods import Method
from lastiterate.run.noise import Noise
from lastiterate.run.paid import check_relative, measured
from lastiterate.run.penalties import Prox
from lastiterate.run.preparation import Preparation, check_targets
from lastiterate.run.record_bounds import facts_of, noise_unit
from lastiterate.run.stable import check_stable, stabilised
from lastiterate.run.starts import Fixed, Start
from lastiterate.run.step_sizes import StepSize, as_step_size
from lastiterate.run.units import check_units
from lastiterate.run.updates import Plain, Update, UpdateRule
from lastiterate.run.validate import executable, whole

Release = Literal["last", "all"]
LONGEST_CHANGING = 10**7
"""Steps of a run whose step sizes differ: they are looked at one by one."""


class GivenStepSize:
    """The field ``step_size``: callers may give a number or several, what is stored is a description."""

    def __get__(self, run: Run | None, owner: type) -> StepSize:
        if run is None:
            raise AttributeError("step_size")  # there is no default
        return run.__dict__["step_size"]

    def __set__(self, run: Run, given: StepSize | float | Sequence[float]) -> None:
        run.__dict__["step_size"] = as_step_size(given)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a training run that is public.

    ``n``: records. ``steps``: in all, over all passes. ``clip``: clipping norm of one record's gradient (Euclidean).
    ``batching``, ``noise``, ``step_size``, ``update``, ``method``, ``start``: see their classes. ``domain``:
    projected onto after every step. ``prox``: a penalty, by its proximal map. ``prelude``: private preparation,
    composed in. ``release``: "last" (the final parameters) or "all" (every iterate may be seen). ``adjacency``:
    "zero-out", "replace-one" or "add-remove". ``loss``: what is known about it. ``rows_per_unit``: most records that
    one protected unit, such as a person, has in the data; a public number, bounded before training. Epsilon is the
    unit's, by group privacy.
    ``rows_per_record``: for linear models, most rows of a unit that is one record: n counts units, batches draw units,
    a unit's gradient is the mean over so many places, empty ones counted as 0. ``counts``: noisy counts of what the
    model is right about, released beside it. Errors: ``InputError`` for values out of range, or that do not fit
    together.

    Step k = 0, 1, ... computes ``Project(Prox(theta - step_k (data gradient sum / b + ridge theta + noise_std_k
    N(0, I))))`` with the public divisor b. ``noise_std_k`` is per coordinate of the mean gradient. A number or several
    may be given as ``step_size``; ``noise=None`` is a run that is still to be calibrated.

    **Guarantee:** what is accounted is what is executed, because both read this object and nothing else, and step
    sizes, noise and divisor from ``step_sizes``, ``noise_stds`` and ``divisor`` alone.
    """

    n: int
    steps: int
    step_size: GivenStepSize = GivenStepSize()
    noise: Noise | None = None
    batching: Batching = FullBatch()
    domain: Domain = Everywhere()
    prox: Prox | None = None
    start: Start = Fixed()
    clip: float | None = None
    update: Update | None = None
    method: Method = Descent()
    prelude: tuple[Preparation, ...] = ()
    release: Release = "last"
    adjacency: Adjacency = "zero-out"
    loss: Loss = Abstract()
    rows_per_unit: int = 1
    counts: tuple[NoisyCount, ...] = ()
    rows_per_record: int = 1

    def __post_init__(self) -> None:
        settle(self)
        whole("n", self.n)
        whole("rows_per_unit", self.rows_per_unit, most=self.n)
        whole("steps", self.steps, most=10**9)
        if not self.step_size.constant:
            whole("steps of a schedule that changes", self.steps, most=LONGEST_CHANGING)
        if self.clip is not None:
            executable("clip", self.clip)
        check_adjacency(self.adjacency, self.batching.adjacencies)
        if self.divisor > self.n:
            raise InputError("batch size", f"cannot exceed n = {self.n}", int(self.divisor), "use full batches")
        for name, length in (("step_size", self.step_size.length), ("noise std", self.noise and self.noise.length)):
            if length not in (None, self.steps):
                raise InputError(name, f"needs one value for each of {self.steps} steps", length)
        check_relative(self)
        check_stable(self)
        check_targets(self.prelude, self.loss.target_classes)
        self.method.check(self)
        check_counts(self)
        check_units(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copies and pickles are what is described: checked again, and nothing that was derived comes along."""
        self.__dict__.update({item.name: state[item.name] for item in fields(self) if item.name in state})
        self.__post_init__()

    # What follows from the description.

    @property
    def rule(self) -> UpdateRule:
        """What every step makes of its noisy mean gradient."""
        return Plain() if self.update is None else self.update

    @property
    def divisor(self) -> float:
        """The public number that summed gradients are divided by."""
        return self.batching.divisor(self.n)

    @property
    def blocks(self) -> int:
        """Batches in one pass over the data (1 for full batches, and for batches drawn at every step)."""
        return self.batching.blocks(self.n)

    @property
    def shares(self) -> tuple[float, float]:
        """The fewest and the most records that a step's batch can hold, over the public divisor."""
        return self.batching.shares(self.n)

    @property
    def constant(self) -> bool:
        """Whether step size and noise are the same at every step."""
        return self.step_size.constant and self.same_noise

    @property
    def same_noise(self) -> bool:
        """Whether the noise on the gradient is the same at every step, by the form of the description."""
        return self.method.noisy_steps and self._noise.constant(self.step_size)

    @property
    def for_any_length(self) -> bool:
        """Whether step sizes and noise are described for any number of steps."""
        return self.step_size.length is None and (self.noise is None or self.noise.length is None)

    @property
    def _noise(self) -> Noise:
        check_described(self)
        assert self.noise is not None
        return self.noise

    @cached_property
    def step_sizes(self) -> Array:
        """The step size of every step, read-only; shape (steps,)."""
        return self.step_size.sizes(0, self.steps)

    @cached_property
    def noise_stds(self) -> Array:
        """The noise's standard deviation, per coordinate of the mean gradient, at every step; shape (steps,)."""
        return self._stds(self.steps)

    @property
    def noise_unit(self) -> float | None:
        """What a noise multiplier multiplies, before the divisor: the clipping norm, or else the Lipschitz constant."""
        return noise_unit(self.loss, self.clip)

    def _stds(self, last: int) -> Array:
        if not self.method.noisy_steps:
            raise InputError("noise", "has no size that is known before every step of this method",
                             type(self.method).__name__, "ask the method")
        return self._noise.stds(0, last, self.step_size, self.noise_unit, self.divisor)

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
        """sigma^2 of step 0, which adds sqrt(2 step) sigma N(0, I) to the iterate; of every step where there is one."""
        given = self._noise.temperature
        return self.first_step * self.first_noise**2 / 2 if given is None else given

    @property
    def one_temperature(self) -> bool:
        """Whether sigma^2 is the same at every step, by the form of the description."""
        return self.constant or self._noise.temperature is not None

    @property
    def gradient_evaluations(self) -> float:
        """Expected gradients of single records that the run computes."""
        return self.method.gradient_evaluations(self)

    def shortened(self, steps: int) -> Run:
        """The run of the first ``steps`` steps."""
        noise = None if self.noise is None else self.noise.shortened(steps)
        return replace(self, steps=steps, step_size=self.step_size.shortened(steps), noise=noise)

    def measured(self, eigenvalue: float, parameters: int) -> Run:
        """The run that is executed once its preparation has released ``eigenvalue``; itself where that changes nothing.

        ``parameters``: columns of a row, with the intercept.
        """
        return measured(self, eigenvalue, parameters)

    def stabilised(self, eigenvalues: Sequence[float]) -> Run:
        """The run that is executed once its covariance has released a matrix with these ``eigenvalues``."""
        return stabilised(self, eigenvalues)

    def facts(self) -> LossFacts:
        """The constants that hold for this run, after clipping and the conversion to its adjacency."""
        return self._facts

    @cached_property
    def _facts(self) -> LossFacts:
        return facts_of(self.loss, self.clip, self.adjacency)

    # JSON.

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready description; ``Run.from_dict`` gives the same run back."""
        return codec.encode(self)

    def to_json(self) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, data: Any) -> Run:
        """Read a description; constants in it are the caller's word (``ASSUMED``, or ``TESTED`` where they say so)."""
        run = codec.decode(older.in_todays_words(data), "run", _CLASSES)
        if type(run) is not Run:
            raise InputError("run", "must be a JSON object with \"type\": \"Run\"", type(data).__name__)
        return run

    @classmethod
    def from_json(cls, text: str) -> Run:
        """The run in a JSON text; ``InputError`` for anything that is not exactly one run."""
        return cls.from_dict(strict_json.loads(text, "run"))


DESCRIPTIONS: dict[str, tuple[type, ...]] = {
    "step_size": get_args(StepSize), "noise": get_args(Noise), "batching": get_args(Batching),
    "domain": get_args(Domain), "prox": get_args(Prox), "start": get_args(Start), "update": get_args(Update),
    "prelude": get_args(Preparation), "loss": get_args(Loss), "method": get_args(Method),
    "counts": (NoisyCount,),
}
"""The classes that each field of a run may hold."""
_CLASSES: dict[str, type] = {kind.__name__: kind for kinds in DESCRIPTIONS.values() for kind in kinds} \
    | {kind.__name__: kind for kind in (Run, LossFacts, Fact, TestedFact)}


def check_described(run: Any) -> None:
    """``check_run``, and its noise is decided: what is accounted or executed as it stands."""
    check_run(run)
    if run.noise is None:
        raise InputError("noise", "is not decided yet", None, "calibrate the run, or state its noise")


def check_run(run: Any) -> None:
    """Refuse anything but a ``Run`` itself: a subclass could give the accountant other numbers than it executes."""
    if type(run) is not Run:
        raise InputError("run", "must be a Run itself, no subclass and no look-alike", type(run).__name__,
                         "build one with lastiterate.Run(...)")
