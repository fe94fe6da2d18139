"""What is known about the map of one step: its Lipschitz constant for every data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.analysis.clipped_step import clipped_step_lipschitz, step_lipschitz
from lastiterate.run.arrays import Array
from lastiterate.run.evidence import Evidence, Fact
from lastiterate.run.facts import known
from lastiterate.run.run import Run


@dataclass(frozen=True)
class StepMap:
    """Bounds on the Hessian of a step's data term, the ridge outside it, and whether per-example clips can act."""

    ridge: float
    lowest: float
    highest: float
    clipped: bool
    facts: tuple[Fact, ...]

    def lipschitz(self, step: float) -> float:
        """Lipschitz constant of one step's map, for every data set."""
        return float(self.lipschitz_each(np.array([step]))[0])

    def lipschitz_each(self, steps: Array) -> Array:
        """``lipschitz`` of every entry of ``steps``."""
        constants = self._computed(steps)
        # below 1/2 the error of 1 - step h is not small against what is left
        sizes = abs(self.ridge) + max(abs(self.lowest), abs(self.highest))
        return np.where(constants < 0.5, constants + 2.0**-50 * (1 + steps * sizes), constants)

    def _computed(self, steps: Array) -> Array:
        if not self.clipped:
            return step_lipschitz(steps, self.ridge + self.lowest, self.ridge + self.highest)
        shrink = 1 - steps * self.ridge
        short = shrink > 0
        rest = np.where(short, shrink, 1.0)
        rotated = rest * clipped_step_lipschitz(steps / rest, self.lowest, self.highest)
        # the decomposition into a shrunk clipped step needs step * ridge < 1; by the triangle inequality instead
        return np.where(short, rotated, -shrink + steps * max(abs(self.lowest), abs(self.highest)))


UP = 1 + 2.0**-50
"""Above the rounding of two operations."""


def shrinkage(run: Run, steps: Array) -> Array:
    """What a proximal term does to a step's map, its shift and its noise alike: factors 1 / (1 + step w) for the part
    w/2 |theta|^2 of the penalty (docs/theorems/shifted-interpolation). Rounded up, as if w were smaller."""
    return np.minimum(1.0, UP / (1 + steps * (0.0 if run.prox is None else run.prox.quadratic)))


def step_map(run: Run, shares: tuple[float, float] | None = None) -> StepMap | None:
    """What is known about the map of every step; ``None`` when no smoothness constant is known.

    The constants speak of means over records. A step divides its batch's sum by a public number, so that a short block
    has less curvature than they say, and a bin that many records fell into has more. ``shares``: the fewest and the
    most records of a batch over that number, if not the run's own.
    """
    given = run.loss.facts()
    smooth, strong, weak = (known(given, name) for name in ("smooth", "strong", "weak_convexity"))
    if smooth is None:
        return None
    ridge = run.loss.ridge
    lowest = -smooth.value  # without a statement on convexity: |Hessian| <= smooth
    used = (smooth,)
    if strong is not None:
        lowest, used = strong.value - ridge, (smooth, strong)
    elif weak is not None:
        lowest, used = -weak.value, (smooth, weak)  # steeper than smooth, if that is what is stated
    clipped = run.clip is not None and known(run.facts(), "smooth") is None
    fewest, most = run.shares if shares is None else shares
    if smooth.evidence is Evidence.PAID:  # measured on the batches themselves, however many records they hold
        most = 1.0
    return StepMap(ridge, lowest * (fewest if lowest > 0 else most), (smooth.value - ridge) * most, clipped, used)
