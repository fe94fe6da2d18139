"""Rules that make rows of scattering coefficients, compared on synthetic pictures; no real set is
looked at.

python -m benchmarks.utility.image_rules [--rules ...] [--families ...] [--records N ...]
[--epsilons ...]

Prints test accuracy (two classes: AUROC) of the automatic plan at delta 1e-5, one line for each
rule and family. Colour images have 2 x 2 cells, grey ones 4 x 4. "pixels": the images themselves.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.utility.planner_unseen import guessed
from benchmarks.utility.synthetic_images import FAMILIES, TEST
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.features.scattering import CENTRE, STEEP, orders, pool_cells
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

DELTA, CHUNK = 1e-5, 16
ORDERS = np.array(orders(2, 8))


def coefficients(images: np.ndarray) -> np.ndarray:
    """(n, colours, 81, cells, cells) of images (n, side, side, colours)."""
    n, side, _, colours = images.shape
    cells = 4 if colours == 1 else 2
    parts = [
        pool_cells(np.moveaxis(images[at : at + CHUNK], 3, 1).reshape(-1, side, side), 2, 8, cells)
        for at in range(0, n, CHUNK)
    ]
    return np.concatenate(parts).reshape(n, colours, len(ORDERS), cells, cells)


def unit(rows: np.ndarray) -> np.ndarray:
    flat = rows.reshape(len(rows), -1)
    return flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-6)


def own_means(found: np.ndarray, divided: bool = False) -> np.ndarray:
    """Logarithms less the image's own mean of every order, which are then perhaps brought to one
    size."""
    logs = np.log1p(STEEP * found)
    for order in range(3):
        part = logs[:, :, order == ORDERS]
        part = part - part.mean(axis=(1, 2, 3, 4), keepdims=True)
        size = np.sqrt(np.square(part).sum(axis=(1, 2, 3, 4), keepdims=True)) + 1e-6
        logs[:, :, order == ORDERS] = part / size if divided else part
    return unit(logs)


def groups(found: np.ndarray) -> np.ndarray:
    """Groups of three channels, each of mean 0 and standard deviation 1 within the image."""
    parts = found.reshape(len(found), -1, 3 * found.shape[3] ** 2)
    parts = parts - parts.mean(axis=2, keepdims=True)
    return unit(parts / np.sqrt(np.square(parts).mean(axis=2, keepdims=True) + 1e-10))


RULES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "groups": groups,
    "log": lambda found: unit(np.log1p(STEEP * found)),
    "log-10": lambda found: unit(np.log1p(10 * found)),
    "log-200": lambda found: unit(np.log1p(200 * found)),
    "log-own-means": own_means,
    "log-own-means-divided": lambda found: own_means(found, divided=True),
    "log-centred": lambda found: unit(np.log1p(STEEP * found) - CENTRE[ORDERS][:, None, None]),
}
"""From coefficients to rows of norm 1; the last is what ``Scattering`` does."""


def score(rows: np.ndarray, y: np.ndarray, n: int, epsilon: float, norm: float) -> float:
    """Of the plan for n records on the others."""
    classes = int(y.max()) + 1
    run = consider(
        Task(n, rows.shape[1], classes, norm), epsilon=epsilon, delta=DELTA
    ).best.certificate.run
    found = scores(run, execute(run, rows[:n], y[:n], key_from_seed(1)), rows[-TEST:])
    if classes == 2:
        return float(roc_auc_score(y[-TEST:], found.ravel()))
    return float((guessed(found) == y[-TEST:]).mean())


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--rules", nargs="*", choices=[*RULES, "pixels"], default=[*RULES, "pixels"])
    given.add_argument("--families", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    given.add_argument("--records", nargs="*", type=int, default=[1500])
    given.add_argument("--epsilons", nargs="*", type=float, default=[0.3, 1.0, 3.0])
    asked = given.parse_args()
    for family in asked.families:
        images, y = FAMILIES[family](
            np.random.default_rng(1), max(asked.records) + TEST, 32 if family == "things" else 28
        )
        found = coefficients(images)
        for name in asked.rules:
            rows = (
                RULES[name](found) if name in RULES else images.reshape(len(images), -1)
            ).astype(np.float32)
            norm = 1.0 if name in RULES else float(np.sqrt(rows.shape[1]))
            for n in asked.records:
                line = [f"{score(rows, y, n, epsilon, norm):.4f}" for epsilon in asked.epsilons]
                print(f"| {family} | {name} | {n} | " + " | ".join(line) + " |", flush=True)


if __name__ == "__main__":
    main()
