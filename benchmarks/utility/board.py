"""The leaderboard's first screen: accuracy, AUROC, log loss and seconds of every method, on the
same records and seeds.

export INTERPRET_PYTHON=PYTHON OPACUS_PYTHON=PYTHON DIFFPRIVLIB_PYTHON=PYTHON python -m
benchmarks.utility.board DATA_DIR --log benchmarks/board.jsonl [--sets ...] [--methods ...] [--seeds
10]

DATA_DIR and the sets: board_sets.py. delta 1e-5. ``--log`` keeps every finished fit, one JSON
object a line, so that an interrupted run goes on; tools/leaderboard_page.py writes the page from
it. The sets of ``LAST`` are fitted only where ``--sets`` names them.

- lastiterate: ``DPLogisticRegression`` as it comes: ``features="auto"``, calibrated probabilities,
  nothing chosen;
- dp-ebm: dpebm_table_fit.py, as it comes;
- objective: objective perturbation (``algorithm="objective-perturbation"``), as it comes;
- opacus, diffprivlib: tuned for free on the test part, which nobody may do with private data;
- none, none-mapped: scikit-learn's logistic regression without privacy, on plain columns and on the
  same map.

All linear methods see the rows that the schema's automatic map makes at that budget. The two tuned
ones see them less the exact mean of the training rows, divided by half of the public bound, beside
a constant column.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.peers.child_process import DIFFPRIVLIB, INTERPRET, OPACUS, Child
from benchmarks.peers.measures import measures
from benchmarks.peers.poisson_noise import poisson_noise
from benchmarks.utility.board_sets import LAST, PICTURES, SETS, BoardSet, Part
from benchmarks.utility.data_sets import unit_rows
from lastiterate.data import Category, Schema
from lastiterate.data.data_frames import frame_table
from lastiterate.data.encoding import encode_features
from lastiterate.estimators import DPLogisticRegression
from lastiterate.release.linear_plans import choose_features
from lastiterate.release.training_request import Budget

DELTA, CONSTANT = 1e-5, 0.3
LARGE = 2e7  #: numbers in a train part, beyond which less is tried: time
EPSILONS = (0.3, 1.0, 3.0, 8.0)
METHODS = ("lastiterate", "dp-ebm", "none", "none-mapped", "objective", "diffprivlib", "opacus")
Fit = dict[str, Any]


class Prepared:
    """A set with its splits and the rows that automatic maps make, the last few kept."""

    def __init__(self, data: BoardSet) -> None:
        self.data = data
        self.parts = lru_cache(maxsize=1 if data.test is not None else 10)(
            lambda seed: data.parts(seed)
        )
        self._rows = lru_cache(maxsize=4)(self._encoded)

    def schema(self, epsilon: float | None) -> Schema:
        """The schema with its automatic map at a budget; plain without one."""
        train = self.parts(0)[0]
        shape = (
            train.records.shape[1:]
            if isinstance(train.records, np.ndarray)
            else (len(self.data.schema.columns),)
        )
        if epsilon is None:
            return self.data.schema
        return choose_features(
            self.data.schema, "auto", shape, len(train.y), Budget(epsilon, DELTA)
        ).schema

    def rows(
        self, epsilon: float | None, seed: int
    ) -> tuple[np.ndarray, np.ndarray, float, float, str]:
        """Train and test rows, their public norm, seconds that the map took on the train part, what
        it is."""
        return self._rows(self.schema(epsilon), 0 if self.data.test is not None else seed)

    def _encoded(
        self, schema: Schema, seed: int
    ) -> tuple[np.ndarray, np.ndarray, float, float, str]:
        def one(part: Part) -> np.ndarray:
            return encode_features(frame_table(part.records, schema), schema)

        train, test = self.parts(seed)
        began = time.perf_counter()
        rows = one(train)
        seconds = time.perf_counter() - began
        shape = (
            train.records.shape[1:]
            if isinstance(train.records, np.ndarray)
            else (len(schema.columns),)
        )
        return (
            rows,
            one(test),
            schema.form(shape).norm,
            seconds,
            ", ".join(m.name for m in schema.features) or "plain",
        )


def timed(model: Any, x: np.ndarray, y: np.ndarray) -> Fit:
    began, processor = time.perf_counter(), time.process_time()
    model.fit(x, y)
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - processor}


def own(prepared: Prepared, epsilon: float, seed: int, **more: Any) -> Fit:
    """A fit of ours."""
    rows, test, norm, mapping, name = prepared.rows(epsilon, seed)
    train, held = prepared.parts(seed)
    model = DPLogisticRegression(
        epsilon=epsilon,
        delta=DELTA,
        row_norm=norm,
        classes=range(prepared.data.classes),
        random_state=seed,
        **more,
    )
    took = timed(model, rows, train.y)
    run = model.run_
    return (
        took
        | measures(held.y, model.predict_proba(test))
        | {
            "map": name,
            "features": rows.shape[1],
            "map_seconds": mapping,
            "plan": model.choice_.best.name
            if model.choice_ is not None
            else "objective-perturbation",
            "calibrated": run.probability_calibration is not None,
        }
    )


def without_privacy(prepared: Prepared, epsilon: float | None, seed: int) -> Fit:
    rows, test, _, _, name = prepared.rows(epsilon, seed)
    train, held = prepared.parts(seed)
    model = LogisticRegression(max_iter=300 if len(rows) * rows.shape[1] > 3e7 else 3000)
    took = timed(model, rows, train.y)
    found = (
        took
        | measures(held.y, model.predict_proba(test))
        | {"map": name, "features": rows.shape[1]}
    )
    if held.chance is not None:
        found["best possible"] = measures(held.y, held.chance)
        found["best possible"]["accuracy"] = float(held.chance.max(axis=1).mean())
        found["best possible"]["log_loss"] = float(
            -(held.chance * np.log(held.chance)).sum(axis=1).mean()
        )
    return found


def table_arrays(prepared: Prepared, seeds: int, folder: Path) -> Path:
    """What the child that fits DP-EBM reads: scaled numbers and categories."""
    data, every = prepared.data, [prepared.parts(seed) for seed in range(seeds)]
    numbers, codes, y, at = [], [], [], 0
    kept: dict[str, np.ndarray] = {}
    whole = (data.train,) if data.test is None else (data.train, data.test)
    for part in whole:
        if isinstance(part.records, np.ndarray):
            columns = data.schema.columns
            raw: Any = {c.name: part.records[:, i] for i, c in enumerate(columns)}
        else:
            columns, raw = data.schema.columns, part.records
        used = [c for c in columns if c.fields]
        scaled = [
            c.to_unit(np.clip(np.asarray(raw[c.name], np.float64), c.low, c.high))
            for c in used
            if not isinstance(c, Category)
        ]
        numbers.append(np.column_stack(scaled) if scaled else np.empty((len(part.y), 0)))
        text = [np.asarray(raw[c.name]).astype(str) for c in used if isinstance(c, Category)]
        codes.append(np.column_stack(text) if text else np.empty((len(part.y), 0), "<U1"))
        y.append(part.y)
    for seed in range(len(every)):
        if data.test is not None:
            kept |= {
                f"train_{seed}": np.arange(len(y[0])),
                f"test_{seed}": len(y[0]) + np.arange(len(y[1])),
            }
        else:
            order = np.random.default_rng(seed).permutation(len(y[0]))
            at = round(len(order) * 0.8)
            kept |= {f"train_{seed}": order[:at], f"test_{seed}": order[at:]}
    path = folder / "table.npz"
    np.savez(
        path,
        numbers=np.concatenate(numbers),
        codes=np.concatenate(codes),
        y=np.concatenate(y),
        **kept,
    )
    return path


def linear_arrays(prepared: Prepared, epsilon: float, seed: int, folder: Path) -> Path:
    """What children that fit linear models read, of one seed; see opacus_linear_fit.py."""
    rows, test, norm, _, _ = prepared.rows(epsilon, seed)
    train, held = prepared.parts(seed)
    mean = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    path = folder / f"rows_{epsilon:g}_{seed}.npz"
    np.savez(
        path,
        **{
            "rows": unit_rows(rows - mean, norm / 2, CONSTANT),
            "target": train.y,
            "test_rows": unit_rows(test - mean, norm / 2, CONSTANT),
            "test_target": held.y,
            f"train_{seed}": np.arange(len(rows)),
        },
    )
    return path


def opacus_grid(size: int) -> list[tuple[int, int, float, float]]:
    """Batches in a pass, passes, clip and step over clip; fewer where a fit takes long."""
    shapes = ((20, 20),) if size > LARGE else ((20, 20), (8, 60))
    return [(*shape, clip, step) for shape, clip, step in product(shapes, (0.1, 0.3), (1.0, 3.0))]


def tuned(
    prepared: Prepared,
    method: str,
    python: str,
    epsilon: float,
    seeds: list[int],
    done: Callable[..., None],
) -> None:
    """The best setting by the first seed's test accuracy, then every seed with the best three of
    them.

    With the first seed the whole grid is tried, and then the best one's neighbours, until none of
    them is better.
    """
    rows, *_ = prepared.rows(epsilon, 0)
    grid: list[Any] = (
        opacus_grid(rows.size)
        if method == "opacus"
        else list(product((1.0, 0.03, 0.001), (0.5, 1.0)))
    )
    found: dict[Any, list[Fit]] = {}

    def scored(setting: Any) -> float:
        return float(np.mean([fit["accuracy"] for fit in found[setting]]))

    for seed in seeds:
        with (
            tempfile.TemporaryDirectory() as folder,
            Child(
                python,
                f"{method}_linear_fit",
                str(linear_arrays(prepared, epsilon, seed, Path(folder))),
            ) as child,
        ):
            wanted = grid
            while wanted:
                for setting in wanted:
                    found.setdefault(setting, []).append(
                        asked(child, method, setting, len(rows), epsilon, seed)
                    )
                near = neighbours(method, max(found, key=scored)) if seed == seeds[0] else []
                wanted = [setting for setting in near if setting not in found]
        grid = sorted(found if seed == seeds[0] else grid, key=lambda one: -scored(one))[:3]
    best = max(grid, key=scored)
    for seed, fit in zip(seeds, found[best], strict=True):
        done(
            seed,
            {name: fit[name] for name in ("accuracy", "auroc", "log_loss")}
            | {
                "seconds": fit["cpu_seconds"],
                "processor": fit["cpu_seconds"],
                "setting": list(best),
                "features": rows.shape[1],
            },
        )


def neighbours(method: str, setting: Any) -> list[Any]:
    """Settings next to one: Opacus' clip and its step over the clip, or diffprivlib's C and norm,
    about three times as large and as small."""

    def times(place: int, factor: float) -> Any:
        return tuple(
            float(f"{value * factor:.1g}") if at == place else value
            for at, value in enumerate(setting)
        )

    return [
        times(place, factor)
        for place in ((2, 3) if method == "opacus" else (0, 1))
        for factor in (10 / 3, 1 / 3)
    ]


def asked(child: Child, method: str, setting: Any, n: int, epsilon: float, seed: int) -> Fit:
    """One fit of a child."""
    if method == "diffprivlib":
        return child.ask(seed=seed, epsilon=epsilon, C=setting[0], norm=setting[1])
    blocks, passes, clip, step = setting
    steps = (
        passes * blocks
    )  # records are drawn with a probability of at most 1 / blocks, which noise is enough for
    return child.ask(
        seed=seed,
        batch=max(1, n // blocks),
        steps=steps,
        step_size=step / clip,
        clip=clip,
        weight_decay=0.0,
        noise_multiplier=poisson_noise(1 / blocks, steps, epsilon, DELTA),
    )


class Board:
    """Finished fits by set, method, epsilon and seed, in a file that only grows."""

    def __init__(self, log: Path) -> None:
        self.log = log
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        self.done = {
            tuple(fit[key] for key in ("set", "method", "epsilon", "seed"))
            for fit in map(json.loads, lines)
        }

    def wants(self, *key: Any) -> bool:
        return key not in self.done

    def keep(
        self,
        short: str,
        title: str,
        n: int,
        method: str,
        epsilon: float | None,
        seed: int,
        fit: Fit,
    ) -> None:
        self.done.add((short, method, epsilon, seed))
        with self.log.open("a", encoding="utf-8") as out:
            out.write(
                json.dumps(
                    {
                        "set": short,
                        "title": title,
                        "n": n,
                        "method": method,
                        "epsilon": epsilon,
                        "seed": seed,
                    }
                    | fit
                )
                + "\n"
            )


def fill(
    board: Board,
    short: str,
    prepared: Prepared,
    method: str,
    pythons: dict[str, str | None],
    seeds: int,
    epsilons: list[float],
) -> None:
    """Every fit of a method on a set that the board lacks."""
    data, n = prepared.data, len(prepared.parts(0)[0].y)

    def keep(epsilon: float | None, seed: int, fit: Fit) -> None:
        board.keep(short, data.title, n, method, epsilon, seed, fit)

    if method in ("none", "none-mapped"):
        for seed in range(seeds if data.test is None else 1):
            if board.wants(short, method, None, seed):
                keep(None, seed, without_privacy(prepared, None if method == "none" else 8.0, seed))
        return
    if method in ("opacus", "diffprivlib"):
        for epsilon in epsilons:
            missing = [seed for seed in range(seeds) if board.wants(short, method, epsilon, seed)]
            if missing and (python := pythons[method]) is not None:
                tuned(
                    prepared,
                    method,
                    python,
                    epsilon,
                    missing,
                    lambda seed, fit, epsilon=epsilon: keep(epsilon, seed, fit),
                )
        return
    cells = [
        (seed, epsilon)
        for seed in range(seeds)
        for epsilon in epsilons
        if board.wants(short, method, epsilon, seed)
    ]
    if method == "dp-ebm":
        python = pythons["interpret"]
        if python is None or not cells or data.classes > 2 or short in PICTURES:
            return
        with (
            tempfile.TemporaryDirectory() as folder,
            Child(
                python, "dpebm_table_fit", str(table_arrays(prepared, seeds, Path(folder)))
            ) as child,
        ):
            for seed, epsilon in cells:
                keep(epsilon, seed, child.ask(seed=seed, epsilon=epsilon, delta=DELTA))
        return
    more = (
        {"algorithm": "objective-perturbation", "calibrated": False}
        if method == "objective"
        else {}
    )
    for seed, epsilon in cells:
        keep(epsilon, seed, own(prepared, epsilon, seed, **more))


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path, metavar="DATA_DIR")
    given.add_argument(
        "--log", type=Path, default=Path("board.jsonl"), help="finished fits, to resume from"
    )
    given.add_argument(
        "--sets", nargs="*", choices=list(SETS), default=[one for one in SETS if one not in LAST]
    )
    given.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    given.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    given.add_argument("--seeds", type=int, default=10)
    for library in (OPACUS, DIFFPRIVLIB, INTERPRET):
        library.option(given)
    wanted = given.parse_args()
    warnings.simplefilter("ignore")
    pythons = {one.name: one.python(wanted) for one in (OPACUS, DIFFPRIVLIB, INTERPRET)}
    board = Board(wanted.log)
    for short in wanted.sets:
        prepared = Prepared(SETS[short](wanted.folder))
        for method in wanted.methods:
            began = time.perf_counter()
            fill(board, short, prepared, method, pythons, wanted.seeds, wanted.epsilons)
            print(
                f"{short}: {method}, {time.perf_counter() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )


if __name__ == "__main__":
    main()
