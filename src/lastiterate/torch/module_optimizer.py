"""Optimizers of torch, with their schedules, as the rule of a run.

They are given parameters of their own, float64 on the CPU, with the noisy mean gradient as
``.grad``. Nobody can prove of a function that it looks at nothing else; what can be seen is
refused.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch.optim.lr_scheduler import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    CyclicLR,
    LinearLR,
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)

from lastiterate.engine.optimizers import check_decay
from lastiterate.errors import InputError, first_line, outside
from lastiterate.run.updates import Memory, PostProcessing, UpdateRule
from lastiterate.torch.parameters import Parameters

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer | LRScheduler]
"""A caller's function: from parameters to an optimizer, or to a scheduler around one."""
SCHEDULERS = "a scheduler whose class is one of torch.optim.lr_scheduler"
LONG = 2
"""A schedule whose period is more than so many times the run's epochs is warned of."""
STAIR = 0.95
"""A schedule that falls in stairs falls to less than so much of its rate at once."""
FADED = 1000
"""A learning rate of less than one in so many of the largest moves nothing."""
COUNTED = (
    "a scheduler is stepped once per step: count steps in it, {epoch:.4g} for an epoch, or write "
    "optimizer=lastiterate.torch.PerEpoch(lambda p: ...)"
)
"""What to do about a schedule that was written for epochs of so many steps."""


@final
@dataclass(frozen=True, eq=False)
class PerEpoch:
    """A scheduler that ``train`` steps once per epoch.

    ``train(optimizer=)`` steps a scheduler once per step, and one in a ``PerEpoch`` after every
    epoch, as a loop over a data loader does. An epoch is n / batch size steps of the run, or
    1 / rate for `Poisson`.

    Parameters
    ----------
    make : callable
        Function from parameters to a scheduler around an optimiser.

    Raises
    ------
    InputError
        If ``make`` is no function; `train` refuses one that makes no scheduler.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import PerEpoch
    >>> halved = PerEpoch(
    ...     lambda p: torch.optim.lr_scheduler.StepLR(torch.optim.SGD(p, lr=0.5), 10, gamma=0.5)
    ... )
    >>> type(halved([torch.nn.Parameter(torch.ones(2))])).__name__
    'StepLR'
    """

    make: Callable[[list[torch.nn.Parameter]], LRScheduler]

    def __post_init__(self) -> None:
        if not callable(self.make) or isinstance(self.make, type):
            raise InputError(
                "make",
                "must be a function from parameters to a scheduler",
                type(self.make).__name__,
                "write PerEpoch(lambda p: StepLR(torch.optim.SGD(p, lr=0.1), 10))",
            )

    def __call__(self, parameters: list[torch.nn.Parameter]) -> LRScheduler:
        return self.make(parameters)


@dataclass(eq=False)
class OptimizerState:
    """One optimizer with its scheduler and its parameters.

    ``epoch``: the steps after which the scheduler is stepped; ``done``: the steps that were made.
    """

    parameters: list[torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler | None
    epoch: float = 1.0
    done: int = 0

    @classmethod
    def by(
        cls, make: Make, shapes: tuple[tuple[int, ...], ...], epoch: float = 1.0
    ) -> OptimizerState:
        """What a caller's function makes, checked."""
        if not callable(make) or isinstance(make, torch.optim.Optimizer | type):
            raise InputError(
                "optimizer",
                "must be a function from parameters to an optimizer",
                f"the class {make.__name__}" if isinstance(make, type) else type(make).__name__,
                f"write {_form(make)}",
            )
        parameters = [
            torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in shapes
        ]
        try:
            made = make(list(parameters))
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InputError(
                "optimizer",
                "must be made of a list of parameters",
                first_line(error),
                "give it settings that torch takes, such as a positive lr"
                if str(error).startswith("Invalid")
                else "write lambda p: torch.optim.AdamW(p, lr=1e-3)",
            ) from None
        private = getattr(made, "optimizer", made)
        if hasattr(private, "original_optimizer"):
            raise InputError(
                "optimizer",
                "must be one of torch: the run itself clips and adds noise",
                type(private).__name__,
                f"write {_form(private)}",
            )
        scheduler = made if isinstance(made, LRScheduler) else None
        optimizer = made if scheduler is None else scheduler.optimizer
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                "optimizer",
                "must be a torch.optim.Optimizer or a scheduler around one",
                type(made).__name__,
                "write lambda p: torch.optim.AdamW(p, lr=1e-3)",
            )
        if scheduler is None and isinstance(make, PerEpoch):
            raise InputError(
                "optimizer",
                "must be a scheduler around an optimizer where it is stepped once per epoch",
                type(made).__name__,
                "leave PerEpoch out",
            )
        built = cls(parameters, optimizer, scheduler, epoch)
        built._check()
        return built

    def _check(self) -> None:
        held = [id(tensor) for group in self.optimizer.param_groups for tensor in group["params"]]
        if sorted(held) != sorted(map(id, self.parameters)):
            raise InputError(
                "optimizer",
                "must hold every parameter that it is handed, and no other",
                f"{len(held)} of which {len({*held} & {*map(id, self.parameters)})} were handed",
                "build it from the list that the function gets, in the module's order, such as "
                'lambda p: torch.optim.SGD([{"params": p[:2]}, {"params": p[2:], "lr": 0.01}], lr=0.1)'
                "; freeze others by requires_grad=False in the module",
            )
        rates = [float(group["lr"]) for group in self.optimizer.param_groups if "lr" in group]
        if not np.isfinite(rates).all():
            raise InputError(
                "optimizer",
                "must have a finite learning rate",
                f"lr={next(rate for rate in rates if not np.isfinite(rate))}",
                "write a positive number, such as torch.optim.SGD(p, lr=0.1)",
            )
        if isinstance(self.scheduler, ReduceLROnPlateau):
            raise InputError(
                "optimizer",
                "must not follow a measured loss, which is a function of the data",
                "ReduceLROnPlateau",
                "use a schedule that is known beforehand, such as LambdaLR",
            )
        hooks = (
            self.optimizer._optimizer_step_pre_hooks,
            self.optimizer._optimizer_step_post_hooks,
        )
        if any(hooks):
            raise InputError(
                "optimizer", "must have no hooks, which could look at anything", None, "remove them"
            )

    def step(self, gradients: list[torch.Tensor]) -> None:
        """One step, and one of the schedule."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.follow_schedule()

    def follow_schedule(self) -> None:
        """Count a step, and step the scheduler where its epoch is over."""
        before, self.done = self.done, self.done + 1
        if self.scheduler is not None and self._epochs(self.done) > self._epochs(before):
            self.scheduler.step()

    def _epochs(self, steps: int) -> int:
        return int(steps / self.epoch + 1e-9)

    @property
    def rate(self) -> float:
        """The largest learning rate of the next step."""
        return max(float(group["lr"]) for group in self.optimizer.param_groups)

    def state(self) -> Memory:
        """All numbers that the optimizer remembers, in one order; tensors are not copied."""
        return tuple(
            value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
            for _, _, value in self._list_memory()
        )

    def _list_memory(self) -> list[tuple[dict[str, Any], str, Any]]:
        return [
            (held, name, held[name])
            for held in map(self.optimizer.state.__getitem__, self.parameters)
            for name in sorted(held)
            if isinstance(held[name], torch.Tensor | int | float)
        ]

    def restore_memory(self, memory: Memory, done: int) -> OptimizerState:
        """The same after ``done`` steps, with what it remembered then; of an optimizer that has
        made none."""
        if not done:
            return self
        self.step(
            [torch.zeros_like(parameter) for parameter in self.parameters]
        )  # so that it holds all that it will
        for _ in range(done - 1 if self.scheduler is not None else 0):
            self.follow_schedule()
        for (held, name, value), array in zip(self._list_memory(), memory, strict=True):
            if isinstance(value, torch.Tensor):
                value.copy_(torch.from_numpy(np.array(array)))
            else:
                held[name] = array.item()
        return self


@dataclass(eq=False)
class ModuleOptimizer(UpdateRule):
    """What ``make`` makes, as a rule: its memory are the numbers that the optimizer remembers."""

    linear: ClassVar[bool] = False
    word: ClassVar[str] = PostProcessing.word
    make: Make
    shapes: tuple[tuple[int, ...], ...]
    epoch: float = 1.0  #: the steps after which a scheduler is stepped
    _made: OptimizerState | None = field(default=None, init=False)
    _memory: Memory = field(
        default=(), init=False
    )  #: the memory that ``_made`` stands at, by identity

    @classmethod
    def of(
        cls,
        make: Make | None,
        parameters: Parameters,
        initial: np.ndarray,
        *,
        coupled: bool = True,
        steps: int = 0,
        epoch: float = 1.0,
    ) -> ModuleOptimizer | None:
        """Return the rule, tried on synthetic gradients at the first parameters; None for None.

        ``steps``: so many steps of its schedule are tried. ``epoch``: the steps of an epoch.
        Errors: what needs more than gradients, a schedule that ends before the run or falls to
        nothing in its first half, and weight decay in running means unless ``coupled`` says so.
        """
        if make is None:
            return None
        if set(parameters.scales) != {1.0}:
            raise InputError(
                "speeds",
                "must be 1 or 0 where an optimizer makes the steps",
                None,
                "give its groups of parameters learning rates of their own",
            )
        rule = cls(make, parameters.shapes, epoch if isinstance(make, PerEpoch) else 1.0)
        still = rule._check_step(initial)
        rule._check_schedule(steps, epoch)
        if steps and still:
            rule._check_rates(still, parameters.names, steps)
        if not coupled:
            one, other = (cls(make, parameters.shapes, rule.epoch) for _ in range(2))
            check_decay(
                ((one.init, one.update), (other.init, other.update)),
                initial,
                rule._split,
                steps,
                "use AdamW",
                name_of(make, parameters.shapes),
            )
        return rule

    def init(self, theta: object) -> Memory:
        return ()

    def update(self, gradient: Any, memory: Memory, theta: Any, k: Any) -> tuple[Any, Memory]:
        """The engine goes against a direction: from the parameters after the step to those before
        it."""
        if (
            self._made is None or memory is not self._memory or not int(k)
        ):  # every run begins with a new one
            self._made = OptimizerState.by(self.make, self.shapes, self.epoch).restore_memory(
                memory, int(k)
            )
        made = self._made
        with torch.no_grad():
            for parameter, value in zip(made.parameters, self._split(theta), strict=True):
                parameter.copy_(value)
        made.step(self._split(gradient))
        self._memory = made.state()
        after = torch.cat([parameter.detach().reshape(-1) for parameter in made.parameters]).numpy()
        return np.asarray(theta) - after, self._memory

    def _split(self, vector: object) -> list[torch.Tensor]:
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        parts = torch.from_numpy(np.array(vector)).split(sizes)
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _check_step(self, initial: np.ndarray) -> list[int]:
        """Refuse what makes no step of gradients alone; which parameters two steps leave as they
        were."""
        gradient, random = (
            np.random.default_rng(0).normal(size=initial.size),
            torch.random.get_rng_state(),
        )
        alone = ModuleOptimizer(self.make, self.shapes, self.epoch)
        try:
            moved, memory = alone.update(gradient, (), initial, 0)
            after, _ = alone.update(gradient, memory, initial - moved, 1)
        except InputError:
            raise
        except (RuntimeError, TypeError, ValueError, AttributeError, KeyError) as error:
            raise InputError(
                "optimizer",
                "must make a step of gradients alone",
                str(error).splitlines()[0][:120],
                "closures, as LBFGS needs them, compute gradients that nobody clips",
            ) from None
        if not torch.equal(random, torch.random.get_rng_state()):
            raise InputError(
                "optimizer",
                "must draw no random numbers: the run's noise is all that is counted",
                None,
                "leave that part out",
            )
        parts = zip(self._split(moved), self._split(after), strict=True)
        return [place for place, both in enumerate(parts) if not any(map(torch.any, both))]

    def _check_rates(self, still: list[int], names: tuple[str, ...], steps: int) -> None:
        """Refuse parameters, of those that the first steps leave ``still``, whose learning rate is
        0 in every step: noise would be paid for that reaches nothing."""
        made = OptimizerState.by(self.make, self.shapes, self.epoch)
        groups, held = (
            made.optimizer.param_groups,
            {id(p): n for n, p in enumerate(made.parameters)},
        )
        never = {
            held[id(each)] for group in groups if "lr" in group for each in group["params"]
        }.intersection(still)
        for k in range(steps if made.scheduler is not None else 1):
            moving = [group for group in groups if group.get("lr", 1.0) != 0]
            never.difference_update(held[id(each)] for group in moving for each in group["params"])
            if not k:
                made.step([torch.zeros_like(parameter) for parameter in made.parameters])
            elif never:
                made.follow_schedule()
        if never:
            raise InputError(
                "optimizer",
                "must move every parameter that is trained, and one has the learning rate 0 in "
                "every step",
                names[min(never)],
                "freeze it in the module with requires_grad_(False), and give it to no group",
            )

    def _check_schedule(self, steps: int, epoch: float) -> None:
        made = OptimizerState.by(self.make, self.shapes, self.epoch)
        if made.scheduler is None:
            return
        counted = COUNTED.format(epoch=epoch)
        rates = [made.rate]
        made.step([torch.zeros_like(parameter) for parameter in made.parameters])
        for k in range(1, steps):
            rates.append(made.rate)
            try:
                made.follow_schedule()
            except (RuntimeError, TypeError, ValueError, LookupError, ArithmeticError):
                raise InputError(
                    "optimizer",
                    f"must have a schedule that continues after each of the run's {steps} "
                    f"steps, and {type(made.scheduler).__name__} ends",
                    f"an error after step {k + 1}",
                    counted if self.epoch == 1 else "it counts epochs: give it more of them",
                ) from None
        if self.epoch == 1 < epoch and steps:
            _check_turns(made.scheduler, rates, epoch)
            _check_falls(made.scheduler, rates, epoch)
        if isinstance(self.make, PerEpoch) and steps:
            _warn_of_period(made.scheduler, steps / epoch)
        tiny = [k for k, rate in enumerate(rates) if rate < max(rates) / FADED]
        if 2 * len(tiny) > len(rates):
            raise InputError(
                "optimizer",
                f"must have a learning rate of 1/{FADED} of its largest, or more, for half of the "
                f"run's {steps} steps: the rest would spend the budget and move nothing",
                f"{type(made.scheduler).__name__} falls below that at step {tiny[0] + 1}",
                counted if self.epoch == 1 else "let it fall more slowly",
            )

    def identity(self, steps: int) -> str:
        """What a checkpoint knows of it: the classes, and their settings at every step.

        Errors: classes that are not torch's own, of whose code nothing is known.
        """
        made = OptimizerState.by(self.make, self.shapes, self.epoch)
        classes = [type(part) for part in (made.optimizer, made.scheduler) if part is not None]
        for kind, place, way in zip(
            classes,
            ("an optimizer whose class is one of torch.optim", SCHEDULERS),
            ("", "write it as LambdaLR with a function of the step, or "),
            strict=False,
        ):
            if not kind.__module__.startswith("torch.optim."):
                raise InputError(
                    "checkpoint",
                    f"needs {place}, so that it knows it again",
                    kind.__name__,
                    f"{way}leave the checkpoint out",
                )
        place = {id(parameter): number for number, parameter in enumerate(made.parameters)}
        hasher = hashlib.sha256(repr([kind.__qualname__ for kind in classes]).encode())
        for k in range(steps if made.scheduler is not None else 1):
            groups = [
                {
                    name: [place[id(each)] for each in value] if name == "params" else _whole(value)
                    for name, value in sorted(group.items())
                }
                for group in made.optimizer.param_groups
            ]
            hasher.update(repr(groups).encode())
            if k == 0:
                made.step([torch.zeros_like(parameter) for parameter in made.parameters])
            elif made.scheduler is not None and k + 1 < steps:
                made.follow_schedule()
        return hasher.hexdigest()


def _check_turns(scheduler: LRScheduler, rates: list[float], epoch: float) -> None:
    """Refuse a schedule that turns as often as one that counts epochs and is stepped at every
    step: a cosine that rises and falls again, cycles or restarts more than one per epoch."""
    change = np.diff(rates)
    signs = np.sign(change[np.abs(change) > 1e-9 * max(rates)])
    turns = int((signs[1:] != signs[:-1]).sum())
    if turns > _count_turns(scheduler, len(rates) / epoch):
        raise InputError(
            "optimizer",
            f"must have a learning rate that turns with the run's {len(rates)} steps, "
            f"{len(rates) / epoch:.4g} epochs",
            f"{type(scheduler).__name__} turns {turns} times",
            f"{COUNTED.format(epoch=epoch)}; a rate that is meant to turn so often is a LambdaLR",
        )


def _count_turns(scheduler: LRScheduler, epochs: float) -> float:
    """How often a schedule that counts steps may turn."""
    if isinstance(scheduler, SequentialLR):
        parts = scheduler._schedulers  # pyright: ignore[reportAttributeAccessIssue]
        return sum(_count_turns(part, epochs) for part in parts) + len(parts) - 1
    return {
        CosineAnnealingLR: 1,
        CyclicLR: 2 * epochs,
        CosineAnnealingWarmRestarts: 2 * epochs,
        ConstantLR: 0,
        LinearLR: 0,
    }.get(type(scheduler), np.inf)


def _check_falls(scheduler: LRScheduler, rates: list[float], epoch: float) -> None:
    """Refuse a rate that falls as early or as often as one that counts epochs and is stepped at
    every step: to a half or less within the first steps, and is constant then; or in stairs, more
    than one per epoch or to less than one in ``FADED``."""
    steps, epochs, name = len(rates), len(rates) / epoch, type(scheduler).__name__
    least, tolerance = rates[-1] / (max(rates) or 1.0), 1e-9 * max(rates)
    change, steep = np.diff(rates), np.array(rates[1:]) < STAIR * np.array(rates[:-1])
    last = np.flatnonzero(np.abs(change) > tolerance).max(initial=-1) + 1
    falls = np.flatnonzero(change < -tolerance)
    if not (len(falls) and least <= 0.5):
        return
    stairs = len(falls) > 2 and steep[falls].all() and (np.diff(falls) > 1).all()
    if last <= min(LONG * epochs, steps / 4) or (last <= steps / 3 and least < 0.011):
        got = f"{name} is at {least:.2g} of its largest from step {last + 1} to the end"
    elif stairs and (least < 0.999 / FADED or (least <= 0.1 and len(falls) > epochs)):
        got = f"{name} falls {len(falls)} times, to {least:.2g} of its largest"
    else:
        return
    raise InputError(
        "optimizer",
        f"must have a learning rate that falls with the run's {steps} steps, {epochs:.4g} epochs",
        got,
        COUNTED.format(epoch=epoch),
    )


def _warn_of_period(scheduler: LRScheduler, epochs: float) -> None:
    """Warn of a schedule of epochs that hardly begins in the run, as one that counts steps does."""
    for name in ("T_max", "step_size", "T_0", "milestones", "total_iters", "total_steps"):
        given = getattr(scheduler, name, 0)
        period = min(given, default=0) if isinstance(given, dict) else given
        if period > LONG * epochs:
            warnings.warn(
                f"{type(scheduler).__name__}({name}={period}) in PerEpoch counts epochs, and the run "
                f"has {epochs:.4g}: the schedule hardly begins; write {name} in epochs",
                stacklevel=outside(),
            )


def _form(given: object) -> str:
    """How the optimizer that a caller has is written as a function of parameters."""
    inner = getattr(given, "original_optimizer", given)
    if isinstance(inner, torch.optim.Optimizer):
        rate = inner.param_groups[0].get("lr", 1e-3)
        name = type(inner).__name__
        home = "torch.optim." if hasattr(torch.optim, name) else ""
        return f"lambda p: {home}{name}(p, lr={float(rate):g})"
    name = given.__name__ if isinstance(given, type) else "AdamW"
    return f"lambda p: torch.optim.{name if hasattr(torch.optim, name) else 'AdamW'}(p, lr=1e-3)"


def _whole(value: object) -> Any:
    """A setting with all its digits, which torch leaves out where it shows a tensor."""
    return (str(value.dtype), value.tolist()) if isinstance(value, torch.Tensor) else value


def name_of(make: Make, shapes: tuple[tuple[int, ...], ...]) -> str:
    """The names of the classes that a caller's function makes, of parameters of these shapes."""
    made = OptimizerState.by(make, shapes)
    each = " each epoch" if isinstance(make, PerEpoch) else ""
    scheduler = "" if made.scheduler is None else f", {type(made.scheduler).__name__}{each}"
    return f"{type(made.optimizer).__name__}{scheduler}"
