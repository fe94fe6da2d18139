"""What parts of a run may stand beside one another: refusals in one form."""

from __future__ import annotations

from lastiterate.errors import InputError
from lastiterate.run.derived_fields import Described
from lastiterate.run.noise import NoiseMultiplier


def allow(run: Described, where: str, remedy: str, **allowed: tuple[type, ...]) -> None:
    """Refuse the fields of ``run`` whose type is not one of those ``allowed`` for it."""
    for name, kinds in allowed.items():
        value = getattr(run, name)
        if type(value) not in kinds:
            names = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
            raise InputError(name, f"must be {names} {where}", type(value).__name__, remedy)


def only_single_rows(run: Described, where: str, remedy: str) -> None:
    """Refuse records of several rows."""
    if run.rows_per_record > 1:
        raise InputError("rows_per_record", f"must be 1 {where}", run.rows_per_record, remedy)


def multiplier_of(run: Described) -> float:
    """The noise multiplier of a run that has one by its description."""
    assert isinstance(run.noise, NoiseMultiplier)
    return run.noise.z
