"""Whether a module computes in fewer bits than single precision, and how far its results may then
differ by rounding.

A module may cast by itself: with ``torch.autocast`` inside of its forward pass, or tensor by
tensor. Its parameters are still those of the run, in single precision at least, and so are
gradients by them: norms, clips and sums lose nothing.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lastiterate.errors import InputError

ROUNDINGS = 16
"""Results may differ by so many times the spacing of their numbers, or by ``LEAST``; never by more
than ``MOST``."""
LEAST, MOST = 1e-3, 0.125


class Rounding(TorchFunctionMode):
    """``seen``: whether anything that depends on what is differentiated by became less precise than
    double."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        self.seen = self.seen or any(
            isinstance(value, torch.Tensor)
            and value.requires_grad
            and torch.finfo(value.dtype).bits < 64
            for value in tree_leaves(answer)
        )
        return answer


class Coarsest(TorchDispatchMode):
    """``spacing``: relative, of the coarsest floating-point numbers that any operation inside made."""

    def __init__(self) -> None:
        super().__init__()
        self.spacing = 0.0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        answer = func(*args, **(kwargs or {}))
        for value in tree_leaves(answer):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                self.spacing = max(self.spacing, torch.finfo(value.dtype).eps)
        return answer

    @property
    def tolerance(self) -> float:
        """Relative, of results that are equal but for rounding."""
        return min(MOST, max(LEAST, ROUNDINGS * self.spacing))

    def check_double(self, *, rounded: bool) -> None:
        """Refuse fewer bits where everything that depends on parameters must be double precision;
        ``rounded``: some of it has fewer."""
        if self.coarse or rounded:
            raise InputError(
                "model",
                "must be computed in double precision where theorems compare one step at two "
                "different parameters, and it casts to fewer bits by itself",
                f"spacing {self.spacing:g}",
                "leave the cast out, or batches in order without constants and a bounded domain",
            )

    @property
    def coarse(self) -> bool:
        """Whether rounding alone may differ by more than ``LEAST``."""
        return self.tolerance > LEAST
