"""Accuracy of the automatic plan at epsilon 1, delta 1e-5, zero-out; splits and noise varied over 10 seeds.

python benchmarks/utility.py DATA_DIR [SEEDS]        DATA_DIR as its README describes: mnist/, adult/, *.npz
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lastiterate.data import Category, Ignore, Numeric, Schema, Table, encode, load_bundled
from lastiterate.estimators import DPLogisticRegression
from lastiterate.workflow import public_row_norm

Set = tuple[str, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None, float]
ADULT_RANGES = {  # from the census questionnaire and its top codes
    "age": (17, 90), "education-num": (1, 16), "capital-gain": (0, 99999), "capital-loss": (0, 4356),
    "hours-per-week": (1, 99),
}


def idx(path: Path, offset: int) -> np.ndarray:
    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8)[offset:]


def mnist(folder: Path) -> Set:
    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        images = idx(folder / "mnist" / f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 784)
        return (images / 255).astype(np.float32), idx(folder / "mnist" / f"{name}-labels-idx1-ubyte.gz", 8).astype(int)
    return ("MNIST pixels/255", *part("train"), *part("t10k"), 28.0)


def cifar(folder: Path) -> Set:
    data = np.load(folder / "cifar10_features.npz")
    x, y, x_test, y_test = (data[k] for k in ("x_train", "y_train", "x_test", "y_test"))
    return ("CIFAR-10 features", x.astype(np.float32), y.astype(int).ravel(), x_test.astype(np.float32),
            y_test.astype(int).ravel(), 24.0)


def pneumonia(folder: Path) -> Set:
    data = np.load(folder / "pneumoniamnist.npz")

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        images = data[f"{name}_images"].reshape(len(data[f"{name}_images"]), -1)
        return (images / 255).astype(np.float32), data[f"{name}_labels"].astype(int).ravel()
    return ("PneumoniaMNIST pixels/255", *part("train"), *part("test"), 28.0)


def adult(folder: Path) -> Set:
    described = re.findall(r"^([\w-]+): (.+)\.$", (folder / "adult" / "adult.names").read_text(), re.MULTILINE)
    columns = []
    for name, values in described:
        if name == "fnlwgt":
            columns.append(Ignore(name))
        elif name in ADULT_RANGES:
            columns.append(Numeric(name, *ADULT_RANGES[name]))
        else:
            columns.append(Category(name, tuple(v.strip() for v in values.split(",")), missing="zero"))
    schema = Schema(tuple(columns), target="income", classes=("<=50K", ">50K"), source="adult.names")
    names = (*(c.name for c in columns), "income")

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        rows = [[cell.strip().rstrip(".") for cell in row] for row in csv.reader((folder / "adult" / name).open())
                if len(row) == len(names)]
        return encode(Table(names, dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), schema)
    return ("Adult, published categories and ranges", *part("adult.data"), *part("adult.test"),
            public_row_norm(schema, 0))


def bundled(name: str) -> Set:
    table, schema = load_bundled(name)
    features, target = encode(table, schema)
    return (name, features, target, None, None, public_row_norm(schema, features.shape[1]))


def sets(folder: Path) -> Iterator[Set]:
    yield bundled("digits")
    yield bundled("breast_cancer")
    for load in (adult, mnist, cifar, pneumonia):
        if folder.is_dir():
            yield load(folder)


def main(folder: Path, seeds: int) -> None:
    """Print one row per set. Where a set has its own test part, training takes a random 90 % of the train part."""
    print("| set | n | accuracy, mean | sd | replace-one epsilon | theorem | steps | seconds a fit |")
    print("|---|---|---|---|---|---|---|---|")
    for name, x, y, x_test, y_test, norm in sets(folder):
        found, taken = [], []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(x))
            cut = round(len(x) * (0.8 if x_test is None else 0.9))
            train, test = order[:cut], order[cut:]
            model = DPLogisticRegression(epsilon=1.0, delta=1e-5, row_norm=norm, classes=range(y.max() + 1),
                                         random_state=seed)
            began = time.perf_counter()
            model.fit(x[train], y[train])
            taken.append(time.perf_counter() - began)
            found.append(model.score(x[test], y[test]) if x_test is None else model.score(x_test, y_test))
        certificate = model.certificate_
        print(f"| {name} | {cut} | {np.mean(found):.4f} | {np.std(found):.4f} | "
              f"{certificate.replace_one_epsilon(1e-5):.3f} | {certificate.best(1e-5).theorem.name} | "
              f"{certificate.run.steps} | {np.median(taken):.1f} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("data"), int(sys.argv[2]) if len(sys.argv) > 2 else 10)
