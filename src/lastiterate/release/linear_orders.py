"""What linear models are asked for: what does not fit is refused, before anything is paid or read."""

from __future__ import annotations

import numpy as np

from lastiterate.errors import InputError
from lastiterate.planning.task import Task
from lastiterate.release.answers import Labels, Range, Scores
from lastiterate.release.kinds import Order
from lastiterate.run.adjacency import check_same
from lastiterate.run.run import Run

Answers = Labels | Range | Scores


def check_order(order: Order) -> None:
    """Refuse what linear models have no use for."""
    if order.certificate.run.loss.outputs is None:
        raise InputError("loss of the run", "must be a linear one where neither model nor loss is given", "Abstract",
                         "use Logistic, Softmax or HuberRidge, or pass first parameters as model= and a loss=")
    if order.microbatch is not None:
        raise InputError("microbatch", "is for losses given as functions", order.microbatch, "leave it out")


def indices_of(run: Run) -> Answers:
    """What scores mean where classes are known by their indices."""
    return Labels(tuple(range(run.loss.target_classes))) if run.loss.target_classes else Scores()


def arrays_of(order: Order) -> tuple[np.ndarray, np.ndarray]:
    """Rows and targets; their form is checked, their values are not looked at."""
    run, data = order.certificate.run, order.data
    if len(data) != 2:
        raise InputError("data", "must be (x, y) for a linear model", f"{len(data)} parts")
    rows, target = np.asarray(data[0]), np.asarray(data[1])
    if rows.ndim != 2 or rows.dtype.kind not in "biuf":
        raise InputError("x", "must be a table of numbers, shape (n, d)", f"{rows.dtype} of shape {rows.shape}")
    if run.rows_per_record == 1 and len(rows) != run.n:
        raise InputError("x", f"must have the run's n = {run.n} rows", len(rows))
    return rows, target


def check_task(run: Run, task: Task, adjacency: str) -> None:
    """Refuse a run that describes other data than these."""
    if run.n != task.n:
        raise InputError("run", f"must describe these n = {task.n} records", run.n)
    if (run.loss.outputs, run.loss.target_classes) != (task.outputs, task.classes):
        raise InputError("run", f"must have a loss of {task.classes or 'no'} classes and {task.outputs} outputs",
                         type(run.loss).__name__)
    check_same(run.adjacency, adjacency)
