"""The sets of the leaderboard's first screen: records before any map, and the public facts about
them.

DATA_DIR: see data_sets.py; beside it ``randhie.csv`` and ``fair.csv``, files of the package
statsmodels (in its ``datasets/randhie`` and ``datasets/fair``).

Synthetic tables draw labels from a known chance, whose own accuracy and log loss nothing can beat.
They are not those that constants of the library were chosen on (curved_tables.py, probabilities.py,
synthetic_families.py): other effects, other laws of the columns, other seeds.

``LAST``: two real tables that nobody fitted before everything else stood still. They are looked at
once, at the end, with one command, and nothing is changed afterwards.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.utility.data_sets import adult_part, cifar, mnist, pneumonia
from lastiterate.data import Category, Numeric, Schema, load_bundled
from lastiterate.data.columns import Array

LAST = ("randhie", "fair")
Records = Any
"""A dictionary of columns, or an array (n, ...)."""


@dataclass(frozen=True, eq=False)
class Part:
    """Records and class indices y (n,); ``chance`` (n, classes): of each class, where it is known."""

    records: Records
    y: np.ndarray
    chance: np.ndarray | None = None

    def rows(self, places: np.ndarray) -> Part:
        """The records at these places."""
        records = (
            self.records[places]
            if isinstance(self.records, np.ndarray)
            else {name: np.asarray(column)[places] for name, column in self.records.items()}
        )
        return Part(records, self.y[places], None if self.chance is None else self.chance[places])


@dataclass(frozen=True, eq=False)
class BoardSet:
    """``test``: a test part of its own; without one every seed draws a fifth of the records."""

    title: str
    schema: Schema
    train: Part
    test: Part | None = None

    @property
    def classes(self) -> int:
        return len(self.schema.classes)

    def parts(self, seed: int) -> tuple[Part, Part]:
        """Train and test records of one seed: a random split, or the set's own, where seeds vary
        the noise alone."""
        if self.test is not None:
            return self.train, self.test
        order = np.random.default_rng(seed).permutation(len(self.train.y))
        cut = round(len(order) * 0.8)
        return self.train.rows(order[:cut]), self.train.rows(order[cut:])


def bundled(name: str) -> BoardSet:
    table, schema = load_bundled(name)
    assert table.array is not None and table.answers is not None
    shaped = table.array.reshape(-1, *table.shape) if table.shape else table.array
    return BoardSet(
        name, schema, Part(shaped.astype(np.float32), np.asarray(table.answers).astype(int))
    )


def images(found: Any, side: int | None) -> BoardSet:
    """An array set of data_sets.py; ``side``: of square pictures."""
    low, high = (0.0, 1.0) if side else (0.0, float(found.row_norm))
    array = Array(low, high)

    def part(x: np.ndarray, y: np.ndarray) -> Part:
        return Part(x.reshape(-1, side, side) if side else x, y)

    return BoardSet(
        found.name,
        Schema(array=array, classes=tuple(map(str, range(found.classes)))),
        part(found.x, found.y),
        part(found.x_test, found.y_test),
    )


def superclasses(folder: Path) -> BoardSet:
    """Natural images in colour, 30,000 + 6,000 records of the 20 superclasses of CIFAR-100."""
    with np.load(folder / "natural_superclasses.npz") as data:
        train, test = (
            Part(data[f"x_{name}"] / np.float32(255), data[f"y_{name}"].astype(int).ravel())
            for name in ("train", "test")
        )
    schema = Schema(array=Array(0.0, 1.0), classes=tuple(map(str, range(20))))
    return BoardSet("natural images of 20 classes", schema, train, test)


def adult(folder: Path) -> BoardSet:
    """Published ranges and categories; amounts of money, which have heavy tails, by their
    logarithm; what is missing has an indicator."""

    def part(name: str) -> tuple[Part, Schema]:
        table, schema = adult_part(folder, name)
        assert table.cells is not None
        y = np.array([schema.classes.index(label) for label in table.cells[schema.target]])
        return Part({c.name: table.cells[c.name] for c in schema.columns}, y), schema

    (train, schema), (test, _) = part("adult.data"), part("adult.test")
    columns = tuple(
        replace(c, missing="indicator")
        if isinstance(c, Category)
        else replace(c, scale="log")
        if c.name.startswith("capital") and isinstance(c, Numeric)
        else c
        for c in schema.columns
    )
    return BoardSet("Adult, original split", replace(schema, columns=columns), train, test)


def from_csv(
    path: Path, title: str, columns: tuple[Numeric | Category, ...], counted: str
) -> BoardSet:
    """Whether the column ``counted`` is positive, from the others."""
    rows = list(csv.DictReader(path.open(encoding="utf-8")))
    records = {c.name: [row[c.name] for row in rows] for c in columns}
    y = np.array([float(row[counted]) > 0 for row in rows]).astype(int)
    return BoardSet(title, Schema(columns, classes=("0", "1")), Part(records, y))


def randhie(folder: Path) -> BoardSet:
    """Any outpatient visit, of the RAND health insurance experiment; ranges by the meaning of the
    columns."""
    numbers = (
        ("lncoins", 0, 4.62),
        ("idp", 0, 1),
        ("lpi", 0, 8),
        ("fmde", 0, 10),
        ("physlm", 0, 1),
        ("disea", 0, 60),
        ("hlthg", 0, 1),
        ("hlthf", 0, 1),
        ("hlthp", 0, 1),
    )
    return from_csv(
        folder / "randhie.csv",
        "RAND health insurance, any visit",
        tuple(Numeric(*one) for one in numbers),
        "mdvis",
    )


def fair(folder: Path) -> BoardSet:
    """Any affair, of Fair's survey (1978); the occupations are categories."""
    numbers = (
        ("rate_marriage", 1, 5),
        ("age", 15, 60),
        ("yrs_married", 0, 30),
        ("children", 0, 6),
        ("religious", 1, 4),
        ("educ", 9, 20),
    )
    kinds = tuple(Category(name, tuple("123456")) for name in ("occupation", "occupation_husb"))
    return from_csv(
        folder / "fair.csv",
        "Fair's survey, any affair",
        (*(Numeric(*one) for one in numbers), *kinds),
        "affairs",
    )


def shifted(score: np.ndarray, positives: float) -> np.ndarray:
    """Chances whose mean is ``positives``."""
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(score + middle).mean() < positives else (low, middle)
    return expit(score + low)


def drawn(
    title: str,
    n: int,
    seed: int,
    columns: tuple[Numeric | Category, ...],
    cells: dict[str, np.ndarray],
    chance: np.ndarray,
) -> BoardSet:
    """Labels from chances: of the second of two classes (n + test,), or of every class (n + test,
    classes)."""
    both = chance if chance.ndim == 2 else np.column_stack((1 - chance, chance))
    uniform = np.random.default_rng(seed + 1).random(len(both))
    y = np.minimum((uniform[:, None] > both.cumsum(axis=1)).sum(axis=1), both.shape[1] - 1)
    every = Part(cells, y, both)
    places = np.arange(len(y))
    schema = Schema(columns, classes=tuple(map(str, range(both.shape[1]))))
    return BoardSet(title, schema, every.rows(places[:n]), every.rows(places[n:]))


def numbers(
    rng: np.random.Generator, n: int, count: int
) -> tuple[tuple[Numeric, ...], dict[str, np.ndarray], np.ndarray]:
    """Columns with mixed laws and dependences, and what they are in units of their spread."""
    base = rng.normal(size=(n, count)) @ (np.eye(count) + 0.3 * rng.normal(size=(count, count)))
    base /= base.std(axis=0)
    columns, cells = list[Numeric](), dict[str, np.ndarray]()
    for i in range(count):
        match i % 3:
            case 0:
                column, values = Numeric(f"n{i}", 0, 100), 50 + 15 * base[:, i]
            case 1:
                column, values = Numeric(f"n{i}", 0, 1), expit(1.5 * base[:, i])
            case _:
                column, values = (
                    Numeric(f"n{i}", 0, 50_000, scale="log"),
                    np.exp(6 + 1.3 * base[:, i]),
                )
        columns.append(column)
        cells[f"n{i}"] = values
    return tuple(columns), cells, base


TEST = 20_000


def synthetic(kind: str) -> BoardSet:
    """One of the synthetic tables by its name."""
    seed = 7_000 + sorted(SYNTHETIC).index(kind) * 10
    rng, (n, count, positives) = np.random.default_rng(seed), SYNTHETIC[kind]
    columns, cells, z = numbers(rng, n + TEST, count)
    weights = rng.normal(size=count)
    title = f"synthetic: {kind}"
    if kind == "three classes":
        scores = (
            z @ rng.normal(size=(count, 3)) * 0.6
            + np.sin(1.5 * z) @ rng.normal(size=(count, 3)) * 0.5
        )
        chance = np.exp(scores - scores.max(axis=1, keepdims=True))
        return drawn(title, n, seed, columns, cells, chance / chance.sum(axis=1, keepdims=True))
    score = z @ weights
    if kind in ("waves", "few records", "rare positives", "categories"):
        score = np.sin(1.7 * z + rng.uniform(0, 6, count)) @ weights + 0.4 * np.maximum(
            z, 0.5
        ) @ rng.normal(size=count)
    if kind == "products":
        score = score / score.std() + (z[:, :2] * z[:, 2:4]).sum(axis=1) * 0.7
    more: tuple[Category, ...] = ()
    if kind == "categories":
        for i, size in enumerate((3, 7, 15, 40)):
            code = rng.choice(size, n + TEST, p=rng.dirichlet(np.full(size, 1.0)))
            score = score + rng.normal(size=size)[code] * 0.7 * score.std()
            cells[f"c{i}"], more = (
                np.array([str(one) for one in code]),
                (*more, Category(f"c{i}", tuple(map(str, range(size))))),
            )
    spread = {"rare positives": 1.5}.get(kind, 1.8)
    return drawn(
        title, n, seed, (*columns, *more), cells, shifted(spread * score / score.std(), positives)
    )


SYNTHETIC: dict[str, tuple[int, int, float]] = {
    "lines": (8_000, 12, 0.4),
    "waves": (20_000, 9, 0.5),
    "rare positives": (30_000, 9, 0.04),
    "categories": (10_000, 6, 0.3),
    "products": (20_000, 8, 0.5),
    "few records": (1_000, 6, 0.5),
    "three classes": (8_000, 9, 0.0),
}
"""Records to train on, columns of numbers, positives; 20,000 more records are tested on."""

SETS: dict[str, Callable[[Path], BoardSet]] = {
    "breast_cancer": lambda _: bundled("breast_cancer"),
    "wine": lambda _: bundled("wine"),
    "iris": lambda _: bundled("iris"),
    "adult": adult,
    **{kind: lambda _, kind=kind: synthetic(kind) for kind in SYNTHETIC},
    "randhie": randhie,
    "fair": fair,
    "digits": lambda _: bundled("digits"),
    "pneumonia": lambda folder: images(pneumonia(folder), 28),
    "mnist": lambda folder: images(mnist(folder), 28),
    "cifar": lambda folder: images(cifar(folder), None),
    "superclasses": superclasses,
}
PICTURES = ("digits", "pneumonia", "mnist", "cifar", "superclasses")
