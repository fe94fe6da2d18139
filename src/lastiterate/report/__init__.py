"""What is shown of a release: documents, charts, and one style for all of them."""

from lastiterate.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
