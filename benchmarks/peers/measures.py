"""What every method on the leaderboard is measured by; the environments of other libraries import
it too."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import roc_auc_score

LEAST = 1e-12
"""Probabilities count as at least this much in a log loss, so that a sure mistake stays a number.
"""


def measures(y: np.ndarray, chances: np.ndarray) -> dict[str, float]:
    """Accuracy, AUROC (of the second class, or the mean over classes against the rest) and log
    loss.

    ``y``: class indices (n,). ``chances``: (n, classes).
    """
    chances = np.asarray(chances, np.float64)
    chances = chances / chances.sum(axis=1, keepdims=True)
    auroc = roc_auc_score(y, chances[:, 1] if chances.shape[1] == 2 else chances, multi_class="ovr")
    given = np.clip(chances[np.arange(len(y)), y], LEAST, 1)
    return {
        "accuracy": float((chances.argmax(axis=1) == y).mean()),
        "auroc": float(auroc),
        "log_loss": float(-np.log(given).mean()),
    }
