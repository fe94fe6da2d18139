"""A release from the request to its execution: one plan object that is filled step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import UNNAMED, to_unit_name
from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.planning.plan_request import PlanRequest
from lastiterate.planning.planner import TIME_BUDGET, Choice
from lastiterate.planning.presets import ALGORITHMS, describe_algorithm
from lastiterate.planning.task import Task, automatic_delta
from lastiterate.release.allowance import Charged
from lastiterate.release.ledger_charge import Charging
from lastiterate.release.score_meaning import Answers
from lastiterate.release.units import UnitLoss, Units
from lastiterate.run.adjacency import ADJACENCIES, has_fixed_size
from lastiterate.run.batching import Batching
from lastiterate.run.penalties import Prox
from lastiterate.run.run import Run
from lastiterate.run.validation import check_choice, check_integer, to_float

if TYPE_CHECKING:
    from lastiterate.engine.random import Key

Value = TypeVar("Value")
Progress = Callable[[int, int, float], None]
"""Called with steps done, steps in all, and seconds."""


@dataclass(frozen=True)
class Budget:
    """What a fit may cost. ``delta``: "auto" is a power of ten at most 1/(10 n); ``time_budget``:
    seconds. ``n``: under add-remove the public number of records that everything follows from (see
    ``public_n``)."""

    epsilon: float
    delta: float | Literal["auto"] = "auto"
    adjacency: Any = "zero-out"
    time_budget: float = TIME_BUDGET
    n: int | None = None

    def __post_init__(self) -> None:
        if self.n is not None:
            check_integer("n", self.n)
        for name, value in (("epsilon", self.epsilon), ("time_budget", self.time_budget)):
            to_float(name, value)
        if not isinstance(self.delta, str):
            to_float("delta", self.delta)
        check_choice("adjacency", self.adjacency, ADJACENCIES)

    def public_n(self, records: int) -> int:
        """The number of records that plans and certificates may know: how many there are, or under
        add-remove, where that is private, the number that the user states.

        **Guarantee:** under add-remove the result does not depend on ``records``.
        """
        if has_fixed_size(self.adjacency):
            if self.n is not None:
                raise InputError(
                    "n",
                    f"is for add-remove: under {self.adjacency} the number of records is public, "
                    f"and "
                    "that of the data",
                    self.n,
                    "leave it out",
                )
            return records
        if self.n is None:
            raise InputError(
                "n",
                "must be stated under add-remove: a public number near that of the records, which "
                "is "
                "private itself; batches, noise and delta follow from it",
                None,
                "state one that you chose without counting the records, such as a round one",
            )
        return self.n

    def delta_for(self, n: int) -> float:
        if self.delta == "auto":
            return automatic_delta(n)
        if isinstance(self.delta, str):
            raise InputError("delta", 'must be a number in (0, 1) or "auto"', self.delta)
        return self.delta

    def make_request(self, task: Task) -> PlanRequest:
        """What families of runs are asked."""
        return PlanRequest(
            task, self.epsilon, self.delta_for(task.n), self.adjacency, self.time_budget
        )


def parse_delta(text: str) -> float | Literal["auto"]:
    """Read "auto" or a number above 0 and below the largest delta of a budget."""
    from lastiterate.accounting.noise_calibration import LARGEST_DELTA

    if text == "auto":
        return "auto"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < LARGEST_DELTA:
        raise InputError(
            "delta",
            f"must be auto or a number above 0 and below {LARGEST_DELTA:g}",
            text,
            "try 1e-6",
        )
    return value


@dataclass(frozen=True)
class Algorithm:
    """The planner's choice, a named way to draw batches with its settings, or a ``run`` that is
    given."""

    name: str = "automatic"
    batching: Batching | None = None
    prox: Prox | None = None
    cap: float | None = None
    run: Run | None = None

    def __post_init__(self) -> None:
        check_choice("algorithm", self.name, ALGORITHMS)
        for name, value in (("batch", self.batching), ("prox", self.prox), ("cap", self.cap)):
            if self.name == "automatic" and value is not None:
                raise InputError(
                    name,
                    "needs an algorithm: the automatic plan chooses for itself",
                    value,
                    "name one such as permuted-sgd",
                )
        if self.name != "automatic" and self.run is not None:
            raise InputError("algorithm", "must be 'automatic' where a run is given", self.name)

    @property
    def planned(self) -> bool:
        """Whether the planner chooses."""
        return self.name == "automatic" and self.run is None

    def describe_run(self, asked: PlanRequest, *, exact: bool) -> Run | None:
        """The run, but for its noise; ``None`` where the planner chooses. ``exact``: every step is
        charged then, and full batches are what noise counts least in."""
        if self.run is not None or (self.planned and not exact):
            return self.run
        return describe_algorithm(
            asked,
            "noisy-gd" if self.planned else self.name,
            batching=self.batching,
            prox=self.prox,
            cap=self.cap,
            charged=exact,
        )


AUTOMATIC = Algorithm()


class Processes:
    """The processes that make one release together: this one alone.

    The one of ``rank`` 0 among ``count`` charges, keeps the checkpoint and writes; all of them
    return the released model.
    """

    rank: int = 0
    count: int = 1
    kept: Any = None  #: the checkpoint that the run began with
    layer_device: Any = None  #: that holds one layer at a time of a module that lies on the host

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Leave the others; an error that ends this process ends all of them."""

    def check_same(self, **facts: str) -> None:
        """Refuse facts that differ between processes, by the argument that they are about."""

    def check_records(self, fingerprint: Callable[[], Iterable[Any]], identity: str = "") -> None:
        """Refuse processes that have different records.

        ``identity``: which files the records lie in. Where it is the same in every process all read
        one file, and no ``fingerprint`` is made.

        **Guarantee:** only whether they are equal follows from the records: what is compared are
        digests under a secret of this call. Data sets that differ in one record, and in all
        processes alike, are both taken, or both refused.
        """

    def send(self, make: Callable[[], Value]) -> Value:
        """Return in every process what the first one makes."""
        return make()

    def add(self, point: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Return the sum of what each process computed for its own records at one point."""
        return own


@dataclass(frozen=True)
class LazyRecords:
    """Records whose values are looked at when ``read`` is called: once, after they are paid for.

    ``fingerprint``: arrays that are equal for equal records, which several processes compare.
    """

    read: Callable[[], Any]
    fingerprint: Callable[[], Iterable[Any]] = tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """One release. What is asked comes first, then what the form of the data says, then what is
    planned, then the values of the records.

    ``data``: arrays, a source of pieces, ``LazyRecords``, or the name of a file. ``budget``: what
    the release may cost (``None`` where the run's own noise was asked for): what is certified with
    more is refused before it is charged. ``model``: what the kind of model is made from: first
    parameters, a module, a row norm, the rows of each candidate; of a file its name. ``exact``:
    exact sums and exact noise, not double precision. ``optimizer``: what makes the steps, where the
    run says that a caller's does. ``augment``: what records draw. ``devices``: how many share every
    batch. ``processes``: who makes this release together. ``by_step``: whether a caller's loop
    takes the steps, of a copy of the data. ``units``: the column that says who a row belongs to,
    and the most rows of each that are used.
    ``features``: "auto", names of public maps of records instead of the schema's own, or of a part
    of the planner's runs (see ``Task``). ``stream``: read the file piece by piece, with scratch
    files in the folder ``scratch``; so is one whose rows need more memory than ``memory`` bytes.
    ``notice``: is called where that happens. ``rows_progress``: is called with the number of records
    that were read, and of all. ``report_accuracy``: the part of mu^2 that a noisy count of
    right answers costs, on a tenth of the records that are then not trained on. ``calibrated``:
    whether a classifier pays for calibrated probabilities. ``class_weight``: what records of every
    label count. ``threshold``: of two labels, see ``Labels``; or the costs of both mistakes.

    Of the data's form. ``schema``: how records of a file become rows. ``answers``: what scores of
    linear models mean. ``unit``: who each row belongs to. ``size``: bytes that the model takes on
    disk, about.

    Planned. ``proof``: the certificate, stated at ``delta``. ``task``, ``choice``: what the planner
    was asked, and the plans that it chose from. ``places``: of the rows that are trained on, and of
    those that the run's one noisy count is about. ``caveats``: what the releaser assumes.
    ``charged``: what a ledger pays for, where it is not the certificate. ``kept``: the data that
    the ledger's keyed digest is of, where they are not ``data``.
    """

    data: Any
    budget: Budget | None = None
    model: Any = None
    loss: Any = None
    exact: bool = False
    seed: int | None = None
    microbatch: int | None = None
    optimizer: Any = None
    augment: Callable[[Any, Any], Any] | None = None
    progress: Progress | None = None
    charging: Charging = field(default_factory=Charging)
    processes: Processes = field(default_factory=Processes)
    scratch: Path | None = None
    devices: int = 1
    by_step: bool = False
    algorithm: Algorithm = AUTOMATIC
    test: str | None = None
    row_norm: float | None = None
    units: Units | None = None
    features: str = "auto"
    stream: bool = False
    memory: int | None = None
    notice: Callable[[str], None] | None = None
    rows_progress: Callable[[int, int], None] | None = None
    report_accuracy: float | None = None
    calibrated: bool = True
    class_weight: dict[str, float] | None = None
    threshold: float | tuple[float, float] | None = None
    schema: Schema | None = None
    answers: Answers | None = None
    unit: object = None
    size: int = 0
    proof: Certificate | None = None
    delta: float = 0.0
    task: Task | None = None
    choice: Choice | None = None
    places: tuple[np.ndarray, np.ndarray] | None = None
    caveats: tuple[str, ...] = ()
    charged: Charged | None = None
    kept: object = None

    @property
    def certificate(self) -> Certificate:
        """The certificate of what is planned."""
        assert self.proof is not None
        return self.proof

    def draw_key(self) -> Key | None:
        """Of a seed, for tests; ``None``: the execution draws its own."""
        if self.seed is None:
            return None
        from lastiterate.engine import key_from_seed

        return key_from_seed(self.seed)

    @property
    def records(self) -> int | None:
        """How many records the data have, of which nothing is looked at; ``None`` for a file's,
        whose own column says whose every row is."""
        part: Any = self.data
        while type(part) in (tuple, list, dict) and len(part):  # pyright: ignore
            first: Any = next(iter(part.values())) if type(part) is dict else part[0]  # pyright: ignore
            part = first  # pyright: ignore
        return None if isinstance(part, LazyRecords) else len(part)  # pyright: ignore

    @property
    def in_pieces(self) -> bool:
        """Whether the records are read in pieces: a source, or shared by several devices."""
        return is_source(self.data) or self.devices != 1

    @property
    def of_units(self) -> bool:
        """Whether it is known whose every row is, or a record is a unit: a unit is protected as a
        whole then."""
        return self.unit is not None or isinstance(self.loss, UnitLoss)

    @property
    def unit_name(self) -> str:
        """What a unit is called whose rows are known."""
        return UNNAMED if self.units is None else to_unit_name(self.units.column)

    @property
    def trained_units(self) -> Any:
        """Who each of the rows that are trained on belongs to."""
        return (
            self.unit
            if self.unit is None or self.places is None
            else np.asarray(self.unit)[self.places[0]]
        )

    def open_data(self) -> TrainingRequest:
        """The same with its values at hand; for what has been paid for."""
        return replace(self, data=self.data.read()) if isinstance(self.data, LazyRecords) else self


def is_source(data: object) -> bool:
    """Whether ``data`` are records that are read in pieces, such as ``lastiterate.data.stream``
    gives."""
    return all(hasattr(data, name) for name in ("pieces", "fingerprint", "dear", "__len__"))
