"""Audit a single training run with many canaries."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lastiterate.accounting.certificate import account
from lastiterate.audit import networks
from lastiterate.audit.canaries import (
    FAR,
    LONG,
    Train,
    columns,
    is_replace_one,
    linear_in_noise,
    takes_absent,
)
from lastiterate.audit.learned_scores import shift
from lastiterate.audit.report import (
    OTHER,
    Claim,
    format_bound,
    format_claim,
    render_html,
    verdict_of,
)
from lastiterate.audit.runner import auditable
from lastiterate.audit.statistics import (
    check_failure,
    gaussian_epsilon,
    impossible,
    of_deltas,
    one_run_epsilon,
)
from lastiterate.curves.gaussian import Gdp
from lastiterate.engine import Trainer, keys_from_seed
from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.errors import InputError
from lastiterate.lazy import accept_old_names
from lastiterate.run.domains import Box
from lastiterate.run.facts import Evidence
from lastiterate.run.methods import NoisySGD
from lastiterate.run.run import Run

# Canaries of one training run: orthogonal rows, each of which moves the model along a direction of
# its own.  For squared error with clamped residuals, and for the networks' stand-in, each
# contributes its largest gradient at every participation, and no other record bends its direction.

MOST, ENTRIES = 4000, 2**26
"""Canaries by default, at most, and entries of the synthetic table, which has a column for each of
them."""


def count_canaries(run: Run, asked: int | None) -> int:
    """As many as asked for, or as the records, the domain's dimension and the table's size hold."""
    most = columns(run, None) if _has_fixed_width(run) else run.n
    count = min(most, run.n, MOST, max(1, ENTRIES // run.n)) if asked is None else asked
    if not 1 <= count <= min(most, run.n):
        raise InputError("canaries", f"must lie within 1 .. {min(most, run.n)}", count)
    return count


def trainer(run: Run, count: int) -> Train:
    """The library's own: of networks on the stand-in with a parameter for every canary."""
    if networks.is_clipped_only(run):
        return networks.train_many(run, {"first": (count // 2,), "second": (count - count // 2,)})
    return Trainer(run).fit_many


@dataclass(frozen=True, eq=False)
class Table:
    """Synthetic records, the canaries last in public order, and the sign by which each moves the
    model along its own direction.

    ``constant``: whether the canaries' gradients are, wherever the model is.
    """

    features: np.ndarray
    target: np.ndarray
    places: np.ndarray
    signs: np.ndarray
    classes: int
    constant: bool

    def release_outputs(self, run: Run, present: np.ndarray, train: Train, seed: int) -> np.ndarray:
        """One model's numbers along every canary's direction; (outputs, canaries)."""
        others = np.setdiff1d(np.arange(run.n), self.places)
        absent = tuple(int(i) for i in np.concatenate((others, self.places[~present])))
        iterates = np.asarray(
            train(self.features, self.target, keys_from_seed(seed, 1), absent=absent)
        )[0]
        last = iterates[-1] if run.release == "all" else iterates
        return np.atleast_2d(last)[:, : len(self.places)]

    def scores(self, run: Run, present: np.ndarray, train: Train, seed: int) -> np.ndarray:
        """How far the model lies in every canary's direction; (canaries,)."""
        weights = self.release_outputs(run, present, train, seed)
        if len(weights) == 1:
            return self.signs * weights[0]
        turn = np.arange(len(self.places))
        own = weights[turn % self.classes, turn]
        return own - (weights.sum(axis=0) - own) / (self.classes - 1)


def table(run: Run, count: int) -> Table:
    """Records for ``count`` canaries; an absent record is a row of zeros where the loss is a
    stand-in."""
    places, turn = run.n - count + np.arange(count), np.arange(count)
    if networks.is_clipped_only(run):
        rows = np.zeros((run.n, count), np.float32)
        rows[places, turn] = LONG * (run.clip or 1.0)
        return Table(rows, np.zeros(run.n), places, np.ones(count), 1, constant=True)
    loss = linear_loss(run)
    rows = np.zeros((run.n, columns(run, None if _has_fixed_width(run) else count)), np.float32)
    rows[places, turn] = LONG * loss.row_norm
    classes = max(2, loss.target_classes)
    target: np.ndarray = np.zeros(run.n, np.int64)
    target[places] = turn % classes
    signs = 2.0 * (turn % 2) - 1
    if loss.target_classes == 0:
        target = np.where(np.arange(run.n) % 2 == run.n % 2, FAR, -FAR)
        signs = np.sign(target[places])
    return Table(rows, target, places, signs, classes, constant=loss.target_classes == 0)


def _has_fixed_width(run: Run) -> bool:
    return isinstance(run.domain, Box) and run.domain.dimension is not None


# One training run whose canaries' scores are Gaussian: a lower bound on mu from a regression.
# (Agrawal et al. 2026, arXiv:2606.12733, use a normalised sum of the signals, Gaussian in the limit.)
# Where every step is linear in what was drawn, canary i has the score a + theta w_i u_i + sigma
# z_i: u_i says whether it is in, w_i how far it moves the model by the description (1 at most), z_i
# are independent. Least squares then give a noncentral t whose noncentrality is theta / sigma = mu
# of the records with w = 1, times what the table of u and w says: an exact confidence bound.

MISFIT = 1e-6
"""A right trainer's scores look less Gaussian, or differ more in spread, with a smaller probability
than this."""
WORK = 200_000
"""Steps that are followed on a line to learn how far every block's records move the model, for all
blocks together."""


def shares_of_move(run: Run) -> np.ndarray | None:
    """How far each record moves the released model, by theory, as a share of the farthest; (n,).

    ``None`` where no line says it: blocks of a method with another result than its last iterate,
    and long runs.
    """
    if run.blocks == 1:
        return np.ones(run.n)
    if type(run.method) is not NoisySGD or run.steps * run.blocks > WORK:
        return None
    held = run.batching.block_of(run.n)
    if held is None:  # every record moves it alike
        held = np.zeros(run.n, np.int64)
    firsts = np.unique(held, return_index=True)[1]
    moves = np.array([shift(run, int(first)) for first in firsts])
    if not np.isfinite(moves).all() or not moves.any():
        return None
    return (moves / moves[np.abs(moves).argmax()])[held]


def gaussian_mu(
    scores: np.ndarray, present: np.ndarray, shares: np.ndarray, failure: float
) -> float | None:
    """Lower bound on mu, except with probability ``failure``; ``None`` where the scores cannot be
    what is described."""
    from scipy.optimize import brentq  # pyright: ignore
    from scipy.special import nctdtr  # pyright: ignore
    from scipy.stats import kstest, levene  # pyright: ignore

    count, moved = len(scores), shares * present
    centred = moved - moved.mean()
    square = float(centred @ centred)
    if count < 8 or square <= 0 or not 2 < present.sum() < count - 2:
        return None
    slope = float(centred @ scores) / square
    left = scores - scores.mean() - slope * centred
    spread = math.sqrt(float(left @ left) / (count - 2))
    if not spread > 1e-9 * float(np.abs(scores).max()):
        return None  # no noise that numbers of this size could show
    fits: list[Any] = [kstest(left / spread, "norm"), levene(left[present], left[~present])]
    if min(one.pvalue for one in fits) < MISFIT:
        return None
    t = slope * math.sqrt(square) / spread

    def beyond(center: float) -> float:
        return float(nctdtr(count - 2, center, t)) - (1 - failure)

    if t <= 0 or beyond(0.0) <= 0:
        return 0.0
    least = float(brentq(beyond, 0.0, t, xtol=1e-9 * max(t, 1.0)))  # type: ignore[arg-type]
    return max(0.0, least - 1e-8 * max(t, 1.0)) / math.sqrt(square)


# An audit of a single training run: every canary is included with probability 1/2, and the attack
# guesses which.  The number of right guesses bounds epsilon for any trainer (Steinke, Nasr,
# Jagielski 2023) and is held against the whole certified curve (Mahloujifar, Melis, Chaudhuri
# 2024); where a right trainer's scores are Gaussian, they say much more.

NAME = "one-run"
GAUSSIAN = 0.8
"""Share of the failure probability that the Gaussian bound takes where there is one; guesses keep
the rest."""
NOT_GAUSSIAN = (
    "the canaries' scores do not look as the description says: there is no Gaussian bound"
)


@dataclass(frozen=True)
class OneRunReport:
    """A lower bound on epsilon from one training, next to the certificate's upper bound.

    Parameters
    ----------
    canaries : int
        Number of records that were included at random.
    guesses : int
        Number of guesses; the attack abstained from the other records.
    correct : int
        Number of correct guesses.
    failure : float
        Probability that any statement of the report is wrong.
    delta : float
        Delta at which epsilon is stated.
    lower : float
        Lower bound on epsilon, for any trainer.
    ceiling : float
        Largest lower bound that the attack could state.
    upper : float
        Epsilon of the certificate.
    theorem : str or None
        Name of the theorem that certifies it.
    adjacency : str
        Adjacency of the run.
    seed : int
        Seed of inclusions and noise.
    caveats : tuple of str, default ()
        Notes on the audited run.
    lower_gaussian : float, optional
        Lower bound on epsilon if the scores are Gaussian with one spread; ``None`` where they need
        not be.
    curve_refuted : bool, default False
        Whether this many correct guesses contradict the certified deltas, taken together.

    See Also
    --------
    audit_one_run : Make a report.

    Notes
    -----
    **Guarantee:** with probability at least 1 - ``failure``, ``lower`` does not exceed the true
    epsilon of the audited trainer at ``delta``, and ``curve_refuted`` is set only if the
    certificate is wrong. The number of guesses was fixed before the training.

    Examples
    --------
    >>> from lastiterate.audit import OneRunReport
    >>> report = OneRunReport(
    ...     canaries=100, guesses=20, correct=12, failure=0.05, delta=1e-5, lower=0.0, ceiling=1.0,
    ...     upper=2.0, theorem=None, adjacency="zero-out", seed=0,
    ... )
    >>> report.refuted
    False
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
    curve_refuted: bool = (
        False  #: so many right guesses contradict the certified deltas, taken together
    )

    @property
    def refuted(self) -> bool:
        """Whether a lower bound lies above the certificate's upper bound, or the guesses contradict
        its whole curve."""
        return self._whoever_trained or (self.lower_gaussian or 0.0) > self.upper

    @property
    def _whoever_trained(self) -> bool:
        return self.lower > self.upper or self.curve_refuted

    @property
    def verdict(self) -> str:
        """In words; the Gaussian bound alone says that not the described run was executed, or that
        it leaks."""
        if self.refuted and not self._whoever_trained:
            return OTHER
        return verdict_of(refuted=self.refuted, upper=self.upper, ceiling=self.ceiling)

    def to_json(self) -> str:
        """JSON text; an infinite upper bound is ``null``."""
        upper = self.upper if math.isfinite(self.upper) else None
        return json.dumps(
            {
                "attack": NAME,
                **asdict(self),
                "upper": upper,
                "refuted": self.refuted,
                "verdict": self.verdict,
            },
            indent=2,
        )

    def _repr_html_(self) -> str:
        return render_html(self.rows(), self.caveats, refuted=self.refuted)

    def rows(self) -> list[tuple[str, str]]:
        """Label and text, in the order in which they are read."""
        return [
            ("attack", NAME),
            (
                "canaries",
                f"{self.canaries}, each in or out with probability 1/2 ({self.adjacency})",
            ),
            ("guesses", f"{self.correct} of {self.guesses} are correct"),
            ("failure probability", f"{self.failure:g}"),
            ("epsilon at delta", f"{self.delta:g}"),
            ("at least", f"{format_bound(self.lower, math.floor)} (any trainer)"),
            *(
                [
                    (
                        "at least (Gaussian)",
                        f"{format_bound(self.lower_gaussian, math.floor)} (all scores are Gaussian)",
                    )
                ]
                if self.lower_gaussian is not None
                else []
            ),
            ("at most, certified", format_claim(self.upper, self.theorem)),
            ("ceiling of this attack", format_bound(self.ceiling, math.ceil)),
            ("verdict", self.verdict),
        ]


@accept_old_names("audit_one_run", at_least="min_evidence")
def audit_one_run(
    run: Run,
    *,
    canaries: int | None = None,
    guesses: int | None = None,
    failure: float = 0.05,
    delta: float = 1e-5,
    seed: int | None = None,
    train: Train | None = None,
    min_evidence: Evidence = Evidence.ENFORCED,
) -> OneRunReport:
    """Attack the trainer of a run by one model on synthetic data.

    Parameters
    ----------
    run : Run
        Run of a linear model.
    canaries : int, optional
        Number of records that are included at random, the last ones in public order; by default up
        to 4,000. The other records are zeroed.
    guesses : int, optional
        Number of guesses; by default the best number if the certificate were exact.
    failure : float, default 0.05
        Probability that any statement of the report is wrong.
    delta : float, default 1e-5
        Delta at which epsilon is stated.
    seed : int, optional
        Seed of inclusions and noise.
    train : callable, optional
        Trainer to audit, as for `audit`, with an argument ``absent``.
    min_evidence : Evidence, default Evidence.ENFORCED
        Weakest evidence of the facts that the certificate may rest on.

    Returns
    -------
    OneRunReport
        Lower bound next to the certificate's upper bound.

    Raises
    ------
    InputError
        If the run is accounted under "replace-one", or even perfect guesses would show nothing.

    See Also
    --------
    audit : Audit by many models.

    Notes
    -----
    **Guarantee:** that of `OneRunReport`. Source: Steinke, Nasr and Jagielski 2023.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=200, steps=20, step_size=0.5, batching=li.Cyclic(10),
    ...     noise=li.NoiseMultiplier(2.0), loss=li.Logistic(),
    ... )
    >>> li.audit.audit_one_run(run, canaries=100, seed=0).refuted
    False
    """
    check_failure(failure)
    attacked = auditable(run, steps_only=True, given=train is not None)
    run, caveats = (
        attacked.run,
        (*attacked.caveats, *(f"not executed: {name}" for name in attacked.lacking)),
    )
    count = count_canaries(run, canaries)
    train = trainer(run, count) if train is None else train
    _check_inclusion(run, train)
    certificate, made = account(attacked.claimed, min_evidence=min_evidence), table(run, count)
    upper, best = certificate.epsilon(delta), certificate.best(delta)
    steady = linear_in_noise(run) and run.batching.drawn == "never"
    shares = shares_of_move(run) if steady and made.constant else None
    of_guesses = failure if shares is None else (1 - GAUSSIAN) * failure
    guesses = _guesses(count, upper, delta, of_guesses) if guesses is None else guesses
    ceiling = one_run_epsilon(guesses, guesses, count, delta, of_guesses)
    if ceiling <= 0:
        raise InputError(
            "canaries",
            "are too few for any statement, even if every guess were correct",
            count,
            "take more canaries, a smaller delta or a larger failure probability, or audit by many "
            "runs",
        )
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    present = np.random.default_rng(seed).random(count) < 0.5
    scores = made.scores(run, present, train, seed)
    correct = _correct(scores, present, guesses)
    gaussian = (
        None
        if shares is None
        else gaussian_mu(scores, present, shares[made.places], GAUSSIAN * failure)
    )
    if shares is not None and gaussian is None and run.noise_stds.any():
        caveats = (*caveats, NOT_GAUSSIAN)
    return OneRunReport(
        count,
        guesses,
        correct,
        failure,
        delta,
        one_run_epsilon(correct, guesses, count, delta, of_guesses),
        ceiling,
        upper,
        None if best is None else best.theorem.name,
        run.adjacency,
        seed,
        caveats,
        None if gaussian is None else gaussian_epsilon(gaussian, delta),
        impossible(of_deltas(Claim.of(certificate).deltas), correct, guesses, count, of_guesses),
    )


def _check_inclusion(run: Run, train: Train) -> None:
    """Refuse where canaries cannot be left out."""
    if is_replace_one(run):
        raise InputError(
            "adjacency",
            "must be zero-out or add-remove: canaries are included or left out",
            run.adjacency,
            "describe the run under zero-out",
        )
    if not takes_absent(train):
        raise InputError(
            "train", "takes no absent=, the records whose gradients are zeroed", None, "add it"
        )


def _correct(scores: np.ndarray, present: np.ndarray, guesses: int) -> int:
    """How many of the likeliest guesses are right, half way between what is in and what is out."""
    centred = scores - (np.quantile(scores, 0.1) + np.quantile(scores, 0.9)) / 2
    likeliest = np.argsort(-np.abs(centred), kind="stable")[:guesses]
    return int((present[likeliest] == (centred[likeliest] > 0)).sum())


def _guesses(count: int, upper: float, delta: float, failure: float) -> int:
    """The number whose expected outcome shows most, if scores were Gaussian with the certified mu
    between in and out.

    Nothing but the run's description decides it, so that it needs no share of the failure
    probability.
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
        return expected, (accuracy - 0.5) * math.sqrt(
            size
        )  # where nothing is expected: most standard deviations

    return max(sizes, key=shows)
