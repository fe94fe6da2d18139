"""The public names, and the only place that lists them (see ``lazy``)."""

from lastiterate import audit as audit
from lastiterate import bayes as bayes
from lastiterate import curves as curves
from lastiterate import data as data
from lastiterate import errors as errors
from lastiterate import estimators as estimators
from lastiterate.accounting.calibration import calibrate as calibrate
from lastiterate.accounting.certificate import Certificate as Certificate
from lastiterate.accounting.certificate import account as account
from lastiterate.accounting.stored import read_certificate as read_certificate
from lastiterate.errors import InputError as InputError
from lastiterate.errors import NotCertified as NotCertified
from lastiterate.models.loading import load as load
from lastiterate.models.loading import verify as verify
from lastiterate.models.training import train as train
from lastiterate.models.units import kept_rows as kept_rows
from lastiterate.run import domains as domains
from lastiterate.run import penalties as penalties
from lastiterate.run.batching import BallsInBins as BallsInBins
from lastiterate.run.batching import Cyclic as Cyclic
from lastiterate.run.batching import FixedSize as FixedSize
from lastiterate.run.batching import FullBatch as FullBatch
from lastiterate.run.batching import Permuted as Permuted
from lastiterate.run.batching import Poisson as Poisson
from lastiterate.run.batching import RandomAllocation as RandomAllocation
from lastiterate.run.batching import Reshuffled as Reshuffled
from lastiterate.run.evidence import Evidence as Evidence
from lastiterate.run.evidence import Fact as Fact
from lastiterate.run.facts import LossFacts as LossFacts
from lastiterate.run.losses import Abstract as Abstract
from lastiterate.run.losses import HuberRidge as HuberRidge
from lastiterate.run.losses import Logistic as Logistic
from lastiterate.run.losses import Softmax as Softmax
from lastiterate.run.momentum import HeavyBall as HeavyBall
from lastiterate.run.momentum import Nesterov as Nesterov
from lastiterate.run.noise import GradientNoise as GradientNoise
from lastiterate.run.noise import Langevin as Langevin
from lastiterate.run.noise import NoiseMultiplier as NoiseMultiplier
from lastiterate.run.noise import ObjectiveNoise as ObjectiveNoise
from lastiterate.run.noise import SnapshotNoise as SnapshotNoise
from lastiterate.run.preparation import PrivateCovariance as PrivateCovariance
from lastiterate.run.preparation import PrivateMean as PrivateMean
from lastiterate.run.preparation import TopEigenvalue as TopEigenvalue
from lastiterate.run.preparation import UnitRows as UnitRows
from lastiterate.run.run import Run as Run
from lastiterate.run.starts import Fixed as Fixed
from lastiterate.run.starts import GaussianStart as GaussianStart
from lastiterate.run.step_sizes import Constant as Constant
from lastiterate.run.step_sizes import InverseDecay as InverseDecay
from lastiterate.run.step_sizes import RelativeToSmooth as RelativeToSmooth
from lastiterate.run.step_sizes import StableSteps as StableSteps
from lastiterate.run.step_sizes import Steps as Steps

__version__: str
__all__: list[str]
