"""Where the first step starts: independent of the data, always."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lastiterate.run.fields import settle
from lastiterate.run.validate import positive


@final
@dataclass(frozen=True)
class Fixed:
    """Start at 0, or at public parameters that the caller gives, chosen without the data; projected onto the domain."""

    @property
    def std(self) -> float:
        """Standard deviation of the start: it is known."""
        return 0.0


@final
@dataclass(frozen=True)
class GaussianStart:
    """Start at N(0, std^2 I), projected onto the domain; ``std`` per coordinate, independent of the data."""

    std: float

    def __post_init__(self) -> None:
        settle(self)
        positive("start std", self.std)


Start = Fixed | GaussianStart
