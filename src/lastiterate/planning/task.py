"""The public facts about a data set and a budget, and strategies of correlated noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast, get_args

import numpy as np

from lastiterate.accounting.noise_calibration import check_range
from lastiterate.curves.gaussian import Gdp
from lastiterate.curves.roots import first_within
from lastiterate.errors import InputError
from lastiterate.run.noise import Correlated, Perturbation
from lastiterate.run.preprocessing import PrivateCovariance
from lastiterate.run.probability_calibration import MOST_CLASSES
from lastiterate.run.run import Run
from lastiterate.run.validation import Weights, check_choice, check_integer, to_float

# Strategies of correlated noise.

POWERS = tuple(k / 20 for k in range(8, 18))
"""Powers of the series that are compared: the square root is best for one pass, larger ones for
many."""


def of_draws(noise: Perturbation, responses: np.ndarray) -> np.ndarray:
    """Return the response of the last iterate to every draw, (T, ...), from its response to every
    step's noise: C^{-T} times that.

    Independent noise is its draws.
    """
    if not isinstance(noise, Correlated):
        return responses
    column = inverse_column(noise, len(responses)).reshape(-1, *(1,) * (responses.ndim - 1))
    return _product(column, responses[::-1])[::-1]


def inverse_column(noise: Correlated, steps: int) -> np.ndarray:
    """Return what a draw at step 0 adds at all steps, (steps,): the first column of C^{-1}.

    A power series, whose inverse has twice as many right terms after every step of Newton's method.
    """
    series, inverse = np.zeros(steps), np.ones(1)
    series[: len(noise.entries)] = noise.entries[:steps]
    while len(inverse) < steps:
        longer = np.zeros(min(2 * len(inverse), steps))
        longer[: len(inverse)] = inverse
        inverse = 2 * longer - _product(longer, _product(longer, series[: len(longer)]))
    return _product(np.array([1.0, -noise.decay]), inverse)[:steps]


def _product(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """Return the product of two power series along the first axis, with as many terms as the second
    has."""
    from scipy.signal import fftconvolve  # pyright: ignore

    return cast(np.ndarray, fftconvolve(one, two, axes=0))[: len(two)]


# Tasks.

READ, SORTED = 1e9, 5e8
"""Bytes of rows a second that pass from a file to steps (benchmarks/streaming)."""
FeatureMap = Literal["plain", "sqrt", "fourier"]
"""The first map of the features: none, the roots of their sizes (for counts, and activations of
ReLU layers), or random cosine features of the centred rows, appended to them (for pictures and
signals that no linear score separates)."""
COSINES = 1024
CALIBRATION_SHARE, RESOLVED_PARAMETERS = 0.05, 100.0
"""Part of mu^2 that calibrated probabilities cost, and what n mu must be for every slope and bias:
with less their noise costs more than it gains (benchmarks/utility/probabilities.py)."""


@dataclass(frozen=True)
class Task:
    """The public facts of a data set: ``classes`` is 0 for regression, ``rows_per_unit`` and
    ``rows_per_record`` as in a ``Run``.

    ``feature_map``: a public choice, made without looking at private data. ``streamed``: the data
    do not fit in memory. ``calibrated``: whether a classifier's plans pay for calibrated
    probabilities, of at most 100 classes. ``class_weights``: what a record of each class counts, as
    in its loss.
    """

    n: int
    features: int
    classes: int
    row_norm: float = 1.0
    rows_per_unit: int = 1
    feature_map: FeatureMap = "plain"
    streamed: bool = False
    rows_per_record: int = 1
    calibrated: bool = False
    class_weights: Weights = None

    def __post_init__(self) -> None:
        check_integer("n", self.n)
        check_integer("features", self.features)
        if self.classes == 1:
            raise InputError(
                "classes", "must be at least 2", self.classes, "one class needs no model"
            )
        if not 0 < to_float("row_norm", self.row_norm) < math.inf:
            raise InputError("row_norm", "must be a positive number", self.row_norm)
        check_choice("features", self.feature_map, get_args(FeatureMap))
        if self.class_weights is not None and self.classes == 0:
            raise InputError("class_weight", "is for classes", self.class_weights, "leave it out")

    def calibration_share(self, mu: float) -> float:
        """Part of a budget mu^2 that goes to the calibration of probabilities: 0 where that would
        not pay."""
        asked = self.calibrated and 2 <= self.classes <= MOST_CLASSES
        return (
            CALIBRATION_SHARE
            if asked and self.n * mu >= RESOLVED_PARAMETERS * (self.outputs + 1)
            else 0.0
        )

    @property
    def mapped_norm(self) -> float:
        """The largest norm of a row after the feature map: |sqrt x|^2 = |x|_1 <= sqrt(features)
        |x|."""
        return (
            self.row_norm
            if self.feature_map != "sqrt"
            else math.sqrt(math.sqrt(self.features) * self.row_norm)
        )

    @property
    def outputs(self) -> int:
        return self.classes if self.classes > 2 else 1

    @property
    def columns(self) -> int:
        """Columns of prepared rows."""
        return self.features + (COSINES if self.feature_map == "fourier" else 0)

    @property
    def parameters(self) -> int:
        return (self.columns + 1) * self.outputs

    def seconds(self, run: Run) -> float:
        """Estimated time on two cores: 6e10 multiplications a second (float32: twice that), 7.5e9
        bytes a second.

        Rows that are gathered for a block take twice as long to read. Second moments, and rows that
        are whitened by them, are two matrix products in float64, and 15 ns for every number. Data
        that do not fit in memory are read at ``READ`` bytes a second, and at ``SORTED`` where every
        pass sorts them again; every part of the preparation reads them once more.
        """
        gathered = run.batching.independent and run.batching.drawn == "each pass"
        speed = (
            1.2e11 if run.optimizer is not None and not gathered else 6e10
        )  # a hidden state: float64
        if run.method.hides_way:
            speed = 3e10  # float64, whatever the chunk
        rows = run.n / run.blocks * (self.columns + 1)
        whitened = sum(isinstance(part, PrivateCovariance) for part in run.preprocessing)
        products = whitened * 2 * run.n * self.columns**2
        read = (8 if gathered else 4) / 7.5e9
        if self.streamed:
            read = 4 / (SORTED if run.batching.drawn == "each pass" else READ)
            products += len(run.preprocessing) * run.n * (self.features + 1) * read * 6e10
        # draws that the noise of a step is made of
        band = len(run.noise.entries) if isinstance(run.noise, Correlated) else 0
        step = (
            5e-5
            + (2e-8 + 8 * band / 7.5e9) * self.parameters
            + rows * max(4 * self.outputs / speed, read)
        )
        return run.steps * step + products / 6e10 + whitened * 15e-9 * run.n * self.columns


def automatic_delta(n: int) -> float:
    """A power of ten at most 1/(10 n), and at most 1e-5."""
    return min(1e-5, 10.0 ** -math.ceil(math.log10(10 * n)))


@lru_cache(maxsize=256)
def budget(epsilon: float, delta: float) -> float:
    """The largest mu (to 1e-9) that is (epsilon, delta)-DP."""
    check_range(epsilon, delta)
    return 1 / first_within(lambda inverse: Gdp(1 / inverse).delta(epsilon), delta, 1e-6, 1e9, 1e-9)
