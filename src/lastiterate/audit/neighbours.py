"""Two neighbouring data sets, and how a trainer is given the one without the record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.run import Run

Train = Callable[..., np.ndarray]
"""(features, target, keys) -> released parameters, one model per key, as ``Trainer(run).fit_many`` does.

Where the data sets differ by a zeroed record it is called with ``absent=(record,)`` besides.
"""


@dataclass(frozen=True, eq=False)
class DataSet:
    """Features (n, d) and target (n,), in public order; the record ``absent`` (if any) is in no sum."""

    features: np.ndarray
    target: np.ndarray
    absent: int | None = None


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Neighbouring data sets: ``without_record`` lacks the record that ``with_record`` holds, or holds another instead.

    ``direction``: (k, d + 1), in which the record's gradient moves the parameters, where it is known.
    ``gaussian``: given their batches, both released laws are exactly Gaussian with one covariance, a multiple of I, if
    the trainer is right; only the directions of constant gradients are moved.
    """

    with_record: DataSet
    without_record: DataSet
    record: int
    about: str
    direction: np.ndarray | None = None
    gaussian: bool = False

    def __post_init__(self) -> None:
        one, two = self.with_record, self.without_record
        if one.features.shape != two.features.shape or one.target.shape != two.target.shape:
            raise InputError("neighbours", "must have the same shape", (one.features.shape, two.features.shape))
        if one.absent is not None:
            raise InputError("neighbours", "must hold the record in the first data set", one.absent)
        if two.absent is not None and not 0 <= two.absent < len(one.target):
            raise InputError("neighbours", f"hold the records 0 .. {len(one.target) - 1}", two.absent)
        moved = (one.features != two.features).any(axis=1) | (one.target != two.target)
        if two.absent is not None:
            moved[two.absent] = True
        differing = np.flatnonzero(moved)
        if differing.size != 1:
            raise InputError("neighbours", f"must differ in one record, not in {differing.size}",
                             [int(place) for place in differing[:5]], "neighbours differ in a single record")
        if int(differing[0]) != self.record:
            raise InputError("record", f"must be the one in which the data sets differ, {int(differing[0])}",
                             self.record)


def is_replace_one(run: Run) -> bool:
    """Whether neighbours hold another record in the place of one, instead of none: by the word, not by what the
    accountant makes of it."""
    return run.adjacency == "replace-one"


def check_adjacency(neighbours: Neighbours, run: Run) -> None:
    """Refuse neighbours of another adjacency than the run is accounted under."""
    if is_replace_one(run) and neighbours.without_record.absent is not None:
        raise InputError("neighbours", "zero out a record, but the run is accounted under replace-one",
                         neighbours.record, "put another record in its place")
    if not is_replace_one(run) and neighbours.without_record.absent is None:
        raise InputError("neighbours", f"replace a record, but the run is accounted under {run.adjacency}",
                         neighbours.record, "mark it as absent, or account the run under replace-one")


def execute(run: Run, data_set: DataSet, train: Train, keys: np.ndarray | None) -> np.ndarray:
    """Released parameters of one model per key, (models, ...) float64."""
    if data_set.absent is None:
        return np.asarray(train(data_set.features, data_set.target, keys))
    if not takes_absent(train):
        raise InputError("train", "takes no absent=, the records whose gradients are zeroed", None,
                         "add it, or account the run under replace-one, and give two full data sets")
    return np.asarray(train(data_set.features, data_set.target, keys, absent=(data_set.absent,)))


def takes_absent(train: Train) -> bool:
    """Whether a trainer has a parameter for the records whose gradients are zeroed."""
    taken = signature(train).parameters.values()
    return any(one.name == "absent" or one.kind is Parameter.VAR_KEYWORD for one in taken)
