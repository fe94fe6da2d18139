"""Random numbers that belong to records: what a record's gradient draws at a step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from lastiterate.errors import InputError
from lastiterate.run.derived_fields import Described
from lastiterate.run.facts import LossFacts
from lastiterate.run.fields import settle
from lastiterate.run.losses import Abstract
from lastiterate.run.validate import whole

MOST_COPIES = 1024


@final
@dataclass(frozen=True)
class RecordDraws:
    """A record's gradient is the mean over ``copies`` draws of what ``name`` makes of it, and is clipped then.

    Augmentation multiplicity (De et al. 2022, arXiv:2204.13650) and dropout. Keys follow from the run's key, the step,
    the record's number and the copy: from nothing that another record decides.

    **Guarantee:** under every value of the keys a record's gradient is a function of the parameters and of that record
    alone, of norm at most the clip, so that theorems for losses that may differ from step to step hold; keys are
    independent of the data, and a mixture over them keeps what each of them has. It goes into a run with a clip,
    without stated constants and without a bounded domain, where no theorem about a hidden state speaks.
    """

    name: str = "augmentation"
    copies: int = 1

    def __post_init__(self) -> None:
        settle(self)
        whole("copies", self.copies, most=MOST_COPIES)
        if not self.name.isprintable() or not 0 < len(self.name) <= 80:
            raise InputError("name of what is drawn", "must be up to 80 printable characters", len(self.name))

    @property
    def stated(self) -> str:
        """What a certificate says of it, because nobody can check it."""
        several = f", {self.copies} times for every gradient, whose mean is clipped" if self.copies > 1 else ""
        return (f"drawn for every record, stated: {self.name}{several}, is taken to look at one record, its key and "
                "public numbers alone")


def check_record_draws(run: Described, draws: RecordDraws | None) -> None:
    """Refuse draws where a theorem, or the method, speaks of one loss that is the same at every step."""
    if draws is None:
        return
    if run.clip is None:
        raise InputError("clip", "is needed where a record's gradient draws random numbers", None, "add clip=")
    if type(run.loss) is not Abstract or run.loss.constants != LossFacts():
        raise InputError("loss of the run", "must be Abstract without constants where a record's gradient draws random "
                         "numbers: constants speak of records as they are", type(run.loss).__name__,
                         "leave loss out of the run")
    if math.isfinite(run.domain.diameter()):
        raise InputError("domain", "must be unbounded where a record's gradient draws random numbers: theorems about a "
                         "bounded one compare steps of one loss", type(run.domain).__name__, "leave it out")
    if not run.noisy_steps:
        raise InputError("method", "must add noise to every step's gradient where a record's gradient draws random "
                         "numbers", None, "use Descent")
