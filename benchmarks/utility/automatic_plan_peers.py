"""Other ways to spend epsilon 1, delta 1e-5, each tuned for free, on the sets, splits and seeds of
automatic_plan.py.

export OPACUS_PYTHON=PYTHON DIFFPRIVLIB_PYTHON=PYTHON
python -m benchmarks.utility.automatic_plan_peers DATA_DIR --out TABLES.md --log FITS.jsonl
python -m benchmarks.utility.automatic_plan_peers DATA_DIR --out TRIAL.md --rows 400 --quick

The second is a trial of a few minutes. The interpreters (also --opacus-python,
--diffprivlib-python) are those of environments with ``pip install torch opacus`` and with ``pip
install diffprivlib 'scikit-learn<1.6'`` (newer ones break diffprivlib 0.6.6); a column without an
interpreter stays empty. dp-accounting is needed here. ``--log`` keeps every finished fit, so that
an interrupted run goes on. The whole takes hours; ``--sets`` and ``--seeds`` make it shorter.

All columns but the first are tuned on the test part, which nobody may do with private data, and see
the same array: rows less their exact mean (free of charge, where the automatic plan pays for a
private one), divided by half of the set's public bound, scaled down to norm 1 where longer, a
constant column of 0.3.

- automatic plan: what ``lastiterate train`` does, nothing tuned, for reference;
- Opacus: Poisson DP-SGD, batch size, passes, step size and per-example clip tuned; noise by the PLD
  accountant;
- diffprivlib: objective perturbation, which promises pure epsilon-DP (delta = 0, a stronger
  promise) for the exact minimiser; one-vs-rest with epsilon / classes each where there are more
  than two classes; C and row norm tuned;
- gradient descent, composition: full batches, plain steps, certified by composition; steps, step
  size, ridge and row norm tuned;
- gradient descent, last iterate: the same grid, certified by the best theorem for the last iterate
  (composition among them, where nothing else holds or is better).
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import lastiterate as li
from benchmarks.peers.child_process import DIFFPRIVLIB, OPACUS, Child
from benchmarks.peers.poisson_noise import poisson_noise
from benchmarks.utility.data_sets import LOADERS, Set, load, split, subset
from benchmarks.utility.linear_fits import (
    CONSTANT,
    Bench,
    Setting,
    arrays,
    blocks_of,
    opacus_fit,
    own_fit,
)
from benchmarks.utility.tuning import RULE, Log, Tuned, tune
from lastiterate.estimators import DPLogisticRegression

EPSILON, DELTA = 1.0, 1e-5
LARGE = 10_000_000  #: numbers in a train part, beyond which a descent has at most 160 steps: time
COLUMNS = (
    "automatic plan",
    "Opacus",
    "diffprivlib",
    "gradient descent, composition",
    "gradient descent, last iterate",
)


@dataclass(frozen=True)
class Grids:
    """What is tried: descent counts its steps in ``passes``, as full batches are one step a pass."""

    opacus: tuple[Setting, ...]
    descent: tuple[Setting, ...]
    diffprivlib: tuple[tuple[float, float], ...]  # C, row norm

    @classmethod
    def full(cls, size: int) -> Grids:
        # a step grows as its clip shrinks: the distance that a clipped gradient can move stays the
        # same
        opacus = tuple(
            Setting(step / clip, clip=clip, batches=count, passes=passes)
            for count, passes, clip, step in product(
                (8, 20, 64), (20, 50, 100), (0.03, 0.1, 0.3), (0.3, 1.0, 3.0)
            )
        )
        steps = (10, 40, 160) if size > LARGE else (10, 40, 160, 640)
        descent = tuple(
            Setting(step, ridge, norm=norm, passes=count)
            for count, step, ridge, norm in product(
                steps, (1.9, 6.0), (0.0, 0.01), (0.25, 0.5, 1.0)
            )
        )
        return cls(
            opacus, descent, tuple(product((1.0, 0.1, 0.01, 0.001, 0.0001), (0.25, 0.5, 1.0)))
        )

    @classmethod
    def quick(cls) -> Grids:
        opacus = tuple(Setting(step / 0.1, clip=0.1, batches=8, passes=10) for step in (0.3, 1.0))
        descent = tuple(
            Setting(1.9, ridge, norm=0.5, passes=steps)
            for steps, ridge in product((10, 160), (0.0, 0.03))
        )
        return cls(opacus, descent, ((1.0, 0.5), (0.01, 0.5)))


def centred(data: Set) -> Set:
    """The same records around their mean (of the train part, where there is one)."""
    mean = data.x.mean(axis=0)
    return replace(
        data, x=data.x - mean, x_test=None if data.x_test is None else data.x_test - mean
    )


def automatic(bench: Bench, data: Set, setting: Any, seed: int) -> dict[str, Any]:
    """The fit of automatic_plan.py, on rows as they are."""

    def work() -> dict[str, Any]:
        part = split(data, seed)
        model = DPLogisticRegression(
            epsilon=EPSILON,
            delta=DELTA,
            row_norm=data.row_norm,
            classes=range(data.classes),
            random_state=seed,
        )
        model.fit(part.x, part.y)
        return {"accuracy": float(model.score(part.x_test, part.y_test))}

    return bench.log.once(bench.key(by="plan", seed=seed), work)


def opacus(bench: Bench, child: Child, setting: Setting, seed: int) -> dict[str, Any]:
    batch, blocks = blocks_of(bench.n, setting.batches)
    steps = blocks * setting.passes
    z = poisson_noise(batch / bench.n, steps, EPSILON, DELTA)
    return opacus_fit(bench, child, setting, batch, steps, z, seed)


def diffprivlib(
    bench: Bench, child: Child, setting: tuple[float, float], seed: int
) -> dict[str, Any]:
    question = {"seed": seed, "epsilon": EPSILON, "C": setting[0], "norm": setting[1]}
    return bench.log.once(bench.key(by="diffprivlib", **question), lambda: child.ask(**question))


def descent(bench: Bench, proof: Any, setting: Setting, seed: int) -> dict[str, Any]:
    return own_fit(bench, setting, li.FullBatch(), setting.passes, proof, EPSILON, seed)


def compare(
    bench: Bench, data: Set, asked: argparse.Namespace, pythons: tuple[str | None, str | None]
) -> tuple[dict[str, Tuned], list[str]]:
    """Every column at its best setting, and the versions of the libraries behind them."""
    size = bench.n * bench.data.x.shape[1]
    grids, found, versions = Grids.quick() if asked.quick else Grids.full(size), {}, []

    def best(name: str, grid: Any, fit: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        began = time.perf_counter()
        found[name] = tune(
            grid,
            lambda setting, seed: fit(bench, *arguments, setting, seed),
            bench.seeds,
            asked.keep,
        )
        print(
            f"{bench.data.name}: {name} {found[name].accuracy()}, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )

    best("automatic plan", (None,), automatic, data)
    with ExitStack() as stack:
        path = str(arrays(bench, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        for name, python, script, grid, fit in (
            ("Opacus", pythons[0], "opacus_linear_fit", grids.opacus, opacus),
            ("diffprivlib", pythons[1], "diffprivlib_linear_fit", grids.diffprivlib, diffprivlib),
        ):
            if python is not None:
                with Child(python, script, path) as child:
                    versions.append(child.about["name"])
                    best(name, grid, fit, child)
    best("gradient descent, composition", grids.descent, descent, "all")
    best("gradient descent, last iterate", grids.descent, descent, "last")
    return found, versions


def chosen(name: str, one: Tuned) -> str:
    """The winning setting in words."""
    match name, one.setting:
        case "automatic plan", _:
            return "nothing tuned"
        case "diffprivlib", (c, norm):
            return f"C {c:g}, row norm {norm:g}"
        case "Opacus", setting:
            return (
                f"{setting}, {setting.passes} passes of {setting.batches} batches, noise "
                f"multiplier "
                f"{one.mean('noise_multiplier'):.3g} (PRV: epsilon {one.mean('epsilon_prv'):.3f})"
            )
        case _, setting:
            return (
                f"{setting}, {setting.passes} steps, noise multiplier "
                f"{one.mean('noise_multiplier'):.3g}, "
                f"{one.fits[0]['theorem']}"
            )


def heading(asked: argparse.Namespace) -> str:
    """What was done."""
    import jax

    return (
        f"\n## Accuracy against other ways to spend epsilon {EPSILON:g}\n\n"
        f"`python -m benchmarks.utility.automatic_plan_peers`: "
        f"delta {DELTA:g}, {asked.seeds} seeds vary the split and the noise; means ± standard "
        f"deviations. All but "
        "the automatic plan are tuned on the test part. "
        f"{RULE.format(keep=asked.keep, seeds=asked.seeds)} Opacus "
        "accounts for add-remove, diffprivlib promises pure epsilon-DP of the exact minimiser "
        f"(one-vs-rest, "
        "epsilon / classes each), the others zero-out. The tuned columns see rows less their "
        f"exact mean, "
        f"divided by half of the public bound, and a constant column of {CONSTANT}. JAX "
        f"{jax.__version__}."
        f"\n\n| set | n | {' | '.join(COLUMNS)} |\n"
        f"{'|' + '---|' * (2 + len(COLUMNS))}\n"
    )


def arguments() -> argparse.Namespace:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path, metavar="DATA_DIR")
    given.add_argument(
        "--out", type=Path, required=True, help="Markdown file that a section is appended to"
    )
    given.add_argument("--log", type=Path, help="finished fits, to resume from")
    OPACUS.option(given)
    DIFFPRIVLIB.option(given)
    given.add_argument("--sets", nargs="+", default=list(LOADERS), choices=list(LOADERS))
    given.add_argument("--seeds", type=int, default=5)
    given.add_argument("--keep", type=int, default=3, help="settings that are never dropped early")
    given.add_argument("--rows", type=int, help="use this many records of each part only")
    given.add_argument("--quick", action="store_true", help="tiny grids, one seed")
    asked = given.parse_args()
    asked.seeds = 1 if asked.quick else asked.seeds
    return asked


def main(asked: argparse.Namespace) -> None:
    """One row per set, then what was chosen."""
    log, notes, versions = Log(asked.log), [], {}
    pythons = OPACUS.python(asked), DIFFPRIVLIB.python(asked)
    sets = [subset(load(short, asked.folder), asked.rows) for short in asked.sets]
    write(asked.out, heading(asked))
    for data in sets:
        bench = Bench(centred(data), data.row_norm / 2, tuple(range(asked.seeds)), DELTA, log)
        found, behind = compare(bench, data, asked, pythons)
        versions |= dict.fromkeys(behind)
        cells = [found[name].accuracy() if name in found else "-" for name in COLUMNS]
        write(asked.out, f"| {data.name} | {bench.n} | " + " | ".join(cells) + " |\n")
        notes += [
            f"- {data.name}, {name}: {chosen(name, one)}\n"
            for name, one in found.items()
            if name != "automatic plan"
        ]
    libraries = ", ".join(versions) or "no other library"
    write(
        asked.out,
        f"\nChosen ({libraries}; steps in units of 1/smooth, ridges of the data term's smoothness, "
        f"clips "
        f"of the Lipschitz constant, row norms of the public bound):\n\n" + "".join(notes),
    )


def write(path: Path, text: str) -> None:
    print(text, end="", flush=True)
    with path.open("a") as out:
        out.write(text)


if __name__ == "__main__":
    main(arguments())
