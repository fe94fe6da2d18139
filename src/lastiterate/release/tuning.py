"""Train a secret number of candidates, release the best one, once
(docs/theorems/private-selection.md).

**Guarantee:** nothing but the winner leaves: no progress, no score, no count. What the clock says
to an observer of the process about the number of runs is not covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lastiterate import interrupts
from lastiterate.accounting.certificate import Certificate
from lastiterate.accounting.private_selection import Selection
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.renyi import Rdp
from lastiterate.curves.roots import smallest_true
from lastiterate.curves.selection import NegativeBinomial, PoissonRuns, Runs, Selected
from lastiterate.data import split
from lastiterate.data.schema import Schema
from lastiterate.engine import execute, fresh_key, key_from_seed, scores
from lastiterate.engine.exact_noise import DiscreteGaussian
from lastiterate.engine.preprocessing import TrainedWeights
from lastiterate.engine.random import Bits, Key, derive_key, fresh_secret
from lastiterate.errors import InputError, NotCertified
from lastiterate.features.map_registry import list_providers
from lastiterate.release.fitted_linear import FittedSelected
from lastiterate.release.fitted_linear import read as read
from lastiterate.release.score_meaning import Labels, Range, Scores, pick_class
from lastiterate.release.training_request import LazyRecords, TrainingRequest
from lastiterate.release.units import check_rows

Candidate = Callable[[float, float], Certificate]
"""A certified run on the training part, within a budget (epsilon, delta) of its own."""
MEAN_RUNS = 10.0
STEPS = 2**16
"""Integer steps to which a record's squared error in [0, 1] is rounded."""
PATIENCE = 40
"""Times that the budget of one run is lowered by a twentieth, until all of it fits."""


class NothingSelected(NotCertified):
    """The random number of runs was 0: nothing is released, and the budget is spent."""


@dataclass(frozen=True)
class CandidateRows:
    """The columns of the data that are the rows of a candidate, and the schema whose public maps
    made them; ``None`` for the order's own."""

    start: int = 0
    stop: int | None = None
    schema: Schema | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The candidate's columns of rows (n, d)."""
        return rows[:, self.start : self.stop]


ALL = CandidateRows()


def plan_candidates(
    candidates: Sequence[tuple[Candidate, CandidateRows]],
    *,
    epsilon: float,
    delta: float,
    law: Runs,
    held_out: int,
    regression: bool,
) -> tuple[Certificate, tuple[CandidateRows, ...]]:
    """Every candidate with the largest budget of its own for which all of it keeps (epsilon,
    delta), and the rows of each; those of one run and the same rows are one candidate."""
    if not candidates:
        raise InputError("candidates", "must hold at least one", 0)
    share, inner = first_share(epsilon, delta, law)
    for _ in range(PATIENCE):
        noise = _score_noise(share, inner)
        distinct = dict.fromkeys((planned(share, inner).run, rows) for planned, rows in candidates)
        runs = tuple(run for run, _ in distinct)
        proof = Certificate(Selection(runs, law, held_out, noise, STEPS if regression else 1))
        if proof.epsilon(delta) <= epsilon:
            return proof, tuple(rows for _, rows in distinct)
        share *= 0.95
    raise NotCertified(
        "no budget of a single run keeps the whole: ask for a larger epsilon, or for fewer runs"
    )


def check_candidates(argument: str, count: int, remedy: str) -> None:
    """Refuse a selection from fewer than two different candidates, before it costs anything."""
    if count < 2:
        raise InputError(argument, "must be at least two different ones", count, remedy)


def first_share(epsilon: float, delta: float, law: Runs) -> tuple[float, float]:
    """Epsilon and delta of one candidate that ``plan_candidates`` begins with."""
    inner = delta / max(1.0, law.mean)
    inverse = smallest_true(
        lambda i: Selected(Gdp(1 / i), law).epsilon(delta) <= epsilon, 1e-2, 1e6, 1e-4
    )
    return Gdp(1 / inverse).epsilon(inner), inner


def _score_noise(epsilon: float, delta: float) -> float:
    """The least noise of a score, in units, that costs no more than a run."""
    return smallest_true(
        lambda z: Rdp.linear(1 / (2 * z * z)).epsilon(delta) <= epsilon, 1e-2, 1e9, 1e-6
    )


def parts(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the public positions of the records that are trained on, and of the fifth that is
    scored."""
    return split(n, seed=0)


def check(order: TrainingRequest) -> TrainingRequest:
    """Refuse checkpoints, two rows of one unit, and candidates that describe other records; name
    the plug-ins that provide a map of any candidate."""
    order.charging.without_checkpoint("while candidates are tried")
    check_rows(order.unit, order.records, 1)
    if not isinstance(order.data, LazyRecords):
        _parts_of(order)
    maps = [one for rows in _rows_of(order) if rows.schema for one in rows.schema.features]
    said = (part.words for part in list_providers(maps))
    return replace(order, caveats=tuple(dict.fromkeys((*order.caveats, *said))))


def _rows_of(order: TrainingRequest) -> tuple[CandidateRows, ...]:
    """The rows of every candidate of the certificate, in its order."""
    count = len(selection_of(order.certificate).candidates)
    rows: tuple[CandidateRows, ...] = (ALL,) * count if order.model is None else order.model
    assert len(rows) == count
    return rows


def selection_of(proof: Certificate) -> Selection:
    """Return the selection that a certificate is about."""
    chosen = proof.subject
    if not isinstance(chosen, Selection):
        raise InputError(
            "certificate",
            "must be about a selection",
            chosen.word,
            "tuning.plan_candidates makes one",
        )
    return chosen


def _parts_of(order: TrainingRequest) -> tuple[np.ndarray, np.ndarray]:
    """The public split of the records, of the sizes that are certified."""
    chosen, (train, held) = selection_of(order.certificate), parts(len(order.data[0]))
    if (len(train), len(held)) != (chosen.candidates[0].n, chosen.held_out):
        raise InputError(
            "candidates",
            f"must describe the {len(train)} records that are trained on",
            chosen.candidates[0].n,
        )
    return train, held


def fit(order: TrainingRequest, key: Key | None) -> FittedSelected:
    """Execute the selection on rows (n, d) and targets (n,), its public split made here, and
    release the winner."""
    assert order.answers is not None
    chosen, (train, held) = selection_of(order.certificate), _parts_of(order)
    rows, labels = map(np.asarray, order.data)
    of_candidates = _rows_of(order)
    best: tuple[tuple[int, int], int, TrainedWeights] | None = None
    for which, own, noise, tie in _draws(chosen, order.seed):
        interrupts.check()
        run, own_rows = chosen.candidates[which], of_candidates[which].of(rows)
        model = execute(run, own_rows[train], labels[train], own)
        found = scores(run, model, own_rows[held])
        score = _score(found, labels[held], order.answers, chosen.unit)
        value = score + int(DiscreteGaussian(chosen.score_noise * chosen.unit).sample(noise, 1)[0])
        if best is None or (value, tie) > best[0]:
            best = (value, tie), which, model
    if best is None:
        raise NothingSelected(
            "the secret number of runs was 0: nothing is released, and the budget is spent"
        )
    return FittedSelected(
        proof=order.certificate,
        delta=order.delta,
        schema=of_candidates[best[1]].schema or order.schema,
        run=chosen.candidates[best[1]],
        released=best[2],
        answers=order.answers,
        selection=chosen,
    )


def _draws(chosen: Selection, seed: int | None) -> Iterator[tuple[int, Any, Bits, int]]:
    """Index of the candidate, key, noise of the score and tie-breaker of every run; their number is drawn first."""
    secret = (
        fresh_secret()
        if seed is None
        else derive_key(seed.to_bytes(16, "big", signed=True), "tests")
    )
    bits = Bits(derive_key(secret, "selection"), 0)
    count = chosen.law.draw(bits.integer(256), 256)
    for number in range(count):
        # 64 bits modulo a few candidates would favour some by 2^-60; 256 bits do by 2^-250
        which = bits.integer(256) % len(chosen.candidates)
        key = fresh_key() if seed is None else key_from_seed(bits.integer(64) >> 1)
        yield which, key, Bits(derive_key(secret, "scores"), number), bits.integer(128)


def _score(
    raw_scores: np.ndarray, target: np.ndarray, answers: Labels | Range | Scores, unit: int
) -> int:
    """Return the sum over records of an integer in [0, unit]: correct labels, or the unit less the
    squared error."""
    if isinstance(answers, Labels):
        return int(
            (pick_class(answers.probabilities(raw_scores), answers.threshold) == target).sum()
        )
    error = (np.clip(raw_scores[:, 0], -1, 1) - np.clip(target, -1, 1)) / 2
    return int((unit - np.ceil(np.clip(error**2, 0, 1) * unit)).sum())


def law_of(mean: float, kind: str = "logarithmic") -> Runs:
    """Return the distribution of the number of runs by its name: logarithmic, geometric or
    poisson."""
    match kind:
        case "logarithmic":
            return NegativeBinomial.with_mean(mean, 0.0)
        case "geometric":
            return NegativeBinomial.with_mean(mean, 1.0)
        case "poisson":
            return PoissonRuns(mean)
        case _:
            raise InputError("runs", "must be logarithmic, geometric or poisson", kind)
