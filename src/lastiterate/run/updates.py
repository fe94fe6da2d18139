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

    ``word``: its name in a sentence and on the command line. ``linear``: whether the direction is the gradient plus a
    linear function of parameters and memory, so that gradients can be read off the iterates, and risks follow from
    curvature.
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


@final
@dataclass(frozen=True)
class Adam(UpdateRule):
    """Kingma and Ba (2015), Algorithm 1: means of gradients and of their squares, corrected for their zero start.

    Coordinates are divided by a random number, so that nothing is known of how steps contract: every theorem that
    covers such a run charges all of its iterates, of which steps are post-processing.
    """

    linear: ClassVar[bool] = False
    word: ClassVar[str] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    stabiliser: float = 1e-8

    def __post_init__(self) -> None:
        settle(self)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} of Adam", "must lie in [0, 1)", getattr(self, name))
        if not self.stabiliser > 0:
            raise InputError("stabiliser of Adam", "must be positive", self.stabiliser)

    def init(self, theta: Any) -> Memory:
        return 0.0 * theta, 0.0 * theta

    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        mean = self.beta1 * memory[0] + (1 - self.beta1) * gradient
        square = self.beta2 * memory[1] + (1 - self.beta2) * gradient * gradient
        scale = (square / (1 - self.beta2 ** (k + 1.0))) ** 0.5 + self.stabiliser
        return mean / (1 - self.beta1 ** (k + 1.0)) / scale, (mean, square)


Update = Nesterov | HeavyBall | Adam
