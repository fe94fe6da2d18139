"""Update rules: what a step makes of its noisy mean gradient, as ``(init, update)`` on arrays of any library.

A rule is read by everybody who follows a run: the engine, the planner, attacks and witnesses. Step k takes its gradient
at ``point``, and

    direction, memory = update(gradient, memory, theta, k);  theta' = Project(Prox(point - step direction)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

from lastiterate.errors import InputError
from lastiterate.run.fields import settle

Memory = tuple[Any, ...]
"""What a rule remembers between steps: arrays shaped like the parameters."""


class UpdateRule(ABC):
    """The questions that every rule answers, in arithmetic that numbers and arrays share.

    ``word``: its name in a sentence and on the command line; ``linear``: whether the direction is the gradient plus a linear function of parameters and memory, so that
    gradients can be read off the iterates, and risks follow from curvature.
    """

    linear: ClassVar[bool] = True
    word: ClassVar[str]

    @abstractmethod
    def init(self, theta: Any) -> Memory:
        """What is remembered before the first step."""

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        """Where step k = 0, 1, ... takes its gradient."""
        return theta

    @abstractmethod
    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        """The direction that step k goes against, and what is remembered after it."""


@final
@dataclass(frozen=True)
class Plain(UpdateRule):
    """The gradient itself."""

    word: ClassVar[str] = "plain"

    def init(self, theta: Any) -> Memory:
        return ()

    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        return gradient, ()


@final
@dataclass(frozen=True)
class Nesterov(UpdateRule):
    """Nesterov's momentum: the gradient is taken ahead of the iterate, k / (k + 3) of the last step further."""

    word: ClassVar[str] = "nesterov"

    def init(self, theta: Any) -> Memory:
        return (theta,)

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        return theta + (k / (k + 3.0)) * (theta - memory[0])

    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        return gradient, (theta,)


@final
@dataclass(frozen=True)
class HeavyBall(UpdateRule):
    """Polyak's momentum with a constant coefficient: the velocity is ``beta`` times the last one, plus the gradient."""

    word: ClassVar[str] = "heavy-ball"
    beta: float

    def __post_init__(self) -> None:
        settle(self)
        if not 0 <= self.beta < 1:
            raise InputError("momentum", "must lie in [0, 1)", self.beta)

    def init(self, theta: Any) -> Memory:
        return (0.0 * theta,)

    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        velocity = self.beta * memory[0] + gradient
        return velocity, (velocity,)


Update = Nesterov | HeavyBall
