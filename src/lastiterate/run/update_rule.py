"""Update rules: what a step makes of its noisy mean gradient, as ``(init, update)`` on arrays of any library.

A rule is read by everybody who follows a run: the engine, the planner, attacks and witnesses. Step k takes its gradient
at ``point``, and

    direction, memory = update(gradient, memory, theta, k);  theta' = Project(Prox(point - step direction)).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from lastiterate.run.arrays import Array
from lastiterate.run.noise import Noise
from lastiterate.run.step_sizes import StepSize

Memory = tuple[Any, ...]
"""What a rule remembers between steps: arrays, of which most are shaped like the parameters."""


class UpdateRule(ABC):
    """The questions that every rule answers, in arithmetic that numbers and arrays share.

    ``word``: its name in a sentence and on the command line. ``linear``: whether the direction is the gradient plus a
    linear function of parameters and memory, so that gradients can be read off the iterates, and risks follow from
    curvature.
    """

    linear: ClassVar[bool] = True
    word: ClassVar[str]

    @property
    def stated(self) -> str:
        """What a certificate says of it, because nobody can check it ("" for nothing)."""
        return ""

    def check(self, step_size: StepSize, noise: Noise | None) -> None:  # noqa: B027  # most rules go with everything
        """Refuse what the rule cannot be combined with."""

    def following(self, noise_stds: Callable[[], Array]) -> UpdateRule:
        """What is executed in a run whose noise has these standard deviations: of every step, or one for all."""
        return self

    @abstractmethod
    def init(self, theta: Any) -> Memory:
        """What is remembered before the first step."""

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        """Where step k = 0, 1, ... takes its gradient."""
        return theta

    @abstractmethod
    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        """The direction that step k goes against, and what is remembered after it."""
