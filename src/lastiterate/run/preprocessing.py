"""Private preparation: what is measured on the rows, once, with noise, before the first step.

Parts are applied in order. Each sees the rows as the parts before it left them, releases something
under a Gaussian mechanism that the certificate pays for, and may change every row by a map that
depends on what was released.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.adjacency import records_moved
from lastiterate.run.serialization import WHERE_GIVEN, settle
from lastiterate.run.validation import executable, positive, whole


class Part(ABC):
    """The questions that every part of the preparation answers.

    ``noise_multiplier``: its noise in units of what one zeroed record moves; ``None`` where nothing
    is released. ``failure``: the probability with which what later steps rely on does not hold.
    ``targets``: whether it speaks of the targets, and not of the rows.
    """

    targets: ClassVar[bool] = False

    @abstractmethod
    def moved(self, adjacency: str) -> float:
        """How far neighbouring data sets move what is released, in units of what one zeroed record
        moves."""

    @property
    def added(self) -> int:
        """Columns that it puts beside those of a row."""
        return 0


@final
@dataclass(frozen=True)
class PrivateMean(Part):
    """Centre the rows by their mean, estimated once with Gaussian noise.

    The sum of the rows, clipped to ``row_norm``, gets noise of ``noise_multiplier * row_norm`` per
    coordinate.
    """

    noise_multiplier: float
    row_norm: float
    failure = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the private mean", self.noise_multiplier)
        positive("row_norm of the private mean", self.row_norm)

    def moved(self, adjacency: str) -> float:
        return records_moved(adjacency)


@final
@dataclass(frozen=True)
class PrivateTargetMean(Part):
    """Centre the targets of a regression by their mean, estimated once with Gaussian noise.

    The sum of the targets, clipped to [-``bound``, ``bound``], gets Gaussian noise of standard
    deviation ``noise_multiplier * bound``, and is divided by the public number of records. Steps
    are taken on what the mean leaves, and predictions add it again. ``bound`` is in units of the
    targets and public.

    A run holds at most one, and its loss is ``HuberRidge``: ``InputError`` where targets are
    classes. **Guarantee:** a Gaussian mechanism of sensitivity ``bound`` for a zeroed record, twice
    that for an exchanged one, composed with the steps (Dwork and Roth 2014, appendix A; Dong, Roth
    and Su 2022, theorem 1).
    """

    noise_multiplier: float
    bound: float = 1.0
    failure = 0.0
    targets = True

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the private target mean", self.noise_multiplier)
        positive("bound of the private target mean", self.bound)

    def moved(self, adjacency: str) -> float:
        return records_moved(adjacency)


@final
@dataclass(frozen=True)
class SquareRoots(Part):
    """Replace every entry of a row by the root of its size, sign kept, which costs nothing: a map
    of single records.

    An entry v becomes sign(v) sqrt(|v|), so that a row of d entries and norm at most R has norm at
    most sqrt(sqrt(d) R). It suits counts: a few large ones no longer decide about a row's direction
    (Hellinger's map, on rows of frequencies). Rows keep their shape, and nothing is learned from
    the data.
    """

    noise_multiplier = None
    failure = 0.0

    def moved(self, adjacency: str) -> float:
        return 0.0


@final
@dataclass(frozen=True)
class UnitRows(Part):
    """Divide every row by its Euclidean norm (rows of norm 0 stay 0), which costs nothing: a map of
    single records."""

    noise_multiplier = None
    failure = 0.0

    def moved(self, adjacency: str) -> float:
        return 0.0


@final
@dataclass(frozen=True)
class CosineFeatures(Part):
    """Put random cosine features beside every row, which make a linear model one of a Gaussian
    kernel, too.

    A row u, divided by its norm, becomes [u, phi(u) - m], phi(u) = ``weight`` sqrt(2 / ``count``)
    cos(W u + b) with ``count`` public directions W of standard deviation 1 / ``bandwidth`` and
    phases b in [0, 2 pi), drawn from the public ``seed`` (Rahimi and Recht 2007). m is the mean of
    phi, estimated once: the sum gets Gaussian noise of ``noise_multiplier`` times the largest norm
    of phi, ``weight`` sqrt 2.

    A row of d entries becomes one of d + ``count``; ``bandwidth`` is in units of unit rows, at most
    2 apart. ``InputError`` for a ``count`` above 100,000 and in runs whose records have several
    rows; with exact noise nothing certifies it.
    """

    noise_multiplier: float
    count: int = 1024
    bandwidth: float = 1.0
    weight: float = 0.3
    seed: int = 0
    failure = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the cosine features", self.noise_multiplier)
        whole("count of the cosine features", self.count, most=10**5)
        whole("seed of the cosine features", self.seed, least=0, most=2**31)
        for name in ("bandwidth", "weight"):
            executable(f"{name} of the cosine features", getattr(self, name))

    def moved(self, adjacency: str) -> float:
        return records_moved(adjacency)

    @property
    def added(self) -> int:
        return self.count

    @property
    def longest(self) -> float:
        """The largest norm of phi."""
        return self.weight * math.sqrt(2)


@final
@dataclass(frozen=True)
class PrivateCovariance(Part):
    """Whiten the rows, in part, by their second moments, estimated once with Gaussian noise.

    Rows are clipped to ``row_norm`` and divided by it (``None``: each is divided by its own norm);
    the matrix sum_i u_i u_i' gets symmetric noise of standard deviation ``noise_multiplier`` on the
    diagonal and ``noise_multiplier`` / sqrt 2 off it (docs/theorems/private-covariance). With
    eigenvalues w (raised by the noise's size) and vectors V of the result and M = V (w / max
    w)^-``power`` V', a row u becomes M u / r, r the root mean square of |M u| as far as the release
    knows it, for the loss's ``row_norm`` to clip: 1.5 cuts few rows. Without ``row_norm`` it
    becomes M u / |M u|; rows with M u = 0 stay 0.
    """

    noise_multiplier: float
    power: float = 0.35
    row_norm: float | None = field(default=None, metadata=WHERE_GIVEN)
    failure = 0.0

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the private covariance", self.noise_multiplier)
        if self.row_norm is not None:
            executable("row_norm of the private covariance", self.row_norm)
        if not 0 < self.power <= 0.5:
            raise InputError(
                "power of the private covariance",
                "must lie in (0, 0.5]",
                self.power,
                "0.5 whitens fully, less keeps part of the spectrum",
            )

    def moved(self, adjacency: str) -> float:
        # |u u' - w w'| <= sqrt 2 for rows of norm at most 1, in the Frobenius norm
        return math.sqrt(records_moved(adjacency))


@final
@dataclass(frozen=True)
class TopEigenvalue(Part):
    """Measure the largest eigenvalue of sum x x' over a block's rows, with noise, to know how
    smooth the loss is.

    The released U = lambda + B^2 noise_multiplier (N(0, 1) + t), t with P[N < -t] = ``failure``,
    B^2 the largest squared row norm with its intercept, lies above lambda except with probability
    ``failure`` (docs/theorems/paid-smoothness). It is clamped to the public interval from ``floor``
    times its largest possible value to that value.
    """

    noise_multiplier: float
    failure: float = 1e-8
    floor: float = 1e-3

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the top eigenvalue", self.noise_multiplier)
        for name, low, high in (("failure", 1e-15, 0.1), ("floor", 1e-9, 1.0)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InputError(
                    f"{name} of the top eigenvalue", f"must lie in [{low:g}, {high:g}]", value
                )

    def moved(self, adjacency: str) -> float:
        # one positive semidefinite matrix of norm at most B^2 leaves, and perhaps another enters
        return 1.0


Preparation = (
    PrivateMean
    | PrivateTargetMean
    | SquareRoots
    | UnitRows
    | CosineFeatures
    | PrivateCovariance
    | TopEigenvalue
)


MOST_PARTS = 100
"""Parts of a preparation, or noisy counts, that a run may have: what a stranger's certificate may
ask to compute."""


def columns(prelude: tuple[Preparation, ...], features: int) -> int:
    """Columns of rows of ``features`` columns after the preparation."""
    return features + sum(part.added for part in prelude)


def check_number(argument: str, parts: tuple[object, ...]) -> None:
    """Refuse lists that no run needs: every bound composes each part anew."""
    if len(parts) > MOST_PARTS:
        raise InputError(
            argument,
            f"must have at most {MOST_PARTS} parts",
            len(parts),
            "a run needs a few of them",
        )


def check_targets(prelude: tuple[Preparation, ...], target_classes: int | None) -> None:
    """Refuse a mean of targets where targets are no numbers, or where a later one would be a mean
    of what is left."""
    count = sum(part.targets for part in prelude)
    if count and target_classes != 0:
        raise InputError(
            "prelude",
            "may centre targets of a regression only",
            "PrivateTargetMean",
            "use it with HuberRidge, or leave it out",
        )
    if count > 1:
        raise InputError("prelude", "may hold one PrivateTargetMean", count, "one mean is enough")
