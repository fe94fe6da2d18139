"""An audit of a single training run: every canary is included with probability 1/2, and the attack guesses which.

Steinke, Nasr, Jagielski 2023. Canaries have orthogonal rows, so that each moves the model along a direction of its
own and hides no other; for squared error with clamped residuals each contributes its largest gradient at every
participation.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lastiterate.audit.attacked_run import auditable
from lastiterate.audit.auditing import certificate_of
from lastiterate.audit.canaries import FAR, LONG, columns
from lastiterate.audit.neighbours import Train, is_replace_one, takes_absent
from lastiterate.audit.one_run_statistics import one_run_epsilon
from lastiterate.audit.outcome import claimed, shown, shown_in_notebooks, verdict_of
from lastiterate.curves.gdp import Gdp
from lastiterate.engine import Trainer, seeded_keys
from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Box
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

NAME = "one-run"
MOST, ENTRIES = 4000, 2**26
"""Canaries by default, at most, and entries of the made-up table, which has a column for each of them."""


@dataclass(frozen=True)
class OneRunReport:
    """A lower bound on epsilon from one training run, beside the certificate's upper bound.

    **Guarantee:** with probability at least 1 - ``failure``, ``lower`` does not exceed the audited trainer's true
    epsilon at ``delta``. The random inclusions are the attack's own; how many guesses are made was
    fixed before the training.
    """

    canaries: int
    guesses: int  #: the others were abstained from
    correct: int
    failure: float
    delta: float
    lower: float
    ceiling: float
    upper: float
    theorem: str | None
    adjacency: str
    seed: int
    caveats: tuple[str, ...] = ()

    @property
    def refuted(self) -> bool:
        """Whether the lower bound lies above the certificate's upper bound."""
        return self.lower > self.upper

    @property
    def verdict(self) -> str:
        """In words."""
        return verdict_of(refuted=self.refuted, upper=self.upper, ceiling=self.ceiling)

    def to_json(self) -> str:
        """JSON text; an infinite upper bound is ``null``."""
        upper = self.upper if math.isfinite(self.upper) else None
        return json.dumps({"attack": NAME, **asdict(self), "upper": upper, "refuted": self.refuted,
                           "verdict": self.verdict}, indent=2)

    def _repr_html_(self) -> str:
        return shown_in_notebooks(self.rows(), self.caveats, refuted=self.refuted)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        return [
            ("attack", NAME), ("canaries", f"{self.canaries}, each in or out with probability 1/2 ({self.adjacency})"),
            ("guesses", f"{self.correct} of {self.guesses} are correct"), ("failure probability", f"{self.failure:g}"),
            ("epsilon at delta", f"{self.delta:g}"), ("at least", f"{shown(self.lower, math.floor)} (any trainer)"),
            ("at most, certified", claimed(self.upper, self.theorem)),
            ("ceiling of this attack", shown(self.ceiling, math.ceil)), ("verdict", self.verdict),
        ]


def audit_one_run(run: Run, *, canaries: int | None = None, guesses: int | None = None, failure: float = 0.05,
               delta: float = 1e-5, seed: int | None = None, train: Train | None = None,
               at_least: Evidence = Evidence.ENFORCED) -> OneRunReport:
    """Audit the trainer of ``run`` by training one model on made-up data.

    ``canaries``: records that are included at random (default: up to 4,000; the last ones in public order, which later
    steps hide least); the other records are zeroed. ``guesses``: how many are guessed (default: the best number
    if the certificate were exact). ``train``: as for ``audit``, with ``absent=``. Errors:
    ``InputError`` under replace-one, or where even perfect guesses would show nothing.

    **Guarantee:** that of ``OneRunReport``. Source: Steinke, Nasr, Jagielski 2023.
    """
    attacked = auditable(run, steps_only=True)
    run, caveats = attacked.run, (*attacked.caveats, *(f"not executed: {name}" for name in attacked.lacking))
    if is_replace_one(run):
        raise InputError("adjacency", "must be zero-out or add-remove: canaries are included or left out",
                         run.adjacency, "describe the run under zero-out")
    train = Trainer(run).fit_many if train is None else train
    if not takes_absent(train):
        raise InputError("train", "takes no absent=, the records whose gradients are zeroed", None, "add it")
    count = _canaries(run, canaries)
    certificate = certificate_of(run, at_least)
    upper, best = certificate.epsilon(delta), certificate.best(delta)
    guesses = _guesses(count, upper, delta, failure) if guesses is None else guesses
    ceiling = one_run_epsilon(guesses, guesses, count, delta, failure)
    if ceiling <= 0:
        raise InputError("canaries", "are too few for any statement, even if every guess were correct", count,
                         "take more canaries, a smaller delta or a larger failure probability, or audit by many runs")
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    present = np.random.default_rng(seed).random(count) < 0.5
    scores = _scores(run, present, train, seed)
    likeliest = np.argsort(-np.abs(scores), kind="stable")[:guesses]
    correct = int((present[likeliest] == (scores[likeliest] > 0)).sum())
    lower = one_run_epsilon(correct, guesses, count, delta, failure)
    return OneRunReport(count, guesses, correct, failure, delta, lower, ceiling, upper,
                        None if best is None else best.theorem.name, run.adjacency, seed, caveats)


def _canaries(run: Run, asked: int | None) -> int:
    most = columns(run, None) if isinstance(run.domain, Box) and run.domain.dimension is not None else run.n
    count = min(most, run.n, MOST, max(1, ENTRIES // run.n)) if asked is None else asked
    if not 1 <= count <= min(most, run.n):
        raise InputError("canaries", f"must lie within 1 .. {min(most, run.n)}", count)
    return count


def _guesses(count: int, upper: float, delta: float, failure: float) -> int:
    """The number whose expected outcome shows most, if scores were Gaussian with the certified mu between in and out.

    Nothing but the run's description decides it, so that it needs no share of the failure probability.
    """
    from scipy.optimize import brentq
    from scipy.special import ndtr, ndtri  # pyright: ignore

    mu = 3.0
    if math.isfinite(upper) and Gdp(1e-3).epsilon(delta) < upper < Gdp(30.0).epsilon(delta):
        mu = float(brentq(lambda mu: Gdp(mu).epsilon(delta) - upper, 1e-3, 30.0, xtol=1e-3))  # type: ignore[arg-type]
    sizes = sorted({max(1, round(count * 2 ** (-j / 2))) for j in range(20)})

    def shows(size: int) -> tuple[float, float]:
        at = -float(ndtri(size / (2 * count)))  # near enough to the score that so many exceed
        accuracy = float(ndtr(mu / 2 - at) / (ndtr(mu / 2 - at) + ndtr(-mu / 2 - at)))
        expected = one_run_epsilon(int(size * accuracy), size, count, delta, failure)
        return expected, (accuracy - 0.5) * math.sqrt(size)  # where nothing is expected: most standard deviations

    return max(sizes, key=shows)


def _scores(run: Run, present: np.ndarray, train: Train, seed: int) -> np.ndarray:
    """How far the one model lies in every canary's direction, from half way between in and out; (canaries,)."""
    loss, count = linear_loss(run), len(present)
    width = columns(run, None if isinstance(run.domain, Box) and run.domain.dimension is not None else count)
    places, turn = run.n - count + np.arange(count), np.arange(count)
    rows = np.zeros((run.n, width), np.float32)
    rows[places, turn] = LONG * loss.row_norm
    classes = max(2, loss.target_classes)
    target: Any = np.zeros(run.n, np.int64)
    target[places] = turn % classes
    signs = 2.0 * (turn % 2) - 1
    if loss.target_classes == 0:
        target = np.where(np.arange(run.n) % 2 == run.n % 2, FAR, -FAR)
        signs = np.sign(target[places])
    absent = tuple(int(i) for i in np.concatenate((np.arange(run.n - count), places[~present])))
    released = np.asarray(train(rows, target, seeded_keys(seed, 1), absent=absent))[0]
    weights = (released[-1] if run.release == "all" else released)[:, turn]
    if loss.outputs > 1:
        own = weights[turn % classes, turn]
        found = own - (weights.sum(axis=0) - own) / (classes - 1)
    else:
        found = signs * weights[0]
    return found - (np.quantile(found, 0.1) + np.quantile(found, 0.9)) / 2
