"""Attacks: one score per trained model, higher where the record seems present."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from lastiterate import interrupts
from lastiterate.audit import learned_scores
from lastiterate.audit.canaries import DataSet, Neighbours, execute
from lastiterate.audit.learned_scores import (
    coordinate,
    discriminant,
    likelihood,
    nearest,
    outside,
    sign_of_shift,
)
from lastiterate.audit.scores import Clock, Progress, train_in_batches
from lastiterate.audit.statistics import Counts, epsilon_lower
from lastiterate.engine import Trainer, key_from_seed
from lastiterate.engine.linear_gradients import clip_rows, linear_loss
from lastiterate.errors import InputError
from lastiterate.run.run import Run

# Attacks: from released parameters to one score per model, higher where the record seems present.
# An attack is fitted on pilot models of both data sets, thresholds included, and then judged on
# models it has never seen, so that nothing is chosen on the models that are counted.

Score = Callable[[np.ndarray], np.ndarray]
"""Released parameters (models, k, d + 1), or all iterates (models, T, k, d + 1), to scores
(models,)."""
Fit = Callable[[Run, Neighbours, np.ndarray, np.ndarray], Score]
MARGIN = 7.0
"""Thresholds are looked for within this many standard deviations of the pilot's scores."""


@dataclass(frozen=True)
class Attack:
    """A name that stays, what it does in a sentence, and how it is fitted.

    ``fit``: (run, neighbours, pilot models with the record, without) -> score.
    """

    name: str
    about: str
    fit: Fit
    sees_all: bool = False

    def scorer(
        self, run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray
    ) -> Score:
        """The fitted score; attacks on the last iterate see no other."""
        if run.release != "all" or self.sees_all:
            return self.fit(run, neighbours, present, without)
        score = self.fit(run, neighbours, present[:, -1], without[:, -1])
        return lambda released: score(released[:, -1])


def _projection(
    run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray
) -> Score:
    """Along the record's gradient: the likelihood ratio where both distributions are Gaussian,
    covariance a multiple of I."""
    if neighbours.direction is None or neighbours.direction.shape != present.shape[1:]:
        raise InputError(
            "attack",
            "'projection' needs the direction of the record's gradient",
            None,
            "take 'learned', or give the neighbours a direction",
        )
    direction, sign = neighbours.direction, sign_of_shift(run, neighbours.record)
    return lambda released: sign * np.tensordot(released, direction, axes=direction.ndim)


def _trajectory(
    run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray
) -> Score:
    """All iterates: what each step added along the record's gradient."""
    direction = neighbours.direction
    if direction is None or direction.shape != present.shape[2:]:
        raise InputError(
            "attack",
            "'trajectory' needs the direction of the record's gradient",
            None,
            "give the neighbours a direction",
        )
    weights = learned_scores.weights(run, neighbours.record)
    return lambda released: learned_scores.along(run, weights, direction, released)


def _attack_on_features(learn: Callable[[np.ndarray, np.ndarray], Score]) -> Fit:
    """An attack that is learned from features of pilot models."""

    def fit(run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray) -> Score:
        score = learn(features(run, present), features(run, without))
        return lambda released: score(features(run, released))

    return fit


def features(run: Run, released: np.ndarray) -> np.ndarray:
    """What is released of every model as numbers, (models, p): parameters, or the noisy gradients
    of all steps.

    What is not finite counts as 0: that it was released is seen by 'refusals'.
    """
    numbers = (
        learned_scores.noisy_gradients(run, released)
        if learned_scores.readable(run) and released.ndim > 2
        else released
    )
    numbers = numbers.reshape(len(numbers), -1)
    return (
        numbers
        if np.isfinite(numbers).all()
        else np.nan_to_num(numbers, nan=0.0, posinf=0.0, neginf=0.0)
    )


def _loss_threshold(
    run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray
) -> Score:
    """Black box: the loss of the record under the released model (Yeom et al. 2018); small where it
    was trained on."""
    loss, data_set = linear_loss(run), neighbours.with_record
    record = neighbours.record
    features = clip_rows(data_set.features[record : record + 1], loss.row_norm)[0].astype(
        np.float64
    )
    row, answer = np.append(features, loss.intercept), data_set.target[record]

    def score(released: np.ndarray) -> np.ndarray:
        scores = released @ row  # (models, k)
        if loss.target_classes == 0:
            # |y| - |z - y| without cancellation for answers far beyond the scores
            along, far = scores[:, 0] * np.sign(answer), abs(float(answer))
            return cast(np.ndarray, np.where(along <= far, along, 2 * far - along))
        if loss.outputs == 1:
            return -np.logaddexp(0.0, scores[:, 0] * (1 - 2 * int(answer)))
        top = scores.max(axis=1)
        return scores[:, int(answer)] - top - np.log(np.exp(scores - top[:, None]).sum(axis=1))

    return score


def _refusals(run: Run, neighbours: Neighbours, present: np.ndarray, without: np.ndarray) -> Score:
    """Whether a model is released at all: one that is not finite is refused, and a refusal is seen
    by everybody."""

    def score(released: np.ndarray) -> np.ndarray:
        return np.asarray(
            np.isfinite(released.reshape(len(released), -1)).all(axis=1), dtype=np.float64
        )

    sign = np.sign(score(present).mean() - score(without).mean()) or 1.0
    return lambda released: sign * score(released)


ATTACKS = {
    attack.name: attack
    for attack in (
        Attack(
            "projection",
            "white box: the released parameters along the record's gradient",
            _projection,
        ),
        Attack(
            learned_scores.NAME,
            "all iterates: what each step added along the record's gradient",
            _trajectory,
            True,
        ),
        Attack(
            "learned",
            "white box: a linear discriminant learned on separate models",
            _attack_on_features(discriminant),
            True,
        ),
        Attack(
            "covariance",
            "white box: the same with the full covariance, over all steps where all are released: "
            "noise "
            "that is missing or repeated in some direction",
            _attack_on_features(partial(discriminant, shrink=0.0)),
            True,
        ),
        Attack(
            "likelihood",
            "white box: two Gaussians with their own covariances; it sees noise that depends on "
            "the data",
            _attack_on_features(likelihood),
            True,
        ),
        Attack(
            "coordinate",
            "white box: the mean or the spread of a single number",
            _attack_on_features(coordinate),
            True,
        ),
        Attack(
            "tails",
            "white box: values beyond all that other models reached; it sees bounded noise",
            _attack_on_features(outside),
            True,
        ),
        Attack(
            "nearest",
            "white box: how near the model is to others; it sees noise that repeats",
            _attack_on_features(nearest),
            True,
        ),
        Attack(
            "loss-threshold",
            "black box: the loss of the record under the released model",
            _loss_threshold,
        ),
        Attack(
            "refusals",
            "black box: whether a model is released at all, or refused as not finite",
            _refusals,
            True,
        ),
    )
}
PORTFOLIO = tuple(name for name in ATTACKS if name != "loss-threshold")
"""Attacks of an audit that is asked for no special one; what the loss of the record shows, the
projection shows too."""


def strongest(run: Run, neighbours: Neighbours) -> str:
    """The attack that knows most about these neighbours, and sees most of what the run releases."""
    if neighbours.direction is None:
        return "learned"
    return learned_scores.NAME if learned_scores.readable(run) else "projection"


def by_name(name: str) -> Attack:
    if name not in ATTACKS:
        raise InputError("attack", "must be one of " + ", ".join([*ATTACKS, "replay"]), name)
    return ATTACKS[name]


def choose_thresholds(
    present: np.ndarray, without: np.ndarray, trials: int, delta: float, failure: float
) -> tuple[float, float]:
    """Two thresholds from the pilot's scores: half way for the GDP test, and the best expected
    (eps, delta) statement.

    Expectations take both distributions as Gaussian with the pilot's medians and quartiles; any
    thresholds would be valid.
    """
    from scipy.special import ndtr  # pyright: ignore

    (m1, s1), (m0, s0) = _location(present), _location(without)
    middle = (m1 * s0 + m0 * s1) / (s0 + s1)
    grid = np.linspace(
        min(m0 - MARGIN * s0, m1 - MARGIN * s1), max(m0 + MARGIN * s0, m1 + MARGIN * s1), 2001
    )
    errors: list[np.ndarray] = [
        np.round(trials * ndtr(z)) for z in ((m0 - grid) / s0, (grid - m1) / s1)
    ]
    expected = epsilon_lower(Counts(errors[0], trials, errors[1], trials), delta, failure / 2)
    return float(middle), float(grid[int(np.argmax(expected))] if expected.max() > 0 else middle)


def _location(scores: np.ndarray) -> tuple[float, float]:
    low, middle, high = np.quantile(scores, [0.25, 0.5, 0.75])
    spread = (high - low) / 1.349 or float(scores.std())
    return float(middle), float(max(spread, 1e-12 * max(abs(middle), 1.0), 1e-300))


def count(present: np.ndarray, without: np.ndarray, threshold: float) -> Counts:
    """Errors of "in where the score exceeds the threshold"; a score that is not a number says "in"."""
    return Counts(
        int((~(without <= threshold)).sum()),
        len(without),
        int((present <= threshold).sum()),
        len(present),
    )


# The replay attack: where the noise key can be guessed, train on both data sets with it again and
# compare.  It is the trainer's own choice of a key that is attacked, so models are fitted one by
# one, without a key.

NAME = "replay"
GUESSES = tuple(range(100))
"""Seeds that are tried: small numbers, which people choose, and zero, which programs choose."""
TOLERANCE = 1e-9
"""Relative distance below which two models are the same; noise of its own keeps models far further
apart."""


def scores(
    run: Run,
    neighbours: Neighbours,
    trials: int,
    progress: Progress | None = None,
    guesses: tuple[int, ...] = GUESSES,
    size: int = len(GUESSES),
) -> tuple[np.ndarray, np.ndarray]:
    """+1 where a guessed key gives the model on the data set with the record, -1 where on the other
    one, else 0."""
    keys = np.stack([key_from_seed(seed) for seed in guesses])
    both = (neighbours.with_record, neighbours.without_record)
    known = [
        last_of(run, train_in_batches(run, data_set, Trainer(run).fit_many, keys, size))
        for data_set in both
    ]
    clock, verdicts = Clock(2 * trials, progress), (list[float](), list[float]())
    for place, data_set in enumerate(both):
        for index in range(trials):
            interrupts.check()
            verdicts[place].append(_verdict(_release(run, data_set), known))
            done = place * trials + index + 1
            clock.report(done, done)
    return np.array(verdicts[0]), np.array(verdicts[1])


def _release(run: Run, data_set: DataSet) -> np.ndarray:
    """One model as a user trains it."""

    def train(
        features: np.ndarray, target: object, _: object, absent: Sequence[int] = ()
    ) -> np.ndarray:
        return Trainer(run).fit(features, target, absent=absent)

    return last_of(run, execute(run, data_set, train, None)[None])[0]


def last_of(run: Run, models: np.ndarray) -> np.ndarray:
    """Last iterates (models, k, d + 1) of what a run releases."""
    return models[:, -1] if run.release == "all" else models


def _verdict(model: np.ndarray, known: list[np.ndarray]) -> float:
    gaps = [
        float(np.abs(part - model).max(axis=tuple(range(1, part.ndim))).min()) for part in known
    ]
    if min(gaps) > TOLERANCE * max(float(np.abs(model).max()), 1e-300):
        return 0.0
    return 1.0 if gaps[0] <= gaps[1] else -1.0
