"""Audits: attack a trainer, and compare a lower bound on its epsilon with the certificate's upper
bound.

Names are looked up on first use, so that the statistics alone never load the engine.
"""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
