"""Posterior samples and SGLD: which are private, and which only look so.

Without JAX.
"""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
