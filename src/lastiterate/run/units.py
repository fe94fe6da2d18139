"""Runs whose records are units of several rows: what they may be combined with."""

from __future__ import annotations

from lastiterate.errors import InputError
from lastiterate.run.counts import Count
from lastiterate.run.derived_fields import Described
from lastiterate.run.losses import Abstract
from lastiterate.run.preparation import CosineFeatures, TopEigenvalue
from lastiterate.run.validate import whole


def check_units(run: Described, counts: tuple[Count, ...]) -> None:
    """Refuse units as records where the engine would not take their mean, and group privacy on top of them."""
    whole("rows_per_record", run.rows_per_record, most=10**6)
    if run.rows_per_record == 1:
        return
    if run.rows_per_unit > 1:
        raise InputError("rows_per_unit", "must be 1 where a record is a unit already (rows_per_record)",
                         run.rows_per_unit, "leave it out")
    if isinstance(run.loss, Abstract):
        raise InputError("rows_per_record", "is for the losses of linear models", run.rows_per_record,
                         "a network's UnitLoss makes a unit one record")
    if counts:
        raise InputError("counts", "must be empty where records are units: they count single rows", len(counts),
                         "leave them out")
    if any(isinstance(part, CosineFeatures) for part in run.prelude):
        raise InputError("rows_per_record", "must be 1 where rows get cosine features", run.rows_per_record,
                         "use rows_per_unit, for group privacy")
    if any(isinstance(part, TopEigenvalue) for part in run.prelude):
        raise InputError("rows_per_record", "must be 1 where a top eigenvalue is measured", run.rows_per_record,
                         "it is measured on single rows; give the step sizes themselves")
