"""Sums of clipped per-record gradients of a module.

Every record passes through the module alone: ``vmap`` over records, each with a batch axis of length 1, so that no
module can mix records. Where a weight is used once by a linear layer on vectors, one record's gradient is the outer
product of the layer's input a and of the derivative d by its output, of norm |a| |d|; the sum of clipped ones is a
matrix product over the chunk (Goodfellow 2015, arXiv:1510.01799). One backward pass is enough for norms and sums (Bu,
Wang, Zha, Karypis 2023, arXiv:2210.00038). Of convolutions and of linear layers on sequences the gradients are
materialised by one batched matrix product: a second, weighted pass would add terms of one record, one for each place,
whose norms no clip bounds, and so the rounding of single precision would be bounded by nothing.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

from lastiterate.torch.layers import Layer, Tapped
from lastiterate.torch.parameters import Parameters, State

Loss = Callable[..., torch.Tensor]
"""``loss(output, *rest of the record)``: one number for one record."""
TINY = 2.0**-126
"""Smaller scales are subnormal in single precision, where rounding could double them; 0 instead."""
CLIP_SHRINK = 1 - 2.0**-18
"""Gradients are scaled to this fraction of the clip: more than rounding the scaled entries can add."""


@dataclass(frozen=True, eq=False)
class PerRecord:
    """A module, its loss of one record, and what is trained of it; ``layers`` are those without stored gradients.

    **Guarantee:** every record's gradient is a function of the parameters and of that record alone, is scaled to norm
    at most ``clip`` by its own computed norm (summed in float64), and counts as 0 where it is not finite, without a
    clip too: if it ended the run instead, one record could be recognised by that. Chunks of at most ``CHUNK`` records
    are added in at least single precision, term by term no longer than the clip (see ``FLOAT_SLACK``); where ``exact``
    everything is float64.
    """

    module: torch.nn.Module
    loss: Loss
    parameters: Parameters
    layers: tuple[Layer, ...]
    clip: float | None
    exact: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters.precision(exact=self.exact)

    def value(self, named: State, record: tuple[Any, ...]) -> torch.Tensor:
        """One record's loss; ``named``: all tensors of the module."""
        first, *rest = record
        output = functional_call(self.module, named, *arguments(first))
        return self.loss(without_batch(output), *rest)

    def chunk_sum(self, theta: torch.Tensor, constants: State, records: tuple[Any, ...],
                  real: torch.Tensor | None = None) -> torch.Tensor:
        """Sum of the clipped gradients of the records (m, ...) that are ``real`` (all of them: None), (size,) float64.

        With ``real`` it can be vectorised over ``theta``.
        """
        trained, count = self.parameters.tensors(theta, self.dtype), tree_leaves(records)[0].shape[0]
        each, products = self._gradients(trained, constants, in_precision(records, self.dtype), count)
        squares = torch.zeros(count, dtype=torch.float64, device=theta.device)
        # the run's parameters are w / scale: their gradient is scale times that by w, and its norm is what is clipped
        scales = dict(zip(self.parameters.names, self.parameters.scales, strict=True))
        for name, (left, right) in products.items():
            squares = squares + squared(left) * squared(right) * scales[name]**2
        for name, found in each.items():
            squares = squares + squared(found) * scales[name]**2
        # what is not clipped is added as it is, so its norm must be a number of that precision
        most = torch.finfo(self.dtype).max if self.clip is None else math.inf
        counted = torch.isfinite(squares) & (squares.sqrt() <= most)
        counted = counted if real is None else real & counted
        bound = math.inf if self.clip is None else self.clip * CLIP_SHRINK
        scale = torch.clamp(bound / torch.clamp(squares.sqrt(), min=1e-300), max=1.0)
        scale = torch.where(counted & (scale >= TINY), scale, 0.0)
        kept = None if real is None and bool(counted.all()) else counted
        sums = {name: product_sum(left, right, scale, kept) for name, (left, right) in products.items()}
        sums |= {name: weighted_sum(found, scale, kept) for name, found in each.items()}
        return torch.cat([sums[name].reshape(-1).to(torch.float64) * factor for name, factor in scales.items()])

    def _gradients(self, trained: State, constants: State, records: Any,
                   count: int) -> tuple[State, dict[str, tuple[torch.Tensor, torch.Tensor]]]:
        """Per-record gradients (m, ...) by the module's own parameters, and of products their two factors."""
        tapped = {name for layer in self.layers for name in layer.names}
        rest = {name: tensor.expand(count, *tensor.shape) for name, tensor in trained.items() if name not in tapped}
        device = next(iter(trained.values())).device
        zeros = {layer.names[0]: torch.zeros(count, *layer.output_shape, dtype=self.dtype, device=device)
                 for layer in self.layers}
        held = {name: tensor for name, tensor in trained.items() if name in tapped}

        def one(zeros: State, rest: State, record: Any) -> tuple[torch.Tensor, State]:
            with Tapped(held, self.layers, zeros) as tap:
                first, *others = record
                output = functional_call(self.module, constants | held | rest, *arguments(first))
            return self.loss(without_batch(output), *others), tap.inputs

        def total(zeros: State, rest: State) -> tuple[torch.Tensor, State]:
            losses, inputs = vmap(one)(zeros, rest, records)
            return losses.sum(), inputs

        (slopes, each), inputs = grad(total, argnums=(0, 1), has_aux=True)(zeros, rest)
        products = dict[str, tuple[torch.Tensor, torch.Tensor]]()
        for layer in self.layers:
            at = layer.names[0]
            if layer.weight is not None and layer.single:
                products[layer.weight] = slopes[at].reshape(count, -1), inputs[at].reshape(count, -1)
            elif layer.weight is not None:
                each[layer.weight] = layer.gradients(inputs[at], slopes[at])
            if layer.bias is not None:
                each[layer.bias] = layer.bias_gradients(slopes[at])
        return each, products


def arguments(first: Any) -> tuple[Any, Any]:
    """Positional and named arguments of the module for one record, with a batch axis of length 1."""
    if isinstance(first, dict):
        return (), {name: tensor.unsqueeze(0) for name, tensor in first.items()}
    return tuple(tensor.unsqueeze(0) for tensor in (first if isinstance(first, tuple) else (first,))), {}


def without_batch(output: Any) -> Any:
    """What the module answers for one record, of all tensors in it."""
    if isinstance(output, torch.Tensor):
        return output[0]
    if isinstance(output, tuple | list):
        return tuple(without_batch(each) for each in output)
    return {name: without_batch(each) for name, each in output.items()}


def in_precision(records: Any, dtype: torch.dtype) -> Any:
    """Records whose floating-point tensors are as precise as the parameters."""
    return tree_map(lambda a: a.to(dtype) if a.is_floating_point() else a, records)


def squared(values: torch.Tensor) -> torch.Tensor:
    """Upper bounds on every record's squared norm, (m,) float64; squares that underflow are below 2^-1022 each."""
    flat = values.reshape(values.shape[0], -1)
    if flat.dtype == torch.float64:
        return (flat * flat).sum(1) + flat.shape[1] * 2.0**-1022
    return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64).square() * (1 + 2.0**-50)


def summable(values: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
    """0 where a record does not count (all do: None): 0 times infinity would be no number; (m, entries)."""
    flat = values.reshape(values.shape[0], -1)
    return flat if counted is None else torch.where(counted[:, None], flat, 0.0)


def product_sum(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor,
                counted: torch.Tensor | None) -> torch.Tensor:
    """Sum of the scaled outer products, (outputs, inputs)."""
    left = summable(left, counted) * scale.to(left.dtype)[:, None]
    left = torch.where(left.abs() < TINY, 0.0, left)  # rounded there, and multiplied by what may be large
    return left.T @ summable(right, counted)


def weighted_sum(each: torch.Tensor, scale: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
    """Sum of the scaled gradients, (entries,)."""
    return scale.to(each.dtype) @ summable(each, counted)


class full_precision:
    """Matrix products as exact as their type says, and no automatic casts, whatever the process has set.

    **Guarantee:** sums of single precision are single precision: TF32 and bfloat16 have 10 and 7 bits, more error than
    ``FLOAT_SLACK`` holds.
    """

    def __init__(self, device: torch.device) -> None:
        self._cast = torch.autocast(device.type, enabled=False)

    def __enter__(self) -> None:
        self._before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        self._cast.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._cast.__exit__(*error)
        torch.set_float32_matmul_precision(self._before[0])
        torch.backends.cudnn.allow_tf32 = self._before[1]


def as_theta(point: np.ndarray, device: torch.device) -> torch.Tensor:
    """Parameters as the loop holds them, on the module's device."""
    return torch.from_numpy(np.array(point)).to(device)
