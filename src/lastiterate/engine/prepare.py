"""Data as the trainer reads it: rows clipped once, an intercept column, zero rows that fill up blocks and chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.errors import InputError
from lastiterate.losses import CHUNK, Abstract, HuberRidge, Logistic, Softmax
from lastiterate.run import Run
from lastiterate.schedules import Cyclic, FullBatch, Permuted

ROW_SHRINK = 1 - 2.0**-20
"""Rows are clipped to this fraction of ``row_norm``: more than rounding to float32 can add (relative 2^-24)."""


@dataclass(frozen=True)
class Layout:
    """How records are cut: ``blocks`` batches of ``chunks`` chunks of ``rows`` rows each, filled up with zeros."""

    blocks: int
    size: int
    chunks: int
    rows: int


def layout(run: Run) -> Layout:
    """The layout of a run's batches; refuses batches that the trainer cannot execute."""
    match run.batching:
        case FullBatch():
            size = run.n
        case Cyclic(size) | Permuted(size):
            pass
        case other:
            raise InputError("batching", "cannot be executed yet, only accounted", type(other).__name__,
                             "train with FullBatch, Cyclic or Permuted")
    chunks = -(-size // CHUNK)
    return Layout(run.blocks, size, chunks, -(-size // chunks))


def linear_loss(run: Run) -> Logistic | Softmax | HuberRidge:
    """The run's loss, if the trainer knows its gradient."""
    if isinstance(run.loss, Abstract):
        raise InputError("loss", "is known only by its constants and cannot be executed", "Abstract",
                         "use Logistic, Softmax or HuberRidge")
    return run.loss


def clip_rows(features: Any, row_norm: float) -> np.ndarray:
    """Rows scaled down to norm at most ``row_norm`` (norms in float64); (n, d) float32.

    **Guarantee:** the Euclidean norm of every returned row, computed exactly, is at most ``row_norm``.
    """
    rows = np.asarray(features, dtype=np.float32)
    if rows.ndim != 2 or rows.size == 0:
        raise InputError("features", "must be a non-empty table of shape (n, d)", rows.shape)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
    if not np.isfinite(norms).all():
        raise InputError("features", "must be finite numbers", "NaN or infinity", "fill or drop those values first")
    scale = np.minimum(1.0, row_norm * ROW_SHRINK / np.maximum(norms, 1e-300))
    return rows if (scale == 1.0).all() else (rows * scale[:, None]).astype(np.float32)


def prepare(run: Run, features: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Clipped rows with their intercept column, (n, d + 1) float32, and the target, (n,)."""
    loss = linear_loss(run)
    layout(run)
    rows = clip_rows(features, loss.row_norm)
    if rows.shape[0] != run.n:
        raise InputError("features", f"must have the run's n = {run.n} rows", rows.shape[0])
    answers = np.asarray(target)
    if answers.shape != (run.n,):
        raise InputError("target", f"must have shape ({run.n},)", answers.shape)
    if isinstance(loss, HuberRidge):
        answers = answers.astype(np.float32)
        if not np.isfinite(answers).all():
            raise InputError("target", "must be finite numbers", "NaN or infinity", "fill or drop those values first")
    else:
        classes = loss.classes if isinstance(loss, Softmax) else 2
        if not np.isin(answers, np.arange(classes)).all():
            raise InputError("target", f"must be class indices 0..{classes - 1}", None, "encode labels first")
        answers = answers.astype(np.int32)
    column = np.full((run.n, 1), loss.intercept, dtype=np.float32)
    return np.concatenate((rows, column), axis=1), answers
