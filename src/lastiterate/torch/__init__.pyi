from lastiterate.torch.accountant import OpacusAccountant as OpacusAccountant
from lastiterate.torch.accountant import describe as describe
from lastiterate.torch.audited_modules import trainer as trainer
from lastiterate.torch.hugging_face import DPTrainer as DPTrainer
from lastiterate.torch.module_classifier import DPNetClassifier as DPNetClassifier
from lastiterate.torch.module_optimizer import PerEpoch as PerEpoch
from lastiterate.torch.module_training import PerUnit as PerUnit
from lastiterate.torch.parameters import Grouped as Grouped
from lastiterate.torch.private_loop import PrivateLoop as PrivateLoop
from lastiterate.torch.private_loop import make_private as make_private
from lastiterate.torch.randomness import RecordKey as RecordKey
from lastiterate.torch.records import DatasetPieces as DatasetPieces
from lastiterate.torch.released_module import FittedModule as FittedModule
from lastiterate.torch.rewrite import PrivateVersion as PrivateVersion
from lastiterate.torch.rewrite import private_version as private_version

__all__: list[str]
