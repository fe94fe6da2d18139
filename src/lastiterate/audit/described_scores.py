"""Which laws an attack's scores have on a pair of data sets, by the description; see ``score_laws``."""

from __future__ import annotations

import numpy as np

from lastiterate.audit import trajectory
from lastiterate.audit.drawn_moves import CERTAIN, moves
from lastiterate.audit.neighbours import DataSet, Neighbours
from lastiterate.audit.score_laws import ScoreLaws
from lastiterate.engine.rows import clip_rows
from lastiterate.run.losses import HuberRidge
from lastiterate.run.run import Run

LINEAR = ("projection", trajectory.NAME)
"""Attacks whose score is linear in what is released."""
FIXED = "both laws are Gaussian: the GDP test"
DRAWN = "both laws are Gaussian given the batches, which are drawn as described"


def described(run: Run, pair: Neighbours, attack: str) -> ScoreLaws | None:
    """The laws of the scores of ``attack`` if the trainer is right; ``None`` where they are not known.

    Where batches are drawn, how many of the other records a step holds moves the score as well: it must be no secret of
    its own, because they are as many as places are left, or add nothing along the record's direction.
    """
    if not pair.gaussian or attack not in LINEAR:
        return None
    if run.batching.drawn == "never":
        return ScoreLaws(CERTAIN, 1.0, 0.0, FIXED)
    if pair.direction is None:
        return None
    own, instead = (pushes(run, part, pair.direction) for part in (pair.with_record, pair.without_record))
    others, unit = np.delete(own, pair.record), float(own[pair.record])
    beside = float(others[0]) if others.size else 0.0
    if unit <= 0 or (others != beside).any() or (beside and run.batching.independent):
        return None
    present, absent = unit - beside, float(instead[pair.record]) - beside  # in the place of another record
    if not present >= 0 >= absent or present == absent:
        return None
    drawn = moves(run, all_steps=attack == trajectory.NAME)
    return None if drawn is None else ScoreLaws(drawn, present / unit, absent / unit, DRAWN)


def pushes(run: Run, data: DataSet, direction: np.ndarray) -> np.ndarray:
    """What each record adds along ``direction`` in a step that holds it, (n,): a clipped row on the side of its target
    where residuals are clamped, and a row itself where the loss is the stand-in of networks."""
    along = np.ravel(direction)
    rows = data.features.astype(np.float64)
    sizes = np.ones(len(rows))
    if isinstance(run.loss, HuberRidge):
        rows = np.column_stack((clip_rows(data.features, run.loss.row_norm), np.full(len(rows), run.loss.intercept)))
        sizes = run.loss.residual_clip * np.sign(data.target)
    lengths = np.maximum(np.linalg.norm(rows, axis=1) * np.abs(sizes), 1e-300)
    added = rows @ along * sizes * np.minimum(1.0, (np.inf if run.clip is None else run.clip) / lengths)
    if data.absent is not None:
        added[data.absent] = 0.0
    return added
