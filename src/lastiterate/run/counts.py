"""Noisy counts that are released beside a model: of how many private records it is right about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from lastiterate.errors import InputError
from lastiterate.run.adjacency import keeps_places
from lastiterate.run.derived_fields import Described
from lastiterate.run.fields import settle
from lastiterate.run.validate import positive, whole


@final
@dataclass(frozen=True)
class NoisyCount:
    """How many of ``records`` records the released model is right about, with Gaussian noise.

    ``noise_multiplier``: standard deviation, in records: zeroing or exchanging one moves the count by at most 1.
    ``drawn`` "apart": none of these records is among those that the run trains on, because the library itself split the
    data by their public places; "anywhere": a record may be in both, and costs add.

    It goes into ``Run(counts=)``, for a loss that predicts classes and a run that releases the last iterate only:
    ``InputError`` otherwise. ``records`` is public.
    **Guarantee:** a Gaussian mechanism of sensitivity 1 on the released model, which the run's certificate covers:
    composed with the steps where a record may be in both, and the larger of the two where it cannot.
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


def check_counts(run: Described, counts: tuple[NoisyCount, ...]) -> None:
    """Refuse counts of what is not right or wrong, and parts that a unit's rows could fall on both sides of."""
    if not counts:
        return
    if not run.loss.target_classes:
        raise InputError("counts", "are of records whose class is predicted", type(run.loss).__name__,
                         "leave them out where targets are numbers")
    if run.release != "last":
        raise InputError("release", "must be 'last' where a model's accuracy is counted", run.release)
    if any(count.apart for count in counts) and (run.rows_per_unit > 1 or not keeps_places(run.adjacency)):
        raise InputError("counts", "cannot be apart from the training where a unit may have rows in both parts, or one "
                         "record more moves the others' places", run.rows_per_unit,
                         "count with drawn=\"anywhere\": costs add")
