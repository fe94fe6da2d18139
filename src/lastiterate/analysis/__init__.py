"""Mathematics that several theorems share; no theorem lives here."""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
