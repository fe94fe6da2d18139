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
from lastiterate.accounting.certificate_subject import finite
from lastiterate.audit.attacks import (
    ATTACKS,
    PORTFOLIO,
    Attack,
    Score,
    choose_thresholds,
    count,
    strongest,
)
from lastiterate.audit.canaries import Neighbours
from lastiterate.audit.score_distributions import ScoreLaws
from lastiterate.audit.statistics import EPSILONS, CombinedBounds, ceiling, require_statement
from lastiterate.audit.trial_plan import PAIRS
from lastiterate.curves.curve import Curve
from lastiterate.errors import InputError
from lastiterate.markup import Markup, table, tag
from lastiterate.run.run import Run

# What a certificate claims, as error rates that it excludes; and the threshold of an attack that
# contradicts it most.  An (eps, delta) claim excludes error rates p, q when 1 - min(e^eps p + q, p
# + e^eps q) > delta. Pilot models show where that is furthest from chance: in standard errors of
# the pilot, so that rare events and frequent ones compare.

INNER, EXTREME = 120, 12
"""Thresholds that are looked at: quantiles of the pilot, and its most extreme scores on both sides.
"""


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


def best_threshold(claim: Claim, present: np.ndarray, without: np.ndarray) -> tuple[float, float]:
    """The threshold of pilot scores that contradicts the claim most, and by how many standard
    errors."""
    one, two = np.sort(np.nan_to_num(present)), np.sort(np.nan_to_num(without))
    both = np.sort(np.concatenate((one, two)))
    ends = [
        part[piece]
        for part in (one, two)
        for piece in (slice(None, EXTREME), slice(-EXTREME, None))
    ]
    cuts = np.unique(np.concatenate((np.quantile(both, np.linspace(0.005, 0.995, INNER)), *ends)))
    # atoms on either side, and half way between two scores, where nothing may lie
    cuts = np.unique(
        np.concatenate((cuts, np.nextafter(cuts, -np.inf), (cuts[1:] + cuts[:-1]) / 2))
    )
    fpr = (len(two) - np.searchsorted(two, cuts, side="right") + 0.5) / (len(two) + 1)
    fnr = (np.searchsorted(one, cuts, side="right") + 0.5) / (len(one) + 1)
    distances = claim.distances(fpr, fnr, min(len(one), len(two)))
    equal = np.flatnonzero(distances >= distances.max() - 1e-9 * abs(distances.max()))
    best = int(equal[len(equal) // 2])
    return float(cuts[best]), float(distances[best])


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
        return body | {"refuted": self.refuted, "verdict": self.verdict}

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
            *((("not attacked", UNIT_AS_WHOLE),) if self.lacks_units else ()),
        ]

    @property
    def lacks_units(self) -> bool:
        """Whether the run protects units of several rows, and single records were attacked."""
        return any(
            words.startswith(("rows_per_unit ", "rows_per_record ")) for words in self.not_executed
        )


# From scores of the models that count to a report: error counts, their confidence bounds, and what
# they contradict.


UNIT_AS_WHOLE = (
    "the protection of a unit (such as a person) with all of its rows: the models differ in one "
    "record"
)
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
        ceiling=max(ceiling(trials, failure * one.share, delta, len(one.rates)) for one in seen),
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


# Which attacks on which pairs of data sets are counted: chosen on pilot models that are not.  A
# pilot of every pair shows every attack. The models go to the tight pair and to the pair on which
# some attack contradicts the claim most; all attacks on both are counted, each with its share of
# the failure probability. Half of it goes to the favourite: the attack that contradicts the claim
# most, or, where none does, the one that theory says is strongest.

CLEAR = 5.0
"""Standard errors of the pilot beyond which a contradiction is taken for one."""
Pilots = tuple[np.ndarray, np.ndarray]
"""Models of one pair that are not counted, with the record and without."""


@dataclass(frozen=True, eq=False)
class Statement:
    """An attack on one pair (its number), fitted; its thresholds; its share of the failure
    probability.

    ``distance``: how far the pilot lies beyond the claim, in standard errors.
    """

    pair: int
    attack: str
    score: Score
    thresholds: tuple[float, ...]
    distance: float
    share: float = 0.0
    pilot: Pilots | None = None

    def with_thresholds(self, trials: int, delta: float, failure: float) -> Statement:
        """The favourite's thresholds: the clear one, or those of the best expected lower bounds."""
        if self.distance > CLEAR or self.pilot is None:
            return replace(self, pilot=None)
        thresholds = choose_thresholds(*self.pilot, trials, delta, failure)
        return replace(self, thresholds=thresholds, pilot=None)


def fit_attacks(
    run: Run,
    number: int,
    pair: Neighbours,
    pilots: Pilots,
    claim: Claim,
    names: Sequence[str] = PORTFOLIO,
) -> list[Statement]:
    """Every attack that fits the pair: learned on one half of the pilot, its threshold chosen on
    the other."""
    statements = list[Statement]()
    half = len(pilots[0]) // 2
    for name in names:
        score = _learn(ATTACKS[name], run, pair, *(part[:half] for part in pilots))
        if score is not None:
            held = (score(pilots[0][half:]), score(pilots[1][half:]))
            threshold, distance = best_threshold(claim, *held)
            statements.append(Statement(number, name, score, (threshold,), distance, pilot=held))
    return statements


def _learn(
    attack: Attack, run: Run, pair: Neighbours, present: np.ndarray, without: np.ndarray
) -> Score | None:
    """The fitted score, or ``None`` where the attack does not apply to these models."""
    try:
        return attack.scorer(run, pair, present, without)
    except (InputError, np.linalg.LinAlgError):
        return None


def choose_statements(
    run: Run, pairs: Sequence[Neighbours], statements: Sequence[Statement]
) -> list[Statement]:
    """Statements on the first pair and on the most decisive other one, the favourite first, with
    their shares."""
    numbers = sorted({one.pair for one in statements})
    decisive = sorted(
        numbers[1:], key=lambda number: -max(s.distance for s in statements if s.pair == number)
    )
    kept = {numbers[0], *decisive[: PAIRS - 1]}
    left = [one for one in statements if one.pair in kept]
    best = max(left, key=lambda one: one.distance)
    if best.distance <= CLEAR:
        name = strongest(run, pairs[numbers[0]])
        best = next((one for one in left if one.pair == numbers[0] and one.attack == name), best)
    others = [one for one in left if one is not best]
    share = 0.5 if others else 1.0
    return [
        replace(best, share=share),
        *(replace(one, share=0.5 / len(others), pilot=None) for one in others),
    ]
