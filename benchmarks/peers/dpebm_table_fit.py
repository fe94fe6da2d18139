"""Differentially private explainable boosting (DP-EBM); a child of board.py, in the environment of
interpret.

python -m benchmarks.peers.dpebm_table_fit ARRAYS.npz          needs pip install interpret-core==0.7.8, not lastiterate

Nori, Caruana, Bu, Shen and Kulkarni, "Accuracy, interpretability, and differential privacy via
explainable boosting" (ICML 2021), with the library's defaults, which is how its authors measured
it. It is told the same public facts as everybody: which columns are categories, and the ranges of
the others, whose values are scaled to [-1, 1] by the schema (by their logarithm where the schema
says so). Add-remove neighbours. Two classes only.

Arrays: ``numbers`` (n, p), ``codes`` (n, q) of categories as text, ``y`` (n,); questions name train
and test records.
"""

from __future__ import annotations

import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

import numpy as np
from interpret.privacy import DPExplainableBoostingClassifier

from benchmarks.peers.child_process import serve
from benchmarks.peers.measures import measures


def main(path: str) -> None:
    """Answer with the measures and the seconds of a fit."""
    warnings.simplefilter("ignore")
    arrays = dict(np.load(path))
    count, more = arrays["numbers"].shape[1], arrays["codes"].shape[1]
    rows = np.concatenate(
        (arrays["numbers"].astype(object), arrays["codes"].astype(object)), axis=1
    )
    kinds = ["continuous"] * count + ["nominal"] * more
    bounds = dict.fromkeys(range(count), (-1.0, 1.0))

    def answer(*, seed: int, epsilon: float, delta: float) -> dict[str, Any]:
        train, test = arrays[f"train_{seed}"], arrays[f"test_{seed}"]
        model = DPExplainableBoostingClassifier(
            feature_types=kinds,
            epsilon=epsilon,
            delta=delta,
            n_jobs=1,
            privacy_bounds=bounds,
            random_state=seed,
        )
        began, processor = time.perf_counter(), time.process_time()
        model.fit(rows[train], arrays["y"][train])
        found = {
            "seconds": time.perf_counter() - began,
            "processor": time.process_time() - processor,
        }
        return found | measures(arrays["y"][test], model.predict_proba(rows[test]))

    serve({"name": f"interpret {version('interpret-core')}"}, answer)


if __name__ == "__main__":
    main(sys.argv[1])
