"""Image sets through scattering: accuracy, AUROC, log loss and seconds of ``DPLogisticRegression``
with its defaults.

python -m benchmarks.utility.scattered_images DATA_DIR --log benchmarks/scattered_images.jsonl
[--sets ...] [--seeds N]

DATA_DIR: see data_sets.py. delta 1e-5, zero-out. A set with a test part of its own is trained on
its whole train part, and seeds vary the noise; digits is split at random, four fifths to train.
"pixels": the same estimator without a map. Nothing is chosen on these sets: the map's rule was
compared on synthetic pictures (image_rules.py). ``--log`` keeps every finished fit, one JSON object
a line, so that an interrupted run goes on; ``--table`` prints it and fits nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import log_loss, roc_auc_score

from benchmarks.utility.data_sets import Set, Split, load, split
from lastiterate.estimators import DPLogisticRegression
from lastiterate.features import Scattering

DELTA = 1e-5
EPSILONS = (0.3, 1.0, 3.0, 8.0)
SETS = ("digits", "pneumonia", "mnist")
MAPS = ("scattering", "pixels")


def scattered(data: Set) -> Set:
    """The set with rows of scattering coefficients; its pixels are those of square grey images."""

    def rows(x: np.ndarray) -> np.ndarray:
        side = math.isqrt(x.shape[1])
        low = -1.0 if x.min() < 0 else 0.0  # a bundled set is scaled to [-1, 1]
        return Scattering().apply(
            ((x - low) / (1 - low)).reshape(-1, side, side).astype(np.float32)
        )

    return Set(
        f"{data.name}, scattering",
        rows(data.x),
        data.y,
        None if data.x_test is None else rows(data.x_test),
        data.y_test,
        1.0,
    )


def parts(data: Set, seed: int) -> Split:
    """Train and test records of one seed."""
    if data.x_test is None or data.y_test is None:
        return split(data, seed)
    return Split(data.x, data.y, data.x_test, data.y_test)


def measured(data: Set, epsilon: float, seed: int) -> dict[str, Any]:
    """Scores on the test part and seconds of one fit."""
    part = parts(data, seed)
    model = DPLogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        row_norm=data.row_norm,
        classes=range(data.classes),
        random_state=seed,
    )
    began, processor = time.perf_counter(), time.process_time()
    model.fit(part.x, part.y)
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    chances = np.asarray(model.predict_proba(part.x_test), np.float64)
    chances /= chances.sum(axis=1, keepdims=True)
    score = chances[:, 1] if data.classes == 2 else chances
    return {
        "accuracy": float((chances.argmax(axis=1) == part.y_test).mean()),
        "auroc": float(roc_auc_score(part.y_test, score, multi_class="ovr")),
        "log_loss": float(log_loss(part.y_test, chances, labels=range(data.classes))),
        "seconds": seconds,
        "processor": processor,
        "n": len(part.x),
        "features": data.x.shape[1],
        "plan": model.choice_.best.name if model.choice_ is not None else "",
    }


def table(done: dict[tuple[Any, ...], dict[str, Any]]) -> str:
    """Medians with interquartile ranges, a row for each set, map and epsilon."""
    lines = [
        "| set | rows | epsilon | seeds | plan | accuracy | AUROC | log loss | seconds a fit "
        "(processor) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key in sorted(
        {key[:3] for key in done}, key=lambda k: (SETS.index(k[0]), MAPS.index(k[1]), k[2])
    ):
        fits = [fit for name, fit in done.items() if name[:3] == key]

        def spread(what: str, fits: list[dict[str, Any]] = fits) -> str:
            low, middle, high = np.percentile([fit[what] for fit in fits], (25, 50, 75))
            return f"{middle:.4f} ({high - low:.4f})"

        seconds, processor = (
            np.median([fit[what] for fit in fits]) for what in ("seconds", "processor")
        )
        lines.append(
            f"| {key[0]} | {key[1]}, {fits[0]['features']} | {key[2]:g} | {len(fits)} | "
            f"{fits[0]['plan']} | "
            f"{spread('accuracy')} | {spread('auroc')} | {spread('log_loss')} | {seconds:.2g} "
            f"({processor:.2g}) |"
        )
    return "\n".join(lines)


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path)
    given.add_argument(
        "--log",
        type=Path,
        default=Path("scattered_images.jsonl"),
        help="finished fits, to resume from",
    )
    given.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    given.add_argument("--maps", nargs="*", choices=MAPS, default=list(MAPS))
    given.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--table", action="store_true")
    asked = given.parse_args()
    lines = asked.log.read_text().splitlines() if asked.log.exists() else []
    done = {
        (fit["set"], fit["map"], fit["epsilon"], fit["seed"]): fit for fit in map(json.loads, lines)
    }
    for short in () if asked.table else asked.sets:
        plain = load(short, asked.folder)
        for name in asked.maps:
            data = scattered(plain) if name == "scattering" else plain
            for seed in range(asked.seeds):
                for epsilon in asked.epsilons:
                    key = (short, name, epsilon, seed)
                    if key not in done:
                        done[key] = dict(
                            zip(("set", "map", "epsilon", "seed"), key, strict=True)
                        ) | measured(data, epsilon, seed)
                        with asked.log.open("a") as out:
                            out.write(json.dumps(done[key]) + "\n")
    print(table(done))


if __name__ == "__main__":
    main()
