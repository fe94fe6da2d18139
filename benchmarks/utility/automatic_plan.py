"""Accuracy of the automatic plan at epsilon 1, delta 1e-5, zero-out; splits and noise varied over 10 seeds.

python -m benchmarks.utility.automatic_plan DATA_DIR [SEEDS]      DATA_DIR: see data_sets.py (mnist/, adult/, *.npz)
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.utility.data_sets import LOADERS, load, split
from lastiterate.estimators import DPLogisticRegression


def main(folder: Path, seeds: int) -> None:
    """Print one row per set. Where a set has its own test part, training takes a random 90 % of the train part."""
    print("| set | n | accuracy, mean | sd | replace-one epsilon | theorem | steps | seconds a fit |")
    print("|---|---|---|---|---|---|---|---|")
    for short in LOADERS:
        if short not in ("digits", "breast_cancer") and not folder.is_dir():
            continue
        data, found, taken = load(short, folder), [], []
        for seed in range(seeds):
            part = split(data, seed)
            model = DPLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=data.row_norm, classes=range(data.classes),
                                         random_state=seed)
            began = time.perf_counter()
            model.fit(part.x, part.y)
            taken.append(time.perf_counter() - began)
            found.append(model.score(part.x_test, part.y_test))
        certificate = model.certificate_
        print(f"| {data.name} | {certificate.run.n} | {np.mean(found):.4f} | {np.std(found):.4f} | "
              f"{certificate.replace_one_epsilon(1e-5):.3f} | {certificate.best(1e-5).theorem.name} | "
              f"{certificate.run.steps} | {np.median(taken):.1f} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("data"), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
