"""Assumptions about the geometry of a step: bounded gradients, convexity, the step's map, how long a step may be."""

from __future__ import annotations

import math

from lastiterate.analysis.step_map import step_map
from lastiterate.run.evidence import Evidence
from lastiterate.run.facts import known
from lastiterate.run.run import Run
from lastiterate.theorems.theorem import Assumption, Broken, Held


def _bounded_gradient(run: Run) -> Held | Broken:
    lipschitz, ridge = known(run.facts(), "lipschitz"), run.loss.ridge
    if lipschitz is None:
        return Broken("no bound on a record's gradient is known: clip per-example gradients (clip=C), or state "
                      "lipschitz=L")
    if ridge > 0 and run.longest_step * ridge > 2:
        return Broken(f"step * ridge must be at most 2 (ridge {ridge:g})")
    return Held((lipschitz,))


bounded_gradient = Assumption("bounded_gradient", "every record's gradient is bounded (clipping suffices)",
                              _bounded_gradient)


def _hoelder_gradient(run: Run) -> Held | Broken:
    facts = run.facts()
    hoelder, exponent, lipschitz = (known(facts, name) for name in ("hoelder", "hoelder_exponent", "lipschitz"))
    if hoelder is None or exponent is None:
        return Broken("no Hoelder constant of the gradients is known: state hoelder=H and hoelder_exponent=a")
    return Held((hoelder, exponent) if lipschitz is None else (hoelder, exponent, lipschitz))


hoelder_gradient = Assumption("hoelder_gradient", "every record's gradient is Hoelder continuous", _hoelder_gradient)


def _lipschitz_step(run: Run) -> Held | Broken:
    curvature = step_map(run)
    if curvature is None:
        return Broken("the step's Lipschitz constant is unknown: state smooth=M (with strong=0 for a convex loss), "
                      "or use a loss that derives it")
    return Held(curvature.facts)


lipschitz_step = Assumption("lipschitz_step", "a smooth loss: each step's map has a known Lipschitz constant",
                            _lipschitz_step)


def _unmeasured_smoothness(run: Run) -> Held | Broken:
    smooth = known(run.loss.facts(), "smooth")
    if smooth is not None and smooth.evidence is Evidence.PAID:
        return Broken("a measured smoothness speaks of whole batches, and the proof needs that of one record: give the "
                      "step size itself")
    return Held()


unmeasured_smoothness = Assumption("unmeasured_smoothness", "a smoothness that holds for every single record",
                                   _unmeasured_smoothness)


def _convex(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong, weak = (known(facts, name) for name in ("smooth", "strong", "weak_convexity"))
    if run.clip is not None and smooth is None:
        return Broken("per-example clipping of this loss makes steps expand even where it is convex: clip rows instead")
    flat = strong if strong is not None else weak if weak is not None and weak.value == 0 else None
    if smooth is None or flat is None:
        return Broken("it needs a convex, smooth loss: state smooth=M and strong=0, or use a loss that derives them")
    return Held((smooth, flat))


convex = Assumption("convex", "a convex, smooth loss", _convex)


def _strong(run: Run) -> Held | Broken:
    facts = run.facts()
    smooth, strong = known(facts, "smooth"), known(facts, "strong")
    if run.clip is not None and smooth is None:
        return Broken("per-example clipping of this loss destroys strong convexity and smoothness: clip rows instead")
    if smooth is None or strong is None or strong.value <= 0:
        return Broken("it needs a strongly convex, smooth loss: add a ridge, or state strong=m and smooth=M")
    return Held((smooth, strong))


strongly_convex = Assumption("strongly_convex", "a strongly convex, smooth loss", _strong)


def at_most(run: Run, limit: float, what: str, held: Held) -> Held | Broken:
    """``held`` if no step exceeds ``limit``, which ``what`` names."""
    longest = run.longest_step
    return held if longest <= limit else Broken(f"the step size {longest:g} must be at most {what} = {limit:g}")


def _short_step(run: Run) -> Held | Broken:
    smooth = known(run.facts(), "smooth")
    if smooth is None:
        return Broken("the step cannot be compared with 1/smooth: state smooth=M")
    longest = run.longest_step
    if longest * smooth.value >= 1:
        return Broken(f"the step size {longest:g} must lie below 1/smooth = {1 / smooth.value:g}")
    return Held((smooth,))


short_step = Assumption("short_step", "step < 1/smooth", _short_step)


def _nonexpansive(run: Run) -> Held | Broken:
    smooth = known(run.facts(), "smooth")
    if smooth is None:
        return Broken("the step cannot be compared with 2/smooth: state smooth=M")
    return at_most(run, 2 / smooth.value if smooth.value > 0 else math.inf, "2/smooth", Held((smooth,)))


nonexpansive_step = Assumption("nonexpansive_step", "step <= 2/smooth", _nonexpansive)


def _contracting(run: Run) -> Held | Broken:
    smooth, strong = known(run.facts(), "smooth"), known(run.facts(), "strong")
    if smooth is None or strong is None or strong.value <= 0:
        return Broken("the step cannot be compared with 2/(strong + smooth): state strong=m and smooth=M")
    return at_most(run, 2 / (strong.value + smooth.value), "2/(strong + smooth)", Held((smooth, strong)))


contracting_step = Assumption("contracting_step", "step <= 2/(strong + smooth)", _contracting)
