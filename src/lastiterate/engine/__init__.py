"""The engine: executes a run as it is described, on JAX."""

from lastiterate.engine.linear_model import Model, execute, scores, working_memory
from lastiterate.engine.network import fit_network
from lastiterate.engine.random import fresh_key, seeded_key, seeded_keys
from lastiterate.engine.trainer import Trainer

__all__ = [
    "Model",
    "Trainer",
    "execute",
    "fit_network",
    "fresh_key",
    "scores",
    "seeded_key",
    "seeded_keys",
    "working_memory",
]
