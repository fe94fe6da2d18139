"""The data sets of the benchmarks: loaders, random splits, small subsets; every range and norm is
public.

DATA_DIR holds ``mnist/`` (the four idx files, gzipped), ``adult/`` (adult.data, adult.test,
adult.names of UCI), ``cifar10_features.npz`` (x_train, y_train, x_test, y_test; any features of
norm at most 24) and ``pneumoniamnist.npz`` (MedMNIST v2).
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lastiterate.data import Category, Ignore, Numeric, Schema, Table, encode, load_bundled

ADULT_RANGES = {  # from the census questionnaire and its top codes
    "age": (17, 90),
    "education-num": (1, 16),
    "capital-gain": (0, 99999),
    "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
}


@dataclass(frozen=True, eq=False)
class Set:
    """Rows x (n, d) float32 and labels y (n,); a test part of its own or ``None``; the largest norm
    a row can have."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray | None
    y_test: np.ndarray | None
    row_norm: float

    @property
    def classes(self) -> int:
        return int(self.y.max()) + 1


def mnist(folder: Path) -> Set:
    def idx(name: str, offset: int) -> np.ndarray:
        return np.frombuffer(
            gzip.decompress((folder / "mnist" / f"{name}-ubyte.gz").read_bytes()), np.uint8
        )[offset:]

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        images = idx(f"{name}-images-idx3", 16).reshape(-1, 784)
        return (images / 255).astype(np.float32), idx(f"{name}-labels-idx1", 8).astype(int)

    return Set("MNIST pixels/255", *part("train"), *part("t10k"), 28.0)


def cifar(folder: Path) -> Set:
    data = np.load(folder / "cifar10_features.npz")
    x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    return Set(
        "CIFAR-10 features",
        x.astype(np.float32),
        y.astype(int).ravel(),
        x_test.astype(np.float32),
        y_test.astype(int).ravel(),
        24.0,
    )


def pneumonia(folder: Path) -> Set:
    data = np.load(folder / "pneumoniamnist.npz")

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        images = data[f"{name}_images"].reshape(len(data[f"{name}_images"]), -1)
        return (images / 255).astype(np.float32), data[f"{name}_labels"].astype(int).ravel()

    return Set("PneumoniaMNIST pixels/255", *part("train"), *part("test"), 28.0)


def adult(folder: Path) -> Set:
    train, schema = adult_part(folder, "adult.data")
    test, _ = adult_part(folder, "adult.test")
    return Set(
        "Adult, published categories and ranges",
        *encode(train, schema),
        *encode(test, schema),
        schema.form().norm,
    )


def adult_part(folder: Path, name: str, target: str = "income") -> tuple[Table, Schema]:
    """One file of Adult; ``target``: a numeric column to predict instead (income is then left out)."""
    described = re.findall(
        r"^([\w-]+): (.+)\.$", (folder / "adult" / "adult.names").read_text(), re.MULTILINE
    )
    columns = []
    for column, values in described:
        if column == target:
            continue
        if column == "fnlwgt":
            columns.append(Ignore(column))
        elif column in ADULT_RANGES:
            columns.append(Numeric(column, *ADULT_RANGES[column]))
        else:
            columns.append(
                Category(column, tuple(v.strip() for v in values.split(",")), missing="zero")
            )
    schema = (
        Schema(
            (*columns, Ignore("income")),
            target=target,
            target_range=ADULT_RANGES[target],
            source="adult.names",
        )
        if target in ADULT_RANGES
        else Schema(tuple(columns), target=target, classes=("<=50K", ">50K"), source="adult.names")
    )
    names = (*(column for column, _ in described), "income")
    rows = [
        [cell.strip().rstrip(".") for cell in row]
        for row in csv.reader((folder / "adult" / name).open())
        if len(row) == len(names)
    ]
    return Table(names, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), schema


def bundled(name: str) -> Set:
    table, schema = load_bundled(name)
    features, target = encode(table, schema)
    return Set(name, features, target, None, None, schema.form(features.shape[1:]).norm)


LOADERS: dict[str, Callable[[Path], Set]] = {
    "digits": lambda folder: bundled("digits"),
    "breast_cancer": lambda folder: bundled("breast_cancer"),
    "adult": adult,
    "mnist": mnist,
    "cifar": cifar,
    "pneumonia": pneumonia,
}
"""By short name; the first two come with scikit-learn and need no folder."""


def load(short: str, folder: Path) -> Set:
    """A set by its short name; ends the program with one sentence where its file is missing."""
    try:
        return LOADERS[short](folder)
    except FileNotFoundError as error:
        sys.exit(
            f"the set {short!r} needs {error.filename}: put it there as the docstring of "
            f"data_sets.py says, "
            f"or leave the set out"
        )


@dataclass(frozen=True, eq=False)
class Split:
    """Train rows and labels, test rows and labels."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def split(data: Set, seed: int) -> Split:
    """A random four fifths to train and the rest to test; 90 % of the train part where there is a
    test part."""
    order = np.random.default_rng(seed).permutation(len(data.x))
    cut = round(len(data.x) * (0.8 if data.x_test is None else 0.9))
    train, test = order[:cut], order[cut:]
    if data.x_test is None or data.y_test is None:
        return Split(data.x[train], data.y[train], data.x[test], data.y[test])
    return Split(data.x[train], data.y[train], data.x_test, data.y_test)


def subset(data: Set, rows: int | None) -> Set:
    """At most ``rows`` random records of each part, for trials; ``None`` keeps all."""
    if rows is None:
        return data
    rng = np.random.default_rng(0)
    kept = rng.permutation(len(data.x))[:rows]
    small = replace(
        data, name=f"{data.name}, {len(kept)} random records", x=data.x[kept], y=data.y[kept]
    )
    if data.x_test is None or data.y_test is None:
        return small
    kept = rng.permutation(len(data.x_test))[:rows]
    return replace(small, x_test=data.x_test[kept], y_test=data.y_test[kept])


def unit_rows(rows: np.ndarray, norm: float, constant: float) -> np.ndarray:
    """Rows divided by ``norm``, scaled down to norm 1 where longer, with a constant last column;
    (n, d + 1) float32.

    All methods of a comparison read this one array, so that none is better prepared than another.
    """
    scaled = np.asarray(rows, np.float64) / norm
    scaled /= np.maximum(1.0, np.linalg.norm(scaled, axis=1, keepdims=True))
    return np.concatenate((scaled, np.full((len(scaled), 1), constant)), axis=1).astype(np.float32)
