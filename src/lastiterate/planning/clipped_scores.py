"""How much too steep the scores of closely clipped contributions are, whatever the data: a public factor.

With scores s ~ N(0, MARGIN^2) between two classes, and y = 1 with probability sigma(s), a long training on residuals
that are clipped to c ends near a s, where E s clip(sigma(a s) - y, -c, c) = 0: a = 2.7 for c = 0.1. A short one ends
before scores are steep, and wide margins make them less so: the factor is halfway between 1 and 1/a, on a logarithmic
scale. Nothing is measured on anybody's data (docs/theorems/probabilities).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lastiterate.curves.roots import smallest_true
from lastiterate.planning.reference_problem import MARGIN
from lastiterate.run.losses import Logistic, Softmax
from lastiterate.run.run import Run

POINTS, FARTHEST = 2001, 8.0
"""Scores that the mean is taken over, and the last ones in standard deviations."""
STEEPEST, FOUND = 100.0, 1e-4


def public_slope(run: Run) -> float:
    """What a classifier's scores are multiplied by where records are too few to measure it; 1 where nothing is clipped
    or capped."""
    assert isinstance(run.loss, Logistic | Softmax)
    clip = 1.0 if run.clip is None else run.clip / run.loss.facts().fact("lipschitz")
    cap = 1.0 if run.loss.cap is None else run.loss.cap
    return slope_of(min(clip, cap, 1.0))


@lru_cache(maxsize=64)
def slope_of(clip: float) -> float:
    """1 / sqrt a for residuals clipped to ``clip`` in (0, 1], in hundredths."""
    if clip == 1:
        return 1.0
    places = np.linspace(-FARTHEST, FARTHEST, POINTS)
    weights, scores = np.exp(-places**2 / 2), MARGIN * places
    weights /= weights.sum()
    chance = (1 + np.tanh(scores / 2)) / 2

    def too_steep(steep: float) -> bool:
        said = (1 + np.tanh(steep * scores / 2)) / 2
        residual = chance * np.clip(said - 1, -clip, clip) + (1 - chance) * np.clip(said, -clip, clip)
        return float(weights @ (scores * residual)) >= 0

    return max(0.01, round(smallest_true(too_steep, 1.0, STEEPEST, FOUND) ** -0.5, 2))
