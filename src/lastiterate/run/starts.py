"""Where a run starts, and its momentum."""

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
