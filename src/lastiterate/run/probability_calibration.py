"""Calibrated probabilities of a classifier: noisy Newton rounds, or a public factor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.adjacency import records_moved
from lastiterate.run.base import RunBase
from lastiterate.run.losses import KnownConstants
from lastiterate.run.serialization import Checked, require
from lastiterate.run.validation import check_integer, check_interval, positive

MOST_CLASSES = 100
"""Second derivatives of more biases than this would be noise alone."""


@final
@dataclass(frozen=True)
class Calibration(Checked):
    """A private fit of slope and intercept to the scores of a released classifier.

    For K > 2 classes it is one slope and K biases. It goes into ``Run(probability_calibration=)``, for a linear
    classifier with an intercept, at most 100 classes, and a run that releases the last iterate
    only. Slope and biases are folded into the released weights.

    Parameters
    ----------
    noise_multiplier : float
        Noise of all rounds together, in units of what one zeroed record moves, positive. They cost
        mu = 1 / ``noise_multiplier``.
    rounds : int, default 4
        Number of noisy Newton steps on the log loss of the training records, at most 20. Each gets
        twice the part of mu^2 of the one before.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    AssumedSlope : A public factor in its place.

    Notes
    -----
    **Guarantee:** every round is a Gaussian mechanism of sensitivity 1 for a zeroed record and 2
    for a replaced one. The certificate composes it with the steps (docs/theorems/probabilities).

    Examples
    --------
    >>> import lastiterate as li
    >>> calibration = li.Calibration(noise_multiplier=10.0, rounds=2)
    >>> float((calibration.stds**-2.0).sum().round(6))
    0.01
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the calibration")
    )
    rounds: int = field(
        default=4, metadata=require(check_integer, "rounds of the calibration", most=20)
    )

    def sensitivity(self, adjacency: str) -> float:
        """Return how far neighbouring data sets move the sums of a round.

        The unit is the move that one zeroed record makes.
        """
        return records_moved(adjacency)

    @property
    def stds(self) -> np.ndarray:
        """Standard deviation of every round's noise on sums of vectors of norm 1; (rounds,).

        The sum of the inverse squares is 1 / noise_multiplier^2.
        """
        parts = 2.0 ** np.arange(self.rounds)
        return self.noise_multiplier * np.sqrt(parts.sum() / parts)


@final
@dataclass(frozen=True)
class AssumedSlope(Checked):
    """A public factor for the scores of a released classifier, which costs no privacy.

    It suits records that are too few to measure a slope: closely clipped contributions make scores
    too steep, for any data. It goes into ``Run(probability_calibration=)``.

    Parameters
    ----------
    slope : float
        Factor of the released weights, within (0, 1].

    Raises
    ------
    InputError
        If ``slope`` is out of range.

    See Also
    --------
    Calibration : A private measurement in its place.

    Examples
    --------
    >>> import lastiterate as li
    >>> slope = li.AssumedSlope(0.5)
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), probability_calibration=slope)
    >>> run.probability_calibration.slope
    0.5
    """

    slope: float = field(metadata=require(check_interval, "slope", low=0, high=1, ends="(]"))
    rounds: ClassVar[int] = 0

    def sensitivity(self, adjacency: str) -> float:
        """Neighbouring data sets move nothing."""
        return 0.0

    @property
    def stds(self) -> np.ndarray:
        """The standard deviations of no round; shape (0,)."""
        return np.zeros(0)


def private_calibration(calibration: Calibration | AssumedSlope | None) -> Calibration | None:
    """A run's calibration where it reads records."""
    return calibration if isinstance(calibration, Calibration) else None


def weighs_classes(run: RunBase) -> bool:
    """Whether a run weighs classes, so that probabilities are those of weighted records."""
    return len(set(run.loss.class_weights or ())) > 1


def check_calibration(run: RunBase, calibration: Calibration | AssumedSlope | None) -> None:
    """Refuse a calibration without probabilities, or of weights that cannot take biases."""
    if calibration is None:
        return
    loss = run.loss
    if isinstance(loss, KnownConstants) or not loss.target_classes:
        raise InputError(
            "probability_calibration",
            "is of linear classifiers",
            type(loss).__name__,
            "leave it out",
        )
    if loss.target_classes > MOST_CLASSES:
        raise InputError(
            "probability_calibration",
            f"is of at most {MOST_CLASSES} classes",
            loss.target_classes,
            "leave it out",
        )
    if loss.intercept == 0:
        raise InputError(
            "probability_calibration",
            "needs an intercept, which the biases become a part of",
            loss.intercept,
            "give the loss an intercept > 0",
        )
    if run.release != "last":
        raise InputError("release", "must be 'last' where a model is calibrated", run.release)
