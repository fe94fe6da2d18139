"""Tables of the headline experiment: methods, one row for every budget, batch size and number of
passes."""

from __future__ import annotations

from dataclasses import dataclass

import lastiterate as li
from benchmarks.peers.poisson_noise import poisson_noise
from benchmarks.utility.linear_fits import Bench, Setting, certified, run_of
from benchmarks.utility.tuning import Tuned

OWN = {
    "permuted": (li.Permuted, "last"),
    "cyclic": (li.Cyclic, "last"),
    "composition": (li.Cyclic, "all"),
}
OPACUS = ("Opacus, same clip", "Opacus, tuned clip")


@dataclass(frozen=True)
class Cell:
    """One row of a table."""

    epsilon: float
    batch: int
    blocks: int
    passes: int

    @property
    def steps(self) -> int:
        return self.blocks * self.passes


@dataclass(frozen=True, eq=False)
class Row:
    """A cell's methods, each at its best setting, and how much more CPU time than ours Opacus' fits
    took."""

    cell: Cell
    found: dict[str, Tuned]
    slower: float | None


def noises(bench: Bench, cell: Cell) -> dict[str, float]:
    """Noise multipliers of the runs of OWN at steps of 1/smooth without a ridge, and of Poisson
    sampling."""
    found = {
        name: certified(
            run_of(bench, Setting(1.0), batching(cell.batch), cell.steps),
            proof,
            cell.epsilon,
            bench.delta,
        )[0]
        for name, (batching, proof) in OWN.items()
    }
    question = {
        "rate": cell.batch / bench.n,
        "steps": cell.steps,
        "epsilon": cell.epsilon,
        "delta": bench.delta,
    }
    logged = bench.log.once(
        {"poisson": question}, lambda: {"noise_multiplier": poisson_noise(**question)}
    )
    return found | {"Poisson": logged["noise_multiplier"]}


def show(one: Tuned | None, usual: float) -> str:
    """Accuracy with what was chosen, and its noise multiplier where it is not the ``usual`` one."""
    if one is None:
        return "-"
    z = one.mean("noise_multiplier")
    return f"{one.accuracy()} ({one.setting}{f', noise {z:.3f}' if z > 1.01 * usual else ''})"


def table(bench: Bench, rows: list[Row]) -> str:
    """Noise multipliers, accuracies and relative times over the number of passes."""
    first = rows[0].cell
    lines = [
        f"\n### {bench.data.name}: epsilon {first.epsilon:g}, {first.blocks} blocks of "
        f"{first.batch}\n",
        "| passes | noise: permuted | cyclic | composition | Poisson (PLD) | accuracy: permuted, "
        "last iterate "
        "| cyclic, last iterate | cyclic, composition's noise | Opacus, same clip | Opacus, tuned "
        "clip "
        "| Opacus' CPU time / permuted's |",
        "|" + "---|" * 11,
    ]
    said: list[tuple[float, float]] = []
    for row in rows:
        noise = noises(bench, row.cell)
        cells = [
            str(row.cell.passes),
            *(f"{z:.3f}" for z in noise.values()),
            *(
                show(row.found.get(name), noise.get(name, noise["Poisson"]))
                for name in (*OWN, *OPACUS)
            ),
            "-" if row.slower is None else f"{row.slower:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        said += [
            (fit["epsilon_prv"], fit["epsilon_rdp"])
            for name in OPACUS
            if name in row.found
            for fit in row.found[name].fits
        ]
    if said:
        (low, high), (low_rdp, high_rdp) = (
            (min(column), max(column)) for column in zip(*said, strict=True)
        )
        lines.append(
            f"\nOpacus' own accountants say epsilon {low:.3f} to {high:.3f} (PRV) and "
            f"{low_rdp:.3f} to "
            f"{high_rdp:.3f} (RDP) of its runs in this table."
        )
    return "\n".join(lines) + "\n"


def summary(bench: Bench, rows: list[Row]) -> str:
    """Every method's best over passes and batch sizes."""
    names = [name for name in (*OWN, *OPACUS) if name in rows[0].found]
    lines = [
        f"\n### {bench.data.name}: the best of all passes x batches above\n",
        "| epsilon | " + " | ".join(names) + " |",
        "|" + "---|" * (1 + len(names)),
    ]
    for epsilon in dict.fromkeys(row.cell.epsilon for row in rows):
        best = []
        for name in names:
            row = max(
                (row for row in rows if row.cell.epsilon == epsilon),
                key=lambda row: row.found[name].mean("accuracy"),
            )
            best.append(f"{row.found[name].accuracy()} ({row.cell.passes} x {row.cell.blocks})")
        lines.append(f"| {epsilon:g} | " + " | ".join(best) + " |")
    return "\n".join(lines) + "\n"
