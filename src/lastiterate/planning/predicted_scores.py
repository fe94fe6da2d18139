"""What a predicted risk means for a classifier: excess log loss of its probabilities, and accuracy of its answers.

On the reference problem the score of a decision between two classes is s ~ N(0, MARGIN^2), the second one has the
probability sigma(s), and what is released gives s + e with e ~ N(0, v) independent of it, v = 2 risk / (outputs
curvature) for a risk of curvature times v / 2 an output. The answer is right with probability

    E [sigma(|s|) Phi(|s| / sqrt v) + (1 - sigma(|s|)) Phi(-|s| / sqrt v)].

Probabilities that are not calibrated are those of scores ``STEEP`` times too large, which adds E KL(sigma(s), sigma(
STEEP s)) to the log loss. Nothing is measured on anybody's data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lastiterate.planning.reference_problem import MARGIN
from lastiterate.run.run import Run

STEEP = 2.0
"""Scores of closely clipped contributions (docs/theorems/probabilities)."""
POINTS, FARTHEST = 2000, 8.0
"""Scores that the mean is taken over, and the last one in standard deviations."""


@dataclass(frozen=True)
class PredictedScores:
    """``log_loss``: above the best possible one. ``accuracy``: below the best possible one; both at least 0."""

    log_loss: float
    accuracy: float


def predicted_scores(run: Run, risk: float) -> PredictedScores | None:
    """What a plan's predicted risk means; ``None`` where no classes are learned."""
    classes = run.loss.target_classes
    if not classes:
        return None
    outputs = run.loss.outputs or 1
    variance = 2 * risk / (outputs * (0.25 if classes == 2 else 1 / classes))
    added = 0.0 if run.calibration is not None else _steepness()
    return PredictedScores(risk + added, _accuracy(0.0) - _accuracy(variance))


def _scores() -> tuple[np.ndarray, np.ndarray]:
    """Sizes of scores, and their weights."""
    nodes = (np.arange(POINTS) + 0.5) * FARTHEST / POINTS
    weights = np.exp(-nodes**2 / 2)
    return MARGIN * nodes, weights / weights.sum()


def _accuracy(variance: float) -> float:
    """Of answers whose scores have errors of this variance."""
    sizes, weights = _scores()
    right = 1 / (1 + np.exp(-sizes))
    if not math.isfinite(variance):
        return 0.5
    kept = np.ones_like(sizes) if variance == 0 else np.array(
        [0.5 * math.erfc(-size / math.sqrt(2 * variance)) for size in sizes])
    return float(weights @ (right * kept + (1 - right) * (1 - kept)))


@lru_cache(maxsize=1)
def _steepness() -> float:
    """Mean divergence of probabilities from those of scores that are ``STEEP`` times as large."""
    sizes, weights = _scores()
    chance = 1 / (1 + np.exp(-sizes))
    losses = [np.logaddexp(0, -factor * sizes) * chance + np.logaddexp(0, factor * sizes) * (1 - chance)
              for factor in (STEEP, 1.0)]
    return float(weights @ (losses[0] - losses[1]))
