"""Layers whose per-record gradients come from inputs and output derivatives."""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lastiterate.errors import InputError
from lastiterate.torch.parameter_contributions import Contribution, Outer, Products, Rows, Stored
from lastiterate.torch.parameters import HostWeights

# Per-record gradients by the kernels of convolutions, plain and transposed, of one to three axes.
# A convolution is a matrix product with the patches of its input, so that one record's gradient is
# the product of the derivative by the output with these patches (Rochette, Manoel, Tramel 2019,
# arXiv:1912.06015, section 3). A transposed one is the derivative of a plain one, and has input and
# output exchanged.


def kernel_gradients(
    left: torch.Tensor, images: torch.Tensor, weight_shape: tuple[int, ...], options: dict[str, Any]
) -> torch.Tensor:
    """Gradients (m, *weight_shape): ``left`` (m, weight_shape[0], *places), ``images`` (m,
    channels, *sizes).

    ``images`` are what the kernel reads: the input of a convolution, or the slopes by the output of
    a transposed one; ``left`` is the other.
    """
    count, axes, groups = left.shape[0], len(weight_shape) - 2, int(options["groups"])
    patches = _patches(
        images,
        weight_shape[2:],
        tuple(left.shape[2:]),
        _each(options["stride"], axes),
        _each(options["dilation"], axes),
        _pad_sizes(options, weight_shape[2:], axes),
    )
    rows = left.reshape(count, groups, weight_shape[0] // groups, -1)
    gradients = rows @ patches.reshape(count, groups, -1, rows.shape[-1]).transpose(2, 3)
    return gradients.reshape(count, *weight_shape)


def _patches(
    images: torch.Tensor,
    kernel: tuple[int, ...],
    places: tuple[int, ...],
    stride: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> torch.Tensor:
    """What the kernel reads at every one of ``places``: (m, channels * places of the kernel,
    places)."""
    images = functional.pad(images, [side for pair in reversed(padding) for side in pair])
    axes = len(kernel)
    for axis in range(axes):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        images = images.unfold(2 + axis, span, stride[axis])[..., :: dilation[axis]]
    for axis in range(
        axes
    ):  # of a transposed convolution the last places may read what no input reaches
        images = images.narrow(2 + axis, 0, places[axis])
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return images.permute(order).reshape(
        images.shape[0], images.shape[1] * math.prod(kernel), -1
    )  # copied once, here


def _each(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """An option for every axis."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values


def _pad_sizes(
    options: dict[str, Any], kernel: tuple[int, ...], axes: int
) -> tuple[tuple[int, int], ...]:
    """Zeros before and behind, for every axis."""
    padding = options["padding"]
    if not isinstance(padding, str):
        return tuple((size, size) for size in _each(padding, axes))
    totals = [
        d * (k - 1) if padding == "same" else 0
        for d, k in zip(_each(options["dilation"], axes), kernel, strict=True)
    ]
    return tuple((total // 2, total - total // 2) for total in totals)


# Layers whose per-record gradients are made from their inputs and the derivatives by their outputs.
# Functions are intercepted, not modules, so that a weight that a module uses by ``F.linear`` is
# found as well. A weight qualifies if the forward pass uses it exactly once, in one of these
# functions; all others are differentiated record by record.


CONVOLVED = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
TRANSPOSED = (
    "input",
    "weight",
    "bias",
    "stride",
    "padding",
    "output_padding",
    "groups",
    "dilation",
)
DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
AVERAGED = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "use_input_stats",
    "momentum",
    "eps",
)
FUNCTIONS: dict[Any, tuple[str, tuple[str, ...]]] = {
    functional.linear: ("linear", ("input", "weight", "bias")),
    torch.conv1d: ("convolution", CONVOLVED),
    torch.conv2d: ("convolution", CONVOLVED),
    torch.conv3d: ("convolution", CONVOLVED),
    torch.conv_transpose1d: ("transposed", TRANSPOSED),
    torch.conv_transpose2d: ("transposed", TRANSPOSED),
    torch.conv_transpose3d: ("transposed", TRANSPOSED),
    functional.embedding: (
        "embedding",
        ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    ),
    functional.layer_norm: (
        "normalised entries",
        ("input", "normalized_shape", "weight", "bias", "eps"),
    ),
    functional.group_norm: (
        "normalised channels",
        ("input", "num_groups", "weight", "bias", "eps"),
    ),
    functional.batch_norm: ("normalised channels", (*AVERAGED[:5], "training", *AVERAGED[6:])),
    functional.instance_norm: ("normalised channels", AVERAGED),
}
"""Functions that are known here, what they do, and the names of their arguments; ``F.conv2d`` is
``torch.conv2d``."""
WEIGHED = ("linear", "convolution", "transposed", "embedding")
"""Functions whose weight is all that they read of the module next to a bias, and is large."""


@dataclass(frozen=True)
class Layer:
    """One use of a weight and a bias (their names; None where there is none, or where it is
    frozen).

    ``shapes`` of the weight and of the output for one record (with its batch axis of
    length 1).
    """

    function: str
    weight: str | None
    bias: str | None
    weight_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name in (self.weight, self.bias) if name is not None)

    @property
    def single(self) -> bool:
        """Whether one record's gradient by the weight is the outer product of two vectors."""
        return (
            self.function == "linear"
            and self.output_shape[:-1].count(1) == len(self.output_shape) - 1
        )

    @property
    def stored(self) -> int:
        """Numbers of one record's gradient by the weight that are stored."""
        return (
            0
            if self.single
            else math.prod(self.output_shape if self.function == "embedding" else self.weight_shape)
        )

    def contributions(
        self, inputs: torch.Tensor, slopes: torch.Tensor, copies: int | None = None
    ) -> dict[str, Contribution]:
        """Every record's gradients by name, of inputs (m, ...) and slopes (m, *output_shape).

        ``copies``: of each record, one after the other, where no gradient by a weight is stored."""
        gradients = dict[str, Contribution]()
        if self.weight is not None:
            apart = copies is not None and not (self.single and copies == 1)
            gradients[self.weight] = (
                self._as_products(inputs, slopes)
                if apart and self.function in WEIGHED[:3]
                else self._of_weight(inputs, slopes)
            )
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
            return sum_lookups(
                inputs.reshape(count, -1),
                slopes.reshape(count, -1, slopes.shape[-1]),
                self.weight_shape[0],
                options["padding_idx"],
            )
        if self.function in ("convolution", "transposed"):
            inputs, slopes = (
                inputs.flatten(0, 1),
                slopes.flatten(0, 1),
            )  # the batch axis of every record is 1
            pair = (slopes, inputs) if self.function == "convolution" else (inputs, slopes)
            return Stored(kernel_gradients(*pair, self.weight_shape, options))
        return Stored(self._over_places(inputs * slopes))

    def _as_products(self, inputs: torch.Tensor, slopes: torch.Tensor) -> Products:
        """The gradients by the weight as factors, which are multiplied for one record at a time."""
        if self.function == "linear":
            left, right = (
                part.reshape(part.shape[0], 1, -1, part.shape[-1]) for part in (slopes, inputs)
            )
            return Products(left, right, _multiply_sequences)
        inputs, slopes = inputs.flatten(0, 1)[:, None], slopes.flatten(0, 1)[:, None]
        left, right = (slopes, inputs) if self.function == "convolution" else (inputs, slopes)
        multiply = partial(
            kernel_gradients, weight_shape=self.weight_shape, options=dict(self.options)
        )
        return Products(left, right, multiply)

    def _over_places(self, values: torch.Tensor) -> torch.Tensor:
        """Sums over all axes but the records' and those of the bias."""
        count = values.shape[0]
        if self.function == "linear":
            return values.reshape(count, -1, values.shape[-1]).sum(1)
        if self.function == "normalised entries":
            return values.reshape(count, -1, *self.weight_shape).sum(1)
        return values.reshape(count, self.output_shape[1], -1).sum(2)

    def scale_normalised(self, normalised: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
        """What a normalising layer makes of its normalised input."""
        for name, combine in (("weight", torch.mul), ("bias", torch.add)):
            if (held := given.get(name)) is not None:
                channels = self.function == "normalised channels"
                normalised = combine(
                    normalised, held[(..., *[None] * (normalised.dim() - 2))] if channels else held
                )
        return normalised


def _multiply_sequences(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Gradients (copies, outputs, inputs) of sequences (copies, places, outputs or inputs)."""
    return left.transpose(1, 2) @ right


def sum_lookups(
    numbers: torch.Tensor, slopes: torch.Tensor, count: int, padding: int | None
) -> Rows:
    """Gradients by a table of ``count`` rows, that of padding left out."""
    if padding is not None:
        slopes = torch.where((numbers == padding % count)[:, :, None], 0.0, slopes)
    return Rows.of(numbers, slopes, count)


class UseCounter(TorchFunctionMode):
    """Writes down how often the forward pass uses each of ``named`` tensors, and by which layers."""

    def __init__(self, named: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._names = {id(tensor): name for name, tensor in named.items()}
        self._counts, self._weighed = dict.fromkeys(named, 0), dict.fromkeys(named, 0)
        self._layers = list[Layer]()
        self.kept = list[Any]()  #: so that no other tensor gets an address that was seen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        answer = func(*args, **given)
        self.kept.append((args, given))
        for tensor in all_tensors((args, given)):
            if id(tensor) in self._names:
                self._counts[self._names[id(tensor)]] += 1
        if func in FUNCTIONS:
            bound = _bound(func, args, given)
            name = self._names.get(id(bound.get("weight")))
            if name and FUNCTIONS[func][0] in WEIGHED and bound.get("max_norm") is None:
                self._weighed[name] += 1
            self._add(FUNCTIONS[func][0], bound, answer)
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
            options = (
                tuple((key, given.get(key, DEFAULTS[key])) for key in DEFAULTS)
                if convolved
                else (("padding_idx", given.get("padding_idx")),)
                if function == "embedding"
                else ()
            )
            self._layers.append(
                Layer(
                    function,
                    *names,
                    tuple(weight.shape),
                    tuple(answer.shape),
                    options,
                )
            )

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers whose tensors are used there and nowhere else."""
        return tuple(
            layer for layer in self._layers if all(self._counts[name] == 1 for name in layer.names)
        )

    @property
    def weights(self) -> frozenset[str]:
        """Tensors that are used, as weights of linear layers, convolutions or embeddings alone."""
        return frozenset(
            name for name, count in self._counts.items() if 0 < count == self._weighed[name]
        )


class LayerTap(TorchFunctionMode):
    """Adds ``zeros`` to the outputs of layers, and writes down their inputs; by the name of a
    layer's first tensor.

    Of a layer that normalises the input is what it has normalised, before it is scaled. ``host``:
    has the weights that are not ``named`` tensors of the device.
    """

    def __init__(
        self,
        named: dict[str, torch.Tensor],
        layers: tuple[Layer, ...],
        zeros: dict[str, torch.Tensor],
        host: HostWeights | None = None,
    ) -> None:
        super().__init__()
        self._at = {id(named[layer.names[0]]): layer for layer in layers}
        self._zeros, self.inputs = zeros, dict[str, torch.Tensor]()
        self._host, self._away = host, {} if host is None else host.names_by_id()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func not in FUNCTIONS:
            return func(*args, **(kwargs or {}))
        given = _bound(func, args, kwargs or {})
        layer = self._at.get(id(given.get("weight"))) or self._at.get(id(given.get("bias")))
        away = self._away.get(id(given.get("weight")))
        if self._host is not None and away is not None:
            func, args, kwargs = partial(self._host.call, func, given, away), (), {}
        if layer is None:
            return func(*args, **(kwargs or {}))
        name = layer.names[0]
        if layer.function.startswith("normalised"):
            self.inputs[name] = func(**given | {"weight": None, "bias": None})
            return layer.scale_normalised(self.inputs[name], given) + self._zeros[name]
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


# Lookups in a table whose padding row no record trains. Torch's own rule for ``vmap`` looks all
# records' tables up as one long table, and hands it the place of the padding row in a single one:
# the first record's padding row alone would be left out, and a record's gradient would follow from
# its place among the others. Here the padding is left out of each record's answer, by its numbers
# alone.


def of_function(
    input: torch.Tensor,
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """``torch.nn.functional.embedding``; ``sparse`` only says how a gradient is stored."""
    vectors = functional.embedding(input, weight, None, max_norm, norm_type, scale_grad_by_freq)
    return (
        vectors
        if padding_idx is None
        else _but_padding(vectors, input, padding_idx % weight.size(0))
    )


def of_operation(
    weight: torch.Tensor,
    indices: torch.Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> torch.Tensor:
    """``torch.embedding``, where no padding is -1."""
    vectors = torch.embedding(weight, indices, -1, scale_grad_by_freq)
    return vectors if padding_idx < 0 else _but_padding(vectors, indices, padding_idx)


def _but_padding(vectors: torch.Tensor, numbers: torch.Tensor, padding: int) -> torch.Tensor:
    return torch.where((numbers == padding).unsqueeze(-1), vectors.detach(), vectors)


LOOKUPS: dict[Any, Callable[..., torch.Tensor]] = {
    functional.embedding: of_function,
    torch.embedding: of_operation,
    torch.ops.aten.embedding: of_operation,
    torch.ops.aten.embedding.default: of_operation,
}
"""What takes the place of torch's own functions."""


class Padded(TorchDispatchMode):
    """Sees lookups that leave a padding row out by torch's own rule, such as those of compiled
    code."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.ops.aten.embedding.default:
            padding = args[2] if len(args) > 2 else (kwargs or {}).get("padding_idx", -1)
            self._seen = self._seen or padding >= 0
        return func(*args, **(kwargs or {}))

    def check(self) -> None:
        """Refuse them."""
        if self._seen:
            raise InputError(
                "model",
                "must look words up in ordinary code, for the rule of torch for padding mixes "
                "records that are vectorised",
                "embedding with padding_idx in compiled code",
                "leave torch.jit out, or the padding",
            )


# Functions that say themselves what they are for many records at once.


class NoOwnRules(TorchFunctionMode):
    """Refuses, while it is active, what brings its own rule for ``torch.vmap``: such code is given
    all records at once.

    That is an ``autograd.Function`` with a ``vmap`` of its own, and an operation with a kernel of
    its own for batched tensors. What torch makes by itself, by ``generate_vmap_rule = True`` or
    record by record, treats each alone; but for lookups with padding, in whose place others are
    called.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if args and isinstance(args[0], type) and issubclass(args[0], torch.autograd.Function):
            if args[0].vmap is not torch.autograd.Function.vmap:
                raise _refusal(
                    args[0].__name__, "set generate_vmap_rule = True there, and leave its vmap out"
                )
        elif (name := _find_custom_name(func)) is not None:
            raise _refusal(name, "leave out its register_vmap")
        return LOOKUPS.get(func, func)(*args, **(kwargs or {}))


def _find_custom_name(func: Any) -> str | None:
    """The name of an operation that somebody registered with a kernel for batched tensors; None for
    torch's own."""
    own = getattr(func, "_qualified_op_name", None)  # of all its overloads, as ``torch.ops`` has it
    parts = [getattr(func, each) for each in func.overloads()] if own is not None else [func]
    for part in parts:
        if (
            isinstance(part, torch._ops.OpOverload)
            and part.namespace != "aten"
            and torch._C._dispatch_has_kernel_for_dispatch_key(part.name(), "FuncTorchBatched")
        ):
            return part.name()
    return None


def _refusal(name: str, remedy: str) -> InputError:
    return InputError(
        "model",
        "must treat every record alone, and a function of the model or of the loss says itself "
        "what it is for many of them",
        name,
        remedy,
    )
