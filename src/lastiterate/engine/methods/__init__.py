"""How methods are executed: a table, like that of samplers. Plain descent is the loop itself and has no row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lastiterate.engine.methods.minimiser import many_minimised, minimised
from lastiterate.engine.methods.running_mean import RunningMean
from lastiterate.engine.methods.variance_reduced import Reduction
from lastiterate.run.averages import ExponentialAverage, TailAverage
from lastiterate.run.method import Descent
from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.run import Run
from lastiterate.run.variance_reduced_steps import VarianceReduced


@dataclass(frozen=True)
class Solver:
    """Execution without the loop, on arranged rows and labels: one model for a key, or one for each of many keys."""

    one: Callable[..., np.ndarray]
    many: Callable[..., np.ndarray]


@dataclass(frozen=True)
class Executed:
    """How a method is executed: ``follows`` gives what its steps follow in the loop, or ``solver`` takes its place;
    ``averages``: what is released in the place of the last iterate."""

    follows: Callable[[Run], Any] | None = None
    solver: Solver | None = None
    averages: Callable[[Run], RunningMean] | None = None


METHODS: dict[type, Executed] = {
    Descent: Executed(),
    TailAverage: Executed(averages=RunningMean.of),
    ExponentialAverage: Executed(averages=RunningMean.of),
    VarianceReduced: Executed(follows=Reduction.of),
    PerturbedMinimiser: Executed(solver=Solver(minimised, many_minimised)),
}


def solver_of(run: Run) -> Solver | None:
    """What executes the run in place of the loop; ``None`` where the loop does."""
    return METHODS[type(run.method)].solver


def averaged_by(run: Run) -> RunningMean | None:
    """What a run makes of its iterates, where it does not release the last one."""
    averages = METHODS[type(run.method)].averages
    return None if averages is None else averages(run)


def followed_by(run: Run) -> Any:
    """What a run's steps follow, where that is not the sum of a batch's gradients with the run's own noise."""
    follows = METHODS[type(run.method)].follows
    return None if follows is None else follows(run)
