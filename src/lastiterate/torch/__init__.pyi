from lastiterate.torch.accountant import OpacusAccountant as OpacusAccountant
from lastiterate.torch.attacked import trainer as trainer
from lastiterate.torch.dataset_pieces import DatasetPieces as DatasetPieces
from lastiterate.torch.described import describe as describe
from lastiterate.torch.module_classifier import DPNetClassifier as DPNetClassifier
from lastiterate.torch.parameters import Grouped as Grouped
from lastiterate.torch.record_key import RecordKey as RecordKey
from lastiterate.torch.released import FittedModule as FittedModule
from lastiterate.torch.trainable_modules import PrivateVersion as PrivateVersion
from lastiterate.torch.trainable_modules import private_version as private_version
from lastiterate.torch.unit_rows import PerUnit as PerUnit

__all__: list[str]
