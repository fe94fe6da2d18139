"""Guarantees that hold except with a stated probability."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from lastiterate.curves.curve import LEAST_DELTA, UP, Curve, check_delta, check_epsilon
from lastiterate.curves.exchanged import Exchanged
from lastiterate.curves.grouped import Grouped
from lastiterate.errors import InputError
from lastiterate.run.arrays import Array


@final
@dataclass(frozen=True)
class WithFailure(Curve):
    """``curve``, except with probability ``failure``.

    **Guarantee:** for both neighbours the mechanism differs on an event of probability at most ``failure`` from one
    that ``curve`` bounds. Hence delta(epsilon) <= curve's + failure, and failures of several mechanisms add up.
    """

    curve: Curve
    failure: float

    def __post_init__(self) -> None:
        if not 0 <= self.failure <= 1:
            raise InputError("failure", "must be a probability", self.failure)

    def delta(self, epsilon: float) -> float:
        check_epsilon(epsilon)
        return min(1.0, (self.curve.delta(epsilon) + self.failure) * UP)

    def directions(self, epsilon: float) -> tuple[float, float]:
        one, two = self.curve.directions(epsilon)
        return min(1.0, (one + self.failure) * UP), min(1.0, (two + self.failure) * UP)

    def profile(self, epsilons: Array) -> Array:
        return np.minimum(1.0, (self.curve.profile(epsilons) + self.failure) * UP)

    def log_profile(self, epsilons: Array) -> Array:
        logs = self.curve.log_profile(epsilons)
        if self.failure == 0:
            return logs
        return np.minimum(np.logaddexp(logs, math.log(self.failure)) + 1e-12, 0.0)

    def epsilon(self, delta: float) -> float:
        check_delta(delta)
        left = delta / UP - self.failure * UP  # what the curve may use, rounded down
        return self.curve.epsilon(left) if left >= LEAST_DELTA else math.inf

    def rdp(self, alpha: float) -> float:
        # nothing bounds the divergence on the event of failure
        return self.curve.rdp(alpha) if self.failure == 0 else math.inf

    def exchanged(self) -> Exchanged:
        return Exchanged(self)

    def group(self, size: int) -> Grouped:
        return Grouped(self, size)

    def coarser(self) -> WithFailure:
        return replace(self, curve=self.curve.coarser())
