"""Assumptions about the geometry of a step: convexity, and how long a step may be."""

from __future__ import annotations

import math

from lastiterate.assumptions import known, longest_step
from lastiterate.run import Run
from lastiterate.theorem import Assumption, Broken, Held


def at_most(run: Run, limit: float, what: str, held: Held) -> Held | Broken:
    """``held`` if no step exceeds ``limit``, which ``what`` names."""
    longest = longest_step(run)
    return held if longest <= limit else Broken(f"the step size {longest:g} must be at most {what} = {limit:g}")


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
