"""What a certificate can be about: the one type that its readers ask, whatever is certified."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

from lastiterate.accounting.beside_the_model import charged_beside
from lastiterate.accounting.verdict import Verdict
from lastiterate.accounting.wording import unit, units
from lastiterate.curves.curve import Curve
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Theorem

FORMAT = 3
"""The form of written certificates (certificate.schema.json)."""
FORMATS = (1, 2, FORMAT)
"""Those that are read."""


@dataclass(frozen=True)
class Words:
    """Of a subject: what it is, in ``short``; how epsilon comes about, where no theorem of the table says so (``by``);
    what epsilon pays for beside the steps; what must stay secret beside iterates, gradients, noise and seed."""

    short: str
    by: str = ""
    charged: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subject(ABC):
    """A description from which every number of a certificate follows; kinds of subjects answer what differs.

    ``entry``: of a written certificate that describes it; ``word``: what it is called. ``composes_steps``:
    whether its curve is that of all steps together, one after the other. ``limit``: what epsilon is, where it is not
    the differential privacy of every record ("" where it is).

    **Guarantee:** its fields are the description alone: copies and pickles derive everything else again.
    """

    entry: ClassVar[str]
    word: ClassVar[str]
    composes_steps: ClassVar[bool] = False
    limit: ClassVar[str] = ""

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), tuple(vars(self)[item.name] for item in fields(self))

    @classmethod
    @abstractmethod
    def read(cls, stored: dict[str, Any]) -> Self:
        """What a written certificate describes; ``InputError`` where it describes nothing."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """JSON-ready: what ``entry`` holds."""

    def described(self) -> dict[str, Any]:
        """What the numbers follow from, JSON-ready: a ledger's line has its hash."""
        return self.description()

    def charged_as(self) -> dict[str, Any]:
        """What a ledger is charged for, JSON-ready: the same, where epsilon is about everybody."""
        return self.described()

    def details(self) -> dict[str, Any]:
        """What a written certificate says of it beside ``entry``, JSON-ready."""
        return {}

    def fresh(self) -> Self:
        """The same, with nothing derived yet, as anybody would account for it."""
        return copy(self)

    @property
    def run(self) -> Run | None:
        """The run that is executed, where it is a single one."""
        return None

    @property
    @abstractmethod
    def adjacency(self) -> str:
        """What neighbouring data sets are; see the glossary."""

    @abstractmethod
    def all_curves(self) -> tuple[Curve, ...]:
        """Everything that certifies."""

    @cached_property
    def curves(self) -> tuple[Curve, ...]:
        """``all_curves``, derived once."""
        return self.all_curves()

    @property
    def for_groups(self) -> tuple[Curve, ...]:
        """The ``curves`` that also hold for several records, one after the other."""
        return ()

    @abstractmethod
    def under(self, adjacency: str) -> Self | None:
        """The same under another adjacency; ``None`` where its constants cannot be converted."""

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one; infinite where nothing is known."""
        other = self.under("replace-one")
        return math.inf if other is None else min((curve.epsilon(delta) for curve in other.curves), default=math.inf)

    @property
    def at_least(self) -> Evidence:
        """How well a fact must be known to certify."""
        return Evidence.ENFORCED

    def all_verdicts(self) -> tuple[Verdict, ...]:
        """What the theorems of the table say of it, where they speak of it at all."""
        return ()

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """``all_verdicts``, derived once."""
        return self.all_verdicts()

    @cached_property
    def certifying(self) -> tuple[Verdict, ...]:
        """Verdicts that may certify, in the table's order."""
        return tuple(verdict for verdict in self.verdicts if verdict.certifies(self.at_least))

    def curve_of(self, verdict: Verdict, coarser: int = 0) -> Curve:
        """The curve of one of the ``verdicts``, made coarser that many times; ``InputError`` where it has none."""
        raise InputError("theorem", f"says nothing about a {self.word}", verdict.theorem.name)

    @property
    def condition(self) -> str:
        """What is assumed ("" for nothing)."""
        return ""

    @property
    @abstractmethod
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know beside the number."""

    @property
    @abstractmethod
    def words(self) -> Words:
        """What is said of it."""

    def protected(self, name: str = "") -> dict[str, Any]:
        """The privacy unit, JSON-ready: the most ``rows`` of the data that it has, and what it is in ``words``.

        ``name``: of a unit whose rows were bounded before the training.
        """
        if self.run is None:
            return unit(1, name=name)
        return unit(self.run.rows_per_unit, self.run.rows_per_record, read=isinstance(self.run.loss, Abstract),
                    name=name)

    def because(self, delta: float) -> tuple[str, ...]:
        """Lines that say what the numbers rest on, where no theorem of the table does."""
        return ()

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        """What is cited: theorems of the table, and names of ``accounting.cite.OTHERS``."""
        return (), ()


@dataclass(frozen=True)
class OneRun(Subject):
    """A subject that is one run, ``executed`` in one arithmetic or another."""

    by: ClassVar[str] = ""
    executed: Run

    def description(self) -> dict[str, Any]:
        return self.run.to_dict()

    @property
    def run(self) -> Run:
        return self.executed

    @property
    def adjacency(self) -> str:
        return self.run.adjacency

    @property
    def of_the_run(self) -> tuple[str, ...]:
        """Caveats that the run itself brings."""
        several = (units(self.run.rows_per_unit),) if self.run.rows_per_unit > 1 else ()
        stated = (part.stated for part in (self.run.update, self.run.record_draws) if part is not None and part.stated)
        return (*self.words.secret, *several, *stated)

    @property
    def words(self) -> Words:
        run = self.run
        return Words(f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, {self.adjacency}", self.by,
                     charged=charged_beside(run), secret=(run.batching.secret,) if run.batching.secret else ())
