"""Two neighbouring data sets, and how a trainer is given the one without the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.adjacency import records_moved
from lastiterate.run.run import Run

Train = Callable[..., np.ndarray]
"""(features, target, keys) -> released parameters, one model per key, as ``Trainer(run).fit_many`` does.

Where worlds differ by a zeroed record it is called with ``absent=(record,)`` besides.
"""


@dataclass(frozen=True, eq=False)
class World:
    """One data set; the gradient of the record ``absent`` (if any) is replaced by zero. The order is public."""

    features: np.ndarray
    target: np.ndarray
    absent: int | None = None


@dataclass(frozen=True, eq=False)
class Worlds:
    """Neighbours: ``present`` holds the record, ``without`` does not, or holds another one in its place.

    ``pull``: the direction (k, d + 1) in which the record's gradient moves the parameters, where it is known.
    ``gaussian``: both released laws are exactly Gaussian with one covariance, a multiple of I, if the trainer is right.
    """

    present: World
    without: World
    record: int
    about: str
    pull: np.ndarray | None = None
    gaussian: bool = False

    def __post_init__(self) -> None:
        one, two = self.present, self.without
        if one.features.shape != two.features.shape or one.target.shape != two.target.shape:
            raise InputError("worlds", "must have the same shape", (one.features.shape, two.features.shape))
        if one.absent is not None:
            raise InputError("worlds", "must hold the record in the first world", one.absent)
        if two.absent is not None and not 0 <= two.absent < len(one.target):
            raise InputError("worlds", f"hold the records 0 .. {len(one.target) - 1}", two.absent)
        moved = (one.features != two.features).any(axis=1) | (one.target != two.target)
        if two.absent is not None:
            moved[two.absent] = True
        differing = np.flatnonzero(moved)
        if differing.size != 1:
            raise InputError("worlds", f"must differ in one record, not in {differing.size}",
                             [int(place) for place in differing[:5]], "neighbours differ in a single record")
        if int(differing[0]) != self.record:
            raise InputError("record", f"must be the one in which the worlds differ, {int(differing[0])}", self.record)


def replaces(run: Run) -> bool:
    """Whether neighbours hold another record in the place of one, instead of none."""
    return records_moved(run.adjacency) == 2


def check_worlds(worlds: Worlds, run: Run) -> None:
    """Refuse neighbours of another adjacency than the run is accounted under."""
    if replaces(run) and worlds.without.absent is not None:
        raise InputError("worlds", "zero out a record, but the run is accounted under replace-one", worlds.record,
                         "put another record in its place")
    if not replaces(run) and worlds.without.absent is None:
        raise InputError("worlds", f"replace a record, but the run is accounted under {run.adjacency}", worlds.record,
                         "mark it as absent, or account the run under replace-one")


def execute(run: Run, world: World, train: Train, keys: Any) -> np.ndarray:
    """Released parameters of one model per key, (models, ...) float64."""
    if world.absent is None:
        return np.asarray(train(world.features, world.target, keys))
    if not zeroes(train):
        raise InputError("train", "takes no absent=, the records whose gradients are zeroed", None,
                         "add it, or account the run under replace-one, and give two full data sets")
    return np.asarray(train(world.features, world.target, keys, absent=(world.absent,)))


def zeroes(train: Train) -> bool:
    """Whether a trainer can be told which records to zero."""
    taken = signature(train).parameters.values()
    return any(one.name == "absent" or one.kind is Parameter.VAR_KEYWORD for one in taken)
