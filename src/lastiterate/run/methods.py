"""The methods that a run can name."""

from lastiterate.run.method import Descent
from lastiterate.run.perturbed import PerturbedMinimiser
from lastiterate.run.snapshots import VarianceReduced

Method = Descent | VarianceReduced | PerturbedMinimiser
