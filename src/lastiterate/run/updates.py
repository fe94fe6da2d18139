"""The update rules that a run can name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

from lastiterate.errors import InputError
from lastiterate.run.adam import Adam
from lastiterate.run.fields import settle
from lastiterate.run.noise import Noise
from lastiterate.run.step_sizes import Constant, StepSize
from lastiterate.run.update_rule import Memory, UpdateRule


@final
@dataclass(frozen=True)
class Plain(UpdateRule):
    """The gradient itself."""

    word: ClassVar[str] = "plain"

    def init(self, theta: object) -> Memory:
        return ()

    def update(self, gradient: object, memory: Memory, theta: object, k: object) -> tuple[Any, Memory]:
        return gradient, ()


@final
@dataclass(frozen=True)
class Nesterov(UpdateRule):
    """Nesterov's momentum: the gradient is taken ahead of the iterate, k / (k + 3) of the last step further."""

    word: ClassVar[str] = "nesterov"

    def init(self, theta: object) -> Memory:
        return (theta,)

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        return theta + (k / (k + 3.0)) * (theta - memory[0])

    def update(self, gradient: object, memory: Memory, theta: object, k: object) -> tuple[Any, Memory]:
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

    def update(self, gradient: Any, memory: Memory, theta: object, k: object) -> tuple[Any, Memory]:
        velocity = self.beta * memory[0] + gradient
        return velocity, (velocity,)


@final
@dataclass(frozen=True)
class PostProcessing(UpdateRule):
    """Any other rule, by its ``name``: what ``train(optimizer=...)`` is given makes steps of noisy gradients.

    Whatever it is, it is applied to what counts as released, so that only theorems certify that charge every iterate.
    That it looks at noisy gradients, parameters and public numbers alone is the caller's word. Step sizes belong to the
    rule: the run's is 1. ``decay``: "coupled" where weight decay is added to the gradients that a running mean is made
    of (Loshchilov and Hutter 2019 say why that is seldom meant).
    """

    linear: ClassVar[bool] = False
    word: ClassVar[str] = "post-processing"
    name: str = "optimizer"
    decay: Literal["decoupled", "coupled"] = "decoupled"

    def __post_init__(self) -> None:
        settle(self)
        if not self.name.isprintable() or not 0 < len(self.name) <= 80:
            raise InputError("name of the optimizer", "must be up to 80 printable characters", len(self.name))

    @property
    def stated(self) -> str:
        return (f"update: post-processing, stated: {self.name} is taken to look at noisy gradients, parameters and "
                "public numbers alone")

    def check(self, step_size: StepSize, noise: Noise | None) -> None:
        if step_size != Constant(1.0):
            raise InputError("step_size", "must be 1 where an optimizer makes the steps", type(step_size).__name__,
                             "give the learning rate, or its schedule, to the optimizer")

    def init(self, theta: object) -> Memory:
        raise InputError("optimizer", "is needed to execute this run: its code is no part of a description", self.name,
                         "give it to train, or describe the same guarantee with update=HeavyBall(0.9)")

    def update(self, gradient: object, memory: Memory, theta: object, k: object) -> tuple[Any, Memory]:
        raise NotImplementedError


Update = Nesterov | HeavyBall | Adam | PostProcessing
