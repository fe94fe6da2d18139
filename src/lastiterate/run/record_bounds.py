"""What one record can do to a step: its bound and its sensitivity, after clipping and for the run's own neighbours."""

from __future__ import annotations

from dataclasses import replace

from lastiterate.run.adjacency import Adjacency, records_moved
from lastiterate.run.evidence import Evidence, Fact, mint
from lastiterate.run.facts import FLOAT_SLACK, LossFacts, after_clipping, known
from lastiterate.run.losses import Loss


def facts_of(loss: Loss, clip: float | None, adjacency: Adjacency) -> LossFacts:
    """The constants that hold for a run with this loss, after clipping and the conversion to its adjacency."""
    facts = loss.facts()
    lipschitz = _bound(known(facts, "lipschitz"), clip)
    kept = facts
    if clip is not None:
        kept = after_clipping(facts, scalar_residual=loss.scalar_residual or clipping_is_idle(facts, clip))
    sensitivity = _sensitivity(known(facts, "sensitivity"), lipschitz, adjacency)
    return replace(kept, lipschitz=lipschitz, sensitivity=sensitivity)


def noise_unit(loss: Loss, clip: float | None) -> float | None:
    """What a noise multiplier multiplies: the clipping norm, or the loss's Lipschitz constant where there is none."""
    if clip is not None:
        return clip
    lipschitz = known(loss.facts(), "lipschitz")
    return None if lipschitz is None else lipschitz.value


def clipping_is_idle(facts: LossFacts, clip: float) -> bool:
    """Whether an enforced Lipschitz constant already lies below the clip, so that clipping never acts."""
    bound = known(facts, "lipschitz")
    return bound is not None and bound.evidence >= Evidence.ENFORCED and bound.value <= clip


def _bound(given: Fact | None, clip: float | None) -> Fact | None:
    """Bound on one record's (clipped) data gradient: the smaller of the loss's constant and the clip."""
    if clip is None:
        return given
    clipped = mint(clip, Evidence.ENFORCED, "per-example gradients are clipped")
    return given if given is not None and given.value < clipped.value else clipped


def _sensitivity(given: Fact | None, lipschitz: Fact | None, adjacency: Adjacency) -> Fact | None:
    moved = records_moved(adjacency)
    derived = None
    if lipschitz is not None:
        slack = 1 + FLOAT_SLACK if lipschitz.evidence >= Evidence.ENFORCED else 1.0
        value = moved * lipschitz.value * slack
        rule = f"{'2 L' if moved == 2 else 'L'} under {adjacency}"
        derived = mint(value, lipschitz.evidence, f"{rule}, L = {lipschitz.value:g}: {lipschitz.why}")
    if given is None or derived is None:
        return derived if given is None else given
    low, high = sorted((given, derived), key=lambda fact: fact.value)
    return mint(low.value, low.evidence, f"{low.why} (the larger, {high.value:g}, is not used)")
