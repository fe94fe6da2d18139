"""Private preparation of rows: what is measured on them with noise, and how they change.

One entry of the table for every part: what it releases about rows, slice by slice, and what it then does to any row, in
training and in prediction alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.engine.gaussian_noise import Key
from lastiterate.engine.preparation.cosines import noisy_cosines, with_cosines
from lastiterate.engine.preparation.covariance import noisy_moments, unit_rows, whitened, whitening
from lastiterate.engine.preparation.mean import centred, noisy_mean
from lastiterate.engine.preparation.target_mean import noisy_target_mean
from lastiterate.engine.rows import square_roots
from lastiterate.errors import InputError
from lastiterate.run.preparation import (
    CosineFeatures,
    PrivateCovariance,
    PrivateMean,
    PrivateTargetMean,
    SquareRoots,
    TopEigenvalue,
    UnitRows,
)

Slices = Iterable[np.ndarray]


@dataclass(frozen=True)
class Executed:
    """How a part of the preparation is executed.

    ``release(part, slices, n, d, key)``: what it publishes about rows (n, d) that the parts before it have prepared, or
    about targets (n,).
    ``apply(part, rows, measured)``: the rows after it; a map of single rows.
    """

    release: Callable[[Any, Slices, int, int, Key], np.ndarray]
    apply: Callable[[Any, np.ndarray, np.ndarray], np.ndarray]


def _covariance(part: PrivateCovariance, slices: Slices, n: int, d: int, key: Key) -> np.ndarray:
    return whitening(part, noisy_moments(slices, d, part, key), n)


NOTHING = np.zeros(0)
PARTS: dict[type, Executed] = {
    PrivateMean: Executed(lambda part, slices, n, d, key: noisy_mean(slices, n, d, part, key), centred),
    PrivateTargetMean: Executed(lambda part, slices, n, d, key: noisy_target_mean(slices, n, part, key),
                                lambda part, rows, measured: rows),
    SquareRoots: Executed(lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: square_roots(rows)),
    UnitRows: Executed(lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: unit_rows(rows)),
    CosineFeatures: Executed(lambda part, slices, n, d, key: noisy_cosines(slices, n, part, key), with_cosines),
    PrivateCovariance: Executed(_covariance, whitened),
    # measured where the steps read the rows, with their intercept: engine/model.py
    TopEigenvalue: Executed(lambda part, slices, n, d, key: NOTHING, lambda part, rows, measured: rows),
}


def executed(part: object) -> Executed:
    """How ``part`` is executed; what is not in the table is refused."""
    if type(part) not in PARTS:
        raise InputError("prelude", "has a part that the trainer cannot execute", type(part).__name__)
    return PARTS[type(part)]


def prepared(rows: object, parts: tuple[Any, ...], released: tuple[np.ndarray, ...]) -> np.ndarray:
    """Rows (n, d) as they are after the first ``len(released)`` parts."""
    mapped = np.asarray(rows)
    for part, value in zip(parts, released, strict=False):
        mapped = executed(part).apply(part, mapped, value)
    return mapped
