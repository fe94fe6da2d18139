"""Kinds of noise: one size, one temperature, a multiplier of the clip, correlated."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar, Self, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.step_sizes import Schedule
from lastiterate.run.validation import (
    Array,
    all_positive,
    check_integer,
    check_interval,
    frozen,
    positive,
    repeat_value,
)

# What every description of noise answers.  The canonical quantity is the standard deviation per
# coordinate of the noise that is newly drawn at a step, as noise on the mean gradient. ``stds``
# alone computes it. Its arguments come from the run: the schedule of step sizes, the value that a
# noise multiplier multiplies, and the public divisor of summed gradients.


class Perturbation(Checked, ABC):
    """The questions that every description of noise answers.

    ``independent``: whether what is added at a step is independent of what all other steps add.
    """

    independent: ClassVar[bool] = True

    @abstractmethod
    def stds(
        self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float
    ) -> Array:
        """Standard deviations at the steps first, ..., last - 1, read-only; shape (last - first,).

        ``unit``: clipping norm (or Lipschitz constant) of one record, ``None`` where the run has
        neither.
        """

    @abstractmethod
    def constant(self, schedule: Schedule) -> bool:
        """Whether it is the same at every step, by the form of the description."""

    @abstractmethod
    def scale_by(self, factor: float) -> Self:
        """The same noise, all of its standard deviations multiplied by ``factor``."""

    @abstractmethod
    def with_unit(self) -> Self:
        """Return the same kind of noise with its value set to 1, the start of a search (a list is
        left as it is)."""

    def truncate(self, steps: int) -> Self:
        """The noise of the first ``steps`` steps."""
        return self

    def explain_undetermined(self, unit: float | None) -> str | None:
        """Why the description does not determine its size, in words; ``None`` where it does.

        ``unit``: as for ``stds``.
        """
        return None

    def check(self, steps: int) -> None:  # most kinds are for any number of steps
        """Refuse a run of so many steps that the description does not fit."""

    def column(self, steps: int) -> Array:
        """The first column of C, without the zeros at its end: the steps add C^{-1} Z, Z of
        independent draws."""
        return repeat_value(1.0, 1)

    def largest_sum(self, blocks: int, steps: int) -> float:
        """Return the most contributions of one record that a single draw hides, in a run over so
        many blocks."""
        return 1.0

    def reach(self, steps: int) -> float:
        """Return the largest noise of a step, in units of the longest draw."""
        return 1.0

    @property
    def words(self) -> str:
        """It in words, where its own numbers say it; "" where its standard deviation has to."""
        return ""

    @property
    def length(self) -> int | None:
        """The number of described steps, ``None`` for any."""
        return None

    @property
    def temperature(self) -> float | None:
        """sigma^2 where the iterate gets sqrt(2 step) sigma N(0, I) at every step, by the form of
        the description."""
        return None


def unit_error(z: float) -> InputError:
    """The refusal of a multiplier where nothing bounds a record."""
    return InputError(
        "noise_multiplier",
        "needs a clip or a lipschitz constant to multiply",
        z,
        "give clip=C, lipschitz=L, or the noise itself: noise=GradientNoise(std)",
    )


@dataclass(frozen=True)
class Multiplied(Perturbation):
    """Noise of ``z`` clipping norms on the sum of gradients, the same at every step."""

    z: float = field(metadata=require(positive, "noise_multiplier", zero=True))

    def stds(
        self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float
    ) -> Array:
        if unit is None:
            raise unit_error(self.z)
        return repeat_value(self.z * unit / divisor, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return True

    def scale_by(self, factor: float) -> Self:
        return replace(self, z=self.z * factor)

    def with_unit(self) -> Self:
        return replace(self, z=1.0)

    def explain_undetermined(self, unit: float | None) -> str | None:
        return str(unit_error(self.z)) if unit is None else None


# Correlated noise (matrix mechanism): later steps take back a part of what earlier ones added.
# Steps 0, 1, ... add C^{-1} Z to their sums of gradients, Z of independent normal draws, C lower
# triangular and constant along its diagonals, 1 on the main one. Its first column is that of the
# series (c_0 + c_1 x + ...) / (1 - decay x).

WIDEST = 10**4
"""Entries of a band."""
LONGEST = 10**7
"""Steps: columns of C are looked at one by one."""
LARGEST = 1e4
"""Standard deviation of what a step adds, in units of a draw: beyond, rounding would be felt in the
draws."""


@final
@dataclass(frozen=True)
class Correlated(Multiplied):
    """Noise of a matrix mechanism: later steps subtract a part of the noise of earlier ones.

    Step k adds, in units of the clipping norm and to the sum of gradients,

        z (w_k - decay w_{k-1}),  w_k = Z_k - c_1 w_{k-1} - ... - c_{p-1} w_{k-p+1},

    with independent standard normal Z_k. The engine keeps p - 1 arrays of the size of the
    parameters (1 for ``band=1`` with a decay: lambda-CGD).

    Parameters
    ----------
    z : float
        Noise multiplier of one draw, in clipping norms, or in Lipschitz constants without a clip.
    band : int or tuple of float
        Entries c_0 = 1, c_1, ..., c_{p-1} of the first column of C, or their number p: then they
        are the first p coefficients of (1 - x)^-power.
    power : float, default 0.5
        Power within (0, 1), for bands that are a number. 0.5 is the square root of the matrix of
        all partial sums.
    decay : float, default 0.0
        Ratio within [0, 1] by which every entry also continues as a geometric series.

    Raises
    ------
    InputError
        If a value is out of range, or the noise of the band would grow from step to step.

    See Also
    --------
    NoiseMultiplier : Independent noise.

    Notes
    -----
    docs/theorems/correlated-noise states the guarantee. Sources: Denisov et al. 2022
    (arXiv:2202.08312); Choquette-Choo et al. 2023 (arXiv:2306.08153); Kalinin and Lampert 2024
    (arXiv:2405.13763).

    Examples
    --------
    >>> import lastiterate as li
    >>> li.Correlated(10.0, band=3).entries
    (1.0, 0.5, 0.375)
    """

    band: int | tuple[float, ...]
    power: float = 0.5
    decay: float = 0.0
    independent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        normalise_fields(self)
        check_integer(
            "band", self.band if isinstance(self.band, int) else len(self.band), most=WIDEST
        )
        check_interval("decay", self.decay, 0, 1)
        if not (0 < self.power < 1 and (isinstance(self.band, int) or self.power == 0.5)):
            raise InputError(
                "power", "must lie in (0, 1), and is for bands that are a number", self.power
            )
        if self.entries[0] != 1:
            raise InputError(
                "band", "must begin with 1", self.entries[0], "divide it by its first number, z too"
            )
        if self.decay and min(self.entries) < 0:
            raise InputError("decay", "must be 0 where the band has negative numbers", self.decay)
        if not self.spread <= LARGEST:
            raise InputError(
                "band",
                "makes noise that grows from step to step",
                None,
                "use numbers that fall towards 0, or only how many",
            )

    @property
    def entries(self) -> tuple[float, ...]:
        """c_0 = 1, c_1, ..., c_{p-1}."""
        return _binomial(self.power, self.band) if isinstance(self.band, int) else self.band

    @property
    def spread(self) -> float:
        """An upper bound on the standard deviation of w_k, in units of a draw; infinite where it
        grows."""
        return _spread(self.entries)

    def column(self, steps: int) -> Array:
        """The first column of C for so many steps, without the zeros at its end, read-only."""
        return _column(self.entries, self.decay, steps)

    def check(self, steps: int) -> None:
        check_integer("steps of correlated noise", steps, most=LONGEST)

    def largest_sum(self, blocks: int, steps: int) -> float:
        """Row k of C times one contribution in every step of the record, all of the signs that add
        up."""
        column = np.abs(self.column(steps))
        return float(np.bincount(np.arange(column.size) % blocks, weights=column).max())

    def reach(self, steps: int) -> float:
        """The inverse's row sums, by the Cauchy-Schwarz inequality."""
        return (1 + self.decay) * self.spread * math.sqrt(steps)

    @property
    def words(self) -> str:
        shape = "".join(
            f", {name} {value:.4g}"
            for name, value, usual in (("power", self.power, 0.5), ("decay", self.decay, 0.0))
            if value != usual
        )
        return f"noise multiplier {self.z:.4g}, correlated over {len(self.entries)} steps{shape}"


@lru_cache(maxsize=64)
def _binomial(power: float, entries: int) -> tuple[float, ...]:
    """Coefficients of (1 - x)^-power."""
    k = np.arange(1, entries)
    return (1.0, *np.cumprod((k - 1 + power) / k).tolist())


@lru_cache(maxsize=256)
def _spread(entries: tuple[float, ...]) -> float:
    """1 / sqrt(prod (1 - r_m^2)) over the reflection coefficients of the recursion, all below 1
    where it is stable (Schur 1917; Durbin 1960)."""
    left, product = np.array(entries), 1.0
    if not np.isfinite(left).all():
        return math.inf
    left = np.trim_zeros(left, "b")
    while left.size > 1:
        reflection = left[-1] / left[0]
        product *= 1 - reflection**2
        if not abs(reflection) < 1 or not product > LARGEST**-2 / 4:
            return math.inf
        left = ((left - reflection * left[::-1]) / (1 - reflection**2))[:-1]
    return 1 / math.sqrt(product)


@lru_cache(maxsize=64)
def _column(entries: tuple[float, ...], decay: float, steps: int) -> Array:
    column = np.array(entries[:steps])
    if decay == 0:
        return frozen(column)
    for k in range(1, column.size):
        column[k] += decay * column[k - 1]
    rest = column[-1] * decay ** np.arange(1.0, steps - column.size + 1)
    return frozen(np.concatenate((column, rest)))


# The kinds of noise.


@final
@dataclass(frozen=True)
class GradientNoise(Perturbation):
    """Gaussian noise of a stated size on the mean gradient.

    Parameters
    ----------
    std : float or tuple of float
        Standard deviation per coordinate, in units of the gradient, at least 0: one number, or one
        per step.

    Raises
    ------
    InputError
        If a number is out of range.

    See Also
    --------
    NoiseMultiplier : Noise in units of the clipping norm.

    Examples
    --------
    >>> import lastiterate as li
    >>> noise = li.GradientNoise((0.3, 0.2, 0.1))
    >>> run = li.Run(n=100, steps=3, step_size=0.1, clip=1.0, noise=noise)
    >>> run.noise_stds.tolist()
    [0.3, 0.2, 0.1]
    """

    std: float | tuple[float, ...]

    def __post_init__(self) -> None:
        normalise_fields(self)
        all_positive(
            "noise std", self.std if isinstance(self.std, tuple) else (self.std,), zero=True
        )

    def stds(
        self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float
    ) -> Array:
        if isinstance(self.std, tuple):
            return frozen(np.array(self.std[first:last], dtype=np.float64))
        return repeat_value(self.std, last - first)

    def constant(self, schedule: Schedule) -> bool:
        return self.length is None

    def scale_by(self, factor: float) -> GradientNoise:
        if isinstance(self.std, tuple):
            return GradientNoise(tuple(std * factor for std in self.std))
        return GradientNoise(self.std * factor)

    def truncate(self, steps: int) -> GradientNoise:
        return GradientNoise(self.std[:steps]) if isinstance(self.std, tuple) else self

    def with_unit(self) -> GradientNoise:
        return self if isinstance(self.std, tuple) else GradientNoise(1.0)

    @property
    def length(self) -> int | None:
        return len(self.std) if isinstance(self.std, tuple) else None


@final
@dataclass(frozen=True)
class Langevin(Perturbation):
    """Noise of one temperature: every step adds sqrt(2 step) ``sigma`` N(0, I) to the iterate.

    Parameters
    ----------
    sigma : float
        Square root of the temperature, at least 0. On the mean gradient it is noise of standard
        deviation ``sigma * sqrt(2 / step)`` per coordinate.

    Raises
    ------
    InputError
        If ``sigma`` is out of range.

    See Also
    --------
    GradientNoise : Noise of a stated size.

    Notes
    -----
    It is the noise of stochastic gradient Langevin dynamics (docs/theorems/langevin).

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.5, clip=1.0, noise=li.Langevin(0.1))
    >>> round(run.first_noise, 6), round(run.temperature, 6)
    (0.2, 0.01)
    """

    sigma: float = field(metadata=require(positive, "sigma", zero=True))

    @property
    def temperature(self) -> float:
        return self.sigma**2

    def stds(
        self, first: int, last: int, schedule: Schedule, unit: float | None, divisor: float
    ) -> Array:
        if schedule.constant:
            return repeat_value(
                float(self.sigma * np.sqrt(2.0 / schedule.sizes(0, 1))[0]), last - first
            )
        return frozen(self.sigma * np.sqrt(2.0 / schedule.sizes(first, last)))

    def constant(self, schedule: Schedule) -> bool:
        return schedule.constant

    def scale_by(self, factor: float) -> Langevin:
        return Langevin(self.sigma * factor)

    def with_unit(self) -> Langevin:
        return Langevin(1.0)


@final
@dataclass(frozen=True)
class NoiseMultiplier(Multiplied):
    """Gaussian noise in units of the clipping norm, on the sum of a batch's gradients.

    Parameters
    ----------
    z : float
        Noise multiplier, at least 0, as in other libraries. The mean gradient gets noise of
        standard deviation ``z * clip / divisor`` per coordinate. Without a clipping norm the
        Lipschitz constant of the loss is used instead.

    Raises
    ------
    InputError
        If ``z`` is out of range; a run whose records nothing bounds cannot use it.

    See Also
    --------
    GradientNoise : Noise in units of the gradient.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.1, clip=2.0, noise=li.NoiseMultiplier(5.0))
    >>> run.first_noise
    0.1
    """

    @property
    def words(self) -> str:
        return f"noise multiplier {self.z:.4g}"


Noise = GradientNoise | Langevin | NoiseMultiplier | Correlated
