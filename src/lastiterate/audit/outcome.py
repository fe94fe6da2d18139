"""What an audit found, beside what the certificate claims."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from lastiterate.markup import Markup, table, tag

NO_CONTRADICTION = "no contradiction"
BUG = "BUG: the certificate is refuted"
OTHER = "BUG: what is executed is not the run that is described"
SEEN = ("on these data sets: noise that is too small, missing, bounded or repeated; contributions beyond their bound; "
        "what is read off the data and not paid for; runs that are refused because of a record")
UNSEEN = ("what no made-up data set sets off; random bits that only look random; what happens to data and model "
          "outside of the trainer (docs/guides/audit.md)")
CEILING = "this attack cannot show more than its ceiling"
UNCERTIFIED = "nothing certifies this run: there is a lower bound only"


def shown(value: float, towards: Callable[[float], int]) -> str:
    """Four digits, lower bounds rounded down and upper bounds up."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    scale = 10.0 ** (math.floor(math.log10(value)) - 3)
    slack = 0.0 if towards is math.floor else 1e-12  # so that 2 is not shown as 2.001
    return f"{towards(value / scale * (1 - slack)) * scale:.4g}"


def verdict_of(*, refuted: bool, upper: float, ceiling: float) -> str:
    """What an audit means, in words."""
    if refuted:
        return BUG
    if math.isinf(upper):
        return UNCERTIFIED
    return CEILING if upper > ceiling else NO_CONTRADICTION


def claimed(upper: float, theorem: str | None) -> str:
    """The certificate's side, for a table."""
    return "none" if math.isinf(upper) else f"{shown(upper, math.ceil)} by {theorem}"


def shown_in_notebooks(rows: list[tuple[str, str]], caveats: tuple[str, ...], *, refuted: bool) -> Markup:
    """An audit's rows as a table, a refuted certificate in red and in words."""
    cells: list[tuple[object, object]] = [
        (label, tag("strong", text, style="color:#a30000") if refuted and label == "verdict" else text)
        for label, text in rows]
    return tag("div", table(cells), tag("ul", [tag("li", text) for text in caveats]))


@dataclass(frozen=True)
class Rate:
    """Errors at one threshold, fixed before these models were trained, and their upper confidence bounds."""

    threshold: float
    false_positives: int
    false_negatives: int
    fpr_upper: float
    fnr_upper: float


@dataclass(frozen=True)
class Seen:
    """What one attack on one pair showed, with its ``share`` of the failure probability."""

    attack: str
    neighbours: str
    share: float
    lower: float
    lower_gaussian: float | None
    mu_lower: float
    refuted_at: float | None
    rates: tuple[Rate, ...]


def _saw(one: Seen) -> str:
    """An attack and its lower bound, or that it refutes."""
    if one.refuted_at is not None:
        return f"{one.attack} REFUTES at epsilon {one.refuted_at:.3g}"
    return f"{one.attack} {shown(one.lower, math.floor)}"


@dataclass(frozen=True)
class AuditReport:
    """A lower bound on epsilon beside the certificate's upper bound.

    ``attack``, ``neighbours``, ``rates`` and ``scores`` are the favourite's, chosen before the models were counted;
    ``seen`` has them all, the favourite first. ``violations``: what a right trainer does with certainty, and this
    one did not.

    **Guarantee:** with probability at least 1 - ``failure``, ``lower`` does not exceed the audited trainer's true
    epsilon at ``delta``, and ``refuted_at`` is set only if the certificate is wrong: every attack has its share of
    ``failure``. ``lower_gaussian`` shares that budget; it holds if, given the batches, both released laws are Gaussian
    with one covariance, and batches are drawn as described, as a correct trainer's are on these data sets (``taken``
    says it in words); it is ``None`` where they need not be, or the scores do not look so.
    """

    attack: str
    neighbours: str
    adjacency: str
    trials: int  #: models per data set that were counted
    pilot: int  #: further models per data set that chose direction and thresholds
    failure: float
    delta: float
    lower: float
    lower_gaussian: float | None
    mu_lower: float  #: the pair is not mu-GDP for any smaller mu
    ceiling: float
    upper: float
    theorem: str | None
    refuted_at: float | None  #: an epsilon at which the certified delta is exceeded
    rates: tuple[Rate, ...]
    seed: int | None
    caveats: tuple[str, ...] = ()
    seen: tuple[Seen, ...] = ()
    violations: tuple[str, ...] = ()
    taken: str = ""  #: under what ``lower_gaussian`` holds, in words
    not_executed: tuple[str, ...] = ()  #: of the description, and of what users call
    pairs: int = 1  #: pairs of data sets that were tried on pilot models
    scores: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False, compare=False)
    """With and without the record, for pictures."""

    @property
    def refuted(self) -> bool:
        """Whether error rates contradict the certificate at some epsilon, or the trainer does not execute its run."""
        return self.refuted_at is not None or bool(self.violations)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.violations and self.refuted_at is None:
            return OTHER
        return verdict_of(refuted=self.refuted, upper=self.upper, ceiling=self.ceiling)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; infinite numbers are ``None``, scores are left out."""
        body = {key: value for key, value in asdict(replace(self, scores=None)).items() if key != "scores"}
        body["upper"] = self.upper if math.isfinite(self.upper) else None
        return body | {"refuted": self.refuted, "verdict": self.verdict}

    def to_json(self) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def _repr_html_(self) -> str:
        return shown_in_notebooks(self.rows(), self.caveats, refuted=self.refuted)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        if self.lower_gaussian is None:
            shape = "the laws are not known to be Gaussian, or do not look so"
        else:
            shape = f"{shown(self.lower_gaussian, math.floor)} ({self.taken})"
        tried, several = {one.neighbours: list[Seen]() for one in self.seen}, len(self.seen) > 1
        for one in self.seen:
            tried[one.neighbours].append(one)
        return [
            ("attack", self.attack + (f", the favourite of {len(self.seen)}" if several else "")),
            ("neighbours", f"{self.neighbours} ({self.adjacency})"),
            ("models", f"{self.trials} per data set, {self.pilot} more to choose thresholds" +
             (f" and pairs (of {self.pairs})" if self.pairs > 1 else "")),
            ("failure probability", f"{self.failure:g}" + (", split over all attacks" if several else "")),
            ("epsilon at delta", f"{self.delta:g}"),
            ("at least", f"{shown(self.lower, math.floor)} (any trainer)"), ("at least", shape),
            *((("tried", f"on '{pair}': " + ", ".join(map(_saw, attacks))) for pair, attacks in tried.items())
              if several else ()),
            *(("does not hold", words) for words in self.violations),
            *(("not executed", words) for words in self.not_executed),
            *((("would have been seen", SEEN), ("cannot be seen", UNSEEN)) if several else ()),
            ("at most, certified", claimed(self.upper, self.theorem)),
            ("ceiling of this attack", shown(self.ceiling, math.ceil)), ("verdict", self.verdict),
        ]
