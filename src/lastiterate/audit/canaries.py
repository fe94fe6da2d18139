"""Worst-case records: neighbours on which a correct trainer leaks as much as its theorems allow, or close to it.

Squared error with clamped residuals: all targets are so far away that every residual is clamped. Every data gradient is
then constant, the curvature is the ridge's alone, and one record contributes its full sensitivity, in one direction, at
every participation: the exactly tight pair of docs/theorems/quadratic-witness, a crafted gradient (Cebere, Bellet,
Papernot 2024) made of data.

Logistic and softmax: all records share the canary's row with the opposite label. They drive its score far to the wrong
side, where its residual is near its bound and the curvature near the ridge alone.
"""

from __future__ import annotations

import math

import numpy as np

from lastiterate.audit.neighbours import DataSet, Neighbours, is_replace_one
from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Box, Everywhere
from lastiterate.run.losses import LinearLoss
from lastiterate.run.run import Run
from lastiterate.theorems.quadratic_witness import witness_mus

FAR = 1e30
"""A target beyond every score, so that residuals are clamped; far below the end of single precision."""
LONG = 4.0
"""Canary rows are this many times longer than ``row_norm``: clipping brings them to it, and its absence shows."""
LEAN = math.pi / 6
"""Angle between the shared row's normal and a leaning record."""


def worst_case(run: Run, features: int | None = None) -> Neighbours:
    """The neighbours that the strongest attack on ``run`` uses: made-up data, no private record.

    ``features``: columns (default: as few as show the worst case, or what the domain's dimension says). Errors:
    ``InputError`` for a loss that the linear trainer cannot execute.
    """
    loss = linear_loss(run)
    width = columns(run, features)
    return (_opposed if loss.target_classes else _clamped)(run, loss, width)


def stated(run: Run) -> list[tuple[str, int]]:
    """Where the run says how many parameters its model has, and how many."""
    sizes = list[tuple[str, int]]()
    if run.method.model_parameters is not None:
        sizes.append(("parameters of the method", run.method.model_parameters))
    if isinstance(run.domain, Box) and run.domain.dimension is not None:
        sizes.append(("dimension of the box", run.domain.dimension))
    return sizes


def columns(run: Run, features: int | None) -> int:
    """Columns of the made-up data: as asked, else as the domain's dimension or the noise says, else 1."""
    loss = linear_loss(run)
    outputs = loss.outputs
    for what, dimension in stated(run):
        width, rest = divmod(dimension, outputs)
        if rest or width < 2:
            raise InputError(what, f"must be {outputs} times (features + 1)", dimension)
        if features not in (None, width - 1):
            raise InputError("features", f"must be {width - 1}, as the {what} says", features)
        features = width - 1
    if features is not None and features < 1:
        raise InputError("features", "must be a whole number >= 1", features)
    leaning = is_replace_one(run) and loss.target_classes > 0
    return (2 if leaning else 1) if features is None else features


def without(present: DataSet, record: int) -> DataSet:
    """The data set without a record: its gradient is zeroed, and nothing of its row and answer is left to be read."""
    features, target = present.features.copy(), present.target.copy()
    features[record], target[record] = 0.0, 0
    return DataSet(features, target, record)


def place(run: Run) -> int:
    """The record that leaks most: in public order the first of the worst block, with a secret order any."""
    if run.batching.drawn != "never" or run.blocks == 1:
        return 0
    size = int(run.divisor)
    if run.update is None and run.facts().sensitivity is not None:
        mus = np.abs(witness_mus(run))
        if mus.max() > 0:
            return int(mus.argmax()) * size
    return (run.steps - 1) % run.blocks * size


def linear_in_noise(run: Run) -> bool:
    """Whether what is released is linear in the noise where gradients are constant, so that it is Gaussian given the
    batches: neither domain, penalty nor update rule bends it."""
    return isinstance(run.domain, Everywhere) and run.prox is None and run.rule.linear


def _clamped(run: Run, loss: LinearLoss, width: int) -> Neighbours:
    record, rows = place(run), np.zeros((run.n, width), np.float32)
    rows[record, 0] = LONG * loss.row_norm
    target = np.full(run.n, FAR)
    if run.batching.drawn == "never":
        # the other records' gradients alternate in sign, so that the parameters stay in the middle of a domain; with a
        # secret order they have one sign, so that all blocks are alike
        target[np.arange(run.n) % 2 != record % 2] = -FAR
    direction = np.zeros((1, width + 1))
    direction[0, 0] = loss.row_norm
    if not run.batching.independent:  # else how many others a batch holds is noise along the intercept
        direction[0, -1] = loss.intercept
    exact = linear_in_noise(run)
    present, about = DataSet(rows, target), "one record contributes its largest gradient, the others no curvature"
    if is_replace_one(run):
        opposite = target.copy()
        opposite[record] = -FAR
        return Neighbours(present, DataSet(rows, opposite), record, f"{about}; the other one has the opposite gradient",
                          direction, exact)
    return Neighbours(present, without(present, record), record, f"{about}; the other data set zeroes it",
                      direction, exact)


def _opposed(run: Run, loss: LinearLoss, width: int) -> Neighbours:
    record, radius = place(run), LONG * loss.row_norm
    rows, target = np.zeros((run.n, width), np.float32), np.zeros(run.n, np.int64)
    own, others = _classes(loss)
    target[:], target[record] = others, own
    signs = np.array([float(own - others)]) if loss.outputs == 1 else \
        np.eye(loss.outputs)[own] - np.eye(loss.outputs)[others]
    if is_replace_one(run):
        return _leaning(run, rows, target, record, signs, radius)
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


def _leaning(run: Run, rows: np.ndarray, target: np.ndarray, record: int, signs: np.ndarray, radius: float
             ) -> Neighbours:
    """Two records of one label, rows to the left and to the right of the row that all others share.

    Both scores are driven to the wrong side, so both gradients are near their bound, and they differ by 2 cos(LEAN) R.
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
    return Neighbours(DataSet(row, target), DataSet(other, target), record, about, np.outer(signs, across))
