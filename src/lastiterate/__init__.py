"""Differentially private training for people who release only the final model."""

from lastiterate.lazy import attach

__version__ = "1.2.0.dev0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
