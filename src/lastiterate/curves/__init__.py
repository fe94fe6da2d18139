"""Privacy guarantees: curves with a direction, and their composition.

A theorem gives the curve of a run, and ``curve.epsilon(delta)`` the run's epsilon.
"""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
