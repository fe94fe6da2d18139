"""The public names of this package (see ``lazy``)."""

from lastiterate.engine.linear_model import execute as execute
from lastiterate.engine.linear_model import temporary_memory as temporary_memory
from lastiterate.engine.network import fit_network as fit_network
from lastiterate.engine.preprocessing import TrainedWeights as TrainedWeights
from lastiterate.engine.preprocessing import scores as scores
from lastiterate.engine.random import fresh_key as fresh_key
from lastiterate.engine.random import key_from_seed as key_from_seed
from lastiterate.engine.random import keys_from_seed as keys_from_seed
from lastiterate.engine.trainer import Trainer as Trainer

__all__: list[str]
