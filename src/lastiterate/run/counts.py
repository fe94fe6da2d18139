"""Noisy counts that are released beside a model: of how many private records it is right about."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

from lastiterate.errors import InputError
from lastiterate.run.adjacency import keeps_places, records_moved
from lastiterate.run.base import Described
from lastiterate.run.serialization import settle
from lastiterate.run.validation import check_text, positive, whole


@final
@dataclass(frozen=True)
class NoisyCount:
    """How many of ``records`` records the released model is right about, with Gaussian noise.

    ``noise_multiplier``: standard deviation, in records: zeroing or exchanging one moves the count
    by at most 1. ``drawn`` "apart": none of these records is among those that the run trains on,
    because the library itself split the data by their public places; "anywhere": a record may be in
    both, and costs add.

    It goes into ``Run(counts=)``, for a loss that predicts classes and a run that releases the last
    iterate only: ``InputError`` otherwise. ``records`` is public. **Guarantee:** a Gaussian
    mechanism of sensitivity 1 on the released model, which the run's certificate covers: composed
    with the steps where a record may be in both, and the larger of the two where it cannot.
    """

    noise_multiplier: float
    records: int
    drawn: Literal["apart", "anywhere"] = "anywhere"

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the count", self.noise_multiplier)
        whole("records of the count", self.records)

    @property
    def apart(self) -> bool:
        """Whether its records are surely none of those that the run trains on."""
        return self.drawn == "apart"

    @property
    def numbers(self) -> int:
        """How many numbers are released."""
        return 1

    def moved(self, adjacency: str) -> float:
        """How far neighbouring data sets move what is released, a row each, in Euclidean norm."""
        return 1.0

    @property
    def words(self) -> str:
        """What is counted, for certificates."""
        return f"a count over {self.records} records, " + (
            "apart from those that are trained on" if self.apart else "which may be trained on too"
        )


@final
@dataclass(frozen=True)
class NoisyGroups:
    """How many of ``records`` records the released model is right and wrong about in each of
    ``groups``, with noise.

    ``groups``: their public printable names, two or more, all different; a record is of one of them
    or of none. Two numbers for every group, right and wrong, each with Gaussian noise of standard
    deviation ``noise_multiplier``, in records: how many records a group has is private. Records may
    be among those that the run trains on: costs add.

    **Guarantee:** a Gaussian mechanism on the released model. A record is in one of the numbers:
    zeroing, adding or removing it moves them by 1 in Euclidean norm, as it moves a single count.
    Exchanging it can take 1 from one number and add 1 to another, sqrt 2, where a single count
    moves by 1.
    """

    noise_multiplier: float
    records: int
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        settle(self)
        positive("noise_multiplier of the count", self.noise_multiplier)
        whole("records of the count", self.records)
        if len(self.groups) < 2 or len({*self.groups}) < len(self.groups) or not all(self.groups):
            raise InputError(
                "groups",
                "must be two or more names, all different",
                ", ".join(self.groups),
                "one count over all records is private_score without groups=",
            )
        check_text("groups", self.groups)
        if not all(name.isprintable() for name in self.groups):
            raise InputError(
                "groups",
                "must be printable names: certificates and reports show them",
                ", ".join(map(ascii, self.groups)),
            )

    @property
    def apart(self) -> bool:
        """Whether its records are surely none of those that the run trains on: nothing says so."""
        return False

    @property
    def numbers(self) -> int:
        """How many numbers are released: right and wrong for every group."""
        return 2 * len(self.groups)

    def moved(self, adjacency: str) -> float:
        """How far neighbouring data sets move what is released, a row each, in Euclidean norm."""
        return math.sqrt(records_moved(adjacency))

    @property
    def words(self) -> str:
        """What is counted, for certificates."""
        return (
            f"right and wrong answers in {len(self.groups)} groups of {self.records} records, "
            "which may be trained on too"
        )


Count = NoisyCount | NoisyGroups
"""What may be counted beside a run."""


def check_counts(run: Described, counts: tuple[Count, ...]) -> None:
    """Refuse counts of what is not right or wrong, and parts that a unit's rows could fall on both
    sides of."""
    if not counts:
        return
    if not run.loss.target_classes:
        raise InputError(
            "counts",
            "are of records whose class is predicted",
            type(run.loss).__name__,
            "leave them out where targets are numbers",
        )
    if run.release != "last":
        raise InputError(
            "release", "must be 'last' where a model's accuracy is counted", run.release
        )
    if any(count.apart for count in counts) and (
        run.rows_per_unit > 1 or not keeps_places(run.adjacency)
    ):
        raise InputError(
            "counts",
            "cannot be apart from the training where a unit may have rows in both parts, or one "
            "record more moves the others' places",
            run.rows_per_unit,
            'count with drawn="anywhere": costs add',
        )
