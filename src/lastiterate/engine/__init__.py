"""The engine: executes a run as it is described, on JAX."""

from lastiterate.engine.noise import fresh_key, seeded_key
from lastiterate.engine.trainer import Trainer

__all__ = ["Trainer", "fresh_key", "seeded_key"]
