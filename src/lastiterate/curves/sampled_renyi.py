"""Renyi divergences of Poisson-sampled steps: described now, computed when a number is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import final

from lastiterate.curves import subsampled
from lastiterate.curves.curve import UP, Curve
from lastiterate.curves.renyi import Rdp
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array

FEW = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0)
"""Orders of the coarser version: whole ones cost least."""
FEW_LEVELS = 8
"""Different noise multipliers of the coarser version."""


@final
@dataclass(frozen=True)
class SampledRenyi(Curve):
    """``counts[i]`` Poisson-sampled Gaussian steps of noise multiplier ``multipliers[i]``, all with sampling ``rate``.

    The Renyi curve at dp-accounting's own orders (``coarse``: at few); a multiplier of 0 says nothing.
    """

    rate: float
    multipliers: tuple[float, ...]
    counts: tuple[int, ...]
    coarse: bool = False

    def __post_init__(self) -> None:
        check_sampled(self.rate, self.multipliers, self.counts)

    def table(self) -> Rdp:
        """The curve as numbers."""
        return _table(self)

    def delta(self, epsilon: float) -> float:
        return self.table().delta(epsilon)

    def log_profile(self, epsilons: Array) -> Array:
        return self.table().log_profile(epsilons)

    def epsilon(self, delta: float) -> float:
        return self.table().epsilon(delta)

    def rdp(self, alpha: float) -> float:
        return self.table().rdp(alpha)

    def group(self, size: int) -> Rdp:
        return self.table().group(size)

    def coarser(self) -> SampledRenyi:
        return replace(self, coarse=True)


def check_sampled(rate: float, multipliers: tuple[float, ...], counts: tuple[int, ...]) -> None:
    """Refuse what does not describe sampled steps."""
    if not 0 < rate <= 1:
        raise InputError("rate", "must lie in (0, 1]", rate)
    if len(multipliers) != len(counts) or not counts or min(counts) < 1:
        raise InputError("counts", "need one positive entry for every multiplier", counts)
    if not all(z >= 0 for z in multipliers):
        raise InputError("multipliers", "must be numbers >= 0", multipliers)


@lru_cache(maxsize=256)
def _table(curve: SampledRenyi) -> Rdp:
    if min(curve.multipliers) == 0:
        return Rdp()
    levels = tuple(zip(curve.multipliers, curve.counts, strict=True))
    asked = FEW if curve.coarse else None
    orders = subsampled.renyi(curve.multipliers[0], curve.rate, asked)[0]
    values = sum(n * subsampled.renyi(z, curve.rate, asked)[1]
                 for z, n in (subsampled.merged(levels, FEW_LEVELS) if curve.coarse else levels))
    return Rdp(orders=orders, values=tuple(float(v) for v in values * UP))  # pyright: ignore
