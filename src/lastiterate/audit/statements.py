"""What an audit will state: attacks fitted on pilot models, with thresholds that are fixed before the
models that count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lastiterate.audit.attacks import (
    ATTACKS,
    PORTFOLIO,
    Attack,
    Score,
    choose_thresholds,
    strongest,
)
from lastiterate.audit.canaries import Neighbours
from lastiterate.audit.end_to_end import PAIRS
from lastiterate.audit.report import Claim
from lastiterate.errors import InputError
from lastiterate.run.run import Run

INNER, EXTREME = 120, 12
"""Thresholds that are looked at: quantiles of the pilot, and its most extreme scores on both sides.
"""


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
