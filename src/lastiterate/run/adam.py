"""Adam on noisy gradients, with or without the noise's own share of their squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.arrays import Array
from lastiterate.run.fields import settle
from lastiterate.run.noise import Noise
from lastiterate.run.step_sizes import StepSize
from lastiterate.run.update_rule import Memory, UpdateRule


@final
@dataclass(frozen=True)
class Adam(UpdateRule):
    """Kingma and Ba (2015), Algorithm 1: means of gradients and of their squares, corrected for their zero start.

    Coordinates are divided by a random number, so that nothing is known of how steps contract: every theorem that
    covers such a run charges all of its iterates, of which steps are post-processing.

    ``noise_floor``: the mean of squares is that of gradient and noise together. A number has the noise's own variance,
    which is public, subtracted from it, and what is left counts as at least that many times this variance (Tang,
    Shpilevskiy and Lecuyer 2023, arXiv:2312.14334, Algorithm 1). ``None``: nothing is subtracted.
    """

    linear: ClassVar[bool] = False
    word: ClassVar[str] = "adam"
    beta1: float = 0.9
    beta2: float = 0.999
    stabiliser: float = 1e-8
    noise_floor: float | None = None

    def __post_init__(self) -> None:
        settle(self)
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"{name} of Adam", "must lie in [0, 1)", getattr(self, name))
        for name in ("stabiliser", "noise_floor"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} of Adam", "must be positive", value)

    def check(self, step_size: StepSize, noise: Noise | None) -> None:
        if self.noise_floor is not None and noise is not None and not noise.independent:
            raise InputError("noise_floor of Adam", "needs steps whose noise is independent", type(noise).__name__,
                             "leave it out, or use NoiseMultiplier")

    def following(self, noise_stds: Callable[[], Array]) -> UpdateRule:
        if self.noise_floor is None:
            return self
        return NoiseCorrectedAdam(self.beta1, self.beta2, self.stabiliser, self.noise_floor,
                                  _running_means(noise_stds() ** 2, self.beta2))

    def init(self, theta: Any) -> Memory:
        return 0.0 * theta, 0.0 * theta

    def update(self, gradient: Any, memory: Memory, theta: object, k: Any) -> tuple[Any, Memory]:
        mean, square, memory = _moments(self.beta1, self.beta2, gradient, memory, k)
        return mean / (square**0.5 + self.stabiliser), memory


@final
@dataclass(frozen=True, eq=False)
class NoiseCorrectedAdam(UpdateRule):
    """``Adam`` with a ``noise_floor`` in a run; ``noise``: the running mean of the noise's variance at every step, or
    one number for all of them, shape (steps,) or (1,)."""

    linear: ClassVar[bool] = False
    word: ClassVar[str] = Adam.word
    beta1: float
    beta2: float
    stabiliser: float
    noise_floor: float
    noise: np.ndarray

    def init(self, theta: Any) -> Memory:
        return 0.0 * theta, 0.0 * theta

    def update(self, gradient: Any, memory: Memory, theta: object, k: Any) -> tuple[Any, Memory]:
        mean, square, memory = _moments(self.beta1, self.beta2, gradient, memory, k)
        variance = self.noise[k if self.noise.shape[0] > 1 else 0]
        above = square - (1 + self.noise_floor) * variance
        left = (above + abs(above)) / 2 + self.noise_floor * variance  # the larger one, for arrays of any library
        return mean / (left**0.5 + self.stabiliser), memory


def _moments(beta1: float, beta2: float, gradient: Any, memory: Memory, k: Any) -> tuple[Any, Any, Memory]:
    """Means of gradients and of their squares after step k, corrected for their zero start; and what is remembered."""
    mean = beta1 * memory[0] + (1 - beta1) * gradient
    square = beta2 * memory[1] + (1 - beta2) * gradient * gradient
    return mean / (1 - beta1 ** (k + 1.0)), square / (1 - beta2 ** (k + 1.0)), (mean, square)


def _running_means(values: Array, beta: float) -> Array:
    """What the mean of squares makes of numbers that are added to squares; one number for all steps stays."""
    mean, means = 0.0, np.empty(len(values))
    for k, value in enumerate(values):
        mean = beta * mean + (1 - beta) * float(value)
        means[k] = mean / (1 - beta ** (k + 1.0))
    return means
