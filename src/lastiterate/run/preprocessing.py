"""Private preparation: statistics of the rows, measured once, with noise, before the first step.

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
from lastiterate.run.serialization import WHERE_GIVEN, Checked, normalise_fields, require
from lastiterate.run.validation import check_integer, check_interval, executable, positive


class PreparationPart(Checked, ABC):
    """The questions that every part of the preparation answers.

    ``noise_multiplier``: its noise in units of what one zeroed record moves; ``None`` where nothing
    is released. ``failure``: the probability with which what later steps rely on does not hold.
    ``targets``: whether it speaks of the targets, and not of the rows.
    """

    targets: ClassVar[bool] = False

    @abstractmethod
    def sensitivity(self, adjacency: str) -> float:
        """Return how far neighbouring data sets move the release.

        The unit is the move that one zeroed record makes.
        """

    @property
    def added(self) -> int:
        """Return the number of columns that it appends to a record."""
        return 0


@final
@dataclass(frozen=True)
class PrivateMean(PreparationPart):
    """Centring of the rows by their mean, measured once with Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise per coordinate of the summed rows, in units of ``row_norm``, positive.
    row_norm : float
        Public bound that rows are clipped to for the sum.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    **Guarantee:** a Gaussian mechanism, composed with the steps in the certificate.

    Examples
    --------
    >>> import lastiterate as li
    >>> mean = li.PrivateMean(noise_multiplier=20.0, row_norm=1.0)
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), preprocessing=(mean,))
    >>> run.preprocessing == (mean,)
    True
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the private mean")
    )
    row_norm: float = field(metadata=require(positive, "row_norm of the private mean"))
    failure = 0.0

    def sensitivity(self, adjacency: str) -> float:
        return records_moved(adjacency)


@final
@dataclass(frozen=True)
class PrivateTargetMean(PreparationPart):
    """Centring of the targets of a regression by their mean, measured once with Gaussian noise.

    Predictions add the mean again. A run has at most one, and its loss is `HuberRidge`.

    Parameters
    ----------
    noise_multiplier : float
        Noise of the summed targets, in units of ``bound``, positive.
    bound : float, default 1.0
        Public bound that targets are clipped to for the sum, in units of the target.

    Raises
    ------
    InputError
        If a value is out of range; a run whose targets are classes refuses it.

    Notes
    -----
    **Guarantee:** a Gaussian mechanism of sensitivity ``bound`` for a zeroed record and twice that
    for a replaced one, composed with the steps. Sources: Dwork and Roth 2014, appendix A; Dong,
    Roth and Su 2022, Theorem 1.

    Examples
    --------
    >>> import lastiterate as li
    >>> mean = li.PrivateTargetMean(noise_multiplier=20.0)
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.HuberRidge(), preprocessing=(mean,))
    >>> run.preprocessing[0].bound
    1.0
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the private target mean")
    )
    bound: float = field(
        default=1.0, metadata=require(positive, "bound of the private target mean")
    )
    failure = 0.0
    targets = True

    def sensitivity(self, adjacency: str) -> float:
        return records_moved(adjacency)


@final
@dataclass(frozen=True)
class SquareRoots(PreparationPart):
    """A map of every entry v of a row to sign(v) sqrt(|v|), which costs no privacy.

    It suits counts: a few large ones no longer decide a row's direction (Hellinger's map, on rows
    of frequencies). A row of d entries and norm at most R gets a norm of at most sqrt(sqrt(d) R).

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), preprocessing=(li.SquareRoots(),))
    >>> run.preprocessing[0].noise_multiplier is None
    True
    """

    noise_multiplier = None
    failure = 0.0

    def sensitivity(self, adjacency: str) -> float:
        return 0.0


@final
@dataclass(frozen=True)
class UnitRows(PreparationPart):
    """A division of every row by its Euclidean norm, which costs no privacy.

    Rows of norm 0 stay 0.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), preprocessing=(li.UnitRows(),))
    >>> run.preprocessing[0].noise_multiplier is None
    True
    """

    noise_multiplier = None
    failure = 0.0

    def sensitivity(self, adjacency: str) -> float:
        return 0.0


@final
@dataclass(frozen=True)
class CosineFeatures(PreparationPart):
    """Random cosine features next to every row, so that a linear model learns a Gaussian kernel.

    A row u of norm 1 becomes [u, phi(u) - m], with phi(u) = ``weight`` sqrt(2 / ``count``)
    cos(W u + b). W and b are drawn from the public seed; m is the mean of phi, measured once with
    Gaussian noise.

    Parameters
    ----------
    noise_multiplier : float
        Noise per coordinate of the summed features, in units of the largest norm of phi, positive.
    count : int, default 1024
        Number of features that a row gains, at most 100,000.
    bandwidth : float, default 1.0
        Width of the kernel, in units of unit rows, which are at most 2 apart.
    weight : float, default 0.3
        Weight of the features next to the row.
    seed : int, default 0
        Public seed of directions and phases.

    Raises
    ------
    InputError
        If a value is out of range; a run whose records have several rows refuses it.

    Notes
    -----
    **Guarantee:** a Gaussian mechanism for the mean, composed with the steps. With exact noise
    nothing certifies it. Source of the features: Rahimi and Recht 2007.

    Examples
    --------
    >>> import lastiterate as li
    >>> features = li.CosineFeatures(noise_multiplier=20.0, count=256)
    >>> features.added, round(features.longest, 3)
    (256, 0.424)
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the cosine features")
    )
    count: int = field(
        default=1024, metadata=require(check_integer, "count of the cosine features", most=10**5)
    )
    bandwidth: float = field(
        default=1.0, metadata=require(executable, "bandwidth of the cosine features")
    )
    weight: float = field(
        default=0.3, metadata=require(executable, "weight of the cosine features")
    )
    seed: int = field(
        default=0,
        metadata=require(check_integer, "seed of the cosine features", least=0, most=2**31),
    )
    failure = 0.0

    def sensitivity(self, adjacency: str) -> float:
        return records_moved(adjacency)

    @property
    def added(self) -> int:
        return self.count

    @property
    def longest(self) -> float:
        """Largest norm of phi."""
        return self.weight * math.sqrt(2)


@final
@dataclass(frozen=True)
class PrivateCovariance(PreparationPart):
    """Partial whitening of the rows by their second moments, measured once with Gaussian noise.

    With eigenvalues w (raised by the size of the noise) and vectors V of the released matrix, and M
    = V (w / max w)^-``power`` V', a row u becomes M u / r. Here r is the root mean square of |M u|,
    as far as the release knows it. Without ``row_norm`` a row becomes M u / |M u|.

    Parameters
    ----------
    noise_multiplier : float
        Noise of the diagonal of sum u u', in units of a row's squared bound, positive; entries off
        the diagonal get 1 / sqrt 2 of it.
    power : float, default 0.35
        Strength of the whitening, within (0, 0.5]; 0.5 whitens fully.
    row_norm : float, optional
        Public bound that rows are clipped to and divided by. ``None`` divides every row by its own
        norm.

    Raises
    ------
    InputError
        If a value is out of range.

    Notes
    -----
    docs/theorems/private-covariance has the guarantee: a Gaussian mechanism, composed with the
    steps. The loss's ``row_norm`` clips the result; 1.5 clips few rows.

    Examples
    --------
    >>> import lastiterate as li
    >>> part = li.PrivateCovariance(noise_multiplier=20.0, power=0.5)
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(row_norm=1.5), preprocessing=(part,))
    >>> run.preprocessing[0].power
    0.5
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the private covariance")
    )
    power: float = field(
        default=0.35,
        metadata=require(
            check_interval,
            "power of the private covariance",
            low=0,
            high=0.5,
            ends="(]",
            remedy="0.5 whitens fully, less keeps part of the spectrum",
        ),
    )
    row_norm: float | None = field(default=None, metadata=WHERE_GIVEN)
    failure = 0.0

    def __post_init__(self) -> None:
        normalise_fields(self)
        if self.row_norm is not None:
            executable("row_norm of the private covariance", self.row_norm)

    def sensitivity(self, adjacency: str) -> float:
        # |u u' - w w'| <= sqrt 2 for rows of norm at most 1, in the Frobenius norm
        return math.sqrt(records_moved(adjacency))


@final
@dataclass(frozen=True)
class TopEigenvalue(PreparationPart):
    """A noisy upper bound on the largest eigenvalue of the rows, which bounds the smoothness.

    The eigenvalue is that of sum x x' over the rows of a block. The released number is the
    eigenvalue plus B^2 ``noise_multiplier`` (N(0, 1) + t) with P[N < -t] = ``failure``, where B^2
    is the largest squared norm of a row with its intercept.

    Parameters
    ----------
    noise_multiplier : float
        Noise in units of B^2, positive.
    failure : float, default 1e-8
        Probability, within [1e-15, 0.1], that the number lies below the eigenvalue.
    floor : float, default 1e-3
        Smallest number that is released, within [1e-9, 1], relative to the largest possible one.

    Raises
    ------
    InputError
        If a value is out of range; a run refuses it unless it is the last part of the preprocessing.

    See Also
    --------
    RelativeToSmooth : Step sizes in units of the measured smoothness.

    Notes
    -----
    docs/theorems/paid-smoothness has the guarantee. The certificate charges the measurement and the
    failure probability.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(
    ...     n=100, steps=3, step_size=li.RelativeToSmooth(1.9), loss=li.Logistic(),
    ...     preprocessing=(li.TopEigenvalue(noise_multiplier=5.0),),
    ... )
    >>> run.with_top_eigenvalue(eigenvalue=20.0, parameters=4).first_step > 0
    True
    """

    noise_multiplier: float = field(
        metadata=require(positive, "noise_multiplier of the top eigenvalue")
    )
    failure: float = field(
        default=1e-8,
        metadata=require(check_interval, "failure of the top eigenvalue", low=1e-15, high=0.1),
    )
    floor: float = field(
        default=1e-3,
        metadata=require(check_interval, "floor of the top eigenvalue", low=1e-9, high=1.0),
    )

    def sensitivity(self, adjacency: str) -> float:
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


def columns(preprocessing: tuple[Preparation, ...], features: int) -> int:
    """Columns of rows of ``features`` columns after the preparation."""
    return features + sum(part.added for part in preprocessing)


def check_number(argument: str, parts: tuple[object, ...]) -> None:
    """Refuse lists longer than any run needs: every bound composes each part again."""
    if len(parts) > MOST_PARTS:
        raise InputError(
            argument,
            f"must have at most {MOST_PARTS} parts",
            len(parts),
            "a run needs a few of them",
        )


def check_targets(preprocessing: tuple[Preparation, ...], target_classes: int | None) -> None:
    """Refuse a mean of targets that are classes, and a second mean of targets."""
    count = sum(part.targets for part in preprocessing)
    if count and target_classes != 0:
        raise InputError(
            "preprocessing",
            "may centre targets of a regression only",
            "PrivateTargetMean",
            "use it with HuberRidge, or leave it out",
        )
    if count > 1:
        raise InputError(
            "preprocessing", "may hold one PrivateTargetMean", count, "one mean is enough"
        )
