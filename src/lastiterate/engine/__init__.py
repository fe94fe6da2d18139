"""The engine: executes a run as it is described, on JAX."""

from lastiterate.engine.model import Model, execute, scores
from lastiterate.engine.noise import fresh_key, seeded_key, seeded_keys
from lastiterate.engine.trainer import Trainer

__all__ = ["Model", "Trainer", "execute", "fresh_key", "scores", "seeded_key", "seeded_keys"]
