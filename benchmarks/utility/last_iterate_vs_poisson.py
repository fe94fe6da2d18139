"""The headline experiment: what hiding the iterates buys for mini-batches in order, against Poisson
DP-SGD.

python -m benchmarks.utility.last_iterate_vs_poisson DATA_DIR --out TABLES.md --log FITS.jsonl
--opacus-python PYTHON python -m benchmarks.utility.last_iterate_vs_poisson DATA_DIR --out TRIAL.md
--sets adult --rows 400 --quick

The second is a trial. PYTHON is an interpreter that has torch and opacus (``pip install torch
opacus`` in an environment of its own; without one those columns stay empty). dp-accounting is
needed here. ``--log`` keeps every finished fit: an interrupted run goes on where it stopped when it
is started again. ``--sets``, ``--epsilons``, ``--blocks``, ``--passes``, ``--steps``, ``--ridges``,
``--clips``, ``--seeds`` change the experiment; DATA_DIR: see data_sets.py. The whole takes hours.

Linear models (softmax, or logistic for two classes) on rows divided by a public norm (NORMS),
scaled down to norm 1 where longer, with a constant column of 0.3: the same array for every method.
Zero-out adjacency at delta 1e-5; Poisson's is add-remove, where one record moves a sum of clipped
gradients just as far. At equal passes and batch size, and with the same step sizes:

- permuted, cyclic: the best theorem about the last iterate, which is all that leaves the run.
  Beyond a step of 2/smooth no theorem saves much over composition; a tuned setting with such noise
  says so;
- composition: the same cyclic run with the noise that composition asks for, no amplification;
- Opacus, same clip: Poisson DP-SGD with the noise multiplier of dp-accounting's PLD (tighter than
  Opacus' own accountants, whose epsilons are printed below each table), clipped at the loss's
  Lipschitz constant;
- Opacus, tuned clip: smaller clips too, with the same steps divided by the clip.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers import child_process
from benchmarks.peers.child_process import Child
from benchmarks.utility.data_sets import LOADERS, load, subset
from benchmarks.utility.last_iterate_tables import OPACUS, OWN, Cell, Row, noises, summary, table
from benchmarks.utility.linear_fits import (
    CONSTANT,
    Bench,
    Setting,
    arrays,
    blocks_of,
    opacus_fit,
    own_fit,
)
from benchmarks.utility.tuning import RULE, Log, tune

NORMS = {"mnist": 7.0, "cifar": 13.0}
"""Row norms chosen by hand for these public sets, near the tenth percentile; the others use their
schema's bound."""
DELTA = 1e-5


def grids(asked: argparse.Namespace) -> tuple[list[Setting], list[Setting]]:
    """The settings of every method, and those that only Opacus gets besides."""
    common = [Setting(step, ridge) for ridge in asked.ridges for step in asked.steps]
    return common, [
        Setting(one.step / clip, one.ridge, clip) for clip in asked.clips for one in common
    ]


def compare(bench: Bench, cell: Cell, child: Child | None, asked: argparse.Namespace) -> Row:
    """Tune every method, or none where the cell is too long to be trained."""
    if cell.steps > asked.most_steps:
        return Row(cell, {}, None)
    common, more = grids(asked)

    def own(name: str) -> Any:
        batching, proof = OWN[name]
        return lambda setting, seed: own_fit(
            bench, setting, batching(cell.batch), cell.steps, proof, cell.epsilon, seed
        )

    z = noises(bench, cell)["Poisson"]

    def opacus(setting: Setting, seed: int) -> dict[str, Any]:
        assert child is not None
        return opacus_fit(bench, child, setting, cell.batch, cell.steps, z, seed)

    # taking turns before the tuning, which finds these fits in the log: other load then slows both
    # down alike
    pairs = (
        []
        if child is None
        else [
            (own("permuted")(setting, bench.seeds[0]), opacus(setting, bench.seeds[0]))
            for setting in common
        ]
    )
    found = {name: tune(common, own(name), bench.seeds, asked.keep) for name in OWN}
    if child is not None:
        found[OPACUS[0]] = tune(common, opacus, bench.seeds, asked.keep)
        found[OPACUS[1]] = tune(common + more, opacus, bench.seeds, asked.keep)
    ratios = [theirs["cpu_seconds"] / ours["cpu_seconds"] for ours, theirs in pairs]
    return Row(cell, found, statistics.median(ratios) if ratios else None)


def heading(asked: argparse.Namespace) -> str:
    """What was done, in words that stay true when the flags change."""
    import jax

    rule = RULE.format(keep=asked.keep, seeds=asked.seeds)
    return (
        "\n## Last iterate against composition and Poisson sampling\n\n"
        f"`python -m benchmarks.utility.last_iterate_vs_poisson`, {', '.join(asked.sets)}: "
        f"steps {asked.steps} / smooth, ridges {asked.ridges} x smooth, "
        f"Opacus' clips besides 1: {asked.clips} x Lipschitz constant, {asked.seeds} "
        f"seeds, no training beyond {asked.most_steps} steps; delta {DELTA:g}, zero-out (Poisson: "
        f"add-remove). "
        "Noise multipliers are those at steps 1/smooth. Means ± standard deviations over seeds, "
        f"which vary split "
        f"and noise. {rule} Rows have norm at most 1 after division by a public norm, and a "
        f"constant column "
        f"of {CONSTANT}. Times are CPU times of whole fits, all threads, without compilation or "
        f"imports, taking "
        f"turns setting by setting, median of the ratios; Opacus has one thread. {os.cpu_count()} "
        f"cores with other "
        f"load, JAX {jax.__version__}.\n"
    )


def arguments() -> argparse.Namespace:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("folder", type=Path, metavar="DATA_DIR")
    given.add_argument(
        "--out", type=Path, required=True, help="Markdown file that sections are appended to"
    )
    given.add_argument("--log", type=Path, help="finished fits, to resume from")
    child_process.OPACUS.option(given)
    given.add_argument(
        "--sets", nargs="+", default=["adult", "cifar", "mnist"], choices=list(LOADERS)
    )
    given.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    given.add_argument("--blocks", nargs="+", type=int, default=[20, 200], help="batches in a pass")
    given.add_argument("--passes", nargs="+", type=int, default=[1, 5, 20, 50])
    given.add_argument(
        "--most-steps", type=int, default=10_000, help="train nothing longer; its noise is shown"
    )
    given.add_argument(
        "--steps", nargs="+", type=float, default=[0.7, 2.0, 5.0, 12.0], help="times 1/smooth"
    )
    given.add_argument(
        "--ridges", nargs="+", type=float, default=[0.0], help="times the data term's smoothness"
    )
    given.add_argument(
        "--clips", nargs="*", type=float, default=[0.3], help="Opacus' smaller clips"
    )
    given.add_argument("--seeds", type=int, default=3)
    given.add_argument("--keep", type=int, default=2, help="settings that are never dropped early")
    given.add_argument("--rows", type=int, help="train (and test) on this many records only")
    given.add_argument("--quick", action="store_true", help="one epsilon, few passes, one seed")
    asked = given.parse_args()
    if asked.quick:
        asked.epsilons, asked.passes, asked.steps, asked.seeds = [8.0], [1, 5], [2.0, 5.0], 1
    return asked


def main(asked: argparse.Namespace) -> None:
    """Append one table for every set, budget and batch size as soon as it is complete."""
    log, python = Log(asked.log), child_process.OPACUS.python(asked)
    sets = {short: subset(load(short, asked.folder), asked.rows) for short in asked.sets}
    write(asked.out, heading(asked))
    for short, data in sets.items():
        bench = Bench(data, NORMS.get(short, data.row_norm), tuple(range(asked.seeds)), DELTA, log)
        everything: list[Row] = []
        with ExitStack() as stack:
            child = None
            if python is not None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                child = stack.enter_context(
                    Child(python, "opacus_linear_fit", str(arrays(bench, folder)))
                )
                write(
                    asked.out,
                    f"\n{data.name}: rows are divided by {bench.norm:.4g}; "
                    f"{child.about['name']}.\n",
                )
            for epsilon in asked.epsilons:
                for blocks in asked.blocks:
                    cells = [
                        Cell(epsilon, *blocks_of(bench.n, blocks), passes)
                        for passes in asked.passes
                    ]
                    rows = [compare(bench, cell, child, asked) for cell in cells]
                    everything += [row for row in rows if row.found]
                    write(asked.out, table(bench, rows))
        if everything:
            write(asked.out, summary(bench, everything))


def write(path: Path, text: str) -> None:
    print(text, end="", flush=True)
    with path.open("a") as out:
        out.write(text)


if __name__ == "__main__":
    main(arguments())
