"""Neighbouring data sets, and what one record can do to a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from lastiterate.errors import InputError
from lastiterate.run.facts import (
    FLOAT_SLACK,
    Evidence,
    Fact,
    LossFacts,
    facts_after_clipping,
    find_fact,
    mint,
)
from lastiterate.run.losses import Loss
from lastiterate.run.validation import check_choice

# Neighbouring data sets, and the only module that converts constants from one adjacency to another.
# zero-out: what one record adds to any sum is replaced by zero, n is public. replace-one: one
# record is exchanged for another. add-remove: one record is present or absent, for batches whose
# sizes are secret (Poisson, and secret blocks drawn again in every epoch).

Adjacency = Literal["zero-out", "replace-one", "add-remove"]
ADJACENCIES: tuple[Adjacency, ...] = ("zero-out", "replace-one", "add-remove")


def check_adjacency(adjacency: str, defined: tuple[Adjacency, ...]) -> None:
    """Refuse an unknown adjacency, and one that a batching is not ``defined`` for: most show how
    many records there are."""
    check_choice("adjacency", adjacency, ADJACENCIES)
    if adjacency not in defined:
        raise InputError(
            "adjacency",
            "add-remove is defined for Poisson batches and random allocation only",
            adjacency,
            "use zero-out, where n is public and a record's gradient is replaced by 0",
        )


def check_same(described: str, asked: str, whose: str = "run") -> None:
    """Refuse what is described for other neighbours than are asked about."""
    if described != asked:
        raise InputError(
            "adjacency",
            f"must be the {whose}'s, {described}",
            asked,
            f"describe the {whose} for it",
        )


def records_moved(adjacency: str) -> int:
    """Return the sensitivity of a sum over records, in units of the bound on one record's
    contribution.

    Replace-one takes one out and puts another in. Batches that are drawn are conditioned on.
    """
    return 2 if adjacency == "replace-one" else 1


def single_record_adjacency(adjacency: Adjacency) -> Adjacency:
    """Return the adjacency whose neighbours differ by what one record adds, with no replacement."""
    return adjacency if adjacency == "add-remove" else "zero-out"


def says_exchanges(adjacency: str) -> bool:
    """Whether neighbours of a run, and not of another release, follow from one record that is left
    out."""
    return adjacency in ADJACENCIES and records_moved(adjacency) == 1


def convertible(one: str, other: str) -> bool:
    """Whether constants of single records give a run's account under both: add-remove stands alone."""
    return one == other or "add-remove" not in (one, other)


def has_fixed_size(adjacency: str) -> bool:
    """Whether neighbours have equally many records, so that all others lie where they lay."""
    return adjacency != "add-remove"


def one_by_one(adjacency: Adjacency) -> Adjacency | None:
    """The adjacency whose neighbours, one after the other, make up a neighbour of this one, or
    ``None``: an exchange removes one record, and adds another instead."""
    return "zero-out" if adjacency == "replace-one" else None


# What one record can do to a step: its bound and its sensitivity, after clipping and for the run's
# own neighbours.  Where two constants bound the same, the better founded one counts, and of those
# that are enforced the smaller: a number that somebody assumes never displaces what the run itself
# makes true. Who trusts a smaller bound clips to it.


def facts_of(loss: Loss, clip: float | None, adjacency: Adjacency) -> LossFacts:
    """The constants that hold for a run with this loss, after clipping and the conversion to its
    adjacency."""
    facts = loss.facts()
    lipschitz = _bound(find_fact(facts, "lipschitz"), clip)
    kept = facts
    if clip is not None:
        kept = facts_after_clipping(
            facts, scalar_residual=loss.scalar_residual or is_clip_idle(facts, clip)
        )
    sensitivity = _sensitivity(find_fact(facts, "sensitivity"), lipschitz, adjacency)
    return replace(kept, lipschitz=lipschitz, sensitivity=sensitivity)


def noise_unit(loss: Loss, clip: float | None) -> float | None:
    """Return the factor of a noise multiplier: the clipping norm, or the loss's Lipschitz constant
    where there is none."""
    if clip is not None:
        return clip
    lipschitz = find_fact(loss.facts(), "lipschitz")
    return None if lipschitz is None else lipschitz.value


def is_clip_idle(facts: LossFacts, clip: float) -> bool:
    """Whether an enforced Lipschitz constant already lies below the clip, so that clipping never
    acts."""
    bound = find_fact(facts, "lipschitz")
    return bound is not None and bound.evidence >= Evidence.ENFORCED and bound.value <= clip


def _bound(given: Fact | None, clip: float | None) -> Fact | None:
    """Return the bound on one record's (clipped) data gradient, by the loss's constant or by the
    clip."""
    if clip is None:
        return given
    clipped = mint(clip, Evidence.ENFORCED, "per-example gradients are clipped")
    if given is None or (given.value >= clip and given.evidence >= Evidence.ENFORCED):
        return clipped
    if given.evidence >= Evidence.ENFORCED:  # a clip that never acts changes nothing
        return given
    return _better_founded(clipped, given)


def _sensitivity(given: Fact | None, lipschitz: Fact | None, adjacency: Adjacency) -> Fact | None:
    moved = records_moved(adjacency)
    derived = None
    if lipschitz is not None:
        slack = 1 + FLOAT_SLACK if lipschitz.evidence >= Evidence.ENFORCED else 1.0
        value = moved * lipschitz.value * slack
        rule = f"{'2 L' if moved == 2 else 'L'} under {adjacency}"
        derived = mint(
            value, lipschitz.evidence, f"{rule}, L = {lipschitz.value:g}: {lipschitz.why}"
        )
    if given is None or derived is None:
        return derived if given is None else given
    return _better_founded(derived, given)


def _better_founded(one: Fact, two: Fact) -> Fact:
    """Return the constant of better evidence, up to ``ENFORCED``, and of equals the smaller; it
    names the other."""
    kept, other = sorted(
        (one, two), key=lambda fact: (-min(fact.evidence, Evidence.ENFORCED), fact.value)
    )
    if kept.value <= other.value:
        return mint(
            kept.value, kept.evidence, f"{kept.why} (the larger, {other.value:g}, is not used)"
        )
    return mint(
        kept.value,
        kept.evidence,
        f"{kept.why} (the smaller, {other.value:g}, is {other.evidence.name.lower()} and not used)",
    )
