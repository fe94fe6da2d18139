"""Canaries of one training run: orthogonal rows, each of which moves the model along a direction of its own.

For squared error with clamped residuals, and for the networks' stand-in, each contributes its largest gradient at every
participation, and no other record bends its direction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lastiterate.audit import networks
from lastiterate.audit.canaries import FAR, LONG, columns
from lastiterate.audit.neighbours import Train
from lastiterate.engine import Trainer, seeded_keys
from lastiterate.engine.prepare import linear_loss
from lastiterate.errors import InputError
from lastiterate.run.domains import Box
from lastiterate.run.run import Run

MOST, ENTRIES = 4000, 2**26
"""Canaries by default, at most, and entries of the made-up table, which has a column for each of them."""


def how_many(run: Run, asked: int | None) -> int:
    """As many as asked for, or as the records, the domain's dimension and the table's size hold."""
    most = columns(run, None) if _fixed_width(run) else run.n
    count = min(most, run.n, MOST, max(1, ENTRIES // run.n)) if asked is None else asked
    if not 1 <= count <= min(most, run.n):
        raise InputError("canaries", f"must lie within 1 .. {min(most, run.n)}", count)
    return count


def trainer(run: Run, count: int) -> Train:
    """The library's own: of networks on the stand-in with a parameter for every canary."""
    if networks.stands_in(run):
        return networks.train_many(run, {"first": (count // 2,), "second": (count - count // 2,)})
    return Trainer(run).fit_many


@dataclass(frozen=True, eq=False)
class Table:
    """Made-up records, the canaries last in public order, and along which sign each moves its own direction.

    ``constant``: whether the canaries' gradients are, wherever the model is.
    """

    features: np.ndarray
    target: np.ndarray
    places: np.ndarray
    signs: np.ndarray
    classes: int
    constant: bool

    def released(self, run: Run, present: np.ndarray, train: Train, seed: int) -> np.ndarray:
        """One model's numbers along every canary's direction; (outputs, canaries)."""
        others = np.setdiff1d(np.arange(run.n), self.places)
        absent = tuple(int(i) for i in np.concatenate((others, self.places[~present])))
        iterates = np.asarray(train(self.features, self.target, seeded_keys(seed, 1), absent=absent))[0]
        last = iterates[-1] if run.release == "all" else iterates
        return np.atleast_2d(last)[:, :len(self.places)]

    def scores(self, run: Run, present: np.ndarray, train: Train, seed: int) -> np.ndarray:
        """How far the model lies in every canary's direction; (canaries,)."""
        weights = self.released(run, present, train, seed)
        if len(weights) == 1:
            return self.signs * weights[0]
        turn = np.arange(len(self.places))
        own = weights[turn % self.classes, turn]
        return own - (weights.sum(axis=0) - own) / (self.classes - 1)


def table(run: Run, count: int) -> Table:
    """Records for ``count`` canaries; an absent record is a row of zeros where the loss is a stand-in."""
    places, turn = run.n - count + np.arange(count), np.arange(count)
    if networks.stands_in(run):
        rows = np.zeros((run.n, count), np.float32)
        rows[places, turn] = LONG * (run.clip or 1.0)
        return Table(rows, np.zeros(run.n), places, np.ones(count), 1, constant=True)
    loss = linear_loss(run)
    rows = np.zeros((run.n, columns(run, None if _fixed_width(run) else count)), np.float32)
    rows[places, turn] = LONG * loss.row_norm
    classes = max(2, loss.target_classes)
    target: np.ndarray = np.zeros(run.n, np.int64)
    target[places] = turn % classes
    signs = 2.0 * (turn % 2) - 1
    if loss.target_classes == 0:
        target = np.where(np.arange(run.n) % 2 == run.n % 2, FAR, -FAR)
        signs = np.sign(target[places])
    return Table(rows, target, places, signs, classes, constant=loss.target_classes == 0)


def _fixed_width(run: Run) -> bool:
    return isinstance(run.domain, Box) and run.domain.dimension is not None
