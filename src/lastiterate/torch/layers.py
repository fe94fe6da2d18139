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

FUNCTIONS = {functional.linear: "linear", torch.conv1d: "conv1d", torch.conv2d: "conv2d"}
"""Functions of (input, weight, bias, ...) that are known here; ``F.conv2d`` is ``torch.conv2d``."""
CONVOLVED = ("stride", "padding", "dilation", "groups")
DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


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

    def gradients(self, inputs: torch.Tensor, slopes: torch.Tensor) -> torch.Tensor:
        """Every record's gradient by the weight, (m, ...); inputs (m, *input_shape), slopes (m, *output_shape)."""
        count = inputs.shape[0]
        if self.function == "linear":
            left = slopes.reshape(count, -1, slopes.shape[-1])
            return left.transpose(1, 2) @ inputs.reshape(count, -1, inputs.shape[-1])
        patches, groups = self._patches(inputs), int(dict(self.options)["groups"])
        left = slopes.reshape(count, groups, self.weight_shape[0] // groups, -1)
        found = left @ patches.reshape(count, groups, -1, left.shape[-1]).transpose(2, 3)
        return found.reshape(count, *self.weight_shape)

    def _patches(self, inputs: torch.Tensor) -> torch.Tensor:
        """What the kernel reads at every place of the output: (m, channels * places of the kernel, places)."""
        flat, size = self.function == "conv1d", self.weight_shape[2:]
        options = {key: _pair(value, flat) for key, value in self.options if key not in ("padding", "groups")}
        stride, dilation = options["stride"], options["dilation"]
        kernel = (1, *size) if flat else size
        padding = dict(self.options)["padding"]
        images = inputs.reshape(inputs.shape[0], *inputs.shape[-3 + flat:])
        images = images.unsqueeze(-2) if flat else images
        if isinstance(padding, str):
            totals = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, kernel, strict=True)]
            (top, left), (bottom, right) = [t // 2 for t in totals], [t - t // 2 for t in totals]
            images = functional.pad(images, (left, right, top, bottom))
        else:
            rows, columns = (0, _pair(padding, flat)[1]) if flat else _pair(padding, flat)
            images = functional.pad(images, (columns, columns, rows, rows))
        if all(k == 1 for k in kernel):
            return images[..., ::stride[0], ::stride[1]].flatten(2)
        if any(d != 1 for d in dilation):
            return functional.unfold(images, kernel, dilation=dilation, stride=stride)
        views = images.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # copied once, below
        return views.permute(0, 1, 4, 5, 2, 3).reshape(images.shape[0], images.shape[1] * math.prod(kernel), -1)

    def bias_gradients(self, slopes: torch.Tensor) -> torch.Tensor:
        """Every record's gradient by the bias, (m, outputs)."""
        if self.function == "linear":
            return slopes.reshape(slopes.shape[0], -1, slopes.shape[-1]).sum(1)
        return slopes.reshape(slopes.shape[0], self.weight_shape[0], -1).sum(2)


def _pair(value: Any, flat: bool) -> tuple[int, int]:
    """An option of a convolution for two axes; the first one is made up where there is only one."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return (1, values[-1]) if flat else (values[0], values[-1])


class Uses(TorchFunctionMode):
    """Writes down how often the forward pass uses each of ``named`` tensors, and by which layers."""

    def __init__(self, named: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._counts = dict.fromkeys(named, 0)
        self._layers = list[Layer]()
        self.kept = list[Any]()  #: so that no other tensor gets an address that was seen

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        found = func(*args, **given)
        self.kept.append((args, given))
        for tensor in _tensors((args, given)):
            if id(tensor) in self._names:
                self._counts[self._names[id(tensor)]] += 1
        if func in FUNCTIONS:
            self._add(FUNCTIONS[func], _bound(args, given), found)
        return found

    def _add(self, function: str, given: dict[str, Any], found: torch.Tensor) -> None:
        weight, bias, inputs = given["weight"], given.get("bias"), given["input"]
        names = self._names.get(id(weight)), self._names.get(id(bias)) if bias is not None else None
        spatial = inputs.dim() == (weight.dim() if function != "linear" else inputs.dim()) and inputs.dim() >= 2
        if any(names) and spatial and inputs.shape[0] == 1 and 0 not in (weight.numel(), inputs.numel()):
            options = tuple((key, given.get(key, DEFAULTS[key])) for key in CONVOLVED) if function != "linear" else ()
            self._layers.append(Layer(function, *names, tuple(weight.shape), tuple(inputs.shape), tuple(found.shape),
                                      options))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers whose tensors are used there and nowhere else."""
        return tuple(layer for layer in self._layers if all(self._counts[name] == 1 for name in layer.names))


class Tapped(TorchFunctionMode):
    """Adds ``zeros`` to the outputs of layers, and writes down their inputs; by the name of a layer's first tensor."""

    def __init__(self, named: dict[str, torch.Tensor], layers: tuple[Layer, ...],
                 zeros: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._at = {id(named[layer.names[0]]): layer.names[0] for layer in layers}
        self._zeros, self.inputs = zeros, dict[str, torch.Tensor]()

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in FUNCTIONS:
            given = _bound(args, kwargs or {})
            name = self._at.get(id(given["weight"])) or self._at.get(id(given.get("bias")))
            if name is not None:
                self.inputs[name] = given["input"]
                return found + self._zeros[name]
        return found


def _bound(args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments of one of the functions, by name."""
    return dict(zip(("input", "weight", "bias", *CONVOLVED), args, strict=False)) | kwargs


def _tensors(values: Any) -> list[torch.Tensor]:
    """All tensors in nested arguments."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [tensor for value in values for tensor in _tensors(value)]
