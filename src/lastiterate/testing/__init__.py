"""Laws for theorems and batchings: what an author of a plug-in runs before anybody believes it."""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
