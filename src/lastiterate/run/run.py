"""`Run`: one immutable description that the accountant reads and the trainer executes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field, fields, replace
from typing import Any, ClassVar, final, get_args

from lastiterate import plugins
from lastiterate.errors import InputError
from lastiterate.lazy import RenamedAttribute, rename_arguments
from lastiterate.run import serialization
from lastiterate.run.adjacency import check_adjacency
from lastiterate.run.base import RunBase, checks_arguments
from lastiterate.run.batching import Batching
from lastiterate.run.domains import Domain
from lastiterate.run.facts import Fact, LossFacts, TestedFact
from lastiterate.run.losses import KnownConstants, Loss
from lastiterate.run.measured_smoothness import (
    apply_eigenvalues,
    apply_top_eigenvalue,
    check_relative,
    check_stable,
)
from lastiterate.run.methods import Method, NoisySGD
from lastiterate.run.noise import Noise
from lastiterate.run.noisy_counts import Count, check_counts
from lastiterate.run.penalties import Prox
from lastiterate.run.plugin_batching import find_plugins, is_batching
from lastiterate.run.preprocessing import (
    CosineFeatures,
    Preparation,
    TopEigenvalue,
    check_number,
    check_targets,
)
from lastiterate.run.probability_calibration import AssumedSlope, Calibration, check_calibration
from lastiterate.run.serialization import normalise_fields
from lastiterate.run.step_sizes import Start, StepSize
from lastiterate.run.updates import Update
from lastiterate.run.validation import check_integer, executable, to_float

# Random draws of a record's gradient.

MOST_COPIES = 1024


@final
@dataclass(frozen=True)
class RecordAugmentation:
    """Random numbers of a record's own gradient, such as augmentation or dropout.

    A record's gradient is the mean over ``copies`` draws, and is clipped after that. `train` adds
    this description where it gets ``augment`` or a loss with a key.

    Parameters
    ----------
    name : str, default "augmentation"
        Name of the random part in certificates: 1 to 80 printable characters.
    copies : int, default 1
        Number of draws per gradient (augmentation multiplicity), at most 1024.

    Raises
    ------
    InputError
        If a value is out of range. A `Run` refuses it without ``clip``, with a loss of known
        constants, in a bounded domain, and with a method whose steps add no noise.

    Notes
    -----
    **Guarantee:** for every value of the keys, a record's gradient is a function of the parameters
    and of that record alone, with a norm of at most the clip. Keys follow from the run's key, the
    step, the record's index and the copy, so they are independent of the data. Theorems for losses
    that differ from step to step therefore hold. No theorem about hidden iterates certifies such
    a run.

    Source: De et al. 2022 (arXiv:2204.13650).

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=5, step_size=0.1, clip=1.0, augmentation=li.RecordAugmentation(copies=4))
    >>> run.augmentation.copies
    4
    """

    json_type: ClassVar[str] = "RecordDraws"

    name: str = "augmentation"
    copies: int = 1

    def __post_init__(self) -> None:
        normalise_fields(self)
        check_integer("copies", self.copies, most=MOST_COPIES)
        if not self.name.isprintable() or not 0 < len(self.name) <= 80:
            raise InputError(
                "name of what is drawn", "must be up to 80 printable characters", len(self.name)
            )

    @property
    def stated(self) -> str:
        """Text of the certificate about the draws, which nobody can check."""
        several = (
            f", {self.copies} times for every gradient, whose mean is clipped"
            if self.copies > 1
            else ""
        )
        return (
            f"drawn for every record, stated: {self.name}{several}, is taken to look at one "
            f"record, its key and "
            "public numbers alone"
        )


def check_augmentation(run: RunBase, draws: RecordAugmentation | None) -> None:
    """Refuse draws where a theorem, or the method, needs the same loss at every step."""
    if draws is None:
        return
    if run.clip is None:
        raise InputError(
            "clip", "is needed where a record's gradient draws random numbers", None, "add clip="
        )
    if type(run.loss) is not KnownConstants or run.loss.constants != LossFacts():
        raise InputError(
            "loss of the run",
            "must be KnownConstants without constants where a record's gradient draws random "
            "numbers: constants speak of records as they are",
            type(run.loss).__name__,
            "leave loss out of the run",
        )
    if math.isfinite(run.domain.diameter()):
        raise InputError(
            "domain",
            "must be unbounded where a record's gradient draws random numbers: theorems about a "
            "bounded one compare steps of one loss",
            type(run.domain).__name__,
            "leave it out",
        )
    if not run.noisy_steps:
        raise InputError(
            "method",
            "must add noise to every step's gradient where a record's gradient draws random "
            "numbers",
            None,
            "use NoisySGD",
        )


# Records that are units of several rows.


def check_units(run: RunBase, counts: tuple[Count, ...]) -> None:
    """Refuse units as records where the engine cannot take their mean, and group privacy on top."""
    check_integer("rows_per_record", run.rows_per_record, most=10**6)
    if run.rows_per_record == 1:
        return
    if run.rows_per_unit > 1:
        raise InputError(
            "rows_per_unit",
            "must be 1 where a record is a unit already (rows_per_record)",
            run.rows_per_unit,
            "leave it out",
        )
    if isinstance(run.loss, KnownConstants):
        raise InputError(
            "rows_per_record",
            "is for the losses of linear models",
            run.rows_per_record,
            "a network's UnitLoss makes a unit one record",
        )
    if counts:
        raise InputError(
            "counts",
            "must be empty where records are units: they count single rows",
            len(counts),
            "leave them out",
        )
    if any(isinstance(part, CosineFeatures) for part in run.preprocessing):
        raise InputError(
            "rows_per_record",
            "must be 1 where rows get cosine features",
            run.rows_per_record,
            "use rows_per_unit, for group privacy",
        )
    if any(isinstance(part, TopEigenvalue) for part in run.preprocessing):
        raise InputError(
            "rows_per_record",
            "must be 1 where a top eigenvalue is measured",
            run.rows_per_record,
            "it is measured on single rows; give the step sizes themselves",
        )


NOT_GIVEN: Any = None
"""The number of steps of a run that names epochs instead."""


def count_steps(run: RunBase, epochs: object) -> int:
    """Return the number of steps in ``epochs`` of a run whose other fields are not checked yet."""
    if run.steps is not NOT_GIVEN:
        raise InputError(
            "epochs", f"must be left out where steps = {run.steps} is given", epochs, "give one"
        )
    if not is_batching(run.batching):
        return 1  # refused by its type
    check_integer("n", run.n)
    count = to_float("epochs", epochs) * run.batching.steps_per_epoch(run.n)
    steps = round(count) if math.isfinite(count) else 0
    if steps < 1 or abs(count - steps) > 1e-9 * steps:
        raise InputError(
            "epochs",
            f"must make an integer number of steps, and make {count:.10g}",
            epochs,
            f"write steps={max(1, steps)}",
        )
    return steps


MANY = re.compile(r"\(((?:[-+.\de]+, ){3})(?:[-+.\de]+, ){3,}([-+.\de]+)\)")
"""More numbers than anybody reads."""
LONGEST_CHANGING = 10**7
"""Steps of a run whose step sizes differ: they are looked at one by one."""


@dataclass(frozen=True, kw_only=True)
class Run(RunBase):
    """The public description of one training run.

    The accountant reads it, the trainer executes it, and neither sees anything else. It holds no
    data. Step k = 0, 1, ... computes ``Project(Prox(theta - step_k (g / b + ridge theta +
    std_k N(0, I))))``, with g the sum of the batch's data gradients, b the public ``divisor`` and
    ``std_k`` the noise per coordinate of the mean gradient.

    Parameters
    ----------
    n : int
        Number of records, public. Under "add-remove" it is a nominal number, stated without
        counting; data of any number of records are then executed.
    steps : int
        Number of steps in all, over all epochs, at most 1e9. Not with ``epochs``.
    step_size : float, sequence of float or StepSize
        Factor of the noisy mean gradient: one number, one per step, or a schedule such as
        `Constant`, `InverseDecay`, `Steps`, `RelativeToSmooth` or `StableSteps`.
    noise : GradientNoise, Langevin, NoiseMultiplier or Correlated, optional
        Noise of every step. ``None`` leaves it to `calibrate` or `train`.
    batching : Batching, default FullBatch()
        Records that a step reads: `FullBatch`, `Cyclic`, `Permuted`, `Reshuffled`, `FixedSize`,
        `BallsInBins`, `RandomAllocation` or `Poisson`.
    domain : Domain, default Everywhere()
        Closed convex set of `lastiterate.domains` that every iterate is projected onto.
    prox : Prox, optional
        Convex penalty of `lastiterate.penalties`, applied by its proximal map at every step.
    start : FixedStart or GaussianStart, default FixedStart()
        First parameters, independent of the data.
    clip : float, optional
        Euclidean clipping norm of one record's gradient. ``None`` leaves gradients as they are.
    optimizer : Nesterov, HeavyBall, Adam or PostProcessing, optional
        Update rule; by default a step follows the negative gradient.
    preprocessing : tuple of Preparation, default ()
        Private preparation before the first step, in order, composed into the certificate.
    release : {"last", "all"}, default "last"
        Whether only the final parameters are published, or every iterate may be seen.
    adjacency : {"zero-out", "replace-one", "add-remove"}, default "zero-out"
        Relation of neighbouring data sets (docs/guides/adjacency).
    loss : Logistic, Softmax, HuberRidge or KnownConstants, default KnownConstants()
        Known constants of the loss; `KnownConstants` suits every other model.
    rows_per_unit : int, default 1
        Most records that one protected unit, such as a person, has in the data. Epsilon is then
        the unit's, by group privacy.
    rows_per_record : int, default 1
        Most rows of a unit that is one record, for linear models. ``n`` then counts units, batches
        draw units, and a unit's gradient is the mean over this many positions, empty ones as 0.
    method : Method, default NoisySGD()
        Origin of the released parameters: `NoisySGD`, `TailAverage`, `ExponentialAverage`,
        `ObjectivePerturbation` or `VarianceReduced`.
    counts : tuple of NoisyCount or NoisyGroups, default ()
        Noisy counts of correct predictions, released together with the model.
    probability_calibration : Calibration or AssumedSlope, optional
        Calibration of a classifier's probabilities after the last step, folded into the weights.
    augmentation : RecordAugmentation, optional
        Random numbers that belong to single records, such as augmentations and dropout.
    epochs : float, optional
        Number of epochs, in place of ``steps``: an epoch has n / batch size steps, or 1 / rate for
        `Poisson`. The run keeps the number of steps alone.

    Raises
    ------
    InputError
        If a value is out of range, if two values do not fit together, or if ``epochs`` make no
        integer number of steps.

    See Also
    --------
    account : Certify a run whose noise is stated.
    calibrate : Find the least noise for a budget.
    train : Execute a run on data.

    Notes
    -----
    **Guarantee:** the accounted run is the executed run. Both read this object alone, and take step
    sizes, noise and divisor from ``step_sizes``, ``noise_stds`` and ``divisor``.

    A run is immutable; `dataclasses.replace` makes a changed one. ``to_json`` and ``from_json``
    write and read it.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=1000, steps=20, step_size=0.5, batching=li.Cyclic(100), loss=li.Logistic(ridge=0.1)
    ... )
    >>> run.divisor, run.blocks, run.noise
    (100.0, 10, None)
    >>> li.Run.from_json(run.to_json()) == run
    True
    >>> li.Run(n=1000, epochs=2, step_size=0.5, batching=li.Cyclic(100)).steps
    20
    """

    steps: int = field(default=NOT_GIVEN, metadata=serialization.ALWAYS_GIVEN)
    method: Method = NoisySGD()
    counts: tuple[Count, ...] = ()
    probability_calibration: Calibration | AssumedSlope | None = field(
        default=None, metadata={"key": "calibration"}
    )
    augmentation: RecordAugmentation | None = field(default=None, metadata={"key": "record_draws"})
    shortened = RenamedAttribute("truncate")
    measured = RenamedAttribute("with_top_eigenvalue")
    stabilised = RenamedAttribute("with_eigenvalues")
    prelude = RenamedAttribute("preprocessing")
    record_draws = RenamedAttribute("augmentation")
    update = RenamedAttribute("optimizer")
    calibration = RenamedAttribute("probability_calibration")
    epochs: InitVar[float | None] = None

    def __post_init__(self, epochs: float | None) -> None:
        if epochs is not None:
            object.__setattr__(self, "steps", count_steps(self, epochs))
        elif self.steps is NOT_GIVEN:
            raise InputError("Run.steps", "must be given", None, "write steps=..., or epochs=...")
        normalise_fields(self)
        check_integer("n", self.n)
        check_integer("rows_per_unit", self.rows_per_unit, most=self.n)
        check_integer("steps", self.steps, most=10**9)
        if not self.step_size.constant:
            check_integer("steps of a schedule that changes", self.steps, most=LONGEST_CHANGING)
        if self.clip is not None:
            executable("clip", self.clip)
        check_adjacency(self.adjacency, self.batching.adjacencies)
        if self.divisor > self.n:
            raise InputError(
                "batch size", f"cannot exceed n = {self.n}", int(self.divisor), "use full batches"
            )
        for name, length in (
            ("step_size", self.step_size.length),
            ("noise std", self.noise and self.noise.length),
        ):
            if length not in (None, self.steps):
                raise InputError(name, f"needs one value for each of {self.steps} steps", length)
        if self.noise is not None:
            self.noise.check(self.steps)
        if self.optimizer is not None:
            self.optimizer.check(self.step_size, self.noise)
        check_number("preprocessing", self.preprocessing)
        check_number("counts", self.counts)
        check_relative(self)
        check_stable(self)
        check_targets(self.preprocessing, self.loss.target_classes)
        self.method.check(self)
        check_counts(self, self.counts)
        check_units(self, self.counts)
        check_calibration(self, self.probability_calibration)
        check_augmentation(self, self.augmentation)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Check copies and pickles again, and drop everything that was derived."""
        self.__dict__.update(
            {item.name: state[item.name] for item in fields(self) if item.name in state}
        )
        self.__post_init__(None)

    def __str__(self) -> str:
        """``repr``, with long lists of numbers cut short."""
        return MANY.sub(r"(\1..., \2)", repr(self))

    @property
    def noisy_steps(self) -> bool:
        """Whether every step adds noise of a size that is known beforehand."""
        return self.method.noisy_steps

    @property
    def gradient_evaluations(self) -> float:
        """Expected gradients of single records that the run computes."""
        return self.method.gradient_evaluations(self)

    def truncate(self, steps: int) -> Run:
        """Return the run of the first ``steps`` steps.

        Parameters
        ----------
        steps : int
            Number of steps to keep.

        Returns
        -------
        Run
            The same run, with its schedule and noise cut to ``steps``.
        """
        noise = None if self.noise is None else self.noise.truncate(steps)
        return replace(self, steps=steps, step_size=self.step_size.truncate(steps), noise=noise)

    def with_top_eigenvalue(self, eigenvalue: float, parameters: int) -> Run:
        """Return the run that is executed once its preparation has released ``eigenvalue``.

        Parameters
        ----------
        eigenvalue : float
            Released upper bound on the largest eigenvalue, from `TopEigenvalue`.
        parameters : int
            Number of columns of a row, the intercept included.

        Returns
        -------
        Run
            The run with step sizes as numbers; itself where nothing depends on the eigenvalue.
        """
        return apply_top_eigenvalue(self, eigenvalue, parameters)

    def with_eigenvalues(self, eigenvalues: Sequence[float]) -> Run:
        """Return the run that is executed once its covariance has released a matrix.

        Parameters
        ----------
        eigenvalues : sequence of float, shape (d,)
            Eigenvalues of the matrix that `PrivateCovariance` released.

        Returns
        -------
        Run
            The run with the `StableSteps` scaled down where they would be unstable.
        """
        return apply_eigenvalues(self, eigenvalues)

    # JSON.

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description.

        Returns
        -------
        dict
            Description that ``Run.from_dict`` turns into an equal run.
        """
        return serialization.encode(self)

    def to_json(self) -> str:
        """Return the description as JSON text.

        Returns
        -------
        str
            JSON text that ``Run.from_json`` turns into an equal run.
        """
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    @classmethod
    def from_dict(cls, data: object) -> Run:
        """Read a run from its description.

        Constants in it count as the caller's word: ``ASSUMED``, or ``TESTED`` where they say so.

        Parameters
        ----------
        data : dict
            Description as ``to_dict`` writes it.

        Returns
        -------
        Run
            The described run.

        Raises
        ------
        InputError
            If the description is not exactly one run.
        """
        run = serialization.decode(data, "run", _classes_for(data))
        if type(run) is not Run:
            raise InputError("run", 'must be a JSON object with "type": "Run"', type(data).__name__)
        return run

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Read a run from JSON text.

        Parameters
        ----------
        text : str
            JSON text as ``to_json`` writes it.

        Returns
        -------
        Run
            The described run.

        Raises
        ------
        InputError
            If the text is not exactly one run.
        """
        return cls.from_dict(serialization.loads(text, "run"))


DESCRIPTIONS: dict[str, tuple[type, ...]] = {
    "step_size": get_args(StepSize),
    "noise": get_args(Noise),
    "batching": get_args(Batching),
    "domain": get_args(Domain),
    "prox": get_args(Prox),
    "start": get_args(Start),
    "optimizer": get_args(Update),
    "preprocessing": get_args(Preparation),
    "loss": get_args(Loss),
    "method": get_args(Method),
    "counts": get_args(Count),
    "probability_calibration": (Calibration, AssumedSlope),
    "augmentation": (RecordAugmentation,),
}
"""The classes that each field of a run may hold."""
_CLASSES: dict[str, type] = {
    serialization.type_name(kind): kind for kinds in DESCRIPTIONS.values() for kind in kinds
} | {kind.__name__: kind for kind in (Run, LossFacts, Fact, TestedFact)}
for _kind in _CLASSES.values():
    checks_arguments(_kind)
rename_arguments(
    Run,
    prelude="preprocessing",
    record_draws="augmentation",
    update="optimizer",
    calibration="probability_calibration",
)


def _classes_for(data: object) -> Mapping[str, type]:
    """Return the classes of a description by name; a plug-in's batching too, if it is named."""
    batching = data.get("batching") if serialization.is_object(data) else None
    name = batching.get("type") if serialization.is_object(batching) else None
    if not isinstance(name, str) or name in _CLASSES:
        return _CLASSES
    outside = {kind.__name__: kind for kind in find_plugins().values()}
    if name not in outside and plugins.find_installed("batchings"):
        raise InputError(
            "run.batching",
            'has an unknown "type"',
            name,
            "where a plug-in provides it, let its code run: lastiterate.allow_plugins()",
        )
    return _CLASSES | outside


def check_described(run: Any) -> None:
    """``check_run``, and its noise is decided: what is accounted or executed as it stands."""
    check_run(run)
    _ = run.decided_noise


def check_run(run: object) -> None:
    """Refuse anything but a ``Run`` itself.

    A subclass could give the accountant other numbers than it executes.
    """
    if type(run) is not Run:
        raise InputError(
            "run",
            "must be a Run itself, no subclass and no look-alike",
            type(run).__name__,
            "build one with lastiterate.Run(...)",
        )
