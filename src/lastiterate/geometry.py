"""Assumptions about the geometry of a step: bounded gradients, convexity, the step's map, how long a step may be."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lastiterate._numerics import Array
from lastiterate.assumptions import known
from lastiterate.clipping import clipped_step_lipschitz, step_lipschitz
from lastiterate.evidence import Fact
from lastiterate.run import Run, data_term_ridge
from lastiterate.schedules import Steps
from lastiterate.theorem import Assumption, Broken, Held


def longest_step(run: Run) -> float:
    """The largest step size of the run."""
    return float(run.step_sizes.max()) if isinstance(run.step_size, Steps) else run.step_size.at(0)


def _bounded_gradient(run: Run) -> Held | Broken:
    lipschitz, ridge = known(run.facts(), "lipschitz"), data_term_ridge(run.loss)
    if lipschitz is None:
        return Broken("no bound on a record's gradient is known: clip per-example gradients (--clip), or state "
                      "--lipschitz")
    if ridge > 0 and longest_step(run) * ridge > 2:
        return Broken(f"step * ridge must be at most 2 (ridge {ridge:g})")
    return Held((lipschitz,))


bounded_gradient = Assumption("bounded_gradient", "every record's gradient is bounded (clipping suffices)",
                              _bounded_gradient)


def _hoelder_gradient(run: Run) -> Held | Broken:
    facts = run.facts()
    hoelder, exponent, lipschitz = (known(facts, name) for name in ("hoelder", "hoelder_exponent", "lipschitz"))
    if hoelder is None or exponent is None:
        return Broken("no Hoelder constant of the gradients is known: state --hoelder and --hoelder-exponent")
    return Held((hoelder, exponent) if lipschitz is None else (hoelder, exponent, lipschitz))


hoelder_gradient = Assumption("hoelder_gradient", "every record's gradient is Hoelder continuous", _hoelder_gradient)


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
        if not self.clipped:
            return step_lipschitz(steps, self.ridge + self.lowest, self.ridge + self.highest)
        shrink = 1 - steps * self.ridge
        short = shrink > 0
        rest = np.where(short, shrink, 1.0)
        rotated = rest * clipped_step_lipschitz(steps / rest, self.lowest, self.highest)
        # the decomposition into a shrunk clipped step needs step * ridge < 1; by the triangle inequality instead
        return np.where(short, rotated, -shrink + steps * max(abs(self.lowest), abs(self.highest)))


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
    ridge = data_term_ridge(run.loss)
    lowest = -smooth.value  # |Hessian| <= smooth is all that is known without a statement on convexity
    used = (smooth,)
    if strong is not None:
        lowest, used = strong.value - ridge, (smooth, strong)
    elif weak is not None:
        lowest, used = max(lowest, -weak.value), (smooth, weak)
    clipped = run.clip is not None and known(run.facts(), "smooth") is None
    fewest, most = run.shares if shares is None else shares
    return StepMap(ridge, lowest * (fewest if lowest > 0 else most), (smooth.value - ridge) * most, clipped, used)


def _lipschitz_step(run: Run) -> Held | Broken:
    found = step_map(run)
    if found is None:
        return Broken("the step's Lipschitz constant is unknown: state --smooth (with --strong 0 for a convex loss), "
                      "or use a loss that derives it")
    return Held(found.facts)


lipschitz_step = Assumption("lipschitz_step", "a smooth loss: each step's map has a known Lipschitz constant",
                            _lipschitz_step)


def _convex(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong, weak = (known(facts, name) for name in ("smooth", "strong", "weak_convexity"))
    if run.clip is not None and smooth is None:
        return Broken("per-example clipping of this loss makes steps expand even where it is convex: clip rows instead")
    flat = strong if strong is not None else weak if weak is not None and weak.value == 0 else None
    if smooth is None or flat is None:
        return Broken("it needs a convex, smooth loss: state --smooth and --strong 0, or use a loss that derives them")
    return Held((smooth, flat))


convex = Assumption("convex", "a convex, smooth loss", _convex)


def _strong(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong = known(facts, "smooth"), known(facts, "strong")
    if run.clip is not None and smooth is None:
        return Broken("per-example clipping of this loss destroys strong convexity and smoothness: clip rows instead")
    if smooth is None or strong is None or strong.value <= 0:
        return Broken("it needs a strongly convex, smooth loss: add a ridge, or state --strong and --smooth")
    return Held((smooth, strong))


strongly_convex = Assumption("strongly_convex", "a strongly convex, smooth loss", _strong)


def at_most(run: Run, limit: float, what: str, held: Held) -> Held | Broken:
    """``held`` if no step exceeds ``limit``, which ``what`` names."""
    longest = longest_step(run)
    return held if longest <= limit else Broken(f"the step size {longest:g} must be at most {what} = {limit:g}")


def _short_step(run: Run) -> Held | Broken:
    smooth = known(run.facts(), "smooth")
    if smooth is None:
        return Broken("the step cannot be compared with 1/smooth: state --smooth")
    longest = longest_step(run)
    if longest * smooth.value >= 1:
        return Broken(f"the step size {longest:g} must lie below 1/smooth = {1 / smooth.value:g}")
    return Held((smooth,))


short_step = Assumption("short_step", "step < 1/smooth", _short_step)


def _nonexpansive(run: Run) -> Held | Broken:
    smooth = known(run.facts(), "smooth")
    if smooth is None:
        return Broken("the step cannot be compared with 2/smooth: state --smooth")
    return at_most(run, 2 / smooth.value if smooth.value > 0 else math.inf, "2/smooth", Held((smooth,)))


nonexpansive_step = Assumption("nonexpansive_step", "step <= 2/smooth", _nonexpansive)


def _contracting(run: Run) -> Held | Broken:
    smooth, strong = known(run.facts(), "smooth"), known(run.facts(), "strong")
    if smooth is None or strong is None or strong.value <= 0:
        return Broken("the step cannot be compared with 2/(strong + smooth): state --strong and --smooth")
    return at_most(run, 2 / (strong.value + smooth.value), "2/(strong + smooth)", Held((smooth, strong)))


contracting_step = Assumption("contracting_step", "step <= 2/(strong + smooth)", _contracting)
