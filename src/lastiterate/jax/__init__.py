"""Loops written by hand around a loss of JAX; JAX itself is loaded when it is needed."""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
