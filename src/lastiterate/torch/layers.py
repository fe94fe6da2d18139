"""Layers whose per-record gradients are made from their inputs and the derivatives by their outputs.

Functions are intercepted, not modules, so that a weight that a module uses by ``F.linear`` is found as well. A weight
qualifies if the forward pass uses it exactly once, in one of these functions; all others are differentiated record by
record.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch.overrides import TorchFunctionMode

from lastiterate.torch.contributions import Contribution, Outer, Rows, Stored
from lastiterate.torch.convolved import kernel_gradients

CONVOLVED = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
AVERAGED = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    functional.linear: ("linear", ("input", "weight", "bias")),
    torch.conv1d: ("convolution", CONVOLVED),
    torch.conv2d: ("convolution", CONVOLVED),
    torch.conv3d: ("convolution", CONVOLVED),
    torch.conv_transpose1d: ("transposed", TRANSPOSED),
    torch.conv_transpose2d: ("transposed", TRANSPOSED),
    torch.conv_transpose3d: ("transposed", TRANSPOSED),
    functional.embedding: ("embedding", ("input", "weight", "padding_idx", "max_norm", "norm_type",
                                         "scale_grad_by_freq", "sparse")),
    functional.layer_norm: ("normalised entries", ("input", "normalized_shape", "weight", "bias", "eps")),
    functional.group_norm: ("normalised channels", ("input", "num_groups", "weight", "bias", "eps")),
    functional.batch_norm: ("normalised channels", (*AVERAGED[:5], "training", *AVERAGED[6:])),
    functional.instance_norm: ("normalised channels", AVERAGED),
}
"""Functions that are known here, what they do, and the names of their arguments; ``F.conv2d`` is ``torch.conv2d``."""


@dataclass(frozen=True)
class Layer:
    """One use of a weight and a bias (their names; None where there is none, or where it is frozen).

    ``shapes`` of the weight, of the input and of the output for one record (with its batch axis of length 1).
    """

    function: str
    weight: str | None
    bias: str | None
    weight_shape: tuple[int, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @property
    def single(self) -> bool:
        """Whether one record's gradient by the weight is the outer product of two vectors."""
        return self.function == "linear" and self.output_shape[:-1].count(1) == len(self.output_shape) - 1

    @property
    def stored(self) -> int:
        """Numbers of one record's gradient by the weight that are stored."""
        return 0 if self.single else math.prod(self.output_shape if self.function == "embedding" else self.weight_shape)

    def contributions(self, inputs: torch.Tensor, slopes: torch.Tensor) -> dict[str, Contribution]:
        """Every record's gradients by name; inputs (m, *input_shape), slopes (m, *output_shape)."""
        gradients = dict[str, Contribution]()
        if self.weight is not None:
            gradients[self.weight] = self._of_weight(inputs, slopes)
        if self.bias is not None:
            gradients[self.bias] = Stored(self._over_places(slopes))
        return gradients

    def _of_weight(self, inputs: torch.Tensor, slopes: torch.Tensor) -> Contribution:
        count, options = inputs.shape[0], dict(self.options)
        if self.single:
            return Outer(slopes.reshape(count, -1), inputs.reshape(count, -1))
        if self.function == "linear":
            left = slopes.reshape(count, -1, slopes.shape[-1])
            return Stored(left.transpose(1, 2) @ inputs.reshape(count, -1, inputs.shape[-1]))
        if self.function == "embedding":
            return looked_up(inputs.reshape(count, -1), slopes.reshape(count, -1, slopes.shape[-1]),
                             self.weight_shape[0], options["padding_idx"])
        if self.function in ("convolution", "transposed"):
            inputs, slopes = inputs.flatten(0, 1), slopes.flatten(0, 1)  # the batch axis of every record is 1
            pair = (slopes, inputs) if self.function == "convolution" else (inputs, slopes)
            return Stored(kernel_gradients(*pair, self.weight_shape, options))
        return Stored(self._over_places(inputs * slopes))

    def _over_places(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over all axes but the records' and those of the bias."""
        count = values.shape[0]
        if self.function == "linear":
            return values.reshape(count, -1, values.shape[-1]).sum(1)
        if self.function == "normalised entries":
            return values.reshape(count, -1, *self.weight_shape).sum(1)
        return values.reshape(count, self.output_shape[1], -1).sum(2)

    def scaled(self, normalised: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        """What a normalising layer makes of its normalised input."""
        for name, combine in (("weight", torch.mul), ("bias", torch.add)):
            if (held := given.get(name)) is not None:
                channels = self.function == "normalised channels"
                normalised = combine(normalised, held[(..., *[None] * (normalised.dim() - 2))] if channels else held)
        return normalised


def looked_up(numbers: torch.Tensor, slopes: torch.Tensor, count: int, padding: int | None) -> Rows:
    """Gradients by a table of ``count`` rows, that of padding left out."""
    if padding is not None:
        slopes = torch.where((numbers == padding % count)[:, :, None], 0.0, slopes)
    return Rows.of(numbers, slopes, count)


class Uses(TorchFunctionMode):
    """Writes down how often the forward pass uses each of ``named`` tensors, and by which layers."""

    def __init__(self, named: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._counts = dict.fromkeys(named, 0)
        self._layers = list[Layer]()
        self.kept = list[Any]()  #: so that no other tensor gets an address that was seen

    def __torch_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        answer = func(*args, **given)
        self.kept.append((args, given))
        for tensor in all_tensors((args, given)):
            if id(tensor) in self._names:
                self._counts[self._names[id(tensor)]] += 1
        if func in FUNCTIONS:
            self._add(FUNCTIONS[func][0], _bound(func, args, given), answer)
        return answer

    def _add(self, function: str, given: dict[str, Any], answer: torch.Tensor) -> None:
        weight, bias, inputs = given.get("weight"), given.get("bias"), given["input"]
        names = self._names.get(id(weight)), self._names.get(id(bias)) if bias is not None else None
        convolved = function in ("convolution", "transposed")
        if weight is None or not any(names) or (convolved and inputs.dim() != weight.dim()):
            return
        plain = inputs.dim() >= (1 if function == "embedding" else 2) and inputs.shape[0] == 1
        own_rule = given.get("max_norm") is not None or given.get("scale_grad_by_freq")
        if plain and not own_rule and 0 not in (weight.numel(), inputs.numel()):
            options = tuple((key, given.get(key, DEFAULTS[key])) for key in DEFAULTS) if convolved else \
                (("padding_idx", given.get("padding_idx")),) if function == "embedding" else ()
            self._layers.append(Layer(function, *names, tuple(weight.shape), tuple(inputs.shape), tuple(answer.shape),
                                      options))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers whose tensors are used there and nowhere else."""
        return tuple(layer for layer in self._layers if all(self._counts[name] == 1 for name in layer.names))


class Tapped(TorchFunctionMode):
    """Adds ``zeros`` to the outputs of layers, and writes down their inputs; by the name of a layer's first tensor.

    Of a layer that normalises the input is what it has normalised, before it is scaled.
    """

    def __init__(self, named: dict[str, torch.Tensor], layers: tuple[Layer, ...],
                 zeros: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._at = {id(named[layer.names[0]]): layer for layer in layers}
        self._zeros, self.inputs = zeros, dict[str, torch.Tensor]()

    def __torch_function__(self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
                           kwargs: dict[str, Any] | None = None) -> Any:
        if func not in FUNCTIONS:
            return func(*args, **(kwargs or {}))
        given = _bound(func, args, kwargs or {})
        layer = self._at.get(id(given.get("weight"))) or self._at.get(id(given.get("bias")))
        if layer is None:
            return func(*args, **(kwargs or {}))
        name = layer.names[0]
        if layer.function.startswith("normalised"):
            self.inputs[name] = func(**given | {"weight": None, "bias": None})
            return layer.scaled(self.inputs[name], given) + self._zeros[name]
        self.inputs[name] = given["input"]
        return func(*args, **(kwargs or {})) + self._zeros[name]


def _bound(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments of one of the functions, by name."""
    return dict(zip(FUNCTIONS[func][1], args, strict=False)) | kwargs


def all_tensors(values: object) -> list[torch.Tensor]:
    """All tensors in nested arguments."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in all_tensors(value)]
