"""From scores of the models that count to a report: error counts, their confidence bounds, and what they contradict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from lastiterate.accounting.certificate import Certificate
from lastiterate.audit.attacks import count
from lastiterate.audit.claim import Claim
from lastiterate.audit.outcome import AuditReport, Rate, Seen
from lastiterate.audit.score_laws import ScoreLaws
from lastiterate.audit.statistics import CombinedBounds, ceiling
from lastiterate.curves.curve import Curve


class Pair(Protocol):
    """The two data sets, in words."""

    @property
    def about(self) -> str: ...


MISFIT = "scores of '{}' do not look as the description says: no bound takes them to be Gaussian"


@dataclass(frozen=True, eq=False)
class Judged:
    """One attack on one pair: thresholds fixed before, its share of the failure probability, and both sets' scores;
    ``laws``: the scores' laws if the trainer is right, where they are known."""

    attack: str
    pair: Pair
    thresholds: tuple[float, ...]
    share: float
    scores: tuple[np.ndarray, np.ndarray]
    laws: ScoreLaws | None = None

    @cached_property
    def fits(self) -> bool:
        """Whether there are laws, and the scores look like theirs."""
        return self.laws is not None and self.laws.fit(*self.scores)

    def seen(self, delta: float, failure: float, claim: Claim, curves: Sequence[Curve] = ()) -> Seen:
        """What the errors prove at this share; ``curves`` are searched beside the claim's grid."""
        counts = tuple(count(*self.scores, threshold) for threshold in self.thresholds)
        proof = CombinedBounds(counts, failure * self.share)
        pairs = proof.rates()
        epsilons = [claim.refuted(*pair) for pair in pairs]
        refuted = next((epsilon for epsilon in epsilons if epsilon is not None), None)
        if refuted is None and curves:
            refuted = proof.refuted(curves)
        laws = self.laws if delta > 0 and self.fits else None
        return Seen(
            attack=self.attack, neighbours=self.pair.about, share=self.share, lower=proof.epsilon(delta),
            lower_gaussian=None if laws is None else laws.lower(pairs, delta), mu_lower=proof.mu(), refuted_at=refuted,
            rates=tuple(Rate(threshold, int(np.asarray(c.false_positives)), int(np.asarray(c.false_negatives)), *pair)
                        for threshold, c, pair in zip(self.thresholds, counts, pairs, strict=True)))


def conclude(certificate: Certificate, judged: Sequence[Judged], *, failure: float, delta: float, pilot: int,
             seed: int | None, caveats: tuple[str, ...] = (), claim: Claim | None = None,
             violations: tuple[str, ...] = (), pairs: int = 1, not_executed: tuple[str, ...] = ()) -> AuditReport:
    """The report; the favourite is judged first. ``pairs``: how many were tried on pilot models."""
    curves = certificate.subject.curves
    claim = Claim.of(certificate) if claim is None else claim
    seen = tuple(one.seen(delta, failure, claim, () if place else curves) for place, one in enumerate(judged))
    first = seen[0]
    gaussian, taken = max(((bound.lower_gaussian, one.laws.words) for bound, one in zip(seen, judged, strict=True)
                           if bound.lower_gaussian is not None and one.laws is not None), default=(None, ""))
    caveats += tuple(MISFIT.format(one.attack) for one in judged if one.laws is not None and not one.fits)
    trials = min(len(part) for part in judged[0].scores)
    return AuditReport(
        attack=first.attack, neighbours=first.neighbours, adjacency=certificate.adjacency, trials=trials,
        pilot=pilot, failure=failure, delta=delta, lower=max(one.lower for one in seen),
        lower_gaussian=gaussian, taken=taken, mu_lower=max(one.mu_lower for one in seen),
        ceiling=max(ceiling(trials, failure * one.share, delta, len(one.rates)) for one in seen),
        upper=certificate.epsilon(delta), theorem=_source(certificate, delta),
        refuted_at=next((one.refuted_at for one in seen if one.refuted_at is not None), None), rates=first.rates,
        seed=seed, caveats=caveats, seen=seen, violations=violations, pairs=pairs,
        not_executed=not_executed, scores=judged[0].scores)


def _source(certificate: Certificate, delta: float) -> str | None:
    """What certifies: a theorem of the table, or a proof of the subject's own."""
    best = certificate.best(delta)
    own = certificate.subject.word if certificate.subject.curves and not certificate.verdicts else None
    return own if best is None else best.theorem.name
