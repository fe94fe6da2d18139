"""What is supported: a map of batches and theorems, and a matrix, both asked of the tables (an
mkdocs hook).

Every cell is the answer of the accountant to one small run: which theorems certify it, why it
cannot be described, or that nothing certifies it. Kinds of batches, noise, neighbours and update
rules are the unions that the library reads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any, get_args

import lastiterate as li
from lastiterate.errors import InputError
from lastiterate.run.adjacency import Adjacency
from lastiterate.run.batching import Batching
from lastiterate.theorems import TABLE

N, BLOCK = 1000, 100
NUMBERS = {"size": BLOCK, "rate": BLOCK / N}
NOISES: dict[str, Any] = {
    "GradientNoise": li.GradientNoise(0.05),
    "NoiseMultiplier": li.NoiseMultiplier(5.0),
    "Langevin": li.Langevin(0.05),
    "Correlated": li.Correlated(5.0, 5),
}
"""A noise of each kind."""
INDEPENDENT = "independent noise (GradientNoise, NoiseMultiplier, Langevin)"
UPDATES: dict[str, Any] = {
    "HeavyBall": li.HeavyBall(0.9),
    "Nesterov": li.Nesterov(),
    "Adam": li.Adam(),
    "PostProcessing": li.PostProcessing("optax.lion"),
}
"""A rule of each kind; ``None`` is plain steps."""
STEP_SIZES: dict[str | None, float] = {"PostProcessing": 1.0}
"""Rules that have step sizes of their own."""
LOSSES: dict[str, Any] = {
    "strongly convex": (
        li.Logistic(ridge=0.01),
        None,
        "a linear model with a ridge: convex, smooth, bounded gradients",
    ),
    "any": (
        li.KnownConstants(li.LossFacts()),
        1.0,
        "any loss whose gradients are clipped, such as a network's",
    ),
}
"""A loss, a clip, and what it stands for."""


@dataclass(frozen=True)
class Cell:
    """``certified``: names of theorems; ``refused``: why such a run cannot be described, "" where
    it can."""

    certified: tuple[str, ...] = ()
    refused: str = ""

    @property
    def text(self) -> str:
        """One cell of Markdown."""
        if self.refused:
            return f"not possible: {self.refused}"
        return (
            ", ".join(f"[{name}](table/{name}.md)" for name in self.certified)
            or "**open**: nothing certifies it"
        )


def batchings() -> dict[str, Any]:
    """A batching of each kind."""
    found: dict[str, Any] = {}
    for kind in get_args(Batching):
        fields = getattr(kind, "__dataclass_fields__", {})
        found[kind.__name__] = kind(*(NUMBERS[name] for name in fields if name in NUMBERS))
    return found


@cache
def cell(
    batching: str, noise: str, adjacency: str, update: str | None, loss: str, release: str = "last"
) -> Cell:
    """What the accountant says of one small run."""
    described, clip, _ = LOSSES[loss]
    try:
        run = li.Run(
            n=N,
            steps=30,
            step_size=STEP_SIZES.get(update, 0.1),
            noise=NOISES[noise],
            clip=clip,
            batching=batchings()[batching],
            adjacency=adjacency,
            loss=described,
            release=release,
            optimizer=None if update is None else UPDATES[update],
        )
        found = li.account(run)
    except InputError as error:
        return Cell(refused=str(error).split(", got ")[0].rstrip("."))
    return Cell(tuple(verdict.theorem.name for verdict in found.certifying))


def combined(
    batching: str, noises: tuple[str, ...], adjacency: str, update: str | None, loss: str
) -> Cell:
    """The same for several kinds of noise that one theorem sees alike: what certifies any of them."""
    cells = [cell(batching, noise, adjacency, update, loss) for noise in noises]
    names = {name for each in cells for name in each.certified}
    if names:
        return Cell(tuple(name for name in TABLE if name in names))
    return next((each for each in cells if not each.refused), cells[0])


def groups() -> dict[str, tuple[str, ...]]:
    """Kinds of noise, those that are independent over steps together."""
    apart = tuple(name for name, noise in NOISES.items() if not noise.independent)
    return {
        INDEPENDENT: tuple(name for name in NOISES if name not in apart),
        **{name: (name,) for name in apart},
    }


def rows(loss: str) -> Iterator[tuple[str, str, str, str, Cell]]:
    """Batching, noise, update rule, neighbours, cell."""
    for batching in batchings():
        for noise, kinds in groups().items():
            for update in (None, *UPDATES):
                for adjacency in get_args(Adjacency):
                    yield (
                        batching,
                        noise,
                        update or "plain",
                        adjacency,
                        combined(batching, kinds, adjacency, update, loss),
                    )


def matrix(loss: str) -> str:
    """A table for one loss; rows that say the same of several rules or neighbours are one."""
    merged: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for batching, noise, update, adjacency, found in rows(loss):
        merged.setdefault((batching, noise.split(" (")[0], found.text), []).append(
            (update, adjacency)
        )
    lines = [
        "| batches | noise | update rule | neighbours | certified by |",
        "|---|---|---|---|---|",
    ]
    for (batching, noise, text), pairs in merged.items():
        by_rule: dict[tuple[str, ...], list[str]] = {}
        for update in dict.fromkeys(update for update, _ in pairs):
            by_rule.setdefault(tuple(each for name, each in pairs if name == update), []).append(
                update
            )
        lines += [
            f"| `{batching}` | {noise} | {', '.join(rules)} | {', '.join(near)} | {text} |"
            for near, rules in by_rule.items()
        ]
    return "\n".join(lines)


WIDE, STEP, LEFT, RIGHT = 760, 26, 190, 470


def picture() -> str:
    """Batches on the left, theorems on the right, a line where one certifies the other; every name
    is a link."""
    found = {
        name: {
            theorem
            for loss in LOSSES
            for noises in groups().values()
            for near in get_args(Adjacency)
            for theorem in combined(name, noises, near, None, loss).certified
        }
        for name in batchings()
    }
    names = [name for name in TABLE if any(name in each for each in found.values())]
    high = STEP * (len(names) + 1)
    left = {name: high * (i + 0.5) / len(found) for i, name in enumerate(found)}
    right = {name: STEP * (i + 0.8) for i, name in enumerate(names)}
    lines = [
        f'<path class="{batch}" d="M{LEFT},{left[batch]:.0f} C{LEFT + 140},{left[batch]:.0f} '
        f"{RIGHT - 140},"
        f'{right[name]:.0f} {RIGHT},{right[name]:.0f}"/>'
        for batch, each in found.items()
        for name in names
        if name in each
    ]
    words = [
        f'<a href="#{batch.lower()}"><text x="{LEFT - 8}" y="{y + 4:.0f}" '
        f'text-anchor="end">{batch}</text></a>'
        for batch, y in left.items()
    ]
    words += [
        f'<a href="table/{name}.html"><text x="{RIGHT + 8}" '
        f'y="{y + 4:.0f}">{escape(name)}</text></a>'
        for name, y in right.items()
    ]
    return (
        f'<svg class="theorem-map" viewBox="0 0 {WIDE} {high}" role="group" '
        'aria-label="Batches and the theorems that certify them">'
        f"{''.join(lines)}{''.join(words)}</svg>"
    )


def first(batching: str) -> str:
    """The neighbours that most people ask a batching about."""
    return "add-remove" if batching == "Poisson" else "zero-out"


def page() -> str:
    """The whole page, in Markdown."""
    tables = "\n\n".join(
        f"## {about[0].upper() + about[1:]}\n\n{matrix(name)}"
        for name, (_, _, about) in LOSSES.items()
    )
    lists = "\n\n".join(
        f"### {name}\n\n"
        + "\n".join(
            f"- {about}: {combined(name, tuple(NOISES), first(name), None, loss).text}"
            for loss, (_, _, about) in LOSSES.items()
        )
        for name in batchings()
    )
    return f"""# Batches, theorems and neighbours: the matrix

Find your batches, noise, update rule and neighbours, and read which theorems certify them. The accountant answers each
cell while this page is made: n = {N}, blocks of {BLOCK}, 30 steps, the last iterate released.

| a cell | means |
|---|---|
| names of theorems | certified; each name leads to its formula, assumptions, source and proof note |
| *open* | the run can be described, and no theorem certifies it |
| *not possible* | the description is refused, with the reason |

Theorems that need a bounded domain, a Gaussian start or a constant that you state are not shown; `lastiterate account`
asks all of them.

{picture()}

## Which batches, which theorem

{lists}

{tables}
"""


def on_config(config: Any) -> Any:
    """Put the page first in the reference."""
    next(part["Reference"] for part in config.nav if "Reference" in part).insert(
        0, {"Batches, theorems and neighbours: the matrix": "support.md"}
    )
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the page; leave this file out of the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "support.md", content=page()))
    files.remove(files.get_file_from_path("generate_support.py"))
    return files


if __name__ == "__main__":
    sys.stdout.write(page())
