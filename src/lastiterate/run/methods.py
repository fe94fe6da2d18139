"""The methods that a run can name."""

from lastiterate.run.averages import ExponentialAverage, TailAverage
from lastiterate.run.method import Descent
from lastiterate.run.perturbed_minimiser import PerturbedMinimiser
from lastiterate.run.variance_reduced_steps import VarianceReduced

Method = Descent | TailAverage | ExponentialAverage | VarianceReduced | PerturbedMinimiser
