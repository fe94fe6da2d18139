"""What neighbouring data sets are, and the one place where constants are converted from one adjacency to another.

zero-out: what one record adds to any sum is replaced by zero, n is public. replace-one: one record is exchanged for
another. add-remove: one record is present or absent, for batches whose sizes are secret (Poisson, and secret blocks
drawn anew in every pass).
"""

from __future__ import annotations

from typing import Literal

from lastiterate.errors import InputError

Adjacency = Literal["zero-out", "replace-one", "add-remove"]
ADJACENCIES: tuple[Adjacency, ...] = ("zero-out", "replace-one", "add-remove")


def check_adjacency(adjacency: str, defined: tuple[Adjacency, ...]) -> None:
    """Refuse an unknown adjacency, and one that a batching is not ``defined`` for: most show how many records there
    are."""
    if adjacency not in ADJACENCIES:
        raise InputError("adjacency", "must be one of " + ", ".join(ADJACENCIES), adjacency)
    if adjacency not in defined:
        raise InputError("adjacency", "add-remove is defined for Poisson batches and random allocation only", adjacency,
                         "use zero-out, where n is public and a record's gradient is replaced by 0")


def check_same(described: str, asked: str, whose: str = "run") -> None:
    """Refuse what is described for other neighbours than are asked about."""
    if described != asked:
        raise InputError("adjacency", f"must be the {whose}'s, {described}", asked, f"describe the {whose} for it")


def records_moved(adjacency: str) -> int:
    """How many records' contributions a sum over records can change by: its sensitivity in units of their bound.

    Replace-one takes one out and puts another in. Batches that are drawn are conditioned on.
    """
    return 2 if adjacency == "replace-one" else 1


def of_single_records(adjacency: Adjacency) -> Adjacency:
    """The adjacency whose neighbours differ by what one record adds, and by nothing in its place."""
    return adjacency if adjacency == "add-remove" else "zero-out"


def says_exchanges(adjacency: str) -> bool:
    """Whether neighbours of a run, and not of another release, follow from one record that is left out."""
    return adjacency in ADJACENCIES and records_moved(adjacency) == 1


def convertible(one: str, other: str) -> bool:
    """Whether constants of single records give a run's account under both: add-remove stands alone."""
    return one == other or "add-remove" not in (one, other)


def keeps_places(adjacency: str) -> bool:
    """Whether neighbours have equally many records, so that all others lie where they lay."""
    return adjacency != "add-remove"


def one_by_one(adjacency: Adjacency) -> Adjacency | None:
    """The adjacency whose neighbours, one after the other, make up a neighbour of this one, or ``None``: an exchange
    takes one record away, and puts another in its place."""
    return "zero-out" if adjacency == "replace-one" else None
