"""An audit of a single training run: every canary is included with probability 1/2, and the attack guesses which.

The number of right guesses bounds epsilon for any trainer (Steinke, Nasr, Jagielski 2023) and is held against the whole
certified curve (Mahloujifar, Melis, Chaudhuri 2024); where a right trainer's scores are Gaussian, they say much more.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass

import numpy as np

from lastiterate.audit.attacked_run import auditable
from lastiterate.audit.auditing import certificate_of
from lastiterate.audit.canaries import linear_in_noise
from lastiterate.audit.claim import Claim
from lastiterate.audit.neighbours import Train, is_replace_one, takes_absent
from lastiterate.audit.one_run_canaries import how_many, table, trainer
from lastiterate.audit.one_run_curves import impossible, of_deltas
from lastiterate.audit.one_run_gaussian import gaussian_mu, shares_of_move
from lastiterate.audit.one_run_statistics import one_run_epsilon
from lastiterate.audit.outcome import OTHER, claimed, shown, shown_in_notebooks, verdict_of
from lastiterate.audit.statistics import check_failure, gaussian_epsilon
from lastiterate.curves.gdp import Gdp
from lastiterate.errors import InputError
from lastiterate.run.evidence import Evidence
from lastiterate.run.run import Run

NAME = "one-run"
GAUSSIAN = 0.8
"""Share of the failure probability that the Gaussian bound takes where there is one; guesses keep the rest."""
NOT_GAUSSIAN = "the canaries' scores do not look as the description says: there is no Gaussian bound"


@dataclass(frozen=True)
class OneRunReport:
    """A lower bound on epsilon from one training run, beside the certificate's upper bound.

    **Guarantee:** with probability at least 1 - ``failure``, ``lower`` does not exceed the audited trainer's true
    epsilon at ``delta``, ``curve_refuted`` is set only if the certificate is wrong, and ``lower_gaussian`` holds if the
    canaries' scores are Gaussian with one spread, as a right trainer's are on these records; it is ``None`` where they
    need not be. The random inclusions are the attack's own; how many guesses are made was fixed before the training.
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
    lower_gaussian: float | None = None
    curve_refuted: bool = False  #: so many right guesses contradict the certified deltas, taken together

    @property
    def refuted(self) -> bool:
        """Whether a lower bound lies above the certificate's upper bound, or the guesses contradict its whole curve."""
        return self._whoever_trained or (self.lower_gaussian or 0.0) > self.upper

    @property
    def _whoever_trained(self) -> bool:
        return self.lower > self.upper or self.curve_refuted

    @property
    def verdict(self) -> str:
        """In words; the Gaussian bound alone says that not the described run was executed, or that it leaks."""
        if self.refuted and not self._whoever_trained:
            return OTHER
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
            *([("at least", f"{shown(self.lower_gaussian, math.floor)} (all scores are Gaussian)")]
              if self.lower_gaussian is not None else []),
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
    check_failure(failure)
    attacked = auditable(run, steps_only=True)
    run, caveats = attacked.run, (*attacked.caveats, *(f"not executed: {name}" for name in attacked.lacking))
    count = how_many(run, canaries)
    train = trainer(run, count) if train is None else train
    _check_inclusion(run, train)
    certificate, made = certificate_of(run, at_least), table(run, count)
    upper, best = certificate.epsilon(delta), certificate.best(delta)
    steady = linear_in_noise(run) and run.batching.drawn == "never"
    shares = shares_of_move(run) if steady and made.constant else None
    of_guesses = failure if shares is None else (1 - GAUSSIAN) * failure
    guesses = _guesses(count, upper, delta, of_guesses) if guesses is None else guesses
    ceiling = one_run_epsilon(guesses, guesses, count, delta, of_guesses)
    if ceiling <= 0:
        raise InputError("canaries", "are too few for any statement, even if every guess were correct", count,
                         "take more canaries, a smaller delta or a larger failure probability, or audit by many runs")
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    present = np.random.default_rng(seed).random(count) < 0.5
    scores = made.scores(run, present, train, seed)
    correct = _correct(scores, present, guesses)
    gaussian = None if shares is None else gaussian_mu(scores, present, shares[made.places], GAUSSIAN * failure)
    if shares is not None and gaussian is None and run.noise_stds.any():
        caveats = (*caveats, NOT_GAUSSIAN)
    return OneRunReport(count, guesses, correct, failure, delta,
                        one_run_epsilon(correct, guesses, count, delta, of_guesses), ceiling, upper,
                        None if best is None else best.theorem.name, run.adjacency, seed, caveats,
                        None if gaussian is None else gaussian_epsilon(gaussian, delta),
                        impossible(of_deltas(Claim.of(certificate).deltas), correct, guesses, count, of_guesses))


def _check_inclusion(run: Run, train: Train) -> None:
    """Refuse where canaries cannot be left out."""
    if is_replace_one(run):
        raise InputError("adjacency", "must be zero-out or add-remove: canaries are included or left out",
                         run.adjacency, "describe the run under zero-out")
    if not takes_absent(train):
        raise InputError("train", "takes no absent=, the records whose gradients are zeroed", None, "add it")


def _correct(scores: np.ndarray, present: np.ndarray, guesses: int) -> int:
    """How many of the likeliest guesses are right, half way between what is in and what is out."""
    centred = scores - (np.quantile(scores, 0.1) + np.quantile(scores, 0.9)) / 2
    likeliest = np.argsort(-np.abs(centred), kind="stable")[:guesses]
    return int((present[likeliest] == (centred[likeliest] > 0)).sum())


def _guesses(count: int, upper: float, delta: float, failure: float) -> int:
    """The number whose expected outcome shows most, if scores were Gaussian with the certified mu between in and out.

    Nothing but the run's description decides it, so that it needs no share of the failure probability.
    """
    from scipy.optimize import brentq  # pyright: ignore
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
