"""Public sets that come with scikit-learn, with their published ranges."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np

from lastiterate.data.columns import Array, Numeric
from lastiterate.data.schema import Schema
from lastiterate.data.table import Table
from lastiterate.errors import InputError

BUNDLED = ("digits", "breast_cancer", "wine", "iris", "diabetes")
_ON_THE_SET = "ranges as printed in the set's description; they were measured on the set itself, " \
              "which is fine for a public set and not for yours"
# age, sex code, body mass index, blood pressure, s1..s6 of the unscaled set (Efron et al. 2004), rounded outwards
_DIABETES = ((19, 79), (1, 2), (18, 43), (62, 133), (97, 301), (41, 243), (22, 100), (2, 10), (3.2, 6.2), (58, 124))


def load_bundled(name: str) -> tuple[Table, Schema]:
    """A public set and its schema."""
    from sklearn import datasets  # pyright: ignore

    if name not in BUNDLED:
        raise InputError("data set", "must be a file or one of " + ", ".join(BUNDLED), name)
    bunch = cast(Any, datasets.load_diabetes(scaled=False) if name == "diabetes" else
                 getattr(datasets, f"load_{name}")())
    table = Table(tuple(f"x{i}" for i in range(bunch.data.shape[1])), array=bunch.data, answers=bunch.target,
                  shape=(8, 8) if name == "digits" else None)
    if name == "diabetes":
        columns = tuple(Numeric(f"x{i}", *pair) for i, pair in enumerate(_DIABETES))
        return table, Schema(columns, target_range=(25.0, 346.0), source=_ON_THE_SET)
    classes = tuple(str(i) for i in range(len(bunch.target_names)))
    if name == "digits":
        return table, Schema(array=Array(0.0, 16.0), classes=classes, source="pixels count 0 to 16 by construction")
    printed = re.findall(r"^[^:\n]+:\s+([\d.]+)\s+([\d.]+)", bunch.DESCR, re.MULTILINE)[: bunch.data.shape[1]]
    columns = tuple(Numeric(f"x{i}", float(low), float(high)) for i, (low, high) in enumerate(printed))
    return table, Schema(columns, classes=classes, source=_ON_THE_SET)


def split(n: int, seed: int, test_fraction: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """A random split of 0..n-1 into train and test indices; for public sets."""
    order = np.random.default_rng(seed).permutation(n)
    cut = n - round(n * test_fraction)
    return np.sort(order[:cut]), np.sort(order[cut:])
