"""What of a described run an audit executes, and what is left: by comparing two descriptions, not by a list."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import cast

from lastiterate.audit import networks, trajectory
from lastiterate.audit.whole import audited_whole
from lastiterate.run.losses import Abstract
from lastiterate.run.run import Run
from lastiterate.run.stable import without_preparation

STAND_IN = "the loss is a stand-in whose gradients are the records: a user's own loss is not looked at"
AS_THEY_ARE = "all iterates are attacked as they are: what single steps added cannot be read off them"


@dataclass(frozen=True)
class Attacked:
    """The part of a run that is attacked and held against its certificate; which fields of the description it lacks;
    and what else is to be said."""

    run: Run
    lacking: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()


def auditable(run: Run, *, steps_only: bool = False) -> Attacked:
    """What is attacked of ``run``; ``steps_only``: by models without preparation and calibration."""
    attacked = replace(run, counts=(), rows_per_unit=1, record_draws=None)
    if steps_only or not audited_whole(run) or networks.stands_in(run):
        attacked = without_preparation(replace(attacked, calibration=None, rows_per_record=1))
    if networks.stands_in(run) and isinstance(run.loss, Abstract):  # whose records have no class: each counts fully
        attacked = replace(attacked, loss=replace(run.loss, class_weights=None))
    caveats: tuple[str, ...] = (STAND_IN,) if networks.stands_in(run) else ()
    if run.release == "all" and not trajectory.readable(run):
        caveats += (AS_THEY_ARE,)
    return Attacked(attacked, lacking(run, attacked), caveats)


def lacking(run: Run, attacked: Run) -> tuple[str, ...]:
    """The fields of ``run`` that ``attacked`` does not have as they are described, with what is described there; and a
    loss that is known by its constants alone, which nothing can execute."""
    differing = [item.name for item in fields(Run) if getattr(run, item.name) != getattr(attacked, item.name)]
    named = [f"{name} ({_words(getattr(run, name))})" for name in differing]
    return (*named, *(("loss (a function of the user's)",) if isinstance(run.loss, Abstract) else ()))


def _words(value: object) -> str:
    """The classes of what stands in a field, or a number as it is."""
    if isinstance(value, tuple):
        return ", ".join(_words(part) for part in cast("tuple[object, ...]", value))
    return str(value) if isinstance(value, int | float | str) else type(value).__name__
