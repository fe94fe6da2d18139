"""The engine: executes a run as it is described, on JAX.

A file that has the name of one in ``lastiterate.run`` executes the description there.
"""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
