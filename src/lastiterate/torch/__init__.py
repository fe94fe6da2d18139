"""Torch modules as models, and accounts of what other libraries execute; torch itself is loaded
when it is needed."""

from lastiterate.lazy import attach
from lastiterate.release.model_kinds import ModelKind, register

__getattr__, __dir__, __all__ = attach(__name__, __file__)

register(
    ModelKind(
        "torch",
        "lastiterate.torch.released_module",
        containers=True,
        streams=True,
        processes=True,
        exactly="exact-torch",
    )
)
