"""Privacy guarantees: curves with a direction, and their composition."""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
