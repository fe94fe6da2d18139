"""What comes before and between the steps: the start, momentum, private preparation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.fields import settle
from lastiterate.run.validate import positive


@final
@dataclass(frozen=True)
class Fixed:
    """Start at 0, or at public parameters that the caller gives (projected onto the domain)."""

    std = 0.0



@final
@dataclass(frozen=True)
class GaussianStart:
    """Start at N(0, std^2 I), projected onto the domain; independent of the data."""

    std: float

    def __post_init__(self) -> None:
        settle(self)
        positive("start std", self.std)



Start = Fixed | GaussianStart



@final
@dataclass(frozen=True)
class Nesterov:
    """Nesterov's momentum with the coefficient (k - 1) / (k + 2) at step k = 1, 2, ..."""



@final
@dataclass(frozen=True)
class HeavyBall:
    """Polyak's momentum with a constant coefficient."""

    beta: float

    def __post_init__(self) -> None:
        settle(self)
        if not 0 <= self.beta < 1:
            raise InputError("momentum", "must lie in [0, 1)", self.beta)



Momentum = Nesterov | HeavyBall



@final
@dataclass(frozen=True)
class PrivateMean:
    """Centre the rows by their mean, estimated once with Gaussian noise.

    The sum of the rows, clipped to ``row_norm``, gets noise of ``noise_multiplier * row_norm`` per coordinate.
    """

    noise_multiplier: float
    row_norm: float

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the private mean", self.noise_multiplier)
        positive("row_norm of the private mean", self.row_norm)



Prelude = PrivateMean
