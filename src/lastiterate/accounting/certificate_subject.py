"""Subjects of certificates, a theorem's verdict on a subject, and the words that all certificates
share.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self, cast

from lastiterate.curves.composition import compose
from lastiterate.curves.curve import Curve, WithFailure
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.lower_bound import LowerBound
from lastiterate.curves.selection import WorstOf
from lastiterate.errors import InputError
from lastiterate.plugins import Outside
from lastiterate.run.facts import FLOAT_SLACK, Evidence, weakest
from lastiterate.run.losses import KnownConstants
from lastiterate.run.measured_smoothness import is_measured_by_block
from lastiterate.run.noisy_counts import Count
from lastiterate.run.plugin_batching import provider_of
from lastiterate.run.preprocessing import Preparation
from lastiterate.run.probability_calibration import private_calibration
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Applies, Fails, Theorem, holds_with_zeroed_records

# Cost of what a run measures in addition to its steps: private preparation, calibration, noisy
# counts.


def curves_of_preprocessing(run: Run) -> tuple[Curve, ...]:
    """The curves of all parts that release something, in order.

    **Guarantee:** each is the Gaussian mechanism on what the part sums up, under the run's own
    adjacency; a part whose result later steps rely on fails with its own probability (twice, where
    drawn batches follow by a second bound). Where a unit has several records, each is the unit's,
    by group privacy.
    """
    return tuple(
        _curve(part, run) for part in run.preprocessing if part.noise_multiplier is not None
    )


def has_later_releases(run: Run) -> bool:
    """Whether the run measures anything on records after its last step."""
    return bool(run.counts) or private_calibration(run.probability_calibration) is not None


def calibration_curve(run: Run) -> Curve:
    """The curve of the rounds of calibration together, under the run's own adjacency.

    **Guarantee:** each is a Gaussian mechanism on the records and on what was released before
    (docs/theorems/ probabilities); their mu add in squares. The records of a unit move them by
    their number.
    """
    rounds = private_calibration(run.probability_calibration)
    if rounds is None:
        return Gdp(0.0)
    moved = run.rows_per_unit * rounds.sensitivity(run.adjacency)
    return Gdp(moved * (1 + FLOAT_SLACK) / rounds.noise_multiplier)


def with_later_parts(curve: Curve, run: Run) -> Curve:
    """``curve`` of the training with the calibration and the noisy counts that follow it.

    **Guarantee:** a count moves by what it says at most, whatever model it is of. A record that was
    trained on may be counted too: costs add. A record of a part that the library split off by
    public positions is only counted, there alone: such counts are charged to it, and the training
    to the others, so that every record pays the worse of the two.
    """
    if private_calibration(run.probability_calibration) is not None:
        curve = compose(curve, calibration_curve(run))
    both = tuple(count_curve(count, run, run.adjacency) for count in run.counts if not count.apart)
    alone = tuple(count_curve(count, run, run.adjacency) for count in run.counts if count.apart)
    trained = compose(curve, *both) if both else curve
    return WorstOf((trained, compose(*alone, *both))) if alone else trained


def list_extra_charges(run: Run) -> tuple[str, ...]:
    """Describe, in words, the run's charged preparation and the counts released with the model."""
    counted = tuple(
        f"accuracy: {count.words}, noise multiplier {count.noise_multiplier:g}"
        for count in run.counts
    )
    fit = private_calibration(run.probability_calibration)
    rounds = (
        ()
        if fit is None
        else (
            f"calibration of probabilities: {fit.rounds} rounds, noise multiplier "
            f"{fit.noise_multiplier:g}",
        )
    )
    return (
        tuple(
            f"private preparation: {type(part).__name__}, noise multiplier "
            f"{part.noise_multiplier:g}"
            for part in run.preprocessing
            if part.noise_multiplier is not None
        )
        + rounds
        + counted
    )


def count_curve(count: Count, run: Run, adjacency: str) -> Curve:
    """Return the curve of one count by itself; k records of a unit move it k times as far as
    one."""
    return Gdp(
        run.rows_per_unit
        * count.sensitivity(adjacency)
        * (1 + FLOAT_SLACK)
        / count.noise_multiplier
    )


def _curve(part: Preparation, run: Run) -> Curve:
    assert part.noise_multiplier is not None
    curve = Gdp(part.sensitivity(run.adjacency) * (1 + FLOAT_SLACK) / part.noise_multiplier)
    failure = part.failure * (1 if is_measured_by_block(run) else 2)
    of_row = WithFailure(curve, failure) if failure > 0 else curve
    return of_row.group(run.rows_per_unit) if run.rows_per_unit > 1 else of_row


# Verdicts.


@dataclass(frozen=True, repr=False)
class Verdict:
    """A theorem, and whether it applies to the run: with which curve on which facts, or why it
    fails."""

    theorem: Theorem
    result: Applies | Fails
    run: Run  #: that it is about

    @property
    def evidence(self) -> Evidence | None:
        return self.result.evidence if isinstance(self.result, Applies) else None

    @property
    def bound(self) -> Curve | LowerBound | None:
        """Return the theorem's bound for the steps, without the private preparation; ``None`` where
        it does not apply."""
        return self.result.bound if isinstance(self.result, Applies) else None

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the theorem does not apply; empty where it does."""
        return self.result.reasons if isinstance(self.result, Fails) else ()

    def certifies(self, min_evidence: Evidence) -> bool:
        """Whether the theorem is an upper bound that holds on facts of the evidence asked for."""
        good = isinstance(self.result, Applies) and self.theorem.kind in ("upper", "exact")
        return good and self.evidence is not None and self.evidence.satisfies(min_evidence)

    def groups(self, run: Run) -> bool:
        """Whether what it says of one record of ``run`` holds for several, one after the other."""
        return isinstance(self.result, Applies) and holds_with_zeroed_records(
            run, self.result.facts
        )

    def refusal(self, min_evidence: Evidence) -> tuple[str, ...]:
        """Why the theorem does not certify the run: reasons, weak facts, or (the rest) an infinite
        epsilon."""
        if isinstance(self.result, Fails):
            return self.result.reasons
        if self.certifies(min_evidence):
            return (self._why_infinite(),)
        weak = "; ".join(
            fact.why for fact in self.result.facts if not fact.evidence.satisfies(min_evidence)
        )
        return (
            f"rests on {weakest(*self.result.facts).name} facts ({weak}): "
            "pass min_evidence=Evidence.ASSUMED to rely on them",
        )

    def _why_infinite(self) -> str:
        """Why a bound that applies has no finite epsilon."""
        failing = [part for part in self.run.preprocessing if part.failure > 0]
        if self.run.noise is None or not self.run.largest_noise > 0 or not failing:
            return "its epsilon is infinite (no noise)"
        failure = sum(part.failure for part in failing)
        names = ", ".join(type(part).__name__ for part in failing)
        return (
            f"delta does not cover the probability {failure:g} with which {names} may fail, which "
            "counts more than once for several rows or an exchange: ask for a larger delta, or "
            "describe the part with a smaller failure="
        )

    def __repr__(self) -> str:
        said = "applies" if isinstance(self.result, Applies) else "fails"
        return f"<Verdict {self.theorem.name} ({self.theorem.kind}): {said}>"


# Neighbours, units, caveats and rounding of all certificates.

NEIGHBOURS = {
    "zero-out": "one record's contribution is set to zero; the number of records is public",
    "replace-one": "one record is exchanged for any other; the number of records is public",
    "add-remove": "one record is added or removed",
    "forgotten": "the removed records' contributions are zero from the beginning; the number of "
    "records is public",
}
ROW = (
    "one row of the training data; somebody with several rows is protected as a group of that many"
)
READ = (
    "what the loss takes as one record, a row of the training data or all rows of a unit (a caveat "
    "then says so); "
    "somebody with several records is protected as a group of that many"
)
"""Descriptions of a record: of a linear model, and where only the caller's loss knows."""


def units(rows: int) -> str:
    """Say what is protected where epsilon is for units of several records."""
    return f"epsilon is for a unit of at most {rows} rows, by group privacy; holds if no unit has more rows in the data"


UNNAMED = "unit"
"""Name of a unit whose records are given by an array without a name."""


MOST_NAME = 200
"""Characters of a unit's name."""


def to_unit_name(text: str) -> str:
    """A column's name as a certificate calls its unit: one that cannot be printed is left out."""
    return text if 0 < len(text) <= MOST_NAME and text.isprintable() else UNNAMED


def unit(rows: int, record: int = 1, *, read: bool = False, name: str = "") -> dict[str, Any]:
    """Return the privacy unit in words, and the most rows of it in the data; ``record``: rows of
    one record; ``read``: whether only the caller's loss knows what a record is; ``name``: what the
    unit is called, whose rows were bounded before the training."""
    whose = "one unit" if name in ("", UNNAMED) else f"one unit ({name})"
    named = {"name": name} if name else {}
    if record > 1:
        return named | {
            "rows": record,
            "words": (
                f"{whose} with at most {record} rows of the training data, all of them together; a "
                f"public bound, applied "
                "before training; batches draw units, n counts units, and a unit's gradient is the "
                "mean over its places, "
                "so that the sensitivity is the unit's"
            ),
        }
    if rows > 1:
        return named | {
            "rows": rows,
            "words": (
                f"{whose} with at most {rows} rows of the training data, all of them together; a "
                f"public bound, applied "
                "before training; theorems speak of one row, and group privacy makes epsilon the "
                "unit's"
            ),
        }
    if name:
        return named | {
            "rows": 1,
            "words": (
                f"{whose} with at most 1 row of the training data; a public bound, applied before "
                f"training: further rows "
                "of a unit are not in it"
            ),
        }
    return {"rows": 1, "words": f"one record: {READ if read else ROW}"}


RECORD = (
    "a record of this run is one unit with at most {} rows: epsilon is for all of them together"
)
"""Caveat of a run whose loss makes a unit one record."""


def name_record_unit(caveats: object) -> str:
    """Name the unit that one of the caveats in a file calls a record; "" where none does."""
    start, end = RECORD.split("{}")
    listed = cast("list[object]", caveats) if isinstance(caveats, list) else []
    for caveat in map(str, listed):
        rows = caveat.removeprefix(start).removesuffix(end)
        if re.fullmatch("[1-9][0-9]{0,6}", rows) and caveat == RECORD.format(rows):
            return f"one unit with at most {rows} rows"
    return ""


def name_protected(described: Mapping[str, Any], caveats: object = None) -> str:
    """Name a described unit in a few words: one row, or one person with at most 3 rows.

    ``caveats``: of the certificate, one of which may say that a record is a unit.

    **Guarantee:** that is called a caveat's word: nothing in a certificate shows what a loss does.
    """
    if record := name_record_unit(caveats):
        return f"one record, by a caveat {record}"
    rows, words, name = described["rows"], described["words"], described.get("name", "")
    if not words.startswith(("one unit", "one record")):
        return words
    if not name and rows == 1:
        return "one row" if words.endswith(ROW) else "one record"
    whose = "unit" if name in ("", UNNAMED) else name
    return f"one {whose} with at most {rows} row{'s' * (rows > 1)}"


def describe_whole_unit(described: Mapping[str, Any] | None = None) -> str:
    """Say which protection an audit that removes one record does not attack: of a described unit,
    or of any."""
    name = UNNAMED if described is None else described.get("name", UNNAMED)
    whose = "a unit (such as a person)" if name == UNNAMED else f"one {name}"
    bound = "" if described is None else f" (at most {described['rows']})"
    return f"the protection of {whose} with all of its rows{bound}: the models differ in one record"


CAVEATS = (
    "covers this release only: further fits on the same data compose",
    "noise and steps have double precision; the proofs are about real numbers",
    "intermediate iterates, gradients, noise and its seed must stay secret",
)


class Text(str):
    """Lines of text that an interactive session shows as they are."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def format_rounded_up(value: float | None) -> str:
    """A number rounded up in its last shown digit, or a dash."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.ceil(value / scale * (1 - 1e-12)) * scale:.4g}"


def format_rounded_down(value: float) -> str:
    """A number rounded down in its last shown digit."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    return f"{math.floor(value / scale) * scale:.4g}"


def finite(value: float) -> float | None:
    """JSON has no infinity: ``null``."""
    return value if math.isfinite(value) else None


# Subjects of certificates.

FORMAT = 3
"""The form of written certificates (certificate.schema.json)."""


@dataclass(frozen=True)
class Words:
    """Words for a subject: its description (``short``); the proof of epsilon where no theorem of
    the table gives one (``by``); what epsilon pays for in addition to the steps (``charged``); what
    must stay secret in addition to iterates, gradients, noise and seed (``secret``)."""

    short: str
    by: str = ""
    charged: tuple[str, ...] = ()
    secret: tuple[str, ...] = ()


@dataclass(frozen=True)
class CertificateSubject(ABC):
    """A description from which every number of a certificate follows; kinds of subjects answer what
    differs.

    ``entry``: of a written certificate that describes it; ``word``: what it is called.
    ``composes_steps``: whether its curve is that of all steps together, one after the other.
    ``limit``: what epsilon is, where it is not the differential privacy of every record ("" where
    it is).

    **Guarantee:** its fields are the description alone: copies and pickles derive everything else
    again.
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
        """Read the subject of a written certificate; ``InputError`` where it describes none."""

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """JSON-ready: what ``entry`` holds."""

    def describe(self) -> dict[str, Any]:
        """Return the description from which all values follow, JSON-ready: a ledger's line has its
        hash."""
        return self.description()

    def describe_charge(self) -> dict[str, Any]:
        """Return what a ledger is charged for, JSON-ready: the subject itself, where epsilon is for
        everybody."""
        return self.describe()

    def details(self) -> dict[str, Any]:
        """Return the subject's fields of a written certificate other than ``entry``, JSON-ready."""
        return {}

    def fresh(self) -> Self:
        """The same, with nothing derived yet, as anybody would account for it."""
        return copy(self)

    def with_lower_bounds(self) -> Self:
        """The same by every lower bound that is known: itself, where none is left out."""
        return self

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
    def with_adjacency(self, adjacency: str) -> Self | None:
        """The same under another adjacency; ``None`` where its constants cannot be converted."""

    def replace_one_epsilon(self, delta: float) -> float:
        """Epsilon at ``delta`` under replace-one; infinite where nothing is known."""
        other = self.with_adjacency("replace-one")
        return (
            math.inf
            if other is None
            else min((curve.epsilon(delta) for curve in other.curves), default=math.inf)
        )

    @property
    def min_evidence(self) -> Evidence:
        """How well a fact must be known to certify."""
        return Evidence.ENFORCED

    def all_verdicts(self) -> tuple[Verdict, ...]:
        """Return the verdicts of the theorems of the table, where they cover it."""
        return ()

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """``all_verdicts``, derived once."""
        return self.all_verdicts()

    @cached_property
    def certifying(self) -> tuple[Verdict, ...]:
        """Verdicts that may certify, in the table's order."""
        return tuple(verdict for verdict in self.verdicts if verdict.certifies(self.min_evidence))

    def curve_of(self, verdict: Verdict, coarser: int = 0) -> Curve:
        """The curve of one of the ``verdicts``, made coarser that many times; ``InputError`` where
        it has none."""
        raise InputError("theorem", f"says nothing about a {self.word}", verdict.theorem.name)

    @property
    def outside(self) -> tuple[Outside, ...]:
        """The plug-ins that contributed to it, which its certificate names."""
        return ()

    @property
    def condition(self) -> str:
        """What is assumed ("" for nothing)."""
        return ""

    @property
    @abstractmethod
    def caveats(self) -> tuple[str, ...]:
        """The conditions that a reader must know in addition to the value."""

    @property
    @abstractmethod
    def words(self) -> Words:
        """The words for the subject."""

    def describe_unit(self, name: str = "") -> dict[str, Any]:
        """The privacy unit, JSON-ready: the most ``rows`` of the data that it has, and what it is
        in ``words``.

        ``name``: of a unit whose rows were bounded before the training.
        """
        if self.run is None:
            return unit(1, name=name)
        return unit(
            self.run.rows_per_unit,
            self.run.rows_per_record,
            read=isinstance(self.run.loss, KnownConstants),
            name=name,
        )

    def because(self, delta: float) -> tuple[str, ...]:
        """Return lines that name the evidence of the values, where no theorem of the table does."""
        return ()

    def sources(self) -> tuple[tuple[Theorem, ...], tuple[str, ...]]:
        """Return the cited sources: theorems of the table, and names of
        ``accounting.cite.OTHERS``."""
        return (), ()


@dataclass(frozen=True)
class OneRun(CertificateSubject):
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
    def outside(self) -> tuple[Outside, ...]:
        return provider_of(self.run.batching)

    @property
    def of_the_run(self) -> tuple[str, ...]:
        """Caveats that the run itself brings."""
        several = (units(self.run.rows_per_unit),) if self.run.rows_per_unit > 1 else ()
        stated = (
            part.stated
            for part in (self.run.optimizer, self.run.augmentation)
            if part is not None and part.stated
        )
        return (*self.words.secret, *several, *stated)

    @property
    def words(self) -> Words:
        run = self.run
        return Words(
            f"{run.steps} steps on {run.n} records, {type(run.batching).__name__}, "
            f"{self.adjacency}",
            self.by,
            charged=list_extra_charges(run),
            secret=(run.batching.secret,) if run.batching.secret else (),
        )
