"""Private regression on three public sets: the automatic plan, full-batch composition, diffprivlib;
R^2 on test parts.

export DIFFPRIVLIB_PYTHON=PYTHON       an environment with: pip install diffprivlib 'scikit-learn<1.6'
python -m benchmarks.utility.regression DATA_DIR [--seeds 10] [--out TABLES.md] [--log FITS.jsonl]

The sets are scikit-learn's diabetes, and the age and the weekly hours of the people of Adult
(DATA_DIR/adult, see data_sets.py), with published ranges. Four fifths of the records, at random,
train; the rest tests. Nothing is tuned. "Composition" is the best predicted plan of full batches on
centred rows. diffprivlib's promise is pure (delta = 0).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import lastiterate as li
from benchmarks.peers.child_process import DIFFPRIVLIB, Child
from benchmarks.utility.data_sets import Set, adult_part, bundled
from lastiterate.data import encode
from lastiterate.engine import execute, key_from_seed, scores
from lastiterate.planning.planner import consider
from lastiterate.planning.task import Task

DELTA, EPSILONS = 1e-5, (0.3, 1.0, 3.0, 8.0)


def adult(folder: Path, target: str) -> Set:
    table, schema = adult_part(folder, "adult.data", target)
    x, y = encode(table, schema)
    return Set(f"Adult, {target}", x, y, None, None, schema.form().norm)


def r2(found: np.ndarray, truth: np.ndarray) -> float:
    """Of predictions clipped to the public range [-1, 1]."""
    return float(
        1 - ((truth - np.clip(found, -1, 1)) ** 2).sum() / ((truth - truth.mean()) ** 2).sum()
    )


def split(data: Set, seed: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.random.default_rng(seed).permutation(len(data.x))
    return order[: (cut := round(0.8 * len(order)))], order[cut:]


def fitted(data: Set, run: li.Run, seed: int) -> float:
    train, test = split(data, seed)
    model = execute(run, data.x[train], data.y[train], key_from_seed(seed))
    return r2(scores(run, model, data.x[test])[:, 0], data.y[test])


def plans(data: Set, epsilon: float) -> tuple[li.Run, li.Run]:
    """The automatic plan, and the best one of full batches on centred rows that composition
    certifies."""
    n = len(split(data, 0)[0])
    found = consider(Task(n, data.x.shape[1], 0, data.row_norm), epsilon=epsilon, delta=DELTA)
    composed = [plan for plan in found.plans if plan.name in ("accelerated", "plain")]
    return found.best.certificate.run, min(composed, key=lambda plan: plan.risk).certificate.run


def arrays(data: Set, seeds: int, folder: str) -> str:
    """What diffprivlib reads: public ranges of the features are those of their encoding."""
    path = str(Path(folder) / "arrays.npz")
    parts = {
        f"{name}_{seed}": part
        for seed in range(seeds)
        for name, part in zip(("train", "test"), split(data, seed), strict=True)
    }
    low = np.where(data.x.min(axis=0) < 0, -1.0, 0.0)
    np.savez(path, rows=data.x, target=data.y, low=low, high=np.ones_like(low), **parts)
    return path


def measured(data: Set, seeds: int, python: str | None) -> Iterator[tuple[float, str, list[float]]]:
    """Epsilon, method, R^2 of every seed."""
    for epsilon in EPSILONS:
        ours, composed = plans(data, epsilon)
        yield epsilon, "automatic plan", [fitted(data, ours, seed) for seed in range(seeds)]
        yield epsilon, "composition", [fitted(data, composed, seed) for seed in range(seeds)]
    if python is None:
        return
    with (
        tempfile.TemporaryDirectory() as folder,
        Child(python, "diffprivlib_regression_fit", arrays(data, seeds, folder)) as child,
    ):
        for epsilon in EPSILONS:
            yield (
                epsilon,
                "diffprivlib",
                [child.ask(seed=seed, epsilon=epsilon)["r2"] for seed in range(seeds)],
            )


def least_squares(data: Set, seeds: int) -> float:
    """Without privacy, for reference."""

    def one(seed: int) -> float:
        train, test = split(data, seed)
        rows = np.column_stack((data.x, np.ones(len(data.x))))
        weights = np.linalg.lstsq(rows[train], data.y[train], rcond=None)[0]
        return r2(rows[test] @ weights, data.y[test])

    return float(np.mean([one(seed) for seed in range(seeds)]))


def main() -> None:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path)
    given.add_argument("--seeds", type=int, default=10)
    given.add_argument("--out", type=Path, help="Markdown file that a table is appended to")
    given.add_argument("--log", type=Path, help="results as JSON lines")
    DIFFPRIVLIB.option(given)
    asked = given.parse_args()
    python = DIFFPRIVLIB.python(asked)
    makers: tuple[Callable[[], Set], ...] = (
        lambda: bundled("diabetes"),
        lambda: adult(asked.folder, "age"),
        lambda: adult(asked.folder, "hours-per-week"),
    )
    lines = [
        "| set | epsilon | automatic plan, R^2 (sd) | full-batch composition | diffprivlib | least "
        "squares |",
        "|---|---|---|---|---|---|",
    ]
    for make in makers:
        data = make()
        found = {
            (epsilon, by): values for epsilon, by, values in measured(data, asked.seeds, python)
        }
        plain = least_squares(data, asked.seeds)
        if asked.log is not None:
            with asked.log.open("a") as out:
                out.writelines(
                    json.dumps({"set": data.name, "epsilon": epsilon, "by": by, "r2": values})
                    + "\n"
                    for (epsilon, by), values in found.items()
                )
        for epsilon in EPSILONS:
            cells = [
                f"{np.mean(v):.3f} ({np.std(v):.3f})" if (v := found.get((epsilon, by))) else "-"
                for by in ("automatic plan", "composition", "diffprivlib")
            ]
            lines.append(f"| {data.name} | {epsilon:g} | {' | '.join(cells)} | {plain:.3f} |")
    print("\n".join(lines))
    if asked.out is not None:
        with asked.out.open("a") as out:
            out.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
