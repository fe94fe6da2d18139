"""Update rules: momentum, Adam and post-processing of the noisy mean gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, final

import numpy as np

from lastiterate.errors import InputError
from lastiterate.run.noise import Noise
from lastiterate.run.serialization import Checked, normalise_fields, require
from lastiterate.run.step_sizes import Constant, StepSize
from lastiterate.run.validation import Array, check_interval

# Update rules: what a step makes of its noisy mean gradient, as ``(init, update)`` on arrays of any
# library.  A rule is read by everybody who follows a run: the engine, the planner, attacks and
# witnesses. Step k takes its gradient at ``point``, and      direction, memory = update(gradient,
# memory, theta, k);  theta' = Project(Prox(point - step direction)).

Memory = tuple[Any, ...]
"""The memory of a rule between steps: arrays, of which most are shaped like the parameters."""


class UpdateRule(ABC):
    """The questions that every rule answers, in arithmetic that numbers and arrays share.

    ``word``: its name in a sentence and on the command line. ``linear``: whether the direction is
    the gradient plus a linear function of parameters and memory, so that gradients can be read off
    the iterates, and risks follow from curvature.
    """

    linear: ClassVar[bool] = True
    word: ClassVar[str]

    @property
    def stated(self) -> str:
        """The statement about the rule in a certificate, where nobody can check it ("" for
        nothing)."""
        return ""

    def check(self, step_size: StepSize, noise: Noise | None) -> None:  # noqa: B027  # most rules go with everything
        """Refuse what the rule cannot be combined with."""

    def bind_noise(self, noise_stds: Callable[[], Array]) -> UpdateRule:
        """Return the rule that is executed in a run whose noise has these standard deviations: one
        per step, or one for all."""
        return self

    @abstractmethod
    def init(self, theta: Any) -> Memory:
        """Return the memory before the first step."""

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        """Return the point at which step k = 0, 1, ... takes its gradient."""
        return theta

    @abstractmethod
    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        """The direction that step k goes against, and what is remembered after it."""


# Adam.


@final
@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam (Kingma and Ba 2015, Algorithm 1) on noisy mean gradients.

    Parameters
    ----------
    beta1 : float, default 0.9
        Decay of the mean of gradients, within [0, 1).
    beta2 : float, default 0.999
        Decay of the mean of squared gradients, within [0, 1).
    stabiliser : float, default 1e-8
        Positive number that is added to the root of the mean square.
    noise_floor : float, optional
        Where given, the public variance of the noise is subtracted from the mean square, and the
        difference counts as at least ``noise_floor`` times this variance. It needs independent
        noise.

    Raises
    ------
    InputError
        If a value is out of range.

    See Also
    --------
    PostProcessing : Any other optimiser.

    Notes
    -----
    **Guarantee:** nothing is known of how such steps contract. Every theorem that certifies the run
    charges all iterates, and steps are post-processing of them. Source of the noise correction:
    Tang, Shpilevskiy and Lecuyer 2023 (arXiv:2312.14334), Algorithm 1.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.01, clip=1.0, optimizer=li.Adam(noise_floor=0.5))
    >>> run.optimizer.beta1
    0.9
    """

    linear: ClassVar[bool] = False
    word: ClassVar[str] = "adam"
    beta1: float = field(
        default=0.9, metadata=require(check_interval, "beta1 of Adam", low=0, high=1, ends="[)")
    )
    beta2: float = field(
        default=0.999, metadata=require(check_interval, "beta2 of Adam", low=0, high=1, ends="[)")
    )
    stabiliser: float = 1e-8
    noise_floor: float | None = None

    def __post_init__(self) -> None:
        normalise_fields(self)
        for name in ("stabiliser", "noise_floor"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name} of Adam", "must be positive", value)

    def check(self, step_size: StepSize, noise: Noise | None) -> None:
        if self.noise_floor is not None and noise is not None and not noise.independent:
            raise InputError(
                "noise_floor of Adam",
                "needs steps whose noise is independent",
                type(noise).__name__,
                "leave it out, or use NoiseMultiplier",
            )

    def bind_noise(self, noise_stds: Callable[[], Array]) -> UpdateRule:
        if self.noise_floor is None:
            return self
        return NoiseCorrectedAdam(
            self.beta1,
            self.beta2,
            self.stabiliser,
            self.noise_floor,
            _average_added_squares(noise_stds() ** 2, self.beta2),
        )

    def init(self, theta: Any) -> Memory:
        return 0.0 * theta, 0.0 * theta

    def update(self, gradient: Any, memory: Memory, theta: object, k: Any) -> tuple[Any, Memory]:
        mean, square, memory = _moments(self.beta1, self.beta2, gradient, memory, k)
        return mean / (square**0.5 + self.stabiliser), memory


@final
@dataclass(frozen=True, eq=False)
class NoiseCorrectedAdam(UpdateRule):
    """``Adam`` with a ``noise_floor`` in a run; ``noise``: the running mean of the noise's variance
    at every step, or one number for all of them, shape (steps,) or (1,)."""

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
        left = (
            above + abs(above)
        ) / 2 + self.noise_floor * variance  # the larger one, for arrays of any library
        return mean / (left**0.5 + self.stabiliser), memory


def _moments(
    beta1: float, beta2: float, gradient: Any, memory: Memory, k: Any
) -> tuple[Any, Any, Memory]:
    """Means of gradients and of their squares after step k, corrected for their zero start; and
    what is remembered."""
    mean = beta1 * memory[0] + (1 - beta1) * gradient
    square = beta2 * memory[1] + (1 - beta2) * gradient * gradient
    return mean / (1 - beta1 ** (k + 1.0)), square / (1 - beta2 ** (k + 1.0)), (mean, square)


def _average_added_squares(values: Array, beta: float) -> Array:
    """Return the running mean of values that are added to the squares; a single value for all steps
    is unchanged."""
    mean, means = 0.0, np.empty(len(values))
    for k, value in enumerate(values):
        mean = beta * mean + (1 - beta) * float(value)
        means[k] = mean / (1 - beta ** (k + 1.0))
    return means


# Momentum.


@final
@dataclass(frozen=True)
class Plain(UpdateRule):
    """The gradient itself."""

    word: ClassVar[str] = "plain"

    def init(self, theta: object) -> Memory:
        return ()

    def update(
        self, gradient: object, memory: Memory, theta: object, k: object
    ) -> tuple[Any, Memory]:
        return gradient, ()


@final
@dataclass(frozen=True)
class Nesterov(UpdateRule):
    """Nesterov's momentum, with the gradient k / (k + 3) of the last step ahead of the iterate.

    See Also
    --------
    HeavyBall : Momentum with a constant coefficient.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.01, clip=1.0, optimizer=li.Nesterov())
    >>> run.optimizer.word
    'nesterov'
    """

    word: ClassVar[str] = "nesterov"

    def init(self, theta: object) -> Memory:
        return (theta,)

    def point(self, theta: Any, memory: Memory, k: Any) -> Any:
        return theta + (k / (k + 3.0)) * (theta - memory[0])

    def update(
        self, gradient: object, memory: Memory, theta: object, k: object
    ) -> tuple[Any, Memory]:
        return gradient, (theta,)


@final
@dataclass(frozen=True)
class HeavyBall(Checked, UpdateRule):
    """Polyak's momentum with a constant coefficient.

    Parameters
    ----------
    beta : float
        Factor within [0, 1) of the last velocity, to which the gradient is added.

    Raises
    ------
    InputError
        If ``beta`` is out of range.

    See Also
    --------
    Nesterov : Momentum with the gradient ahead of the iterate.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=0.01, clip=1.0, optimizer=li.HeavyBall(0.9))
    >>> run.optimizer.beta
    0.9
    """

    word: ClassVar[str] = "heavy-ball"
    beta: float = field(metadata=require(check_interval, "momentum", low=0, high=1, ends="[)"))

    def init(self, theta: Any) -> Memory:
        return (0.0 * theta,)

    def update(self, gradient: Any, memory: Memory, theta: object, k: object) -> tuple[Any, Memory]:
        velocity = self.beta * memory[0] + gradient
        return velocity, (velocity,)


@final
@dataclass(frozen=True)
class PostProcessing(UpdateRule):
    """Any other update rule, by its name; its code is ``train(optimizer=...)``.

    Parameters
    ----------
    name : str, default "optimizer"
        Name of the rule in certificates: 1 to 80 printable characters.
    decay : {"decoupled", "coupled"}, default "decoupled"
        "coupled" where weight decay is added to the gradients that a running mean is made of
        (Loshchilov and Hutter 2019).

    Raises
    ------
    InputError
        If ``name`` is out of range, or the step size of the run is not 1: the rule has its own.

    See Also
    --------
    train : Execute the run with the optimiser.

    Notes
    -----
    **Guarantee:** only theorems that charge every iterate certify such a run. That the rule reads
    noisy gradients, parameters and public numbers alone is the caller's word, and the certificate
    says so.

    Examples
    --------
    >>> import lastiterate as li
    >>> run = li.Run(n=100, steps=3, step_size=1.0, clip=1.0, optimizer=li.PostProcessing("lion"))
    >>> run.optimizer.name
    'lion'
    """

    linear: ClassVar[bool] = False
    word: ClassVar[str] = "post-processing"
    name: str = "optimizer"
    decay: Literal["decoupled", "coupled"] = "decoupled"

    def __post_init__(self) -> None:
        normalise_fields(self)
        if not self.name.isprintable() or not 0 < len(self.name) <= 80:
            raise InputError(
                "name of the optimizer", "must be up to 80 printable characters", len(self.name)
            )

    @property
    def stated(self) -> str:
        return (
            f"update: post-processing, stated: {self.name} is taken to look at noisy gradients, "
            f"parameters and "
            "public numbers alone"
        )

    def check(self, step_size: StepSize, noise: Noise | None) -> None:
        if step_size != Constant(1.0):
            raise InputError(
                "step_size",
                "must be 1 where an optimizer makes the steps",
                getattr(step_size, "value", type(step_size).__name__),
                "give the learning rate, or its schedule, to the optimizer",
            )

    def init(self, theta: object) -> Memory:
        raise InputError(
            "optimizer",
            "is needed to execute this run: its code is no part of a description",
            self.name,
            "give it to train; lastiterate.audit.audit(run) takes the same noisy steps without it, "
            "or with it and your module: train=lastiterate.torch.trainer(run, module, loss, "
            "optimizer=...)",
        )

    def update(
        self, gradient: object, memory: Memory, theta: object, k: object
    ) -> tuple[Any, Memory]:
        raise NotImplementedError


Update = Nesterov | HeavyBall | Adam | PostProcessing
