"""Time of one private training step: lastiterate, Opacus and jax-privacy, interleaved in one run.

python -m benchmarks.speed.linear_step_peers --opacus-python PYTHON --jaxprivacy-python PYTHON --out FILE.md   (minutes)
python -m benchmarks.speed.linear_step_peers --opacus-python PYTHON --jaxprivacy-python PYTHON --records 5000 --rounds 3

PYTHON: interpreters of environments with ``pip install torch opacus`` and ``pip install jax-privacy
optax``, also by OPACUS_PYTHON and JAXPRIVACY_PYTHON; a library without one is left out. The second
command is a trial.

The task (timed_bursts.py): softmax regression, 50,000 rows of 512 float32 features and a constant,
10 classes, batch 500, every gradient clipped or bounded at the same norm, the same noise
multiplier. Every library lives in a process of its own and does bursts of steps when it is told to,
so that only one works at a time. In every round each has one burst, starting with another one each
round; ratios are taken inside a round, so that other load falls on both sides. Bursts of every
library last about as long, because a scheduler treats short ones better. CPU time (of all threads
of the process) hardly depends on other load; it is the fairer number where cores are shared.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.peers.child_process import JAX_PRIVACY, OPACUS, Child
from benchmarks.peers.timed_bursts import BATCH, D, K, N, quartiles

NOTE = """Every process works alone, on data in memory, without a DataLoader. Batches are slices in public order,
except in "poisson", which draws them as Opacus' accountant assumes. Opacus keeps one thread or all of them,
jax-privacy its microbatches, whichever was faster at the start. lastiterate's hidden step computes in float64 with
float64 noise, its charged step (Nesterov momentum) adds float32 sums in float64, the other libraries use float32
throughout. lastiterate knows the gradient of a linear model in closed form and bounds it by the rows' norm; the
others differentiate and clip record by record, which serves any model.
"""


def contestants(asked: argparse.Namespace) -> list[tuple[str, str, tuple[str, ...]]]:
    """Interpreter, script and flags of every child; ours is first, everything is measured against
    it."""
    found = [
        (sys.executable, "lastiterate_linear_step", ("--mode", mode))
        for mode in ("hidden", "charged")
    ]
    if (python := OPACUS.python(asked)) is not None:
        found += [
            (python, "opacus_linear_step", ("--mode", mode))
            for mode in ("ghost", "hooks", "poisson")
        ]
    if (python := JAX_PRIVACY.python(asked)) is not None:
        found.append((python, "jaxprivacy_linear_step", ()))
    return found


Times = list[dict[str, float]]
"""One child's bursts, one per round: milliseconds a step, ``ms`` by the clock and ``cpu_ms`` of all
threads."""


def measure(children: list[Child], rounds: int, seconds: float) -> list[Times]:
    """Every child's bursts; ``seconds`` is about what a burst takes."""
    taken: list[Times] = [[] for _ in children]
    counts = [max(3, round(seconds * 1e3 / child.ask(go=5)["ms"])) for child in children]
    for number in range(rounds):
        for place in range(len(children)):
            which = (number + place) % len(children)
            time.sleep(0.2)  # the last one's threads spin for a while before they sleep
            taken[which].append(children[which].ask(go=counts[which]))
    return taken


def table(children: list[Child], taken: list[Times]) -> str:
    """Medians, interquartile ranges and ratios inside a round."""
    lines = [
        "| step | threads | ms | IQR | CPU ms | IQR | time against the first | IQR | CPU time "
        "against the first "
        "| IQR |",
        "|" + "---|" * 10,
    ]
    for child, bursts in zip(children, taken, strict=True):
        cells = [quartiles([burst[clock] for burst in bursts]) for clock in ("ms", "cpu_ms")]
        cells += [
            quartiles(
                [burst[clock] / first[clock] for burst, first in zip(bursts, taken[0], strict=True)]
            )
            for clock in ("ms", "cpu_ms")
        ]
        lines.append(
            f"| {child.about['name']} ({child.about['versions']}) | {child.about['threads']} | "
            + " | ".join(f"{middle:.2f} | {spread:.2f}" for middle, spread in cells)
            + " |"
        )
    return "\n".join(lines) + "\n"


def arguments() -> argparse.Namespace:
    given = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    given.add_argument("--out", type=Path, help="Markdown file that a section is appended to")
    given.add_argument("--records", type=int, default=N)
    given.add_argument("--rounds", type=int, default=31)
    given.add_argument("--seconds", type=float, default=0.2, help="how long a burst takes, about")
    OPACUS.option(given)
    JAX_PRIVACY.option(given)
    return given.parse_args()


def main(asked: argparse.Namespace) -> None:
    """Start all children, let them take turns, print the section."""
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                Child(python, script, "--serve", "--records", str(asked.records), *flags)
            )
            for python, script, flags in contestants(asked)
        ]
        taken = measure(children, asked.rounds, asked.seconds)
    said = (
        "\n## A private step against other libraries\n\n"
        f"`python -m benchmarks.speed.linear_step_peers`: {asked.records} x {D} float32, {K} "
        f"classes, "
        f"batches of {BATCH}, {asked.rounds} rounds of bursts of {asked.seconds:g} s, medians; "
        f"{os.cpu_count()} cores with other load, "
        "so read the ratios (taken inside a round), best those of CPU "
        f"time.\n\n{table(children, taken)}\n{NOTE}"
    )
    print(said)
    if asked.out is not None:
        with asked.out.open("a") as out:
            out.write(said)


if __name__ == "__main__":
    main(arguments())
