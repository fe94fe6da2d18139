"""The methods that a run can name, and what is asked of runs of one of them."""

from __future__ import annotations

from lastiterate.run.averages import ExponentialAverage, TailAverage
from lastiterate.run.derived_fields import Described
from lastiterate.run.method import Descent
from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.variance_reduced_steps import VarianceReduced

Method = Descent | TailAverage | ExponentialAverage | VarianceReduced | PerturbedMinimiser


def minimiser_of(method: Method) -> PerturbedMinimiser | None:
    """The method that releases a perturbed minimiser; ``None`` for any other."""
    return method if type(method) is PerturbedMinimiser else None


def snapshots_of(method: Method) -> VarianceReduced | None:
    """The method whose steps follow snapshots; ``None`` for any other."""
    return method if type(method) is VarianceReduced else None


def last_noise(method: Method, run: Described) -> float:
    """Standard deviation of what is added to every entry of a run's perturbed minimiser."""
    minimiser = minimiser_of(method)
    assert minimiser is not None
    return minimiser.last_noise(run)
