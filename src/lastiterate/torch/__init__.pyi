from lastiterate.torch.attacked import trainer as trainer
from lastiterate.torch.parameters import Grouped as Grouped
from lastiterate.torch.released import FittedModule as FittedModule

__all__: list[str]
