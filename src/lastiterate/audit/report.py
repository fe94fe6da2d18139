"""From the scores of an audit to its report: claims, error counts, confidence bounds, verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.certificate_subject import (
    describe_whole_unit,
    finite,
    format_rounded_down,
    format_rounded_up,
)
from lastiterate.audit.attacks import count
from lastiterate.audit.score_distributions import ScoreLaws
from lastiterate.audit.statistics import EPSILONS, CombinedBounds, find_ceiling, require_statement
from lastiterate.curves.curve import Curve
from lastiterate.markup import Markup, table, tag

# What a certificate claims, as error rates that it excludes; and the threshold of an attack that
# contradicts it most.  An (eps, delta) claim excludes error rates p, q when 1 - min(e^eps p + q, p
# + e^eps q) > delta. Pilot models show where that is furthest from chance: in standard errors of
# the pilot, so that rare events and frequent ones compare.


@dataclass(frozen=True, eq=False)
class Claim:
    """The certified delta at ``EPSILONS``, the smallest of all curves that certify; 1 where nothing
    does."""

    deltas: np.ndarray

    @classmethod
    def of(cls, certificate: Certificate) -> Claim:
        return cls(np.array([certificate.delta(float(epsilon)) for epsilon in EPSILONS]))

    def refute(self, fpr: float, fnr: float) -> float | None:
        """An epsilon at which upper bounds on both error rates contradict the claim; ``None`` if
        they do not."""
        excess = self._excess(np.array([fpr]), np.array([fnr]))[0] - 1e-12
        return float(EPSILONS[int(excess.argmax())]) if excess.max() > 0 else None

    def distances(self, fpr: np.ndarray, fnr: np.ndarray, pilot: int) -> np.ndarray:
        """How far rates of a pilot lie beyond the claim, in standard errors; negative where they do
        not."""
        grown = np.exp(EPSILONS)
        spread = [fpr * (1 - fpr) / pilot, fnr * (1 - fnr) / pilot]
        errors = [np.sqrt(grown**2 * a[:, None] + b[:, None]) for a, b in (spread, spread[::-1])]
        needed = [1 - grown * a[:, None] - b[:, None] for a, b in ((fpr, fnr), (fnr, fpr))]
        return np.max(
            [(one - self.deltas) / error for one, error in zip(needed, errors, strict=True)],
            axis=(0, 2),
        )

    def _excess(self, fpr: np.ndarray, fnr: np.ndarray) -> np.ndarray:
        grown = np.exp(EPSILONS)
        forth, back = (grown * a[:, None] + b[:, None] for a, b in ((fpr, fnr), (fnr, fpr)))
        return 1 - np.minimum(forth, back) - self.deltas


# The findings of an audit, compared with the claims of the certificate.

NO_CONTRADICTION = "no contradiction"
BUG = "BUG: the certificate is refuted"
OTHER = "BUG: what is executed is not the run that is described"
SEEN = (
    "on these data sets: noise that is too small, missing, bounded or repeated; contributions "
    "beyond their bound; "
    "what is read off the data and not paid for; runs that are refused because of a record"
)
UNSEEN = (
    "what no synthetic data set sets off; random bits that only look random; what happens to data "
    "and model "
    "outside of the trainer (docs/guides/audit.md)"
)
CEILING = "this attack cannot show more than its ceiling"
UNCERTIFIED = "nothing certifies this run: there is a lower bound only"


def format_bound(value: float, towards: Callable[[float], int]) -> str:
    """Four digits, lower bounds rounded down and upper bounds up."""
    up = towards is math.ceil and math.isfinite(value)
    return format_rounded_up(value) if up else format_rounded_down(value)


def verdict_of(*, refuted: bool, upper: float, ceiling: float) -> str:
    """What an audit means, in words."""
    if refuted:
        return BUG
    if math.isinf(upper):
        return UNCERTIFIED
    return CEILING if upper > ceiling else NO_CONTRADICTION


def format_claim(upper: float, theorem: str | None) -> str:
    """The certificate's side, for a table."""
    return "none" if math.isinf(upper) else f"{format_bound(upper, math.ceil)} by {theorem}"


def render_html(rows: list[tuple[str, str]], caveats: tuple[str, ...], *, refuted: bool) -> Markup:
    """An audit's rows as a table, a refuted certificate in red and in words."""
    cells: list[tuple[object, object]] = [
        (
            label,
            tag("strong", text, style="color:#a30000") if refuted and label == "verdict" else text,
        )
        for label, text in rows
    ]
    return tag("div", table(cells), tag("ul", [tag("li", text) for text in caveats]))


@dataclass(frozen=True)
class Rate:
    """Errors at one threshold, fixed before these models were trained, and their upper confidence
    bounds."""

    threshold: float
    false_positives: int
    false_negatives: int
    fpr_upper: float
    fnr_upper: float


@dataclass(frozen=True)
class AttackResult:
    """What one attack on one pair showed, with its ``share`` of the failure probability."""

    attack: str
    neighbours: str
    share: float
    lower: float
    lower_gaussian: float | None
    mu_lower: float
    refuted_at: float | None
    rates: tuple[Rate, ...]


def _saw(one: AttackResult) -> str:
    """An attack and its lower bound, or that it refutes."""
    if one.refuted_at is not None:
        return f"{one.attack} REFUTES at epsilon {one.refuted_at:.3g}"
    return f"{one.attack} {format_bound(one.lower, math.floor)}"


@dataclass(frozen=True)
class AuditReport:
    """A lower bound on epsilon from many models, next to the certificate's upper bound.

    Parameters
    ----------
    attack : str
        Name of the favourite attack, chosen before models were counted.
    neighbours : str
        The two data sets of the favourite, in words.
    adjacency : str
        Relation of the two data sets.
    trials : int
        Number of counted models per data set.
    pilot : int
        Number of further models per data set that chose direction and thresholds.
    failure : float
        Probability that any statement of the report is wrong.
    delta : float
        Delta at which epsilon is stated.
    lower : float
        Lower bound on epsilon, for any trainer.
    lower_gaussian : float or None
        Lower bound on epsilon under the condition of ``taken``; ``None`` where it need not hold or
        the scores do not look so.
    mu_lower : float
        The pair is not mu-GDP for any smaller mu.
    ceiling : float
        Largest lower bound that the attack could state.
    upper : float
        Epsilon of the certificate.
    theorem : str or None
        Name of the theorem that certifies it.
    refuted_at : float or None
        An epsilon at which the certified delta is exceeded.
    rates : tuple of Rate
        Error rates of the favourite.
    seed : int or None
        Seed of the models.
    caveats : tuple of str, default ()
        Notes on the audited run.
    seen : tuple of Seen, default ()
        All attacks, the favourite first.
    violations : tuple of str, default ()
        Certain properties of a correct trainer that this one does not have.
    taken : str, default ""
        Condition of ``lower_gaussian``, in words.
    not_executed : tuple of str, default ()
        Parts of the description, and of the public calls, that the audit does not execute.
    pairs : int, default 1
        Number of pairs of data sets that were tried on pilot models.
    upper_whole : float, optional
        Epsilon of the whole description at ``delta``, where parts of it were not executed.
    scores : tuple of numpy.ndarray, optional
        Scores of the favourite with and without the record.

    See Also
    --------
    audit : Make a report.

    Notes
    -----
    **Guarantee:** with probability at least 1 - ``failure``, ``lower`` does not exceed the true
    epsilon of the audited trainer at ``delta``, and ``refuted_at`` is set only if the certificate
    is wrong. Every attack has its share of ``failure``.

    Examples
    --------
    >>> from lastiterate.audit import AuditReport
    >>> report = AuditReport(
    ...     attack="projection", neighbours="a record", adjacency="zero-out", trials=100, pilot=20,
    ...     failure=0.05, delta=1e-5, lower=0.3, lower_gaussian=None, mu_lower=0.1, ceiling=4.0,
    ...     upper=1.0, theorem="composition-gdp", refuted_at=None, rates=(), seed=0,
    ... )
    >>> report.refuted
    False
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
    seen: tuple[AttackResult, ...] = ()
    violations: tuple[str, ...] = ()
    taken: str = ""  #: under what ``lower_gaussian`` holds, in words
    not_executed: tuple[str, ...] = ()  #: of the description, and of what users call
    pairs: int = 1  #: pairs of data sets that were tried on pilot models
    upper_whole: float | None = None  #: epsilon of the whole description, where parts are left out
    scores: tuple[np.ndarray, np.ndarray] | None = field(default=None, repr=False, compare=False)
    """With and without the record, for pictures."""

    @classmethod
    def from_scores(
        cls,
        certificate: Certificate,
        present: np.ndarray,
        without: np.ndarray,
        *,
        attack: str,
        neighbours: str,
        failure: float,
        delta: float,
        pilot: int,
        seed: int | None,
    ) -> AuditReport:
        """Judge an attack of the caller's own, whose scores are positive where it says "present".

        Parameters
        ----------
        certificate : Certificate
            Certificate of the attacked run.
        present : numpy.ndarray, shape (models,)
            Scores of models trained with the record.
        without : numpy.ndarray, shape (models,)
            Scores of models trained without it, as many.
        attack : str
            Name of the attack.
        neighbours : str
            Both data sets, in words.
        failure : float
            Probability that the report is wrong.
        delta : float
            Delta at which epsilon is stated.
        pilot : int
            Number of further models per data set, from which the scores were fitted.
        seed : int or None
            Seed of the models.

        Returns
        -------
        AuditReport
            Report on these scores.

        Raises
        ------
        InputError
            If the models are too few for any statement.
        """
        require_statement(len(present), failure, delta)
        judged = AttackScores(attack, neighbours, (0.0,), 1.0, (present, without))
        return conclude(certificate, [judged], failure=failure, delta=delta, pilot=pilot, seed=seed)

    @property
    def refuted(self) -> bool:
        """Whether error rates contradict the certificate at some epsilon, or the trainer does not
        execute its run."""
        return self.refuted_at is not None or bool(self.violations)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.violations and self.refuted_at is None:
            return OTHER
        return verdict_of(refuted=self.refuted, upper=self.upper, ceiling=self.ceiling)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; infinite numbers are ``None``, scores are left out."""
        body = {
            key: value
            for key, value in asdict(replace(self, scores=None)).items()
            if key != "scores"
        }
        body["upper"] = finite(self.upper)
        body["upper_whole"] = None if self.upper_whole is None else finite(self.upper_whole)
        return body | {
            "not_attacked": list(self.not_attacked),
            "refuted": self.refuted,
            "verdict": self.verdict,
        }

    def to_json(self) -> str:
        """``to_dict`` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def _repr_html_(self) -> str:
        return render_html(self.rows(), self.caveats, refuted=self.refuted)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        if self.lower_gaussian is None:
            shape = "not computed: nothing says that both distributions are Gaussian, or they do not look so"
        else:
            shape = f"{format_bound(self.lower_gaussian, math.floor)} ({self.taken})"
        tried, several = (
            {one.neighbours: list[AttackResult]() for one in self.seen},
            len(self.seen) > 1,
        )
        executed, whole = "", list[tuple[str, str]]()
        if self.upper_whole is not None:
            executed = ", for what was executed"
            bound = format_bound(self.upper_whole, math.ceil)
            whole = [("at most, whole run", f"{bound}, with the parts that were not executed")]
        for one in self.seen:
            tried[one.neighbours].append(one)
        return [
            ("attack", self.attack + (f", the favourite of {len(self.seen)}" if several else "")),
            ("neighbours", f"{self.neighbours} ({self.adjacency})"),
            (
                "models",
                f"{self.trials} per data set, {self.pilot} more to choose thresholds"
                + (f" and pairs (of {self.pairs})" if self.pairs > 1 else ""),
            ),
            (
                "failure probability",
                f"{self.failure:g}" + (", split over all attacks" if several else ""),
            ),
            ("epsilon at delta", f"{self.delta:g}"),
            ("at least", f"{format_bound(self.lower, math.floor)} (any trainer)"),
            ("at least (Gaussian)", shape),
            *(
                (
                    ("tried", f"on '{pair}': " + ", ".join(map(_saw, attacks)))
                    for pair, attacks in tried.items()
                )
                if several
                else ()
            ),
            *(("does not hold", words) for words in self.violations),
            *(("not executed", words) for words in self.not_executed),
            *((("would have been seen", SEEN), ("cannot be seen", UNSEEN)) if several else ()),
            ("at most, certified", format_claim(self.upper, self.theorem) + executed),
            *whole,
            ("ceiling of this attack", format_bound(self.ceiling, math.ceil)),
            ("verdict", self.verdict),
            *(("not attacked", words) for words in self.not_attacked),
        ]

    @property
    def not_attacked(self) -> tuple[str, ...]:
        """Return what of the protection no model could contradict, in words: that of units of
        several rows, where single records were attacked."""
        lacks_units = any(
            words.startswith(("rows_per_unit ", "rows_per_record ")) for words in self.not_executed
        )
        return (describe_whole_unit(),) if lacks_units else ()


# From scores of the models that count to a report: error counts, their confidence bounds, and what
# they contradict.


MISFIT = "scores of '{}' do not look as the description says: no bound takes them to be Gaussian"


@dataclass(frozen=True, eq=False)
class AttackScores:
    """One attack on one pair: thresholds fixed before, its share of the failure probability, and
    both sets' scores; ``laws``: the scores' distributions if the trainer is correct, where they are
    known."""

    attack: str
    neighbours: str
    thresholds: tuple[float, ...]
    share: float
    scores: tuple[np.ndarray, np.ndarray]
    laws: ScoreLaws | None = None

    @cached_property
    def fits(self) -> bool:
        """Return whether there are distributions, and the scores fit them."""
        return self.laws is not None and self.laws.fit(*self.scores)

    def find_bounds(
        self, delta: float, failure: float, claim: Claim, curves: Sequence[Curve] = ()
    ) -> AttackResult:
        """Return the bounds that the errors prove at this share of the failure probability, on the
        claim's grid and on ``curves``."""
        counts = tuple(count(*self.scores, threshold) for threshold in self.thresholds)
        proof = CombinedBounds(counts, failure * self.share)
        pairs = proof.rates()
        epsilons = [claim.refute(*pair) for pair in pairs]
        refuted = next((epsilon for epsilon in epsilons if epsilon is not None), None)
        if refuted is None and curves:
            refuted = proof.refute(curves)
        laws = self.laws if delta > 0 and self.fits else None
        return AttackResult(
            attack=self.attack,
            neighbours=self.neighbours,
            share=self.share,
            lower=proof.epsilon(delta),
            lower_gaussian=None if laws is None else laws.lower(pairs, delta),
            mu_lower=proof.mu(),
            refuted_at=refuted,
            rates=tuple(
                Rate(
                    threshold,
                    int(np.asarray(c.false_positives)),
                    int(np.asarray(c.false_negatives)),
                    *pair,
                )
                for threshold, c, pair in zip(self.thresholds, counts, pairs, strict=True)
            ),
        )


def conclude(
    certificate: Certificate,
    judged: Sequence[AttackScores],
    *,
    failure: float,
    delta: float,
    pilot: int,
    seed: int | None,
    caveats: tuple[str, ...] = (),
    claim: Claim | None = None,
    violations: tuple[str, ...] = (),
    pairs: int = 1,
    not_executed: tuple[str, ...] = (),
    upper_whole: float | None = None,
) -> AuditReport:
    """The report; the favourite is judged first. ``pairs``: how many were tried on pilot models."""
    curves = certificate.subject.curves
    claim = Claim.of(certificate) if claim is None else claim
    seen = tuple(
        one.find_bounds(delta, failure, claim, () if place else curves)
        for place, one in enumerate(judged)
    )
    first = seen[0]
    gaussian, taken = max(
        (
            (bound.lower_gaussian, one.laws.words)
            for bound, one in zip(seen, judged, strict=True)
            if bound.lower_gaussian is not None and one.laws is not None
        ),
        default=(None, ""),
    )
    caveats += tuple(
        MISFIT.format(one.attack) for one in judged if one.laws is not None and not one.fits
    )
    trials = min(len(part) for part in judged[0].scores)
    return AuditReport(
        attack=first.attack,
        neighbours=first.neighbours,
        adjacency=certificate.adjacency,
        trials=trials,
        pilot=pilot,
        failure=failure,
        delta=delta,
        lower=max(one.lower for one in seen),
        lower_gaussian=gaussian,
        taken=taken,
        mu_lower=max(one.mu_lower for one in seen),
        ceiling=max(
            find_ceiling(trials, failure * one.share, delta, len(one.rates)) for one in seen
        ),
        upper=certificate.epsilon(delta),
        theorem=_source(certificate, delta),
        refuted_at=next((one.refuted_at for one in seen if one.refuted_at is not None), None),
        rates=first.rates,
        seed=seed,
        caveats=caveats,
        seen=seen,
        violations=violations,
        pairs=pairs,
        not_executed=not_executed,
        upper_whole=upper_whole,
        scores=judged[0].scores,
    )


def _source(certificate: Certificate, delta: float) -> str | None:
    """What certifies: a theorem of the table, or a proof of the subject's own."""
    best = certificate.best(delta)
    own = (
        certificate.subject.word
        if certificate.subject.curves and not certificate.verdicts
        else None
    )
    return own if best is None else best.theorem.name
