"""A theorem: assumptions that can be checked on a run and the curve that follows, in a table by
name.

docs/contributing/theorems.md says how one is added.
"""

from __future__ import annotations

import copyreg
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, final

from lastiterate import plugins
from lastiterate.curves.curve import Curve
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.errors import InputError
from lastiterate.run.adjacency import one_by_one
from lastiterate.run.batching import Cyclic, FullBatch
from lastiterate.run.facts import Evidence, Fact, LossFacts, find_fact, weakest
from lastiterate.run.losses import KnownConstants
from lastiterate.run.noise import Langevin
from lastiterate.run.run import Run, check_described
from lastiterate.run.step_sizes import Constant, GaussianStart
from lastiterate.run.validation import check_choice

Kind = Literal["upper", "lower", "exact", "claimed"]
Family = Literal["last iterate", "sampling", "composition"]
FAMILIES: tuple[Family, ...] = ("last iterate", "sampling", "composition")
"""Families by what a bound charges for: the last iterate alone, the drawing of batches, or every
step."""


@dataclass(frozen=True)
class Satisfied:
    """The assumption holds for the run, resting on these facts."""

    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Violated:
    """The assumption does not hold; one sentence that a user can act on."""

    reason: str


@dataclass(frozen=True)
class Assumption:
    """A checkable condition on a run."""

    name: str
    needs: str
    check: Callable[[Run], Satisfied | Violated]
    of_method: bool = False  #: whether it says how the released parameters come about


@dataclass(frozen=True)
class Theorem:
    """One theorem of the table.

    ``kind``: ``upper`` bounds can certify; ``lower`` bounds say what no analysis of the class can
    beat; ``exact`` both; ``claimed`` ones are unproved or refuted and never certify. ``family``:
    what the bound charges for. ``statement``: a title, an empty line, then the theorem in full with
    its source and the limits of its regime. ``formula`` and ``latex``: the bound as plain text and
    for pages. ``bound`` is called only where all assumptions hold; it returns a ``LowerBound`` for
    ``lower`` theorems and a ``Curve`` for all others. ``example``: a run on which all assumptions
    hold, for its picture, its page and its tests. ``remark``: one sentence for those who choose a
    run. ``origin``: the package and version that provides it as a plug-in, "" for those of this
    project.

    **Guarantee:** a theorem names its methods (``Assumption.of_method``): it says nothing of a
    method that it does not know.
    """

    name: str
    kind: Kind
    family: Family
    statement: str
    citation: str
    formula: str
    latex: str
    assumptions: tuple[Assumption, ...]
    bound: Callable[[Run], Curve | LowerBound]
    example: Run
    remark: str = ""
    origin: str = ""

    @property
    def mark(self) -> str:
        """Say who provides it, where nobody of this project has reviewed it; else ""."""
        return plugins.mark(self.origin) if self.origin else ""

    @property
    def title(self) -> str:
        """The first paragraph of the statement, on one line."""
        return self.statement.strip().partition("\n\n")[0].replace("\n", " ")

    @property
    def text(self) -> str:
        """The statement without its title."""
        return self.statement.strip().partition("\n\n")[2].strip()

    def __post_init__(self) -> None:
        if not any(assumption.of_method for assumption in self.assumptions):
            raise TypeError(
                f"{self.name}: a theorem must say which methods it speaks of, such as noisy_steps"
            )


# Runs from which the examples of theorems are made.


def example_loss(**change: float | None) -> KnownConstants:
    """A convex loss with a Lipschitz and a smoothness constant of 1, but for what ``change`` says."""
    return KnownConstants(LossFacts(**({"lipschitz": 1.0, "smooth": 1.0, "strong": 0.0} | change)))


STRONG = 0.02
"""The strong convexity of strongly convex examples."""
EXAMPLE = Run(
    n=1000,
    steps=1000,
    step_size=Constant(0.5),
    noise=Langevin(0.01),
    batching=Cyclic(100),
    loss=example_loss(),
)
"""A convex loss, 10 blocks in a public order, a fixed start, no domain."""
EXAMPLE_FULL_BATCH = replace(EXAMPLE, batching=FullBatch(), noise=Langevin(0.01 / 3))


def gibbs_example(run: Run) -> Run:
    """``run`` on a strongly convex loss, from the start N(0, 2 sigma^2 / strong)."""
    start = GaussianStart(math.sqrt(2 * run.temperature / STRONG))
    return replace(run, loss=example_loss(strong=STRONG), start=start)


# The table.

_REGISTERED: dict[str, Theorem] = {}
_closed = False


@final
class TheoremTable(Mapping[str, Theorem]):
    """Every theorem by name: those of this project in the order of registration, then those of
    plug-ins, where they are allowed."""

    def __getitem__(self, name: str) -> Theorem:
        if name in _REGISTERED:
            return _REGISTERED[name]
        theorem = plugins.find("theorems", name, _accept)
        if theorem is None:
            raise KeyError(name)
        return theorem

    def __iter__(self) -> Iterator[str]:
        return iter((*_REGISTERED, *plugins.find_all("theorems", _accept)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


TABLE: Mapping[str, Theorem] = TheoremTable()


def list_built_in() -> tuple[Theorem, ...]:
    """Return the theorems of this project, whatever plug-ins are allowed."""
    return tuple(_REGISTERED.values())


def register(theorem: Theorem) -> Theorem:
    """Add a theorem of this project to the table and return it; a name is taken once.

    **Guarantee:** a theorem of anybody else enters the table as a plug-in, which is marked.
    """
    if _closed:
        raise InputError(
            "theorem",
            "must come from this project, and a plug-in offers its own by an entry point",
            theorem.name,
            "docs/guides/plug-ins shows how",
        )
    if theorem.name in _REGISTERED:
        raise InputError("theorem", "must have a name that no other theorem has", theorem.name)
    _REGISTERED[theorem.name] = theorem
    return theorem


def close_table() -> None:
    """Refuse whatever is registered from now on: the families of this project are complete."""
    global _closed
    _closed = True


def _accept(name: str, value: object, package: str) -> Theorem:
    """Return the theorem of a plug-in, marked with its package."""
    if type(value) is not Theorem:
        raise InputError("entry point", "must name a lastiterate.theorems.Theorem", value)
    if value.name != name:
        raise InputError("entry point", f"must be called {value.name}, as its theorem is", name)
    if name in _REGISTERED:
        raise InputError("theorem", "must have a name that no theorem of this project has", name)
    return replace(value, origin=package)


def find_theorem(name: str) -> Theorem:
    """Return the theorem called ``name``, or raise an error that lists the names."""
    if (
        name not in _REGISTERED
        and not plugins.are_allowed()
        and name in plugins.find_installed("theorems")
    ):
        raise InputError(
            "theorem",
            "must be one of this project's until plug-ins are allowed",
            name,
            "let their code run: lastiterate.allow_plugins()",
        )
    check_choice("theorem", name, TABLE)
    return TABLE[name]


def _reduce(theorem: Theorem) -> tuple[Callable[[str], Theorem], tuple[str]]:
    return find_theorem, (theorem.name,)


copyreg.pickle(Theorem, _reduce)  # a theorem is its name: verdicts and certificates can be pickled


@dataclass(frozen=True)
class Applies:
    """All assumptions hold: what follows, and the facts that it rests on."""

    facts: tuple[Fact, ...]
    bound: Curve | LowerBound

    @property
    def curve(self) -> Curve:
        """The upper bound; a lower bound is none."""
        if isinstance(self.bound, LowerBound):
            raise TypeError("a lower bound is not a curve: nothing is certified by it")
        return self.bound

    @property
    def evidence(self) -> Evidence:
        """The weakest of the facts."""
        return weakest(*self.facts)


@dataclass(frozen=True)
class Fails:
    """At least one assumption does not hold."""

    reasons: tuple[str, ...]


def group_by_reason(failures: Mapping[str, Iterable[str]]) -> str:
    """Why theorems (by name) fail, every reason once, with the names it concerns on a line of their
    own."""
    names: dict[str, list[str]] = {}
    for name, reasons in failures.items():
        for reason in reasons:
            names.setdefault(reason, []).append(name)
    return "\n".join(
        f"- {reason}\n    {', '.join(concerned)}" for reason, concerned in names.items()
    )


def holds_with_zeroed_records(run: Run, facts: Iterable[Fact]) -> bool:
    """Whether ``facts`` stay true while records are zeroed one by one, as group privacy does.

    Constants that follow from a loss's form hold for every set of records, and curvature that is at
    most the ridge lies outside them. What is stated of the two neighbours need not: a zeroed record
    has no curvature, of either sign.
    """
    stated = run.loss.facts()
    strong, weak, sobolev = (
        find_fact(stated, name) for name in ("strong", "weak_convexity", "log_sobolev")
    )
    lost = [
        fact
        for fact, kept in ((strong, run.loss.ridge), (weak, 0.0), (sobolev, 0.0))
        if fact is not None and fact.value > kept and fact.evidence < Evidence.PAID
    ]
    return not any(fact in lost for fact in facts)


def check_method(theorem: Theorem, run: Run) -> list[Satisfied | Violated]:
    """Check the assumptions about the method."""
    return [assumption.check(run) for assumption in theorem.assumptions if assumption.of_method]


def check_assumptions(theorem: Theorem, run: Run) -> list[Satisfied | Violated]:
    """Check the assumptions on the run; only those about the method where it is none of the
    theorem's.

    The others speak of the steps of those methods, and may ask for what others have not, such as a
    noise level.
    """
    methods = check_method(theorem, run)
    if any(isinstance(checked, Violated) for checked in methods):
        return methods
    return methods + [
        assumption.check(run) for assumption in theorem.assumptions if not assumption.of_method
    ]


def match(theorem: Theorem, run: Run) -> Applies | Fails:
    """Check every assumption of ``theorem`` on ``run``; evaluate the bound only when all of them
    hold.

    A theorem about one zeroed record also covers one that is exchanged for another: one is zeroed,
    then replaced by the other, through the best split of both orders.

    **Guarantee:** theorems speak of one record; where a protected unit may have several, their
    upper bounds are made the unit's by group privacy. A lower bound stays: a unit with one record
    is a unit.
    """
    check_described(run)
    checked = check_assumptions(theorem, run)
    reasons = tuple(result.reason for result in checked if isinstance(result, Violated))
    if reasons:
        return _replace_one_bound(theorem, run) or Fails(reasons)
    facts = tuple(
        fact for result in checked if isinstance(result, Satisfied) for fact in result.facts
    )
    bound = theorem.bound(run)
    if isinstance(bound, LowerBound) != (theorem.kind == "lower"):
        raise TypeError(
            f"{theorem.name}: a row of kind {theorem.kind} cannot give a {type(bound).__name__}"
        )
    answer = Applies(tuple(dict.fromkeys(facts)), bound)
    return (
        answer
        if run.rows_per_unit == 1 or isinstance(bound, LowerBound)
        else _of_units(answer, run)
    )


def _replace_one_bound(theorem: Theorem, run: Run) -> Applies | None:
    """Return the bound for an exchange that follows from the theorem's bound for a zeroed record,
    if it has one.

    A sensitivity that is stated for exchanges says nothing about a zeroed record, and curvature
    that is stated of the two data sets says nothing about the one between them.
    """
    between = one_by_one(run.adjacency)
    if between is None or theorem.kind != "upper" or run.loss.facts().sensitivity is not None:
        return None
    zeroed = match(theorem, replace(run, adjacency=between, rows_per_unit=1))
    if isinstance(zeroed, Fails) or not holds_with_zeroed_records(run, zeroed.facts):
        return None
    try:
        exchanged = Applies(zeroed.facts, zeroed.curve.replace_one_curve())
    except InputError:
        return None
    if run.rows_per_unit == 1:
        return exchanged
    of_units = _of_units(exchanged, run)
    return of_units if isinstance(of_units, Applies) else None


def _of_units(of_row: Applies, run: Run) -> Applies | Fails:
    """Return the same for units of several records."""
    if not holds_with_zeroed_records(run, of_row.facts):
        return Fails(
            (
                f"for units of {run.rows_per_unit} rows it must hold with some of them zeroed, and "
                "the stated curvature is the records' own: state strong=0, or let a ridge provide "
                "it",
            )
        )
    try:
        return Applies(of_row.facts, of_row.curve.group(run.rows_per_unit))
    except InputError as error:
        return Fails((f"nothing follows for units of {run.rows_per_unit} rows: {error.rule}",))
