"""Per-record gradients by the kernels of convolutions, plain and transposed, of one to three axes.

A convolution is a matrix product with the patches of its input, so that one record's gradient is the product of the
derivative by the output with these patches (Rochette, Manoel, Tramel 2019, arXiv:1912.06015, section 3). A transposed
one is the derivative of a plain one, and has input and output exchanged.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as functional


def kernel_gradients(left: torch.Tensor, images: torch.Tensor, weight_shape: tuple[int, ...],
                     options: dict[str, Any]) -> torch.Tensor:
    """Gradients (m, *weight_shape): ``left`` (m, weight_shape[0], *places), ``images`` (m, channels, *sizes).

    ``images`` are what the kernel reads: the input of a convolution, or the slopes by the output of a transposed one;
    ``left`` is the other.
    """
    count, axes, groups = left.shape[0], len(weight_shape) - 2, int(options["groups"])
    patches = _patches(images, weight_shape[2:], tuple(left.shape[2:]), _each(options["stride"], axes),
                       _each(options["dilation"], axes), _padding(options, weight_shape[2:], axes))
    rows = left.reshape(count, groups, weight_shape[0] // groups, -1)
    gradients = rows @ patches.reshape(count, groups, -1, rows.shape[-1]).transpose(2, 3)
    return gradients.reshape(count, *weight_shape)


def _patches(images: torch.Tensor, kernel: tuple[int, ...], places: tuple[int, ...], stride: tuple[int, ...],
             dilation: tuple[int, ...], padding: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """What the kernel reads at every one of ``places``: (m, channels * places of the kernel, places)."""
    images = functional.pad(images, [side for pair in reversed(padding) for side in pair])
    axes = len(kernel)
    for axis in range(axes):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        images = images.unfold(2 + axis, span, stride[axis])[..., ::dilation[axis]]
    for axis in range(axes):  # of a transposed convolution the last places may read what no input reaches
        images = images.narrow(2 + axis, 0, places[axis])
    order = (0, 1, *range(2 + axes, 2 + 2 * axes), *range(2, 2 + axes))
    return images.permute(order).reshape(images.shape[0], images.shape[1] * math.prod(kernel), -1)  # copied once, here


def _each(value: int | tuple[int, ...], axes: int) -> tuple[int, ...]:
    """An option for every axis."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * axes if len(values) == 1 else values


def _padding(options: dict[str, Any], kernel: tuple[int, ...], axes: int) -> tuple[tuple[int, int], ...]:
    """Zeros before and behind, for every axis."""
    padding = options["padding"]
    if not isinstance(padding, str):
        return tuple((size, size) for size in _each(padding, axes))
    totals = [d * (k - 1) if padding == "same" else 0
              for d, k in zip(_each(options["dilation"], axes), kernel, strict=True)]
    return tuple((total // 2, total - total // 2) for total in totals)
