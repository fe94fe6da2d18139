"""What is asked of runs of one method."""

from __future__ import annotations

from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.run import Run
from lastiterate.run.variance_reduced_steps import VarianceReduced


def minimiser_of(run: Run) -> PerturbedMinimiser | None:
    """The method of a run that releases a perturbed minimiser; ``None`` for any other."""
    return run.method if type(run.method) is PerturbedMinimiser else None


def snapshots_of(run: Run) -> VarianceReduced | None:
    """The method of a run whose steps follow snapshots; ``None`` for any other."""
    return run.method if type(run.method) is VarianceReduced else None


def last_noise(run: Run) -> float:
    """Standard deviation of what is added to every entry of a run's perturbed minimiser."""
    method = minimiser_of(run)
    assert method is not None
    return method.last_noise(run)
