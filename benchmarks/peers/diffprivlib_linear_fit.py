"""Logistic regression by diffprivlib; a child of automatic_plan_peers.py, in diffprivlib's
environment.

python -m benchmarks.peers.diffprivlib_linear_fit ARRAYS.npz

Needs ``pip install diffprivlib 'scikit-learn<1.6'``, not lastiterate.

Questions and arrays as in opacus_linear_fit.py. Objective perturbation (Chaudhuri, Monteleoni and
Sarwate 2011) by ``diffprivlib.models.LogisticRegression``: pure epsilon-DP, replace-one as its
authors state it, one-vs-rest with epsilon / classes each where there are more than two classes. The
guarantee is about the exact minimiser; the library returns what L-BFGS reached.
"""

from __future__ import annotations

import sys
import time
import warnings
from functools import lru_cache
from typing import Any

import diffprivlib
import numpy as np
import sklearn
from diffprivlib.models import LogisticRegression

from benchmarks.peers.child_process import serve
from benchmarks.peers.measures import measures


def main(path: str) -> None:
    """Answer with accuracy, AUROC and log loss."""
    warnings.simplefilter("ignore")
    if tuple(map(int, sklearn.__version__.split(".")[:2])) >= (1, 6):
        sys.exit(
            f"diffprivlib fails with scikit-learn {sklearn.__version__}: pip install "
            f"'scikit-learn<1.6'"
        )
    arrays = dict(np.load(path))
    # the constant column is regularised like the rest; divided by the longest possible row, so that
    # data_norm = 1
    constant = float(arrays["rows"][0, -1])
    longest = float(np.hypot(1.0, constant)) * (1 + 1e-6)

    def shorter(rows: np.ndarray, norm: float) -> np.ndarray:
        """Rows as if they had been divided by ``norm`` times as much, scaled down to norm 1 where
        longer."""
        free = rows[:, :-1].astype(np.float64) / norm
        free /= np.maximum(1.0, np.linalg.norm(free, axis=1, keepdims=True))
        return np.column_stack((free, np.full(len(free), constant))) / longest

    @lru_cache(maxsize=2)
    def load(seed: int, norm: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        kept, held = arrays[f"train_{seed}"], arrays.get(f"test_{seed}")
        test = (
            (arrays["test_rows"], arrays["test_target"])
            if held is None
            else (arrays["rows"][held], arrays["target"][held])
        )
        return (
            shorter(arrays["rows"][kept], norm),
            arrays["target"][kept],
            shorter(test[0], norm),
            test[1],
        )

    def answer(*, seed: int, epsilon: float, C: float, norm: float) -> dict[str, Any]:
        x, y, x_test, y_test = load(seed, norm)
        model = LogisticRegression(
            epsilon=epsilon, data_norm=1.0, C=C, fit_intercept=False, random_state=seed
        )
        began = time.process_time()
        model.fit(x, y)
        return {"cpu_seconds": time.process_time() - began} | measures(
            y_test.astype(int), model.predict_proba(x_test)
        )

    serve(
        {"name": f"diffprivlib {diffprivlib.__version__}, scikit-learn {sklearn.__version__}"},
        answer,
    )


if __name__ == "__main__":
    main(sys.argv[1])
