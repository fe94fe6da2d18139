"""A module's parameters as one float64 vector, and as the tensors that its forward pass takes."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch

from lastiterate.errors import InputError

State = dict[str, torch.Tensor]


@final
@dataclass(frozen=True, eq=False)
class Grouped:
    """A module whose groups of parameters learn at different speeds, or not at all.

    Parameters
    ----------
    module : torch.nn.Module
        Module.
    speeds : dict of str to float
        Factor of the step size, at least 0, for names of parameters or of submodules. The longest
        name that fits counts. A parameter of factor 0, or that no name fits, is frozen.

    Raises
    ------
    InputError
        If a name fits no parameter, or a factor is out of range.

    Notes
    -----
    **Guarantee:** a group of factor c is trained as w / sqrt(c). The run, its clip and its noise
    are about these numbers, and multiplying the result by sqrt(c) is post-processing.

    Examples
    --------
    >>> import torch
    >>> from lastiterate.torch import Grouped
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 2))
    >>> grouped = Grouped(net, {"1": 4.0})
    >>> grouped.speed("0.weight"), grouped.speed("1.weight")
    (0.0, 4.0)
    """

    module: torch.nn.Module
    speeds: Mapping[str, float]

    def __post_init__(self) -> None:
        if not isinstance(self.module, torch.nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("module", "must be a torch.nn.Module", type(self.module).__name__)
        names = [name for name, _ in self.module.named_parameters()]
        for group, speed in self.speeds.items():
            if not any(_below(name, group) for name in names):
                raise InputError(
                    "speeds", "must name parameters of the module, or modules that hold some", group
                )
            if (
                isinstance(speed, bool)
                or not isinstance(speed, int | float)
                or not 0 <= speed < math.inf
            ):
                raise InputError("speeds", "must be numbers >= 0", speed)

    def speed(self, name: str) -> float:
        """Return the factor of one parameter's step size."""
        fits = [group for group in self.speeds if _below(name, group)]
        return float(self.speeds[max(fits, key=len)]) if fits else 0.0


def _below(name: str, group: str) -> bool:
    return group == "" or name == group or name.startswith(group + ".")


@dataclass(frozen=True, eq=False)
class Parameters:
    """What is trained of a module: names, shapes, precisions and scales, in the module's own order;
    where they lie.

    ``constants``: all other tensors of the module, frozen parameters and buffers.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    scales: tuple[float, ...]
    constants: State
    device: torch.device

    @classmethod
    def of(cls, model: torch.nn.Module | Grouped) -> Parameters:
        module = model.module if isinstance(model, Grouped) else model
        every = dict(module.named_parameters())
        for name, tensor in every.items():
            _check(name, tensor)
        if not every:
            raise InputError("model", "must have parameters", type(module).__name__)
        places = {tensor.device for tensor in (*every.values(), *module.buffers())}
        if len(places) != 1:
            raise InputError(
                "model",
                "must lie on one device",
                " and ".join(sorted(map(str, places))),
                "move it with module.to(device)",
            )
        speeds = {
            name: (model.speed(name) if isinstance(model, Grouped) else 1.0)
            if tensor.requires_grad
            else 0.0
            for name, tensor in every.items()
        }
        trained = {name: tensor for name, tensor in every.items() if speeds[name] > 0}
        if not trained:
            raise InputError(
                "model",
                "must have parameters that are trained",
                "all are frozen",
                "set requires_grad for some of them",
            )
        frozen = {name: tensor.detach() for name, tensor in every.items() if name not in trained}
        constants = frozen | {name: tensor.detach() for name, tensor in module.named_buffers()}
        return cls(
            tuple(trained),
            tuple(tuple(each.shape) for each in trained.values()),
            tuple(each.dtype for each in trained.values()),
            tuple(math.sqrt(speeds[name]) for name in trained),
            constants,
            places.pop(),
        )

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    def precision(self, *, exact: bool) -> torch.dtype:
        """What gradients are computed in: single precision at least, double where ``exact``."""
        return torch.float64 if exact or torch.float64 in self.dtypes else torch.float32

    def vector(self, module: torch.nn.Module) -> np.ndarray:
        """The module's own numbers, in units of their scales, (size,) float64."""
        every = dict(module.named_parameters())
        return np.concatenate(
            [
                every[name].detach().to("cpu", torch.float64).numpy().ravel() / scale
                for name, scale in zip(self.names, self.scales, strict=True)
            ]
        )

    def tensors(self, theta: torch.Tensor, dtype: torch.dtype) -> State:
        """Parameters of the forward pass from a vector (..., size); leading axes stay."""
        parts = theta.split(self.sizes, dim=-1)
        return {
            name: (part * scale if scale != 1 else part)
            .to(dtype)
            .reshape((*part.shape[:-1], *shape))
            for name, part, shape, scale in zip(
                self.names, parts, self.shapes, self.scales, strict=True
            )
        }

    def copy_constants(self, dtype: torch.dtype) -> State:
        """Constants of the forward pass, copied: floating-point ones in the precision of the
        gradients."""
        return {
            name: tensor.to(dtype, copy=True) if tensor.is_floating_point() else tensor.clone()
            for name, tensor in self.constants.items()
        }

    def restore_precision(self, theta: np.ndarray) -> dict[str, torch.Tensor]:
        """Trained parameters in the precision that they came in, on the CPU; leading axes stay."""
        tensors = self.tensors(torch.from_numpy(np.array(theta)), torch.float64)
        return {
            name: tensors[name].to(dtype)
            for name, dtype in zip(self.names, self.dtypes, strict=True)
        }


def _check(name: str, tensor: torch.Tensor) -> None:
    if isinstance(tensor, torch.nn.UninitializedParameter) or tensor.is_meta:
        raise InputError(
            "model",
            "must have parameters with numbers in them",
            name,
            "run a lazy module on a synthetic batch first",
        )
    if not tensor.is_floating_point():
        raise InputError(
            "model",
            f"must have floating-point parameters, and {name} is none",
            str(tensor.dtype),
            "register counters and indices as buffers",
        )
    if not bool(torch.isfinite(tensor).all()):
        raise InputError("model", "must have finite parameters at the start", name)


# Modules that do not fit on a device. Their tensors lie on the host. A forward pass gets tensors
# without storage in place of weights; a layer's own weight is copied to the device where the layer
# is called and where its derivative by its input is computed, and nothing holds it in between.


class HostWeights:
    """Tensors of a module on the host as a forward pass on ``device`` takes them: those of
    ``names``, weights of layers, one at a time; all others whole.

    **Guarantee:** numbers are those of the host. A weight that is used in any other way than by
    ``call`` is no number, so that a gradient that follows from it counts as 0.
    """

    def __init__(self, device: torch.device, names: frozenset[str] = frozenset()) -> None:
        self.device, self.names = device, names
        self._placed = dict[str, tuple[torch.Tensor, torch.Tensor]]()

    def place(self, named: State) -> State:
        """What a forward pass gets: tensors that were asked for before are those of before."""
        for name, tensor in named.items():
            if name not in self._placed or self._placed[name][0] is not tensor:
                self._placed[name] = tensor, self._make_placed(name, tensor)
        return {name: self._placed[name][1] for name in named}

    def _make_placed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self.names:
            return tensor.to(self.device, copy=True)
        empty = torch.full((), math.nan, device=self.device).to(tensor.dtype)
        return empty.expand(tensor.shape)

    def let_go(self, names: Iterable[str]) -> None:
        """Hold these tensors no longer."""
        for name in names:
            self._placed.pop(name, None)

    def fetch(self, name: str) -> torch.Tensor:
        """A weight, copied to the device."""
        return self._placed[name][0].to(self.device, non_blocking=False, copy=True)

    def names_by_id(self) -> dict[int, str]:
        """The names of tensors without storage."""
        return {id(self._placed[name][1]): name for name in self.names if name in self._placed}

    def call(self, func: Callable[..., Any], given: dict[str, Any], name: str) -> torch.Tensor:
        """``func`` of these arguments, with the weight of this name."""
        inputs, bias, axes = given["input"], given.get("bias"), given["weight"].dim() - 2
        options = {key: each for key, each in given.items() if key not in ("input", "bias")}

        def compute(values: torch.Tensor) -> torch.Tensor:
            return func(values, **options | {"weight": self.fetch(name)})

        if not inputs.is_floating_point():
            return compute(inputs)
        answer: Any = OneWeight.apply(inputs, compute)
        return answer if bias is None else answer + bias[(..., *[None] * axes)]


class OneWeight(torch.autograd.Function):
    """A function ``compute`` that is linear in its input, and reads a weight that is not kept for
    the backward pass; nor is it kept for the derivative of that, which ``torch.func`` prepares."""

    generate_vmap_rule = True

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        inputs: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        return compute(inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.transposed = partial(_transpose, inputs[1], inputs[0].shape, inputs[0].dtype)

    @staticmethod
    def backward(ctx: Any, slopes: torch.Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return OneWeight.apply(slopes, ctx.transposed), None


def _transpose(
    compute: Callable[[torch.Tensor], torch.Tensor],
    shape: torch.Size,
    dtype: torch.dtype,
    slopes: torch.Tensor,
) -> torch.Tensor:
    """The derivative of a linear function by its input, which is the same everywhere."""
    zeros = torch.zeros(shape, dtype=dtype, device=slopes.device)
    answer, pull, *_ = torch.func.vjp(compute, zeros)
    return pull(slopes.to(answer.dtype))[0]
