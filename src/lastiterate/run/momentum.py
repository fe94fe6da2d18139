"""Momentum: what a step remembers of those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.fields import settle


@final
@dataclass(frozen=True)
class Nesterov:
    """Nesterov's momentum: the gradient is taken ahead of the iterate, further along the last step."""

    looks_ahead: ClassVar[bool] = True

    def coefficient(self, step: Any) -> Any:
        """Part of the last step that is taken again before step k = 0, 1, ...; numbers and arrays alike."""
        return step / (step + 3.0)


@final
@dataclass(frozen=True)
class HeavyBall:
    """Polyak's momentum with a constant coefficient: the velocity is ``beta`` times the last one, plus the gradient."""

    beta: float
    looks_ahead: ClassVar[bool] = False

    def __post_init__(self) -> None:
        settle(self)
        if not 0 <= self.beta < 1:
            raise InputError("momentum", "must lie in [0, 1)", self.beta)

    def coefficient(self, step: Any) -> Any:
        """Part of the last velocity that is kept at step k = 0, 1, ..."""
        return self.beta


Momentum = Nesterov | HeavyBall
