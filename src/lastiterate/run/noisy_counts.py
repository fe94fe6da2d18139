"""Noisy counts of correctly predicted private records, released together with a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, final

from lastiterate.errors import InputError
from lastiterate.run.adjacency import has_fixed_size, records_moved
from lastiterate.run.base import RunBase
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.validation import check_integer, check_text, positive


@final
@dataclass(frozen=True)
class NoisyCount(Checked):
    """A noisy count of a model's correct predictions, released together with the model.

    It goes into ``Run(counts=)``, for a loss that predicts classes and a run that releases the last
    iterate only.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise, in records, positive.
    records : int
        Public number of records that are counted.
    drawn : {"apart", "anywhere"}, default "anywhere"
        "apart" where the library itself split the data by public positions, so that no counted
        record is trained on; "anywhere" where a record may be in both parts.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    NoisyGroups : Counts for several groups.

    Notes
    -----
    **Guarantee:** a Gaussian mechanism of sensitivity 1 on the released model. The certificate
    composes it with the steps where a record may be in both parts, and takes the larger of the two
    where it cannot.

    Examples
    --------
    >>> import lastiterate as li
    >>> count = li.NoisyCount(noise_multiplier=5.0, records=50)
    >>> run = li.Run(n=100, steps=3, step_size=0.1, loss=li.Logistic(), counts=(count,))
    >>> run.counts[0].apart
    False
    """

    noise_multiplier: float = field(metadata=require(positive, "noise_multiplier of the count"))
    records: int = field(metadata=require(check_integer, "records of the count"))
    drawn: Literal["apart", "anywhere"] = "anywhere"

    @property
    def apart(self) -> bool:
        """Whether no counted record is surely trained on."""
        return self.drawn == "apart"

    @property
    def numbers(self) -> int:
        """Number of released numbers."""
        return 1

    def sensitivity(self, adjacency: str) -> float:
        """Return the sensitivity of the released counts to one row, in Euclidean norm."""
        return 1.0

    @property
    def words(self) -> str:
        """The description of the count in certificates."""
        return f"a count over {self.records} records, " + (
            "apart from those that are trained on" if self.apart else "which may be trained on too"
        )


@final
@dataclass(frozen=True)
class NoisyGroups:
    """Noisy counts of a model's correct and wrong predictions in every group of records.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on each of the two numbers of a group, in records, positive.
    records : int
        Public number of records that are counted.
    groups : tuple of str
        Public names of two or more groups, printable and all different. A record is in one group or
        in none.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    NoisyCount : One count over all records.

    Notes
    -----
    **Guarantee:** a Gaussian mechanism on the released model, composed with the steps: counted
    records may be trained on. Zeroing, adding or removing a record moves the numbers by 1 in
    Euclidean norm; replacing one moves them by sqrt 2.

    Examples
    --------
    >>> import lastiterate as li
    >>> li.NoisyGroups(noise_multiplier=5.0, records=50, groups=("north", "south")).numbers
    4
    """

    noise_multiplier: float = field(metadata=require(positive, "noise_multiplier of the count"))
    records: int = field(metadata=require(check_integer, "records of the count"))
    groups: tuple[str, ...]

    def __post_init__(self) -> None:
        normalise_fields(self)
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
        """Number of released numbers: correct and wrong for every group."""
        return 2 * len(self.groups)

    def sensitivity(self, adjacency: str) -> float:
        """Return the sensitivity of the released counts to one row, in Euclidean norm."""
        return math.sqrt(records_moved(adjacency))

    @property
    def words(self) -> str:
        """The description of the count in certificates."""
        return (
            f"right and wrong answers in {len(self.groups)} groups of {self.records} records, "
            "which may be trained on too"
        )


Count = NoisyCount | NoisyGroups
"""The noisy counts that a run may release in addition to its model."""


def check_counts(run: RunBase, counts: tuple[Count, ...]) -> None:
    """Refuse counts without classes, and splits that could separate the records of a unit."""
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
        run.rows_per_unit > 1 or not has_fixed_size(run.adjacency)
    ):
        raise InputError(
            "counts",
            "cannot be apart from the training where a unit may have rows in both parts, or one "
            "record more moves the others' places",
            run.rows_per_unit,
            'count with drawn="anywhere": costs add',
        )
