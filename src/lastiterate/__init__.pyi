"""The public names, and the only place that lists them (see ``lazy``)."""

from lastiterate import audit as audit
from lastiterate import bayes as bayes
from lastiterate import curves as curves
from lastiterate import data as data
from lastiterate import errors as errors
from lastiterate import estimators as estimators
from lastiterate.accounting.certificate import Certificate as Certificate
from lastiterate.accounting.certificate import account as account
from lastiterate.accounting.certificate import read_certificate as read_certificate
from lastiterate.accounting.noise_calibration import calibrate as calibrate
from lastiterate.errors import InputError as InputError
from lastiterate.errors import NotCertified as NotCertified
from lastiterate.plugins import allow_plugins as allow_plugins
from lastiterate.release import distributed as distributed
from lastiterate.release.training import train as train
from lastiterate.release.units import select_unit_rows as select_unit_rows
from lastiterate.release.unlearning import forget as forget
from lastiterate.release.verification import load as load
from lastiterate.release.verification import verify as verify
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
from lastiterate.run.facts import Evidence as Evidence
from lastiterate.run.facts import Fact as Fact
from lastiterate.run.facts import LossFacts as LossFacts
from lastiterate.run.losses import HuberRidge as HuberRidge
from lastiterate.run.losses import KnownConstants as KnownConstants
from lastiterate.run.losses import Logistic as Logistic
from lastiterate.run.losses import Softmax as Softmax
from lastiterate.run.methods import ExponentialAverage as ExponentialAverage
from lastiterate.run.methods import NoisySGD as NoisySGD
from lastiterate.run.methods import ObjectivePerturbation as ObjectivePerturbation
from lastiterate.run.methods import TailAverage as TailAverage
from lastiterate.run.methods import VarianceReduced as VarianceReduced
from lastiterate.run.noise import Correlated as Correlated
from lastiterate.run.noise import GradientNoise as GradientNoise
from lastiterate.run.noise import Langevin as Langevin
from lastiterate.run.noise import NoiseMultiplier as NoiseMultiplier
from lastiterate.run.noisy_counts import NoisyCount as NoisyCount
from lastiterate.run.noisy_counts import NoisyGroups as NoisyGroups
from lastiterate.run.preprocessing import CosineFeatures as CosineFeatures
from lastiterate.run.preprocessing import PrivateCovariance as PrivateCovariance
from lastiterate.run.preprocessing import PrivateMean as PrivateMean
from lastiterate.run.preprocessing import PrivateTargetMean as PrivateTargetMean
from lastiterate.run.preprocessing import SquareRoots as SquareRoots
from lastiterate.run.preprocessing import TopEigenvalue as TopEigenvalue
from lastiterate.run.preprocessing import UnitRows as UnitRows
from lastiterate.run.probability_calibration import AssumedSlope as AssumedSlope
from lastiterate.run.probability_calibration import Calibration as Calibration
from lastiterate.run.run import RecordAugmentation as RecordAugmentation
from lastiterate.run.run import Run as Run
from lastiterate.run.step_sizes import Constant as Constant
from lastiterate.run.step_sizes import FixedStart as FixedStart
from lastiterate.run.step_sizes import GaussianStart as GaussianStart
from lastiterate.run.step_sizes import InverseDecay as InverseDecay
from lastiterate.run.step_sizes import RelativeToSmooth as RelativeToSmooth
from lastiterate.run.step_sizes import StableSteps as StableSteps
from lastiterate.run.step_sizes import StepSchedule as StepSchedule
from lastiterate.run.updates import Adam as Adam
from lastiterate.run.updates import HeavyBall as HeavyBall
from lastiterate.run.updates import Nesterov as Nesterov
from lastiterate.run.updates import PostProcessing as PostProcessing

# renamed: Abstract -> KnownConstants
# renamed: Descent -> NoisySGD
# renamed: PerturbedMinimiser -> ObjectivePerturbation
# renamed: RecordDraws -> RecordAugmentation
# renamed: kept_rows -> select_unit_rows
# renamed: Fixed -> FixedStart
# renamed: Steps -> StepSchedule

__version__: str
__all__: list[str]
