"""How many public gates, on synthetic tables only; and gated rows against the default map on sets
of the board.

    python -m benchmarks.utility.gated_tables                              # synthetic: what the constants come from
    python -m benchmarks.utility.gated_tables DATA_DIR --log FILE.jsonl [--sets adult breast_cancer products mnist]

Synthetic scores are lines, products of all pairs of numbers, networks, or clusters of records.
There a fit is noisy accelerated descent on unit rows, the best of 16, 48 and 160 steps, which costs
no planning. Sets of the board are fitted by ``DPLogisticRegression`` with its defaults, delta 1e-5,
zero-out; seeds vary the split, or the noise where a set has a test part. ``--log`` keeps every
finished fit, so that an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.utility.board_sets import SETS, BoardSet
from lastiterate.estimators import DPLogisticRegression
from lastiterate.features import Gated
from lastiterate.features.column_maps import RowForm
from lastiterate.features.map_registry import maps_named
from lastiterate.features.record_fields import Number

MU = {0.3: 0.08, 1.0: 0.235, 3.0: 0.62}  #: of Gaussian differential privacy, about, at delta 1e-6
TEST, GATES, KINDS = 4000, (0, 4, 8, 16, 32, 64), ("lines", "products", "net", "clusters")
SIZES = ((2000, 8), (8000, 8), (8000, 24))  #: records and numbers
MAPS = ("auto", "gated", "curves,gated")


def made(rng: np.random.Generator, n: int, d: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n, d) in [-1, 1] and the chance of the second class (n,)."""
    x = np.tanh(
        (rng.normal(size=(n, 2)) @ rng.normal(size=(2, d)) * 0.4 + rng.normal(size=(n, d))) * 0.8
    )
    match kind:
        case "lines":
            score = x @ rng.normal(size=d)
        case "products":
            score = 1.5 * sum(rng.normal() * x[:, i] * x[:, j] for i in range(d) for j in range(i))
            score = score + 0.5 * x @ rng.normal(size=d)
        case "net":
            hidden = np.maximum(x @ rng.normal(size=(d, 8)) + 0.3 * rng.normal(size=8), 0)
            score = hidden @ rng.normal(size=8)
        case _:
            centres, classes = rng.uniform(-0.8, 0.8, size=(10, d)), rng.integers(0, 2, 10)
            x = np.clip(centres[rng.integers(0, 10, n)] + 0.25 * rng.normal(size=(n, d)), -1, 1)
            near = -((x[:, None] - centres) ** 2).sum(axis=2) / (2 * 0.25**2)
            weight = np.exp(near - near.max(axis=1, keepdims=True))
            return x, np.clip(weight @ classes / weight.sum(axis=1), 0.03, 0.97)
    return x, 1 / (1 + np.exp(-2.5 * (score - score.mean()) / score.std()))


def descended(
    x: np.ndarray, y: np.ndarray, mu: float, steps: int, rng: np.random.Generator
) -> np.ndarray:
    """Weights of unit rows after accelerated descent with noise for ``mu``."""
    weights, ahead, noise = np.zeros(x.shape[1]), np.zeros(x.shape[1]), np.sqrt(steps) / mu / len(x)
    for step in range(steps):
        slope = x.T @ (1 / (1 + np.exp(-(x @ ahead))) - y) / len(x) + 1e-4 * ahead
        moved = ahead - 4 * (slope + noise * rng.normal(size=x.shape[1]))
        weights, ahead = moved, moved + step / (step + 3) * (moved - weights)
    return weights


def measured(
    n: int, d: int, kind: str, gates: int, epsilon: float, seed: int
) -> tuple[float, float]:
    """AUROC and accuracy below the best possible one, of the best number of steps."""
    x, chance = made(np.random.default_rng(seed), n + TEST, d, kind)
    form = RowForm(tuple(Number(f"n{i}") for i in range(d)), (Gated(gates),) if gates else ())
    rows = form.rows(list(x.T))
    rows = np.column_stack(
        (rows / np.linalg.norm(rows, axis=1, keepdims=True), np.ones(len(rows)))
    ) / np.sqrt(2)
    y = np.random.default_rng(seed + 77).random(len(x)) < chance
    best = (-1.0, 0.0)
    for steps in (16, 48, 160):
        scores = rows[n:] @ descended(
            rows[:n], y[:n], MU[epsilon], steps, np.random.default_rng(seed)
        )
        right = np.where(scores > 0, chance[n:], 1 - chance[n:])
        below = float((np.maximum(chance, 1 - chance)[n:] - right).mean())
        best = max(best, (float(roc_auc_score(y[n:], scores)), below))
    return best


def fitted(data: BoardSet, features: str, epsilon: float, seed: int) -> dict[str, Any]:
    """Scores on the test part, the width of a row, and processor seconds of a fit."""
    train, test = data.parts(seed)
    began = time.process_time()
    model = DPLogisticRegression(
        epsilon=epsilon, delta=1e-5, schema=data.schema, features=features, random_state=seed
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one seed for several sets
        labels = np.array(data.schema.classes)
        model.fit(train.records, labels[train.y])
    seconds, chances = (
        time.process_time() - began,
        np.asarray(model.predict_proba(test.records), np.float64),
    )
    chances = chances[
        :, [list(map(str, model.classes_)).index(label) for label in data.schema.classes]
    ]
    chances /= chances.sum(axis=1, keepdims=True)
    auroc = roc_auc_score(
        test.y, chances[:, 1] if data.classes == 2 else chances, multi_class="ovr"
    )
    return {
        "accuracy": float((chances.argmax(axis=1) == test.y).mean()),
        "auroc": float(auroc),
        "processor": seconds,
        "width": model.model_.weights.shape[1],
        "plan": "" if model.choice_ is None else model.choice_.best.name,
    }


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", nargs="?", type=Path)
    given.add_argument("--log", type=Path, default=Path("gated_tables.jsonl"))
    given.add_argument(
        "--sets", nargs="*", choices=sorted(SETS), default=["breast_cancer", "products", "adult"]
    )
    given.add_argument("--maps", nargs="*", default=list(MAPS))
    given.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 3.0])
    given.add_argument("--seeds", type=int, default=3)
    asked = given.parse_args()
    if asked.folder is None:
        for (n, d), kind, gates in (
            (size, kind, gates) for size in SIZES for kind in KINDS for gates in GATES
        ):
            found = np.mean([measured(n, d, kind, gates, 1.0, seed) for seed in range(2)], axis=0)
            print(
                f"{n:6d} x {d:<3d} {kind:9s} {gates or 'plain':>6} AUROC {found[0]:.3f}, "
                f"{found[1]:.4f} below best",
                flush=True,
            )
        return
    for name in asked.maps:
        if name not in ("auto", "plain"):
            maps_named(name)
    lines = asked.log.read_text().splitlines() if asked.log.exists() else []
    done = {(fit["set"], fit["map"], fit["epsilon"], fit["seed"]) for fit in map(json.loads, lines)}
    for short in asked.sets:
        data = SETS[short](asked.folder)
        for key in (
            (short, name, epsilon, seed)
            for seed in range(asked.seeds)
            for epsilon in asked.epsilons
            for name in asked.maps
            if (short, name, epsilon, seed) not in done
        ):
            fit = dict(zip(("set", "map", "epsilon", "seed"), key, strict=True)) | fitted(
                data, *key[1:]
            )
            with asked.log.open("a") as out:
                out.write(json.dumps(fit) + "\n")
            print(fit, flush=True)


if __name__ == "__main__":
    main()
