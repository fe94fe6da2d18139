"""The Lipschitz constant of one step's map: smooth, clipped and Hoelder continuous gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from lastiterate.run.facts import Evidence, Fact, LossFacts, find_fact, mint
from lastiterate.run.losses import data_curvature, loss_from_facts
from lastiterate.run.noise import GradientNoise
from lastiterate.run.run import Run
from lastiterate.run.step_sizes import Constant, RelativeToSmooth
from lastiterate.run.validation import Array

# The map of a clipped step (docs/theorems/shifted-interpolation).


def bound_clipped_step(step: Array, lowest: float, highest: float) -> Array:
    """Exact Lipschitz constants of ``x - step clip(grad f(x))`` over all f with Hessian in [lowest,
    highest], d >= 2.

    One for every entry of ``step``. For lowest = 0 and step * highest <= 3 it is 2 / sqrt(4 - step
    * highest), so clipping a convex smooth loss *expands*.
    """
    a, b = step * highest, step * lowest
    largest = np.maximum(1.0, step_lipschitz(step, lowest, highest))
    total = a + b
    rotates = (total > 0) & (total < 4)
    inside = np.where(rotates, total, 2.0)
    with np.errstate(over="ignore"):
        q = 1 + (a - b) ** 2 / (inside * (4 - inside))
        turning = 1 - q * (2 - inside) / 2
    return np.where(
        rotates & (b <= turning) & (turning <= a), np.maximum(largest, np.sqrt(q)), largest
    )


def step_lipschitz(step: Array, lowest: float, highest: float) -> Array:
    """Lipschitz constants of ``x - step grad f(x)`` over all f with Hessian in [lowest, highest],
    for every step."""
    return np.maximum(abs(1 - step * lowest), abs(1 - step * highest))


# Shift allocations in a bounded domain for steps with a modulus of continuity instead of a
# Lipschitz constant.  Two states at distance z are at most w(z) apart after the two maps of any
# step, w(z) >= z nondecreasing. Restarted at the diameter, z_tau = D, or from z_0 = 0, every path
# to z_T = 0 with a_t = w(z_{t-1}) - z_t >= 0 gives mu^2 = sum_t a_t^2 / v. Proof:
# docs/theorems/bounded-domain.

LONGEST = 2000
"""Steps from the end among which a path is looked for."""
PATHS = 80
"""Paths that are tried at once, distinguished by their last shift."""


@dataclass(frozen=True)
class Modulus:
    """w(z) = z + min(growth z^exponent + shift, most); 0 < exponent <= 1, ``most`` infinite if
    unknown."""

    growth: float
    exponent: float
    shift: float
    most: float = math.inf

    def __call__(self, z: Array) -> Array:
        return z + np.minimum(self.growth * z**self.exponent + self.shift, self.most)

    def slope(self, z: Array) -> Array:
        """Derivative of w, with 1 at 0, where it may be infinite."""
        rises = (z > 0) & (self.growth * z**self.exponent + self.shift < self.most)
        with np.errstate(divide="ignore"):
            return 1 + np.where(rises, self.growth * self.exponent * z ** (self.exponent - 1), 0.0)

    def inverse(self, y: Array) -> Array:
        """About the z >= 0 with w(z) = y, by Newton's method in a bracket; no bound rests on its
        precision."""
        low, high, z = np.zeros_like(y), y, y
        for _ in range(12):
            value = self(z) - y
            low, high = np.where(value <= 0, z, low), np.where(value > 0, z, high)
            z = z - value / self.slope(z)
            z = np.where((low < z) & (z < high), z, (low + high) / 2)
        return low


def mu_of_constant_run(modulus: Modulus, run: Run) -> float:
    """mu of the last iterate of a constant run whose every step has this modulus."""
    deviation = run.first_step * run.first_noise
    unit = _unit_mu(modulus, run.steps, run.domain.diameter())
    return unit / deviation if deviation > 0 else math.inf


@lru_cache(maxsize=64)
def _unit_mu(modulus: Modulus, steps: int, diameter: float) -> float:
    """At noise 1 on the iterate: mu is inversely proportional to it, so that a search computes this
    once.

    Without a restart the path z_t = 0 absorbs w(0) at every step; it is the better one for short
    runs.
    """
    charged = math.sqrt(steps) * float(modulus(np.array(0.0))) * (1 + 1e-14)
    return min(search_restart_mu(modulus, 1.0, steps, diameter), charged)


def search_restart_mu(modulus: Modulus, v: float, steps: int, diameter: float) -> float:
    """The least mu over the paths that are tried; v > 0. The last step alone, from D to 0, is among
    them.

    Backwards from the last shift a_T the best path obeys a_t = a_{t+1} w'(z_t) (one more unit of
    shift at t saves w' units at t + 1), so that paths differ in a_T only; the first state that
    would lie beyond D is put at D.
    """
    top = float(modulus(np.array(diameter)))
    best, low, high = top * top, _least_shift(modulus, diameter), top
    for _ in range(2):
        tried = np.geomspace(low, high, PATHS)
        costs = _costs(modulus, tried, steps, diameter, best)
        best = min(best, float(costs.min()))
        middle, width = float(tried[np.argmin(costs)]), (high / low) ** (2 / PATHS)
        low, high = middle / width, min(middle * width, top)
    return math.sqrt(best / v) * (1 + 1e-11)


def _least_shift(modulus: Modulus, diameter: float) -> float:
    """A last shift so small that paths which end with less are longer than ``LONGEST``, or begin
    below D."""
    return max(float(modulus(np.array(diameter / LONGEST))) / 4, 1e-12 * diameter)


def _costs(
    modulus: Modulus, last_shifts: Array, steps: int, diameter: float, worth: float
) -> Array:
    """sum of a_t^2 of every path; infinite where it does not begin at D within the run, or exceeds
    ``worth``.

    Every a_t is computed forwards from the states, and w is inflated for the rounding of a
    difference that may cancel.
    """
    z, shift = np.zeros_like(last_shifts), last_shifts.copy()
    cost, open_ = np.zeros_like(z), np.ones(z.shape, dtype=bool)
    for _ in range(min(steps, LONGEST)):
        before = np.minimum(modulus.inverse(z + shift), diameter)
        before = np.where(diameter - before < 1e-9 * diameter, diameter, before)
        paid = np.maximum(modulus(before) * (1 + 1e-14) - z, 0.0)
        cost = np.where(open_, cost + paid**2, cost)
        worth = min(worth, float(cost[~open_].min(initial=math.inf)))
        stuck = open_ & (
            (before <= z) | (cost > worth)
        )  # a shift that does not even make up for what w adds
        cost = np.where(stuck, math.inf, cost)
        open_ = open_ & (before < diameter) & ~stuck
        if not open_.any():
            break
        shift, z = shift * modulus.slope(before), before
    return np.where(open_, math.inf, cost)


# What theorems see of a run whose steps follow a smoothness that is measured and paid for.  In
# units of 1/smooth every step is ``relative`` long, whatever is measured. The run that theorems
# read has steps of 1 and a data term that is ``relative``-smooth, by a fact of evidence ``PAID``:
# shifts and noise are scaled alike, so that its curve is that of the executed run for every
# released value. It excludes everything else that is released. Of the ridge only its sign is used:
# it is not negative. Statement and proof: docs/theorems/paid-smoothness.

WHY = "the largest eigenvalue of the rows' second moments is measured with noise, and the steps follow it"


def to_accounted_run(run: Run) -> Run:
    """The run that theorems speak of: ``run`` itself, unless its steps are relative to a measured
    smoothness."""
    if type(run.step_size) is not RelativeToSmooth:
        return run
    own = run.facts()
    convex = (
        find_fact(own, "smooth") is not None
    )  # a clip that can act on a vector leaves nothing to measure
    facts = LossFacts(
        lipschitz=own.lipschitz,
        smooth=mint(run.step_size.relative, Evidence.PAID, WHY) if convex else None,
        strong=mint(0.0, Evidence.PROVED, "the data term is convex") if convex else None,
        weak_convexity=mint(0.0, Evidence.PROVED, "the data term is convex") if convex else None,
    )
    plain = replace(
        run,
        step_size=Constant(1.0),
        loss=loss_from_facts(facts),
        clip=None,
        preprocessing=(),
        probability_calibration=None,
        counts=(),
    )
    if not run.decided_noise.independent:
        return replace(plain, noise=run.decided_noise.scale_by(run.first_noise / plain.first_noise))
    return replace(
        plain,
        noise=GradientNoise(run.first_noise if run.same_noise else tuple(run.noise_stds.tolist())),
    )


# The map of any step.


@dataclass(frozen=True)
class StepMap:
    """Bounds on the Hessian of a step's data term, the ridge outside it, and whether per-example
    clips can act."""

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
        constants = self._compute(steps)
        # below 1/2 the error of 1 - step h is not small against the constant
        sizes = abs(self.ridge) + max(abs(self.lowest), abs(self.highest))
        return np.where(constants < 0.5, constants + 2.0**-50 * (1 + steps * sizes), constants)

    def _compute(self, steps: Array) -> Array:
        if not self.clipped:
            return step_lipschitz(steps, self.ridge + self.lowest, self.ridge + self.highest)
        shrink = 1 - steps * self.ridge
        short = shrink > 0
        rest = np.where(short, shrink, 1.0)
        rotated = rest * bound_clipped_step(steps / rest, self.lowest, self.highest)
        # the decomposition into a shrunk clipped step needs step * ridge < 1; by the triangle
        # inequality instead
        return np.where(short, rotated, -shrink + steps * max(abs(self.lowest), abs(self.highest)))


UP = 1 + 2.0**-50
"""Above the rounding of two operations."""


def shrinkage(run: Run, steps: Array) -> Array:
    """Return the factors by which a proximal term shrinks a step's map, its shift and its noise
    alike: 1 / (1 + step w) for the part w/2 |theta|^2 of the penalty
    (docs/theorems/shifted-interpolation). Rounded up, as if w were smaller."""
    return np.minimum(1.0, UP / (1 + steps * (0.0 if run.prox is None else run.prox.quadratic)))


def step_map(run: Run, shares: tuple[float, float] | None = None) -> StepMap | None:
    """Return the constants of the map of every step; ``None`` when no smoothness constant is known.

    The constants speak of means over records. A step divides its batch's sum by a public number, so
    that a short block has less curvature than they say, and a bin that many records fell into has
    more. ``shares``: the fewest and the most records of a batch over that number, if not the run's
    own.
    """
    given = run.loss.facts()
    smooth, strong, weak = (
        find_fact(given, name) for name in ("smooth", "strong", "weak_convexity")
    )
    if smooth is None:
        return None
    ridge = run.loss.ridge
    lowest = -smooth.value  # without a statement on convexity: |Hessian| <= smooth
    used = (smooth,)
    if strong is not None:
        lowest, used = strong.value - ridge, (smooth, strong)
    elif weak is not None:
        lowest, used = -weak.value, (smooth, weak)  # steeper than smooth, if that is what is stated
    clipped = run.clip is not None and find_fact(run.facts(), "smooth") is None
    fewest, most = run.shares if shares is None else shares
    if (
        smooth.evidence is Evidence.PAID
    ):  # measured on the batches themselves, however many records they hold
        most = 1.0
    return StepMap(
        ridge,
        lowest * (fewest if lowest > 0 else most),
        data_curvature(smooth.value, ridge) * most,
        clipped,
        used,
    )


def find_known_map(run: Run, shares: tuple[float, float] | None = None) -> StepMap:
    """Return ``step_map`` of a run whose smoothness an assumption found to be known."""
    found = step_map(run, shares)
    assert found is not None
    return found
