"""Images through public maps, and the small network of Opacus' examples: accuracy at four budgets.

export OPACUS_PYTHON=PYTHON; python -m benchmarks.utility.colour_images DATA_DIR --log
benchmarks/board.jsonl [--sets ...] [--maps ...] [--epsilons ...] [--seeds N] [--table]

DATA_DIR: see data_sets.py; superclasses are those of natural_superclasses.npz. delta 1e-5.
``DPLogisticRegression`` with its defaults on rows of every map, of the size that a budget gets.
The constants of ``Patches`` were compared on the superclasses, so that its figures there choose and
do not report.

"network" is that of opacus_network_fit.py, with two seeds at most, for the time that it takes.
Fits that the log has are not done again: those of a set's automatic map may come from board.py.
``--table`` fits nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from benchmarks.peers.child_process import OPACUS, Child
from benchmarks.peers.measures import measures
from benchmarks.utility.board import DELTA, EPSILONS, Board, Fit, timed
from benchmarks.utility.board_sets import SETS, BoardSet
from lastiterate.estimators import DPLogisticRegression
from lastiterate.features import Patches, Scattering
from lastiterate.features.map_registry import automatic_maps
from lastiterate.features.patches import AXES
from lastiterate.features.record_fields import Grid
from lastiterate.planning.task import budget

SEEDS, NETWORK_SEEDS = 5, 2
PIXELS, NETWORK = "pixels", "network"
MAPS = ("patches", "patches-unmirrored", "scattering", "scattering-mirrored", PIXELS, NETWORK)
GREY = ("patches", "scattering", PIXELS, NETWORK)
IMAGES = {"superclasses": MAPS, "pneumonia": GREY, "mnist": GREY}
"""Maps of every set: mirror images suit photographs alone."""


class Images:
    """A set of images with the rows of its maps."""

    def __init__(self, data: BoardSet) -> None:
        assert data.test is not None
        self.data, self.train, self.test = data, data.train, data.test
        self.shape = data.train.records.shape[1:]
        self.found = lru_cache(maxsize=2)(self._found)

    def resolved(self, epsilon: float) -> float:
        """Records times mu."""
        return len(self.train.y) * budget(epsilon, DELTA)

    def automatic(self, epsilon: float) -> str:
        """The name of the automatic map."""
        maps = automatic_maps((Grid("x", self.shape),), self.resolved(epsilon))
        return maps[0].name if maps else PIXELS

    def map_named(self, name: str, epsilon: float) -> Patches | Scattering | None:
        """The map of a name, as large as a budget carries."""
        kinds = {"patches": Patches, "scattering": Scattering}
        if name == PIXELS:
            return None
        fields = (Grid("x", self.shape),)
        one = kinds[name.split("-")[0]].for_budget(fields, self.resolved(epsilon))
        return one if name in kinds else replace(one, mirrored=name == "scattering-mirrored")

    def rows(self, name: str, epsilon: float) -> tuple[np.ndarray, np.ndarray, float]:
        """Rows of norm 1 of the train and the test part, and seconds that the map took."""
        one = self.map_named(name, epsilon)
        if not isinstance(one, Patches):
            return self.found(one)
        *both, seconds = self.found(replace(one, axes=AXES[0]))  # a row's first axes are its row
        train, test = (
            rows[:, : one.axes] / np.linalg.norm(rows[:, : one.axes], axis=1, keepdims=True)
            for rows in both
        )
        return train, test, seconds

    def _found(self, one: Patches | Scattering | None) -> tuple[np.ndarray, np.ndarray, float]:
        def rows(images: np.ndarray) -> np.ndarray:
            flat = images.reshape(len(images), -1)
            return (2 * flat - 1) / np.float32(math.sqrt(flat.shape[1]))

        apply = rows if one is None else one.apply
        apply(self.test.records[:1])  # makes a basis where the cache has none
        began = time.perf_counter()
        train = apply(self.train.records)
        return train, apply(self.test.records), time.perf_counter() - began


def fit(images: Images, name: str, epsilon: float, seed: int) -> Fit:
    """Measures and seconds of one fit."""
    train, test, mapping = images.rows(name, epsilon)
    model = DPLogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        row_norm=1.0,
        classes=range(images.data.classes),
        random_state=seed,
    )
    took = timed(model, train, images.train.y)
    return (
        took
        | measures(images.test.y, model.predict_proba(test))
        | {"map": name, "features": train.shape[1], "map_seconds": mapping}
        | {"plan": model.choice_.best.name if model.choice_ is not None else ""}
    )


def fill(board: Board, short: str, data: BoardSet, asked: argparse.Namespace) -> None:
    """Every fit of a set that the log lacks."""
    images = Images(data)

    def keep(method: str, epsilon: float, seed: int, found: Fit) -> None:
        board.keep(short, data.title, len(images.train.y), method, epsilon, seed, found)

    for name in (one for one in IMAGES[short] if one in asked.maps and one != NETWORK):
        for epsilon in asked.epsilons:
            method = "lastiterate" if name == images.automatic(epsilon) else name
            for seed in range(asked.seeds):
                if board.wants(short, method, epsilon, seed):
                    keep(method, epsilon, seed, fit(images, name, epsilon, seed))
    cells = [
        (epsilon, seed)
        for epsilon in asked.epsilons
        for seed in range(min(asked.seeds, NETWORK_SEEDS))
        if NETWORK in asked.maps and board.wants(short, NETWORK, epsilon, seed)
    ]
    python = OPACUS.python(asked) if cells else None
    if python is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npz"
        np.savez(
            path,
            images=_bytes(images.train.records),
            target=images.train.y,
            test_images=_bytes(images.test.records),
            test_target=images.test.y,
        )
        with Child(python, "opacus_network_fit", str(path)) as child:
            for epsilon, seed in cells:
                found = child.ask(epsilon=epsilon, delta=DELTA, seed=seed)
                keep(NETWORK, epsilon, seed, found)


def _bytes(images: np.ndarray) -> np.ndarray:
    """Images (n, channels, height, width) of bytes."""
    found = np.rint(images * 255).astype(np.uint8)
    return found[:, None] if found.ndim == 3 else np.moveaxis(found, 3, 1)


def table(log: Path, sets: list[str]) -> str:
    """Mean accuracies with standard deviations, a row for each set and map."""
    fits = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    lines = [
        "| set | rows | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS) + " |",
        "|---|---|" + "---|" * len(EPSILONS),
    ]
    for short in sets:
        for name in IMAGES[short]:
            cells = list[str]()
            for epsilon in EPSILONS:
                here = [
                    fit["accuracy"]
                    for fit in fits
                    if (fit["set"], fit["epsilon"]) == (short, epsilon)
                    and fit["seed"] < SEEDS
                    and name in (fit["method"], fit["method"] == "lastiterate" and map_of(fit))
                ]
                spread = f" ± {stdev(here):.4f}" if len(here) > 1 else ""
                cells.append(f"{mean(here):.4f}{spread}" if here else "")
            lines.append(f"| {short} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def map_of(found: Fit) -> str:
    """The map of a fit of the automatic one."""
    return PIXELS if found["map"] == "plain" else found["map"]


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path, metavar="DATA_DIR")
    given.add_argument(
        "--log", type=Path, default=Path("board.jsonl"), help="finished fits, to resume from"
    )
    given.add_argument("--sets", nargs="*", choices=list(IMAGES), default=list(IMAGES))
    given.add_argument("--maps", nargs="*", choices=MAPS, default=list(MAPS))
    given.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    given.add_argument("--seeds", type=int, default=SEEDS)
    given.add_argument("--table", action="store_true")
    OPACUS.option(given)
    asked = given.parse_args()
    warnings.simplefilter("ignore")
    board = Board(asked.log)
    for short in () if asked.table else asked.sets:
        began = time.perf_counter()
        fill(board, short, SETS[short](asked.folder), asked)
        print(f"{short}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(asked.log, asked.sets))


if __name__ == "__main__":
    main()
