"""What the scores of a linear model mean: labels, a number in a public range, or nothing but
themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from lastiterate.data.schema import Schema
from lastiterate.errors import InputError
from lastiterate.run.probability_calibration import weighs_classes
from lastiterate.run.run import Run
from lastiterate.run.validation import NUMBERS, to_floats

LABELS = {str, int, float, bool}


@dataclass(frozen=True)
class Labels:
    """The public labels, in the order of their class indices; one score for two of them, else one
    score each.

    ``threshold``: of two, the probability from which on the second is the answer (``None``: the
    more probable one is).
    """

    values: tuple[str | int | float, ...]
    threshold: float | None = None

    def __post_init__(self) -> None:
        threshold_of(self.threshold, len(self.values))

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Softmax of scores (n, k), shape (n, classes); a single score stands against 0."""
        logits = (
            scores
            if scores.shape[1] > 1
            else np.column_stack((np.zeros(len(scores)), scores[:, 0]))
        )
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def of(self, scores: np.ndarray) -> np.ndarray:
        """The most probable label, or of two the second where its probability reaches the
        threshold."""
        return np.asarray(self.values)[pick_class(self.probabilities(scores), self.threshold)]

    def words(self, outputs: int) -> str:
        return f"{len(self.values)} classes"

    @property
    def about_threshold(self) -> str:
        """From which probability on the second label is the prediction; empty for the more probable
        one."""
        if self.threshold is None:
            return ""
        return f"{self.values[1]} from probability {self.threshold:.4g} on, else {self.values[0]}"


def pick_class(chances: np.ndarray, threshold: float | None) -> np.ndarray:
    """Class indices (n,) that probabilities (n, classes) make the answer."""
    return chances.argmax(axis=1) if threshold is None else (chances[:, 1] >= threshold).astype(int)


def threshold_of(given: Any, classes: int) -> float | None:
    """A threshold between 0 and 1 of two classes, stated itself or by the costs of a false alarm
    and of a miss."""
    if given is None:
        return None
    if classes != 2:
        raise InputError(
            "threshold",
            "is for two classes",
            f"{classes} classes" if classes else "a regression",
            "leave it out",
        )
    stated = list(cast("Sequence[Any]", given)) if isinstance(given, tuple | list) else [given]
    costs = [float(cost) for cost in stated if type(cost) in NUMBERS and 0 < cost < math.inf]
    share = costs[0] / sum(costs) if len(costs) == 2 else costs[0] if len(costs) == 1 else math.nan
    if len(costs) != len(stated) or not 0 < share < 1:
        raise InputError(
            "threshold",
            "must lie between 0 and 1, or be the positive costs of a false alarm and of a miss",
            cast(object, given),
            "write a number such as 0.05, or the two costs as a tuple such as (1, 20)"
            if isinstance(given, str)
            else "with costs a and m it is a / (a + m)",
        )
    return share


def check_costs(given: Any, run: Run, remedy: str) -> None:
    """Refuse a threshold that is stated by costs for scores that are not frequencies among the
    records: nothing made probabilities of them, or classes weigh differently."""
    weights = run.loss.class_weights
    if weights is not None and (len(weights) != 2 or not weighs_classes(run)):
        weights = None
    if not isinstance(given, tuple | list) or (run.probability_calibration and weights is None):
        return
    share, (alarm, miss) = threshold_of(given, 2), cast("Sequence[float]", given)
    costs = f"must be one number here: costs (a false alarm {alarm:g}, a miss {miss:g}) speak of "
    if run.probability_calibration is None:
        raise InputError(
            "threshold",
            f"{costs}calibrated probabilities, and these scores rank records, and nothing more",
            None,
            f"{remedy}state threshold={share:.4g}, a place in this ranking",
        )
    assert share is not None and weights is not None
    one, two = weights
    weighted = share * two / (share * two + (1 - share) * one)
    raise InputError(
        "threshold",
        f"{costs}frequencies among the records, and the class weights {one:g} and {two:g} made "
        "these probabilities those of weighted records",
        None,
        f"state threshold={weighted:.4g}, which is what the costs say of weighted records, or train "
        "without class weights",
    )


@dataclass(frozen=True)
class Range:
    """A number between public ends: a score of -1 is the low one, 1 the high one, and nothing lies
    beyond."""

    low: float
    high: float

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """None: shape (n, 0)."""
        return np.empty((len(scores), 0))

    def of(self, scores: np.ndarray) -> np.ndarray:
        return self.low + (np.clip(scores[:, 0], -1, 1) + 1) * (self.high - self.low) / 2

    def scale(self, target: np.ndarray) -> np.ndarray:
        """Targets in units in which the range is [-1, 1]; those outside of it stay outside."""
        return 2 * (target - self.low) / (self.high - self.low) - 1

    def scale_target(self, target: np.ndarray) -> np.ndarray:
        """Targets clipped to the range and moved to [-1, 1]."""
        return self.scale(np.clip(target, self.low, self.high))

    def words(self, outputs: int) -> str:
        return f"a number in [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class Scores:
    """The score itself, in the units of the target that was trained on."""

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """None: shape (n, 0)."""
        return np.empty((len(scores), 0))

    def of(self, scores: np.ndarray) -> np.ndarray:
        return scores[:, 0]

    def words(self, outputs: int) -> str:
        return "a number"


Answers = Labels | Range | Scores


def as_json(answers: Answers) -> dict[str, Any]:
    match answers:
        case Labels(values, None):
            return {"labels": list(values)}
        case Labels(values, threshold):
            return {"labels": list(values), "threshold": threshold}
        case Range(low, high):
            return {"range": [low, high]}
        case Scores():
            return {}


def from_json(stored: object) -> Answers:
    """What ``as_json`` wrote; everything else is refused."""
    match cast(Any, stored):
        case {"labels": [_, _, *_] as labels, **rest} if {type(x) for x in labels} <= LABELS and (
            not rest or (set(rest) == {"threshold"} and type(rest["threshold"]) is float)
        ):
            return Labels(tuple(labels), rest.get("threshold"))
        case {"range": [low, high], **rest} if (
            not rest and type(low) is type(high) is float and low < high
        ):
            return Range(low, high)
        case dict() if not stored:
            return Scores()
        case _:
            raise InputError(
                "answers",
                "must be labels, or a range [low, high] with low < high, or nothing",
                None,
                "model.json is damaged",
            )


def check_answers(schema: Schema | None, answers: Answers) -> None:
    """Refuse answers that a model's schema does not know: its classes (or their indices), its range
    (or scores)."""
    if schema is None:
        return
    if schema.target_range is None:
        known = (Labels(schema.classes), Labels(tuple(range(len(schema.classes)))))
    else:
        known = (Range(float(schema.target_range[0]), float(schema.target_range[1])), Scores())
    plain = replace(answers, threshold=None) if isinstance(answers, Labels) else answers
    if plain not in known:
        raise InputError(
            "answers",
            "must be the classes, or the range, of the model's schema",
            None,
            "model.json says two things",
        )


def check_range(given: Any, argument: str) -> Range:
    """A public range of finite numbers, (low, high) with low < high."""
    ends = to_floats(argument, given)
    if len(ends) != 2:
        raise InputError(
            argument, "must be two numbers, (low, high)", ends, "state the target's public range"
        )
    low, high = ends
    if not (math.isfinite(high - low) and low < high):
        raise InputError(
            argument,
            "must be finite numbers low < high",
            (low, high),
            "state the target's public range",
        )
    return Range(low, high)
