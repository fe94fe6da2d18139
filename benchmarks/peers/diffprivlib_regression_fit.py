"""Linear regression by diffprivlib; a child of regression.py, in diffprivlib's environment.

python -m benchmarks.peers.diffprivlib_regression_fit ARRAYS.npz

Needs ``pip install diffprivlib 'scikit-learn<1.6'``, not lastiterate. ``LinearRegression`` (the
functional mechanism of Zhang et al. 2012) promises pure epsilon-DP. It takes a range for every
feature and for the target, all public here.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import diffprivlib
import numpy as np
import sklearn
from diffprivlib.models import LinearRegression

from benchmarks.peers.child_process import serve


def main(path: str) -> None:
    """Answer with R^2 on the test part; predictions are clipped to the public range."""
    warnings.simplefilter("ignore")
    arrays = dict(np.load(path))
    rows, target = arrays["rows"].astype(np.float64), arrays["target"].astype(np.float64)

    def answer(*, seed: int, epsilon: float) -> dict[str, Any]:
        kept, held = arrays[f"train_{seed}"], arrays[f"test_{seed}"]
        model = LinearRegression(
            epsilon=epsilon,
            bounds_X=(arrays["low"], arrays["high"]),
            bounds_y=(-1.0, 1.0),
            random_state=seed,
        )
        model.fit(rows[kept], target[kept])
        found, truth = np.clip(model.predict(rows[held]), -1, 1), target[held]
        return {"r2": float(1 - ((truth - found) ** 2).sum() / ((truth - truth.mean()) ** 2).sum())}

    serve(
        {"name": f"diffprivlib {diffprivlib.__version__}, scikit-learn {sklearn.__version__}"},
        answer,
    )


if __name__ == "__main__":
    main(sys.argv[1])
