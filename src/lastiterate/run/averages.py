"""Averages of iterates: what is released in the place of the last one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.derived_fields import Described
from lastiterate.run.fields import settle
from lastiterate.run.method import NoisySteps


class AveragedSteps(NoisySteps):
    """What averages have in common: a function of all iterates, which count as released."""

    charges_way: ClassVar[bool] = True
    averaged: ClassVar[bool] = True

    def check(self, run: Described) -> None:
        """Where all iterates are released, anybody averages them."""
        if run.release != "last":
            raise InputError("release", "must be 'last' where an average is released", run.release,
                             "use method=Descent(), and average the iterates that are released")


@final
@dataclass(frozen=True)
class TailAverage(AveragedSteps):
    """The mean of the last ``share`` of all iterates: of steps / 2 of them by default, rounded up."""

    share: float = 0.5

    def __post_init__(self) -> None:
        settle(self)
        if not 0 < self.share <= 1:
            raise InputError("share of TailAverage", "must lie in (0, 1]", self.share)

    def first(self, steps: int) -> int:
        """How many steps are made before the first iterate that counts."""
        return steps - max(1, math.ceil(self.share * steps))


@final
@dataclass(frozen=True)
class ExponentialAverage(AveragedSteps):
    """A mean of all iterates, each with ``decay`` times the weight of the one behind it; weights sum to one, and the
    first parameters have none."""

    decay: float = 0.99

    def __post_init__(self) -> None:
        settle(self)
        if not 0 < self.decay < 1:
            raise InputError("decay of ExponentialAverage", "must lie between 0 and 1", self.decay)
