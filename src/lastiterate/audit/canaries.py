"""Worst-case records, the neighbouring data sets that they make, and their symmetries."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import Parameter, signature

import numpy as np

from lastiterate.engine.linear_gradients import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import AffineBall, Box, Everywhere
from lastiterate.run.losses import LinearLoss
from lastiterate.run.run import Run
from lastiterate.theorems.witnesses import witness_mus

# Two neighbouring data sets, and how a trainer is given the one without the record.

Train = Callable[..., np.ndarray]
"""(features, target, keys) -> released parameters, one model per key, as ``Trainer(run).fit_many``
does.

Where the data sets differ by a zeroed record it is called with ``absent=(record,)`` besides.
"""


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set in public order, with at most one zeroed record.

    Parameters
    ----------
    features : numpy.ndarray, shape (n, ...)
        Rows, or records of any shape, such as images, for a trainer that takes them.
    target : numpy.ndarray, shape (n, ...)
        Class indices or numbers.
    absent : int, optional
        Position of a record that no sum holds.

    Raises
    ------
    InputError
        If features and target have different numbers of records.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.audit import DataSet
    >>> DataSet(np.ones((2, 3)), np.zeros(2), absent=0).absent
    0
    """

    features: np.ndarray
    target: np.ndarray
    absent: int | None = None

    def __post_init__(self) -> None:
        for name in ("features", "target"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        features, target = self.features, self.target
        if not features.ndim or not target.ndim or len(features) != len(target):
            raise InputError(
                "target",
                "must have an entry for each record of features",
                f"features {features.shape} and target {target.shape}",
            )


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two neighbouring data sets, which differ in one record.

    Parameters
    ----------
    with_record : DataSet
        Data set with the record.
    without_record : DataSet
        Data set that lacks the record, or holds another one in its position.
    record : int
        Position of the record.
    about : str
        Description in words.
    direction : numpy.ndarray, shape (k, d + 1), optional
        Direction in which the record's gradient moves the parameters, where it is known.
    gaussian : bool, default False
        Whether both released distributions are Gaussian with one covariance given their batches, a
        multiple of I, if the trainer is correct.

    Raises
    ------
    InputError
        If the data sets differ in more than the record.

    See Also
    --------
    worst_case : Neighbours for the strongest attack on a run.

    Examples
    --------
    >>> import numpy as np
    >>> from lastiterate.audit import DataSet, Neighbours
    >>> present = DataSet(np.ones((2, 1)), np.zeros(2))
    >>> absent = DataSet(np.array([[1.0], [0.0]]), np.zeros(2), absent=1)
    >>> Neighbours(present, absent, 1, "the last record").record
    1
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
            raise InputError(
                "neighbours", "must have the same shape", (one.features.shape, two.features.shape)
            )
        if one.absent is not None:
            raise InputError("neighbours", "must hold the record in the first data set", one.absent)
        if two.absent is not None and not 0 <= two.absent < len(one.target):
            raise InputError(
                "neighbours", f"hold the records 0 .. {len(one.target) - 1}", two.absent
            )
        moved = np.zeros(len(one.target), bool)
        for a, b in ((one.features, two.features), (one.target, two.target)):
            moved |= (a != b).reshape(len(moved), -1).any(axis=1)
        if two.absent is not None:
            moved[two.absent] = True
        check_one_record(moved, self.record)


def check_one_record(moved: np.ndarray, record: int) -> None:
    """Refuse data sets that do not differ in ``record`` alone; ``moved`` (n,): where they differ."""
    differing = np.flatnonzero(moved)
    if differing.size != 1:
        raise InputError(
            "neighbours",
            f"must differ in one record, not in {differing.size}",
            [int(place) for place in differing[:5]],
            "neighbours differ in a single record",
        )
    if int(differing[0]) != record:
        raise InputError(
            "record",
            f"must be the one in which the data sets differ, {int(differing[0])}",
            record,
        )


def is_replace_one(run: Run) -> bool:
    """Return whether neighbours hold another record instead of one, rather than none: by the
    adjacency's name, not by the accountant's reading of it."""
    return run.adjacency == "replace-one"


def check_adjacency(neighbours: Neighbours, run: Run) -> None:
    """Refuse neighbours of another adjacency than the run is accounted under."""
    if is_replace_one(run) and neighbours.without_record.absent is not None:
        raise InputError(
            "neighbours",
            "zero out a record, but the run is accounted under replace-one",
            neighbours.record,
            "put another record in its place",
        )
    if not is_replace_one(run) and neighbours.without_record.absent is None:
        raise InputError(
            "neighbours",
            f"replace a record, but the run is accounted under {run.adjacency}",
            neighbours.record,
            "mark it as absent, or account the run under replace-one",
        )


def execute(run: Run, data_set: DataSet, train: Train, keys: np.ndarray | None) -> np.ndarray:
    """Released parameters of one model per key, (models, ...) float64."""
    if data_set.absent is None:
        return np.asarray(train(data_set.features, data_set.target, keys))
    if not takes_absent(train):
        raise InputError(
            "train",
            "takes no absent=, the records whose gradients are zeroed",
            None,
            "add it, or account the run under replace-one, and give two full data sets",
        )
    return np.asarray(train(data_set.features, data_set.target, keys, absent=(data_set.absent,)))


def takes_absent(train: Train) -> bool:
    """Whether a trainer has a parameter for the records whose gradients are zeroed."""
    taken = signature(train).parameters.values()
    return any(one.name == "absent" or one.kind is Parameter.VAR_KEYWORD for one in taken)


# Worst-case records: neighbours on which a correct trainer leaks as much as its theorems allow, or
# close to it.  Squared error with clamped residuals: all targets are so far away that every
# residual is clamped. Every data gradient is then constant, the curvature is the ridge's alone, and
# one record contributes its full sensitivity, in one direction, at every participation: the exactly
# tight pair of docs/theorems/quadratic-witness, a crafted gradient (Cebere, Bellet, Papernot 2024)
# made of data.  Logistic and softmax: all records share the canary's row with the opposite label.
# They drive its score far to the wrong side, where its residual is near its bound and the curvature
# near the ridge alone.

FAR = 1e30
"""A target beyond every score, so that residuals are clamped; far below the end of single
precision."""
LONG = 4.0
"""Canary rows are this many times longer than ``row_norm``: clipping brings them to it, and its
absence shows."""
LEAN = math.pi / 6
"""Angle between the shared row's normal and a leaning record."""


def worst_case(run: Run, features: int | None = None) -> Neighbours:
    """Make the neighbours that the strongest attack on a run uses.

    Parameters
    ----------
    run : Run
        Run of a linear model.
    features : int, optional
        Number of columns; by default as few as show the worst case, or as the domain states.

    Returns
    -------
    Neighbours
        Synthetic data sets, without any private record.

    Raises
    ------
    InputError
        If the linear trainer cannot execute the loss.

    Examples
    --------
    >>> import lastiterate as li
    >>> from lastiterate.audit import worst_case
    >>> run = li.Run(n=20, steps=5, step_size=0.5, noise=li.NoiseMultiplier(2), loss=li.Logistic())
    >>> pair = worst_case(run)
    >>> pair.with_record.features.shape
    (20, 1)
    """
    loss = linear_loss(run)
    width = columns(run, features)
    return (_make_opposed if loss.target_classes else _make_clamped)(run, loss, width)


def find_width(run: Run) -> list[tuple[str, int]]:
    """Where the run says how many parameters its model has, and how many."""
    sizes = list[tuple[str, int]]()
    if run.method.model_parameters is not None:
        sizes.append(("parameters of the method", run.method.model_parameters))
    if isinstance(run.domain, Box) and run.domain.dimension is not None:
        sizes.append(("dimension of the box", run.domain.dimension))
    return sizes


def columns(run: Run, features: int | None) -> int:
    """Return the number of columns of the synthetic data: ``features``, else the one that the
    domain's dimension or the noise fixes, else 1."""
    loss = linear_loss(run)
    outputs = loss.outputs
    for what, dimension in find_width(run):
        width, rest = divmod(dimension, outputs)
        if rest or width < 2:
            raise InputError(what, f"must be {outputs} times (features + 1)", dimension)
        if features not in (None, width - 1):
            raise InputError("features", f"must be {width - 1}, as the {what} says", features)
        features = width - 1
    if features is not None and features < 1:
        raise InputError("features", "must be an integer >= 1", features)
    leaning = is_replace_one(run) and loss.target_classes > 0
    return (2 if leaning else 1) if features is None else features


def without(present: DataSet, record: int) -> DataSet:
    """The data set without a record: its gradient is zeroed, and nothing of its row and answer is
    left to be read."""
    features, target = present.features.copy(), present.target.copy()
    features[record], target[record] = 0.0, 0
    return DataSet(features, target, record)


def worst_place(run: Run) -> int:
    """The record that leaks most: in public order the first of the worst block, with a secret order
    any."""
    if run.batching.drawn != "never" or run.blocks == 1:
        return 0
    held, worst = run.batching.block_of(run.n), (run.steps - 1) % run.blocks
    if run.optimizer is None and run.facts().sensitivity is not None:
        mus = np.abs(witness_mus(run))
        if mus.max() > 0:
            worst = int(mus.argmax())
    assert held is not None  # nothing is drawn
    return int(np.argmax(held == worst))


def linear_in_noise(run: Run) -> bool:
    """Whether what is released is linear in the noise where gradients are constant, so that it is
    Gaussian given the batches: neither domain, penalty nor update rule bends it."""
    return isinstance(run.domain, Everywhere) and run.prox is None and run.rule.linear


def _make_clamped(run: Run, loss: LinearLoss, width: int) -> Neighbours:
    record, rows = worst_place(run), np.zeros((run.n, width), np.float32)
    rows[record, 0] = LONG * loss.row_norm
    target = np.full(run.n, FAR)
    if run.batching.drawn == "never":
        # the other records' gradients alternate in sign, so that the parameters stay in the middle
        # of a domain; with a secret order they have one sign, so that all blocks are alike
        target[np.arange(run.n) % 2 != record % 2] = -FAR
    direction = np.zeros((1, width + 1))
    direction[0, 0] = loss.row_norm
    if (
        not run.batching.independent
    ):  # else how many others a batch holds is noise along the intercept
        direction[0, -1] = loss.intercept
    exact = linear_in_noise(run)
    present, about = (
        DataSet(rows, target),
        "one record contributes its largest gradient, the others no curvature",
    )
    if is_replace_one(run):
        opposite = target.copy()
        opposite[record] = -FAR
        return Neighbours(
            present,
            DataSet(rows, opposite),
            record,
            f"{about}; the other one has the opposite gradient",
            direction,
            exact,
        )
    return Neighbours(
        present,
        without(present, record),
        record,
        f"{about}; the other data set zeroes it",
        direction,
        exact,
    )


def _make_opposed(run: Run, loss: LinearLoss, width: int) -> Neighbours:
    record, radius = worst_place(run), LONG * loss.row_norm
    rows, target = np.zeros((run.n, width), np.float32), np.zeros(run.n, np.int64)
    own, others = _classes(loss)
    target[:], target[record] = others, own
    signs = (
        np.array([float(own - others)])
        if loss.outputs == 1
        else np.eye(loss.outputs)[own] - np.eye(loss.outputs)[others]
    )
    if is_replace_one(run):
        return _make_leaning(run, rows, target, record, signs, radius)
    rows[:, 0] = radius
    row = np.zeros(width + 1)
    row[[0, -1]] = loss.row_norm, loss.intercept
    about = "one record among equal rows with the opposite label; the other data set zeroes it"
    present = DataSet(rows, target)
    return Neighbours(present, without(present, record), record, about, np.outer(signs, row))


def _classes(loss: LinearLoss) -> tuple[int, int]:
    """The canary's class, which counts most, and that of all others: 1 and 0 where all count alike."""
    weights = loss.class_weights
    own = 1 if weights is None else int(np.argmax(weights))
    return own, int(own == 0)


def _make_leaning(
    run: Run, rows: np.ndarray, target: np.ndarray, record: int, signs: np.ndarray, radius: float
) -> Neighbours:
    """Two records of one label, rows to the left and to the right of the row that all others share.

    Both scores are driven to the wrong side, so both gradients are near their bound, and they
    differ by 2 cos(LEAN) R.
    """
    row, other = rows.copy(), rows.copy()
    for made, side in ((row, 1.0), (other, -1.0)):
        if made.shape[1] > 1:
            made[:, 1] = radius
            made[record, :2] = side * radius * math.cos(LEAN), radius * math.sin(LEAN)
        else:  # the intercept alone drives the scores
            made[record, 0] = side * radius
    across = np.zeros(rows.shape[1] + 1)
    across[0] = 1.0
    about = "two records of one label that lean to both sides of the row that all others share, with the opposite label"
    return Neighbours(
        DataSet(row, target), DataSet(other, target), record, about, np.outer(signs, across)
    )


# The same pair of data sets, with classes, columns, signs and positions re-drawn for every audit.
# Linear models treat classes, columns and signs alike, and so does a correct trainer: it leaks as
# much on the transformed pair as on the pair. A wrong one may be right for the last
# class, the first column or the record that comes first, which are what a pair that somebody wrote
# down happens to use.


def rotate_pair(
    run: Run, loss: LinearLoss, pair: Neighbours, rng: np.random.Generator
) -> Neighbours:
    """``pair`` with its classes (for numbers: their sign), columns, their signs, and its record's
    position drawn by ``rng``; as it is where the run's domain is no symmetric one."""
    if isinstance(run.domain, AffineBall):
        return pair
    width = pair.with_record.features.shape[1]
    columns, signs = rng.permutation(width), rng.choice((-1.0, 1.0), width)
    classes = rng.permutation(loss.target_classes) if loss.target_classes else np.zeros(0, int)
    sign = 1.0 if loss.target_classes else rng.choice((-1.0, 1.0))

    def transform(data: DataSet) -> DataSet:
        target = classes[data.target] if loss.target_classes else sign * data.target
        if data.absent is not None:
            target[data.absent] = 0  # nothing of the record's answer is left to be read
        features = (data.features[:, columns] * signs).astype(data.features.dtype)
        return replace(data, features=features, target=target)

    direction = pair.direction
    if direction is not None:
        direction = np.concatenate(
            (direction[:, columns][:, :width] * signs, direction[:, width:]), axis=1
        )
        if loss.target_classes == 0 or loss.outputs == 1:
            direction = direction * (sign if loss.target_classes == 0 else 1.0 - 2.0 * classes[0])
        else:
            direction = direction[np.argsort(classes)]
    image = replace(
        pair,
        with_record=transform(pair.with_record),
        without_record=transform(pair.without_record),
        direction=direction,
    )
    return relocate_pair(run, image, rng)


def relocate_pair(run: Run, pair: Neighbours, rng: np.random.Generator) -> Neighbours:
    """``pair`` with its record at another position, where it leaks as much from every one: where
    batches are drawn, or hold all records."""
    blind = run.batching.drawn != "never" or run.blocks == 1
    return move_record(pair, int(rng.choice(list_places(run)))) if blind else pair


def list_places(run: Run) -> list[int]:
    """The first record, the last one, those at the ends of the first and the last block, and any
    other."""
    size = int(run.divisor)
    edges = {0, run.n - 1, size - 1, size, run.n - size, run.n - size - 1}
    return [place for place in sorted(edges) if 0 <= place < run.n] + [run.n // 2]


def move_record(pair: Neighbours, record: int) -> Neighbours:
    """Return the same records, with the pair's own at another position of the public order."""
    order = np.arange(len(pair.with_record.target))
    order[[record, pair.record]] = order[[pair.record, record]]

    def there(data: DataSet) -> DataSet:
        return DataSet(
            data.features[order], data.target[order], None if data.absent is None else record
        )

    return replace(
        pair,
        with_record=there(pair.with_record),
        without_record=there(pair.without_record),
        record=record,
    )
