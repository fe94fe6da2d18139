"""The engine: executes a run as it is described, on JAX."""

from lastiterate.engine.linear_model import TrainedWeights, execute, scores, temporary_memory
from lastiterate.engine.network import fit_network
from lastiterate.engine.random import fresh_key, key_from_seed, keys_from_seed
from lastiterate.engine.trainer import Trainer

__all__ = [
    "TrainedWeights",
    "Trainer",
    "execute",
    "fit_network",
    "fresh_key",
    "key_from_seed",
    "keys_from_seed",
    "scores",
    "temporary_memory",
]
