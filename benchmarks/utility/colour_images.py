"""Natural colour images through public maps: accuracy of the automatic plan, and processor time of
the map.

python -m benchmarks.utility.colour_images DATA_DIR [--maps ...] [--epsilons ...] [--records N]
[--seeds N]

DATA_DIR holds natural_superclasses.npz: 20 superclasses, 30,000 + 6,000 images of 32 x 32 pixels.
delta 1e-5, zero-out. The constants of ``Patches`` were compared on this set, so that its figures
choose and do not report.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.utility.planner_unseen import guessed
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.features import Patches, Scattering
from lastiterate.features.record_fields import Grid
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task, budget

DELTA, CLASSES = 1e-5, 20
Rows = Callable[[np.ndarray], np.ndarray]


def plain(images: np.ndarray) -> np.ndarray:
    """Pixels in [-1, 1], of norm 1 at most."""
    flat = images.reshape(len(images), -1)
    return (flat / np.float32(127.5) - 1) / np.float32(math.sqrt(flat.shape[1]))


def patches(shape: tuple[int, ...], resolved: float, mirrored: bool) -> Patches:
    """The map that ``auto`` takes, with or without mirror images."""
    sizes = Patches.for_budget((Grid("x", shape),), resolved)
    return Patches(axes=sizes.axes, mirrored=mirrored)


def maps(shape: tuple[int, ...], resolved: float) -> dict[str, Rows]:
    """Every map by its name."""
    return {
        "patches": patches(shape, resolved, mirrored=True).apply,
        "patches-plain": patches(shape, resolved, mirrored=False).apply,
        "scattering": Scattering().apply,
        "scattering-mirrored": Scattering(mirrored=True).apply,
        "pixels": plain,
    }


def accuracy(
    rows: np.ndarray, y: np.ndarray, test: np.ndarray, y_test: np.ndarray, epsilon: float, seed: int
) -> float:
    """Share of right labels of the automatic plan's run."""
    task = Task(len(rows), rows.shape[1], CLASSES, 1.0)
    run = consider(task, epsilon=epsilon, delta=DELTA).best.certificate.run
    found = scores(run, execute(run, rows, y, key_from_seed(seed)), test)
    return float((guessed(found) == y_test).mean())


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path)
    given.add_argument("--maps", nargs="*", choices=list(maps((32, 32, 3), 1.0)))
    given.add_argument("--epsilons", nargs="*", type=float, default=[1.0, 3.0])
    given.add_argument("--records", type=int, default=30_000)
    given.add_argument("--seeds", type=int, default=2)
    asked = given.parse_args()
    with np.load(asked.folder / "natural_superclasses.npz") as data:
        x, y = data["x_train"][: asked.records], data["y_train"].ravel()[: asked.records]
        x_test, y_test = data["x_test"], data["y_test"].ravel()
    for epsilon in asked.epsilons:
        resolved = len(x) * budget(epsilon, DELTA)
        for name, rows in maps(x.shape[1:], resolved).items():
            if asked.maps and name not in asked.maps:
                continue
            rows(x_test[:1])  # makes a basis where the cache has none
            began = time.process_time()
            test = rows(x_test)
            seconds = (time.process_time() - began) / len(test)
            train = rows(x)
            found = [
                accuracy(train, y.astype(np.int64), test, y_test, epsilon, seed)
                for seed in range(asked.seeds)
            ]
            print(
                f"| {name} | {train.shape[1]} | {epsilon:g} | {len(x)} | {np.mean(found):.4f} | "
                f"{1e3 * seconds:.2g} ms |",
                flush=True,
            )


if __name__ == "__main__":
    main()
